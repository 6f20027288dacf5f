"""Reverse mode: from cotangents of a function's results to those of its arguments.

`VJPS` has one row per op of the op table.  A row is

  * a tuple with one rule per operand, `(g, z, *operands, **attrs)` to the operand's cotangent, where g is that of the
    result z; None for an operand that has none (an index, a condition), or where the derivative is zero; or
  * `Whole(rule)`, `rule(inputs, needs_grad, **attrs) -> (results, pull)` for ops that have several results, that take
    any number of operands, or whose backward pass needs more than the results.  `pull` turns the results' cotangents
    (None is zero) into those of the inputs; only those with a true flag in `needs_grad` are needed.

A cotangent has the type of its Tensor exactly; None stands for zero and costs nothing.  Rules are written with
`mesh.numpy` and `apply`, so they have derivatives and batches themselves.

To add an op: its row here, and its rows in `jvp_rules.py` and `vmap_rules.py`;
`tests/mesh/transforms/test_transform_tables.py` asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from wire.errors import UnknownOp
from wire.ir.device_names import ANY
from wire.ir.ops import ELEMENTWISE
from wire.ir.types import TensorType

from .. import numpy as mnp
from ..core.array import Array, apply
from ..core.expression import Tensor
from ..numpy.contraction import Labelled, Labels, contract
from ..numpy.promotion import cast
from ..numpy.reductions import wide_dtype
from . import collective_rules, control_rules, conv_rules, indexing_rules, linalg_rules, op_expansions
from .elementwise_rules import SLOPES, choose, zero_like
from .step_list import Function, Inner, Step, Whole, call_graph, looked_up, rebuilt, run_like

Cotangents = Sequence[Array | None]
Pull = Callable[[Cotangents], list[Array | None]]
Rule = Callable[..., Array] | None
Row = tuple[Rule, ...] | Whole


def backward(fn: Function, primals: Sequence[Array], names: Sequence[str] = ()) -> tuple[list[Array], Pull]:
    """`fn(*primals)`, and what turns cotangents of its results into those of `primals` (None where zero)."""
    return backward_of(run_like(fn, primals, names), primals)


def backward_of(inner: Inner, primals: Sequence[Array]) -> tuple[list[Array], Pull]:
    """`backward` of a function that was run already."""
    environment = inner.bind(primals)
    active = {id(tensor) for tensor in inner.arguments if is_continuous(tensor.type)}
    tape: list[tuple[Step, Pull]] = []
    for step in inner.steps:
        inputs = looked_up(step.inputs, environment)
        needs_grad = [id(tensor) in active for tensor in step.inputs]
        results, pull = _forward(step, inputs, needs_grad)
        if pull is not None:
            tape.append((step, pull))
            active.update(id(tensor) for _, tensor in step.outputs if is_continuous(tensor.type))
        for (_, tensor), result in zip(step.outputs, results, strict=True):
            environment[id(tensor)] = result

    def pull_back(cotangents: Cotangents) -> list[Array | None]:
        return _pull_back(inner, tape, active, cotangents)

    return looked_up(inner.outputs, environment), pull_back


def is_continuous(type: TensorType) -> bool:
    """Whether a tensor of this type has derivatives."""
    return type.dtype.kind in "fc"


# -- the two passes ---------------------------------------------------------------------------------------


def _forward(step: Step, inputs: list[Array], needs_grad: list[bool]) -> tuple[list[Array], Pull | None]:
    """The step's results, and how to pull cotangents through it: None if it passes none."""
    if not any(needs_grad) or not any(is_continuous(tensor.type) for _, tensor in step.outputs):
        return rebuilt(step, inputs), None
    row = VJPS.get(step.op) if step.mark is None else Whole(step.mark.vjp)
    if row is None:
        raise missing("vjp", step.op)
    if isinstance(row, Whole):
        results, pull_whole = row.rule(inputs, needs_grad, **step.attrs)
        places = [place for place, _ in step.outputs]

        def pull(cotangents: Cotangents) -> list[Array | None]:
            every: list[Array | None] = [None] * len(results)
            for place, cotangent in zip(places, cotangents, strict=True):
                every[place] = _sum(every[place], cotangent)
            pulled: list[Array | None] = pull_whole(every)
            return pulled

        return [results[place] for place in places], pull
    rules = [rule if want else None for rule, want in zip(row, needs_grad, strict=True)]
    (result,) = rebuilt(step, inputs)
    if not any(rules):
        return [result], None
    fit = to_operand if step.op in ELEMENTWISE else _as_is

    def pull_each(cotangents: Cotangents) -> list[Array | None]:
        return [
            None if rule is None else fit(rule(cotangents[0], result, *inputs, **step.attrs), operand.type.shape)
            for rule, operand in zip(rules, inputs, strict=True)
        ]

    return [result], pull_each


