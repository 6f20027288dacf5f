"""mesh.function: traced once per shapes and dtypes, batches of any size in buckets, and what a trace must not do."""

from __future__ import annotations

import random
import warnings
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mesh
import mesh.numpy as mnp
from mesh.core.array import Array
from mesh.errors import InputError, ShapeError

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
W = np.arange(6, dtype=np.float32).reshape(3, 2)
BIG = np.ones((256, 128), np.float32)


def test_it_is_traced_once_per_shapes_and_dtypes() -> None:
    traced = []

    @mesh.function
    def double(params: Any, x: Any) -> Any:
        """Twice as much."""
        traced.append(x.shape)
        return {"y": x @ params["w"] * 2, "n": x.shape[0]}

    for _ in range(3):
        found = double({"w": W}, X)
        assert isinstance(found["y"], Array)
        np.testing.assert_allclose(np.asarray(found["y"]), X @ W * 2, rtol=1e-6)
        assert int(found["n"]) == 4
    double({"w": W}, X[:2])
    double({"w": W}, X.astype(np.float64).astype(np.float32))
    assert traced == [(4, 3), (2, 3)]
    assert (double.__name__, double.__doc__) == ("double", "Twice as much.")


def test_inside_another_trace_it_is_part_of_that_one() -> None:
    inner = mesh.function(lambda x: mnp.exp(x) + 1)
    graph = mesh.trace(lambda x: inner(x) * 2, X)
    assert [node.op for node in graph.nodes if node.op != "const"] == ["input", "exp", "add", "mul"]
    outer = mesh.function(lambda x: inner(x) * 2)
    np.testing.assert_allclose(np.asarray(outer(X)), (np.exp(X) + 1) * 2, rtol=1e-6)


@dataclass(frozen=True)
class Layer:
    w: Any

    @mesh.function
    def apply(self, x: Any) -> Any:
        return x @ self.w


class Opaque:
    @mesh.function
    def apply(self, x: Any) -> Any:
        return x


def test_the_object_of_a_method_is_an_argument_like_any_other() -> None:
    np.testing.assert_allclose(np.asarray(Layer(W).apply(X)), X @ W, rtol=1e-6)
    np.testing.assert_allclose(np.asarray(Layer(W + 1).apply(X)), X @ (W + 1), rtol=1e-6)
    with pytest.raises(InputError, match="'self' is a Opaque, not an array"):
        Opaque().apply(X)


def test_errors_are_raised_where_they_are_written() -> None:
    @mesh.function
    def wrong(x: Any) -> Any:
        return x @ x

    with pytest.raises(ShapeError) as caught:
        wrong(X)
    assert any(entry.name == "wrong" and str(entry.path) == __file__ for entry in caught.traceback)


# -- buckets


def test_batches_of_any_size_share_a_few_graphs() -> None:
    sizes = []

    @mesh.function(buckets={"x": 0, "shift": 1})
    def layer(w: Any, x: Any, shift: Any) -> Any:
        sizes.append(x.shape[0])
        return mnp.tanh(x @ w + shift.T), {"first": x[:, 0]}

    rng = np.random.default_rng(0)
    for count in range(1, 10):
        x, shift = rng.normal(size=(count, 3)).astype(np.float32), rng.normal(size=(2, count)).astype(np.float32)
        y, rest = layer(W, x, shift)
        np.testing.assert_allclose(np.asarray(y), np.tanh(x @ W + shift.T), rtol=2e-6, atol=1e-6)
        np.testing.assert_array_equal(np.asarray(rest["first"]), x[:, 0])
    assert sizes == [1, 2, 4, 8, 16]


def test_rows_that_depend_on_each_other_are_not_padded() -> None:
    centred = mesh.function(lambda x: x - x.mean(axis=0), buckets={"x": 0})
    np.testing.assert_allclose(np.asarray(centred(X)), X - X.mean(axis=0), rtol=1e-5, atol=1e-7)  # fills its bucket
    with pytest.raises(InputError, match="rows of this function depend on each other"):
        centred(X[:3])


@pytest.mark.parametrize(
    ("args", "options", "says"),
    [
        ((X, W), {"buckets": {"y": 0}}, "no argument 'y'"),
        ((X, W), {"buckets": {"x": 2}}, "no axis 2"),
        ((X, W), {"buckets": {"x": 0, "w": 0}}, "the batch has one size, got 4 in 'x' and 3 in 'w'"),
        ((X[:0], W), {"buckets": {"x": 0}}, "empty batch"),
        ((X, W), {"buckets": {"x": 0}, "sizes": (1, 2)}, "larger than the largest bucket, 2"),
        ((X[:3], W), {"buckets": {"x": 0}, "out_axes": 1}, "no batch of 4 in axis 1"),
        ((X, W), {"buckets": {"x": 0}, "sizes": (0,)}, "sizes of buckets are positive"),
    ],
)
def test_what_fits_no_bucket_is_named(args: Any, options: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        mesh.function(lambda x, w: x @ w, **options)(*args)


# -- what a traced function refers to


def test_large_constants_are_named_once_and_small_ones_not() -> None:
    table, small = BIG * 2, np.ones(3, np.float32)
    scaled = mesh.function(_scaled(table, small))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        scaled(BIG)
    (warning,) = warned
    assert "scaled has large constants (table: float32[256, 128], 0.1 MiB)" in str(warning.message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scaled(BIG)
        mesh.trace(lambda x: x + small, small)


def _scaled(table: Any, small: Any) -> Any:
    def scaled(x: Any) -> Any:
        return x * table + small[0]

    return scaled


class Box:
    """An object that a function may leave things in."""

    def __init__(self) -> None:
        self.inner = SimpleNamespace(last=None)
        self.last: list[Any] = []

    def remembers(self, x: Any) -> Any:
        self.last.append(x)
        return x


@pytest.mark.parametrize("draw", [np.random.rand, random.random])
def test_random_numbers_that_are_drawn_while_tracing_are_told(draw: Any) -> None:
    with pytest.warns(UserWarning, match="draws random numbers that are no part of the graph"):
        mesh.function(lambda x: x + draw())(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw()
        mesh.function(lambda x: x + mesh.random.uniform(mesh.random.key(0), ()))(X)


def test_what_is_no_function_is_refused_at_once() -> None:
    with pytest.raises(InputError, match="3 is no function"):
        mesh.function(3)  # type: ignore[call-overload]


def test_traced_arrays_that_are_left_behind_are_named() -> None:
    history: list[Any] = []
    state = {"last": mnp.zeros(3)}

    def leaves_in_a_list(x: Any) -> Any:
        history.append(x * 2)
        return x

    def leaves_in_a_dict(x: Any) -> Any:
        state["last"] = x + 1
        return x

    with pytest.raises(InputError, match="keeps a traced array in 'history/0'"):
        mesh.function(leaves_in_a_list)(X)
    with pytest.raises(InputError, match="keeps a traced array in 'state/last'"):
        mesh.function(leaves_in_a_dict)(X)
    box = Box()

    def leaves_in_an_object(x: Any) -> Any:
        box.inner.last = x * 2
        return x

    with pytest.raises(InputError, match=r"keeps a traced array in 'box\.inner\.last'"):
        mesh.function(leaves_in_an_object)(X)
    with pytest.raises(InputError, match=r"keeps a traced array in 'self\.last/0'"):
        mesh.function(Box().remembers)(X)
    seen: list[Any] = []

    def looks(x: Any) -> Any:
        seen.append(x.shape)
        return x

    mesh.function(looks)(X)
    assert seen == [(4, 3)]
