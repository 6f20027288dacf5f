"""The table of roundings: wide enough for any order of sums, and too narrow for the mistakes that people make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.rounding import RECORDED, ROUNDED, allowed, allowed_of_model, assert_rounds_alike, traced

import mesh
import mesh.numpy as mnp
from mesh import nn, optim
from wire.ir.ops import COLLECTIVES, EXACT, OPS

RNG = np.random.default_rng(4)
X = RNG.standard_normal((16, 96)).astype(np.float32)
W = (RNG.standard_normal((96, 64)) / 8).astype(np.float32)
Q, K, V = (RNG.standard_normal((2, 3, 12, 16)).astype(np.float32) for _ in range(3))
TORCH = RECORDED["torch_nn"]
Any_ = Callable[..., Any]


def exact(fn: Any_, *args: Any) -> Any:
    """In f64, as the oracles of torch_nn compute."""
    with np.errstate(all="ignore"):
        return np.asarray(mesh.evaluate(fn, *(each.astype(np.float64) for each in args)))


def bound_of(fn: Any_, *args: Any) -> Any:
    (bound,) = allowed(*traced(fn, *args), TORCH)
    return bound


def in_f16(x: Any) -> Any:
    return mnp.astype(nn.softmax(mnp.astype(x, mnp.float16)), mnp.float32)


def attention(scale: float | None) -> Any_:
    return lambda q, k, v: nn.scaled_dot_product_attention(q, k, v, scale=scale)


def norm(eps: float) -> Any_:
    return lambda x: nn.layer_norm(x, mnp.ones(96, x.dtype), mnp.zeros(96, x.dtype), eps=eps)


def adam(eps: float) -> Any_:
    made = optim.adam(1e-3, eps=eps)

    def stepped(x: Any) -> Any:
        updates, _ = made.update(x, made.init(x), x)
        return x + updates

    return stepped


MISTAKES: dict[str, tuple[Any_, Any_, tuple[Any, ...]]] = {  # what is right, what is wrong, of what
    "gelu by tanh for erf": (nn.gelu, lambda x: nn.gelu(x, approximate=True), (X,)),
    "eps of 1e-6 for 1e-5": (norm(1e-5), norm(1e-6), (X,)),
    "eps of Adam of 1e-7 for 1e-8": (adam(1e-8), adam(1e-7), (X,)),
    "attention without a scale": (attention(None), attention(1.0), (Q, K, V)),
    "attention by the whole width": (attention(None), attention(48**-0.5), (Q, K, V)),
    "f16 within": (nn.softmax, in_f16, (X,)),
    "a sum that lacks its smallest term": (lambda x, w: x @ w, lambda x, w: x @ without_smallest(w), (X, W)),
    "a variance by n - 1": (lambda x: mnp.var(x, axis=1), lambda x: mnp.var(x, axis=1, correction=1), (X,)),
    "log without the maximum taken off": (lambda x: nn.log_softmax(x * 40), lambda x: logs(x * 40), (X,)),
}


def without_smallest(w: Any) -> Any:
    keep = np.ones((96, 1), np.float32)
    keep[np.abs(W).max(axis=1).argmin()] = 0
    return w * mnp.astype(keep, w.dtype)


def logs(x: Any) -> Any:
    grown = mnp.exp(x)
    return mnp.log(grown / mnp.sum(grown, axis=-1, keepdims=True))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_no_rounding(mistake: str) -> None:
    right, wrong, args = MISTAKES[mistake]
    bound, wanted = bound_of(right, *args), exact(right, *args)
    assert_rounds_alike(mesh.evaluate(right, *args), wanted, bound)
    with pytest.raises(AssertionError, match="further off than rounding explains"):
        assert_rounds_alike(mesh.evaluate(wrong, *args), wanted, bound)


def product_in_order(x: Any, w: Any, order: Any) -> Any:
    """x @ w, rounded after every term: the order that is worst for no processor's kernels."""
    total = np.zeros((len(x), w.shape[1]), np.float32)
    for term in order:
        total += x[:, term : term + 1] * w[term]
    return total


@pytest.mark.parametrize("seed", range(5))
def test_any_order_of_a_sum_is_within_the_bound(seed: int) -> None:
    """Also the ways of processors that there are not; and a layer behind it has what comes through of it."""
    order = np.random.default_rng(seed).permutation(96)
    found = product_in_order(X, W, order)
    assert_rounds_alike(found, X.astype(np.float64) @ W.astype(np.float64), bound_of(lambda x, w: x @ w, X, W))

    def layer(x: Any, w: Any) -> Any:
        return nn.softmax(mnp.tanh(x @ w))

    wanted = exact(layer, X, W)
    assert_rounds_alike(mesh.evaluate(lambda y: nn.softmax(mnp.tanh(y)), found), wanted, bound_of(layer, X, W))


def test_what_only_moves_and_chooses_is_exact() -> None:
    assert not np.any(allowed(*traced(lambda x: mnp.sort(mnp.maximum(x, 0.5).T)[::2] * 2, X), RECORDED["torch_nn"])[0]
                      - 2.0**-24 * np.abs(np.sort(np.maximum(X, np.float32(0.5)).T)[::2] * 2))  # fmt: skip


def test_a_model_whose_norms_are_off_by_a_ten_thousandth_is_not_the_model() -> None:
    """Also where the library computed in f32, and through all layers."""
    from support.cases.language import MODELS

    ids = np.arange(3, 11, dtype=np.int32)[None]
    model = mesh.load(MODELS / "llama")
    bounds = allowed_of_model(model, {"input_ids": ids}, RECORDED["huggingface"])
    (name,) = model.outputs
    off = {key: array * np.float32(1 + 1e-4) if "norm" in key else array for key, array in model.params.items()}
    assert any(np.any(off[key] != model.params[key]) for key in off)
    with pytest.raises(AssertionError, match="further off"):
        assert_rounds_alike(model.trained(off)({"input_ids": ids}), model({"input_ids": ids}), bounds[name])


def test_every_op_that_rounds_has_a_row() -> None:
    inexact = {name for name, op in OPS.items() if op.tolerance != EXACT}
    assert inexact - ROUNDED.keys() - COLLECTIVES == {"composite", "spmd"}, "those of bodies are of their nodes"