def _pull_back(
    inner: Inner, tape: Sequence[tuple[Step, Pull]], active: set[int], cotangents: Cotangents
) -> list[Array | None]:
    totals: dict[int, Array] = {}

    def give(tensor: Tensor, cotangent: Array | None) -> None:
        if cotangent is not None and id(tensor) in active:
            assert cotangent.type == tensor.type, f"a cotangent of {cotangent.type} for {tensor.type}"
            total = _sum(totals.get(id(tensor)), cotangent)
            assert total is not None
            totals[id(tensor)] = total

    for tensor, cotangent in zip(inner.outputs, cotangents, strict=True):
        give(tensor, cotangent)
    for step, pull in reversed(tape):
        cotangents_of_step = [totals.pop(id(tensor), None) for _, tensor in step.outputs]
        if any(cotangent is not None for cotangent in cotangents_of_step):
            for tensor, cotangent in zip(step.inputs, pull(cotangents_of_step), strict=True):
                give(tensor, cotangent)
    return [totals.get(id(tensor)) for tensor in inner.arguments]


def _sum(left: Array | None, right: Array | None) -> Array | None:
    if left is None or right is None:
        return right if left is None else left
    return apply("add", left, right)


def missing(kind: str, op: str) -> UnknownOp:
    """The error for an op without a rule."""
    return UnknownOp(
        f"{op!r} has no {kind} rule",
        op=op,
        next_step="Give the function that uses it a derivative of its own with mesh.custom_vjp, hold the derivative "
        "off with mesh.stop_gradient, or add a row to mesh/transforms",
    )


# -- shapes of cotangents ---------------------------------------------------------------------------------


def to_operand(g: Array, shape: tuple[int, ...]) -> Array:
    """The cotangent of an operand of `shape` that was broadcast: summed over what the broadcast repeated."""
    if g.shape == shape:
        return g
    ahead = g.ndim - len(shape)
    axes = tuple([axis for axis in range(g.ndim) if axis < ahead or g.shape[axis] != shape[axis - ahead]])
    return mnp.reshape(apply("reduce_sum", g, axes=axes), shape)


def spread(g: Array, shape: tuple[int, ...], axes: tuple[int, ...]) -> Array:
    """What was reduced over `axes` of `shape`, repeated along them."""
    first = next((axis for axis in range(len(shape)) if axis not in axes), len(shape))  # what is ahead broadcasts
    kept = [1 if axis in axes else shape[axis] for axis in range(first, len(shape))]
    return mnp.broadcast_to(mnp.reshape(g, kept), shape)


def _as_is(g: Array, shape: tuple[int, ...]) -> Array:
    return g


# -- rules ------------------------------------------------------------------------------------------------


def _extreme(g: Array, z: Array, x: Array, axes: tuple[int, ...]) -> Array:
    """Shared equally between all elements that are the extreme."""
    chosen = mnp.equal(x, spread(z, x.shape, axes))
    count = apply("reduce_sum", cast(chosen, wide_dtype(x.type.dtype)), axes=axes)
    share = cast(cast(g, count.type.dtype) / count, g.type.dtype)
    return choose(chosen, spread(share, x.shape, axes), zero_like(g))


def _by_program(program: Callable[..., op_expansions.Program]) -> Rule:
    """The rule of an op by that of what `program(x, **attrs)` makes it of."""

    def rule(g: Array, z: Array, x: Array, **attrs: Any) -> Array:
        _, pull = backward(lambda arrays: [program(x, **attrs)(arrays)], [x])
        (cotangent,) = pull([g])
        return mnp.zeros_like(x) if cotangent is None else cotangent

    return rule


def _unsliced(g: Array, shape: tuple[int, ...], start: tuple[int, ...], step: tuple[int, ...]) -> Array:
    """Zeros of `shape` with g where a slice took it from."""
    ends = [
        first + max(count - 1, 0) * by + min(count, 1) for first, count, by in zip(start, g.shape, step, strict=True)
    ]
    high = tuple([dim - end for dim, end in zip(shape, ends, strict=True)])
    return apply("pad", g, zero_like(g), low=start, high=high, interior=tuple([by - 1 for by in step]))


