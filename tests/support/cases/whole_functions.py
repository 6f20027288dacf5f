"""Functions as models have them, written for any namespace `xp` that is like numpy's, with their arguments.

`tests/golden/make_jax_reference.py` records what jax says of their derivatives; the mesh is compared with that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Numbers = Any


def cross_entropy(xp: Any, logits: Any, labels: Any) -> Any:
    shifted = logits - xp.max(logits, axis=-1, keepdims=True)
    chances = shifted - xp.log(xp.sum(xp.exp(shifted), axis=-1, keepdims=True))
    return -xp.mean(xp.take_along_axis(chances, labels[:, None], axis=-1))


def layer_norm(xp: Any, x: Any, weight: Any, bias: Any) -> Any:
    centred = x - xp.mean(x, axis=-1, keepdims=True)
    variance = xp.mean(centred * centred, axis=-1, keepdims=True)
    return xp.sum(xp.tanh(centred / xp.sqrt(variance + 1e-5) * weight + bias))


def attention(xp: Any, q: Any, k: Any, v: Any) -> Any:
    scores = xp.einsum("hqd,hkd->hqk", q, k) / math.sqrt(q.shape[-1])
    places = xp.arange(q.shape[1])
    scores = xp.where(places[:, None] >= places, scores, -1e30)
    grown = xp.exp(scores - xp.max(scores, axis=-1, keepdims=True))
    return xp.sum(xp.einsum("hqk,hkd->hqd", grown / xp.sum(grown, axis=-1, keepdims=True), v) ** 2)


def mlp(xp: Any, w1: Any, b1: Any, w2: Any, x: Any) -> Any:
    hidden = xp.maximum(x @ w1 + b1, 0)
    return xp.mean(xp.log1p(xp.exp(hidden @ w2)) * xp.sin(x[..., :1]))


def embedding_bag(xp: Any, table: Any, bags: Any, x: Any) -> Any:
    return xp.sum(xp.mean(table[bags], axis=1) * x) + xp.sum(xp.cumsum(table[:, 0]) ** 3)


def normalised_products(xp: Any, x: Any) -> Any:
    return xp.sum(xp.prod(x, axis=0) / xp.sqrt(xp.sum(x * x, axis=0))) + xp.max(x) * xp.min(x)


def gaussian(xp: Any, w: Any, mean: Any, x: Any) -> Any:
    """The log density of rows of x, by Cholesky factors and by a determinant."""
    covariance = w @ w.T + 0.5 * xp.eye(w.shape[0])
    whitened = xp.linalg.solve(xp.linalg.cholesky(covariance), (x - mean).T)
    return -0.5 * xp.sum(whitened**2) - 0.5 * x.shape[0] * xp.linalg.slogdet(covariance)[1]


def least_squares(xp: Any, x: Any, y: Any) -> Any:
    """Weights by normal equations, by an orthogonal basis and by a pseudo-inverse."""
    q, r = xp.linalg.qr(x)
    ridge = xp.linalg.solve(x.T @ x + 0.1 * xp.eye(x.shape[1], dtype=x.dtype), x.T @ y)
    return xp.sum(ridge**2) + xp.sum(xp.sin(xp.linalg.inv(r) @ (q.T @ y))) + xp.sum((xp.linalg.pinv(x) @ y) ** 3)


def spectra(xp: Any, x: Any) -> Any:
    """Singular values and vectors, eigenvalues and eigenvectors, in functions that do not see the vectors' signs."""
    u, s, vh = xp.linalg.svd(x, full_matrices=False)
    w, v = xp.linalg.eigh(x @ x.T)
    smooth = xp.sum(((u * xp.log1p(s)) @ vh) ** 2) + xp.sum(((v * xp.sin(w)) @ v.T)[0])
    norms = xp.linalg.norm(x, "nuc") * xp.linalg.norm(x, 2) + xp.linalg.norm(x, -2) + xp.linalg.norm(x, 1)
    return smooth + norms + xp.linalg.det(x @ x.T + xp.eye(x.shape[0])) + xp.sum(xp.linalg.matrix_power(x @ x.T, -1))


