"""Rules of branches and loops: each is a branch or a loop again.

A rule takes the transform of functions that it needs (`backward`, `forward`, `batch`) as its first argument, so the
tables can name it.

Which carries have a tangent, or a batch, may show in a later turn only: `_settled` adds those that a turn gives to
those it got until nothing is new, which takes as many turns as there are carries at the most.

The reverse of a scan is a scan from the other end over what the first one kept: `_Reverse` runs the body's backward
pass once, sees which Tensors of the forward pass it refers to, and has the forward scan give these as further rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from wire.errors import UnknownOp
from wire.ir.graph import WireGraph
from wire.ir.types import TensorType

from .. import numpy as mnp
from ..core.array import Array, apply
from ..core.multi_output import several
from ..numpy.promotion import cast
from ..numpy.reductions import wide_dtype
from .region_helpers import (
    Maybe,
    are_known,
    either,
    filled,
    function_of,
    function_of_some,
    graphs_of,
    is_smooth,
    picked,
    put_back,
    row_of,
    split,
    spread_all,
    spread_some,
    types_of,
    zeros_unless,
)
from .step_list import Function, Inner, call_graph, captured_by, run

Transform = Callable[..., Any]


# -- cond -------------------------------------------------------------------------------------------------


def cond_vjp(backward: Transform, inputs: list[Array], needs_grad: list[bool], **attrs: WireGraph) -> Any:
    """A cond of the branches' backward passes, each of which computes its branch again."""
    predicate, *operands = inputs
    chosen = [place for place, want in enumerate(needs_grad[1:]) if want and is_smooth(operands[place].type)]
    results = several("cond", inputs, **attrs)

    def pull(cotangents: Maybe) -> list[Array | None]:
        present = [place for place, cotangent in enumerate(cotangents) if cotangent is not None]

        def of(graph: WireGraph) -> Function:
            def branch(*arrays: Array) -> list[Array]:
                own, by_result = list(arrays[: len(operands)]), dict(zip(present, arrays[len(operands) :], strict=True))
                _, pull_branch = backward(function_of_some(graph, own, chosen), [own[place] for place in chosen])
                pulled = pull_branch([by_result.get(place) for place in range(len(results))])
                return filled(pulled, [own[place] for place in chosen])

            return branch

        cotangents_present = [cotangent for cotangent in cotangents if cotangent is not None]
        by_place = dict(
            zip(
                chosen,
                _cond(predicate, [*operands, *cotangents_present], {n: of(g) for n, g in attrs.items()}),
                strict=True,
            )
        )
        return [None, *[by_place.get(place) for place in range(len(operands))]]

    return results, pull


def cond_jvp(forward: Transform, inputs: list[Array], tangents: Maybe, **attrs: WireGraph) -> Any:
    """A cond of the branches with their tangents."""
    predicate, *operands = inputs
    moving = [place for place, tangent in enumerate(tangents[1:]) if tangent is not None]
    floats = [place for place, kind in enumerate(types_of(attrs["then"])) if is_smooth(kind)]

    def of(graph: WireGraph) -> Function:
        def branch(*arrays: Array) -> list[Array]:
            own, by_place = arrays[: len(operands)], dict(zip(moving, arrays[len(operands) :], strict=True))
            outputs, moves = forward(function_of(graph), own, [by_place.get(place) for place in range(len(operands))])
            return [*outputs, *filled([moves[place] for place in floats], [outputs[place] for place in floats])]

        return branch

    tangents_present = [move for move in tangents[1:] if move is not None]
    results = _cond(predicate, [*operands, *tangents_present], {name: of(graph) for name, graph in attrs.items()})
    count = len(attrs["then"].outputs)
    moved = dict(zip(floats, results[count:], strict=True))
    return results[:count], [moved.get(place) for place in range(count)]


