"""Functions with rules of their own: stop_gradient, custom_vjp, custom_jvp.

Each call runs the functions it was given on fresh arguments and keeps what they did (`inner.Inner`), so that it can be
done again on other operands, in batches, or be differentiated further; then it marks its results (`inner.marked`).
What the functions close over become operands like the arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

from wire.errors import InputError, UnknownOp

from .. import numpy as mnp
from .. import tree
from ..core.array import Array
from ..core.call_arguments import positional
from ..tree import PyTree
from ..util.argument_checks import check_function
from .jvp_rules import Tangents
from .pytree_functions import Flat, as_array, fitting, in_64_bits, same_structure, zeros_for_none
from .step_list import Inner, captured_by, marked, run, run_like
from .vjp_rules import Cotangents, Pull, backward, is_continuous
from .vmap_rules import Flags, batch_of, repeated

Function = Callable[..., Any]


def stop_gradient(x: PyTree) -> PyTree:
    """Make x a constant for every derivative.

    Parameters
    ----------
    x : Array or pytree of Array
        Any arrays.

    Returns
    -------
    Array or pytree of Array
        The same values.

    Examples
    --------
    >>> import mesh
    >>> import mesh.numpy as mnp
    >>> mesh.grad(lambda x: x * mesh.stop_gradient(x))(mnp.asarray(3.0))
    Array(3., dtype=float32)
    """
    return tree.map(lambda leaf: _STOP.reapply(as_array(leaf, "x"))[0], x)


def custom_vjp(fn: Function, forward: Function, backward: Function) -> Function:
    """Give a function a backward pass of its own.  It has no forward derivative then.

    Parameters
    ----------
    fn : callable
        A function of arrays.
    forward : callable
        `forward(*args) -> (result, residuals)`.
    backward : callable
        `backward(residuals, cotangent) -> cotangents`: a tuple with one per argument, None for zero.

    Returns
    -------
    callable
        The function.

    Raises
    ------
    InputError
        If it is differentiated by something that it closes over, or results differ in structure, shapes or dtypes.

    Examples
    --------
    >>> import mesh
    >>> import mesh.numpy as mnp
    >>> clipped = mesh.custom_vjp(lambda x: x * x, lambda x: (x * x, x), lambda x, g: (mnp.clip(2 * x * g, -1, 1),))
    >>> mesh.grad(clipped)(mnp.asarray(3.0))
    Array(1., dtype=float32)
    """
    for own, what in ((fn, "the function"), (forward, "the forward pass"), (backward, "the backward pass")):
        check_function(own, f"{what} of custom_vjp")

    @wraps(fn)
    def function(*args: PyTree, **keywords: PyTree) -> PyTree:
        flat = Flat(fn, positional(fn, args, keywords))
        passes = _Passes(flat, forward, backward)
        primal, ahead = flat.fit(flat.run_as(flat), flat.run_as(passes.ahead))
        _check_same("forward", primal, ahead)
        back = _run_back(passes, primal, ahead)
        wide = back.needed_wide
        if wide:  # residuals that are Python's numbers
            primal, ahead = flat.fit(primal, _keeping_wide(ahead, len(primal.outputs), wide))
            back = _run_back(passes, primal, ahead)
        captured = captured_by(primal, ahead, back)
        inners = [inner.taking(captured) for inner in (primal, ahead, back)]
        mark = _CustomVjp(inners[0], inners[1], inners[2], tuple(passes.places), len(captured))
        return _applied(mark, flat, captured)

    return function


def custom_jvp(fn: Function, tangent: Function) -> Function:
    """Give a function a forward derivative of its own; the backward pass is its transpose.

    Parameters
    ----------
    fn : callable
        A function of arrays.
    tangent : callable
        `tangent(primals, tangents) -> (result, tangent of the result)`, of tuples like the arguments of `fn`.  It is
        linear in the tangents; the tangent of an integer is None.

    Returns
    -------
    callable
        The function.

    Raises
    ------
    InputError
        If it is differentiated by something that it closes over, or results differ in structure, shapes or dtypes.

    Examples
    --------
    >>> import mesh
    >>> import mesh.numpy as mnp
    >>> def tangent(primals, tangents):
    ...     (x,), (t,) = primals, tangents
    ...     return mnp.sin(x), 10 * t
    >>> mesh.grad(mesh.custom_jvp(mnp.sin, tangent))(mnp.asarray(0.0))
    Array(10., dtype=float32)
    """
    for own, what in ((fn, "the function"), (tangent, "the tangent")):
        check_function(own, f"{what} of custom_jvp")

    @wraps(fn)
    def function(*args: PyTree, **keywords: PyTree) -> PyTree:
        flat = Flat(fn, positional(fn, args, keywords))
        moving = tuple([place for place, array in enumerate(flat.arrays) if is_continuous(array.type)])
        primal, moved = _run_with_tangents(flat, tangent, moving)
        _check_same("tangent", primal, moved)
        captured = captured_by(primal, moved)
        mark = _CustomJvp(primal.taking(captured), moved.taking(captured), moving, len(captured))
        return _applied(mark, flat, captured)

    return function


# -- marks ------------------------------------------------------------------------------------------------


class _Stop:
    """The mark of stop_gradient."""

    name = "stop_gradient"

    def reapply(self, *inputs: Array) -> list[Array]:
        return marked(self, inputs, inputs)

    def vjp(self, inputs: list[Array], needs_grad: Flags) -> tuple[list[Array], Pull]:
        return self.reapply(*inputs), lambda cotangents: [None]

    def jvp(self, inputs: list[Array], tangents: Tangents) -> tuple[list[Array], list[Array | None]]:
        return self.reapply(*inputs), [None]

    def vmap(self, size: int, inputs: list[Array], batched: Flags) -> tuple[list[Array], list[bool]]:
        return self.reapply(*inputs), list(batched)


_STOP = _Stop()


@dataclass(frozen=True, eq=False)
class _CustomVjp:
    """`ahead` gives the results and the residuals; `back`, of residuals and cotangents, cotangents for `places` of the
    operands.  All three take what they close over last."""

    primal: Inner
    ahead: Inner
    back: Inner
    places: tuple[int, ...]
    captured: int

    name = "custom_vjp"

    def reapply(self, *inputs: Array) -> list[Array]:
        return marked(self, inputs, self.primal.call(*inputs))

    def vjp(self, inputs: list[Array], needs_grad: Flags) -> tuple[list[Array], Pull]:
        own, count = len(inputs) - self.captured, len(self.primal.outputs)
        _check_closed(self.name, needs_grad[own:])
        outputs = self.ahead.call(*inputs)

        def pull(cotangents: Cotangents) -> list[Array | None]:
            filled = zeros_for_none(cotangents, outputs[:count])
            pulled = iter(self.back.call(*outputs[count:], *filled, *inputs[own:]))
            return [next(pulled) if place in self.places else None for place in range(len(inputs))]

        return outputs[:count], pull

    def jvp(self, inputs: list[Array], tangents: Tangents) -> tuple[list[Array], list[Array | None]]:
        raise UnknownOp(
            "a function with custom_vjp has no forward mode",
            op=self.name,
            next_step="Use grad or vjp, jacobian(mode='reverse'), or give it a derivative with mesh.custom_jvp",
        )

    def vmap(self, size: int, inputs: list[Array], batched: Flags) -> tuple[list[Array], list[bool]]:
        own, count = len(inputs) - self.captured, len(self.primal.outputs)
        kept: list[bool] = []  # which residuals are batched

        def ahead(*operands: Array) -> list[Array]:
            results, flags = batch_of(self.ahead, size, operands, batched)
            kept[:] = flags[count:]
            return [*_repeated(results[:count], flags, size), *results[count:]]

        def back(*operands: Array) -> list[Array]:
            results, flags = batch_of(self.back, size, operands, [*kept, *[True] * count, *batched[own:]])
            return [
                _repeated([array], [flag], size)[0] if batched[place] else _total(array, flag, size)
                for array, flag, place in zip(results, flags, self.places, strict=True)
            ]

        primal = run_like(_batch_of_all(self.primal, size, batched), inputs)
        forward = run_like(ahead, inputs)
        types = [tensor.type for tensor in (*forward.outputs[count:], *primal.outputs)]
        backward = run(back, [*types, *[array.type for array in inputs[own:]]])
        mark = _CustomVjp(primal, forward, backward, self.places, self.captured)
        return mark.reapply(*inputs), [True] * count


@dataclass(frozen=True, eq=False)
class _CustomJvp:
    """`moved`, of operands and the tangents of the `moving` ones, gives the results and the tangents of the floats
    among them.  Both take what they close over last."""

    primal: Inner
    moved: Inner
    moving: tuple[int, ...]
    captured: int

    name = "custom_jvp"

    def reapply(self, *inputs: Array) -> list[Array]:
        return marked(self, inputs, self.primal.call(*inputs))

    def vjp(self, inputs: list[Array], needs_grad: Flags) -> tuple[list[Array], Pull]:
        own, count = len(inputs) - self.captured, len(self.primal.outputs)
        _check_closed(self.name, needs_grad[own:])
        still = [mnp.zeros_like(inputs[place]) for place in self.moving]

        def tangents(*moves: Array) -> list[Array]:
            return self.moved.call(*inputs[:own], *moves, *inputs[own:])[count:]

        _, pull_tangents = backward(tangents, still)  # linear, so it is the same anywhere
        floats = [place for place, tensor in enumerate(self.primal.outputs) if is_continuous(tensor.type)]

        def pull(cotangents: Cotangents) -> list[Array | None]:
            pulled = iter(pull_tangents([cotangents[place] for place in floats]))
            return [next(pulled) if place in self.moving else None for place in range(len(inputs))]

        return self.moved.call(*inputs[:own], *still, *inputs[own:])[:count], pull

    def jvp(self, inputs: list[Array], tangents: Tangents) -> tuple[list[Array], list[Array | None]]:
        own, count = len(inputs) - self.captured, len(self.primal.outputs)
        _check_closed(self.name, [tangent is not None for tangent in tangents[own:]])
        moves = zeros_for_none([tangents[place] for place in self.moving], [inputs[place] for place in self.moving])
        outputs = self.moved.call(*inputs[:own], *moves, *inputs[own:])
        moved = iter(outputs[count:])
        return outputs[:count], [next(moved) if is_continuous(result.type) else None for result in outputs[:count]]

    def vmap(self, size: int, inputs: list[Array], batched: Flags) -> tuple[list[Array], list[bool]]:
        own = len(inputs) - self.captured
        flags = [*batched[:own], *[batched[place] for place in self.moving], *batched[own:]]
        operands = [*inputs[:own], *[inputs[place] for place in self.moving], *inputs[own:]]
        primal = run_like(_batch_of_all(self.primal, size, batched), inputs)
        moved = run_like(_batch_of_all(self.moved, size, flags), operands)
        mark = _CustomJvp(primal, moved, self.moving, self.captured)
        return mark.reapply(*inputs), [True] * len(self.primal.outputs)


# -- helpers ----------------------------------------------------------------------------------------------


class _Passes:
    """The passes of a custom_vjp as functions of leaves.  Residuals that are no arrays stay what they are."""

    def __init__(self, flat: Flat, forward: Function, backward: Function) -> None:
        self._flat, self._forward, self._backward = flat, forward, backward
        self._residuals: list[Any] = []
        self._structure = tree.LEAF
        self.places: list[int] = []  # of which arguments `back` gives cotangents

    def ahead(self, *leaves: Array) -> list[Array]:
        """The results' leaves, then the residuals that are Arrays."""
        returned = _pair(self._forward(*self._flat.arguments(leaves)), "the forward pass of a custom_vjp", "residuals")
        results = same_structure(self._flat.out_tree, returned[0], "the forward pass's result")
        self._residuals, self._structure = tree.flatten(returned[1])
        kept = [leaf for leaf in self._residuals if isinstance(leaf, Array)]
        return [*[as_array(leaf, "result") for leaf in results], *kept]

    def back(self, *leaves: Array) -> list[Array]:
        """The cotangents of arguments, at `places`, from residuals and cotangents of the result."""
        values = iter(leaves)
        residuals = [next(values) if isinstance(leaf, Array) else leaf for leaf in self._residuals]
        cotangent = tree.unflatten(self._flat.out_tree, list(values))
        returned = self._backward(tree.unflatten(self._structure, residuals), cotangent)
        cotangents = same_structure(self._flat.in_tree, returned, "what the backward pass gives")
        by_place = {
            place: fitting(value, argument, f"the cotangent of {name!r}")
            for place, (value, argument, name) in enumerate(
                zip(cotangents, self._flat.arrays, self._flat.names, strict=True)
            )
            if value is not None and is_continuous(argument.type)
        }
        self.places = list(by_place)
        return list(by_place.values())


