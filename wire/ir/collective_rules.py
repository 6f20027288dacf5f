"""Shape and dtype rules of collectives, and of programs whose ranks exchange by them.

As in `rules.py`, a rule's name and docstring are what others see of it.
"""

from __future__ import annotations

import math
from typing import Any

from ..errors import AttrError, DTypeError, ShapeError
from .control_rules import check_body, output_of, results_of
from .dtypes import I32, DType
from .grids import Axes, Sizes, check_axes, check_spec, local_shape, spec_of
from .grids import whole_shape as joined_shape
from .rules import Types, axis_of
from .types import Attrs, TensorType

REDUCTIONS = {"sum": "iufc", "prod": "iufc", "max": "biuf", "min": "biuf", "and": "biu", "or": "biu"}


def combined(attrs: Attrs, types: Types) -> DType:
    """The operand's dtype: a number for the reductions `sum` and `prod`, not complex for `max` and `min`, bool or an
    integer for `and` and `or`."""
    kinds = REDUCTIONS.get(attrs["reduction"])
    if kinds is None:
        raise AttrError(f"the reduction {attrs['reduction']!r} is not known: {', '.join(REDUCTIONS)}")
    dtype = types[0].dtype
    if dtype.kind not in kinds:
        raise DTypeError(f"the reduction {attrs['reduction']!r} does not take {dtype.name}")
    return dtype


def reduced_over_ranks(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """The operand's shape."""
    _ranks(attrs)
    return types[0].shape


def gathered_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """The operand's shape, with the axis multiplied by the number of ranks."""
    shape, axis = types[0].shape, axis_of(attrs["axis"], len(types[0].shape))
    return (*shape[:axis], shape[axis] * _ranks(attrs), *shape[axis + 1 :])


def scattered_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """The operand's shape, with the axis divided by the number of ranks."""
    shape, axis = types[0].shape, axis_of(attrs["axis"], len(types[0].shape))
    return (*shape[:axis], _divided(shape, axis, _ranks(attrs)), *shape[axis + 1 :])


def exchanged_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """The operand's shape, with `split_axis` divided and `concat_axis` multiplied by the number of ranks."""
    shape, ranks = list(types[0].shape), _ranks(attrs)
    split, joined = (axis_of(attrs[name], len(shape)) for name in ("split_axis", "concat_axis"))
    shape[split] = _divided(types[0].shape, split, ranks)
    shape[joined] *= ranks
    return tuple(shape)


def permuted_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """The operand's shape; `pairs` lists a sender and a receiver in turn, each rank at most once as either."""
    ranks, pairs = _ranks(attrs), attrs["pairs"]
    if len(pairs) % 2 or any(not 0 <= rank < ranks for rank in pairs):
        raise AttrError(f"pairs are source and destination in turn, of {ranks} ranks, got {pairs}")
    for what, ranks_named in (("sends", pairs[::2]), ("receives", pairs[1::2])):
        if len(set(ranks_named)) != len(ranks_named):
            twice = next(rank for place, rank in enumerate(ranks_named) if rank in ranks_named[:place])
            raise AttrError(f"rank {twice} {what} twice in the pairs {pairs}")
    return types[0].shape


def from_root_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """The operand's shape; `root` is one of the ranks."""
    if not 0 <= attrs["root"] < _ranks(attrs):
        raise AttrError(f"the root {attrs['root']} is none of {_ranks(attrs)} ranks")
    return types[0].shape


def number_dtype(attrs: Attrs, types: Types) -> DType:
    """i32."""
    return I32


def number_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """A scalar: the rank's number in its group."""
    _ranks(attrs)
    return ()


def whole_dtype(attrs: Attrs, types: Types) -> DType:
    """The dtype of output `output` of the body."""
    return _spmd_type(attrs, types).dtype


def whole_shape(attrs: Attrs, types: Types) -> tuple[int, ...]:
    """The shape of output `output` of the body, multiplied by the axes that its spec names; the inputs of the
    body are blocks of the operands."""
    return _spmd_type(attrs, types).shape


def _spmd_type(attrs: Attrs, types: Types) -> TensorType:
    body, axes, sizes = attrs["body"], attrs["axes"], attrs["sizes"]
    check_axes(axes, sizes)
    for what, specs, count in (("operands", "in_specs", len(types)), ("results", "out_specs", len(body.outputs))):
        if len(attrs[specs]) != count:
            raise AttrError(f"spmd has {count} {what} and {len(attrs[specs])} {specs}")
    _check_blocks(body, axes, sizes, attrs["in_specs"], tuple(types))
    block, spec = output_of(attrs, results_of(body)), spec_of(attrs["out_specs"][attrs["output"]])
    check_spec(spec, len(block.shape), axes)
    return TensorType(joined_shape(block.shape, spec, axes, sizes), block.dtype)


_CHECKED = "blocks checked"  # what a body has beside its fields: for which operands it was checked last


def _check_blocks(
    body: Any, axes: Axes, sizes: Sizes, in_specs: tuple[str, ...], types: tuple[TensorType, ...]
) -> None:
    """Check that a body takes its operands' blocks.  Every result of an spmd asks that, and they stand together: of
    hundreds of operands each it would be most of the time that tracing takes."""
    asked = axes, sizes, in_specs, types
    if vars(body).get(_CHECKED) == asked:
        return
    blocks = []
    for text, kind in zip(in_specs, types, strict=True):
        check_spec(spec_of(text), len(kind.shape), axes)
        blocks.append(TensorType(local_shape(kind.shape, spec_of(text), axes, sizes), kind.dtype))
    check_body("the body of spmd", body, blocks)
    _check_inside(body, dict(zip(axes, sizes, strict=True)))
    vars(body)[_CHECKED] = asked


def _check_inside(body: Any, grid: dict[str, int]) -> None:
    """Check that the collectives of a body are over axes of its grid, and that no other grid is inside."""
    for axis, size in body.free_axes.items():
        if grid.get(axis) != size:
            has = f"it with size {grid[axis]}" if axis in grid else f"the axes {', '.join(grid)}"
            raise AttrError(f"a collective in the body is over the axis {axis!r} of size {size}; the grid has {has}")
    if body.has_spmd:
        raise AttrError("an spmd stands inside another one", next_step="Name all axes in one grid")


def _ranks(attrs: Attrs) -> int:
    """The size of a collective's group."""
    check_axes(attrs["axes"], attrs["sizes"])
    return math.prod(attrs["sizes"])


def _divided(shape: tuple[int, ...], axis: int, ranks: int) -> int:
    if shape[axis] % ranks:
        raise ShapeError(f"axis {axis} of {shape} is cut into {ranks} blocks, and {shape[axis]} is no multiple of it")
    return shape[axis] // ranks
