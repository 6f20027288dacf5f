"""Transcendental functions, written once: as operations that every processor rounds alike.

`FUNCTIONS` maps an op of the op table to a function of an `Arithmetic`, which writes the operations down, and of the
operands: all f32 or all f64.  Other floats are computed in f32.

On processors (`Arithmetic.exact`) these operations are a definition, by the name `native-2` of the arithmetic: an
element's bits follow from its operands alone, whatever the processor and however many elements are computed at a time.
So there is no call of a library, no table of a processor's own, and a branch only where it changes no bits
(`rarely`).  A change of one operation here changes results, and needs another name.

GPUs' compilers round a product before its sum or not, and may reorder sums.  What a rounding lost is not computed for
them, and constants have few bits where a product with them has to be exact.  Results are off by some units of the last
place more.

Special cases are C99's (annex F).  Denormals are numbers, NaN is always the same quiet NaN without a sign.

The methods are those of the literature; the coefficients are ours, by docs/tools/polynomials.py:

* exp, expm1, tanh: x = n ln 2 + r in the way of W. J. Cody and W. Waite, "Software Manual for the Elementary Functions"
  (1980), and a polynomial in r.
* log: x = 2^e (1 + f), and log(1 + f) by s = f / (2 + f), as in Sun's fdlibm (1993).
* sin, cos, tan: Cody and Waite, for large x M. Payne and R. Hanek, "Radian reduction for trigonometric functions"
  (SIGNUM 18, 1983), with quotients and remainders that fma makes exact.
* erf: a polynomial near 0, and 1 - exp of a polynomial behind it, which is N. Juffa's form.
* sums and products in two parts: T. J. Dekker, "A floating-point technique for extending the available precision"
  (Numerische Mathematik 18, 1971).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, TypeGuard

from .polynomials import (
    ATAN,
    COS,
    ERF,
    ERF_NEAR,
    ERFC,
    EXP,
    EXP_SHORT,
    HALF_PI,
    HALF_PI_BELOW,
    LN2,
    LN2_SHORT,
    LOG,
    LOG2E,
    LOG_SHORT,
    LOG_TAIL,
    SIN,
    TANH,
    TANH_NEAR,
    THIRD_AND_FIFTH,
    TURN_BITS,
    TWO_OVER_PI,
    TWO_OVER_PI_NEAR,
)

Value = Any  # what an Arithmetic computes with: elements of one type
Pair = tuple[Value, Value]  # a sum of two floats, the second much the smaller


class Arithmetic(Protocol):
    """The operations that functions are made of; `worker.native.vectors.Vectors` has them, and says what they mean.

    `exact` says that operations are rounded as they are written, and `fma` once.
    """

    @property
    def exact(self) -> bool: ...

    def width(self, a: Value) -> int: ...
    def like(self, a: Value, value: float) -> Value: ...

    def add(self, a: Value, b: Value) -> Value: ...
    def sub(self, a: Value, b: Value) -> Value: ...
    def mul(self, a: Value, b: Value) -> Value: ...
    def div(self, a: Value, b: Value) -> Value: ...
    def neg(self, a: Value) -> Value: ...
    def fma(self, a: Value, b: Value, c: Value) -> Value: ...
    def abs(self, a: Value) -> Value: ...
    def trunc(self, a: Value) -> Value: ...
    def round(self, a: Value) -> Value: ...
    def scaled(self, a: Value, n: Value, otherwise: Callable[[], Value]) -> Value: ...
    def is_nan(self, a: Value) -> Value: ...
    def compare(self, sign: str, a: Value, b: Value) -> Value: ...
    def larger(self, a: Value, b: Value) -> Value: ...
    def smaller(self, a: Value, b: Value) -> Value: ...

    def int_add(self, a: Value, b: Value) -> Value: ...
    def int_sub(self, a: Value, b: Value) -> Value: ...
    def int_compare(self, sign: str, a: Value, b: Value, signed: bool = False) -> Value: ...
    def bit_and(self, a: Value, b: Value) -> Value: ...
    def bit_or(self, a: Value, b: Value) -> Value: ...
    def bit_xor(self, a: Value, b: Value) -> Value: ...
    def bit_not(self, a: Value) -> Value: ...
    def shift_left(self, a: Value, by: Value) -> Value: ...
    def shift_right(self, a: Value, by: Value) -> Value: ...

    def bits(self, a: Value) -> Value: ...
    def real(self, a: Value) -> Value: ...
    def whole(self, a: Value) -> Value: ...
    def select(self, condition: Value, a: Value, b: Value) -> Value: ...

    def turned(self, x: Value, fine: bool = False) -> tuple[Value, Value, Value]: ...
    def powered(self, size: Value, y: Value) -> Value: ...


class WideArithmetic(Arithmetic, Protocol):
    """The operations of a target with f64 and integers of 64 bits; `turned` and `powered` are written here for it."""

    def int_mul(self, a: Value, b: Value) -> Value: ...
    def int_mul_high(self, a: Value, b: Value) -> Value: ...
    def shift_right_signed(self, a: Value, by: Value) -> Value: ...
    def whole_to_f64(self, a: Value) -> Value: ...
    def widen(self, a: Value) -> Value: ...
    def narrow(self, a: Value) -> Value: ...
    def lower_half(self, a: Value) -> Value: ...
    def rarely(self, condition: Value, usual: Sequence[Value], rare: Callable[[], Sequence[Value]]) -> list[Value]: ...
    def lookup(self, words: Sequence[int], index: Value) -> Value: ...


def is_wide(v: Arithmetic) -> TypeGuard[WideArithmetic]:
    """A target whose operations are exact has all of these."""
    return v.exact


@dataclass(frozen=True, slots=True)
class Format:
    """What is known of a float of `width` bits, `fraction` of which are behind the point."""

    width: int
    fraction: int
    exp_low: float  # below it exp is 0
    exp_high: float  # above it exp is infinite
    exp_normal: float  # up to it exp of either sign is a normal number
    expm1_low: float  # below it expm1 is -1
    tanh_high: float  # above it tanh is 1
    erf_high: float  # above it erf is 1
    turn_high: float  # up to here sums of products reduce an angle

    @property
    def bias(self) -> int:
        return 127 if self.width == 32 else 1023

    @property
    def to_whole(self) -> float:
        """A float's sum with this is a whole number, rounded half to even, which stands in the low bits of the sum."""
        return 1.5 * 2.0**self.fraction

    @property
    def whole_bits(self) -> int:
        """The bits of `to_whole`."""
        return (self.bias + self.fraction) << self.fraction | 1 << (self.fraction - 1)

    @property
    def sign(self) -> int:
        return 1 << (self.width - 1)

    @property
    def root_half(self) -> int:
        """The bits of about 1 / sqrt(2)."""
        return 0x3F3504F3 if self.width == 32 else 0x3FE6A09E667F3BCD