def _run_with_tangents(flat: Flat, tangent: Function, moving: Sequence[int]) -> tuple[Inner, Inner]:
    """What the function of a custom_jvp does, and what its tangent function does, of the same numbers in 64 bits."""
    count = len(flat.arrays)
    primal = flat.run_as(flat)
    both = [*flat.arrays, *[flat.arrays[place] for place in moving]]
    moved = run(
        _with_tangents(tangent, flat, moving),
        [tensor.type for tensor in both],
        [tensor.weak for tensor in both],
        widens=True,
    )
    of_moved = {place if place < count else moving[place - count] for place in moved.needed_wide}
    wide = primal.needed_wide | of_moved
    flat.widen(wide)
    tangents = {count + place for place, at in enumerate(moving) if at in wide}
    return primal.widened(wide), moved.widened(wide | tangents)


def _run_back(passes: _Passes, primal: Inner, ahead: Inner) -> Inner:
    """What the backward pass of a custom_vjp does with residuals and cotangents."""
    residuals = ahead.outputs[len(primal.outputs) :]
    types = [tensor.type for tensor in (*residuals, *primal.outputs)]
    weak = [*[tensor.weak for tensor in residuals], *[False] * len(primal.outputs)]
    return run(passes.back, types, weak, widens=True)


def _keeping_wide(ahead: Inner, first: int, places: Collection[int]) -> Inner:
    """The forward pass, giving the residuals at these places, which begin behind its `first` results, in 64 bits."""
    outputs = in_64_bits([Array(tensor) for tensor in ahead.outputs], {first + place for place in places})
    return Inner(ahead.arguments, [array.tensor for array in outputs], ahead.born)