def _unpadded(g: Array, shape: tuple[int, ...], low: tuple[int, ...], interior: tuple[int, ...]) -> Array:
    """The elements of g that a pad put there from an operand of `shape`."""
    step = tuple([width + 1 for width in interior])
    stop = tuple([first + max(dim - 1, 0) * by + min(dim, 1) for first, dim, by in zip(low, shape, step, strict=True)])
    return apply("slice", g, start=low, stop=stop, step=step)


def _fill(g: Array, x: Array, low: tuple[int, ...], interior: tuple[int, ...]) -> Array:
    return mnp.sum(g) - mnp.sum(_unpadded(g, x.shape, low, interior))


def _after(inputs: list[Array], needs_grad: list[bool]) -> tuple[list[Array], Pull]:
    return [apply("after", *inputs)], lambda cotangents: [*cotangents, *[None] * (len(inputs) - 1)]


def _concat(inputs: list[Array], needs_grad: list[bool], axis: int) -> tuple[list[Array], Pull]:
    ends = [sum(array.shape[axis] for array in inputs[: place + 1]) for place in range(len(inputs))]

    def pull(cotangents: Cotangents) -> list[Array | None]:
        (g,) = cotangents
        assert g is not None
        return [
            mnp.moveaxis(mnp.moveaxis(g, axis, 0)[end - array.shape[axis] : end], 0, axis) if want else None
            for array, end, want in zip(inputs, ends, needs_grad, strict=True)
        ]

    return [apply("concat", *inputs, axis=axis)], pull


def dot_labels(left_rank: int, right_rank: int, axes: Mapping[str, tuple[int, ...]]) -> tuple[Labels, Labels, Labels]:
    """A number for each axis of a dot's operands, the same for paired ones, and those of its result."""
    left = tuple(range(left_rank))
    here, there = (*axes["lhs_batch"], *axes["lhs_contract"]), (*axes["rhs_batch"], *axes["rhs_contract"])
    paired = dict(zip(there, here, strict=True))
    right = tuple([paired.get(axis, left_rank + axis) for axis in range(right_rank)])
    free = [label for label in (*left, *right) if label not in here]
    return left, right, (*axes["lhs_batch"], *free)


def _dot_left(g: Array, z: Array, x: Array, y: Array, **axes: tuple[int, ...]) -> Array:
    left, right, kept = dot_labels(x.ndim, y.ndim, axes)
    return product(Labelled(g, kept), Labelled(y, right), left)


def _dot_right(g: Array, z: Array, x: Array, y: Array, **axes: tuple[int, ...]) -> Array:
    left, right, kept = dot_labels(x.ndim, y.ndim, axes)
    return product(Labelled(x, left), Labelled(g, kept), right)


def product(one: Labelled, other: Labelled, kept: Labels) -> Array:
    """The product summed over labels that are not `kept`, in the order of operands that needs no transposition, if one
    does."""
    shared = [label for label in other.labels if label in one.labels]
    paired = [label for label in shared if label in kept]
    free = [label for label in other.labels + one.labels if label not in shared]
    return contract(other, one, kept) if (*paired, *free) == kept else contract(one, other, kept)


def _composite(inputs: list[Array], needs_grad: list[bool], **attrs: Any) -> tuple[list[Array], Pull]:
    """Differentiate a composite by its own rule, else by its body, whose intermediate results both passes share."""
    rule = COMPOSITES.get(attrs["name"])
    if rule is None:
        return backward(lambda *operands: call_graph(attrs["body"], *operands), inputs)
    result = apply("composite", *inputs, **attrs)
    return [result], lambda cotangents: rule(cotangents[0], result, **attrs)


def _softmax(g: Array | None, z: Array, axis: int, **attrs: Any) -> list[Array | None]:
    assert g is not None
    given, shares = (cast(array, wide_dtype(z.type.dtype)) for array in (g, z))
    weighted = given * shares
    return [cast(weighted - shares * mnp.sum(weighted, axis, keepdims=True), g.type.dtype)]