def cond_vmap(batch: Transform, size: int, inputs: list[Array], batched: Sequence[bool], **attrs: WireGraph) -> Any:
    """A cond of batches; where the predicate differs from element to element, both branches, and a choice of each."""
    predicate, *operands = inputs

    def of(graph: WireGraph) -> Function:
        return lambda *arrays: spread_all(size, *batch(function_of(graph), size, arrays, batched[1:]))

    branches = {name: of(graph) for name, graph in attrs.items()}
    if batched[0]:
        both = zip(branches["then"](*operands), branches["otherwise"](*operands), strict=True)
        results = [either(predicate, left, right) for left, right in both]
    else:
        results = _cond(predicate, operands, branches)
    return results, [True] * len(results)


def _cond(predicate: Array, operands: Sequence[Array], branches: dict[str, Function]) -> list[Array]:
    graphs, captured = graphs_of(branches, [array.type for array in operands])
    return several("cond", [predicate, *operands, *captured], **graphs)


# -- while ------------------------------------------------------------------------------------------------


def while_vjp(inputs: list[Array], needs_grad: list[bool], **attrs: WireGraph) -> Any:
    """The results, and an error where somebody asks for a derivative: what turns would keep has no size known ahead."""

    def pull(cotangents: Maybe) -> list[Array | None]:
        raise UnknownOp(
            "'while' has no vjp rule: how often a while_loop turns is not known before it has",
            op="while",
            next_step="Use mesh.scan, or mesh.fori_loop between Python ints, whose number of turns is fixed; or hold "
            "the derivative off with mesh.stop_gradient",
        )

    return several("while", inputs, **attrs), pull


def while_jvp(forward: Transform, inputs: list[Array], tangents: Maybe, test: WireGraph, body: WireGraph) -> Any:
    """A while over values and their tangents; only the values are asked."""
    count = len(body.outputs)
    constants = [*inputs[count:], *picked(tangents[count:], are_known(tangents[count:]))]
    still = are_known(tangents[count:])
    moves = [zeros_unless(tangent, like) for tangent, like in zip(tangents[:count], inputs, strict=False)]

    def turned(moving: list[bool]) -> Any:
        seen: list[bool] = []
        carry = [*inputs[:count], *picked(moves, moving)]

        def turn(*arrays: Array) -> list[Array]:
            own, moves_of_carry, fixed, beside = split(arrays, [count, sum(moving), len(still), sum(still)])
            outputs, moved = forward(
                function_of(body), [*own, *fixed], [*put_back(moves_of_carry, moving), *put_back(beside, still)]
            )
            seen[:] = are_known(moved)
            return [*outputs, *filled(picked(moved, moving), picked(outputs, moving))]

        return run(turn, [array.type for array in (*carry, *constants)]), seen, carry

    moving, (inner, _, carry) = _settled(are_known(tangents[:count]), turned)

    def ask(*arrays: Array) -> list[Array]:
        return call_graph(test, *arrays[:count], *arrays[len(carry) : len(carry) + len(still)])

    results = _while(run(ask, [array.type for array in (*carry, *constants)]), inner, carry, constants)
    return results[:count], put_back(results[count:], moving)


def while_vmap(
    batch: Transform, size: int, inputs: list[Array], batched: Sequence[bool], test: WireGraph, body: WireGraph
) -> Any:
    """A while of batches; where the test differs from element to element, it turns until all are done, and whoever is
    done keeps its carry."""
    count = len(body.outputs)
    constants = inputs[count:]

    def turned(flags: list[bool]) -> Any:
        every = [*flags, *batched[count:]]
        first = spread_some(size, inputs[:count], batched[:count], flags)
        seen: list[bool] = []

        def turn(*arrays: Array) -> list[Array]:
            outputs, marks = batch(function_of(body), size, arrays, every)
            seen[:] = marks
            return spread_some(size, outputs, marks, flags)

        return run(turn, [array.type for array in (*first, *constants)]), seen, first, every

    flags, (inner, _, first, every) = _settled(list(batched[:count]), turned)
    types = [array.type for array in (*first, *constants)]
    differs = False

    def ask(*arrays: Array) -> list[Array]:
        nonlocal differs
        (answer,), (differs,) = batch(function_of(test), size, arrays, every)
        return [answer]

    asked = run(ask, types)
    if not differs:
        return _while(asked, inner, first, constants), flags
    return _until_all(batch, size, test, body, inputs, batched), [True] * count


