"""Products: matmul, tensordot, vecdot, outer and einsum, all by one rule over labelled axes.

A label is a small int or a letter that names an axis.  `contract` multiplies two labelled arrays and sums over every
label that the result does not keep; it is the only place that makes a `dot`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from wire.errors import InputError, ShapeError
from wire.ir.dtypes import BOOL, I32

from ..core.array import Array, Operand, apply
from ..util.annotation_checks import checked, text
from ..util.argument_checks import items, native, value_text
from ..util.units import counted
from . import complexes, elementwise, manipulation
from .promotion import asarray, cast, operands
from .reductions import normal_axis

Labels = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class Labelled:
    """An array and the label of each of its axes; no label stands twice."""

    array: Array
    labels: Labels

    def dim(self, label: Hashable) -> int:
        return self.array.shape[self.labels.index(label)] if label in self.labels else 1


def matmul(x1: Operand, x2: Operand) -> Array:
    """The matrix product of the last two axes, the others broadcast; a 1-d operand is a row or a column."""
    left, right = operands(x1, x2)
    if not left.ndim or not right.ndim:
        raise ShapeError(f"matmul needs arrays of one dimension or more, got {left.shape} and {right.shape}")
    left_labels: Labels = (*range(-left.ndim, -2), "row", "inner") if left.ndim > 1 else ("inner",)
    right_labels: Labels = (*range(-right.ndim, -2), "inner", "col") if right.ndim > 1 else ("inner",)
    if left.shape[-1] != right.shape[-2 if right.ndim > 1 else -1]:
        raise ShapeError(f"matmul of {left.shape} and {right.shape}: the inner dimensions differ")
    order = (*range(-max(left.ndim, right.ndim), -2), "row", "col")
    kept = tuple([label for label in order if label in left_labels or label in right_labels])
    return _as_bool_if(left, contract(Labelled(left, left_labels), Labelled(right, right_labels), kept))


def vecdot(x1: Operand, x2: Operand, *, axis: int = -1) -> Array:
    """The sum of products along `axis`, x1 conjugated where it is complex; the other axes broadcast."""
    left, right = operands(x1, x2)
    moved = [manipulation.moveaxis(array, axis, -1) for array in (complexes.conj(left), right)]
    if moved[0].shape[-1] != moved[1].shape[-1]:
        raise ShapeError(f"vecdot of {left.shape} and {right.shape}: axis {axis} differs")
    rank = max(left.ndim, right.ndim)
    first, second = (Labelled(array, tuple(range(rank - array.ndim, rank))) for array in moved)
    return _as_bool_if(left, contract(first, second, tuple(range(rank - 1))))


def tensordot(x1: Operand, x2: Operand, axes: int | Sequence[Sequence[int]] = 2) -> Array:
    """Products summed over the last `axes` axes of x1 and the first of x2, or over two given lists of axes."""
    left, right = operands(x1, x2)
    axes = native(axes)
    if isinstance(axes, int):
        axes = (range(left.ndim - axes, left.ndim), range(axes))
    pair = items(axes, "as axes of tensordot an int or")
    if len(pair) != 2:
        raise InputError(f"the axes of tensordot are an int, or two lists, one for each array, not {value_text(axes)}")
    left_axes, right_axes = (
        [normal_axis(axis, array.ndim) for axis in (side if isinstance(side, Iterable) else [side])]
        for side, array in zip(pair, (left, right), strict=True)
    )
    if [left.shape[axis] for axis in left_axes] != [right.shape[axis] for axis in right_axes]:
        raise ShapeError(f"tensordot of {left.shape} and {right.shape} over {left_axes} and {right_axes}: they differ")
    left_labels: Labels = tuple(range(left.ndim))
    joined = dict(zip(right_axes, left_axes, strict=True))
    right_labels: Labels = tuple([joined.get(axis, left.ndim + axis) for axis in range(right.ndim)])
    kept = [label for label in left_labels if label not in left_axes]
    kept += [label for axis, label in enumerate(right_labels) if axis not in joined]
    return _as_bool_if(left, contract(Labelled(left, left_labels), Labelled(right, right_labels), tuple(kept)))


def outer(x1: Operand, x2: Operand) -> Array:
    """The products of every element of x1 with every element of x2, both flattened."""
    left, right = (manipulation.ravel(array) for array in operands(x1, x2))
    return elementwise.multiply(manipulation.expand_dims(left, 1), right)


@checked
def diagonal(x: Operand, offset: int = 0) -> Array:
    """Diagonal `offset` of the last two axes, as the last axis."""
    array = asarray(x)
    if array.ndim < 2:
        raise ShapeError(f"a diagonal needs two dimensions or more, got shape {array.shape}")
    rows, cols = array.shape[-2:]
    count = max(min(rows, cols - offset) if offset >= 0 else min(rows + offset, cols), 0)
    flat = manipulation.reshape(array, (*array.shape[:-2], rows * cols))
    first = offset if offset >= 0 else -offset * cols
    if count == 0:
        return flat[..., :0]
    return flat[..., first : first + (count - 1) * (cols + 1) + 1 : cols + 1]


# -- einsum -----------------------------------------------------------------------------------------------


def einsum(subscripts: str, *arrays: Operand) -> Array:
    """Einstein's sum: "ij,jk->ik", "...ij->...ji", "ii", "bhqd,bhkd->bhqk"; without "->" labels standing once are kept.

    Several operands are multiplied pairwise, the pair with the smallest product first.
    """
    if not isinstance(subscripts, str):
        raise InputError(f"einsum takes subscripts first, such as 'ij,jk->ik', not {value_text(subscripts)}")
    tensors = operands(*arrays)
    terms, kept = _parse(subscripts, tensors)
    pending = [_diagonals(array, labels) for array, labels in zip(tensors, terms, strict=True)]
    for label in {label for term in pending for label in term.labels}:
        dims = {term.dim(label) for term in pending if label in term.labels} - {1}
        if len(dims) > 1:
            raise ShapeError(f"einsum {subscripts!r}: {label!r} has the dimensions {sorted(dims)}")
    while len(pending) > 1:
        first, second = min(combinations(pending, 2), key=lambda pair: _product_size(pair, pending, kept))
        others = [term for term in pending if term is not first and term is not second]
        labels = _still_needed(first, second, others, kept)
        pending = [*others, Labelled(contract(first, second, labels), labels)]
    return _as_bool_if(tensors[0], _arranged(_summed(pending[0], kept), kept))


def _parse(subscripts: str, arrays: Sequence[Array]) -> tuple[list[Labels], Labels]:
    text(subscripts, "the first argument of einsum")
    left, arrow, right = subscripts.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(arrays):
        raise InputError(f"einsum {subscripts!r} names {counted(len(terms), 'operand')}, got {len(arrays)}")
    labels = [_labels(term, array.ndim, subscripts) for term, array in zip(terms, arrays, strict=True)]
    dots = max((sum(isinstance(label, int) for label in term) for term in labels), default=0)
    ellipsis: Labels = tuple(range(-dots, 0))
    if arrow:
        kept = _expanded(right, ellipsis, subscripts)
    else:
        letters = left.replace(".", "").replace(",", "")
        kept = (*ellipsis, *sorted(letter for letter in set(letters) if letters.count(letter) == 1))
    unknown = [label for label in kept if not any(label in term for term in labels)]
    if unknown or len(set(kept)) != len(kept):
        raise InputError(f"einsum {subscripts!r}: the result's labels must stand in an operand, each once")
    return labels, kept


def _labels(term: str, ndim: int, subscripts: str) -> Labels:
    letters = len(term.replace("...", ""))
    if ("..." in term and letters > ndim) or ("..." not in term and letters != ndim):
        raise ShapeError(f"einsum {subscripts!r}: {term!r} does not name the {ndim} dimensions of its operand")
    return _expanded(term, tuple(range(letters - ndim, 0)), subscripts)


def _expanded(term: str, ellipsis: Labels, subscripts: str) -> Labels:
    before, dots, after = term.partition("...")
    if not (before + after).isalpha() and before + after:
        raise InputError(f"einsum {subscripts!r}: {term!r} has something other than letters and one '...'")
    return (*before, *(ellipsis if dots else ()), *after)


def _diagonals(array: Array, labels: Labels) -> Labelled:
    """The array with every label once: repeated ones become their diagonal."""
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            if array.shape[first] != array.shape[second]:
                raise ShapeError(f"einsum: {label!r} has the dimensions {array.shape[first]} and {array.shape[second]}")
            array = diagonal(manipulation.moveaxis(array, (first, second), (-2, -1)))
            labels = (*[other for place, other in enumerate(labels) if place not in (first, second)], label)
    return Labelled(array, labels)


def _still_needed(first: Labelled, second: Labelled, others: Sequence[Labelled], kept: Labels) -> Labels:
    needed = {*kept, *[label for term in others for label in term.labels]}
    return tuple([label for label in dict.fromkeys((*first.labels, *second.labels)) if label in needed])


def _product_size(pair: tuple[Labelled, Labelled], pending: Sequence[Labelled], kept: Labels) -> int:
    first, second = pair
    labels = _still_needed(first, second, [term for term in pending if term is not first and term is not second], kept)
    return math.prod([max(first.dim(label), second.dim(label)) for label in labels])


# -- the one rule -----------------------------------------------------------------------------------------


def contract(left: Labelled, right: Labelled, kept: Labels) -> Array:
    """The product of two arrays over equal labels, summed over labels not in `kept`, with axes in the order of `kept`.

    A dimension of 1 broadcasts against any other under the same label.
    """
    if left.array.type.dtype is BOOL:
        left, right = Labelled(cast(left.array, I32), left.labels), Labelled(cast(right.array, I32), right.labels)
    left, right = _untransposed(left), _untransposed(right)
    left, right = _without_ones(left, right), _without_ones(right, left)
    left = _summed(left, (*kept, *right.labels))
    right = _summed(right, (*kept, *left.labels))
    shared = [label for label in left.labels if label in right.labels]
    batch = [label for label in shared if label in kept]
    summed = [label for label in shared if label not in kept]
    if not summed:
        return apply("mul", _aligned(left, kept), _aligned(right, kept))
    product = apply(
        "dot",
        left.array,
        right.array,
        lhs_batch=_places(left, batch),
        rhs_batch=_places(right, batch),
        lhs_contract=_places(left, summed),
        rhs_contract=_places(right, summed),
    )
    free = [label for side in (left, right) for label in side.labels if label not in shared]
    return _arranged(Labelled(product, (*batch, *free)), kept)


def _places(term: Labelled, labels: Sequence[Hashable]) -> tuple[int, ...]:
    return tuple([term.labels.index(label) for label in labels])


def _untransposed(term: Labelled) -> Labelled:
    """The term before its matrices were transposed: a product by x.T reads x as it lies, since labels name the axes."""
    expression, rank = term.array.tensor.expression, term.array.ndim
    swapped = (*range(rank - 2), rank - 1, rank - 2)
    if expression is None or expression.op != "transpose" or expression.attrs["perm"] != swapped:
        return term
    return Labelled(Array(expression.inputs[0]), (*term.labels[:-2], term.labels[-1], term.labels[-2]))


def _without_ones(term: Labelled, other: Labelled) -> Labelled:
    """The term without dimensions of 1 that the other has larger: they would only broadcast."""
    gone = [label for label in term.labels if term.dim(label) == 1 and label in other.labels and other.dim(label) != 1]
    if not gone:
        return term
    return Labelled(
        manipulation.squeeze(term.array, _places(term, gone)),
        tuple([label for label in term.labels if label not in gone]),
    )


def _summed(term: Labelled, kept: Labels) -> Labelled:
    gone = [label for label in term.labels if label not in kept]
    if not gone:
        return term
    array = cast(term.array, I32) if term.array.type.dtype is BOOL else term.array
    axes = tuple(sorted(_places(term, gone)))
    return Labelled(apply("reduce_sum", array, axes=axes), tuple([label for label in term.labels if label in kept]))


def _arranged(term: Labelled, kept: Labels) -> Array:
    """The array with its axes in the order of `kept`."""
    return manipulation.permute_dims(term.array, _places(term, kept))


def _aligned(term: Labelled, kept: Labels) -> Array:
    """The array with its axes in the order of `kept`, a dimension of 1 for each label it does not have."""
    present = tuple([label for label in kept if label in term.labels])
    return manipulation.reshape(_arranged(term, present), [term.dim(label) for label in kept])


def _as_bool_if(operand: Array, result: Array) -> Array:
    return cast(result, BOOL) if operand.type.dtype is BOOL else result
