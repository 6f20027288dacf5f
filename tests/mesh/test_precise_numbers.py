"""Numbers of 64 bits keep them on every way into a tensor: every function of the Array API standard equals numpy's.

The rows are in tests/support/cases/precise_cases.py; tests/e2e/test_precise_on_workers.py sends the same rows to a
worker.
"""

from __future__ import annotations

import contextlib
import math
import operator
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.cases.array_api_cases import Call
from support.cases.precise_cases import CASES, WAYS, F, I, U, check, check_all, graphs, results

import mesh
import mesh.numpy as mnp
from docs.tools.array_api_page import NOT_YET, REALISED, STANDARD, state_of
from mesh import PartitionSpec as P
from mesh import nn
from mesh.core.backend import Work
from mesh.core.expression import pending
from mesh.core.inprocess import evaluate
from mesh.core.realise import HISTORY_NODES_MAX
from mesh.errors import InputError
from mesh.functions.compiled import handle_of
from wire.ir.codec import decode_graph, encode_graph
from wire.ir.graph import WireGraph
from wire.ir.text import from_text, to_text

NAMES = sorted({call.name for call in CASES})
WITHOUT_NUMBERS = {
    *("__array_namespace_info__", "can_cast", "e", "finfo", "iinfo", "inf", "isdtype", "nan", "newaxis", "pi"),
    *("result_type", "unique_values"),  # the last: numpy's order is another
}
POSITIONS = ("linalg.", "expand", "squeeze", "repeat", "roll", "moveaxis", "full")  # which cannot be traced
WITH_SCALARS = [
    call
    for call in CASES
    if len(call.args) > 1
    and isinstance(call.args[0], np.ndarray)
    and call.args[0].shape
    and any(isinstance(each, (int, float, complex)) for each in call.args[1:])
    and not call.name.startswith(POSITIONS)
]
X = np.array([0.1, 16777217.0])


def test_every_function_of_the_standard_has_a_row() -> None:
    every = {name for names in STANDARD.values() for name in names.split() if state_of(name) != NOT_YET}
    dtypes = {name for name in STANDARD["Data types"].split() if name not in ("astype",)}
    assert every - dtypes - WITHOUT_NUMBERS == {*NAMES}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_a_function_of_numbers_of_64_bits_equals_numpys(name: str, way: str) -> None:
    for call in (each for each in CASES if each.name == name):
        check(call, results(call.made_by(mnp, WAYS[way])))


@pytest.mark.parametrize("call", WITH_SCALARS, ids=lambda call: call.id)
def test_a_number_that_a_traced_function_is_called_with_keeps_its_bits(call: Call) -> None:
    def function(*args: Any) -> Any:
        return results(Call(call.name, args, call.kwargs).made_by(mnp, lambda array: array))

    check(call, mesh.evaluate(function, *call.args))


def _as_text(graph: WireGraph) -> WireGraph:
    return from_text(to_text(graph))


def _as_bytes(graph: WireGraph) -> WireGraph:
    return decode_graph(encode_graph(graph))


@pytest.mark.parametrize("carried", [_as_text, _as_bytes])
def test_constants_of_graphs_keep_their_bits(carried: Callable[[WireGraph], WireGraph]) -> None:
    for calls, graph in graphs(200, REALISED):
        arrived = carried(graph)
        assert encode_graph(arrived) == encode_graph(graph)
        check_all(calls, evaluate(Work(arrived, {}, "auto"), {}))


# -- Python's numbers beside arrays, and alone ------------------------------------------------------------