def _until_all(
    batch: Transform, size: int, test: WireGraph, body: WireGraph, inputs: list[Array], batched: Sequence[bool]
) -> list[Array]:
    """The loop over whole batches with one more carry: who is not done."""
    count = len(body.outputs)
    first = spread_all(size, inputs[:count], batched[:count])
    constants = inputs[count:]
    every = [*[True] * count, *batched[count:]]

    def going(arrays: Sequence[Array]) -> Array:
        return spread_all(size, *batch(function_of(test), size, arrays, every))[0]

    def turn(active: Array, *arrays: Array) -> list[Array]:
        turned = spread_all(size, *batch(function_of(body), size, arrays, every))
        carry = [either(active, new, old) for new, old in zip(turned, arrays[:count], strict=True)]
        return [apply("and", active, going([*carry, *arrays[count:]])), *carry]

    state = [going([*first, *constants]), *first]
    types = [array.type for array in (*state, *constants)]
    asked = run(lambda active, *_: [apply("reduce_max", active, axes=(0,))], types)
    return _while(asked, run(turn, types), state, constants)[1:]


def _while(test: Inner, body: Inner, carry: Sequence[Array], constants: Sequence[Array]) -> list[Array]:
    captured = captured_by(test, body)
    outside = [Array(tensor) for tensor in captured]
    graphs = {"test": test.taking(captured).graph(), "body": body.taking(captured).graph()}
    return several("while", [*carry, *constants, *outside], **graphs)


# -- scan -------------------------------------------------------------------------------------------------


def scan_jvp(
    forward: Transform, inputs: list[Array], tangents: Maybe, body: WireGraph, carry: int, consts: int, **attrs: int
) -> Any:
    """A scan of values and their tangents."""
    own = split(inputs, [carry, consts, len(inputs) - carry - consts])
    moves, *moves_of_others = split(tangents, [carry, consts, len(inputs) - carry - consts])
    fixed, rows = map(are_known, moves_of_others)
    floats = [is_smooth(kind) for kind in types_of(body)[carry:]]

    def turned(moving: list[bool]) -> Any:
        seen: list[bool] = []
        begun = filled(picked(moves, moving), picked(own[0], moving))
        groups = [own[0], begun, own[1], picked(moves_of_others[0], fixed), own[2], picked(moves_of_others[1], rows)]

        def turn(*arrays: Array) -> list[Array]:
            at, at_tangents, by, by_tangents, of, of_tangents = split(arrays, [len(group) for group in groups])
            moves_of_all = [*put_back(at_tangents, moving), *put_back(by_tangents, fixed), *put_back(of_tangents, rows)]
            outputs, moved = forward(function_of(body), [*at, *by, *of], moves_of_all)
            seen[:] = are_known(moved[:carry])
            kept = [filled(picked(moved[part], flags), picked(outputs[part], flags))
                    for part, flags in ((slice(carry), moving), (slice(carry, None), floats))]  # fmt: skip
            return [*outputs[:carry], *kept[0], *outputs[carry:], *kept[1]]

        types = [[array.type for array in group] for group in groups[:4]]
        types += [[row_of(array.type) for array in group] for group in groups[4:]]
        return run(turn, [kind for group in types for kind in group]), seen, groups

    moving, (inner, _, groups) = _settled(are_known(moves), turned)
    operands = [array for group in groups for array in group]
    results = _scan(inner, operands, carry + sum(moving), consts + sum(fixed), **attrs)
    ends = [carry, sum(moving), len(floats), sum(floats)]
    last, last_tangents, stacked, stacked_tangents = split(results, ends)
    return [*last, *stacked], [*put_back(last_tangents, moving), *put_back(stacked_tangents, floats)]


