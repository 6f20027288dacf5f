"""Forward mode: from tangents of a function's arguments to those of its results.

`JVPS` has one row per op of the op table.  A row is

  * None where the derivative is zero;
  * a rule `(z, tangents, operands, **attrs)` to the tangent of the result z, where `tangents` has one for each operand,
    None where it is zero, and one at least is not; or
  * `Whole(rule)`, `rule(inputs, tangents, **attrs) -> (results, their tangents)` for ops that have several results.

A tangent has the type of its Tensor exactly; None stands for zero and costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

from .. import numpy as mnp
from ..core.array import Array, apply
from ..numpy.contraction import Labelled
from ..numpy.promotion import cast
from ..numpy.reductions import wide_dtype
from . import collective_rules, control_rules, conv_rules, indexing_rules, linalg_rules, op_expansions
from .elementwise_rules import SLOPES, Slope, choose, zero_like
from .step_list import Function, Inner, Step, Whole, call_graph, looked_up, rebuilt, run_like
from .vjp_rules import dot_labels, is_continuous, missing, product, spread

Tangents = Sequence[Array | None]
Rule = Callable[..., Array | None] | None
Row = Rule | Whole


def forward(
    fn: Function, primals: Sequence[Array], tangents: Tangents, names: Sequence[str] = ()
) -> tuple[list[Array], list[Array | None]]:
    """`fn(*primals)`, and the tangents of its results when those of `primals` are `tangents` (None where zero)."""
    return forward_of(run_like(fn, primals, names), primals, tangents)


def forward_of(inner: Inner, primals: Sequence[Array], tangents: Tangents) -> tuple[list[Array], list[Array | None]]:
    """`forward` of a function that was run already."""
    environment = inner.bind(primals)
    moving = {
        id(tensor): tangent
        for tensor, tangent in zip(inner.arguments, tangents, strict=True)
        if tangent is not None and is_continuous(tensor.type)
    }
    for step in inner.steps:
        inputs = looked_up(step.inputs, environment)
        results, moved = _advanced(step, inputs, [moving.get(id(tensor)) for tensor in step.inputs])
        for (_, tensor), result, tangent in zip(step.outputs, results, moved, strict=True):
            environment[id(tensor)] = result
            if tangent is not None and is_continuous(tensor.type):
                assert tangent.type == tensor.type, f"{step.op}: a tangent of {tangent.type} for {tensor.type}"
                moving[id(tensor)] = tangent
    return looked_up(inner.outputs, environment), [moving.get(id(tensor)) for tensor in inner.outputs]


def _advanced(step: Step, inputs: list[Array], tangents: Tangents) -> tuple[list[Array], list[Array | None]]:
    """The step's results and their tangents."""
    still: list[Array | None] = [None] * len(step.outputs)
    if all(tangent is None for tangent in tangents) or not any(
        is_continuous(tensor.type) for _, tensor in step.outputs
    ):
        return rebuilt(step, inputs), still
    if step.mark is None and step.op not in JVPS:
        raise missing("jvp", step.op)
    row = JVPS[step.op] if step.mark is None else Whole(step.mark.jvp)
    if isinstance(row, Whole):
        results, moved = row.rule(inputs, tangents, **step.attrs)
        return [results[place] for place, _ in step.outputs], [moved[place] for place, _ in step.outputs]
    (result,) = rebuilt(step, inputs)
    return [result], still if row is None else [row(result, tangents, inputs, **step.attrs)]


# -- rules ------------------------------------------------------------------------------------------------


def _elementwise(slopes: Sequence[Slope]) -> Rule:
    """The sum of what each operand's tangent contributes."""
    if not any(slopes):
        return None

    def rule(z: Array, tangents: Tangents, operands: Sequence[Array], **attrs: Any) -> Array | None:
        parts = [
            slope(tangent, z, *operands)
            for slope, tangent in zip(slopes, tangents, strict=True)
            if slope is not None and tangent is not None
        ]
        return mnp.broadcast_to(reduce(partial(apply, "add"), parts), z.shape) if parts else None

    return rule


ALL = 1 << 30  # operands


def _linear(op: str, operands_linear: int = 1) -> Rule:
    """An op that is linear in its first operands together: itself, of their tangents."""

    def rule(z: Array, tangents: Tangents, operands: Sequence[Array], **attrs: Any) -> Array:
        moved = [
            mnp.zeros_like(operand) if tangent is None else tangent
            for tangent, operand in zip(tangents[:operands_linear], operands, strict=False)
        ]
        return apply(op, *moved, *operands[operands_linear:], **attrs)

    return rule


