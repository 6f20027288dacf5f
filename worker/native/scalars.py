"""What each scalar op of an expression is in LLVM, by the dtype of its registers: the semantics of wire/ir/ops.py.

To add an op: a row of `ROWS`.  A row takes the operations of one width, the operands and the expression.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..compiler.expressions import Expr
from ..compiler.functions import FUNCTIONS
from .llvm import I8, I32, ir
from .vectors import REGISTERS, Vectors

Value = Any


def is_float(dtype: str) -> bool:
    return dtype in ("f32", "f64")


def is_signed(dtype: str) -> bool:
    return dtype.startswith("i")


class Typed(Protocol):
    """What rows look at of an expression."""

    @property
    def dtype(self) -> str: ...
    @property
    def args(self) -> Sequence[Typed]: ...
    @property
    def attr(self) -> Any: ...


Row = Callable[[Vectors, Sequence[Value], Typed], Value]


@dataclass(frozen=True, slots=True)
class _Typed:
    """An expression of which nothing but its dtype is known."""

    dtype: str
    args: tuple[_Typed, ...] = ()
    attr: Any = None


def applied(v: Vectors, op: str, dtype: str, *args: Value) -> Value:
    """The op on registers of one dtype, outside of any expression."""
    return ROWS[op](v, args, _Typed(dtype, tuple(_Typed(dtype) for _ in args)))


def computed(v: Vectors, expr: Expr, args: Sequence[Value]) -> Value:
    """The value of an expression whose operands have these; KeyError for an op without a row."""
    return ROWS[expr.op](v, args, expr)


def literal(bits: int, dtype: str) -> Value:
    """A constant by its bits, a scalar."""
    kind = REGISTERS[dtype]
    if not is_float(dtype):
        return ir.Constant(kind, bits)
    return ir.Constant(ir.IntType(32 if dtype == "f32" else 64), bits).bitcast(kind)


# -- memory -----------------------------------------------------------------------------------------------


def from_stored(v: Vectors, value: Value, dtype: str) -> Value:
    """A register's value from what lies in memory for a tensor of the dtype."""
    widened = {"f16": v.from_f16, "bf16": v.from_bf16}.get(dtype)
    if widened is not None:
        return widened(value)
    return v.int_compare("!=", value, v.like(value, 0)) if dtype == "bool" else value


def to_stored(v: Vectors, value: Value, dtype: str) -> Value:
    """What lies in memory for a register's value as a tensor of the dtype."""
    narrowed = {"f16": v.to_f16, "bf16": v.to_bf16}.get(dtype)
    if narrowed is not None:
        return narrowed(value)
    return v.resize(value, I8) if dtype == "bool" else value


# -- rows -------------------------------------------------------------------------------------------------


def _arithmetic(float_op: str, int_op: str) -> Row:
    def row(v: Vectors, args: Sequence[Value], expr: Typed) -> Value:
        return getattr(v.builder, float_op if is_float(expr.dtype) else int_op)(*args)

    return row


def _div(v: Vectors, args: Sequence[Value], expr: Typed) -> Value:
    if is_float(expr.dtype):
        return v.div(*args)
    return v.int_div(args[0], args[1], is_signed(expr.dtype))


def _shift(left: bool) -> Row:
    def row(v: Vectors, args: Sequence[Value], expr: Typed) -> Value:
        b, (x, count) = v.builder, args
        bits = int(expr.dtype[1:])
        inside = b.icmp_unsigned("<", count, v.like(x, bits))
        if not left and is_signed(expr.dtype):
            return b.ashr(x, b.select(inside, count, v.like(x, bits - 1)))
        shifted = (b.shl if left else b.lshr)(x, b.select(inside, count, v.like(x, 0)))
        return b.select(inside, shifted, v.like(x, 0))

    return row


