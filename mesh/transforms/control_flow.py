"""Control flow over graphs: cond, while_loop, fori_loop, scan and map, whose loops run on the workers.

    total, history = mesh.scan(lambda carry, x: (carry + x, carry * x), 0.0, xs)

Functions are traced once, take and give pytrees, and may use any array from outside of them.  Shapes and dtypes stay
the same from turn to turn; a Python number as a carry takes the dtype that the body gives it.  docs/control-flow.md has
the rest.  This file only builds nodes: engines run them, `transforms` differentiates and batches them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from wire.errors import InputError
from wire.ir.dtypes import BOOL, I32, DType
from wire.ir.graph import WireGraph
from wire.ir.types import TensorType

from .. import numpy as mnp
from .. import tree
from ..core.array import Array, strong
from ..core.multi_output import several
from ..numpy.promotion import asarray, cast, common_dtype, scalar
from ..numpy.promotion import operands as alike
from ..tree import PyTree, Tree
from ..util.annotation_checks import truth
from ..util.argument_checks import check_function, integer, native
from .pytree_functions import as_array, in_64_bits
from .region_helpers import row_of
from .step_list import Inner, captured_by, run

Function = Callable[..., Any]


def cond(pred: Any, then: Function, otherwise: Function, *operands: PyTree) -> PyTree:
    """Compute `then(*operands)` if `pred` is true, else `otherwise(*operands)`; the other one is not computed.

    Parameters
    ----------
    pred : bool or Array, ()
        The condition; a number is true unless it is 0.
    then : callable
        A function of the operands.
    otherwise : callable
        A function of the operands; its result has the same structure, shapes and dtypes.
    *operands : pytree of Array
        The arguments of both.

    Returns
    -------
    pytree of Array
        The result of the chosen one.

    Raises
    ------
    InputError
        If results differ in structure, shapes or dtypes, or the condition is not one value.

    Examples
    --------
    >>> import mesh
    >>> import mesh.numpy as mnp
    >>> mesh.cond(mnp.asarray(2.0) > 1, lambda x: x + 1, lambda x: x - 1, mnp.zeros(2))
    Array([1., 1.], dtype=float32)
    """
    check_function(then, "a branch of cond")
    check_function(otherwise, "a branch of cond")
    predicate = asarray(pred)
    if predicate.shape:
        raise InputError(f"cond is asked with one bool, got {predicate.type}", next_step="Reduce it: any() or all()")
    predicate = predicate if predicate.type.dtype is BOOL else mnp.not_equal(predicate, 0)
    leaves = _Leaves.of(operands, "operands")
    branches = [_Body(fn, leaves, name) for fn, name in ((then, "then"), (otherwise, "otherwise"))]
    first, second = branches
    wide = first.needed_wide | second.needed_wide
    leaves = leaves.in_64_bits(wide)
    for branch in branches:
        branch.widen(wide)
    if first.structure != second.structure:
        raise InputError(f"cond's branches give different structures: {first.structure} and {second.structure}")
    for place, path in enumerate(tree.paths(first.structure)):
        _agree(first, second, place, path)
    captured = _union([branch.captured for branch in branches])
    graphs = {branch.name: branch.graph(captured) for branch in branches}
    return first.unflatten(several("cond", [predicate, *leaves.arrays, *captured], **graphs))


def while_loop(test: Function, body: Function, init: PyTree) -> PyTree:
    """Repeat `carry = body(carry)` while `test(carry)` is true.

    There is no reverse derivative, since the number of turns is not known ahead; `scan`, and `fori_loop` between Python
    ints, have one.

    Parameters
    ----------
    test : callable
        A function of the carry, which returns one bool.
    body : callable
        A function of the carry, which returns the next carry.
    init : pytree of Array
        The first carry.

    Returns
    -------
    pytree of Array
        The last carry.

    Raises
    ------
    InputError
        If `test` does not return one bool, or the carry changes in structure, shapes or dtypes.

    Examples
    --------
    >>> import mesh
    >>> import mesh.numpy as mnp
    >>> mesh.while_loop(lambda x: x < 100, lambda x: 2 * x, mnp.asarray(3))
    Array(192, dtype=int32)
    """
    check_function(test, "the test of while_loop")
    check_function(body, "the body of while_loop")
    start = _Leaves.of(init, "init")
    structure, wide = start.structure, set[int]()
    while True:
        start = start.in_64_bits(wide)
        carry, _, turn = _carried("while_loop", lambda *leaves: body(tree.unflatten(structure, leaves)), start, [])
        asked = _Body(lambda *leaves: test(tree.unflatten(structure, leaves)), carry.flat, "test")
        wide = asked.needed_wide
        if not wide:
            break
    if asked.structure.kind is not None or asked.outputs[0].type != TensorType((), BOOL):
        actual = asked.structure if asked.structure.kind is not None else asked.outputs[0].type
        raise InputError(f"the test of while_loop gives one bool, got {actual}", next_step="Reduce it: any() or all()")
    captured = _union([turn.captured, asked.captured])
    graphs = {"test": asked.graph(captured), "body": turn.graph(captured)}
    return carry.tree_of(several("while", [*carry.arrays, *captured], **graphs))


def fori_loop(lower: Any, upper: Any, body: Function, init: PyTree) -> PyTree:
    """Repeat `carry = body(i, carry)` for i from `lower` to `upper - 1`.

    Between Python ints it is a scan, and has derivatives.  Else it is a while_loop.

    Parameters
    ----------
    lower : int or Array, ()
        The first i.
    upper : int or Array, ()
        The i before which to stop.
    body : callable
        A function of i and the carry, which returns the next carry.
    init : pytree of Array
        The first carry.

    Returns
    -------
    pytree of Array
        The last carry.

    Raises
    ------
    InputError
        If a bound is no integer, or the carry changes in structure, shapes or dtypes.

    Examples
    --------
    >>> import mesh
    >>> import mesh.numpy as mnp
    >>> mesh.fori_loop(0, 5, lambda i, total: total + i, mnp.asarray(0))
    Array(10, dtype=int32)
    """
    check_function(body, "the body of fori_loop")
    lower, upper = native(lower), native(upper)
    if isinstance(lower, int) and isinstance(upper, int):
        steps = mnp.arange(lower, max(lower, upper), dtype=_index_dtype(lower, upper))
        return scan(lambda carry, at: (body(at, carry), ()), init, steps)[0]
    first, last = asarray(lower), asarray(upper)
    for bound in (first, last):
        if bound.shape or bound.type.dtype.kind not in "iu":
            raise InputError(f"the bounds of fori_loop are integers, got {bound.type}")
    first, last = alike(first, last)
    _, result = while_loop(
        lambda state: mnp.less(state[0], last), lambda state: (state[0] + 1, body(state[0], state[1])), (first, init)
    )
    return result


def scan(f: Function, init: PyTree, xs: PyTree, length: int | None = None, reverse: bool = False) -> tuple[Any, Any]:
    """Repeat `carry, y = f(carry, x)` for every row x, and stack the y.

    Parameters
    ----------
    f : callable
        A function of the carry and a row, which returns the next carry and a y.
    init : pytree of Array
        The first carry.
    xs : pytree of Array, (n, ...), or None
        The rows; with None, x is None.
    length : int, optional
        The number of turns, if `xs` is None.
    reverse : bool, optional
        Whether to go from the last row to the first; y stands in the place of its x.

    Returns
    -------
    carry : pytree of Array
        The last carry.
    ys : pytree of Array, (n, ...)
        The y, stacked.

    Raises
    ------
    InputError
        If `f` does not return a pair, or the carry changes in structure, shapes or dtypes.

    Examples
    --------
    >>> import mesh
    >>> import mesh.numpy as mnp
    >>> mesh.scan(lambda total, x: (total + x, total), mnp.asarray(0.0), mnp.arange(4.0))
    (Array(6., dtype=float32), Array([0., 0., 1., 3.], dtype=float32))
    """
    check_function(f, "what scan repeats")
    truth(reverse, "reverse of scan")
    rows, start = _Leaves.of(xs, "xs"), _Leaves.of(init, "init")
    turns = _length(rows, length)

    def turn(*leaves: Array) -> Any:
        count = len(leaves) - len(rows.arrays)
        result = f(start.tree_of(leaves[:count]), tree.unflatten(rows.structure, leaves[count:]))
        if not isinstance(result, tuple) or len(result) != 2:
            raise InputError(f"the function of scan returns (carry, y), got {type(result).__name__}")
        return result

    carry, columns, body = _carried("scan", turn, start, rows.arrays)
    count = len(carry.arrays)
    operands = [*carry.arrays, *body.captured, *columns]
    graph = body.graph(body.captured, count)
    attrs = {"carry": count, "consts": len(body.captured), "length": turns, "reverse": int(reverse)}
    results = several("scan", operands, body=graph, **attrs)
    return carry.tree_of(results[:count]), tree.unflatten(body.structure.children[1], results[count:])


def map(f: Function, xs: PyTree) -> PyTree:
    """Apply a function to every row, one after the other; `mesh.vmap` does all at once.

    Parameters
    ----------
    f : callable
        A function of a row.
    xs : pytree of Array, (n, ...)
        The rows.

    Returns
    -------
    pytree of Array, (n, ...)
        The results, stacked.

    Raises
    ------
    InputError
        If leaves differ in their number of rows.

    Examples
    --------
    >>> import mesh
    >>> import mesh.numpy as mnp
    >>> mesh.map(lambda row: row.sum(), mnp.ones((3, 4)))
    Array([4., 4., 4.], dtype=float32)
    """
    check_function(f, "what map does with every row")
    return scan(lambda carry, x: (carry, f(x)), (), xs)[1]


# -- inner functions --------------------------------------------------------------------------------------


class _Leaves:
    """A pytree taken apart."""

    def __init__(self, arrays: Sequence[Array], structure: Tree) -> None:
        self.arrays = list(arrays)
        self.structure = structure

    @staticmethod
    def of(value: PyTree, what: str) -> _Leaves:
        """The leaves of an argument."""
        leaves, structure = tree.flatten_with_paths(value)
        return _Leaves([as_array(leaf, tree.join(what, path)) for path, leaf in leaves], structure)

    def in_64_bits(self, places: Collection[int]) -> _Leaves:
        """The leaves, with Python's numbers at these places in 64 bits."""
        return _Leaves(in_64_bits(self.arrays, places), self.structure)

    @property
    def flat(self) -> _Leaves:
        """The leaves as one argument each."""
        return _Leaves(self.arrays, tree.structure(tuple(self.arrays)))

    def tree_of(self, leaves: Sequence[Any]) -> Any:
        """What has this structure, of other leaves."""
        return tree.unflatten(self.structure, leaves)