BESIDE: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "a list": (lambda x: x * [0.3, 1e290], X * [0.3, 1e290]),
    "a tuple in front": (lambda x: (0.3, 1e300) - x, [0.3, 1e300] - X),
    "an integer beyond all integer dtypes": (lambda x: x * 10**30, X * 1e30),
    "a negative one": (lambda x: x * -(10**30), X * -1e30),
    "a function of a number": (lambda x: x * mnp.sqrt(0.1) + mnp.log(3.3), X * 0.1**0.5 + math.log(3.3)),
    "composed functions of numbers": (
        lambda x: x * mnp.asinh(mnp.acosh(5e4 + 0.1)),
        X * math.asinh(math.acosh(5e4 + 0.1)),
    ),
    "a limited number": (lambda x: x * mnp.clip(0.3, 0.1, 0.7), X * 0.3),
    "a number limited by arrays": (lambda x: mnp.clip(0.3, x - 1, x), np.clip(0.3, X - 1, X)),
    "a limited list": (lambda x: mnp.clip([0.3, 0.7], 0.1, x), np.clip([0.3, 0.7], 0.1, X)),
    "the angle of a number": (lambda x: x * mnp.angle(0.3 + 0.7j), X * math.atan2(0.7, 0.3)),
    "the parts of a number": (lambda x: x * mnp.real(0.3) + mnp.imag(0.3), X * 0.3),
    "branches": (lambda x: x + mnp.where(x > 1, 0.3, 1 / 3), X + np.where(X > 1, 0.3, 1 / 3)),
    "branches of functions": (lambda x: x + mnp.where(x > 1, mnp.exp(0.3), 0), X + np.where(X > 1, math.exp(0.3), 0)),
    "complex branches": (lambda x: x * mnp.where(x > 1, 0.3j, 1.1), X * np.where(X > 1, 0.3j, 1.1)),
    "a set element": (lambda x: x.at[0].set(1 / 3), [1 / 3, X[1]]),
    "set elements": (lambda x: x.at[:].set([1 / 3, 0.7]), [1 / 3, 0.7]),
    "an added element": (lambda x: x.at[1].add(0.3), [X[0], X[1] + 0.3]),
    "padding": (lambda x: mnp.pad(x, 1, constant_values=0.3), np.pad(X, 1, constant_values=0.3)),
    "joined": (lambda x: mnp.concat([x, [0.3]]), [*X, 0.3]),
    "stacked": (lambda x: mnp.stack([x, [0.3, 0.7]]), [X, [0.3, 0.7]]),
    "in a list": (lambda x: mnp.asarray([x, [0.3, 0.7]]), [X, [0.3, 0.7]]),
    "a border": (lambda x: mnp.diff(x, prepend=0.3), np.diff(X, prepend=0.3)),
    "a product": (lambda x: x @ [0.3, 0.7], X @ [0.3, 0.7]),
    "a sum of products": (lambda x: mnp.einsum("i,i->", x, [0.3, 0.7]), X @ [0.3, 0.7]),
    "numpy's product": (lambda x: mnp.vdot([0.3, 0.7], x), X @ [0.3, 0.7]),
    "an outer product": (lambda x: mnp.linalg.outer(x, [0.3, 0.7]), np.outer(X, [0.3, 0.7])),
    "equal lists": (lambda x: mnp.array_equal(x, X.tolist()), True),
    "an integral": (lambda x: mnp.trapezoid(x, [0.3, 0.7]), np.trapezoid(X, [0.3, 0.7])),
    "interpolated": (lambda x: mnp.interp(0.3, [0.1, 0.7], x), np.interp(0.3, [0.1, 0.7], X)),
    "a sum of a list": (lambda x: mnp.sum([0.3, 0.7], dtype="float64"), 1.0),
    "a running sum": (lambda x: mnp.cumulative_sum([0.3, 0.7], dtype="float64"), np.cumsum([0.3, 0.7])),
    "a cast list": (lambda x: mnp.astype([0.3], "float64"), [0.3]),
    "a slope": (lambda x: nn.leaky_relu(-x), X * -0.01),
    "a bias": (lambda x: nn.linear(x, [[0.1, 0.3]], [0.7]), [X @ [0.1, 0.3] + 0.7]),
    "a random range": (lambda x: mesh.random.uniform(mesh.random.key(1), (), "float64", 0.1, 0.1), 0.1),
}


ELEMENTWISE = [
    name
    for name in dir(mnp)
    if isinstance(found := getattr(np, name, None), np.ufunc) and not found.signature and name != "nextafter"
]


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_a_function_of_pythons_numbers_alone_is_float64_beside_a_float64_array(name: str) -> None:
    of_numpy = getattr(np, name)
    for numbers in [(0.3, 0.7), (1.7, 0.7), (-0.3, 2.1), (2, 3)]:
        numbers = numbers[: of_numpy.nin]
        with np.errstate(all="ignore"), contextlib.suppress(TypeError):  # of bits and of whether: no floats
            wanted = of_numpy(*numbers)
            if np.asarray(wanted).dtype == np.float64:
                found = np.asarray(getattr(mnp, name)(*numbers) + mnp.zeros(1, "float64"))
                np.testing.assert_allclose(found, wanted, 4e-15, err_msg=str(numbers))


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("what", BESIDE)
def test_pythons_numbers_beside_a_float64_array_are_float64(what: str, traced: bool) -> None:
    function, wanted = BESIDE[what]
    found = np.asarray(mesh.evaluate(function, X) if traced else function(mnp.asarray(X)))
    assert found.dtype == np.asarray(wanted).dtype
    np.testing.assert_allclose(found, wanted, 4e-16)


