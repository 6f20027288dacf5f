"""What each scalar op of an expression is in LLVM, by the dtype of its registers: the semantics of wire/ir/ops.py.

To add an op: a row of `ROWS`.  A row takes the operations of one width, the operands and the expression.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..compiler.expressions import Expr
from ..compiler.functions import FUNCTIONS
from .llvm import F32, I16, I32, ir
from .vectors import REGISTERS, Vectors

Value = Any
Row = Callable[[Vectors, Sequence[Value], Any], Value]
HALF = ir.HalfType()


def is_float(dtype: str) -> bool:
    return dtype in ("f32", "f64")


def is_signed(dtype: str) -> bool:
    return dtype.startswith("i")


@dataclass(frozen=True, slots=True)
class _Typed:
    """The parts of an expression that rows look at."""

    dtype: str
    args: tuple[Any, ...] = ()
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
    b = v.builder
    if dtype == "f16":
        return b.fpext(b.bitcast(value, v.type_of(HALF)), v.type_of(F32))
    if dtype == "bf16":
        return v.real(b.shl(b.zext(value, v.type_of(I32)), v.constant(16, I32)))
    return b.icmp_unsigned("!=", value, v.constant(0, ir.IntType(8))) if dtype == "bool" else value


def to_stored(v: Vectors, value: Value, dtype: str) -> Value:
    """What lies in memory for a register's value, which is rounded to the dtype already."""
    b = v.builder
    if dtype == "f16":
        return b.bitcast(b.fptrunc(value, v.type_of(HALF)), v.type_of(I16))
    if dtype == "bf16":
        return b.trunc(b.lshr(v.bits(value), v.constant(16, I32)), v.type_of(I16))
    return b.zext(value, v.type_of(ir.IntType(8))) if dtype == "bool" else value


# -- rows -------------------------------------------------------------------------------------------------


def _int(v: Vectors, value: int, like: Value) -> Value:
    scalar = like.type.element if v.lanes > 1 else like.type
    return v.constant(value, scalar)


def _float(v: Vectors, value: float, dtype: str) -> Value:
    return v.constant(value, REGISTERS[dtype])


def _arithmetic(float_op: str, int_op: str) -> Row:
    def row(v: Vectors, args: Sequence[Value], expr: Any) -> Value:
        return getattr(v.builder, float_op if is_float(expr.dtype) else int_op)(*args)

    return row


def _div(v: Vectors, args: Sequence[Value], expr: Any) -> Value:
    if is_float(expr.dtype):
        return v.div(*args)
    return _divided(v, args, expr.dtype)[0]


def _divided(v: Vectors, args: Sequence[Value], dtype: str) -> tuple[Value, Value]:
    """The floor quotient and the remainder with the divisor's sign; both 0 for x / 0."""
    b, (x, y) = v.builder, args
    zero, one = _int(v, 0, x), _int(v, 1, x)
    by_zero = b.icmp_unsigned("==", y, zero)
    if not is_signed(dtype):
        safe = b.select(by_zero, one, y)
        return b.select(by_zero, zero, b.udiv(x, safe)), b.select(by_zero, zero, b.urem(x, safe))
    by_minus = b.icmp_unsigned("==", y, _int(v, -1, x))
    safe = b.select(b.or_(by_zero, by_minus), one, y)
    quotient, rest = b.sdiv(x, safe), b.srem(x, safe)
    crossed = b.and_(b.icmp_unsigned("!=", rest, zero), b.icmp_signed("<", b.xor(rest, y), zero))
    quotient = b.select(crossed, b.sub(quotient, one), quotient)
    rest = b.select(crossed, b.add(rest, y), rest)
    quotient = b.select(by_minus, b.sub(zero, x), quotient)
    rest = b.select(by_minus, zero, rest)
    return b.select(by_zero, zero, quotient), b.select(by_zero, zero, rest)


def _shift(left: bool) -> Row:
    def row(v: Vectors, args: Sequence[Value], expr: Any) -> Value:
        b, (x, count) = v.builder, args
        bits = int(expr.dtype[1:])
        inside = b.icmp_unsigned("<", count, _int(v, bits, x))
        if not left and is_signed(expr.dtype):
            return b.ashr(x, b.select(inside, count, _int(v, bits - 1, x)))
        shifted = (b.shl if left else b.lshr)(x, b.select(inside, count, _int(v, 0, x)))
        return b.select(inside, shifted, _int(v, 0, x))

    return row