class _Body:
    """A function that was run once on arguments like `given`, for the attribute `name` of a node."""

    def __init__(self, fn: Function, taken: _Leaves, name: str, rows: Sequence[Array] = ()) -> None:
        self.name = name
        self.structure = tree.LEAF
        types = [*[array.type for array in taken.arrays], *[row_of(array.type) for array in rows]]
        weak = [array.weak for array in (*taken.arrays, *rows)]

        def flat(*leaves: Array) -> list[Array]:
            arguments = tree.unflatten(taken.structure, leaves[: len(taken.arrays)])
            results, self.structure = tree.flatten_with_paths(fn(*arguments, *leaves[len(taken.arrays) :]))
            return [as_array(leaf, tree.join(f"the result of {name}", path)) for path, leaf in results]

        self._inner = run(flat, types, weak, widens=True)
        self.outputs = [Array(tensor) for tensor in self._inner.outputs]

    @property
    def captured(self) -> list[Array]:
        """What it uses from outside."""
        return [Array(tensor) for tensor in captured_by(self._finished())]

    @property
    def needed_wide(self) -> set[int]:
        """The places of Python's numbers that it needs in 64 bits."""
        return self._inner.needed_wide

    def widen(self, places: Collection[int]) -> None:
        """Take these in 64 bits."""
        self._inner = self._inner.widened(places)

    def graph(self, captured: Sequence[Array], at: int | None = None) -> WireGraph:
        """The graph of it, which takes `captured` too: at place `at` among the arguments, or behind them."""
        inner = self._finished()
        at = len(inner.arguments) if at is None else at
        outside = tuple([array.tensor for array in captured])
        return Inner((*inner.arguments[:at], *outside, *inner.arguments[at:]), inner.outputs, inner.born).graph()

    def unflatten(self, results: Sequence[Array]) -> Any:
        return tree.unflatten(self.structure, results)

    def _finished(self) -> Inner:
        return Inner(self._inner.arguments, [array.tensor for array in self.outputs], self._inner.born)


