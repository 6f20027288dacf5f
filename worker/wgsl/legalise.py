"""Legalisation: the WGSL text that computes each scalar op, by the dtype of its registers.

`text_of(expr, args)` is the one door.  Where WGSL's own operator means what the op table says, the row is that
operator; otherwise it calls a function of `polyfills.py`.  To add an op or a dtype: a row.
"""

from __future__ import annotations

from collections.abc import Callable

from ..compiler.expressions import Expr

FOURS = frozenset({"cos", "erf", "exp", "exp2", "expm1", "log", "log1p", "log2", "sin", "tanh"})
"""Functions that have a text of four elements at once, as kernels/fours.py asks for."""

# (op, dtype of the first operand) -> text; {0} {1} {2} are the operands
ROWS: dict[tuple[str, str], str] = {
    **{(op, "f32"): f"gm_{op}({{0}})" for op in (
        "exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos", "tan", "tanh", "erf", "sign", "is_nan",
        "positive",
    )},
    **{(op, "f32"): f"{op}({{0}})" for op in ("sqrt", "floor", "round", "abs")},
    **{(op, "f32"): f"gm_{op}({{0}}, {{1}})" for op in ("max", "min", "pow", "rem", "atan2", "eq", "lt", "le")},
    **{(op, "f32x4"): f"gm_{op}4({{0}})" for op in FOURS},
    ("ne", "f32"): "(!gm_eq({0}, {1}))",
    ("gt", "f32"): "gm_lt({1}, {0})",
    ("ge", "f32"): "gm_le({1}, {0})",
    ("add", "f32"): "({0} + {1})",
    ("mul", "f32"): "({0} * {1})",
    ("div", "f32"): "({0} / {1})",
    ("neg", "f32"): "(-{0})",
    ("recip", "f32"): "(1.0f / {0})",
    ("to_f16", "f32"): "gm_round_f16({0})",
    ("rank", "f32"): "gm_rank({0})",
    ("rank", "i32"): "(bitcast<u32>({0}) ^ 0x80000000u)",
    ("rank", "u32"): "{0}",
    ("neg", "i32"): "(0i - {0})",
    ("neg", "u32"): "(0u - {0})",
    ("abs", "i32"): "abs({0})",
    ("abs", "u32"): "{0}",
    ("sign", "i32"): "sign({0})",
    ("sign", "u32"): "min({0}, 1u)",
    ("not", "bool"): "(!{0})",
    ("and", "bool"): "({0} && {1})",
    ("or", "bool"): "({0} || {1})",
    ("xor", "bool"): "({0} != {1})",
    ("eq", "bool"): "({0} == {1})",
    ("ne", "bool"): "({0} != {1})",
    ("lt", "bool"): "(!{0} && {1})",
    ("gt", "bool"): "({0} && !{1})",
    ("le", "bool"): "(!{0} || {1})",
    ("ge", "bool"): "({0} || !{1})",
    ("max", "bool"): "({0} || {1})",
    ("min", "bool"): "({0} && {1})",
    ("clamp_i32", "i32"): "u32(clamp({0}, 0i, {attr}i))",
    ("clamp_u32", "u32"): "min({0}, {attr}u)",
    ("least", "u32"): "min({0}, {attr}u)",
    ("minus", "u32"): "({0} - {1})",
    ("threefry", "u32"): "gm_threefry({0}, {1}, {2})",
    ("better", "u32"): "({0} > {1} || ({0} == {1} && {2} < {3}))",
}  # fmt: skip
for _int in ("i32", "u32"):
    ROWS.update({(op, _int): f"({{0}} {sign} {{1}})" for op, sign in (
        ("add", "+"), ("mul", "*"), ("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="),
        ("and", "&"), ("or", "|"), ("xor", "^"),
    )})  # fmt: skip
    ROWS.update({(op, _int): f"gm_{op}_{_int}({{0}}, {{1}})" for op in ("div", "rem", "pow", "shl", "shr")})
    ROWS.update({(op, _int): f"{op}({{0}}, {{1}})" for op in ("max", "min")})
    ROWS[("not", _int)] = "(~{0})"
ROWS.update({("add", f"{_dtype}x4"): "({0} + {1})" for _dtype in ("f32", "i32", "u32")})

CASTS: dict[tuple[str, str], str] = {
    ("f32", "i32"): "gm_f32_to_i32({0})",
    ("f32", "u32"): "gm_f32_to_u32({0})",
    ("f32", "bool"): "gm_nonzero({0})",
    ("i32", "f32"): "f32({0})",
    ("i32", "u32"): "u32({0})",
    ("i32", "bool"): "({0} != 0i)",
    ("u32", "f32"): "f32({0})",
    ("u32", "i32"): "i32({0})",
    ("u32", "bool"): "({0} != 0u)",
    ("bool", "f32"): "select(0.0f, 1.0f, {0})",
    ("bool", "i32"): "select(0i, 1i, {0})",
    ("bool", "u32"): "select(0u, 1u, {0})",
}
LOOPING = frozenset({("rem", "f32"), ("rem", "f16")})  # polyfills that loop: kept out of reductions' loops
COSTLY = frozenset({
    "exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos", "tan", "tanh", "erf", "atan2", "pow", "rem",
    "random_bits",
})  # fmt: skip  # not worth computing twice