def _extreme(sign: str) -> Row:
    def row(v: Vectors, args: Sequence[Value], expr: Any) -> Value:
        b, (x, y) = v.builder, args
        if is_float(expr.dtype):  # NaN if either is
            first = b.or_(v.is_nan(x), b.fcmp_ordered(sign, x, y))
            return b.select(b.and_(v.is_nan(y), b.not_(v.is_nan(x))), y, b.select(first, x, y))
        if expr.dtype == "bool":
            return b.or_(x, y) if sign == ">" else b.and_(x, y)
        return b.select(_ordered(v, sign, x, y, expr.dtype), x, y)

    return row


def _ordered(v: Vectors, sign: str, x: Value, y: Value, dtype: str) -> Value:
    return (v.builder.icmp_signed if is_signed(dtype) else v.builder.icmp_unsigned)(sign, x, y)


def _compare(sign: str) -> Row:
    def row(v: Vectors, args: Sequence[Value], expr: Any) -> Value:
        dtype = expr.args[0].dtype
        return v.compare(sign, *args) if is_float(dtype) else _ordered(v, sign, args[0], args[1], dtype)

    return row


def _neg(v: Vectors, args: Sequence[Value], expr: Any) -> Value:
    return v.neg(args[0]) if is_float(expr.dtype) else v.builder.sub(_int(v, 0, args[0]), args[0])


def _abs(v: Vectors, args: Sequence[Value], expr: Any) -> Value:
    (x,) = args
    if is_float(expr.dtype):
        return v.abs(x)
    if not is_signed(expr.dtype):
        return x
    zero = _int(v, 0, x)
    return v.builder.select(v.builder.icmp_signed("<", x, zero), v.builder.sub(zero, x), x)


def _sign(v: Vectors, args: Sequence[Value], expr: Any) -> Value:
    (x,), b = args, v.builder
    if is_float(expr.dtype):
        one, zero = _float(v, 1.0, expr.dtype), _float(v, 0.0, expr.dtype)
        unit = b.select(v.compare(">", x, zero), one, b.select(v.compare("<", x, zero), v.neg(one), zero))
        return b.select(v.is_nan(x), x, unit)
    zero, one = _int(v, 0, x), _int(v, 1, x)
    positive = b.select(b.icmp_unsigned("!=", x, zero), one, zero)
    return b.select(b.icmp_signed("<", x, zero), _int(v, -1, x), positive) if is_signed(expr.dtype) else positive


def _cast(v: Vectors, args: Sequence[Value], expr: Any) -> Value:
    (x,), b, source, to = args, v.builder, expr.attr, expr.dtype
    kind = v.type_of(REGISTERS[to])
    if source == to:
        return x
    if to == "bool":
        return (
            v.compare("!=", x, _float(v, 0.0, source)) if is_float(source) else b.icmp_unsigned("!=", x, _int(v, 0, x))
        )
    if is_float(source):
        if is_float(to):
            return b.fpext(x, kind) if to == "f64" else b.fptrunc(x, kind)
        return _saturated(v, x, source, to)
    if is_float(to):
        return (b.sitofp if is_signed(source) else b.uitofp)(x, kind)
    if source == "bool":
        return b.zext(x, kind)
    have, want = int(source[1:]), int(to[1:])
    if have == want:
        return x
    return b.trunc(x, kind) if want < have else (b.sext if is_signed(source) else b.zext)(x, kind)


def _saturated(v: Vectors, x: Value, source: str, to: str) -> Value:
    """A float as the nearest integer towards zero that the dtype has; NaN as 0."""
    name, bits = "fptosi" if is_signed(to) else "fptoui", int(to[1:])
    kind = v.type_of(REGISTERS[to])
    lanes = f"v{v.lanes}" if v.lanes > 1 else ""
    full = f"llvm.{name}.sat.{lanes}i{bits}.{lanes}{source}"
    module = v.builder.module
    function = module.globals.get(full) or ir.Function(module, ir.FunctionType(kind, [x.type]), full)
    return v.builder.call(function, [x])


def _rounded_f16(v: Vectors, args: Sequence[Value], expr: Any) -> Value:
    b = v.builder
    return b.fpext(b.fptrunc(args[0], v.type_of(HALF)), v.type_of(F32))


