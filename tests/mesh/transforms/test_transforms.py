"""Transforms as users call them: pytrees, composition in any order, programs they make, errors they raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.differences import along, assert_close, numbers

import mesh
import mesh.numpy as mnp
from mesh import nn
from mesh.core.array import Array
from mesh.transforms.vjp_rules import VJPS
from wire.errors import InputError, UnknownOp
from wire.ir.graph import WireGraph
from wire.passes.simplify import simplify
from worker.cpu import evaluate

RNG = np.random.default_rng(5)


def floats(*shape: int) -> np.ndarray[Any, Any]:
    return np.asarray(RNG.standard_normal(shape))


def mlp(params: Any, x: Any) -> Array:
    for w, b in params[:-1]:
        x = mnp.tanh(x @ w + b)
    return x @ params[-1][0] + params[-1][1]


PARAMS = [(floats(3, 4), floats(4)), (floats(4, 2), floats(2))]
X = floats(5, 3)


def loss(params: Any, x: Any) -> Array:
    return mnp.mean(mlp(params, x) ** 2)


def same(found: Any, wanted: Any) -> None:
    """Two pytrees of equal structure and numbers."""
    left, right = mesh.tree.flatten(found), mesh.tree.flatten(wanted)
    assert left[1] == right[1]
    for a, b in zip(left[0], right[0], strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), 1e-6, 1e-9)


# -- faces ------------------------------------------------------------------------------------------------


def test_a_gradient_has_the_structure_and_types_of_its_argument() -> None:
    value, gradient = mesh.value_and_grad(loss)(PARAMS, X)
    assert mesh.tree.structure(gradient) == mesh.tree.structure(PARAMS)
    towards = mesh.tree.map(lambda leaf: floats(*leaf.shape), PARAMS)
    leaves, structure = mesh.tree.flatten(PARAMS)
    (wanted,) = along(lambda *each: [loss(mesh.tree.unflatten(structure, each), X)], leaves, mesh.tree.leaves(towards))
    found = sum(
        np.sum(np.asarray(a) * b) for a, b in zip(mesh.tree.leaves(gradient), mesh.tree.leaves(towards), strict=True)
    )
    assert_close(found, wanted)
    same(value, loss(PARAMS, X))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_derivatives_have_the_dtype_of_what_they_are_of(dtype: str) -> None:
    x = np.ones((2, 3)).astype(mnp.asarray(0.0).astype(dtype).dtype)
    assert mesh.grad(lambda each: mnp.mean(each.astype("float32") * 2.0) / 3)(x).dtype == x.dtype
    graph = mesh.trace(mesh.grad(lambda each: mnp.sum(mnp.exp(each * 2 + 1) ** 2)), x)
    assert all(node.op != "cast" for node in graph.nodes)
    assert mesh.jvp(mnp.sin, (x,), (x,))[1].dtype == x.dtype


def test_a_python_scalar_adapts_in_derivatives_too() -> None:
    x = np.ones(3, np.float64)
    scale, by_x = mesh.grad(lambda s, each: mnp.sum(s * each), argnums=(0, 1))(2.0, x)
    assert (scale.dtype, by_x.dtype) == (np.float64, np.float64)  # the number met float64, and was so itself
    same((scale, by_x), (np.float64(3), 2 * x))
    narrow = mesh.grad(lambda s, each: mnp.sum(s * each))(2.0, np.float32(x))
    assert narrow.dtype == np.float32


def test_a_python_scalar_that_is_given_its_own_dtype_is_still_the_argument() -> None:
    """It insists on its dtype then, which made a copy of the argument, and of a copy there was no derivative."""

    def square(x: Any) -> Any:
        return mnp.astype(x, "float32") ** 2

    assert mesh.grad(square)(1.5) == 3 and mesh.jvp(square, (1.5,), (1.0,))[1] == 3
    assert mesh.evaluate(square, 1.5) == 2.25 and mesh.evaluate(mesh.grad(square), 1.5) == 3
    assert mesh.grad(lambda x: mnp.asarray(x, dtype="float32") * 3)(1.5) == 3
    assert mesh.cond(True, square, lambda x: x * 1.0, 1.5) == 2.25
    assert mesh.fori_loop(0, 2, lambda i, x: square(x), 1.5) == 1.5**4
    assert mesh.scan(lambda carry, x: (square(carry), x), 1.5, np.ones(2, np.float32))[0] == 1.5**4


def test_keywords_are_arguments_by_another_name() -> None:
    def scaled(x: Any, by: Any = 2.0) -> Any:
        return (x * by).sum()

    custom = mesh.custom_vjp(scaled, lambda x, by: (scaled(x, by), by), lambda by, g: (g * by * mnp.ones(3), None))
    for fn in (scaled, mesh.remat(scaled), mesh.function(scaled), custom):
        assert np.array_equal(mesh.grad(lambda x, fn=fn: fn(x, by=3.0))(np.ones(3, np.float32)), [3, 3, 3])
    assert mesh.function(scaled)(by=4.0, x=np.ones(3, np.float32)) == 12
    for wrong, said in (
        ({"of": 1.0}, "'of' of scaled has no place among its arguments"),
        ({"x": 1.0}, "'x' of scaled is given twice"),
    ):
        with pytest.raises(InputError, match=said):
            mesh.function(scaled)(X, **wrong)
    with pytest.raises(InputError, match="'x' of scaled is missing"):
        mesh.remat(scaled)(by=1.0)


def test_argnums_choose_and_aux_comes_along() -> None:
    def fn(a: Any, b: Any, flag: str, *, scale: Any) -> Any:
        return mnp.sum(a["x"] * b * scale), {"seen": a["x"] + 1, "flag": mnp.asarray(len(flag))}

    a, b = {"x": floats(3)}, floats(3)
    gradients, aux = mesh.grad(fn, argnums=(1, 0), has_aux=True)(a, b, "four", scale=np.float64(2))
    same((gradients, aux["seen"], aux["flag"]), ((2 * a["x"], {"x": 2 * b}), a["x"] + 1, np.int32(4)))
    (value, _), gradient = mesh.value_and_grad(fn, argnums=-3, has_aux=True)(a, b, "", scale=np.float64(2))
    same((value, gradient), (np.sum(2 * a["x"] * b), {"x": 2 * b}))


def test_vjp_and_jvp_take_integers_and_none() -> None:
    def fn(x: Any, index: Any) -> Any:
        return x[index] * 2, index + 1

    x, index = floats(4), np.array([1, 1, 3])
    (result, _), pull = mesh.vjp(fn, x, index)
    by_x, by_index = pull((np.ones(3), None))
    assert by_index is None
    same((result, by_x), (x[index] * 2, np.array([0.0, 4, 0, 2])))
    same(pull((None, None))[0], np.zeros(4))
    (_, moved), (tangent, nothing) = mesh.jvp(fn, (x, index), (np.ones(4), None))
    assert nothing is None
    same((moved, tangent), (index + 1, np.full(3, 2.0)))


def test_jacobian_and_hessian_of_pytrees() -> None:
    def fn(p: Any, s: Any) -> Any:
        return {"y": p["a"] * s, "z": mnp.sum(p["b"] ** 2) * p["a"]}

    p, s = {"a": floats(2), "b": floats(3)}, floats()
    want = {
        "y": {"a": np.eye(2) * s, "b": np.zeros((2, 3))},
        "z": {"a": np.eye(2) * np.sum(p["b"] ** 2), "b": 2 * p["a"][:, None] * p["b"]},
    }
    for mode in ("forward", "reverse", None):
        same(mesh.jacobian(fn, mode=mode)(p, s), want)
    same(mesh.jacobian(fn, argnums=(1,))(p, s), {"y": (p["a"],), "z": (np.zeros(2),)})
    found = mesh.hessian(lambda q: mnp.sum(q["a"]) * mnp.sum(q["b"] ** 3))(p)
    same(found["a"]["b"], np.tile(3 * p["b"] ** 2, (2, 1)))
    same(found["b"]["b"], np.diag(6 * p["b"]) * np.sum(p["a"]))


# -- composition ------------------------------------------------------------------------------------------


def test_grads_nest() -> None:
    fn: Callable[..., Any] = lambda x: x**4 / 24  # noqa: E731
    for order, wanted in enumerate((2.0**4 / 24, 2.0**3 / 6, 2.0**2 / 2, 2.0, 1.0, 0.0)):
        made = fn
        for _ in range(order):
            made = mesh.grad(made)
        same(made(np.float64(2)), np.float64(wanted))


def test_an_inner_derivative_sees_outer_arguments_as_constants() -> None:
    """Perturbation confusion: d/dx [x * d/dy (x + y)] is 1, not 2."""

    def fn(x: Any) -> Any:
        return x * mesh.grad(lambda y: x + y)(1.0)

    same(mesh.grad(fn)(np.float64(1)), np.float64(1))
    same(
        mesh.jvp(lambda x: x * mesh.jvp(lambda y: x * y, (2.0,), (1.0,))[1], (np.float64(3),), (1.0,))[1], np.float64(6)
    )


ORDERS: dict[str, Callable[..., Any]] = {
    "grad of vmap": lambda f, xs: mesh.grad(lambda each: mnp.sum(mesh.vmap(f)(each)))(xs),
    "vmap of grad": lambda f, xs: mesh.vmap(mesh.grad(f))(xs),
    "grad of vmap of grad": lambda f, xs: mesh.grad(
        lambda each: mnp.sum(mesh.vmap(mesh.grad(f))(each) ** 2)
    )(xs) / 2,
    "jvp of vjp": lambda f, xs: mesh.jvp(lambda each: mesh.vjp(f, each)[1](1.0)[0], (xs[0],), (xs[1],))[1],
    "vjp of jvp": lambda f, xs: mesh.vjp(lambda each: mesh.jvp(f, (each,), (xs[1],))[1], xs[0])[1](1.0)[0],
    "vmap of jvp": lambda f, xs: mesh.vmap(lambda a, b: mesh.jvp(f, (a,), (b,))[1])(xs, xs),
    "vmap of vmap of hessian": lambda f, xs: mesh.vmap(mesh.vmap(mesh.hessian(f)))(mnp.reshape(xs, (2, 2, 3))),
    "jacobian of grad": lambda f, xs: mesh.jacobian(mesh.grad(f))(xs[0]),
}  # fmt: skip


def quadratic(x: Any) -> Any:
    return mnp.sum(x * (MATRIX @ x)) / 2


MATRIX = floats(3, 3)
MATRIX = MATRIX + MATRIX.T
ROWS = floats(4, 3)
OF_ORDERS = {
    "grad of vmap": ROWS @ MATRIX,
    "vmap of grad": ROWS @ MATRIX,
    "grad of vmap of grad": ROWS @ MATRIX @ MATRIX,
    "jvp of vjp": MATRIX @ ROWS[1],
    "vjp of jvp": MATRIX @ ROWS[1],
    "vmap of jvp": np.sum(ROWS @ MATRIX * ROWS, 1),
    "vmap of vmap of hessian": np.broadcast_to(MATRIX, (2, 2, 3, 3)),
    "jacobian of grad": MATRIX,
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("where", ["eager", "traced", "marked"])
def test_transforms_compose_in_any_order(order: str, where: str) -> None:
    made = ORDERS[order]
    if where == "eager":
        same(made(quadratic, ROWS), OF_ORDERS[order])
    elif where == "traced":
        same(mesh.evaluate(lambda rows: made(quadratic, rows), ROWS), OF_ORDERS[order])
    else:
        same(made(mesh.remat(quadratic), ROWS), OF_ORDERS[order])


def test_closures_over_outer_arguments_and_values() -> None:
    kept = mnp.asarray(floats(3)) * 2  # a lazy array of outside

    def outer(x: Any) -> Any:
        inner = mesh.vmap(lambda y: mesh.grad(lambda z: mnp.sum(mnp.sin(z * x * kept)) * y)(x))
        return mnp.sum(inner(mnp.arange(3.0).astype(x.dtype)))

    x = floats(3)
    direction = floats(3)
    (wanted,) = along(lambda each: [outer(each)], [x], [direction])
    assert_close(np.sum(np.asarray(mesh.grad(outer)(x)) * direction), wanted)


def test_updates_of_elements_are_differentiated() -> None:
    def fn(x: Any) -> Any:
        y = x * 2
        y[1:] = y[:-1] * x[1:]
        y[0] = 5.0
        return mnp.sum(y)

    x = floats(4)
    same(mesh.grad(fn)(x), np.array([2 * x[1], *(2 * (x[:-2] + x[2:])), 2 * x[2]]))


def test_keys_are_batched() -> None:
    keys = np.array([[1, 2], [3, 4], [2**32 - 1, 0]], np.uint32)
    from mesh.core.array import apply

    found = mesh.vmap(lambda key: apply("random_bits", key, shape=(5,)))(keys)
    np.testing.assert_array_equal(
        np.asarray(found), [np.asarray(apply("random_bits", mnp.asarray(key), shape=(5,))) for key in keys]
    )


@pytest.mark.parametrize(("transform", "steps"), [("grad", 20_000), ("jvp", 4_000), ("vmap", 4_000), ("remat", 4_000)])
def test_long_chains_do_not_overflow_the_stack(transform: str, steps: int) -> None:
    def chain(x: Any) -> Any:
        for _ in range(steps):
            x = -x
        return x

    x = np.float64(1.5)
    if transform == "grad":
        found: Any = mesh.grad(chain)(x)
    elif transform == "jvp":
        found = mesh.jvp(chain, (x,), (1.0,))[1]
    elif transform == "vmap":
        found = mesh.vmap(chain)(np.ones(1))[0]
    else:
        found = mesh.grad(mesh.remat(chain))(x)
    assert float(found) == 1.0


# -- rules of one's own -----------------------------------------------------------------------------------


def test_stop_gradient_holds_derivatives_off() -> None:
    x = floats(3)
    same(mesh.grad(lambda each: mnp.sum(each * mesh.stop_gradient({"a": each})["a"]))(x), x)
    same(mesh.jvp(lambda each: mesh.stop_gradient(each) * each, (x,), (np.ones(3),))[1], x)
    same(mesh.vmap(mesh.grad(lambda each: each * mesh.stop_gradient(each)))(x), x)
    graph = mesh.trace(lambda each: mesh.stop_gradient(each) + 1, x)
    assert [node.op for node in graph.nodes] == ["input", "const", "add"]


def summed_sine(x: Any, s: Any) -> Any:
    return mnp.sum(mnp.sin(x)) * s


tenfold = mesh.custom_vjp(  # wrong on purpose, so that one sees whose backward pass it is
    summed_sine, lambda x, s: (summed_sine(x, s), (x, s)), lambda kept, g: (g * 10 * kept[0], None)
)


def test_custom_vjp_is_used_in_every_combination() -> None:
    x = floats(3)
    same(mesh.grad(tenfold)(x, 2.0), 10 * x)
    same(mesh.grad(lambda each: mnp.sum(mesh.grad(tenfold)(each, 2.0)))(x), np.full(3, 10.0))
    rows = floats(4, 3)
    same(mesh.vmap(mesh.grad(tenfold), (0, None))(rows, 2.0), 10 * rows)
    same(mesh.grad(lambda each: mnp.sum(mesh.vmap(tenfold, (0, None))(each, 2.0)))(rows), 10 * rows)
    same(mesh.evaluate(lambda each: mesh.grad(tenfold)(each, 2.0), x), 10 * x)
    same(mesh.grad(mesh.remat(tenfold))(x, 2.0), 10 * x)
    same(mesh.hessian(tenfold)(x, 2.0), 10 * np.eye(3))
    np.testing.assert_allclose(np.asarray(tenfold(x, 2.0)), np.sum(np.sin(x)) * 2)


def test_custom_vjp_of_a_batch_sums_over_it_for_what_is_shared() -> None:
    scaled = mesh.custom_vjp(
        lambda x, w: x * w, lambda x, w: (x * w, (x, w)), lambda kept, g: (g * kept[1], g * kept[0])
    )
    x, w = floats(5), floats()
    same(mesh.grad(lambda s: mnp.sum(mesh.vmap(scaled, (0, None))(x, s)))(w), np.sum(x))


def test_custom_vjp_keeps_what_is_no_array_and_gives_structures() -> None:
    def ahead(p: Any) -> Any:
        return {"y": p["x"] * 3}, ("three", p["x"], 3)

    def back(kept: Any, g: Any) -> Any:
        assert kept[0] == "three"
        return ({"x": g["y"] * kept[2], "n": None},)

    fn = mesh.custom_vjp(lambda p: {"y": p["x"] * 3}, ahead, back)
    found = mesh.vjp(fn, {"x": floats(2), "n": np.arange(2)})[1]({"y": np.ones(2)})[0]
    same(found["x"], np.full(2, 3.0))
    assert found["n"] is None


def test_custom_jvp_serves_both_modes() -> None:
    fn = mesh.custom_jvp(lambda x, n: mnp.sin(x) * n, lambda at, by: (mnp.sin(at[0]) * at[1], 5 * by[0]))
    x, n = floats(3), np.int32(2)
    same(mesh.jvp(fn, (x, n), (np.ones(3), None))[1], np.full(3, 5.0))
    same(mesh.grad(lambda each: mnp.sum(fn(each, n)))(x), np.full(3, 5.0))
    same(mesh.vmap(mesh.grad(fn), (0, None))(x, n), np.full(3, 5.0))
    same(mesh.grad(lambda each: mnp.sum(mesh.vmap(fn, (0, None))(each, n)))(x), np.full(3, 5.0))
    np.testing.assert_allclose(np.asarray(mesh.vmap(fn, (0, None))(x, n)), np.sin(x) * 2)


def test_rules_of_ones_own_may_close_over_what_is_mapped_but_not_differentiated() -> None:
    def of(t: Any) -> Any:
        fn = mesh.custom_vjp(lambda x: x * t, lambda x: (x * t, None), lambda _, g: (g * t * 7,))
        return mesh.grad(fn)(np.float64(1))

    same(mesh.vmap(of)(np.arange(3.0)), 7 * np.arange(3.0))
    with pytest.raises(InputError, match="closes over an array by which it is differentiated"):
        mesh.grad(lambda t: mesh.custom_vjp(lambda x: x * t, lambda x: (x * t, None), lambda _, g: (g,))(2.0))(3.0)
    with pytest.raises(UnknownOp, match="no forward mode"):
        mesh.jvp(lambda x: tenfold(x, 1.0), (X,), (X,))


# -- recomputation ----------------------------------------------------------------------------------------


def deep(block: Callable[..., Any]) -> Callable[..., Any]:
    def fn(weights: Any, x: Any) -> Any:
        for w in weights:
            x = block(w, x)
        return mnp.sum(x)

    return fn


def wide_block(w: Any, x: Any) -> Any:
    return x + nn.gelu(x @ w["up"]) @ w["down"]


def test_remat_computes_again_and_needs_less_memory() -> None:
    from worker.cpu.engine import compile_graph

    weights = [{"up": floats(8, 64), "down": floats(64, 8)} for _ in range(8)]
    x = floats(32, 8)
    plain, again = mesh.grad(deep(wide_block)), mesh.grad(deep(mesh.remat(wide_block)))
    same(again(weights, x), plain(weights, x))
    graphs = [simplify(mesh.trace(fn, weights, x), evaluate) for fn in (plain, again)]
    dots = [sum(node.op == "dot" for node in graph.nodes) for graph in graphs]
    assert dots[1] > dots[0]  # the forward pass of each block stands twice
    kept = [compile_graph(graph).memory_bytes for graph in graphs]
    assert kept[1] < kept[0] / 2


def test_nothing_merges_what_is_computed_again() -> None:
    graph = mesh.trace(mesh.grad(lambda x: mnp.sum(mesh.remat(lambda y: mnp.sin(mnp.cos(y)))(x))), X)
    assert sum(node.op == "after" for node in simplify(graph, evaluate).nodes) == 1
    graph = mesh.trace(lambda x: mesh.remat(mnp.sin)(x) + mnp.sin(x), X)
    assert sum(node.op == "sin" for node in graph.nodes) == 1  # there is no backward pass


# -- the programs that are made -----------------------------------------------------------------------------


def ops_of(graph: WireGraph) -> list[str]:
    return [node.op for node in simplify(graph, evaluate).nodes if node.op not in ("input", "const")]


def test_the_gradient_of_a_linear_layer_is_two_products() -> None:
    def fn(w: Any, b: Any, x: Any) -> Any:
        return mnp.sum(mnp.square(x @ w + b))

    f32 = [floats(4, 5).astype(np.float32), floats(5).astype(np.float32), floats(6, 4).astype(np.float32)]
    assert ops_of(mesh.trace(mesh.grad(fn, (0, 1)), *f32)) == ["dot", "add", "add", "dot", "reduce_sum"]


def test_the_gradient_of_attention_does_not_ask_where_the_maximum_was() -> None:
    def fn(q: Any, k: Any, v: Any, w: Any) -> Any:
        return mnp.sum(nn.linear(nn.scaled_dot_product_attention(q, k, v), w) ** 2)

    ops = ops_of(
        mesh.trace(mesh.grad(fn, (0, 1, 2, 3)), floats(2, 4, 3), floats(2, 4, 3), floats(2, 4, 3), floats(5, 3))
    )
    assert not {"eq", "select", "transpose", "scatter"} & set(ops)
    assert (ops.count("dot"), ops.count("reduce_max")) == (3 + 6, 1)


@pytest.mark.parametrize("again", [lambda fn: fn, mesh.vmap, mesh.remat], ids=["alone", "in a batch", "computed again"])
def test_the_softmax_inside_of_attention_has_the_derivative_of_softmax(again: Any) -> None:
    def fn(q: Any, k: Any, v: Any) -> Any:
        return nn.scaled_dot_product_attention(q, k, v)

    def by_hand(q: Any, k: Any, v: Any) -> Any:
        return nn.softmax((q @ k.mT) * 3**-0.5) @ v

    def gradient(fn: Any) -> Any:
        return mesh.grad(lambda *qkv: mnp.sum(again(fn)(*qkv) ** 2), (0, 1, 2))

    arrays = [floats(2, 4, 3), floats(2, 4, 3), floats(2, 4, 3)]
    graph = mesh.trace(gradient(fn), *arrays)
    assert ops_of(graph).count("div") == 1, "weights are divided by their sum, once"
    for found, expected in zip(gradient(fn)(*arrays), gradient(by_hand)(*arrays), strict=True):
        assert np.allclose(np.asarray(found), np.asarray(expected), rtol=1e-12, atol=1e-12)


def test_zeros_are_not_made_and_constants_not_differentiated() -> None:
    def fn(x: Any, w: Any) -> Any:
        return mnp.sum(mnp.where(x > 0, x, 0.0) @ w)

    ops = ops_of(mesh.trace(mesh.grad(fn), floats(4, 5), floats(5, 3)))
    assert ops.count("dot") == 1  # of the cotangent alone
    assert "scatter" not in ops_of(mesh.trace(mesh.grad(lambda x: mnp.sum(x[1:] * x[:-1])), floats(9)))


def test_the_gradient_of_softmax_uses_its_result() -> None:
    graph = mesh.trace(mesh.grad(lambda x: mnp.sum(nn.softmax(x) * X)), X)
    assert [node.op for node in graph.nodes].count("composite") == 1
    assert "exp" not in [node.op for node in graph.nodes]


# -- edges ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fn", "x", "wanted"),
    [
        (lambda x: mnp.sum(mnp.abs(x)), [-2.0, 0.0, 3.0], [-1, 0, 1]),
        (lambda x: mnp.sum(mnp.maximum(x, 1.0)), [0.0, 1.0, 2.0], [0, 0.5, 1]),
        (lambda x: mnp.sum(mnp.minimum(x, 1.0)), [0.0, 1.0, 2.0], [1, 0.5, 0]),
        (lambda x: mnp.max(x), [2.0, 5.0, 5.0], [0, 0.5, 0.5]),
        (lambda x: mnp.min(x), [2.0, 2.0, 5.0], [0.5, 0.5, 0]),
        (lambda x: mnp.prod(x), [2.0, 0.0, 5.0], [0, 10, 0]),
        (lambda x: mnp.sum(x**2), [0.0, 1.0, -3.0], [0, 2, -6]),
        (lambda x: mnp.sum(x**3.0), [0.0, 1.0, -3.0], [0, 3, 27]),
        (lambda x: mnp.sum(mnp.pow(x, 0.0)), [0.0, 1.0, -3.0], [0, 0, 0]),
        (lambda x: mnp.sum(mnp.pow(x, mnp.asarray([0.0, 1.0, 2.0]))), [0.0, 0.0, 0.0], [0, 1, 0]),
        (lambda x: mnp.sum(mnp.floor(x) + mnp.round(x) + mnp.sign(x)), [0.3, 1.7, -3.2], [0, 0, 0]),
        (lambda x: mnp.sum(mnp.sinh(x) + mnp.asinh(x)), [0.0, 0.0, 0.0], [2, 2, 2]),
        (lambda x: mnp.sum(x // 0.0 + 2.0 // x + x // x), [0.0, 1.0, np.inf, -np.inf], [0, 0, 0, 0]),
        (lambda x: mnp.sum(mnp.asin(x)), [-1.0, 0.0, 1.0], [np.inf, 1, np.inf]),
        (lambda x: mnp.sum(mnp.acos(x)), [-1.0, 0.0, 1.0], [-np.inf, -1, -np.inf]),
        (lambda x: mnp.sum(mnp.acosh(x)), [1.0, 2.0, np.inf], [np.inf, 3**-0.5, 0]),
        (lambda x: mnp.sum(mnp.cbrt(x)), [-0.0, 0.0, 8.0, -np.inf], [np.inf, np.inf, 1 / 12, 0]),
        (lambda x: mnp.sum(x.astype("int32").astype(x.dtype)), [0.3, 1.7, -3.2], [0, 0, 0]),
        (lambda x: mnp.sum(mnp.ones(3)), [0.3, 1.7, -3.2], [0, 0, 0]),
    ],
)
def test_kinks_ties_and_flats(fn: Any, x: list[float], wanted: list[float]) -> None:
    same(mesh.grad(fn)(np.array(x)), np.array(wanted, np.float64))


def leak(x: Any) -> Any:
    KEPT.append(x)
    return mnp.sum(x)


KEPT: list[Any] = []


def pull_one(residual: Any, cotangent: Any) -> Any:
    """A backward pass that forgets the tuple."""
    return residual * cotangent


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: mesh.grad(loss, argnums=1)(PARAMS, np.arange(3)), InputError, "'x', which is i64\\[3\\]: only floats"),
        (lambda: mesh.grad(lambda p: p["a"]["b"])({"a": {"b": True}}), InputError, "'p/a/b', which is bool"),
        (lambda: mesh.grad(mlp)(PARAMS, X), InputError, "one float, got f64\\[5,2\\]"),
        (lambda: mesh.grad(lambda x: (x, x))(1.0), InputError, "one float, got tuple"),
        (lambda: mesh.grad(lambda x: mnp.argmax(x))(X), InputError, "one float, got i32"),
        (lambda: mesh.grad(lambda x: x)("text"), InputError, "'x' is a str"),
        (lambda: mesh.grad(lambda x: x, argnums=1)(1.0), InputError, "argnums has 1"),
        (lambda: mesh.grad(lambda x: x, has_aux=True)(1.0), InputError, "returns a pair"),
        (lambda: mesh.grad(lambda x: float(x))(1.0), InputError, "float\\(\\) needs the value of 'x'"),
        (lambda: mesh.jvp(mnp.sin, (X,), (X[0],)), InputError, "tangent of 'x' is f64\\[3\\], expected f64\\[5,3\\]"),
        (lambda: mesh.jvp(mnp.sin, (X,), ({"a": X},)), InputError, "differs in structure|is a dict"),
        (lambda: mesh.jvp(mnp.sin, X, X), InputError, "a tuple of primals and one of tangents"),
        (lambda: mesh.vjp(mnp.sin, X)[1](X[0]), InputError, "cotangent of 'output' is"),
        (lambda: mesh.vjp(lambda x: (x, x), X)[1](X), InputError, "the cotangent differs in structure"),
        (
            lambda: mesh.grad(mesh.custom_vjp(lambda x, y: (x * y).sum(), lambda x, y: ((x * y).sum(), x), pull_one))(
                X, X
            ),
            InputError,
            "what the backward pass gives differs in structure",
        ),
        (lambda: mesh.jacobian(lambda x: x > 0)(X), InputError, "gives floats, got bool"),
        (lambda: mesh.jacobian(mnp.sin, mode="sideways"), InputError, "'forward' or 'reverse'"),
        (lambda: mesh.custom_vjp(mnp.sin, lambda x: x, lambda r, g: (g,))(X), InputError, "returns a pair"),
        (
            lambda: mesh.custom_vjp(mnp.sin, lambda x: (x[0], x), lambda r, g: (g,))(X),
            InputError,
            "its forward function",
        ),
        (
            lambda: mesh.custom_vjp(mnp.sin, lambda x: (x, x), lambda r, g: (g[0],))(X),
            InputError,
            "cotangent of 'x' is",
        ),
        (lambda: (mesh.grad(leak)(X), np.asarray(KEPT[-1] + 1)), InputError, "needs the value of 'x'"),
        (
            lambda: (mesh.grad(leak)(X), mesh.trace(lambda y: y + KEPT[-1], X)),
            InputError,
            "belongs to another function",
        ),
    ],
)
def test_misuse_is_told_where_it_was_written(call: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        call()


def test_a_missing_rule_names_the_op_and_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(VJPS, "tanh")
    with pytest.raises(UnknownOp, match=r"'tanh' has no vjp rule.*custom_vjp"):
        mesh.grad(loss)(PARAMS, X)
    assert numbers([mesh.jvp(mnp.tanh, (X,), (X,))[1]])


@pytest.mark.parametrize("fn", [mnp.sinh, mnp.asinh, mnp.tanh, mnp.atanh])
@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_odd_functions_have_the_slope_one_at_either_zero(fn: Any, zero: float) -> None:
    assert float(mesh.grad(fn)(np.float64(zero))) == 1
    assert np.signbit(np.asarray(fn(np.float64(zero)))) == np.signbit(zero)


SMOOTH_AT_BRANCHES: dict[str, Callable[[Any], Any]] = {
    "sinh": mnp.sinh, "cosh": mnp.cosh, "tanh": mnp.tanh, "asinh": mnp.asinh, "atanh": mnp.atanh,
    "sigmoid": nn.sigmoid, "log_sigmoid": nn.log_sigmoid, "softplus": nn.softplus, "silu": nn.silu, "mish": nn.mish,
    "logaddexp": lambda x: mnp.logaddexp(x, 0.0), "hypot": lambda x: mnp.hypot(x + 1.0, 1.0),
    "hypot of 0": lambda x: mnp.hypot(x, 1.0), "huber": lambda x: nn.huber(x, 0.0, reduction="none"),
    "cross-entropy": lambda x: nn.binary_cross_entropy(x, 0.3, reduction="none"),
}  # fmt: skip


@pytest.mark.parametrize("name", SMOOTH_AT_BRANCHES)
def test_functions_made_of_branches_are_smooth_where_these_meet(name: str) -> None:
    """All derivatives at 0, where a branch, a maximum or a magnitude turns, are those beside it."""
    fn = SMOOTH_AT_BRANCHES[name]
    beside = np.array([-1e-5, 0.0, 1e-5])
    for _ in range(3):
        fn = mesh.grad(fn)
        found = np.asarray(mesh.vmap(fn)(beside))
        np.testing.assert_allclose(found[1], (found[0] + found[2]) / 2, 1e-4, 1e-4)


@pytest.mark.parametrize(
    ("fn", "at", "wanted"),
    [(nn.relu, 0.0, 0), (nn.relu6, 0.0, 0), (nn.relu6, 6.0, 0), (nn.elu, 0.0, 1), (nn.celu, 0.0, 1),
     (nn.hard_tanh, -1.0, 0), (nn.hard_sigmoid, 3.0, 0), (nn.hard_swish, 3.0, 1), (nn.leaky_relu, 0.0, 0.01)],
)  # fmt: skip
def test_activations_have_torchs_slopes_at_their_kinks(fn: Any, at: float, wanted: float) -> None:
    same(mesh.grad(fn)(np.float64(at)), np.float64(wanted))