def _extreme(sign: str) -> Row:
    def row(v: Vectors, args: Sequence[Value], expr: Typed) -> Value:
        b, (x, y) = v.builder, args
        if is_float(expr.dtype):  # NaN if either is, and y where both are equal: y is also what no comparison chooses
            return b.select(v.is_nan(x), x, b.select(b.fcmp_ordered(sign, x, y), x, y))
        if expr.dtype == "bool":
            return b.or_(x, y) if sign == ">" else b.and_(x, y)
        return b.select(_ordered(v, sign, x, y, expr.dtype), x, y)

    return row


def _ordered(v: Vectors, sign: str, x: Value, y: Value, dtype: str) -> Value:
    return (v.builder.icmp_signed if is_signed(dtype) else v.builder.icmp_unsigned)(sign, x, y)


def _compare(sign: str) -> Row:
    def row(v: Vectors, args: Sequence[Value], expr: Typed) -> Value:
        dtype = expr.args[0].dtype
        return v.compare(sign, *args) if is_float(dtype) else _ordered(v, sign, args[0], args[1], dtype)

    return row


def _neg(v: Vectors, args: Sequence[Value], expr: Typed) -> Value:
    return v.neg(args[0]) if is_float(expr.dtype) else v.builder.sub(v.like(args[0], 0), args[0])


def _abs(v: Vectors, args: Sequence[Value], expr: Typed) -> Value:
    (x,) = args
    if is_float(expr.dtype):
        return v.abs(x)
    if not is_signed(expr.dtype):
        return x
    zero = v.like(x, 0)
    return v.builder.select(v.builder.icmp_signed("<", x, zero), v.builder.sub(zero, x), x)


def _sign(v: Vectors, args: Sequence[Value], expr: Typed) -> Value:
    (x,), b = args, v.builder
    if is_float(expr.dtype):
        one, zero = v.like(args[0], 1.0), v.like(args[0], 0.0)
        unit = b.select(v.compare(">", x, zero), one, b.select(v.compare("<", x, zero), v.neg(one), zero))
        return b.select(v.is_nan(x), x, unit)
    zero, one = v.like(x, 0), v.like(x, 1)
    positive = b.select(b.icmp_unsigned("!=", x, zero), one, zero)
    return b.select(b.icmp_signed("<", x, zero), v.like(x, -1), positive) if is_signed(expr.dtype) else positive


def _cast(v: Vectors, args: Sequence[Value], expr: Typed) -> Value:
    (x,), source, to = args, expr.attr, expr.dtype
    kind = REGISTERS[to]
    if source == to:
        return x
    if to == "bool":
        return v.compare("!=", x, v.like(x, 0.0)) if is_float(source) else v.int_compare("!=", x, v.like(x, 0))
    if is_float(source) and is_float(to):
        return v.widen(x) if to == "f64" else v.narrow(x)
    if is_float(source):
        return v.saturated(x, kind, is_signed(to))
    return v.to_real(x, kind, is_signed(source)) if is_float(to) else v.resize(x, kind, is_signed(source))


def _clamp(v: Vectors, args: Sequence[Value], expr: Typed) -> Value:
    (x,), b, dtype, most = args, v.builder, expr.args[0].dtype, expr.attr
    bits = int(dtype[1:])
    if is_signed(dtype):
        x = b.select(b.icmp_signed("<", x, v.like(x, 0)), v.like(x, 0), x)
    if most < 1 << (bits - is_signed(dtype)):
        x = b.select(b.icmp_unsigned(">", x, v.like(x, most)), v.like(x, most), x)
    return v.resize(x, I32)


def _inside(v: Vectors, args: Sequence[Value], expr: Typed) -> Value:
    (x,), (lo, hi) = args, expr.attr
    return v.builder.icmp_unsigned("<", v.builder.sub(x, v.like(x, lo)), v.like(x, hi - lo))


def _affine(v: Vectors, args: Sequence[Value], expr: Typed) -> Value:
    const, *factors = expr.attr
    total = None
    for value, factor in zip(args, factors, strict=True):
        term = value if factor == 1 else v.builder.mul(value, v.like(value, factor))
        total = term if total is None else v.builder.add(total, term)
    return v.builder.add(total, v.like(total, const)) if const else total