def scan_vmap(
    batch: Transform, size: int, inputs: list[Array], batched: Sequence[bool], body: WireGraph, carry: int,
    consts: int, **attrs: int,
) -> Any:  # fmt: skip
    """A scan whose rows are batches."""
    first = carry + consts
    rows = [mnp.moveaxis(array, 0, 1) if flag else array
            for array, flag in zip(inputs[first:], batched[first:], strict=True)]  # fmt: skip

    def turned(flags: list[bool]) -> Any:
        seen: list[bool] = []
        carried = spread_some(size, inputs[:carry], batched[:carry], flags)

        def turn(*arrays: Array) -> list[Array]:
            outputs, marks = batch(function_of(body), size, arrays, [*flags, *batched[carry:]])
            seen[:] = marks
            return spread_some(size, outputs, marks, [*flags, *marks[carry:]])

        types = [array.type for array in (*carried, *inputs[carry:first])]
        return run(turn, [*types, *[row_of(array.type) for array in rows]]), seen, carried

    flags, (inner, seen, carried) = _settled(list(batched[:carry]), turned)
    results = _scan(inner, [*carried, *inputs[carry:first], *rows], carry, consts, **attrs)
    stacked = [mnp.moveaxis(array, 1, 0) if flag else array
               for array, flag in zip(results[carry:], seen[carry:], strict=True)]  # fmt: skip
    return [*results[:carry], *stacked], [*flags, *seen[carry:]]


def scan_vjp(
    backward: Transform,
    inputs: list[Array],
    needs_grad: list[bool],
    body: WireGraph,
    carry: int,
    consts: int,
    **attrs: int,
) -> Any:
    """A scan that keeps what its backward pass needs, and one back over that."""
    reverse = _Reverse(backward, inputs, needs_grad, body, carry, consts)
    results = reverse.forward_scan(**attrs)

    def pull(cotangents: Maybe) -> list[Array | None]:
        return reverse.backward_scan(results, cotangents, **attrs)

    return results[: len(body.outputs)], pull


