"""The transcendental functions (`worker/compiler/functions.py`) as WGSL: every operation is a `let` of the text.

`Text` is their arithmetic in f32, of one element or of four.  It relies on no rounding (`exact`), and decides what is
special on bits, since WGSL lets compilers assume that NaN and Inf do not happen.  What takes f64 or integers of 64 bits
is text of `polyfills.py` here: the reduction of large angles, and the power of two positive numbers.

To add a function: a row of `FUNCTIONS` there.  To have it of four elements: its name in `FOURS` of `legalise.py`.
"""

from __future__ import annotations

import inspect
import struct
from collections.abc import Callable
from dataclasses import dataclass

from ..compiler.functions import FUNCTIONS, Arithmetic
from .legalise import FOURS, literal

INFINITY = float("inf")
# What becomes of a comparison with a literal, by its sign and the literal: {0} are bits.
BY_BITS = {
    ("==", 0.0): "({0} & {1}) == {2}",
    (">", 0.0): "({0} - {3}) < {4}",
    ("<", 0.0): "({0} - {5}) < {4}",
    ("==", INFINITY): "{0} == {4}",
    ("<", INFINITY): "({0} & {1}) < {4}",  # of sizes: none of them is -Inf
}
BY_BITS_OF = (0x7FFFFFFF, 0, 1, 0x7F800000, 0x80000001)  # what {1} to {5} are


@dataclass(frozen=True, slots=True)
class Term:
    """A value: its name in the text, or a literal."""

    text: str
    dtype: str
    value: float | None = None  # of a literal