def waves(xp: Any, x: Any, y: Any) -> Any:
    """Complex matrices, in functions that do not see the vectors' angles."""
    z = x + 1j * y
    u, s, vh = xp.linalg.svd(z, full_matrices=False)
    w, v = xp.linalg.eigh(z @ xp.conj(z).T)
    smooth = xp.sum(xp.abs((u * xp.log1p(s)) @ vh) ** 2) + xp.sum(xp.abs((v * xp.sin(w)) @ xp.conj(v).T)[0])
    sign, size = xp.linalg.slogdet(z)
    solved = xp.linalg.solve(z, xp.linalg.cholesky(z @ xp.conj(z).T + xp.eye(z.shape[0])))
    q, r = xp.linalg.qr(z)
    products = xp.sum(xp.abs(solved)) + xp.sum(xp.abs(q @ r @ r)) + xp.imag(xp.linalg.det(z))
    return smooth + xp.real(sign) * size + products


_RNG = np.random.default_rng(77)


def _floats(*shape: int) -> Numbers:
    return _RNG.standard_normal(shape)


WHOLE: dict[str, tuple[Callable[..., Any], tuple[Numbers, ...]]] = {
    "cross_entropy": (cross_entropy, (_floats(6, 5), _RNG.integers(0, 5, 6).astype(np.int32))),
    "layer_norm": (layer_norm, (_floats(3, 6), _floats(6), _floats(6))),
    "attention": (attention, (_floats(2, 4, 3), _floats(2, 4, 3), _floats(2, 4, 3))),
    "mlp": (mlp, (_floats(3, 5), _floats(5), _floats(5, 2), _floats(4, 3))),
    "embedding_bag": (embedding_bag, (_floats(7, 2), _RNG.integers(0, 7, (4, 3)).astype(np.int32), _floats(4, 2))),
    "normalised_products": (normalised_products, (_floats(3, 4) + 0.1,)),
    "gaussian": (gaussian, (_floats(4, 5), _floats(4), _floats(3, 4))),
    "least_squares": (least_squares, (_floats(6, 3), _floats(6, 2))),
    "spectra": (spectra, (_floats(3, 5),)),
    "waves": (waves, (_floats(4, 4), _floats(4, 4))),
}


def by(arguments: tuple[Numbers, ...]) -> tuple[int, ...]:
    """The places of the arguments that there are derivatives by."""
    return tuple(place for place, argument in enumerate(arguments) if argument.dtype.kind == "f")


def directions(arguments: tuple[Numbers, ...]) -> list[Numbers]:
    """Tangents of the arguments that there are derivatives by."""
    return [np.cos(np.arange(arguments[place].size)).reshape(arguments[place].shape) for place in by(arguments)]


def figures(name: str, xp: Any, transforms: Any) -> dict[str, Any]:
    """What is recorded of one function: value, gradients, jvp, Hessian times a direction, and gradients of a batch.

    `transforms` has value_and_grad, jvp, grad and vmap.
    """
    found = derivatives(name, xp, transforms, *WHOLE[name][1])
    return {key: np.asarray(leaf) for key, leaf in found.items()}


def derivatives(name: str, xp: Any, transforms: Any, *given: Any) -> dict[str, Any]:
    """The same for its arguments as they are `given`, of any kind of array."""
    fn, arguments = WHOLE[name]
    places, moves = by(arguments), directions(arguments)

    def of_floats(*floats: Any) -> Any:
        every = list(map(xp.asarray, given))
        for place, value in zip(places, floats, strict=True):
            every[place] = value
        return fn(xp, *every)

    at = [xp.asarray(given[place]) for place in places]
    towards = [xp.asarray(move) for move in moves]
    each = tuple(range(len(at)))
    value, gradients = transforms.value_and_grad(of_floats, each)(*at)
    _, tangent = transforms.jvp(of_floats, tuple(at), tuple(towards))
    _, curvature = transforms.jvp(transforms.grad(of_floats, each), tuple(at), tuple(towards))
    rows = [xp.stack([x, x * 0.5, x + move]) for x, move in zip(at, towards, strict=True)]
    batch = transforms.vmap(transforms.grad(of_floats, each))(*rows)
    found = {"value": value, "tangent": tangent}
    for what, leaves in (("gradient", gradients), ("curvature", curvature), ("batch", batch)):
        found.update({f"{what}/{place}": leaf for place, leaf in enumerate(leaves)})
    return {f"{name}/{key}": leaf for key, leaf in found.items()}