def test_a_traced_number_is_float64_where_it_meets_float64_and_else_float32() -> None:
    def function(x: Any, s: float) -> Any:
        return x * s, mnp.sqrt(s) * x, mnp.where(x > 1, s, 0.3) + x, s * 2, mnp.sqrt(s)

    graph = mesh.trace(function, X, 0.1)
    assert str(graph.input_types["s"]) == "f64[]"
    wide, root, chosen, twice, alone = mesh.evaluate(function, X, 0.1)
    np.testing.assert_array_equal(wide, X * 0.1)
    np.testing.assert_array_equal(root, 0.1**0.5 * X)
    np.testing.assert_array_equal(chosen, np.where(X > 1, 0.1, 0.3) + X)
    assert twice == np.float32(0.1) * 2 and twice.dtype == alone.dtype == np.float32
    assert str(mesh.trace(function, X.astype(np.float32), 0.1).input_types["s"]) == "f32[]"
    again = mesh.function(function)
    for number in (0.1, 1 / 3):  # the second call is not traced
        np.testing.assert_array_equal(np.asarray(again(X, number)[0]), X * number)


def _by_a_number(made: Callable[[], Any]) -> dict[str, tuple[Callable[[], Any], Any]]:
    """What transforms make of a function of Python's number 0.1 that meets float64 inside, in what `made` gives."""

    def times(s: Any) -> Any:
        return made() * s

    def squared(s: Any) -> Any:
        return mnp.sum(made() * s * s)

    total, custom = X.sum(), mesh.custom_jvp(times, lambda args, moved: (times(*args), times(*moved)))
    own = mesh.custom_vjp(squared, lambda s: (squared(s), s), lambda s, g: (g * mnp.sum(made() * s * 2),))
    grid = mesh.Grid(2, "dp")
    return {
        "grad": (lambda: mesh.grad(squared)(0.1), total * 0.2),
        "grad of grad": (lambda: mesh.grad(mesh.grad(lambda s: squared(s) * s))(0.1), total * 0.6),
        "value_and_grad": (lambda: mesh.value_and_grad(squared)(0.1)[0], np.sum(X * 0.1 * 0.1)),
        "vjp": (lambda: mesh.vjp(lambda s: mnp.sum(times(s)), 0.1)[1](0.3)[0], total * 0.3),
        "jvp": (lambda: mesh.jvp(times, (0.1,), (0.3,))[0], X * 0.1),
        "jvp's tangent": (lambda: mesh.jvp(times, (0.1,), (0.3,))[1], X * 0.3),
        "jacobian": (lambda: mesh.jacobian(times)(0.1), X),
        "hessian": (lambda: mesh.hessian(lambda s: squared(s) * s)(0.1), total * 0.6),
        "vmap": (lambda: mesh.vmap(lambda _, s: times(s), in_axes=(0, None))(X, 0.1)[0], X * 0.1),
        "vmap of grad": (lambda: mesh.vmap(lambda _, s: mesh.grad(squared)(s), (0, None))(X, 0.1)[0], total * 0.2),
        "remat": (lambda: mesh.remat(times)(0.1), X * 0.1),
        "grad of remat": (lambda: mesh.grad(mesh.remat(squared))(0.1), total * 0.2),
        "custom_jvp": (lambda: custom(0.1), X * 0.1),
        "jvp of custom_jvp": (lambda: mesh.jvp(custom, (0.1,), (0.3,))[1], X * 0.3),
        "custom_vjp": (lambda: own(0.1), np.sum(X * 0.1 * 0.1)),
        "grad of custom_vjp": (lambda: mesh.grad(own)(0.1), total * 0.2),
        "cond": (lambda: mesh.cond(True, times, lambda s: mnp.zeros(2, "float64"), 0.1), X * 0.1),
        "scan": (lambda: mesh.scan(lambda c, _: (c, times(c)), 0.1, None, length=1)[1][0], X * 0.1),
        "while_loop": (lambda: mesh.while_loop(lambda c: mnp.all(times(c) < 0.2 * X), lambda c: c + 0.1, 0.1), 0.2),
        "function": (lambda: mesh.function(times)(0.1), X * 0.1),
        "shard_map": (lambda: mesh.shard_map(times, grid, P(), P())(0.1), X * 0.1),
    }  # fmt: skip