def _threefry(v: Vectors, args: Sequence[Value], expr: Typed) -> Value:
    """The first word of threefry2x32 with 20 rounds over the counter (0, position): Salmon et al., SC 2011."""
    b, (low, high, counter) = v.builder, args
    keys = [low, high, b.xor(b.xor(low, high), v.constant(0x1BD11BDA, I32))]
    x, y = low, b.add(counter, high)
    for group in range(5):
        for turn in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            x = b.add(x, y)
            y = b.or_(b.shl(y, v.constant(turn, I32)), b.lshr(y, v.constant(32 - turn, I32)))
            y = b.xor(y, x)
        x = b.add(x, keys[(group + 1) % 3])
        y = b.add(b.add(y, keys[(group + 2) % 3]), v.constant(group + 1, I32))
    return x


def _not(v: Vectors, args: Sequence[Value], expr: Typed) -> Value:
    return v.builder.not_(args[0])


def _select(v: Vectors, args: Sequence[Value], expr: Typed) -> Value:
    return v.builder.select(*args)


def _function(name: str) -> Row:
    def row(v: Vectors, args: Sequence[Value], expr: Typed) -> Value:
        return FUNCTIONS[name](v, *args)

    return row


ROWS: dict[str, Row] = {
    **{name: _function(name) for name in FUNCTIONS},
    "add": _arithmetic("fadd", "add"),
    "mul": _arithmetic("fmul", "mul"),
    "div": _div,
    "rem": lambda v, args, expr: v.int_rem(args[0], args[1], is_signed(expr.dtype)),
    "neg": _neg,
    "abs": _abs,
    "sign": _sign,
    "recip": lambda v, args, expr: v.div(v.like(args[0], 1.0), args[0]),
    "sqrt": lambda v, args, expr: v.sqrt(args[0]),
    "floor": lambda v, args, expr: v.floor(args[0]),
    "round": lambda v, args, expr: v.round(args[0]),
    "is_nan": lambda v, args, expr: v.is_nan(args[0]),
    "positive": lambda v, args, expr: (
        v.compare(">", args[0], v.like(args[0], 0.0)) if is_float(expr.args[0].dtype)
        else _ordered(v, ">", args[0], v.like(args[0], 0), expr.args[0].dtype)
    ),
    "max": _extreme(">"),
    "min": _extreme("<"),
    **{name: _compare(sign) for name, sign in (
        ("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="),
    )},
    "and": _arithmetic("and_", "and_"),
    "or": _arithmetic("or_", "or_"),
    "xor": _arithmetic("xor", "xor"),
    "not": _not,
    "shl": _shift(left=True),
    "shr": _shift(left=False),
    "select": _select,
    "cast": _cast,
    "bitcast": lambda v, args, expr: v.builder.bitcast(args[0], v.type_of(REGISTERS[expr.dtype])),
    "to_f16": lambda v, args, expr: v.from_f16(v.to_f16(args[0])),
    "to_bf16": lambda v, args, expr: v.from_bf16(v.to_bf16(args[0])),
    "threefry": _threefry,
    **{f"clamp_{sign}{bits}": _clamp for sign in "iu" for bits in (8, 16, 32, 64)},
    "inside": _inside,
    "affine": _affine,
    "index_div": lambda v, args, expr: v.builder.udiv(args[0], v.like(args[0], expr.attr)),
    "index_mod": lambda v, args, expr: v.builder.urem(args[0], v.like(args[0], expr.attr)),
    "least": lambda v, args, expr: v.builder.select(
        v.builder.icmp_unsigned("<", args[0], v.like(args[0], expr.attr)), args[0], v.like(args[0], expr.attr)
    ),
    "bounded": lambda v, args, expr: args[0],
    "minus": lambda v, args, expr: v.builder.sub(*args),
}  # fmt: skip