class Text:
    """Operations on values of several lanes, as lines of a function's body; equal operations are one line."""

    exact = False

    def __init__(self, lanes: int = 1) -> None:
        self.lanes = lanes
        self.lines: list[str] = []
        self._known: dict[str, Term] = {}

    def type_of(self, dtype: str) -> str:
        return dtype if self.lanes == 1 else f"vec{self.lanes}<{dtype}>"

    def width(self, a: Term) -> int:
        return 32

    def like(self, a: Term, value: float) -> Term:
        bits = int(value) if a.dtype == "u32" else _bits(value)
        text = literal(bits, a.dtype)
        return Term(text if self.lanes == 1 else f"{self.type_of(a.dtype)}({text})", a.dtype, float(value))

    # -- floats -------------------------------------------------------------------------------------------

    def add(self, a: Term, b: Term) -> Term:
        return a if b.value == 0 else b if a.value == 0 else self._let(f"{a.text} + {b.text}", "f32")

    def sub(self, a: Term, b: Term) -> Term:
        return a if b.value == 0 else self._let(f"{a.text} - {b.text}", "f32")

    def mul(self, a: Term, b: Term) -> Term:
        if 0 in (a.value, b.value):
            return a if a.value == 0 else b
        return a if b.value == 1 else b if a.value == 1 else self._let(f"{a.text} * {b.text}", "f32")

    def div(self, a: Term, b: Term) -> Term:
        return a if a.value == 0 else self._let(f"{a.text} / {b.text}", "f32")

    def neg(self, a: Term) -> Term:
        return a if a.value == 0 else self._let(f"-{a.text}", "f32")

    def fma(self, a: Term, b: Term, c: Term) -> Term:
        return self.add(self.mul(a, b), c)

    def abs(self, a: Term) -> Term:
        return self._let(f"abs({a.text})", "f32")

    def trunc(self, a: Term) -> Term:
        return self._let(f"trunc({a.text})", "f32")

    def round(self, a: Term) -> Term:
        return self._let(f"round({a.text})", "f32")

    def scaled(self, a: Term, n: Term, otherwise: Callable[[], Term]) -> Term:
        return otherwise()

    def is_nan(self, a: Term) -> Term:
        bits = self.bits(a)
        size = self.bit_and(bits, self.like(bits, 0x7FFFFFFF))
        return self._let(f"{size.text} > {self.like(bits, 0x7F800000).text}", "bool")

    def compare(self, sign: str, a: Term, b: Term) -> Term:
        special = None if b.value is None else BY_BITS.get((sign, b.value))
        if special is None:
            return self._let(f"{a.text} {sign} {b.text}", "bool")
        bits = self.bits(a)
        return self._let(special.format(bits.text, *(self.like(bits, value).text for value in BY_BITS_OF)), "bool")

    def larger(self, a: Term, b: Term) -> Term:
        return self._let(f"max({a.text}, {b.text})", "f32")

    def smaller(self, a: Term, b: Term) -> Term:
        return self._let(f"min({a.text}, {b.text})", "f32")

    # -- integers and conditions --------------------------------------------------------------------------

    def int_add(self, a: Term, b: Term) -> Term:
        return self._let(f"{a.text} + {b.text}", "u32")

    def int_sub(self, a: Term, b: Term) -> Term:
        return self._let(f"{a.text} - {b.text}", "u32")

    def int_compare(self, sign: str, a: Term, b: Term, signed: bool = False) -> Term:
        assert not signed
        return self._let(f"{a.text} {sign} {b.text}", "bool")

    def bit_and(self, a: Term, b: Term) -> Term:
        return self._let(f"{a.text} & {b.text}", a.dtype)

    def bit_or(self, a: Term, b: Term) -> Term:
        return self._let(f"{a.text} | {b.text}", a.dtype)

    def bit_xor(self, a: Term, b: Term) -> Term:
        return self._let(f"{a.text} {'!=' if a.dtype == 'bool' else '^'} {b.text}", a.dtype)

    def bit_not(self, a: Term) -> Term:
        return self._let(f"{'!' if a.dtype == 'bool' else '~'}{a.text}", a.dtype)

    def shift_left(self, a: Term, by: Term) -> Term:
        return self._let(f"{a.text} << {by.text}", "u32")

    def shift_right(self, a: Term, by: Term) -> Term:
        return self._let(f"{a.text} >> {by.text}", "u32")

    def bits(self, a: Term) -> Term:
        return self._let(f"bitcast<{self.type_of('u32')}>({a.text})", "u32")

    def real(self, a: Term) -> Term:
        return self._let(f"bitcast<{self.type_of('f32')}>({a.text})", "f32")

    def whole(self, a: Term) -> Term:
        return self._let(f"{self.type_of('f32')}({a.text})", "f32")

    def select(self, condition: Term, a: Term, b: Term) -> Term:
        return a if a == b else self._let(f"select({b.text}, {a.text}, {condition.text})", a.dtype)

    # -- what other targets have more for -----------------------------------------------------------------

    def turned(self, x: Term, fine: bool = False) -> tuple[Term, Term, Term]:
        """`fine`: small angles behind large ones have all of their bits, and not 30 of a quarter turn."""
        form = "4" if self.lanes == 4 else "_fine" if fine else ""
        place = self._let(f"gm_turn{form}({self.abs(x).text})", "turned")
        quarter, rest = Term(f"{place.text}.quarter", "u32"), Term(f"{place.text}.rest", "f32")
        sign = self.bit_and(self.bits(x), self.like(quarter, 0x80000000))
        minus = self.int_compare("!=", sign, self.like(quarter, 0))
        quarter = self.select(minus, self.int_sub(self.like(quarter, 0), quarter), quarter)
        return quarter, self.real(self.bit_xor(self.bits(rest), sign)), self.like(x, 0.0)

    def powered(self, size: Term, y: Term) -> Term:
        assert self.lanes == 1
        return self._let(f"gm_power({size.text}, {y.text})", "f32")

    def _let(self, text: str, dtype: str) -> Term:
        known = self._known.get(text)
        if known is None:
            known = self._known[text] = Term(f"v{len(self._known)}", dtype)
            self.lines.append(f"  let {known.text} = {text};")
        return known


def _bits(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def definition(name: str, function: Callable[..., Term], lanes: int = 1) -> str:
    """The WGSL function of this name: a function of an arithmetic and of operands, over f32 or vectors of it."""
    text = Text(lanes)
    operands = [Term(each, "f32") for each in list(inspect.signature(function).parameters)[1:]]
    result = function(text, *operands)
    kind = text.type_of("f32")
    given = ", ".join(f"{operand.text}: {kind}" for operand in operands)
    return "\n".join([f"fn {name}({given}) -> {kind} {{", *text.lines, f"  return {result.text};", "}"])


def definitions() -> dict[str, str]:
    """WGSL functions by their names: `gm_exp`, and of four elements `gm_sin4`."""
    made = {f"gm_{name}": definition(f"gm_{name}", function) for name, function in FUNCTIONS.items()}
    return made | {f"gm_{name}4": definition(f"gm_{name}4", FUNCTIONS[name], 4) for name in sorted(FOURS)}


_: type[Arithmetic] = Text
