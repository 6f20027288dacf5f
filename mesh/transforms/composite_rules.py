"""Functions that have a derivative of their own: shorter, or a number where what they are made of has none.

`applied(name, function, x)` is `function(x)`, of elements, or of matrices and batches of them, marked for transforms
(`step_list.Mark`).
A row of TANGENTS is `(x, z, moved)` to the tangent of z = function(x), linear in `moved`; reverse mode transposes it.
The z of a row is marked too, so a second derivative is one of the row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .. import numpy as mnp
from ..core.array import Array
from .custom_rules import stop_gradient
from .jvp_rules import Tangents
from .linalg_rules import h, t
from .step_list import marked
from .vjp_rules import Cotangents, Pull, backward
from .vmap_rules import Flags


def applied(name: str, function: Callable[[Array], Array], x: Array) -> Array:
    """`function(x)`, with the derivative that TANGENTS has under `name`."""
    return _Derived(name, function).reapply(x)[0]


@dataclass(slots=True, eq=False)
class _Derived:
    name: str
    function: Callable[[Array], Array]

    def reapply(self, *inputs: Array) -> list[Array]:
        return marked(self, inputs, [self.function(*inputs)])

    def jvp(self, inputs: list[Array], tangents: Tangents) -> tuple[list[Array], list[Array | None]]:
        (x,), (z,), (moved,) = inputs, self.reapply(*inputs), tangents
        assert moved is not None
        return [z], [TANGENTS[self.name](x, z, moved)]

    def vjp(self, inputs: list[Array], needs_grad: Flags) -> tuple[list[Array], Pull]:
        (x,), (z,) = inputs, self.reapply(*inputs)

        def pull(cotangents: Cotangents) -> list[Array | None]:
            _, transposed = backward(lambda moved: [TANGENTS[self.name](x, z, moved)], [mnp.zeros_like(x)])
            return transposed(cotangents)

        return [z], pull

    def vmap(self, size: int, inputs: list[Array], batched: Sequence[bool]) -> tuple[list[Array], list[bool]]:
        return self.reapply(*inputs), [True]


def _det(x: Array, z: Array, moved: Array) -> Array:
    """Jacobi's formula: the sum of cofactors times what moves."""
    return mnp.sum(_cofactors(x, z) * moved, (-2, -1)) if x.shape[-1] else mnp.sum(moved, (-2, -1))


def _cofactors(x: Array, det: Array) -> Array:
    """The cofactors by the inverse, or if that says little by the singular values, of which each cofactor lacks one.

    Of a batch both are made, each of matrices that suit it, so that neither has derivatives that are not finite.
    """
    s = mnp.linalg.svdvals(stop_gradient(x))
    is_singular = mnp.less_equal(s[..., -1], math.sqrt(mnp.finfo(s.dtype).eps) * s[..., 0])[..., None, None]
    size = x.shape[-1]
    one, apart = mnp.eye(size, dtype=x.dtype), mnp.diag(mnp.astype(mnp.arange(1, size + 1), x.dtype))
    inverse = t(mnp.linalg.inv(mnp.where(is_singular, one, x)))
    shifted = mnp.where(is_singular, x, apart)
    u, s, vh = mnp.linalg.svd(stop_gradient(shifted) if mnp.iscomplexobj(x) else shifted)
    others = mnp.prod(mnp.where(mnp.eye(size, dtype="bool"), 1, s[..., None, :]), -1)
    signs = mnp.linalg.det(u) * mnp.linalg.det(vh)
    of_singular = mnp.conj(mnp.matmul(u * others[..., None, :], vh)) * signs[..., None, None]
    if mnp.iscomplexobj(x):  # whose vectors turn infinitely fast where a singular value is 0: the derivative is NaN
        moved = mnp.sum(mnp.abs(shifted - stop_gradient(shifted)) ** 2, (-2, -1), keepdims=True)
        of_singular = of_singular + 0 * mnp.sqrt(mnp.where(is_singular, moved, 1))
    return mnp.where(is_singular, of_singular, det[..., None, None] * inverse)


def _pinv(x: Array, z: Array, moved: Array) -> Array:
    """Golub and Pereyra, The differentiation of pseudo-inverses (1973), equation 4.12: where the rank stays."""
    m, n = x.shape[-2:]
    left = mnp.eye(n, dtype=x.dtype) - mnp.matmul(z, x)
    right = mnp.eye(m, dtype=x.dtype) - mnp.matmul(x, z)
    across = mnp.matmul(z, mnp.matmul(h(z), mnp.matmul(h(moved), right)))
    down = mnp.matmul(left, mnp.matmul(h(moved), mnp.matmul(h(z), z)))
    return across + down - mnp.matmul(z, mnp.matmul(moved, z))


def _softmax(x: Array, z: Array, moved: Array) -> Array:
    """Along the last axis.  In reverse it takes two passes over x less than exponentials divided by their sum."""
    return z * (moved - mnp.sum(z * moved, -1, keepdims=True))


TANGENTS: dict[str, Callable[[Array, Array, Array], Array]] = {
    "acos": lambda x, z, moved: -moved / mnp.sqrt((1 - x) * (1 + x)),
    "acosh": lambda x, z, moved: moved / mnp.sqrt((x - 1) * (x + 1)),
    "asin": lambda x, z, moved: moved / mnp.sqrt((1 - x) * (1 + x)),
    "cbrt": lambda x, z, moved: moved / (3 * z * z),
    "det": _det,
    "pinv": _pinv,
    "softmax": _softmax,
}
