"""Arguments by name work wherever arguments do, and mean what they mean by place; what no function takes is said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import mesh
import mesh.numpy as mnp
from mesh import Mesh, errors, nn, optim, tree
from mesh.backends.config import MeshConfig
from mesh.tree import Keywords

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def scaled(x: Any, by: Any = 2.0, *, plus: Any = 1.0) -> Any:
    return x * by + plus


def total(x: Any, by: Any = 2.0, *, plus: Any = 1.0) -> Any:
    return scaled(x, by, plus=plus).sum()


def by_place_alone(x: Any, /, by: Any = 2.0, plus: Any = 1.0, *more: Any, **others: Any) -> Any:
    return scaled(x, by, plus=plus) + sum(more) + others.get("x", 0.0)


def step(state: Any, x: Any, *, by: Any) -> Any:
    return state + x * by, state.sum()


def customised(x: Any, /, by: Any = 2.0, plus: Any = 1.0) -> Any:
    return scaled(x, by, plus=plus)


@pytest.fixture(scope="module")
def alone() -> Iterator[Mesh]:
    with Mesh(MeshConfig()) as made:
        yield made


def in_session(m: Mesh, **named: Any) -> Any:
    with m.session(step, X, X, by=1.0) as session:
        session.step(**named) if "x" in named else session.step(X, **named)
        return session.state()


def served(m: Mesh, **named: Any) -> Any:
    with mesh.InferenceServer(m) as server:
        server.load_model("f", scaled, batched=False)
        return server.infer("f", X, **named)


CALLS: dict[str, tuple[Callable[[Mesh], Any], Any]] = {
    "run": (lambda m: m.run(scaled, X, plus=3.0), X * 2 + 3),
    "run, all by name": (lambda m: m.run(scaled, plus=3.0, x=X, by=1.0), X + 3),
    "run, beside its own": (lambda m: m.run(scaled, X, plus=X, strategy="single", mode="off"), X * 3),
    "submit": (lambda m: m.submit(scaled, X, by=3.0, plus=0.0).result(), X * 3),
    "compile": (lambda m: m.compile(scaled, X, plus=1.0)(X, plus=4.0), X * 2 + 4),
    "compile, by place and name alike": (lambda m: m.compile(scaled, X, 3.0)(X, by=1.0), X + 1),
    "a graph": (lambda m: m.run(mesh.trace(scaled, X, plus=X), X, plus=X), X * 3),
    "evaluate": (lambda m: mesh.evaluate(scaled, X, plus=5.0), X * 2 + 5),
    "function": (lambda m: mesh.function(scaled)(X, plus=5.0), X * 2 + 5),
    "remat": (lambda m: mesh.remat(scaled)(X, plus=5.0), X * 2 + 5),
    "vmap": (lambda m: mesh.vmap(scaled)(X, plus=np.ones(2, np.float32)), X * 2 + 1),
    "grad": (lambda m: mesh.grad(total)(X, plus=5.0), X * 0 + 2),
    "grad, by name": (lambda m: mesh.grad(total, 1)(by=1.0, x=X, plus=5.0), X.sum()),
    "behind a place without a name": (lambda m: m.run(by_place_alone, X, plus=3.0), X * 2 + 3),
    "a name that a place without one has": (lambda m: mesh.remat(by_place_alone)(X, by=1.0, x=5.0), X + 6),
    "behind it, with more": (lambda m: mesh.vmap(by_place_alone)(X, X, X, X, y=X), X * X + X + X),
    "behind it, in a transform": (
        lambda m: mesh.grad(lambda x, /, by, plus: total(x, by, plus=plus))(X, plus=1.0, by=3.0),
        X * 0 + 3,
    ),
    "custom": (
        lambda m: mesh.custom_vjp(customised, lambda *args: (customised(*args), ()), lambda kept, g: (g, None, None))(
            X, plus=3.0
        ),
        X * 2 + 3,
    ),
    "session": (lambda m: in_session(m, by=2.0), X * 3),
    "session, all by name": (lambda m: in_session(m, by=2.0, x=X), X * 3),
    "infer": (lambda m: served(m, plus=X), X * 3),
}


@pytest.mark.parametrize("name", CALLS)
def test_arguments_by_name(name: str, alone: Mesh) -> None:
    call, wanted = CALLS[name]
    np.testing.assert_allclose(np.asarray(call(alone)), wanted)


WRONG: list[tuple[str, Callable[[Mesh], Any]]] = [
    (
        "'stratgy' of scaled has no place among its arguments. Did you mean 'strategy'?",
        lambda m: m.run(scaled, X, stratgy="auto"),
    ),
    ("'plis' of scaled has no place among its arguments. Did you mean 'plus'?", lambda m: m.submit(scaled, X, plis=1)),
    ("'x' of scaled is missing", lambda m: m.run(scaled)),
    ("'x' of scaled is missing", lambda m: m.compile(scaled, plus=1.0)),
    ("'x' of scaled is missing. Give arguments like those of the calls: m.compile(fn, x)", lambda m: m.compile(scaled)),
    ("'x' of scaled is given twice", lambda m: m.plan(scaled, X, x=X)),
    ("too many positional arguments", lambda m: mesh.trace(scaled, X, X, X)),
    ("'x' of total is missing", lambda m: mesh.grad(total)()),
    ("'b' of total has no place", lambda m: mesh.value_and_grad(total)(X, b=1)),
    ("'x' of scaled is missing", lambda m: mesh.remat(scaled)(plus=1)),
    ("'x' of scaled is missing", lambda m: mesh.vmap(scaled)(plus=X)),
    ("'by' of step is missing", lambda m: m.session(step, X, X)),
    ("'bye' of step has no place", lambda m: m.session(step, X, X, by=1.0, bye=1.0)),
    ("'by' of by_place_alone is given twice", lambda m: mesh.trace(by_place_alone, X, X, by=X)),
    ("'plus' is the class float32, not an array", lambda m: m.run(scaled, X, plus=np.float32)),
    ("the input 'x' is given twice", lambda m: m.run(mesh.trace(scaled, X), X, x=X)),
    ("the graph has no input 'y'", lambda m: m.run(mesh.trace(scaled, X), y=X)),
]


@pytest.mark.parametrize(("said", "call"), WRONG)
def test_what_a_function_does_not_take(said: str, call: Callable[[Mesh], Any], alone: Mesh) -> None:
    with pytest.raises(errors.InputError) as caught:
        call(alone)
    assert said in str(caught.value)


def test_one_trace_serves_a_call_however_it_is_written() -> None:
    traced = mesh.trace_full(scaled, X, by=3.0, plus=1.0)
    assert [each.name for each in traced.arguments] == ["x", "by", "plus"]
    assert traced.graph == mesh.trace(scaled, x=X, plus=1.0, by=3.0)
    assert traced.in_tree.children[-1].kind is Keywords
    assert tree.structure((X, Keywords(plus=1.0))) != tree.structure((X, {"plus": 1.0})), "a dict may be an argument"


@pytest.mark.parametrize(
    ("said", "call"),
    [
        ("sum() got an unexpected keyword argument 'dim'. It takes x, axis, dtype,", lambda: mnp.sum(X, dim=0)),
        ("'lr'. It takes learning_rate, b1, b2, eps, weight_decay, mask", lambda: optim.adam(lr=1e-3)),
        ("'outputs'. It takes key, inputs, outputs, bias, initialiser, dtype", lambda: nn.Linear.init(8, 32)),
        ("positional argument but 3 were given. It takes x, approximate", lambda: nn.gelu(X, "tanh", 1)),
    ],
)  # fmt: skip
def test_what_does_not_fit_a_function_of_ours_is_said_with_what_it_takes(said: str, call: Callable[[], Any]) -> None:
    with pytest.raises(TypeError) as caught:
        call()
    assert said in str(caught.value)


def test_an_error_of_a_function_that_was_given_is_as_it_was() -> None:
    def wrong(x: Any) -> Any:
        return mnp.sum(x) + undefined(x, 1)

    def undefined(x: Any) -> Any:
        return x

    with pytest.raises(TypeError) as caught:
        mesh.grad(wrong)(X)  # type: ignore[arg-type]
    assert str(caught.value).endswith("takes 1 positional argument but 2 were given")