def _carried(op: str, fn: Function, init: _Leaves, rows: Sequence[Array]) -> tuple[_Leaves, Sequence[Array], _Body]:
    """The carry, its Python numbers in the dtypes that the body gives them, the rows, and the body."""
    carry = init
    while True:
        body = _Body(fn, carry.flat, "body", rows)
        wide, count = body.needed_wide, len(carry.arrays)
        if wide:
            carry, rows = carry.in_64_bits(wide), in_64_bits(rows, {place - count for place in wide})
            continue
        got = body.structure.children[0] if op == "scan" else body.structure
        if got != carry.structure:
            raise InputError(f"the body of {op} turns a carry {carry.structure} into {got}")
        widened = list(carry.arrays)
        for place, path in enumerate(tree.paths(carry.structure)):
            before, after = carry.arrays[place], body.outputs[place]
            if after.type == before.type:
                continue
            common = _common_dtype(before, after)
            if after.weak and common is before.type.dtype:
                body.outputs[place] = _fitted(after, common)
            elif before.weak and common is after.type.dtype:
                widened[place] = _fitted(before, common) if after.weak else strong(_fitted(before, common))
            else:
                where = path or "its only leaf"
                raise InputError(
                    f"the carry of {op} at {where!r} is {before.type}, and its body gives {after.type}",
                    next_step="Begin with an array of the type that the body gives, or convert with astype",
                )
        if all(new is old for new, old in zip(widened, carry.arrays, strict=True)):
            return carry, rows, body
        carry = _Leaves(widened, init.structure)