FORMATS = {
    32: Format(32, 23, -104.0, 89.0, 87.0, -20.0, 10.0, 4.0, 2.0**17),
    64: Format(64, 52, -746.0, 710.0, 708.0, -40.0, 20.0, 6.0, 2.0**30),
}
INFINITY, NAN = float("inf"), float("nan")


# -- exp and its kin --------------------------------------------------------------------------------------


def exp(v: Arithmetic, x: Value) -> Value:
    """2^n (1 + r + ...), where 2^n is an addition to the exponent.  Results that are no normal numbers are rare, all
    but 0: half of the scores of attention are -infinity."""
    if not is_wide(v):
        return _nan_of(v, x, _exp_by_one_factor(v, x))
    form = FORMATS[v.width(x)]
    zero, one, whole = (v.like(x, value) for value in (0.0, 1.0, form.to_whole))
    counted = v.fma(x, v.like(x, LOG2E[form.width][0]), whole)
    n = v.sub(counted, whole)
    high, low = (v.like(x, -part) for part in LN2[form.width])
    r = v.fma(n, low, v.fma(n, high, x))
    near = v.fma(v.fma(_polynomial(v, r, EXP), r, one), r, one)
    bits = v.bits(counted)
    scaled = v.real(v.int_add(v.bits(near), v.shift_left(bits, v.like(bits, form.fraction))))

    def at_the_ends() -> Sequence[Value]:
        n, r, low = _without_ln2(v, _clamped(v, x, form.exp_low, form.exp_high))
        return [_nan_of(v, x, _scaled(v, _exp_near(v, r, low), n))]

    gone = v.compare("<", x, v.like(x, form.exp_low))
    usual = v.bit_or(gone, v.compare("<", v.abs(x), v.like(x, form.exp_normal)))
    (y,) = v.rarely(v.bit_not(usual), [scaled], at_the_ends)
    return v.select(gone, zero, y)


def _exp_by_one_factor(v: Arithmetic, x: Value) -> Value:
    """exp of an f32, and 0 where that is less than 2e-38: the op table allows it, as processors may not have
    denormals."""
    n, r, low = _without_ln2(v, _clamped(v, x, -87.3, FORMATS[32].exp_high))
    y = _exp_near(v, r, low)
    return v.mul(v.add(y, y), _power_of_2(v, v.sub(n, v.like(x, 1.0))))


def exp2(v: Arithmetic, x: Value) -> Value:
    form = FORMATS[v.width(x)]
    gone, there = _vanishing(v, x, -1.5 * (form.bias + 1))
    clamped = v.smaller(there, v.like(x, 1.5 * (form.bias + 1)))
    n = v.round(clamped)
    r, low = _times(v, v.sub(clamped, n), LN2)
    return _nan_of(v, x, v.select(gone, v.like(x, 0.0), _scaled(v, _exp_near(v, r, low), n)))