def _log_softmax(g: Array | None, z: Array, axis: int, **attrs: Any) -> list[Array | None]:
    assert g is not None
    given, logs = (cast(array, wide_dtype(z.type.dtype)) for array in (g, z))
    return [cast(given - mnp.exp(logs) * mnp.sum(given, axis, keepdims=True), g.type.dtype)]


COMPOSITES: dict[str, Callable[..., list[Array | None]]] = {"softmax": _softmax, "log_softmax": _log_softmax}

NONE: Row = (None,)
EXTREME: Row = (lambda g, z, x, axes: _extreme(g, z, x, axes),)

VJPS: dict[str, Row] = {
    **SLOPES,
    "cast": (lambda g, z, x, dtype: cast(mnp.real(g) if x.type.dtype.kind == "f" else g, x.type.dtype),),
    "random_bits": NONE,
    "reduce_sum": (lambda g, z, x, axes: spread(g, x.shape, axes),),
    "reduce_prod": (_by_program(op_expansions.product),),
    "reduce_max": EXTREME,
    "reduce_min": EXTREME,
    "argmax": NONE,
    "cumsum": (lambda g, z, x, axis: mnp.flip(apply("cumsum", mnp.flip(g, axis), axis=axis), axis),),
    "cumprod": (_by_program(op_expansions.running_product),),
    "cummax": (_by_program(op_expansions.running_maximum),),
    "cummin": (_by_program(op_expansions.running_minimum),),
    "fft": (lambda g, z, x, axis, inverse: apply("fft", g, axis=axis, inverse=inverse),),  # its matrix is symmetric
    "argsort": NONE,
    "reshape": (lambda g, z, x, shape: mnp.reshape(g, x.shape),),
    "transpose": (lambda g, z, x, perm: mnp.permute_dims(g, [perm.index(axis) for axis in range(len(perm))]),),
    "broadcast": (lambda g, z, x, shape: to_operand(g, x.shape),),
    "slice": (lambda g, z, x, start, stop, step: _unsliced(g, x.shape, start, step),),
    "pad": (
        lambda g, z, x, fill, low, high, interior: _unpadded(g, x.shape, low, interior),
        lambda g, z, x, fill, low, high, interior: _fill(g, x, low, interior),
    ),
    "concat": Whole(_concat),
    "after": Whole(_after),
    "constraint": (lambda g, z, x, **attrs: apply("constraint", g, **attrs),),
    "transfer": (lambda g, z, x, device: apply("transfer", g, device=ANY),),  # back to wherever x was computed
    "reverse": (lambda g, z, x, axes: apply("reverse", g, axes=axes),),
    "dot": (_dot_left, _dot_right),
    "conv": (conv_rules.of_x, conv_rules.of_w),
    "solve": (
        lambda g, z, a, b: -mnp.matmul(apply("solve", linalg_rules.t(a), g), linalg_rules.t(z)),
        lambda g, z, a, b: apply("solve", linalg_rules.t(a), g),
    ),
    **{op: Whole(partial(linalg_rules.vjp, backward, op)) for op in linalg_rules.TANGENTS if op != "solve"},
    "gather": (indexing_rules.gathered, None),
    "scatter": (indexing_rules.scattered_data, None, indexing_rules.scattered_updates),
    "dynamic_slice": (lambda g, z, x, at, sizes: apply("dynamic_update_slice", mnp.zeros_like(x), g, at), None),
    "dynamic_update_slice": (
        lambda g, z, x, update, at: apply("dynamic_update_slice", g, mnp.zeros_like(update), at),
        lambda g, z, x, update, at: apply("dynamic_slice", g, at, sizes=update.shape),
        None,
    ),
    "composite": Whole(_composite),
    "cond": Whole(partial(control_rules.cond_vjp, backward)),
    "while": Whole(control_rules.while_vjp),
    "scan": Whole(partial(control_rules.scan_vjp, backward)),
    "spmd": Whole(partial(collective_rules.spmd_vjp, backward)),
    "all_reduce": (partial(collective_rules.all_reduce_vjp, _by_program(collective_rules.reduced_program)),),
    "all_gather": (collective_rules.all_gather_vjp,),
    "reduce_scatter": (partial(collective_rules.reduce_scatter_vjp, _by_program(collective_rules.scattered_program)),),
    "all_to_all": (collective_rules.all_to_all_vjp,),
    "permute": (collective_rules.permute_vjp,),
    "broadcast_from": (collective_rules.broadcast_from_vjp,),
}
