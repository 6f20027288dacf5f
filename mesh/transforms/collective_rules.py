"""Rules of collectives and of spmd: what ranks compute together, differentiated and in batches.

Within a body, derivatives are those of all ranks' programs together: a cotangent of a value on one rank is how the sum
over ranks of everything behind it depends on that value there.  So a collective, a linear map between the values of a
group, is pulled through by its transpose: a sum by a sum, a gathering by a scattered sum, a permutation by its inverse,
a broadcast by a sum at its root.  Nothing else is needed to be right, whatever the ranks hold.

An spmd node reads a result that its spec leaves whole from one of its ranks, all of which have it: so each gets an n-th
of the cotangent.  An operand that is whole is read by all of them: its cotangent is the sum over these.

Where all ranks of a group surely hold the same (`wire/passes/replication.py`), a sum over it is a product with its
size: of the n-ths above, what they were parts of.  So the transpose of a reduction moves nothing where its result was
used alike on all ranks, which is JAX's rule for what does not vary.  `differs` finds it out for what a backward pass
makes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from wire.ir.dtypes import I32
from wire.ir.graph import WireGraph
from wire.ir.grids import Axes, Sizes, local_shape, spec_of, spec_text
from wire.ir.ops import COLLECTIVES
from wire.ir.types import TensorType
from wire.passes.replication import NOWHERE, Over, through

from .. import numpy as mnp
from ..core.array import Array, apply, literal
from ..core.expression import Tensor, traced_argument
from ..core.multi_output import several
from ..numpy.promotion import cast, like
from .elementwise_rules import choose, zero_like
from .op_expansions import product
from .region_helpers import Maybe, function_of, function_of_some, is_smooth, types_of
from .step_list import Inner, captured_by, is_of_constants, run

Transform = Callable[..., Any]
Group = dict[str, tuple[Any, ...]]


# -- what differs -----------------------------------------------------------------------------------------

_DIFFERS: WeakKeyDictionary[Tensor, Over] = WeakKeyDictionary()


def differs(array: Array) -> Over | None:
    """The axes over which a value may differ from rank to rank; None where nothing is known of what it is made of."""
    stack = [array.tensor]
    while stack:
        tensor = stack[-1]
        expression = tensor.expression
        if tensor in _DIFFERS or tensor.value is not None or expression is None:
            stack.pop()
            continue
        if traced_argument(tensor) is not None:
            return None
        waiting = [operand for operand in expression.needs if operand not in _DIFFERS and operand.value is None]
        if waiting:
            stack.extend(waiting)
            continue
        operands = [_DIFFERS.get(operand, NOWHERE) for operand in expression.needs]
        whole = expression.stands_for is not None
        _DIFFERS[tensor] = operands[0] if whole else through(expression.op, expression.attrs, operands)
        stack.pop()
    return _DIFFERS.get(array.tensor, NOWHERE)


def _given(arrays: Sequence[Array], overs: Sequence[Over]) -> None:
    for array, over in zip(arrays, overs, strict=True):
        _DIFFERS[array.tensor] = over


_OF_RANKS: WeakKeyDictionary[Tensor, bool] = WeakKeyDictionary()


def is_of_ranks(tensor: Tensor) -> bool:
    """Whether a collective is in what a Tensor is made of: it exists in the body of a node only, and is made again
    where another body refers to it."""
    stack = [tensor]
    while stack:
        node = stack[-1]
        expression = node.expression
        if node in _OF_RANKS or node.value is not None or expression is None:
            stack.pop()
        elif expression.op in COLLECTIVES:
            _OF_RANKS[stack.pop()] = True
        elif waiting := [operand for operand in expression.needs if operand not in _OF_RANKS and operand.value is None]:
            stack.extend(waiting)
        else:
            _OF_RANKS[stack.pop()] = any(_OF_RANKS.get(operand, False) for operand in expression.needs)
    return _OF_RANKS.get(tensor, False)


def is_made_again(tensor: Tensor) -> bool:
    """Whether a body of ranks that refers to a Tensor has it computed by each rank, and is not given it."""
    return is_of_ranks(tensor) or is_of_constants(tensor)


def summed(array: Array, axes: Axes, sizes: Sizes) -> Array:
    """The sum over the ranks of a group."""
    over = differs(array)
    apart = [(axis, size) for axis, size in zip(axes, sizes, strict=True) if over is None or axis in over]
    copies = math.prod(sizes) // math.prod(size for _, size in apart)
    total = array if copies == 1 else array * like(copies, array)
    if not apart:
        return total
    names, counts = zip(*apart, strict=True)
    return apply("all_reduce", total, axes=names, sizes=counts, reduction="sum")


def _scattered_sum(array: Array, axis: int, axes: Axes, sizes: Sizes) -> Array:
    """This rank's block of the sum over the ranks of a group."""
    over = differs(array)
    if over is None or over & set(axes):
        return apply("reduce_scatter", array, axes=axes, sizes=sizes, axis=axis, reduction="sum")
    ranks = math.prod(sizes)
    rows = array.shape[axis] // ranks
    starts = [literal(0, I32) for _ in range(array.ndim)]
    starts[axis] = apply("axis_index", axes=axes, sizes=sizes) * rows
    shape = (*array.shape[:axis], rows, *array.shape[axis + 1 :])
    own = apply("dynamic_slice", array, mnp.stack(starts), sizes=shape)
    return own * like(ranks, own)