def expm1(v: Arithmetic, x: Value) -> Value:
    """2^n ((1 - 2^-n) + r + ...), in which nothing cancels."""
    form = FORMATS[v.width(x)]
    n, r, low = _without_ln2(v, _clamped(v, x, form.expm1_low, form.exp_high))
    tail = v.fma(v.mul(r, r), _polynomial(v, r, EXP), low)
    unit = _power_of_2(v, v.neg(v.smaller(n, v.like(x, form.bias - 1.0))))
    start, lost = _sum(v, v.like(x, 1.0), v.neg(unit))
    high, rest = _fast_sum(v, start, r)
    y = _scaled(v, v.add(high, v.add(v.add(rest, lost), tail)), n)
    return _nan_of(v, x, _with_sign_too(v, y, x))


def tanh(v: Arithmetic, x: Value) -> Value:
    """A polynomial, and where little cancels 1 - 2 / (e^2x + 1), both parts of the quotient divided by 2^n."""
    form = FORMATS[v.width(x)]
    one = v.like(x, 1.0)
    size = v.smaller(v.abs(x), v.like(x, form.tanh_high))
    z = v.mul(size, size)
    small = v.fma(v.mul(size, z), _polynomial(v, z, TANH), size)
    n, r, low = _without_ln2(v, v.add(size, size))
    unit = _power_of_2(v, v.neg(n))
    tail = v.fma(v.mul(r, r), _polynomial(v, r, EXP), low)
    below = v.add(v.add(one, unit), v.add(r, tail))
    large = v.sub(one, v.div(v.add(unit, unit), below))
    y = v.select(v.compare("<", size, v.like(x, TANH_NEAR)), small, large)
    return _nan_of(v, x, _with_sign_too(v, y, x))


def erf(v: Arithmetic, x: Value) -> Value:
    form = FORMATS[v.width(x)]
    one, edge = v.like(x, 1.0), v.like(x, ERF_NEAR)
    size = v.smaller(v.abs(x), v.like(x, form.erf_high))
    near = v.smaller(size, edge)
    small = v.fma(near, _polynomial(v, v.mul(near, near), ERF), near)
    n, r, low = _without_ln2(v, _polynomial(v, v.larger(size, edge), ERFC))
    unit = _power_of_2(v, n)  # 1 - 2^n exp(r), without a rounding of exp
    tail = v.fma(v.mul(r, r), _polynomial(v, r, EXP), low)
    large = v.fma(v.neg(unit), v.add(r, tail), v.sub(one, unit))
    y = v.select(v.compare("<", size, edge), small, large)
    return _nan_of(v, x, _with_sign_too(v, y, x))


def _without_ln2(v: Arithmetic, x: Value) -> tuple[Value, Value, Value]:
    """Whole n and r with its rest, within half of ln 2: x = n ln 2 + r + rest.  n is never -0."""
    form = FORMATS[v.width(x)]
    if not v.exact:
        n = v.round(v.mul(x, v.like(x, LOG2E[form.width][0])))
        high, low = (v.like(x, -part) for part in LN2_SHORT[form.width])
        return n, v.fma(n, low, v.fma(n, high, x)), v.like(x, 0.0)
    whole = v.like(x, form.to_whole)
    n = v.sub(v.fma(x, v.like(x, LOG2E[form.width][0]), whole), whole)
    high, low = (v.like(x, -part) for part in LN2[form.width])
    first = v.fma(n, high, x)  # exact
    r = v.fma(n, low, first)
    return n, r, v.fma(n, low, v.sub(first, r))


def _vanishing(v: Arithmetic, x: Value, low: float) -> tuple[Value, Value]:
    """Whether x is below `low`, so that the result is 0, and x with 0 in place of such.  Attention computes exp of
    -infinity for half of its scores, and processors take many cycles for a product that is denormal."""
    gone = v.compare("<", x, v.like(x, low))
    return gone, v.select(gone, v.like(x, 0.0), x)


def _exp_near(v: Arithmetic, r: Value, low: Value) -> Value:
    """exp(r + low) for r within half of ln 2."""
    high, rest = _fast_sum(v, v.like(r, 1.0), r)
    return v.add(high, v.add(rest, v.fma(v.mul(r, r), _polynomial(v, r, EXP), low)))


def _power_of_2(v: Arithmetic, n: Value) -> Value:
    """2^n of a whole n that is the exponent of a normal number, or one less: then 0."""
    form = FORMATS[v.width(n)]
    whole = v.bits(v.add(n, v.like(n, form.to_whole + form.bias)))
    return v.real(v.shift_left(whole, v.like(whole, form.fraction)))