def text_of(expr: Expr, args: list[str]) -> str:
    """The WGSL expression for `expr`, given the text of its operands."""
    special = _SPECIAL.get(expr.op)
    if special is not None:
        return special(expr, args)
    return ROWS[expr.op, expr.args[0].dtype].format(*args, attr=expr.attr)


def literal(bits: int, dtype: str) -> str:
    """A literal that every WGSL compiler accepts: NaN, Inf, -0.0, denormals and INT_MIN go through their bits."""
    if dtype == "bool":
        return "true" if bits else "false"
    bits &= 0xFFFFFFFF
    if dtype == "u32":
        return f"{bits}u"
    if dtype == "i32":
        return f"{bits}i" if bits < 1 << 31 else f"bitcast<i32>({bits}u)"
    exponent = (bits >> 23) & 0xFF
    if bits == 0 or 64 < exponent < 191:
        return f"{_float(bits):.9g}f" if bits >> 31 == 0 else f"(-{_float(bits & 0x7FFFFFFF):.9g}f)"
    return f"gm_bits({bits:#010x}u)"


def _float(bits: int) -> float:
    if bits == 0:
        return 0.0
    return float((bits & 0x7FFFFF) | 0x800000) * 2.0 ** (((bits >> 23) & 0xFF) - 150)


def _cast(expr: Expr, args: list[str]) -> str:
    return CASTS[expr.attr, expr.dtype].format(*args)


def _bitcast(expr: Expr, args: list[str]) -> str:
    return args[0] if expr.attr == expr.dtype else f"bitcast<{expr.dtype}>({args[0]})"


def _select(expr: Expr, args: list[str]) -> str:
    return f"select({args[2]}, {args[1]}, {args[0]})"


def _inside(expr: Expr, args: list[str]) -> str:
    lo, hi = expr.attr
    return f"({args[0]} < {hi}u)" if lo == 0 else f"(({args[0]} - {lo}u) < {hi - lo}u)"


def _affine(expr: Expr, args: list[str]) -> str:
    const, *factors = expr.attr
    parts = []
    for text, factor in zip(args, factors, strict=True):
        term = text if abs(factor) == 1 else f"{text} * {abs(factor)}u"
        parts.append(("- " if factor < 0 else "+ ") + term)
    if const:
        parts.append(f"{'+' if const > 0 else '-'} {abs(const)}u")
    parts.sort(key=lambda part: part[0] == "-")  # start with a positive term; u32 wraps, so any order is right
    joined = " ".join(parts)
    return f"({joined[2:]})" if joined[0] == "+" else f"(0u {joined})"


def _div(expr: Expr, args: list[str]) -> str:
    by = expr.attr
    return f"({args[0]} >> {by.bit_length() - 1}u)" if by & (by - 1) == 0 else f"({args[0]} / {by}u)"


def _mod(expr: Expr, args: list[str]) -> str:
    by = expr.attr
    return f"({args[0]} & {by - 1}u)" if by & (by - 1) == 0 else f"({args[0]} % {by}u)"


_SPECIAL: dict[str, Callable[[Expr, list[str]], str]] = {
    "cast": _cast,
    "bitcast": _bitcast,
    "select": _select,
    "inside": _inside,
    "affine": _affine,
    "index_div": _div,
    "index_mod": _mod,
    "splat": lambda expr, args: f"vec4<{expr.dtype.split('x')[0]}>({args[0]})",
    "quad": lambda expr, args: f"vec4<{expr.dtype.split('x')[0]}>({', '.join(args)})",
    "lane": lambda expr, args: f"{args[0]}.{'xyzw'[expr.attr]}",
    "broadcast": lambda expr, args: f"subgroupBroadcast({args[0]}, {expr.attr}u)",
    "dot4": lambda expr, args: f"dot({args[0]}, {args[1]})",
    "scaled": lambda expr, args: f"({args[0]} * {args[1]})",
    "shuffle": lambda expr, args: f"subgroupShuffle({args[0]}, {args[1]})",
    "fma": lambda expr, args: f"({args[0]} + {args[1]} * {args[2]})",
    "bounded": lambda expr, args: args[0],
    "opaque": lambda expr, args: f"bitcast<f32>(bitcast<u32>({args[0]}) ^ gm_zero)",
}
