"""Sessions without workers: what a step function may do with its state, and what it may not."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mesh
import mesh.numpy as mnp
from mesh import Mesh, tree
from mesh.backends.config import MeshConfig
from mesh.client.async_mesh import AsyncMesh
from mesh.core.expression import Expression
from mesh.errors import Cancelled, ConfigError, InputError
from mesh.functions.step_trace import Stepping
from wire.ir.graph import WireGraph
from wire.ir.ops import inner_graphs

X = np.arange(4, dtype=np.float32)


def roles(fn: Callable[..., Any], state: Any, *examples: Any) -> dict[str, str]:
    stepping = Stepping(fn, state, examples, "auto")
    return {leaf.path: leaf.role for leaf in stepping._leaves}


def python(fn: Callable[..., Any], state: Any, *calls: Any) -> tuple[Any, list[Any]]:
    """What the same function does with numpy alone."""
    every_output = []
    for args in calls:
        state, outputs = fn(state, *args)
        every_output.append(outputs)
    return state, every_output


def counter(state: Any, x: Any) -> Any:
    return {"n": state["n"] + 1, "sum": state["sum"] + x}, state["n"] * 2


def swap(state: Any, x: Any) -> Any:
    return {"a": state["b"], "b": state["a"], "c": state["c"] + x}, state["a"]


def cycle(state: Any, x: Any) -> Any:
    return {"a": state["b"], "b": state["c"], "c": state["a"], "d": state["d"] * x}, ()


def delay(state: Any, x: Any) -> Any:
    return {"new": x, "old": state["new"], "never": state["never"], "one": mnp.ones(2)}, state["old"] + state["never"]


CASES = [
    (counter, {"n": np.int32(0), "sum": np.zeros(4, np.float32)}),
    (swap, {name: np.full(4, at, np.float32) for at, name in enumerate("abc")}),
    (cycle, {name: np.full(4, at + 1, np.float32) for at, name in enumerate("abcd")}),
    (delay, {"new": X * 0, "old": X * 0, "never": X + 1, "one": np.zeros(2, np.float32)}),
]


@pytest.mark.parametrize(("fn", "times"), [(counter, 1), (swap, 2), (delay, 3)])
def test_a_step_is_traced_again_only_where_its_state_takes_another_form(fn: Any, times: int) -> None:
    calls = []

    def counted(state: Any, x: Any) -> Any:
        calls.append(x)
        return fn(state, x)

    Stepping(counted, next(state for each, state in CASES if each is fn), (X,), "auto")
    assert len(calls) == times


@pytest.mark.parametrize(("fn", "state"), CASES, ids=lambda each: getattr(each, "__name__", ""))
def test_a_session_does_what_the_function_does(fn: Callable[..., Any], state: Any) -> None:
    calls = [(X * step,) for step in range(5)]
    with Mesh(MeshConfig()) as mesh, mesh.session(fn, state, X) as session:
        assert_same(session.state(), state)
        steps = [session.step(*args) for args in calls]
        found = [step.result() for step in steps]
        final = session.state()
    expected, expected_outputs = python(lambda *args: as_numpy(fn(*args)), state, *calls)
    assert_same(final, expected)
    for each, wanted in zip(found, expected_outputs, strict=True):
        assert_same(each, wanted)


def as_numpy(value: Any) -> Any:
    return tree.map(np.asarray, value)


def assert_same(found: Any, expected: Any) -> None:
    tree.map(np.testing.assert_array_equal, found, expected)


def test_every_leaf_has_its_role() -> None:
    assert roles(*CASES[0], X) == {"n": "carried", "sum": "carried"}
    assert roles(*CASES[1], X) == {"a": "carried", "b": "carried", "c": "carried"}
    assert roles(*CASES[3], X) == {"new": "carried", "old": "carried", "never": "fixed", "one": "returned"}


def test_the_step_graph_computes_every_next_value() -> None:
    for fn, state in CASES:
        stepping = Stepping(fn, state, (X,), "auto")
        graph: WireGraph = stepping.graph
        for name, output in stepping.carries:
            assert name in graph.param_types
            assert graph.types[graph.outputs[output]] == graph.param_types[name]


@pytest.mark.parametrize(
    ("fn", "state", "says"),
    [
        (lambda state, x: state + x, np.float32(0), "two things"),
        (lambda state, x: ({"b": state["a"]}, x), {"a": X}, "structure"),
        (lambda state, x: (state[:2] + 1, x), X, "was f32[4]"),
        (lambda state, x: (state, x * 2), X, "no step needs"),
        (lambda state, x: ((), x), (), "no tensors"),
    ],
)
def test_what_is_no_step_is_refused(fn: Callable[..., Any], state: Any, says: str) -> None:
    with Mesh(MeshConfig()) as mesh, pytest.raises(InputError, match=says.replace("[", r"\[")):
        mesh.session(fn, state, X)


@pytest.mark.parametrize("wrong", [{"copies": "two"}, {"every": 0}, {"ahead": 0}, {"mode": "maybe"}, {"strategy": "x"}])
def test_what_a_session_cannot_be_asked_is_refused(wrong: dict[str, Any]) -> None:
    with Mesh(MeshConfig()) as mesh, pytest.raises(InputError):
        mesh.session(*CASES[0], X, **wrong)


def sorting(state: Any, x: Any) -> Any:
    return {"a": state["a"] + x, "b": {"c": state["b"]["c"] * 2, "d": state["b"]["d"] + 1}}, ()


def test_a_step_may_return_the_state_with_its_keys_in_another_order() -> None:
    state = {"b": {"d": np.float32(1), "c": np.float32(2)}, "a": X}  # JAX gives dicts back sorted
    with Mesh(MeshConfig()) as mesh, mesh.session(sorting, state, X) as session:
        session.step(X)
        found = session.state()
    assert list(found) == ["b", "a"] and list(found["b"]) == ["d", "c"]
    assert_same(found, {"b": {"d": np.float32(2), "c": np.float32(4)}, "a": 2 * X})


async def _two_states(stepping: Stepping) -> list[Any]:
    async with await AsyncMesh.connect(MeshConfig()) as here:
        found = []
        for each in (stepping, stepping.starting({name: np.full(4, at, np.float32) for at, name in enumerate("cba")})):
            session = here.open_session(each, "none", 1, None, "off")
            session.step(X)
            found.append(await session.state())
        return found


def test_an_argument_that_does_not_fit_is_named_as_the_function_names_it() -> None:
    def step(own: Any, batch: Any, *, rate: Any) -> Any:
        return own + batch["x"] * rate, mnp.sum(own)

    stepping = Stepping(step, X, ({"x": X}, tree.Keywords(rate=X)), "auto")
    with pytest.raises(InputError, match=r"^the argument 'batch/x' is f32\[2\], expected f32\[4\]"):
        stepping.bind(stepping.merge_arguments(({"x": X[:2]},), {"rate": X}))
    with pytest.raises(InputError, match=r"^the argument 'rate' is f32\[2\], expected f32\[4\]"):
        stepping.bind(stepping.merge_arguments(({"x": X},), {"rate": X[:2]}))


def test_steps_that_were_traced_once_start_from_any_state_of_their_shapes() -> None:
    stepping = Stepping(*CASES[1], (X,), "auto")
    first, other = asyncio.run(_two_states(stepping))
    assert_same(first, as_numpy(swap(CASES[1][1], X)[0]))
    assert_same(other, as_numpy(swap({name: np.full(4, at, np.float32) for at, name in enumerate("cba")}, X)[0]))
    with pytest.raises(InputError, match=r"the state's 'a' is f32\[2\], expected f32\[4\]"):
        stepping.starting({**CASES[1][1], "a": X[:2]})
    with pytest.raises(InputError, match="changes the structure"):
        stepping.starting({"a": X})


def test_arguments_are_copied_and_checked() -> None:
    with Mesh(MeshConfig()) as mesh, mesh.session(*CASES[0], X) as session:
        x = X.copy()
        step = session.step(x)
        x[:] = 100
        step.result()
        np.testing.assert_array_equal(session.state()["sum"], X)
        with pytest.raises(InputError):
            session.step(X[:2])


def test_a_step_with_too_few_or_too_many_arguments_says_which() -> None:
    with Mesh(MeshConfig()) as mesh, mesh.session(counter, *CASES[0][1:], X) as session:
        with pytest.raises(InputError, match=r"the argument 'x' of counter is missing\. It takes state, x"):
            session.step()
        with pytest.raises(InputError, match=r"counter: too many positional arguments\. It takes state, x"):
            session.step(X, X)
        assert int(session.step(X).result()) == 0


def test_a_closed_session_and_a_closed_mesh_take_no_steps() -> None:
    mesh = Mesh(MeshConfig())
    session = mesh.session(*CASES[0], X)
    session.close()
    session.close()
    with pytest.raises(Cancelled):
        session.step(X).result()
    other = mesh.session(*CASES[0], X)
    mesh.close()
    with pytest.raises(ConfigError):
        other.step(X)
    other.close()


def test_the_same_with_a_loop() -> None:
    async def run() -> None:
        async with await AsyncMesh.connect(MeshConfig()) as mesh, await mesh.session(*CASES[0], X) as session:
            steps = [session.step(X) for _ in range(4)]
            assert [int(each) for each in await asyncio.gather(*steps)] == [0, 2, 4, 6]
            assert int((await session.state())["n"]) == 4

    asyncio.run(run())


def test_a_step_holds_nothing_of_how_it_was_traced() -> None:
    """A server keeps the steps of many sizes of its batches; branches and loops held the expressions in them."""

    def step(state: Any, x: Any) -> Any:
        grown = mesh.cond(mnp.sum(x) > 0, lambda: mnp.tanh(state + x), lambda: state - x)
        return mesh.fori_loop(0, 3, lambda _, value: value * 2 + x, grown), mnp.sum(grown)

    def expressions() -> int:
        gc.collect()
        return sum(type(each) is Expression for each in gc.get_objects())

    kept, counts = [], []
    for _ in range(3):
        kept.append(Stepping(step, X, (X,), "auto"))
        counts.append(expressions())
    assert counts[1] == counts[2], counts
    assert any(inner_graphs(node.op, node.attrs) for node in kept[0].graph.nodes)