def _scaled(v: Arithmetic, y: Value, n: Value) -> Value:
    """y 2^n, where 2^n may be out of range: by two factors, so that a denormal is rounded by the last one alone."""

    def by_factors() -> Value:
        half = v.round(v.mul(n, v.like(n, 0.5)))
        return v.mul(v.mul(y, _power_of_2(v, half)), _power_of_2(v, v.sub(n, half)))

    return v.scaled(y, n, by_factors)


# -- log and its kin --------------------------------------------------------------------------------------


def log(v: Arithmetic, x: Value) -> Value:
    e, f = _split(v, x)
    return _log_edges(v, x, _log_of(v, e, f))


def log1p(v: Arithmetic, x: Value) -> Value:
    """log(u) + c / u, where 1 + x = u + c exactly; near 0 log(1 + x), which needs neither."""
    one, zero = v.like(x, 1.0), v.like(x, 0.0)
    u, c = _sum(v, one, x)
    e, f = _split(v, u)
    near = v.bit_and(v.compare(">", x, v.like(x, -0.29)), v.compare("<", x, v.like(x, 0.41)))
    y = _log_of(v, v.select(near, zero, e), v.select(near, x, f), v.select(near, zero, v.div(c, u)))
    return v.select(v.compare("==", x, zero), x, _log_edges(v, u, y))


def log2(v: Arithmetic, x: Value) -> Value:
    e, f = _split(v, x)
    half_square = v.mul(v.mul(f, v.like(x, 0.5)), f)
    high, rest = _fast_sum(v, f, v.neg(half_square))
    y, low = _times(v, high, LOG2E)
    low = v.fma(v.add(rest, _log_rest(v, f, half_square)), v.like(x, LOG2E[v.width(x)][0]), low)
    total, rest = _fast_sum(v, e, y)
    return _log_edges(v, x, v.add(total, v.add(rest, low)))


def _split(v: Arithmetic, x: Value) -> Pair:
    """e and f of x = 2^e (1 + f), 1 + f between sqrt(1/2) and sqrt(2), for x that is positive and finite."""
    form = FORMATS[v.width(x)]
    tiny = v.compare("<", x, v.like(x, 2.0 ** (1 - form.bias)))
    if v.exact:
        scale, lifted = form.fraction + 1, v.mul(x, v.like(x, 2.0 ** (form.fraction + 1)))
    else:  # a processor that takes a denormal for 0 does not take its bits for 0
        scale, lifted = form.bias + form.fraction - 1, v.whole(v.bits(x))
    bits = v.bits(v.select(tiny, lifted, x))
    one = form.bias << form.fraction
    moved = v.int_add(bits, v.like(bits, one - form.root_half))
    exponent = v.int_add(v.shift_right(moved, v.like(bits, form.fraction)), v.like(bits, form.whole_bits))
    biased = v.select(tiny, v.like(x, form.to_whole + form.bias + scale), v.like(x, form.to_whole + form.bias))
    fraction = v.bit_and(moved, v.like(bits, (1 << form.fraction) - 1))
    f = v.sub(v.real(v.int_add(fraction, v.like(bits, form.root_half))), v.like(x, 1.0))
    return v.sub(v.real(exponent), biased), f


def _log_rest(v: Arithmetic, f: Value, half_square: Value) -> Value:
    """log(1 + f) - (f - f^2 / 2)."""
    s = v.div(f, v.add(f, v.like(f, 2.0)))
    z = v.mul(s, s)
    return v.mul(s, v.fma(z, _polynomial(v, z, LOG), half_square))


def _log_of(v: Arithmetic, e: Value, f: Value, more: Value | None = None) -> Value:
    """e ln 2 + log(1 + f) + more, which is small."""
    high, low = (v.like(f, part) for part in LN2_SHORT[v.width(f)])
    half_square = v.mul(v.mul(f, v.like(f, 0.5)), f)
    total, rest = _fast_sum(v, v.mul(e, high), f)
    near = _log_rest(v, f, half_square)
    small = v.sub(v.fma(e, low, near if more is None else v.add(near, more)), half_square)
    return v.add(total, v.add(rest, small))


def _log_edges(v: Arithmetic, x: Value, y: Value) -> Value:
    zero, infinity = v.like(x, 0.0), v.like(x, INFINITY)
    edge = v.select(v.compare("==", x, zero), v.like(x, -INFINITY), v.like(x, NAN))
    y = v.select(v.compare("==", x, infinity), infinity, y)
    return v.select(v.compare(">", x, zero), y, edge)


# -- sin, cos, tan ----------------------------------------------------------------------------------------


def sin(v: Arithmetic, x: Value) -> Value:
    quarter, r, _ = v.turned(x)
    return _wave(v, x, quarter, r)