def _counted(number: float, end: float) -> float:
    while number < end:
        number += 0.1
    return number


TRANSFORMED: dict[str, tuple[Callable[[], Any], Any]] = {
    "grad": (lambda: mesh.grad(lambda x, s: mnp.sum(x * s))(X, 0.1), [0.1, 0.1]),
    "grad by all": (lambda: mesh.grad(lambda x, s: mnp.sum(x * s), argnums=(0, 1))(X, 0.1)[0], [0.1, 0.1]),
    "vjp": (lambda: mesh.vjp(lambda x, s: mnp.sum(x * s), X, 0.1)[0], np.sum(X * 0.1)),
    "jvp": (lambda: mesh.jvp(lambda x, s: x * s, (X, 0.1), (X, None))[1], X * 0.1),
    "vmap": (lambda: mesh.vmap(lambda x, s: x * s, in_axes=(0, None))(X, 0.1), X * 0.1),
    "remat": (lambda: mesh.remat(lambda x, s: x * s)(X, 0.1), X * 0.1),
    "cond": (lambda: mesh.cond(True, lambda x, s: x * s, lambda x, s: x, X, 0.1), X * 0.1),
    "scan": (lambda: mesh.scan(lambda c, x: ((c[0] + x * c[1], c[1]), c[0]), (0.3, 0.1), X)[1], [0.3, 0.3 + 0.1 * 0.1]),
    "while_loop": (lambda: mesh.while_loop(lambda c: c[0] < 1, lambda c: (c[0] + 1, c[1] * c[2], c[2]), (0, X, 0.1))[1],
                   X * 0.1),
    "fori_loop": (lambda: mesh.fori_loop(0, 1, lambda i, c: (c[0] * c[1], c[1]), (X, 0.1))[0], X * 0.1),
    **{
        f"{way} by {how}": row
        for way, made in {"a closure": lambda: X, "one made inside": lambda: mnp.asarray(X.tolist(), "float64")}.items()
        for how, row in _by_a_number(made).items()
    },
    "vmap of a constant": (lambda: mesh.vmap(lambda x: x * 0.1)(X), X * 0.1),
    "vmap of many": (lambda: mesh.vmap(lambda s: s * X)(mnp.where(X > 1, 0.3, 0.7))[0], X * 0.7),
    "grad by a number beside": (lambda: mesh.grad(lambda x, s: mnp.sum(x * s * s), 1)(X, 0.1), np.sum(X * 0.2)),
    "a number that remat gives": (lambda: mesh.remat(mnp.sqrt)(0.1) * X, X * 0.1**0.5),
    "a number that vmap gives": (
        lambda: mesh.vmap(lambda x, s: mnp.sqrt(s), in_axes=(0, None), out_axes=None)(X, 0.1) * X,
        X * 0.1**0.5,
    ),
    "a number that grad gives": (lambda: mesh.grad(lambda s: s * s)(0.1) * X, X * 0.2),
    "stop_gradient": (lambda: mesh.stop_gradient(0.1) * X, X * 0.1),
    "a composite": (lambda: nn.gelu(0.3) * X, X * 0.3 * 0.5 * (1 + math.erf(0.3 / 2**0.5))),
    "the test of a loop": (
        lambda: mesh.while_loop(lambda c: c < mnp.asarray(1 - 2**-30, "float64"), lambda c: c + 0.1, 0.1),
        _counted(0.1, 1 - 2**-30),
    ),
    "rows": (
        lambda: mesh.scan(lambda c, s: (c, s * X[1]), (), mnp.where(X > 1, 0.3, 0.7))[1],
        X[1] * np.array([0.7, 0.3]),
    ),
    "a closure of cond": (lambda: mesh.cond(True, lambda s: X * s, lambda s: mnp.asarray(X), 0.1), X * 0.1),
    "a closure of a loop": (lambda: mesh.fori_loop(0, 2, lambda i, c: (X * c[1], c[1]), (X, 0.1))[0], X * 0.1),
}  # fmt: skip


