"""Updates that the cpu engine writes over what it was lent, against the engine that copies."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from support.cases.control_cases import graph_of, siblings
from support.cases.language import golden_model
from support.cases.op_cases import ROWS, cases
from support.cases.random_graphs import random_graph
from support.cases.updating import KIND, ROW, ROWS_COUNT, SCALAR, WIDTH, arguments, stepping

from mesh.core.array import handle_array
from mesh.functions.step_trace import Stepping
from mesh.inference import kv_cache_step, sampling
from mesh.inference.settings import GREEDY, Room
from wire.errors import Cancelled
from wire.ir.dtypes import BOOL, F32
from wire.ir.graph import GraphBuilder, WireGraph
from wire.ir.types import TensorType
from worker.compiler.inline_composites import inline_composites
from worker.cpu import CpuEngine, engine, inplace_analysis
from worker.cpu.engine import KERNELS, compile_graph, run
from worker.cpu.inplace_analysis import FRESH, Spare
from worker.engine.donation import Lent
from worker.native.engine import NativeEngine

SEEDS = range(120)


@pytest.fixture
def copying(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Compiles without any update in place."""

    def compiled(graph: WireGraph) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(engine, "spare", lambda *_: Spare())
            return compile_graph(graph)

    return compiled


@pytest.mark.parametrize("seed", SEEDS)
def test_steps_in_place_give_the_bits_of_steps_that_copy_and_can_be_taken_back(seed: int, copying: Any) -> None:
    graph, rng = stepping(seed), np.random.default_rng(seed)
    ours, plain = compile_graph(graph), copying(graph)
    states = [rng.standard_normal(KIND.shape).astype(np.float32) for _ in range(3)]
    for _ in range(4):
        given = arguments(rng)
        before = [state.copy() for state in states]
        right = run(plain, [*states, *given])
        assert all((state == was).all() for state, was in zip(states, before, strict=True))
        lent = [Lent(state) for state in states]
        actual = run(ours, [*lent, *given])
        check_apart(actual, [tensor.array for tensor in lent if tensor.output is None] + given)
        assert [array.tobytes() for array in actual] == [array.tobytes() for array in right]
        mine = [array.copy() for array in actual]
        for each, was in zip(lent, before, strict=True):
            each.take_back()
            assert each.array.tobytes() == was.tobytes(), "the old value is not there again"
        actual = run(ours, [*(Lent(state) for state in states), *given])
        assert [array.tobytes() for array in actual] == [array.tobytes() for array in mine], "another time"
        states = actual[:3]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_that_is_stopped_anywhere_leaves_what_it_was_lent(seed: int) -> None:
    graph, rng = stepping(seed), np.random.default_rng(seed)
    ours = compile_graph(graph)
    states = [rng.standard_normal(KIND.shape).astype(np.float32) for _ in range(3)]
    given, before = arguments(rng), [state.tobytes() for state in states]
    for calls in range(40):
        asked = iter([False] * calls + [True] * 10_000)
        lent = [Lent(state) for state in states]
        try:
            run(ours, [*lent, *given], stopped=partial(next, asked))
        except Cancelled:
            assert all(tensor.output is None and not tensor.undo for tensor in lent)
        for tensor in lent:
            tensor.take_back()
        assert [state.tobytes() for state in states] == before


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_not_lent_is_never_written_to(seed: int, copying: Any) -> None:
    graph, rng = stepping(seed), np.random.default_rng(seed)
    states = [rng.standard_normal(KIND.shape).astype(np.float32) for _ in range(2)]
    given, before = [*states, states[0], *arguments(rng)], [state.tobytes() for state in states]
    right = [array.tobytes() for array in run(copying(graph), given)]
    twice = Lent(states[0])
    for inputs in (given, [twice, states[1], twice, *given[3:]], [Lent(states[0]), states[1], *given[2:]]):
        actual = run(compile_graph(graph), inputs)
        check_apart(
            actual, [each for each, lent in zip(given[:3], inputs[:3], strict=True) if not isinstance(lent, Lent)]
        )
        assert [array.tobytes() for array in actual] == right
        assert [state.tobytes() for state in states] == before


def check_apart(outputs: list[Any], others: list[Any]) -> None:
    for place, output in enumerate(outputs):
        for other in (*outputs[:place], *others):
            assert not np.shares_memory(output, other)