def cos(v: Arithmetic, x: Value) -> Value:
    quarter, r, _ = v.turned(x)
    return _wave(v, x, v.int_add(quarter, v.like(quarter, 1)), r)


def tan(v: Arithmetic, x: Value) -> Value:
    quarter, r, low = v.turned(v.abs(x), fine=True)
    s, c = _fast_sum(v, *_sin_near(v, r, low)), _fast_sum(v, *_cos_near(v, r, low))
    odd = _is_odd(v, quarter)
    above = v.select(odd, c[0], s[0]), v.select(odd, c[1], s[1])
    below = v.select(odd, s[0], c[0]), v.select(odd, s[1], c[1])
    y = v.bits(_quotient(v, above, below))
    sign = v.like(y, FORMATS[v.width(x)].sign)
    flipped = v.select(odd, v.bit_xor(v.bits(x), sign), v.bits(x))
    return _finite(v, x, v.real(v.bit_xor(y, v.bit_and(flipped, sign))))


def _wave(v: Arithmetic, x: Value, quarter: Value, r: Value) -> Value:
    """The sine of x, which is r behind so many quarter turns: that of r, its cosine, or one of these with a minus."""
    z = v.mul(r, r)
    s = _with_sign_too(v, v.fma(v.mul(r, z), _polynomial(v, z, SIN), r), r)  # of -0, which the sum makes 0
    c = v.fma(v.fma(_polynomial(v, z, COS), z, v.like(r, -0.5)), z, v.like(r, 1.0))
    y = v.bits(v.select(_is_odd(v, quarter), c, s))
    half_turns = v.shift_left(quarter, v.like(quarter, v.width(r) - 2))  # as the sign
    y = v.real(v.bit_xor(y, v.bit_and(half_turns, v.like(y, FORMATS[v.width(r)].sign))))
    return y if v.exact else _finite(v, x, y)


def _is_odd(v: Arithmetic, quarter: Value) -> Value:
    return v.int_compare("!=", v.bit_and(quarter, v.like(quarter, 1)), v.like(quarter, 0))


def _sin_near(v: Arithmetic, r: Value, low: Value) -> Pair:
    z = v.mul(r, r)
    return r, v.fma(v.mul(r, z), _polynomial(v, z, SIN), low)


def _cos_near(v: Arithmetic, r: Value, low: Value) -> Pair:
    z = v.mul(r, r)
    half = v.mul(z, v.like(r, -0.5))
    high, rest = _fast_sum(v, v.like(r, 1.0), half)
    return high, v.add(rest, v.fma(v.mul(z, z), _polynomial(v, z, COS), v.neg(v.mul(r, low))))


def turned(v: WideArithmetic, x: Value, fine: bool) -> tuple[Value, Value, Value]:
    """An angle without quarter turns: an integer whose last two bits count these, r and its rest.  r is NaN where the
    angle is none.  In f64 it takes integers of 64 bits, and in f32 f64 as well.  Without `fine` the rest is 0."""
    form = FORMATS[v.width(x)]
    whole = v.like(x, form.to_whole)
    counted = v.fma(x, v.like(x, TWO_OVER_PI_NEAR[form.width][0]), whole)
    n = v.sub(counted, whole)
    first, second, third = (v.like(x, -part) for part in HALF_PI_BELOW[form.width])  # n of -0 is 0, and r is -0
    high = v.fma(n, first, x)  # exact
    if fine:
        correction = v.mul(n, second)
        r, low = _fast_sum(v, high, correction)  # `high` is a multiple of the last place of `correction`
        low = v.fma(n, third, v.add(low, v.fma(n, second, v.neg(correction))))
    else:
        r, low = v.fma(n, third, v.fma(n, second, high)), v.like(x, 0.0)
    size = v.abs(x)
    large = v.bit_not(v.compare("<", size, v.like(x, form.turn_high)))

    def by_bits() -> Sequence[Value]:
        if form.width == 64:
            quarter, r, low = _turned_by_bits(v, size, large)
        else:
            quarter, wide, rest = _turned_by_bits(v, v.widen(size), large)
            quarter, r = v.lower_half(quarter), v.narrow(wide)
            low = v.narrow(v.add(v.sub(wide, v.widen(r)), rest))
        negative = v.compare("<", x, v.like(x, 0.0))
        quarter = v.select(negative, v.int_sub(v.like(quarter, 0), quarter), quarter)
        r, low = (v.select(negative, v.neg(part), part) for part in (r, low))
        finite = v.compare("<", size, v.like(x, INFINITY))
        return v.select(finite, quarter, v.like(quarter, 0)), v.select(finite, r, v.like(x, NAN)), low

    quarter, r, low = v.rarely(large, (v.bits(counted), r, low), by_bits)
    return quarter, r, low