@pytest.mark.parametrize("what", TRANSFORMED)
def test_a_number_that_a_transform_passes_on_keeps_its_bits(what: str) -> None:
    function, wanted = TRANSFORMED[what]
    for found in (np.asarray(function()), mesh.evaluate(lambda: function())):
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, wanted, 4e-16)


NARROW: dict[str, Callable[[Any, Any], Any]] = {
    "grad": lambda x, s: mesh.grad(lambda x, s: mnp.sum(x * mnp.sqrt(s)), (0, 1))(x, s),
    "vmap": mesh.vmap(lambda x, s: x * s + mnp.sinh(s), (0, None)),
    "remat": mesh.remat(lambda x, s: x * s),
    "cond": lambda x, s: mesh.cond(True, lambda x, s: x * s, lambda x, s: x, x, s),
    "scan": lambda x, s: mesh.scan(lambda c, row: (c * s + row * 0.1, c), s, x),
    "while_loop": lambda x, s: mesh.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * s), (s, x)),
    "a derivative": lambda x, s: mesh.grad(lambda a: a * a)(s) * x,
}


@pytest.mark.parametrize("what", NARROW)
def test_a_number_that_meets_float32_alone_makes_no_float64(what: str) -> None:
    """Which a graphics card does not have."""
    assert "f64" not in to_text(mesh.trace(NARROW[what], X.astype(np.float32), 0.1))
    assert "f64" in to_text(mesh.trace(NARROW[what], X, 0.1))


@pytest.mark.parametrize("name", ["sinh", "cosh"])
def test_hyperbolic_functions_are_right_to_64_bits_where_exp_of_minus_x_is_small(name: str) -> None:
    x = np.concatenate([np.linspace(-25, 25, 1001), [-700.1, 709.9]])
    wanted = [getattr(math, name)(each) for each in x]
    np.testing.assert_allclose(np.asarray(getattr(mnp, name)(mnp.asarray(x))), wanted, 1e-15)
    np.testing.assert_allclose(np.asarray(getattr(mnp, name)(13.1) * X), getattr(math, name)(13.1) * X, 1e-15)


def test_a_number_that_was_looked_at_has_its_bits_still() -> None:
    root = mnp.sqrt(0.1)
    assert root.dtype == np.float32 and float(root) == np.float32(0.1**0.5)
    np.testing.assert_array_equal(np.asarray(root * X), 0.1**0.5 * X)


def test_of_numbers_that_are_looked_at_no_history_is_kept() -> None:
    number, wanted = mnp.sqrt(0.1), 0.1**0.5
    for _ in range(50):
        number, wanted = number * 0.9 + 0.1, wanted * 0.9 + 0.1
        assert float(number) == pytest.approx(wanted)
    wide = number.tensor.wide
    assert wide is not None and wide.expression is None and wide.value == wanted


@pytest.mark.parametrize("kept", [mnp.asarray, handle_of], ids=["many", "of a handle"])
def test_of_many_numbers_that_are_looked_at_the_history_ends(kept: Callable[[Any], Any]) -> None:
    chosen = np.arange(1000) % 2 == 0
    numbers, wanted = mnp.where(kept(chosen), 0.3, 0.7), np.where(chosen, 0.3, 0.7)
    for _ in range(150):
        numbers, wanted = numbers * 0.9 + 0.1, wanted * 0.9 + 0.1
        np.testing.assert_allclose(np.asarray(numbers), wanted, 1e-5)
        wide = numbers.tensor.wide
        assert wide is not None and len(pending([wide])) <= HISTORY_NODES_MAX
    np.testing.assert_array_equal(np.asarray(numbers * np.ones(1000)), wanted)


def test_a_long_history_of_numbers_is_computed_in_several_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    module, lengths = sys.modules["mesh.core.realise"], list[int]()
    monkeypatch.setattr(module, "check_bound", lambda graph: lengths.append(len(graph)))
    number, wanted = mnp.sqrt(0.1), 0.1**0.5
    for _ in range(100):
        number, wanted = number * 0.9 + 0.1, wanted * 0.9 + 0.1
    wide = number.tensor.wide
    assert wide is not None
    both = [wide, number.tensor]
    module._compute_in_runs(both, pending(both), module.current_evaluator(), nodes_per_run=40)
    assert float(number) == pytest.approx(wanted)
    assert sum(lengths) > 2 * 200 and max(lengths) <= 2 * 40 + 1
    np.testing.assert_array_equal(np.asarray(number * X), wanted * X)


