"""Calls, branches and loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from wire.ir.dtypes import BOOL, I32

from ... import numpy as mnp
from ...core.array import Array, literal
from ...numpy.promotion import cast
from ...transforms.control_flow import cond, scan, while_loop
from .rows import Equation, Row


def _called(name: str) -> Row:
    """A jaxpr that is simply called."""
    return lambda equation, *operands: equation.closed(equation[name], operands)


def _custom(equation: Equation, *operands: Array) -> Sequence[Array]:
    """A function with derivatives of its own: the function; ours differentiate what it is made of."""
    program = equation.params.get("call_jaxpr") or equation.params["fun_jaxpr"]
    return equation.closed(program, operands)


def _cond(equation: Equation, which: Array, *operands: Array) -> Sequence[Array]:
    branches = equation["branches"]
    number = cast(which, I32)
    if number.value is not None:  # known here, as a platform is
        return equation.closed(branches[min(max(int(number.value), 0), len(branches) - 1)], operands)

    def chosen(first: int, last: int) -> Callable[..., Any]:
        if first == last:
            return lambda *given: tuple(equation.closed(branches[first], given))
        middle = (first + last) // 2
        return lambda *given: cond(number <= middle, chosen(first, middle), chosen(middle + 1, last), *given)

    if len(branches) == 2 and which.type.dtype is BOOL:
        return list(cond(which, chosen(1, 1), chosen(0, 0), *operands))
    return list(chosen(0, len(branches) - 1)(*operands))


def _while(equation: Equation, *operands: Array) -> Sequence[Array]:
    tests, bodies = equation["cond_nconsts"], equation["body_nconsts"]
    for_test, for_body = operands[:tests], operands[tests : tests + bodies]
    init = tuple(operands[tests + bodies :])

    def going(carry: tuple[Array, ...]) -> Array:
        (holds,) = equation.closed(equation["cond_jaxpr"], (*for_test, *carry))
        return holds

    def body(carry: tuple[Array, ...]) -> tuple[Array, ...]:
        return tuple(equation.closed(equation["body_jaxpr"], (*for_body, *carry)))

    def going_bodies(carry: tuple[Array, ...]) -> tuple[Array, ...]:
        holds, pairs = going(carry), zip(body(carry), carry, strict=True)
        return tuple([mnp.where(_leading(holds, new.ndim), new, old) for new, old in pairs])

    if equation["cond_jaxpr"].out_avals[0].shape:  # a batch of loops, which goes on until the last one ends
        return list(while_loop(lambda carry: mnp.any(going(carry)), going_bodies, init))

    return list(while_loop(going, body, init))


def _leading(mask: Array, rank: int) -> Array:
    """A mask of the first axes of arrays of this rank."""
    return mnp.reshape(mask, (*mask.shape, *[1] * (rank - mask.ndim)))


def _scan(equation: Equation, *operands: Array) -> Sequence[Array]:
    consts, carried = _counts(equation)
    fixed, init, xs = operands[:consts], operands[consts : consts + carried], operands[consts + carried :]

    def body(carry: tuple[Array, ...], row: tuple[Array, ...]) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        results = equation.closed(equation["jaxpr"], (*fixed, *carry, *row))
        return tuple(results[:carried]), tuple(results[carried:])

    if equation["length"] == 0:
        return [*init, *(mnp.zeros(kind.shape, dtype=kind.dtype.numpy) for kind in equation.types[carried:])]
    last, rows = scan(body, tuple(init), tuple(xs), length=equation["length"], reverse=equation["reverse"])
    return [*last, *rows]


def _counts(equation: Equation) -> tuple[int, int]:
    """The counts of constants and of carried operands of a scan: newer versions of JAX give trees of them."""
    if "num_consts" in equation.params:
        return equation["num_consts"], equation["num_carry"]
    consts, carried, _ = equation["ft_in"].unpack()
    return len(list(consts.vals)), len(list(carried.vals))


def expanded(primitive: Any) -> Any:
    """What JAX makes of one of its primitives that are made of others, as a closed jaxpr."""
    import jax

    return jax.make_jaxpr(primitive.expand)(*primitive.in_avals)


def counts_as_now() -> bool:
    """Whether JAX is set to draw by the counters of its later versions, which are ours (`randomness.py`)."""
    import jax

    return bool(getattr(jax.config, "jax_threefry_partitionable", True))


def _platform_index(equation: Equation) -> Array:
    """The index of this platform among those of the branches: a cpu, or none of them."""
    platforms = equation["platforms"]
    fitting = [place for place, names in enumerate(platforms) if names is None or "cpu" in names]
    return literal(fitting[0], I32)


ROWS: dict[str, Row] = {
    "call_hi_primitive": lambda equation, *operands: equation.closed(expanded(equation["_prim"]), operands),
    "checkpoint": _called("jaxpr"),
    "closed_call": _called("call_jaxpr"),
    "cond": _cond,
    "core_call": _called("call_jaxpr"),
    "custom_jvp_call": _custom,
    "custom_vjp_call": _custom,
    "custom_vjp_call_jaxpr": _custom,
    "jit": _called("jaxpr"),
    "pjit": _called("jaxpr"),
    "platform_index": _platform_index,
    "remat2": _called("jaxpr"),
    "scan": _scan,
    "while": _while,
}
