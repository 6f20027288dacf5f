"""DataParallel, TensorParallel and FullySharded: what each rank holds, gets and sends, and that values are right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.machines.profiles import device, near, worker
from support.machines.run_plan import run_plan

from coordinator.planning.model.plan import FromInput, FromParam, Plan
from coordinator.planning.planner import make_plan
from wire.errors import InputError, PlacementError
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder, WireGraph
from wire.policy.strategies import DataParallel, DataTensor, FullySharded, Split, TensorParallel, strategy_of
from worker.cpu import evaluate

FOUR = near(*(worker(number, device(0, 1e-3, 1e-2)) for number in range(4)))
RNG = np.random.default_rng(1)
INPUTS = {"x": RNG.standard_normal((10, 8)).astype(np.float32)}
PARAMS = {
    "first/w": RNG.standard_normal((8, 32)).astype(np.float32),
    "first/b": RNG.standard_normal(32).astype(np.float32),
    "second/w": RNG.standard_normal((32, 8)).astype(np.float32),
}


def mlp() -> WireGraph:
    """tanh(x @ w + b) @ w."""
    builder = GraphBuilder()

    def product(x: int, w: int) -> int:
        return builder.add("dot", x, w, lhs_batch=(), rhs_batch=(), lhs_contract=(1,), rhs_contract=(0,))

    hidden = product(builder.input("x", (10, 8), F32), builder.param("first/w", (8, 32), F32))
    bias = builder.add("broadcast", builder.param("first/b", (32,), F32), shape=(10, 32))
    hidden = builder.add("tanh", builder.add("add", hidden, bias))
    return builder.build([product(hidden, builder.param("second/w", (32, 8), F32))])


def checked(asked: Split, profiles: Any = FOUR) -> Plan:
    """The plan, after its answer was compared with that of one device."""
    plan = make_plan(mlp(), profiles, asked.text)
    (found,) = run_plan(plan, INPUTS, PARAMS)
    (expected,) = evaluate(mlp(), {**INPUTS, **PARAMS})
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    return plan


def bytes_of(plan: Plan, kind: Any) -> list[int]:
    return [sum(part.sizes(kind).values()) for part in plan.parts]


def collectives(plan: Plan) -> list[str]:
    nodes = plan.parts[0].graph.nodes
    return [node.op for node in nodes if "sizes" in node.attrs and "axes" in node.attrs and node.op != "axis_index"]


def test_data_parallel_shares_the_batch_out_though_it_does_not_divide() -> None:
    plan = checked(DataParallel(4))
    assert len(plan.parts) == 4, "ranks only: nobody pads or trims what all would have to be sent for"
    assert bytes_of(plan, FromInput) == [3 * 8 * 4] * 4
    assert bytes_of(plan, FromParam) == [sum(array.nbytes for array in PARAMS.values())] * 4
    assert collectives(plan) == []


def test_tensor_parallel_splits_columns_then_rows_and_reduces_once() -> None:
    plan = checked(TensorParallel(4))
    assert collectives(plan) == ["all_reduce"]
    assert bytes_of(plan, FromInput) == [10 * 8 * 4] * 4
    assert max(bytes_of(plan, FromParam)) <= (8 * 8 + 32 + 8 * 8) * 4


@pytest.mark.parametrize("turned", [False, True])
def test_tensor_parallel_splits_square_weights_where_no_product_sums(turned: bool) -> None:
    """Of attention every rank computes some heads, and ranks send each other nothing."""
    builder = GraphBuilder()
    x, sides = builder.input("x", (6, 8), F32), []
    for name in ("q", "k", "v"):
        w = builder.param(name, (8, 8), F32)
        w = builder.add("transpose", w, perm=(1, 0)) if turned else w
        made = builder.add("dot", x, w, lhs_batch=(), rhs_batch=(), lhs_contract=(1,), rhs_contract=(0,))
        sides.append(builder.add("transpose", builder.add("reshape", made, shape=(6, 4, 2)), perm=(1, 0, 2)))
    q, k, v = sides
    scores = builder.add("tanh", builder.add("dot", q, k, lhs_batch=(0,), rhs_batch=(0,), lhs_contract=(2,),
                                             rhs_contract=(2,)))  # fmt: skip
    graph = builder.build(
        [builder.add("dot", scores, v, lhs_batch=(0,), rhs_batch=(0,), lhs_contract=(2,), rhs_contract=(1,))]
    )
    held = {name: RNG.standard_normal((8, 8)).astype(np.float32) for name in ("q", "k", "v")}
    given = {"x": RNG.standard_normal((6, 8)).astype(np.float32)}
    plan = make_plan(graph, FOUR, TensorParallel(4).text)
    assert collectives(plan) == []
    assert bytes_of(plan, FromParam) == [3 * 8 * 2 * 4] * 4
    (found,), (expected,) = run_plan(plan, given, held), evaluate(graph, {**given, **held})
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_fully_sharded_holds_a_share_of_everything() -> None:
    plan = checked(FullySharded(4))
    assert bytes_of(plan, FromInput) == [3 * 8 * 4] * 4
    assert max(bytes_of(plan, FromParam)) <= (8 * 8 + 32 + 8 * 8) * 4
    assert "all_gather" in collectives(plan)


@pytest.mark.parametrize("kind", [DataParallel, TensorParallel, FullySharded])
def test_how_many_ranks_is_chosen_by_cost_and_the_others_are_told(kind: type[Split]) -> None:
    plan = checked(kind())
    tried = {2, 4}
    ranks = len(plan.gangs[0].parts)
    (other,) = tried - {ranks}
    assert any(reason.startswith(f"{other} would take") for reason in plan.reasons)


def test_a_batch_may_be_named_and_must_be_where_it_is_not_clear() -> None:
    builder = GraphBuilder()
    x, scale = builder.input("x", (8, 2), F32), builder.input("scale", (2,), F32)
    graph = builder.build([builder.add("mul", x, builder.add("broadcast", scale, shape=(8, 2)))])
    with pytest.raises(InputError, match=r"different lengths \(x 8, scale 2\)"):
        make_plan(graph, FOUR, DataParallel(2).text)
    plan = make_plan(graph, FOUR, DataParallel(2, ("x",)).text)
    assert bytes_of(plan, FromInput) == [40, 40]
    with pytest.raises(InputError, match="no input is called y"):
        make_plan(graph, FOUR, DataParallel(2, ("y",)).text)
    with pytest.raises(InputError, match="nothing to split"):
        make_plan(graph, FOUR, TensorParallel(2).text)


def test_too_few_workers_are_an_error_and_never_another_strategy() -> None:
    alone = near(FOUR.workers[0])
    for asked in (DataParallel(), TensorParallel(), FullySharded()):
        with pytest.raises(PlacementError, match="2 workers at least"):
            make_plan(mlp(), alone, asked.text)
    with pytest.raises(PlacementError, match="needs 8 devices"):
        make_plan(mlp(), FOUR, DataParallel(8).text)
    with pytest.raises(PlacementError, match=r"18 workers at least, and up to 16 are tried\. Say how many"):
        make_plan(mlp(), FOUR, DataTensor(tensor=9).text)


def test_a_program_that_passes_on_what_it_is_given_has_a_plan_without_ranks() -> None:
    builder = GraphBuilder()
    x, w = builder.input("x", (8, 2), F32), builder.param("w", (3,), F32)
    plan = make_plan(builder.build([w, x]), FOUR, DataParallel().text)
    assert plan.parts == () and plan.gangs == ()


@pytest.mark.parametrize("ranks", [1, -2, 2.5, "4", 100_000])
def test_nonsense_is_refused(ranks: Any) -> None:
    with pytest.raises(InputError):
        DataParallel(ranks)


def test_texts() -> None:
    for asked in (DataParallel(), DataParallel(3, ("x", "y")), TensorParallel(2), FullySharded(2)):
        assert strategy_of(asked.text) == asked
    for text in ('data {"ranks":1}', "data [3]", 'data {"rank":2}', 'data {"inputs":[3]}', "tensor x"):
        with pytest.raises(InputError):
            strategy_of(text)


def test_what_is_annotated_is_split_by_auto_and_whole_otherwise() -> None:
    builder = GraphBuilder()
    x = builder.add("constraint", builder.input("x", (8, 2), F32), axes=("dp",), sizes=(2,), spec="dp -")
    graph = builder.build([builder.add("exp", x)])
    given = {"x": RNG.standard_normal((8, 2)).astype(np.float32)}
    plan = make_plan(graph, FOUR, "auto")
    assert len(plan.gangs) == 1 and bytes_of(plan, FromInput) == [32, 32]
    assert np.array_equal(run_plan(plan, given, {})[0], evaluate(graph, given)[0])
    assert not make_plan(graph, FOUR, "single").gangs
