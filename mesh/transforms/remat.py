"""remat: recompute in the backward pass what the forward pass would have kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

from .. import tree
from ..core.array import Array, apply
from ..core.call_arguments import merge_arguments
from ..tree import PyTree
from ..util.argument_checks import check_function
from .jvp_rules import Tangents, forward_of
from .pytree_functions import Flat
from .step_list import Inner, captured_by, marked, run_like
from .vjp_rules import Cotangents, Pull, backward_of
from .vmap_rules import Flags, batch_of


def remat(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Compute a function's intermediate results again in a backward pass, instead of keeping them for it.

    Around each block of a deep model it saves memory: the backward pass needs the blocks' arguments and the
    intermediate results of one block, for the work of one more forward pass.  Values and derivatives are the same.

    Parameters
    ----------
    fn : callable
        A function of arrays.

    Returns
    -------
    callable
        The function.

    Notes
    -----
    Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016.

    Examples
    --------
    >>> import mesh
    >>> import mesh.numpy as mnp
    >>> block = mesh.remat(lambda w, x: mnp.tanh(x @ w))
    >>> mesh.grad(lambda w, x: block(w, block(w, x)).sum())(mnp.zeros((2, 2)), mnp.ones(2))
    Array([[0., 0.],
           [0., 0.]], dtype=float32)
    """
    check_function(fn, "what remat computes again")

    @wraps(fn)
    def function(*args: PyTree, **keywords: PyTree) -> PyTree:
        flat = Flat(fn, merge_arguments(fn, args, keywords))
        inner = flat.run()
        captured = captured_by(inner)
        mark = _Remat(inner.taking(captured))
        results = mark.reapply(*flat.arrays, *[Array(tensor) for tensor in captured])
        return tree.unflatten(flat.out_tree, results)

    return function


@dataclass(frozen=True, eq=False)
class _Remat:
    """The mark of remat.

    What is computed again is made of operands that come `after` the cotangents, so it is neither merged with what the
    forward pass made nor computed before it is needed.  The cotangents found come after each other, so that all of a
    block's are there, and what they were made of is gone, before the block ahead of it is computed again.
    """

    inner: Inner

    name = "remat"

    def reapply(self, *inputs: Array) -> list[Array]:
        return marked(self, inputs, self.inner.call(*inputs))

    def vjp(self, inputs: list[Array], needs_grad: Flags) -> tuple[list[Array], Pull]:
        def pull(cotangents: Cotangents) -> list[Array | None]:
            present = [cotangent for cotangent in cotangents if cotangent is not None]
            later = [apply("after", array, *present) for array in inputs]
            pulled = backward_of(self.inner, later)[1](cotangents)
            every = [cotangent for cotangent in pulled if cotangent is not None]
            return [None if one is None else _behind(one, every) for one in pulled]

        return self.reapply(*inputs), pull

    def jvp(self, inputs: list[Array], tangents: Tangents) -> tuple[list[Array], list[Array | None]]:
        return forward_of(self.inner, inputs, tangents)

    def vmap(self, size: int, inputs: list[Array], batched: Flags) -> tuple[list[Array], list[bool]]:
        flags: list[bool] = []

        def function(*operands: Array) -> list[Array]:
            results, flags[:] = batch_of(self.inner, size, operands, batched)
            return results

        mark = _Remat(run_like(function, inputs))
        return mark.reapply(*inputs), flags


def _behind(array: Array, others: list[Array]) -> Array:
    """`array` once all `others` are there too."""
    rest = [other for other in others if other is not array]
    return apply("after", array, *rest) if rest else array