def test_default_dtypes_are_those_of_32_bits() -> None:
    for value, dtype in (
        (0.1, "float32"),
        ([0.1, 3], "float32"),
        (1j, "complex64"),
        (3, "int32"),
        ([], "float32"),
        (2**53 + 1, "int64"),
        ([2**53 + 1, 1], "int64"),
        ([2**63 + 5, 1], "uint64"),
        (True, "bool"),
        ([True, 2], "int32"),
        ([np.float64(0.1), 0.2], "float64"),
        (range(3), "int32"),
    ):
        assert mnp.asarray(value).dtype == dtype, value
    assert mnp.stack([0.1, 0.2]).dtype == mnp.linspace(0.1, 0.2, 3).dtype == mnp.arange(0.3).dtype == np.float32
    np.testing.assert_array_equal(np.asarray(mnp.arange(0.1, 100, 0.1, dtype="float16")[-2:]), np.float16([99.8, 99.9]))
    assert mnp.arange(np.float64(0.3)).dtype == np.float64 and mnp.arange(np.int64(3)).dtype == np.int32


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, [1, 10**30], [2**63 + 5, -1], range(2**64, 2**64 + 2)])
def test_integers_that_no_integer_dtype_holds_are_refused_and_are_floats_where_asked(value: Any) -> None:
    with pytest.raises(InputError, match=r"integer dtype.*float64"):
        mnp.asarray(value)
    for dtype in ("int64", "uint64"):
        with pytest.raises(InputError, match=r"do(es)? not fit"):
            mnp.asarray(value, dtype=dtype)
    for dtype in ("float64", "float32", "complex128"):
        wanted = np.array(list(value) if isinstance(value, range) else value, dtype)
        np.testing.assert_array_equal(np.asarray(mnp.asarray(value, dtype=dtype)), wanted)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: mnp.asarray(10**400, dtype="float64"),
        lambda: mnp.asarray([10**400, 1.5], dtype="float64"),
        lambda: mnp.asarray([0.5, 10**400]),
        lambda: mnp.full((), 10**400, dtype="float64"),
        lambda: mnp.asarray(X) * 10**400,
        lambda: mnp.asarray(math.nan, dtype="int64"),
        lambda: mnp.asarray([1e300], dtype="int64"),
        lambda: mnp.asarray(X).at[0].set(1j),
        lambda: mnp.asarray(I) + 2**63,
        lambda: mnp.asarray(U) - -1,
        lambda: mnp.arange(math.nan),
        lambda: mnp.arange(0, math.inf),
        lambda: mnp.arange(10**30),
        lambda: mnp.arange(10**5000),
        lambda: mnp.arange([1, 2]),
        lambda: mnp.arange(mnp.asarray([1, 2])),
        lambda: mnp.asarray(10**5000),
        lambda: mnp.asarray(I) + 10**5000,
        lambda: mesh.evaluate(lambda x, s: x * s, X, 10**30),
        lambda: mnp.arange(0, 1e300, 1e-300),
        lambda: mnp.arange(1j),
        lambda: mnp.stack([]),
        lambda: mnp.concat([]),
    ],
)
def test_numbers_that_a_dtype_cannot_hold_are_refused(wrong: Callable[[], Any]) -> None:
    with pytest.raises(InputError):
        wrong()


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.floats(), st.integers(-(2**63), 2**64 - 1), st.complex_numbers()), st.data())
def test_any_number_becomes_what_it_becomes_in_numpy(value: complex, data: st.DataObject) -> None:
    kinds = {int: ("float64", "complex128", "float32"), float: ("float64", "float32", "float16", "complex128")}
    dtype = data.draw(st.sampled_from(kinds.get(type(value), ("complex128", "complex64"))))
    with np.errstate(all="ignore"):
        wanted = np.array(value, dtype)
    for found in (
        mnp.asarray(value, dtype=dtype),
        mnp.asarray([value], dtype=dtype)[0],
        mnp.full((), value, dtype=dtype),
        mnp.asarray([0], dtype=dtype).at[0].set(value)[0],
    ):
        assert np.asarray(found).dtype == wanted.dtype
        np.testing.assert_array_equal(np.asarray(found), wanted)


OPERATORS = (
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow),
    *(operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne),
)