# -- collectives ------------------------------------------------------------------------------------------


def _stacked(x: Array, axes: Axes, sizes: Sizes) -> Array:
    """The group's values as rows."""
    return apply("all_gather", mnp.expand_dims(x, axis=0), axes=axes, sizes=sizes, axis=0)


def _sent_rows(x: Array, axis: int, axes: Axes, sizes: Sizes) -> Array:
    """A row for each rank of the group: what it has of this rank's block."""
    ranks = math.prod(sizes)
    blocks = mnp.reshape(x, (*x.shape[:axis], ranks, x.shape[axis] // ranks, *x.shape[axis + 1 :]))
    rows = mnp.moveaxis(blocks, axis, 0)
    return apply("all_to_all", rows, axes=axes, sizes=sizes, split_axis=0, concat_axis=0)


def reduced_program(_: Array, axes: Axes, sizes: Sizes, reduction: str) -> Callable[[Array], Array]:
    """all_reduce as a reduction of gathered rows."""
    return lambda x: _of_rows(_stacked(x, axes, sizes), reduction)


def scattered_program(_: Array, axes: Axes, sizes: Sizes, axis: int, reduction: str) -> Callable[[Array], Array]:
    """reduce_scatter as a reduction of rows that were sent."""
    return lambda x: _of_rows(_sent_rows(x, axis, axes, sizes), reduction)


def _of_rows(rows: Array, reduction: str) -> Array:
    return product(rows, (0,))(rows) if reduction == "prod" else apply(f"reduce_{reduction}", rows, axes=(0,))


def all_reduce_vjp(by_program: Any, g: Array, z: Array, x: Array, **attrs: Any) -> Array:
    """A sum of the cotangents; of an extreme the share of who attains it; of a product that of the program."""
    group: Any = {"axes": attrs["axes"], "sizes": attrs["sizes"]}
    if attrs["reduction"] == "sum":
        return summed(g, **group)
    if attrs["reduction"] == "prod":
        cotangent: Array = by_program(g, z, x, **attrs)
        return cotangent
    chosen = mnp.equal(x, z)
    count = summed(cast(chosen, x.type.dtype), **group)
    return choose(chosen, summed(g, **group) / count, zero_like(g))


def all_reduce_jvp(by_program: Any, z: Array, tangents: Maybe, operands: Sequence[Array], **attrs: Any,
                   ) -> Array | None:  # fmt: skip
    """The reduction of tangents; that of an extreme is the mean of those that attain it."""
    (x,), (tangent,) = operands, tangents
    assert tangent is not None
    group: Any = {"axes": attrs["axes"], "sizes": attrs["sizes"]}
    if attrs["reduction"] == "sum":
        return summed(tangent, **group)
    if attrs["reduction"] == "prod":
        moved: Array | None = by_program(z, tangents, operands, **attrs)
        return moved
    chosen = mnp.equal(x, z)
    total = summed(choose(chosen, tangent, zero_like(tangent)), **group)
    return total / summed(cast(chosen, x.type.dtype), **group)


def all_gather_vjp(g: Array, z: Array, x: Array, axis: int, **group: Any) -> Array:
    return _scattered_sum(g, axis, **group)


def reduce_scatter_vjp(by_program: Any, g: Array, z: Array, x: Array, **attrs: Any) -> Array:
    if attrs["reduction"] == "sum":
        return apply("all_gather", g, axes=attrs["axes"], sizes=attrs["sizes"], axis=attrs["axis"])
    cotangent: Array = by_program(g, z, x, **attrs)
    return cotangent


def reduce_scatter_jvp(by_program: Any, z: Array, tangents: Maybe, operands: Sequence[Array],
                       **attrs: Any) -> Array | None:  # fmt: skip
    if attrs["reduction"] != "sum":
        tangent: Array | None = by_program(z, tangents, operands, **attrs)
        return tangent
    assert tangents[0] is not None
    return apply("reduce_scatter", tangents[0], **attrs)


def all_to_all_vjp(g: Array, z: Array, x: Array, split_axis: int, concat_axis: int, **group: Any) -> Array:
    return apply("all_to_all", g, split_axis=concat_axis, concat_axis=split_axis, **group)


def permute_vjp(g: Array, z: Array, x: Array, pairs: tuple[int, ...], **group: Any) -> Array:
    back = tuple([rank for pair in zip(pairs[1::2], pairs[::2], strict=True) for rank in pair])
    return apply("permute", g, pairs=back, **group)


def broadcast_from_vjp(g: Array, z: Array, x: Array, root: int, **group: Any) -> Array:
    at_root = mnp.equal(apply("axis_index", **group), root)
    return choose(at_root, summed(g, **group), zero_like(g))


def batched(op: str, *along: str) -> Callable[..., Array]:
    """A collective of a batch: its axes lie one further."""

    def rule(size: int, inputs: Sequence[Array], flags: Sequence[bool], **attrs: Any) -> Array:
        return apply(op, *inputs, **{**attrs, **{name: attrs[name] + 1 for name in along}})

    return rule


# -- spmd -------------------------------------------------------------------------------------------------


class _Grid:
    """The axes of a node and the specs of its operands and results."""

    def __init__(self, types: Sequence[TensorType], attrs: dict[str, Any]) -> None:
        self.axes, self.sizes = attrs["axes"], attrs["sizes"]
        self.body: WireGraph = attrs["body"]
        self.in_specs, self.out_specs = list(attrs["in_specs"]), list(attrs["out_specs"])
        self.types = [
            TensorType(local_shape(kind.shape, spec_of(spec), self.axes, self.sizes), kind.dtype)
            for kind, spec in zip(types, self.in_specs, strict=True)
        ]

    def over(self, spec: str) -> Over:
        """The axes that a spec names."""
        return frozenset(axis for dim in spec_of(spec) for axis in dim)

    def whole(self, spec: str) -> Group:
        """The axes that a spec does not name, along which there are copies."""
        axes = [(axis, size) for axis, size in zip(self.axes, self.sizes, strict=True) if axis not in self.over(spec)]
        return {"axes": tuple([axis for axis, _ in axes]), "sizes": tuple([size for _, size in axes])}

    def copies(self, spec: str) -> int:
        return math.prod(self.whole(spec)["sizes"])

    def run(self, fn: Callable[..., Sequence[Array]], types: Sequence[TensorType], specs: Sequence[str]) -> Inner:
        """A function of a rank on blocks with these specs."""

        def known(*arrays: Array) -> Sequence[Array]:
            _given(arrays, [self.over(spec) for spec in specs])
            return fn(*arrays)

        return run(known, types)

    def node(
        self, inner: Inner, operands: Sequence[Array], in_specs: Sequence[str], out_specs: Sequence[str]
    ) -> list[Array]:
        """The results of an spmd node; what its function refers to besides is the same on all ranks."""
        captured = captured_by(inner, again=is_made_again)
        outside = [Array(tensor) for tensor in captured]
        return several(
            "spmd",
            [*operands, *outside],
            body=inner.taking(captured).graph(),
            axes=self.axes,
            sizes=self.sizes,
            in_specs=(*in_specs, *[spec_text(((),) * array.ndim) for array in outside]),
            out_specs=tuple(out_specs),
        )


def spmd_jvp(forward: Transform, inputs: list[Array], tangents: Maybe, **attrs: Any) -> Any:
    """Every rank's values with their tangents."""
    grid = _Grid([array.type for array in inputs], attrs)
    moving = [place for place, tangent in enumerate(tangents) if tangent is not None]
    moved: list[int] = []

    def both(*arrays: Array) -> list[Array]:
        own, by_place = arrays[: len(inputs)], dict(zip(moving, arrays[len(inputs) :], strict=True))
        outputs, moves = forward(function_of(grid.body), own, [by_place.get(place) for place in range(len(inputs))])
        moved[:] = [place for place, tangent in enumerate(moves) if tangent is not None]
        return [*outputs, *[tangent for tangent in moves if tangent is not None]]

    specs = [*grid.in_specs, *[grid.in_specs[place] for place in moving]]
    inner = grid.run(both, [*grid.types, *[grid.types[place] for place in moving]], specs)
    tangents_present = [tangent for tangent in tangents if tangent is not None]
    results = grid.node(
        inner, [*inputs, *tangents_present], specs, [*grid.out_specs, *[grid.out_specs[at] for at in moved]]
    )
    count = len(grid.out_specs)
    moved_by_place = dict(zip(moved, results[count:], strict=True))
    return results[:count], [moved_by_place.get(place) for place in range(count)]


def spmd_vmap(batch: Transform, size: int, inputs: list[Array], flags: Sequence[bool], **attrs: Any) -> Any:
    """Every rank's batch; what is mapped over is whole on each."""
    plain = [array.type._replace(shape=array.shape[1:]) if flag else array.type
             for array, flag in zip(inputs, flags, strict=True)]  # fmt: skip
    grid = _Grid(plain, attrs)
    marks: list[bool] = []

    def rows(*arrays: Array) -> list[Array]:
        results, marks[:] = batch(function_of(grid.body), size, arrays, flags)
        return list(results)

    specs = [_ahead(spec) if flag else spec for spec, flag in zip(grid.in_specs, flags, strict=True)]
    types = [kind._replace(shape=(size, *kind.shape)) if flag else kind
             for kind, flag in zip(grid.types, flags, strict=True)]  # fmt: skip
    inner = grid.run(rows, types, specs)
    out_specs = [_ahead(spec) if flag else spec for spec, flag in zip(grid.out_specs, marks, strict=True)]
    return grid.node(inner, inputs, specs, out_specs), marks


def _ahead(spec: str) -> str:
    """A partition with one more dimension in front, which is whole."""
    return spec_text(((), *spec_of(spec)))


def spmd_vjp(backward: Transform, inputs: list[Array], needs_grad: list[bool], **attrs: Any) -> Any:
    """A node whose ranks keep what their backward pass needs, and one of their backward passes over that."""
    reverse = _Reverse(backward, _Grid([array.type for array in inputs], attrs), inputs, needs_grad)
    results = reverse.forward_node()
    count = len(reverse.grid.out_specs)
    return results[:count], lambda cotangents: reverse.backward_node(results, cotangents)


class _Reverse:
    """A body and its backward pass, each run on fresh blocks."""

    def __init__(self, backward: Transform, grid: _Grid, inputs: list[Array], needs_grad: list[bool]) -> None:
        self.grid, self.inputs = grid, inputs
        self.chosen = [place for place, want in enumerate(needs_grad) if want and is_smooth(inputs[place].type)]

        def ahead(*arrays: Array) -> list[Array]:
            own = list(arrays)
            results, self._pull = backward(
                function_of_some(grid.body, own, self.chosen), [own[at] for at in self.chosen]
            )
            return list(results)

        self.ahead = grid.run(ahead, grid.types, grid.in_specs)
        self._sort_residuals([at for at, kind in enumerate(types_of(grid.body)) if is_smooth(kind)])

    def _back(self, where: Sequence[int]) -> tuple[Inner, list[int]]:
        """The backward pass from the cotangents of some results, and of which operands it gives any."""
        grid, outputs = self.grid, types_of(self.grid.body)
        reached: list[int] = []

        def back(*arrays: Array) -> list[Array]:
            shares = {at: self._share(array, grid.out_specs[at]) for at, array in zip(where, arrays, strict=True)}
            pulled = dict(zip(self.chosen, self._pull([shares.get(at) for at in range(len(outputs))]), strict=True))
            reached[:] = [at for at, cotangent in pulled.items() if cotangent is not None]
            return [
                self._total(cotangent, grid.in_specs[at]) for at, cotangent in pulled.items() if cotangent is not None
            ]

        return grid.run(back, [outputs[at] for at in where], [grid.out_specs[at] for at in where]), reached

    def _share(self, array: Array, spec: str) -> Array:
        """What a rank gets of the cotangent of a result that all copies have."""
        copies = self.grid.copies(spec)
        return array if copies == 1 else array / like(copies, array)

    def _total(self, array: Array, spec: str) -> Array:
        """The cotangent of an operand, of those of its copies."""
        return array if self.grid.copies(spec) == 1 else summed(array, **self.grid.whole(spec))

    def _sort_residuals(self, where: Sequence[int]) -> None:
        """What the backward pass takes of the forward one at most: operands, and what the ranks must keep."""
        place = {id(tensor): at for at, tensor in enumerate(self.ahead.arguments)}
        residuals = captured_by(self._back(where)[0])
        whole = Inner(self.ahead.arguments, [*self.ahead.outputs, *residuals], self.ahead.born)
        computed = {id(tensor) for step in whole.steps for _, tensor in step.outputs}
        self.again = [(tensor, place[id(tensor)]) for tensor in residuals if id(tensor) in place]
        self.kept = [tensor for tensor in residuals if id(tensor) in computed]
        self.kept_specs = [self._spec_of(tensor) for tensor in self.kept]

    def _spec_of(self, tensor: Tensor) -> str:
        """Blocks of what ranks keep stand below each other, one for each that may differ."""
        over = differs(Array(tensor))
        names = tuple([axis for axis in self.grid.axes if over is None or axis in over])
        return spec_text((names, *[()] * (max(len(tensor.type.shape), 1) - 1)))

    def forward_node(self) -> list[Array]:
        """The results, then what is kept."""
        rows = [mnp.reshape(Array(tensor), _row(tensor.type).shape) for tensor in self.kept]
        outputs = [*self.ahead.outputs, *[row.tensor for row in rows]]
        inner = Inner(self.ahead.arguments, outputs, self.ahead.born)
        return self.grid.node(inner, self.inputs, self.grid.in_specs, [*self.grid.out_specs, *self.kept_specs])

    def backward_node(self, results: list[Array], cotangents: Maybe) -> list[Array | None]:
        grid, count = self.grid, len(self.grid.out_specs)
        present = {at: cotangent for at, cotangent in enumerate(cotangents) if cotangent is not None}
        own, reached = self._back(list(present))
        if not reached:
            return [None] * len(self.inputs)
        again = [(tensor, self.inputs[at], grid.in_specs[at]) for tensor, at in self.again]
        arguments = [*own.arguments, *self.kept, *[tensor for tensor, _, _ in again]]
        whole = Inner(arguments, own.outputs, own.born)
        types = [tensor.type for tensor in arguments]
        rows = slice(len(present), len(present) + len(self.kept))
        types[rows] = [_row(kind) for kind in types[rows]]
        specs = [*[grid.out_specs[at] for at in present], *self.kept_specs, *[spec for _, _, spec in again]]

        def back(*arrays: Array) -> list[Array]:
            pairs = zip(arrays, arguments, strict=True)
            return whole.call(*[mnp.reshape(array, tensor.type.shape) for array, tensor in pairs])

        operands = [*present.values(), *results[count:], *[operand for _, operand, _ in again]]
        inner = grid.run(back, types, specs)
        by_place = dict(
            zip(reached, grid.node(inner, operands, specs, [grid.in_specs[at] for at in reached]), strict=True)
        )
        return [by_place.get(place) for place in range(len(self.inputs))]


def _row(kind: TensorType) -> TensorType:
    """A type that has a dimension at least."""
    return kind._replace(shape=kind.shape or (1,))