_AHEAD = 64  # zeros before the point, so that the angles of `turn_high` begin within the table
_WORDS = tuple(TWO_OVER_PI >> (TURN_BITS - 64 * (at + 1)) & (2**64 - 1) if at >= 0 else 0 for at in range(-1, 20))


def _turned_by_bits(v: WideArithmetic, size: Value, large: Value) -> tuple[Value, Value, Value]:
    """Payne and Hanek's reduction of an f64: those bits of 2 / pi times its fraction that do not make whole turns."""
    bits = v.bits(size)

    def int_of(value: int) -> Value:
        return v.like(bits, value)

    fraction = v.bit_or(v.bit_and(bits, int_of(2**52 - 1)), int_of(2**52))
    # size = fraction 2^e, and the bit of 2 / pi that is worth half a turn then is number e - 1, the first being 1.
    start = v.int_add(v.shift_right(bits, int_of(52)), int_of(_AHEAD - 1075 - 2))
    start = v.select(large, start, int_of(0))
    word, by = v.shift_right(start, int_of(6)), v.bit_and(start, int_of(63))
    words = [v.lookup(_WORDS, v.int_add(word, int_of(ahead))) for ahead in range(4)]
    first, second, third = (
        v.bit_or(
            v.shift_left(upper, by),
            v.shift_right(v.shift_right(lower, int_of(1)), v.int_sub(int_of(63), by)),
        )
        for upper, lower in pairwise(words)
    )
    middle = v.int_mul(fraction, second)
    lower = v.int_add(middle, v.int_mul_high(fraction, third))
    carried = v.select(v.int_compare("<", lower, middle), int_of(1), int_of(0))
    upper = v.int_add(v.int_add(v.int_mul(fraction, first), v.int_mul_high(fraction, second)), carried)
    quarter = v.shift_right(v.int_add(upper, int_of(1 << 61)), int_of(62))
    upper = v.int_sub(upper, v.shift_left(quarter, int_of(62)))  # with a sign: the nearest quarter turn is taken away
    mask = int_of(2**32 - 1)
    pieces = [
        v.whole_to_f64(v.shift_right_signed(upper, int_of(32))),
        v.whole_to_f64(v.bit_and(upper, mask)),
        v.whole_to_f64(v.shift_right(lower, int_of(32))),
        v.whole_to_f64(v.bit_and(lower, mask)),
    ]
    a, b, c, d = (v.mul(piece, v.like(size, 2.0**-at)) for piece, at in zip(pieces, (30, 62, 94, 126), strict=True))
    high, rest = _fast_sum(v, a, b)
    high, rest = _fast_sum(v, high, v.add(rest, v.add(c, d)))
    r, low = _times(v, high, HALF_PI)
    r, low = _fast_sum(v, r, v.fma(rest, v.like(size, HALF_PI[64][0]), low))
    return quarter, r, low


# -- atan2 and pow ----------------------------------------------------------------------------------------