def _with_tangents(tangent: Function, flat: Flat, moving: Sequence[int]) -> Callable[..., list[Array]]:
    """The tangent function of a custom_jvp as one of leaves: results, then the tangents of floats."""

    def function(*leaves: Array) -> list[Array]:
        count = len(flat.arrays)
        moves: list[Any] = [None] * count
        for place, array in zip(moving, leaves[count:], strict=True):
            moves[place] = array
        returned = tangent(flat.arguments(leaves[:count]), flat.arguments(moves))
        result, moved = _pair(returned, "the tangent function of a custom_jvp", "tangent")
        results = [as_array(leaf, "result") for leaf in same_structure(flat.out_tree, result, "the result")]
        derivatives = [
            mnp.zeros_like(result) if value is None else fitting(value, result, "the tangent")
            for value, result in zip(same_structure(flat.out_tree, moved, "the tangent"), results, strict=True)
            if is_continuous(result.type)
        ]
        return [*results, *derivatives]

    return function


def _applied(mark: _CustomVjp | _CustomJvp, flat: Flat, captured: Sequence[Any]) -> Any:
    return tree.unflatten(flat.out_tree, mark.reapply(*flat.arrays, *[Array(tensor) for tensor in captured]))


def _pair(made: Any, what: str, second: str) -> tuple[Any, Any]:
    if not isinstance(made, tuple) or len(made) != 2:
        raise InputError(f"{what} returns a pair (result, {second})")
    return made


def _check_same(which: str, primal: Inner, other: Inner) -> None:
    for expected, got in zip(primal.outputs, other.outputs, strict=False):
        if expected.type != got.type:
            raise InputError(f"the function gives {expected.type}, its {which} function {got.type}")


def _check_closed(name: str, needs_grad: Flags) -> None:
    if any(needs_grad):
        raise InputError(
            f"a function with {name} closes over an array by which it is differentiated",
            next_step="Pass it as an argument",
        )


def _batch_of_all(inner: Inner, size: int, batched: Flags) -> Callable[..., list[Array]]:
    """The function in batches, every result of it."""

    def function(*operands: Array) -> list[Array]:
        results, flags = batch_of(inner, size, operands, batched)
        return _repeated(results, flags, size)

    return function


def _repeated(arrays: Sequence[Array], batched: Flags, size: int) -> list[Array]:
    return [array if flag else repeated(array, size) for array, flag in zip(arrays, batched, strict=False)]


def _total(array: Array, batched: bool, size: int) -> Array:
    """The sum of a cotangent over a batch."""
    return mnp.sum(array, 0) if batched else array * size
