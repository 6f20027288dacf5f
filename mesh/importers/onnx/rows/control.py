"""Control flow: If, Loop and Scan.

A condition that is known chooses while tracing, and a loop whose bodies differ in shape, or read a value of theirs for
a shape, is written out turn by turn.  Everything else is `mesh.cond`, `mesh.scan` and `mesh.while_loop`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from wire.errors import InputError
from wire.ir.dtypes import BOOL, I64

from .... import numpy as mnp
from ....core.array import Array, value_array
from ....numpy.promotion import cast
from ....numpy.reductions import normal_axis
from ....transforms import control_flow
from ..constant_folding import is_known, value_of
from ..evaluate import Call, Row
from ..program import Graph

WRITTEN_TURNS_MAX = 1000
SCAN_TURNS_MAX = 1 << 20  # ONNX writes "for ever" as a very large number


class _NotUniform(Exception):
    """The turns of a loop are not all alike."""


def _if(call: Call, condition: Array) -> list[Array]:
    branches: list[Graph] = [call.required("then_branch"), call.required("else_branch")]
    if not is_known(condition):
        try:
            then, otherwise = (lambda graph=graph: tuple(call.run(graph)) for graph in branches)
            return list(control_flow.cond(mnp.reshape(condition, ()), then, otherwise))
        except InputError:  # they differ in shape, or need values
            pass
    return call.run(branches[0 if bool(value_of(condition).reshape(())) else 1])


# -- Loop -------------------------------------------------------------------------------------------------


def _loop(call: Call, most: Array | None, condition: Array | None, *carried: Array) -> list[Array]:
    body: Graph = call.required("body")
    collected = len(body.outputs) - 1 - len(carried)
    if most is not None and is_known(most) and (condition is None or _holds(condition)):
        count = int(value_of(most).reshape(()))
        if 0 < count <= SCAN_TURNS_MAX:
            try:
                return _as_scan(call, body, count, carried)
            except (InputError, _NotUniform):  # it may stop early, or its turns differ in shape
                pass
    if not collected:
        try:
            return _as_while(call, body, most, condition, carried)
        except InputError:  # its turns differ in shape
            pass
    return _written_out(call, body, most, condition, carried, collected)


def _holds(condition: Array) -> bool:
    """Whether a condition is known to be true."""
    return is_known(condition) and bool(value_of(condition).reshape(()))


def _as_scan(call: Call, body: Graph, count: int, carried: Sequence[Array]) -> list[Array]:
    """A loop that never stops early."""

    def turn(state: tuple[Array, ...], at: Array) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        going, *results = call.run(body, at, value_array(np.asarray(True)), *state)
        if not _holds(going):
            raise _NotUniform
        return tuple(results[: len(state)]), tuple(results[len(state) :])

    places = mnp.arange(count, dtype=I64)
    last, ys = control_flow.scan(turn, tuple(carried), places)
    return [*last, *ys]


def _as_while(
    call: Call, body: Graph, most: Array | None, condition: Array | None, carried: Sequence[Array]
) -> list[Array]:
    going = value_array(np.asarray(True)) if condition is None else mnp.reshape(cast(condition, BOOL), ())
    limit = None if most is None else mnp.reshape(most, ())

    def test(state: tuple[Any, ...]) -> Array:
        at, again, _ = state
        return again if limit is None else mnp.logical_and(again, mnp.less(at, limit))

    def turn(state: tuple[Any, ...]) -> tuple[Any, ...]:
        at, again, values = state
        next_one, *results = call.run(body, at, again, *values)
        return mnp.add(at, value_array(np.asarray(1, np.int64))), mnp.reshape(next_one, ()), tuple(results)

    _, _, last = control_flow.while_loop(test, turn, (value_array(np.asarray(0, np.int64)), going, tuple(carried)))
    return list(last)


def _written_out(
    call: Call, body: Graph, most: Array | None, condition: Array | None, carried: Sequence[Array], collected: int
) -> list[Array]:
    limit = None if most is None else int(value_of(most).reshape(()))
    going = True if condition is None else bool(value_of(condition).reshape(()))
    state, rows, at = list(carried), [], 0
    while going and (limit is None or at < limit):
        if at == WRITTEN_TURNS_MAX:
            raise call.unsupported(f"a loop of more than {WRITTEN_TURNS_MAX} turns that are not alike")
        after, *results = call.run(body, value_array(np.asarray(at, np.int64)), value_array(np.asarray(going)), *state)
        state = results[: len(carried)]
        rows.append(results[len(carried) :])
        going = bool(value_of(after).reshape(()))
        at += 1
    if not rows and collected:
        raise call.unsupported("a loop of no turns that collects values, whose shape nobody knows")
    return [*state, *[mnp.stack([row[place] for row in rows], 0) for place in range(collected)]]


# -- Scan -------------------------------------------------------------------------------------------------


def _scan(call: Call, *inputs: Array | None) -> list[Array]:
    if call.version < 9:
        return _batched_scan(call, inputs[0], [array for array in inputs[1:] if array is not None])
    return _scanned(call, [array for array in inputs if array is not None])


def _scanned(call: Call, inputs: Sequence[Array]) -> list[Array]:
    body: Graph = call.required("body")
    count = call.required("num_scan_inputs")
    state, xs = list(inputs[: len(inputs) - count]), list(inputs[len(inputs) - count :])
    collected = len(body.outputs) - len(state)
    name = "directions" if call.version < 9 else "scan_input_directions"
    rows = [
        _turned(mnp.moveaxis(x, axis, 0), backwards)
        for x, axis, backwards in zip(xs, _per(call, "scan_input_axes", count), _per(call, name, count), strict=True)
    ]
    last, ys = _turns(call, body, state, rows)
    axes, directions = _per(call, "scan_output_axes", collected), _per(call, "scan_output_directions", collected)
    placed = [
        mnp.moveaxis(_turned(y, backwards), 0, normal_axis(axis, y.ndim))
        for y, axis, backwards in zip(ys, axes, directions, strict=True)
    ]
    return [*last, *placed]


def _per(call: Call, name: str, count: int) -> Sequence[int]:
    return call.attr(name) or (0,) * count


def _turned(x: Array, backwards: int) -> Array:
    return mnp.flip(x, 0) if backwards else x


def _turns(call: Call, body: Graph, state: list[Array], rows: list[Array]) -> tuple[list[Array], list[Array]]:
    def turn(carry: tuple[Array, ...], at: tuple[Array, ...]) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        results = call.run(body, *carry, *at)
        return tuple(results[: len(state)]), tuple(results[len(state) :])

    try:
        last, ys = control_flow.scan(turn, tuple(state), tuple(rows))
        return list(last), list(ys)
    except InputError:  # the turns differ in shape
        pass
    outputs: list[tuple[Array, ...]] = []
    carry = tuple(state)
    for place in range(rows[0].shape[0]):
        carry, y = turn(carry, tuple([row[place] for row in rows]))
        outputs.append(y)
    return list(carry), [mnp.stack(column, 0) for column in zip(*outputs, strict=True)]


def _batched_scan(call: Call, lengths: Array | None, inputs: Sequence[Array]) -> list[Array]:
    """Opset 8: every operand has a batch axis in front, and sequences may have lengths."""
    if lengths is not None:
        raise call.unsupported("sequence_lens in opset 8")
    results = [_scanned(call, [x[place] for x in inputs]) for place in range(inputs[0].shape[0])]
    return [mnp.stack(column, 0) for column in zip(*results, strict=True)]


ROWS: dict[str, Row] = {
    "If": _if,
    "Loop": _loop,
    "Scan": _scan,
}