def _rounded_bf16(v: Vectors, args: Sequence[Value], expr: Any) -> Value:
    """Round to the nearest bf16, half to even; a NaN stays one."""
    (x,), b = args, v.builder
    bits = v.bits(x)
    odd = b.and_(b.lshr(bits, v.constant(16, I32)), v.constant(1, I32))
    near = b.add(bits, b.add(odd, v.constant(0x7FFF, I32)))
    kept = b.select(v.is_nan(x), b.or_(bits, v.constant(0x400000, I32)), near)
    return v.real(b.and_(kept, v.constant(0xFFFF0000 - (1 << 32), I32)))


def _clamp(v: Vectors, args: Sequence[Value], expr: Any) -> Value:
    (x,), b, dtype, most = args, v.builder, expr.args[0].dtype, expr.attr
    bits = int(dtype[1:])
    if is_signed(dtype):
        x = b.select(b.icmp_signed("<", x, _int(v, 0, x)), _int(v, 0, x), x)
    if most < 1 << (bits - is_signed(dtype)):
        x = b.select(b.icmp_unsigned(">", x, _int(v, most, x)), _int(v, most, x), x)
    kind = v.type_of(I32)
    return x if bits == 32 else b.trunc(x, kind) if bits > 32 else b.zext(x, kind)


def _inside(v: Vectors, args: Sequence[Value], expr: Any) -> Value:
    (x,), (lo, hi) = args, expr.attr
    return v.builder.icmp_unsigned("<", v.builder.sub(x, _int(v, lo, x)), _int(v, hi - lo, x))


def _affine(v: Vectors, args: Sequence[Value], expr: Any) -> Value:
    const, *factors = expr.attr
    total = None
    for value, factor in zip(args, factors, strict=True):
        term = value if factor == 1 else v.builder.mul(value, _int(v, factor, value))
        total = term if total is None else v.builder.add(total, term)
    return v.builder.add(total, _int(v, const, total)) if const else total


def _threefry(v: Vectors, args: Sequence[Value], expr: Any) -> Value:
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


def _not(v: Vectors, args: Sequence[Value], expr: Any) -> Value:
    return v.builder.not_(args[0])


def _select(v: Vectors, args: Sequence[Value], expr: Any) -> Value:
    return v.builder.select(*args)


def _function(name: str) -> Row:
    def row(v: Vectors, args: Sequence[Value], expr: Any) -> Value:
        return FUNCTIONS[name](v, *args)

    return row


ROWS: dict[str, Row] = {
    **{name: _function(name) for name in FUNCTIONS},
    "add": _arithmetic("fadd", "add"),
    "mul": _arithmetic("fmul", "mul"),
    "div": _div,
    "rem": lambda v, args, expr: _divided(v, args, expr.dtype)[1],
    "neg": _neg,
    "abs": _abs,
    "sign": _sign,
    "recip": lambda v, args, expr: v.div(_float(v, 1.0, expr.dtype), args[0]),
    "sqrt": lambda v, args, expr: v.sqrt(args[0]),
    "floor": lambda v, args, expr: v.floor(args[0]),
    "round": lambda v, args, expr: v.round(args[0]),
    "is_nan": lambda v, args, expr: v.is_nan(args[0]),
    "positive": lambda v, args, expr: (
        v.compare(">", args[0], _float(v, 0.0, expr.args[0].dtype)) if is_float(expr.args[0].dtype)
        else _ordered(v, ">", args[0], _int(v, 0, args[0]), expr.args[0].dtype)
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
    "to_f16": _rounded_f16,
    "to_bf16": _rounded_bf16,
    "threefry": _threefry,
    **{f"clamp_{sign}{bits}": _clamp for sign in "iu" for bits in (8, 16, 32, 64)},
    "inside": _inside,
    "affine": _affine,
    "index_div": lambda v, args, expr: v.builder.udiv(args[0], _int(v, expr.attr, args[0])),
    "index_mod": lambda v, args, expr: v.builder.urem(args[0], _int(v, expr.attr, args[0])),
    "least": lambda v, args, expr: v.builder.select(
        v.builder.icmp_unsigned("<", args[0], _int(v, expr.attr, args[0])), args[0], _int(v, expr.attr, args[0])
    ),
    "bounded": lambda v, args, expr: args[0],
    "minus": lambda v, args, expr: v.builder.sub(*args),
}  # fmt: skip