@settings(max_examples=300, deadline=None)
@given(st.data(), st.sampled_from(OPERATORS), st.booleans())
def test_any_operator_with_any_number_is_numpys(data: st.DataObject, function: Any, reflected: bool) -> None:
    dtype = data.draw(st.sampled_from(["float64", "float32", "int64", "uint64", "complex128"]))
    of_parts = function in OPERATORS[:4] or function in OPERATORS[-2:]
    assume(dtype != "complex128" or of_parts)
    assume(np.dtype(dtype).kind not in "iu" or function in (*OPERATORS[:3], *OPERATORS[7:]))
    limits = np.iinfo(dtype) if np.dtype(dtype).kind in "iu" else None
    one = st.integers(int(limits.min), int(limits.max)) if limits else (
        st.complex_numbers() if dtype == "complex128" else st.floats(width=np.dtype(dtype).itemsize * 8)
    )  # fmt: skip
    numbers, number = data.draw(st.lists(one, min_size=1, max_size=4)), data.draw(one)
    sides: Any = [np.array(numbers, dtype), number][:: -1 if reflected else 1]
    mine: Any = [mnp.asarray(numbers, dtype=dtype), number][:: -1 if reflected else 1]
    with np.errstate(all="ignore"):
        wanted, found = function(*sides), np.asarray(function(*mine))
    assert found.dtype == wanted.dtype
    rtol = 0 if wanted.dtype.kind in "iub" else 1e-5 if dtype == "float32" else 1e-12
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(found, wanted, rtol, np.finfo(wanted.dtype).tiny if rtol else 0)


@settings(max_examples=100, deadline=None)
@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6), st.integers(0, 50), st.booleans())
def test_ranges_are_numpys_to_the_last_bit(first: float, last: float, count: int, endpoint: bool) -> None:
    with np.errstate(all="ignore"):
        wanted = np.linspace(first, last, count, endpoint=endpoint)
        np.testing.assert_array_equal(np.asarray(mnp.linspace(first, last, count, endpoint, dtype="float64")), wanted)
        step = (last - first) / (count + 0.5)
        if step and abs(last - first) > 1e-6:
            found = np.asarray(mnp.arange(first, last, step, dtype="float64"))
            np.testing.assert_array_equal(found, np.arange(first, last, step))


# -- importers --------------------------------------------------------------------------------------------


def test_constants_of_onnx_models_keep_their_bits() -> None:
    onnx = pytest.importorskip("onnx")
    make, inputs = onnx.helper, {np.float64: F, np.int64: I, np.uint64: U}
    nodes, given, wanted = [], [], []
    for dtype, array in inputs.items():
        name = np.dtype(dtype).name
        tensor = onnx.numpy_helper.from_array(array, name)
        one = onnx.numpy_helper.from_array(array[0], f"of-{name}")
        shape = onnx.numpy_helper.from_array(np.array([3]), f"shape-{name}")
        nodes += [
            make.make_node("Constant", [], [f"{name}-constant"], value=tensor),
            make.make_node(
                "ConstantOfShape", [f"shape-{name}"], [f"{name}-filled"], value=onnx.numpy_helper.from_array(array[:1])
            ),
            make.make_node("Max", [f"{name}-constant", name], [f"{name}-largest"]),
            make.make_node("Clip", [name, f"of-{name}"], [f"{name}-clipped"]),
        ]
        given += [tensor, one, shape]
        wanted += [array, np.full(3, array[0]), array, np.clip(array, array[0], None)]
    outputs = [
        make.make_tensor_value_info(node.output[0], make.np_dtype_to_tensor_dtype(array.dtype), None)
        for node, array in zip(nodes, wanted, strict=True)
    ]
    graph = make.make_graph(nodes, "precise", [], outputs, given)
    found = mesh.load(make.make_model(graph, opset_imports=[make.make_opsetid("", 20)]))()
    for output, array in zip(outputs, wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(found[output.name]), array)


NORMS = {
    "LayerNormalization": (np.ones(3), np.zeros(3)),
    "RMSNormalization": (np.ones(3),),
    "GroupNormalization": (np.ones(2), np.zeros(2)),
}