def _agree(first: _Body, second: _Body, place: int, path: str) -> None:
    """One dtype for what is a Python number in one branch."""
    left, right = first.outputs[place], second.outputs[place]
    if left.type == right.type:
        return
    common = _common_dtype(left, right)
    if common is not None:
        first.outputs[place], second.outputs[place] = _fitted(left, common), _fitted(right, common)
        return
    raise InputError(
        f"cond's branches differ at {path or 'their only result'!r}: {left.type} and {right.type}",
        next_step="Both must return the same shapes and dtypes; convert with astype",
    )


def _common_dtype(left: Array, right: Array) -> DType | None:
    """The dtype of both where one is a Python number at least and they have one shape.  A Python number adapts to an
    array as it does in sums: 0.5 beside integers is a float, and does not become 0."""
    if left.shape != right.shape or not (left.weak or right.weak):
        return None
    return common_dtype([left, right])[0]


def _fitted(array: Array, dtype: DType) -> Array:
    """The array in a dtype; InputError for a known Python integer that the dtype does not hold."""
    if array.weak and array.value is not None and array.value.size == 1 and dtype.kind in "iu":
        scalar(array.value.item(), dtype)
    return cast(array, dtype)


def _union(groups: Sequence[Sequence[Array]]) -> list[Array]:
    return list({id(array.tensor): array for group in groups for array in group}.values())


def _length(rows: _Leaves, length: int | None) -> int:
    lengths = {} if length is None else {integer(length, "the length of scan", 0): "length"}
    for path, array in zip(tree.paths(rows.structure), rows.arrays, strict=True):
        if not array.shape:
            raise InputError(f"scan goes over rows, and xs at {path or 'its only leaf'!r} is {array.type}")
        lengths.setdefault(array.shape[0], path)
    if len(lengths) > 1:
        raise InputError(f"scan's xs have {' and '.join(f'{count} ({path})' for count, path in lengths.items())} rows")
    if not lengths:
        raise InputError("scan without xs needs a length", next_step="Pass length=")
    return next(iter(lengths))


def _index_dtype(lower: int, upper: int) -> str:
    return I32.name if lower >= -(1 << 31) and upper < 1 << 31 else "i64"


__all__ = ["cond", "fori_loop", "map", "scan", "while_loop"]