class _Reverse:
    """A scan's body and its backward pass, each run once on fresh arguments."""

    def __init__(
        self, backward: Transform, inputs: list[Array], needs_grad: list[bool], body: WireGraph, carry: int, consts: int
    ) -> None:
        self.inputs, self.carry, self.consts = inputs, carry, consts
        first = carry + consts
        kinds = [*[array.type for array in inputs[:first]], *[row_of(array.type) for array in inputs[first:]]]
        outputs = types_of(body)
        self.carried = [place for place in range(carry) if is_smooth(kinds[place])]
        self.constant = [place for place in range(carry, first) if needs_grad[place] and is_smooth(kinds[place])]
        self.rows = [place for place in range(first, len(inputs)) if needs_grad[place] and is_smooth(kinds[place])]
        self.given = [place for place in range(carry, len(outputs)) if is_smooth(outputs[place])]
        chosen = [*self.carried, *self.constant, *self.rows]
        pull: Any = None

        def ahead(*arrays: Array) -> list[Array]:
            nonlocal pull
            results, pull = backward(function_of_some(body, list(arrays), chosen), [arrays[place] for place in chosen])
            return list(results)

        self.ahead = run(ahead, kinds)

        def back(*arrays: Array) -> list[Array]:
            carried, sums, of_outputs = split(arrays, [len(self.carried), len(self.constant), len(self.given)])
            cotangents = dict(zip((*self.carried, *self.given), (*carried, *of_outputs), strict=True))
            pulled = pull([cotangents.get(place) for place in range(len(outputs))])
            full = filled(pulled, [Array(self.ahead.arguments[place]) for place in chosen])
            ahead, more, rows = split(full, [len(self.carried), len(self.constant), len(self.rows)])
            added = [apply("add", a, cast(b, a.type.dtype)) for a, b in zip(sums, more, strict=True)]
            return [*ahead, *added, *rows]

        kinds_taken = [
            *[kinds[place] for place in self.carried],
            *[_of_sum(kinds[place]) for place in self.constant],
            *[outputs[place] for place in self.given],
        ]
        self.back = run(back, kinds_taken)
        self._sort_residuals()

    def _sort_residuals(self) -> None:
        """What the backward pass takes of the forward one: rows that the scan must keep, rows and constants it got."""
        place = {id(tensor): at for at, tensor in enumerate(self.ahead.arguments)}
        residuals = captured_by(self.back)
        whole = Inner(self.ahead.arguments, [*self.ahead.outputs, *residuals], self.ahead.born)
        computed = {id(tensor) for step in whole.steps for _, tensor in step.outputs}
        placed = [(tensor, place.get(id(tensor), -1)) for tensor in residuals]
        first = self.carry + self.consts
        self.kept = [tensor for tensor, at in placed if id(tensor) in computed or 0 <= at < self.carry]
        self.fixed = [(tensor, self.inputs[at]) for tensor, at in placed if self.carry <= at < first]
        self.again = [(tensor, self.inputs[at]) for tensor, at in placed if at >= first]

    def forward_scan(self, **attrs: int) -> list[Array]:
        """The results, then the kept rows."""
        inner = Inner(self.ahead.arguments, [*self.ahead.outputs, *self.kept], self.ahead.born)
        return _scan(inner, self.inputs, self.carry, self.consts, **attrs)

    def backward_scan(self, results: list[Array], cotangents: Maybe, length: int, reverse: int) -> list[Array | None]:
        kept = results[len(self.ahead.outputs) :]
        start = [zeros_unless(cotangents[place], results[place]) for place in self.carried]
        sums = [mnp.zeros_like(self.inputs[place], dtype=_of_sum(self.inputs[place].type).dtype.numpy)
                for place in self.constant]  # fmt: skip
        cotangents_of_rows = [zeros_unless(cotangents[place], results[place]) for place in self.given]
        state = len(start) + len(sums)
        own = self.back.arguments
        arguments = [*own[:state], *[a for a, _ in self.fixed], *own[state:], *self.kept, *[a for a, _ in self.again]]
        operands = [*start, *sums, *[b for _, b in self.fixed], *cotangents_of_rows, *kept, *[b for _, b in self.again]]
        inner = Inner(arguments, self.back.outputs, self.back.born)
        pulled = _scan(inner, operands, state, len(self.fixed), length=length, reverse=1 - reverse)
        places = dict(zip((*self.carried, *self.constant, *self.rows), pulled, strict=True))
        for place in self.constant:
            places[place] = cast(places[place], self.inputs[place].type.dtype)
        return [places.get(place) for place in range(len(self.inputs))]


def _of_sum(kind: TensorType) -> TensorType:
    """The type in which turns add up the cotangent of a constant: 256 and 1 are 256 in bfloat16."""
    return TensorType(kind.shape, wide_dtype(kind.dtype))


def _scan(inner: Inner, operands: Sequence[Array], carry: int, consts: int, **attrs: int) -> list[Array]:
    """A scan of an inner function of carry, constants and rows; what else it uses joins the constants."""
    captured = captured_by(inner)
    at = carry + consts
    whole = Inner((*inner.arguments[:at], *captured, *inner.arguments[at:]), inner.outputs, inner.born)
    outside = [Array(tensor) for tensor in captured]
    every = [*operands[:at], *outside, *operands[at:]]
    return several("scan", every, body=whole.graph(), carry=carry, consts=consts + len(outside), **attrs)


# -- helpers ----------------------------------------------------------------------------------------------


def _settled(flags: list[bool], turned: Callable[[list[bool]], Any]) -> tuple[list[bool], Any]:
    """The flags of the carry after any number of turns, and what `turned` makes of them: it gives an inner function and
    which of the carry a turn gives, first of all."""
    while True:
        traced = turned(flags)
        grown = [a or b for a, b in zip(flags, traced[1], strict=False)]
        if grown == flags:
            return flags, traced
        flags = grown