def atan2(v: Arithmetic, y: Value, x: Value) -> Value:
    """A quotient of at most tan(pi / 8), its arc, and a multiple of pi / 4."""
    form = FORMATS[v.width(x)]
    zero, one, infinity = (v.like(x, value) for value in (0.0, 1.0, INFINITY))
    rise, run = v.abs(y), v.abs(x)
    steep = v.compare(">", rise, run)
    large, small = v.larger(rise, run), v.smaller(rise, run)
    endless = v.compare("==", large, infinity)
    small = v.select(endless, v.select(v.compare("==", small, infinity), one, zero), small)
    large = v.select(v.bit_or(endless, v.compare("==", large, zero)), one, large)
    scale = v.select(
        v.compare("<", large, v.like(x, 2.0 ** (-form.bias // 2))), v.like(x, 2.0 ** (form.bias // 2)), one
    )
    scale = v.select(v.compare(">", large, v.like(x, 2.0 ** (form.bias - 1))), v.like(x, 0.25), scale)
    small, large = v.mul(small, scale), v.mul(large, scale)
    if not v.exact:  # a compiler may add before it scales, which overflows
        small, large = v.div(small, large), one

    over = v.compare(">", small, v.mul(large, v.like(x, 0.414213562)))
    difference, sum_ = _fast_sum(v, v.neg(large), small), _fast_sum(v, large, small)
    above, above_rest = v.select(over, difference[0], small), v.select(over, difference[1], zero)
    below, below_rest = v.select(over, sum_[0], large), v.select(over, sum_[1], zero)
    t = v.div(above, below)
    missing = v.add(v.fma(v.neg(t), below, above), v.fma(v.neg(t), below_rest, above_rest)) if v.exact else zero
    z = v.mul(t, t)
    rest = v.fma(v.mul(t, z), _polynomial(v, z, ATAN), v.div(missing, below))

    left = v.bits(x)
    left = v.int_compare("!=", v.bit_and(left, v.like(left, form.sign)), v.like(left, 0))
    eighths = v.select(over, one, zero)
    eighths = v.select(steep, v.sub(v.like(x, 2.0), eighths), eighths)
    eighths = v.select(left, v.sub(v.like(x, 4.0), eighths), eighths)
    flips = v.bit_xor(steep, left)
    base, base_rest = _times(v, v.mul(eighths, v.like(x, 0.5)), HALF_PI)
    total, lost = _fast_sum(v, base, v.select(flips, v.neg(t), t))
    angle = v.add(total, v.add(lost, v.add(base_rest, v.select(flips, v.neg(rest), rest))))
    angle = _with_sign_too(v, angle, y)
    return v.select(v.bit_or(v.is_nan(x), v.is_nan(y)), v.like(x, NAN), angle)


def pow(v: Arithmetic, x: Value, y: Value) -> Value:
    """2^(y log2 |x|): of f32 in f64, of f64 with a logarithm in two parts.  Then C99's special cases."""
    zero, one, infinity, nan = (v.like(x, value) for value in (0.0, 1.0, INFINITY, NAN))
    size = v.abs(x)
    powered = v.powered(size, y)

    grows = v.compare(">", y, zero)
    to_infinity = v.select(v.bit_xor(grows, v.compare("<", size, one)), infinity, zero)
    unending = v.compare("==", v.abs(y), infinity)
    at_end = v.bit_or(v.compare("==", size, zero), v.compare("==", size, infinity))
    powered = v.select(v.bit_or(unending, at_end), to_infinity, powered)
    powered = v.select(v.bit_and(unending, v.compare("==", size, one)), one, powered)

    half = v.mul(y, v.like(y, 0.5))
    whole = v.compare("==", v.trunc(y), y)
    odd = v.bit_and(whole, v.compare("!=", v.trunc(half), half))
    powered = v.select(odd, _with_sign_too(v, powered, x), powered)
    negative = v.bit_and(v.compare("<", x, zero), v.compare("<", size, infinity))
    undefined = v.bit_or(v.bit_and(negative, v.bit_not(whole)), v.bit_or(v.is_nan(x), v.is_nan(y)))
    powered = v.select(undefined, nan, powered)
    return v.select(v.bit_or(v.compare("==", y, zero), v.compare("==", x, one)), one, powered)


def powered(v: WideArithmetic, size: Value, y: Value) -> Value:
    """size^y for a size that is positive and finite; of f32 it takes f64."""
    return _pow_f32(v, size, y) if v.width(size) == 32 else _pow_f64(v, size, y)


def _pow_f32(v: WideArithmetic, size: Value, y: Value) -> Value:
    e, f = _split(v, size)
    wide = v.widen(f)
    one, two = v.like(wide, 1.0), v.like(wide, 2.0)
    inverse = v.widen(v.div(v.like(f, 1.0), v.add(f, v.like(f, 2.0))))
    inverse = v.fma(inverse, v.fma(v.neg(inverse), v.add(wide, two), one), inverse)  # Newton's step: to 2^-46
    s = v.mul(wide, inverse)
    z = v.mul(s, s)
    near = v.mul(s, v.fma(z, _polynomial(v, z, LOG_SHORT), two))
    exponent = v.mul(v.widen(y), v.fma(near, v.like(wide, LOG2E[64][0]), v.widen(e)))
    exponent = _clamped(v, exponent, -200.0, 200.0)
    whole = v.like(wide, FORMATS[64].to_whole)
    n = v.sub(v.add(exponent, whole), whole)
    r = v.mul(v.sub(exponent, n), v.like(wide, LN2[64][0]))
    powered = v.fma(v.mul(r, r), _polynomial(v, r, EXP_SHORT), v.add(one, r))
    return v.narrow(v.mul(powered, _power_of_2(v, n)))


def _pow_f64(v: WideArithmetic, size: Value, y: Value) -> Value:
    e, f = _split(v, size)
    near, near_rest = _log_in_two_parts(v, f)
    high, low = _times(v, near, LOG2E)
    low = v.fma(near_rest, v.like(f, LOG2E[64][0]), low)
    high, rest = _fast_sum(v, e, high)
    high, low = _fast_sum(v, high, v.add(rest, low))

    exponent = v.mul(y, high)
    rest = v.fma(y, low, v.fma(y, high, v.neg(exponent)))
    inside = v.compare("<", v.abs(exponent), v.like(f, 1200.0))
    rest = v.select(inside, rest, v.like(f, 0.0))
    exponent = _clamped(v, exponent, -1200.0, 1200.0)
    n = v.round(exponent)
    r, low = _times(v, v.sub(exponent, n), LN2)
    r, low = _fast_sum(v, r, v.fma(rest, v.like(f, LN2[64][0]), low))
    return _scaled(v, _exp_near(v, r, low), n)


def _log_in_two_parts(v: Arithmetic, f: Value) -> Pair:
    """log(1 + f) = s (2 + s^2 (2/3 + s^2 (2/5 + s^2 T))), all but T of f64 in two parts, to 2^-68."""
    below, below_rest = _fast_sum(v, v.like(f, 2.0), f)
    s = v.div(f, below)
    s_rest = v.div(v.fma(v.neg(s), below_rest, v.fma(v.neg(s), below, f)), below)
    z = v.mul(s, s)
    z_rest = v.fma(v.add(s, s), s_rest, v.fma(s, s, v.neg(z)))
    third, third_rest, fifth, fifth_rest = (v.like(f, part) for part in THIRD_AND_FIFTH)
    u, rest = _fast_sum(v, fifth, v.mul(z, _polynomial(v, z, LOG_TAIL)))
    term = _product(v, (z, z_rest), (u, v.add(rest, fifth_rest)))
    u, rest = _fast_sum(v, third, term[0])
    term = _product(v, (z, z_rest), (u, v.add(rest, v.add(term[1], third_rest))))
    u, rest = _fast_sum(v, v.like(f, 2.0), term[0])
    return _product(v, (s, s_rest), (u, v.add(rest, term[1])))


# -- what all of them use ---------------------------------------------------------------------------------


def _polynomial(v: Arithmetic, x: Value, coefficients: dict[int, tuple[float, ...]]) -> Value:
    """The value at x by Horner's rule, with one rounding per coefficient."""
    first, *others = reversed(coefficients[v.width(x)])
    y = v.like(x, first)
    for one in others:
        y = v.fma(y, x, v.like(x, one))
    return y


def _fast_sum(v: Arithmetic, a: Value, b: Value) -> Pair:
    """a + b and what its rounding lost, exactly, where |a| >= |b| or a = 0."""
    total = v.add(a, b)
    return total, v.add(v.sub(a, total), b) if v.exact else v.like(a, 0.0)


def _sum(v: Arithmetic, a: Value, b: Value) -> Pair:
    """a + b and what its rounding lost, exactly."""
    total = v.add(a, b)
    if not v.exact:
        return total, v.like(a, 0.0)
    of_b = v.sub(total, a)
    return total, v.add(v.sub(a, v.sub(total, of_b)), v.sub(b, of_b))


def _product(v: Arithmetic, a: Pair, b: Pair) -> Pair:
    high = v.mul(a[0], b[0])
    rest = v.fma(a[0], b[0], v.neg(high))
    return high, v.fma(a[1], b[0], v.fma(a[0], b[1], rest))


def _times(v: Arithmetic, a: Value, constant: dict[int, tuple[float, ...]]) -> Pair:
    """The product with a constant in two parts."""
    first, second, *_ = (v.like(a, part) for part in constant[v.width(a)])
    high = v.mul(a, first)
    if not v.exact:
        return high, v.mul(a, second)
    return high, v.fma(a, second, v.fma(a, first, v.neg(high)))


def _quotient(v: Arithmetic, above: Pair, below: Pair) -> Value:
    """above / below, by one division and a correction; the second parts are roundings of the first."""
    if not v.exact:
        return v.div(above[0], below[0])
    inverse = v.div(v.like(above[0], 1.0), below[0])
    q = v.mul(above[0], inverse)
    back = v.neg(q)
    rest = v.add(v.fma(back, below[0], above[0]), v.fma(back, below[1], above[1]))
    return v.fma(rest, inverse, q)


def _clamped(v: Arithmetic, x: Value, low: float, high: float) -> Value:
    """x within limits, and NaN as one of them."""
    return v.smaller(v.larger(x, v.like(x, low)), v.like(x, high))


def _with_sign_too(v: Arithmetic, y: Value, x: Value) -> Value:
    """y, negative where x is."""
    bits = v.bits(x)
    return v.real(v.bit_or(v.bits(y), v.bit_and(bits, v.like(bits, FORMATS[v.width(x)].sign))))


def _nan_of(v: Arithmetic, x: Value, y: Value) -> Value:
    """y, and NaN where x is."""
    return v.select(v.is_nan(x), v.like(x, NAN), y)


def _finite(v: Arithmetic, x: Value, y: Value) -> Value:
    """y, and NaN where x is infinite or NaN."""
    return v.select(v.compare("<", v.abs(x), v.like(x, INFINITY)), y, v.like(x, NAN))


FUNCTIONS: dict[str, Callable[..., Value]] = {
    "exp": exp, "exp2": exp2, "expm1": expm1, "log": log, "log2": log2, "log1p": log1p, "sin": sin, "cos": cos,
    "tan": tan, "tanh": tanh, "erf": erf, "pow": pow, "atan2": atan2,
}  # fmt: skip