@pytest.mark.parametrize("name", NORMS)
def test_norms_of_onnx_models_of_doubles_are_doubles(name: str) -> None:
    onnx = pytest.importorskip("onnx")
    make, x = onnx.helper, np.array([[[1 / 3, -0.1, 3.3], [0.7, 16777217.0, 0.3]]])
    given = [onnx.numpy_helper.from_array(array, f"w{at}") for at, array in enumerate(NORMS[name])]
    more = {"num_groups": 2} if name == "GroupNormalization" else {}
    node = make.make_node(name, ["x", *[each.name for each in given]], ["y"], epsilon=0.0, **more)
    ends = [make.make_tensor_value_info(end, onnx.TensorProto.DOUBLE, x.shape) for end in ("x", "y")]
    graph = make.make_graph([node], "norm", ends[:1], ends[1:], given)
    version = 23 if name == "RMSNormalization" else 21
    found = mesh.load(make.make_model(graph, opset_imports=[make.make_opsetid("", version)]))(x)
    centre = 0 if name == "RMSNormalization" else x.mean(-1, keepdims=True)
    wanted = (x - centre) / np.sqrt(((x - centre) ** 2).mean(-1, keepdims=True))
    np.testing.assert_allclose(np.asarray(found), wanted, 1e-13)


def test_rotary_positions_of_float64_are_float64() -> None:
    x, at = np.linspace(0.1, 3.3, 16).reshape(4, 4), np.array([0.0, 1.0, 1e5, 16777217.0])
    angle = at[:, None] * 10_000.0 ** (-np.arange(0, 4, 2) / 4)
    turned = (x[:, :2] + 1j * x[:, 2:]) * np.exp(1j * angle)
    found = np.asarray(nn.rotary(x, at))
    np.testing.assert_allclose(found, np.concatenate([turned.real, turned.imag], -1), 1e-9)


def test_constants_of_jax_functions_keep_their_bits() -> None:
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        jnp = jax.numpy

        def function(x: Any, n: Any) -> Any:
            return (
                x * 0.1 + jnp.asarray([1 / 3, 0.7]),
                jnp.where(x > 1, 0.3, x),
                jnp.clip(x, 1 / 3, 2.7),
                x**0.3,
                jax.lax.pad(x, 0.3, [(1, 1, 0)]),
                n + (2**53 + 1),
                jnp.full((2,), 1 / 3),
                jnp.linspace(0.1, 0.7, 5),
                jnp.max(x, initial=1e300),
                x * (0.1 + 0.3j),
                jnp.sum(x, where=x > 1, initial=0.3),
            )

        n = np.array([2**53 + 1, 3])
        wanted = function(X, n)
        imported = mesh.from_jax(function, X, n)
        scaled = mesh.from_jax(lambda x, s: x * s, X, 0.1)
    for found in (scaled(X, 0.3), mesh.evaluate(scaled, X, 0.3)):
        np.testing.assert_array_equal(np.asarray(found), X * 0.3)
    for one, other in zip(mesh.evaluate(imported, X, n), wanted, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, 1e-15)


def test_constants_of_torch_modules_keep_their_bits() -> None:
    torch = pytest.importorskip("torch")

    class Module(torch.nn.Module):  # type: ignore[misc, name-defined]  # torch is not installed everywhere
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("held", torch.tensor([1 / 3, 0.7], dtype=torch.float64))

        def forward(self, x: Any, n: Any) -> Any:
            wide = torch.float64
            return (
                x * 0.1 + self.held,
                torch.where(x > 1, 0.3, x),
                torch.clamp(x, 1 / 3, 2.7),
                x**0.3,
                n + (2**53 + 1),
                torch.full((2,), 1 / 3, dtype=wide),
                torch.linspace(0.1, 0.7, 5, dtype=wide),
                x.masked_fill(x > 1, 0.3),
                torch.arange(0.1, 0.7, 0.2, dtype=wide),
                torch.nn.functional.pad(x, (1, 1), value=0.3),
                torch.tensor(0.1, dtype=wide) * x,
                torch.add(x, x, alpha=0.3),
                torch.nn.functional.leaky_relu(-x, 0.3),
                torch.addmm(x[:, None], x[:, None], x[None, :1], beta=0.3, alpha=0.7),
            )

    given = (torch.tensor(X), torch.tensor([2**53 + 1, 3]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own
        found = mesh.from_torch(Module().eval(), *given)(X, given[1].numpy()).values()
    for one, other in zip(map(np.asarray, found), Module()(*given), strict=True):
        np.testing.assert_allclose(one, other.numpy(), 1e-15)
