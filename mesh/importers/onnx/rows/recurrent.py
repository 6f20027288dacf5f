"""Recurrent layers: RNN, GRU and LSTM, each a scan over the steps of a sequence, per direction.

What the inputs contribute to the gates is one product for all steps; a step adds what the state contributes.  A
sequence that is shorter than the batch's longest keeps its state, and gives 0, beyond its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from wire.errors import InputError
from wire.ir.dtypes import I32

from .... import numpy as mnp
from ....core.array import Array, apply
from ....numpy.promotion import cast, like
from ....transforms import control_flow
from ..evaluate import Call, Row
from .elementwise import sigmoid, softplus

Activation = Callable[[Array], Array]
Step = Callable[[Array, tuple[Array, ...]], tuple[Array, ...]]  # of the inputs' share and the state, to the new state

# Each with the defaults of its numbers, alpha before beta.
_ACTIVATIONS: dict[str, tuple[tuple[float, ...], Callable[..., Array]]] = {
    "affine": ((1.0, 0.0), lambda x, a, b: x * a + b),
    "elu": ((1.0,), lambda x, a: mnp.where(x < 0, mnp.expm1(x) * a, x)),
    "hardsigmoid": ((0.2, 0.5), lambda x, a, b: mnp.clip(x * a + b, 0.0, 1.0)),
    "leakyrelu": ((0.01,), lambda x, a: mnp.where(x < 0, x * a, x)),
    "relu": ((), lambda x: mnp.maximum(x, 0)),
    "scaledtanh": ((1.0, 1.0), lambda x, a, b: mnp.tanh(x * b) * a),
    "sigmoid": ((), sigmoid),
    "softplus": ((), softplus),
    "softsign": ((), lambda x: x / (1 + mnp.abs(x))),
    "tanh": ((), mnp.tanh),
    "thresholdedrelu": ((1.0,), lambda x, a: mnp.where(x > a, x, like(0, x))),
}
DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}


class Weights(NamedTuple):
    """One direction: w (gates * hidden, inputs), r (gates * hidden, hidden), the two halves of the bias, peepholes."""

    w: Array
    r: Array
    w_bias: Array
    r_bias: Array
    peepholes: Array | None


def _layer(
    gates: int, states: int, defaults: tuple[str, ...], step: Callable[[Call, Weights, list[Activation]], Step]
) -> Row:
    """A row for a layer of `gates` gates and `states` states, whose `step` is made of a direction's weights and
    activations."""

    def row(
        call: Call, x: Array, w: Array, r: Array, bias: Array | None = None, lengths: Array | None = None,
        *initial: Array | None,
    ) -> tuple[Array, ...]:  # fmt: skip
        batch_first = bool(call.attr("layout", 0))
        rows = mnp.swapaxes(x, 0, 1) if batch_first else x
        directions, hidden = w.shape[0], r.shape[2]
        towards = call.attr("direction", "forward")
        if DIRECTIONS.get(towards) != directions:
            raise InputError(f"the weights are those of {directions} directions, and the direction is {towards!r}")
        activations = _activations(call, directions, defaults)
        states_and_peepholes = [*initial, *[None] * 3]
        peepholes = states_and_peepholes[2] if states == 2 else None
        ys, lasts = [], []
        for direction in range(directions):
            halves = mnp.zeros((2 * gates * hidden,), dtype=x.type.dtype) if bias is None else bias[direction]
            weights = Weights(
                w[direction],
                r[direction],
                halves[: gates * hidden],
                halves[gates * hidden :],
                None if peepholes is None else peepholes[direction],
            )
            start = [_initial(array, direction, batch_first, rows, hidden) for array in states_and_peepholes[:states]]
            backwards = towards == "reverse" or direction == 1
            turn = step(call, weights, activations[direction])
            y, last = _run(rows, weights.w, turn, start, lengths, backwards)
            ys.append(y)
            lasts.append(last)
        result = [mnp.stack(ys, 1), *[mnp.stack([last[state] for last in lasts], 0) for state in range(states)]]
        if batch_first:
            result = [mnp.permute_dims(result[0], (2, 0, 1, 3)), *[mnp.swapaxes(array, 0, 1) for array in result[1:]]]
        return tuple(result)

    return row


def _initial(start: Array | None, direction: int, batch_first: bool, rows: Array, hidden: int) -> Array:
    if start is None:
        return mnp.zeros((rows.shape[1], hidden), dtype=rows.type.dtype)
    return start[:, direction] if batch_first else start[direction]


def _run(
    rows: Array, w: Array, turn: Step, start: list[Array], lengths: Array | None, backwards: bool
) -> tuple[Array, tuple[Array, ...]]:
    """All steps of one direction: what each gives, (steps, batch, hidden), and the last state."""
    shares = mnp.matmul(rows, w.T)
    places = apply("iota", shape=(rows.shape[0],), dtype=I32.name, axis=0)
    limits = None if lengths is None else cast(lengths, I32)

    def one(state: tuple[Array, ...], at: tuple[Array, Array]) -> tuple[tuple[Array, ...], Array]:
        share, place = at
        after = turn(share, state)
        if limits is None:
            return after, after[0]
        alive = mnp.less(place, limits)[:, None]
        kept = tuple([mnp.where(alive, new, old) for new, old in zip(after, state, strict=True)])
        return kept, mnp.where(alive, after[0], like(0, after[0]))

    last, ys = control_flow.scan(one, tuple(start), (shares, places), reverse=backwards)
    return ys, last


def _activations(call: Call, directions: int, defaults: Sequence[str]) -> list[list[Activation]]:
    """The functions of each direction.

    Only those that have an alpha or a beta take one of the node's, in the order in which they stand.
    """
    names: Sequence[str] = call.attr("activations") or (*defaults,) * directions
    if len(names) != len(defaults) * directions:
        raise InputError(f"{call.node.op} has {len(defaults)} activations per direction, got {list(names)}")
    given = [iter(call.attr(name) or ()) for name in ("activation_alpha", "activation_beta")]
    functions = []
    for name in names:
        if name.lower() not in _ACTIVATIONS:
            raise call.unsupported(f"the activation {name!r}")
        numbers, function = _ACTIVATIONS[name.lower()]
        taken = [next(rest, default) for rest, default in zip(given, numbers, strict=False)]
        functions.append(_bound(function, taken, call.attr("clip")))
    return [functions[place : place + len(defaults)] for place in range(0, len(names), len(defaults))]


def _bound(function: Callable[..., Array], numbers: Sequence[float], limit: float | None) -> Activation:
    if limit is None:
        return lambda x: function(x, *numbers)
    return lambda x: function(mnp.clip(x, -limit, limit), *numbers)


# -- one step of each -------------------------------------------------------------------------------------


def _rnn_step(call: Call, weights: Weights, activations: list[Activation]) -> Step:
    (f,) = activations
    bias = weights.w_bias + weights.r_bias

    def step(share: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        return (f(share + state[0] @ weights.r.T + bias),)

    return step


def _gru_step(call: Call, weights: Weights, activations: list[Activation]) -> Step:
    f, g = activations
    hidden = weights.r.shape[1]
    inner = call.attr("linear_before_reset", 0)

    def step(share: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        (h,) = state
        share_of_x = share + weights.w_bias
        both = share_of_x[:, : 2 * hidden] + h @ weights.r[: 2 * hidden].T + weights.r_bias[: 2 * hidden]
        update, reset = f(both[:, :hidden]), f(both[:, hidden:])
        r, r_bias = weights.r[2 * hidden :].T, weights.r_bias[2 * hidden :]
        past = reset * (h @ r + r_bias) if inner else (reset * h) @ r + r_bias
        new = g(share_of_x[:, 2 * hidden :] + past)
        return ((1 - update) * new + update * h,)

    return step


def _lstm_step(call: Call, weights: Weights, activations: list[Activation]) -> Step:
    f, g, h = activations
    hidden = weights.r.shape[1]
    bias = weights.w_bias + weights.r_bias
    coupled = call.attr("input_forget", 0)

    def peep(gate: Array, place: int, cell: Array) -> Array:
        if weights.peepholes is None:
            return gate
        return gate + weights.peepholes[place * hidden : (place + 1) * hidden] * cell

    def step(share: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        before, cell = state
        gates = share + before @ weights.r.T + bias
        i, o, forget, c = (gates[:, place * hidden : (place + 1) * hidden] for place in range(4))
        taken = f(peep(i, 0, cell))
        kept = 1 - taken if coupled else f(peep(forget, 2, cell))
        new = kept * cell + taken * g(c)
        return f(peep(o, 1, new)) * h(new), new

    return step


ROWS: dict[str, Row] = {
    "GRU": _layer(3, 1, ("Sigmoid", "Tanh"), _gru_step),
    "LSTM": _layer(4, 2, ("Sigmoid", "Tanh", "Tanh"), _lstm_step),
    "RNN": _layer(1, 1, ("Tanh",), _rnn_step),
}