def _extreme(z: Array, tangents: Tangents, operands: Sequence[Array], axes: tuple[int, ...]) -> Array:
    """The mean over all elements that are the extreme."""
    (x,), (tangent,) = operands, tangents
    assert tangent is not None
    chosen = mnp.equal(x, spread(z, x.shape, axes))
    wide = wide_dtype(x.type.dtype)
    total = apply("reduce_sum", cast(choose(chosen, tangent, zero_like(tangent)), wide), axes=axes)
    return cast(total / apply("reduce_sum", cast(chosen, wide), axes=axes), tangent.type.dtype)


def _by_program(program: Callable[..., op_expansions.Program]) -> Rule:
    """The rule of an op by that of what `program(x, **attrs)` makes it of."""

    def rule(z: Array, tangents: Tangents, operands: Sequence[Array], **attrs: Any) -> Array | None:
        (x,) = operands
        return forward(lambda arrays: [program(x, **attrs)(arrays)], operands, tangents)[1][0]

    return rule


def _dot(z: Array, tangents: Tangents, operands: Sequence[Array], **axes: tuple[int, ...]) -> Array:
    x, y = operands
    left, right, kept = dot_labels(x.ndim, y.ndim, axes)
    of_left, of_right = tangents
    parts = []
    if of_left is not None:
        parts.append(product(Labelled(of_left, left), Labelled(y, right), kept))
    if of_right is not None:
        parts.append(product(Labelled(x, left), Labelled(of_right, right), kept))
    return reduce(partial(apply, "add"), parts)


def _scatter(z: Array, tangents: Tangents, operands: Sequence[Array], **attrs: Any) -> Array:
    data, index, updates = operands
    of_data = mnp.zeros_like(data) if tangents[0] is None else tangents[0]
    of_updates = mnp.zeros_like(updates) if tangents[2] is None else tangents[2]
    return indexing_rules.scattered_tangent(z, (of_data, of_updates), data, index, updates, **attrs)


def _composite(inputs: list[Array], tangents: Tangents, **attrs: Any) -> tuple[list[Array], list[Array | None]]:
    """Differentiate a composite by its body, whose intermediate results the tangent needs."""
    return forward(lambda *operands: call_graph(attrs["body"], *operands), inputs, tangents)


JVPS: dict[str, Row] = {
    **{op: _elementwise(slopes) for op, slopes in SLOPES.items()},
    "cast": _linear("cast"),
    "random_bits": None,
    "reduce_sum": _linear("reduce_sum"),
    "reduce_prod": _by_program(op_expansions.product),
    "reduce_max": _extreme,
    "reduce_min": _extreme,
    "argmax": None,
    "cumsum": _linear("cumsum"),
    "cumprod": _by_program(op_expansions.running_product),
    "cummax": _by_program(op_expansions.running_maximum),
    "cummin": _by_program(op_expansions.running_minimum),
    "fft": _linear("fft"),
    "argsort": None,
    "reshape": _linear("reshape"),
    "transpose": _linear("transpose"),
    "broadcast": _linear("broadcast"),
    "slice": _linear("slice"),
    "pad": _linear("pad", 2),
    "concat": _linear("concat", ALL),
    "after": lambda z, tangents, operands: tangents[0],
    "reverse": _linear("reverse"),
    "constraint": _linear("constraint"),
    "transfer": _linear("transfer"),
    "dot": _dot,
    "conv": conv_rules.tangent,
    **{op: Whole(partial(linalg_rules.jvp, op)) for op in linalg_rules.TANGENTS},
    "gather": _linear("gather"),
    "scatter": _scatter,
    "dynamic_slice": _linear("dynamic_slice"),
    "dynamic_update_slice": _linear("dynamic_update_slice", 2),
    "composite": Whole(_composite),
    "cond": Whole(partial(control_rules.cond_jvp, forward)),
    "while": Whole(partial(control_rules.while_jvp, forward)),
    "scan": Whole(partial(control_rules.scan_jvp, forward)),
    "spmd": Whole(partial(collective_rules.spmd_jvp, forward)),
    "all_reduce": partial(collective_rules.all_reduce_jvp, _by_program(collective_rules.reduced_program)),
    "all_gather": _linear("all_gather"),
    "reduce_scatter": partial(collective_rules.reduce_scatter_jvp, _by_program(collective_rules.scattered_program)),
    "all_to_all": _linear("all_to_all"),
    "permute": _linear("permute"),
    "broadcast_from": _linear("broadcast_from"),
}