def test_a_cache_is_written_where_it_is_also_inside_a_branch() -> None:
    def layer(builder: GraphBuilder, cache: int, at: int, row: int) -> list[int]:
        flat = builder.add("reshape", cache, shape=(ROWS_COUNT * 2, WIDTH // 2))
        half = builder.add("slice", row, start=(0, 0), stop=(1, WIDTH // 2), step=(1, 1))
        made = builder.add("scatter", flat, builder.add("reshape", at, shape=(1,)), half, axis=0, mode="set")
        kept = builder.add("reshape", made, shape=KIND.shape)
        return [kept, builder.add("reduce_sum", kept, axes=(0,))]

    inner = graph_of([KIND, SCALAR, ROW], layer)

    def step(builder: GraphBuilder, chosen: int, cache: int, at: int, row: int) -> list[int]:
        return siblings(builder, "cond", chosen, cache, at, row, count=2, then=inner, otherwise=inner)

    executable = compile_graph(graph_of([TensorType((), BOOL), KIND, SCALAR, ROW], step))
    cache = np.zeros(KIND.shape, np.float32)
    lent = Lent(cache)
    row = np.ones(ROW.shape, np.float32)
    actual, _ = run(executable, [np.array(True), lent, np.array(3, np.int32), row])
    assert lent.output == 0 and np.shares_memory(actual, cache)
    assert sum(undo.old.nbytes for undo in lent.undo) == WIDTH // 2 * 4, "no more is remembered than was written"


def test_a_branch_inside_others_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A choice of one among many is a cond in a cond: the last of them would be searched for each one around it."""
    searched: list[WireGraph] = []

    def noting(graph: WireGraph) -> WireGraph:
        searched.append(graph)
        return inline_composites(graph)

    def row_set(builder: GraphBuilder, _: int, cache: int, at: int, row: int) -> list[int]:
        return [builder.add("scatter", cache, builder.add("reshape", at, shape=(1,)), row, axis=0, mode="set")]

    def chosen_from(rest: WireGraph) -> WireGraph:
        def choice(builder: GraphBuilder, *operands: int) -> list[int]:
            return siblings(builder, "cond", operands[0], *operands, count=1, then=first, otherwise=rest)

        return graph_of(kinds, choice)

    kinds = [TensorType((), BOOL), KIND, SCALAR, ROW]
    first = last = graph_of(kinds, row_set)
    for _ in range(6):
        last = chosen_from(last)
    monkeypatch.setattr(inplace_analysis, "inline_composites", noting)
    compile_graph(last)
    assert len(searched) == len({id(graph) for graph in searched}) == 6


@pytest.mark.parametrize(
    ("make", "chunk", "drafts"),
    [
        (CpuEngine, 1, 0), (CpuEngine, 4, 0), (CpuEngine, 8, 2), (partial(NativeEngine, threads=1), 4, 0),
        *(pytest.param(partial(NativeEngine, threads=1), *room, marks=pytest.mark.long) for room in ((1, 0), (8, 2))),
    ],
)  # fmt: skip
def test_a_step_of_texts_writes_the_rows_of_their_tokens_and_copies_no_cache(
    make: Any, chunk: int, drafts: int
) -> None:
    model, room = golden_model("mistral"), Room(2, 257, 2048, chunk, 1 + drafts)
    assert model.text is not None
    decoder, ones = model.text.decoder, np.ones(2, np.int32)
    params = {key: handle_array(handle) for key, handle in model.handles.items()}
    table = 1 + np.arange(256, dtype=np.int32).reshape(2, 128)
    feeds = kv_cache_step.feeds(
        room, np.ones((2, chunk), np.int32), 0 * ones, ones + drafts, ones < 0, table, sampling.fed([GREEDY] * 2),
        ones * drafts if drafts else None,
    )  # fmt: skip
    step = kv_cache_step.stepper(decoder, room, params, drafts_max=drafts)
    stepping = Stepping(step, kv_cache_step.empty(decoder, room, F32), feeds, "auto")
    graph = stepping.graph
    names = [graph.nodes[index].attrs["name"] for index in (*graph.inputs, *graph.params)]
    given = {**{key: np.array(handle) for key, handle in stepping.work.bindings.items()}, **stepping.bind(feeds)}
    caches = {key: Lent(np.array(given[key])) for key, _ in stepping.carries if given[key].ndim == 4}
    engine = make()
    engine.run(engine.compile(graph), [caches.get(name, given[name]) for name in names])
    engine.close()
    assert len(caches) == 2 * decoder.layers
    rows = 2 * decoder.kv_heads * decoder.size * 4 * (1 + drafts)  # of a token of both texts, and of its drafts
    for cache in caches.values():
        assert cache.output is not None, "a cache was copied"
        assert sum(undo.old.nbytes for undo in cache.undo) == rows


@pytest.mark.parametrize("op", sorted(FRESH & set(ROWS)))
def test_kernels_that_are_said_to_make_new_memory_do(op: str) -> None:
    for case in cases(op):
        graph = inline_composites(case.graph)
        for node, kind in zip(graph.nodes, graph.types, strict=True):
            if node.op == op:
                shapes = [graph.types[source] for source in node.inputs]
                operands = [np.ones(shape.shape, shape.dtype.numpy) for shape in shapes]
                result = np.asarray(KERNELS[op](node.attrs, operands, kind))
                assert not any(np.shares_memory(result, operand) for operand in operands), case.id


def test_the_engine_says_that_it_takes_what_is_lent() -> None:
    assert CpuEngine.takes_lent


def test_random_graphs_in_place_give_the_bits_of_graphs_that_copy(copying: Any) -> None:
    for seed in range(80):
        made = random_graph(seed)
        named = {**made.inputs, **made.params}
        given = [named[made.graph.nodes[index].attrs["name"]] for index in (*made.graph.inputs, *made.graph.params)]
        before = [array.tobytes() for array in given]
        right = [array.tobytes() for array in run(copying(made.graph), given)]
        ours = compile_graph(made.graph, updated_bytes_min=0)
        assert [array.tobytes() for array in run(ours, given)] == right, seed
        lent = [Lent(np.array(array, copy=True, order="C")) for array in given]
        assert [array.tobytes() for array in run(ours, lent)] == right, seed
        for tensor in lent:
            tensor.take_back()
        assert [tensor.array.tobytes() for tensor in lent] == before, "the old values are there again"
        assert [array.tobytes() for array in given] == before
