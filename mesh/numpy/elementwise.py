"""Elementwise functions: one row where an op of the table does it, a short composition where not.

They broadcast and promote as the Array API says; integers given to a float function become float32.  Accuracy of the
compositions (acos, sinh, ...) is a few roundings of the dtype over its whole range.  Those marked `of_complex` are of
real numbers; what they are of complex ones is in `complexes.py`.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from functools import wraps
from typing import Any

from wire.errors import DTypeError, InputError
from wire.ir.dtypes import BF16, BOOL, F16, F32, DType, dtype_named

from ..core.array import Array, Operand, apply, renamed, weakened
from ..util.argument_checks import integer
from .promotion import INT_BOUNDS, asarray, cast, floats, inexact, is_python_scalar, like, operands, scalar

Unary = Callable[[Operand], Array]
Binary = Callable[[Operand, Operand], Array]


def _named(function: Any, name: str, doc: str) -> Any:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


def of_complex(function: Unary) -> Unary:
    """`function`, which is of real numbers, and that of `complexes.py` of the same name."""

    @wraps(function)
    def either(x: Operand) -> Array:
        (array,) = operands(x)
        if array.type.dtype.kind != "c":
            return function(array)
        from . import complexes  # which is made of this file's functions

        result: Array = getattr(complexes, function.__name__)(array)
        return result

    return either


def with_slope(name: str) -> Callable[[Callable[[Array], Array]], Unary]:
    """Give a function of real numbers the derivative that `transforms/composite_rules.py` has under this name."""

    def decorated(function: Callable[[Array], Array]) -> Unary:
        @wraps(function)
        def sloping(x: Operand) -> Array:
            from ..transforms.composite_rules import applied  # which is made of this namespace

            return applied(name, function, floats(x)[0])

        return sloping

    return decorated


def _inexact_unary(name: str, op: str, doc: str) -> Unary:
    def function(x: Operand) -> Array:
        return apply(op, inexact(x)[0])

    result: Unary = _named(function, name, doc)
    return result


def _float_unary(name: str, op: str, doc: str) -> Unary:
    def function(x: Operand) -> Array:
        return apply(op, floats(x)[0])

    result: Unary = _named(function, name, doc)
    return result


def _reals(x: Operand) -> Array:
    """x, which is not complex."""
    (array,) = operands(x)
    return floats(array)[0] if array.type.dtype.kind == "c" else array  # which says so


def _integral(name: str, op: str, doc: str) -> Unary:
    def function(x: Operand) -> Array:
        array = _reals(x)
        return apply(op, array) if array.type.dtype.kind == "f" else renamed(array)

    result: Unary = _named(function, name, doc)
    return result


def _arithmetic(name: str, op: str, bool_op: str | None, doc: str) -> Binary:
    def function(x1: Operand, x2: Operand) -> Array:
        left, right = operands(x1, x2)
        return apply(bool_op if bool_op and left.type.dtype is BOOL else op, left, right)

    result: Binary = _named(function, name, doc)
    return result


def _comparison(name: str, op: str, compare: Callable[[Any, Any], bool], doc: str) -> Binary:
    def function(x1: Operand, x2: Operand) -> Array:
        outside = _compare_outside(x1, x2, compare)
        return apply(op, *operands(x1, x2)) if outside is None else outside

    result: Binary = _named(function, name, doc)
    return result


def _compare_outside(x1: Operand, x2: Operand, compare: Callable[[Any, Any], bool]) -> Array | None:
    """The result where one side is a Python integer outside the other's dtype: the same for all elements."""
    for number, other, sides in ((x1, x2, lambda a, n: compare(n, a)), (x2, x1, compare)):
        if type(number) is int and not is_python_scalar(other):
            array = asarray(other)
            bounds = INT_BOUNDS.get(array.type.dtype.name)
            if bounds is not None and not bounds[0] <= number <= bounds[1]:
                return apply("broadcast", scalar(sides(0, number), BOOL), shape=array.type.shape)
    return None


def _logical(name: str, op: str, doc: str) -> Binary:
    def function(x1: Operand, x2: Operand) -> Array:
        return apply(op, cast(asarray(x1), BOOL), cast(asarray(x2), BOOL))

    result: Binary = _named(function, name, doc)
    return result


# -- one op each ------------------------------------------------------------------------------------------

exp = _inexact_unary("exp", "exp", "e to the power x.")
exp2 = of_complex(_float_unary("exp2", "exp2", "2 to the power x."))
expm1 = of_complex(_float_unary("expm1", "expm1", "exp(x) - 1, accurate near 0."))
log = _inexact_unary("log", "log", "Natural logarithm; NaN below 0 where x is real.")
log1p = of_complex(_float_unary("log1p", "log1p", "log(1 + x), accurate near 0."))
log2 = of_complex(_float_unary("log2", "log2", "Logarithm to base 2."))
sqrt = _inexact_unary("sqrt", "sqrt", "Square root; NaN below 0 where x is real.")
sin = _inexact_unary("sin", "sin", "Sine of x radians.")
cos = _inexact_unary("cos", "cos", "Cosine of x radians.")
tan = _inexact_unary("tan", "tan", "Tangent of x radians.")
tanh = _inexact_unary("tanh", "tanh", "Hyperbolic tangent.")
reciprocal = _inexact_unary("reciprocal", "recip", "1 / x.")


def erf(x: Operand) -> Array:
    """Compute the error function, as `scipy.special.erf` does.

    Parameters
    ----------
    x : Array
        Floats.

    Returns
    -------
    Array, of the shape of x
        2 / sqrt(pi) times the integral of exp(-t * t) for t from 0 to x.

    Raises
    ------
    DTypeError
        If x is complex.

    Examples
    --------
    >>> import mesh.numpy as mnp
    >>> mnp.erf([0.0, float("inf")])
    Array([0., 1.], dtype=float32)
    """
    return apply("erf", floats(x)[0])


floor = _integral("floor", "floor", "The largest integer not above x, in x's dtype.")

add = _arithmetic("add", "add", "or", "x1 + x2; of bools, or.")
multiply = _arithmetic("multiply", "mul", "and", "x1 * x2; of bools, and.")
maximum = _arithmetic("maximum", "max", "or", "The larger of x1 and x2; NaN if either is NaN.")
minimum = _arithmetic("minimum", "min", "and", "The smaller of x1 and x2; NaN if either is NaN.")
remainder = _arithmetic("remainder", "rem", None, "x1 - floor_divide(x1, x2) * x2: has the sign of x2.")
bitwise_and = _arithmetic("bitwise_and", "and", None, "x1 & x2.")
bitwise_or = _arithmetic("bitwise_or", "or", None, "x1 | x2.")
bitwise_xor = _arithmetic("bitwise_xor", "xor", None, "x1 ^ x2.")
bitwise_left_shift = _arithmetic("bitwise_left_shift", "shl", None, "x1 << x2; 0 from the width on.")
bitwise_right_shift = _arithmetic("bitwise_right_shift", "shr", None, "x1 >> x2, keeping the sign.")

equal = _comparison("equal", "eq", lambda a, b: a == b, "x1 == x2.")
not_equal = _comparison("not_equal", "ne", lambda a, b: a != b, "x1 != x2; true where either is NaN.")
less = _comparison("less", "lt", lambda a, b: a < b, "x1 < x2.")
less_equal = _comparison("less_equal", "le", lambda a, b: a <= b, "x1 <= x2.")
greater = _comparison("greater", "gt", lambda a, b: a > b, "x1 > x2.")
greater_equal = _comparison("greater_equal", "ge", lambda a, b: a >= b, "x1 >= x2.")

logical_and = _logical("logical_and", "and", "True where both are not 0.")
logical_or = _logical("logical_or", "or", "True where either is not 0.")
logical_xor = _logical("logical_xor", "xor", "True where exactly one is not 0.")


def logical_not(x: Operand) -> Array:
    """True where x is 0."""
    return apply("not", cast(asarray(x), BOOL))


def bitwise_invert(x: Operand) -> Array:
    """Every bit flipped; of bools, not."""
    return apply("not", *operands(x))


def abs(x: Operand) -> Array:
    """The magnitude of x; the lowest integer of a dtype stays itself."""
    (array,) = operands(x)
    return renamed(array) if array.type.dtype.kind in "bu" else apply("abs", array)


@of_complex
def sign(x: Operand) -> Array:
    """-1, 0 or 1 in x's dtype, x / |x| of complex x; NaN for NaN."""
    return apply("sign", *operands(x))


def negative(x: Operand) -> Array:
    """-x."""
    return apply("neg", *operands(x))


def positive(x: Operand) -> Array:
    """x itself, which is a number."""
    (array,) = operands(x)
    if array.type.dtype is BOOL:
        raise DTypeError("positive needs a number dtype, got bool")
    return renamed(array)


# -- arithmetic composed of several -----------------------------------------------------------------------


def subtract(x1: Operand, x2: Operand) -> Array:
    """x1 - x2."""
    left, right = operands(x1, x2)
    return apply("add", left, apply("neg", right))


def divide(x1: Operand, x2: Operand) -> Array:
    """x1 / x2 as a float or complex number; integers become float32."""
    return apply("div", *inexact(x1, x2))


def square(x: Operand) -> Array:
    """x * x."""
    return multiply(x, x)


@of_complex
def squared_size(x: Operand) -> Array:
    """|x| squared: real."""
    return square(x)


def pow(x1: Operand, x2: Operand) -> Array:
    """x1 to the power x2.  Integers stay integers: a negative number as exponent is then an InputError, and a negative
    element gives 0, except for bases 1 and -1."""
    if is_python_scalar(x2) and x2 == 2 and not is_python_scalar(x1):
        base, _ = operands(x1, x2)
        return apply("mul", base, base)
    base, exponent = operands(x1, x2)
    if isinstance(x2, int) and x2 < 0 and base.type.dtype.kind in "iu":
        raise InputError(f"integers have no power {x2}", next_step="Take a float: astype(x, 'float32')")
    return apply("pow", base, exponent)


def floor_divide(x1: Operand, x2: Operand) -> Array:
    """The integer at or below x1 / x2, in the operands' dtype.  An integer divided by 0 gives 0."""
    left, right = operands(x1, x2)
    if left.type.dtype.kind != "f":
        return apply("div", _reals(left), right)
    whole = floor(divide(left, right))  # which has no slope where the quotient has an infinite one
    multiple = subtract(left, apply("rem", left, right))  # of the divisor
    overflown = logical_and(isinf(multiple), isfinite(left))
    exact = where(overflown, whole, round(divide(multiple, right)))
    exact = where(equal(exact, 0), copysign(0, whole), exact)
    towards_zero_or_minus_one = where(less(multiply(sign(left), sign(right)), 0), -1, copysign(0, whole))
    by_infinity = logical_and(isinf(right), isfinite(left))
    result = where(by_infinity, towards_zero_or_minus_one, exact)
    return where(equal(right, 0), whole, result)


def hypot(x1: Operand, x2: Operand) -> Array:
    """sqrt(x1*x1 + x2*x2) without overflow; infinite if either is."""
    left, right = (unsigned(array) for array in floats(x1, x2))
    swapped = greater(left, right)
    large, small = where(swapped, left, right), where(swapped, right, left)
    ratio = divide(small, where(equal(large, 0), 1, large))
    result = multiply(large, sqrt(add(1, square(ratio))))
    return where(logical_or(isinf(left), isinf(right)), math.inf, result)


def logaddexp(x1: Operand, x2: Operand) -> Array:
    """log(exp(x1) + exp(x2)) without overflow."""
    left, right = floats(x1, x2)
    swapped, alike = greater(left, right), logical_and(equal(left, right), isinf(left))
    apart = where(alike, 0, subtract(left, where(alike, 0, right)))  # two infinities have no difference
    return add(where(swapped, left, right), log1p(exp(where(swapped, apply("neg", apart), apart))))


def clip(x: Operand, min: Operand | None = None, max: Operand | None = None) -> Array:
    """x limited to [min, max]; either may be None."""
    array, *bounds = operands(*[bound for bound in (x, min, max) if bound is not None])
    result = renamed(array) if min is None else maximum(array, bounds[0])
    return result if max is None else minimum(result, bounds[-1])


# -- rounding ---------------------------------------------------------------------------------------------


def ceil(x: Operand) -> Array:
    """The smallest integer not below x, in x's dtype."""
    array = _reals(x)
    return negative(floor(negative(array))) if array.type.dtype.kind == "f" else renamed(array)


def trunc(x: Operand) -> Array:
    """x without its fraction, in x's dtype."""
    array = _reals(x)
    return where(less(array, 0), ceil(array), floor(array)) if array.type.dtype.kind == "f" else renamed(array)


def round(x: Operand, decimals: int = 0) -> Array:
    """x (both parts of a complex x) rounded to `decimals` places, halves to the even neighbour; integers stay unless
    decimals is negative."""
    (array,) = operands(x)
    decimals = integer(decimals, "decimals", -308, 309)
    if array.type.dtype.kind not in "fc":
        return renamed(array) if decimals >= 0 else _rounded_integers(array, 10**-decimals)
    if decimals == 0:
        return apply("round", array)
    high, scale = _single(array), 10.0 ** builtins.min(builtins.abs(decimals), 308)
    if decimals > 0:
        scaled = multiply(high, scale)
        fits = isfinite(scaled)  # a number that has no such places stays
        return cast(where(fits, divide(apply("round", scaled), scale), high), array.type.dtype)
    return cast(multiply(apply("round", divide(high, scale)), scale), array.type.dtype)


# -- tests and signs --------------------------------------------------------------------------------------


def isnan(x: Operand) -> Array:
    """True where x, or a part of it, is NaN."""
    (array,) = operands(x)
    return apply("is_nan", array) if array.type.dtype.kind in "fc" else _everywhere(array, False)


@of_complex
def isinf(x: Operand) -> Array:
    """True where x, or a part of it, is infinite, of either sign."""
    (array,) = operands(x)
    return equal(apply("abs", array), math.inf) if array.type.dtype.kind == "f" else _everywhere(array, False)


@of_complex
def isfinite(x: Operand) -> Array:
    """True where x is neither infinite nor NaN."""
    (array,) = operands(x)
    return less(apply("abs", array), math.inf) if array.type.dtype.kind == "f" else _everywhere(array, True)


def signbit(x: Operand) -> Array:
    """True where the sign bit is set: below 0, and -0.0."""
    (array,) = operands(x)
    return less(_bits(array) if array.type.dtype.kind == "f" else array, 0)


def copysign(x1: Operand, x2: Operand) -> Array:
    """x1 with the sign of x2, zeros and NaN included."""
    magnitude, source = floats(x1, x2)
    return where(equal(signbit(magnitude), signbit(source)), magnitude, apply("neg", magnitude))


def nextafter(x1: Operand, x2: Operand) -> Array:
    """The next number of the dtype after x1 towards x2."""
    start, target = floats(x1, x2)
    start, target = apply("add", start, _nothing(target)), apply("add", target, _nothing(start))
    bits = _bits(start)
    away = equal(greater(target, start), greater(start, 0))
    stepped = _from_bits(add(bits, where(away, 1, -1)), start.type.dtype)
    smallest = _from_bits(like(1, bits), start.type.dtype)
    from_zero = where(greater(target, 0), smallest, negative(smallest))
    moved = where(equal(start, 0), from_zero, stepped)
    settled = where(equal(start, target), target, moved)
    return where(logical_or(isnan(start), isnan(target)), math.nan, settled)


# -- logarithms, trigonometric and hyperbolic functions ---------------------------------------------------


@of_complex
def log10(x: Operand) -> Array:
    """Logarithm to base 10."""
    return divide(log(x), math.log(10))


@of_complex
@with_slope("acos")
def acos(x: Operand) -> Array:
    """The angle in [0, pi] whose cosine is x; NaN outside [-1, 1]."""
    (array,) = floats(x)
    return apply("atan2", sqrt(multiply(subtract(1, array), add(1, array))), array)


@of_complex
@with_slope("asin")
def asin(x: Operand) -> Array:
    """The angle in [-pi/2, pi/2] whose sine is x; NaN outside [-1, 1]."""
    (array,) = floats(x)
    return apply("atan2", array, sqrt(multiply(subtract(1, array), add(1, array))))


@of_complex
def atan(x: Operand) -> Array:
    """The angle in [-pi/2, pi/2] whose tangent is x."""
    return atan2(x, 1)


def atan2(x1: Operand, x2: Operand) -> Array:
    """The angle of the point (x2, x1), in [-pi, pi]."""
    return apply("atan2", *floats(x1, x2))


@of_complex
def sinh(x: Operand) -> Array:
    """Hyperbolic sine."""
    (array,) = floats(x)
    small, below, above = _parted(unsigned(array), _exp_bound(array))
    tail = expm1(below)
    near = multiply(add(tail, divide(tail, add(tail, 1))), 0.5)
    return copysign(where(small, near, _half_exp(above)), array)


@of_complex
def cosh(x: Operand) -> Array:
    """Hyperbolic cosine."""
    (array,) = floats(x)
    small, below, above = _parted(_folded(array), _exp_bound(array))
    grown = exp(below)
    near = multiply(add(grown, apply("recip", grown)), 0.5)
    return where(small, near, _half_exp(above))


@of_complex
def asinh(x: Operand) -> Array:
    """The number whose hyperbolic sine is x."""
    (array,) = floats(x)
    small, below, above = _parted(unsigned(array), _square_bound(array))
    squared = square(below)
    near = log1p(add(below, divide(squared, add(sqrt(add(squared, 1)), 1))))
    return copysign(where(small, near, _log_twice(above)), array)


@of_complex
@with_slope("acosh")
def acosh(x: Operand) -> Array:
    """The number not below 0 whose hyperbolic cosine is x; NaN below 1."""
    (array,) = floats(x)
    small, below, above = _parted(array, _square_bound(array))
    beyond = subtract(below, 1)
    near = log1p(add(beyond, sqrt(multiply(beyond, add(beyond, 2)))))
    return where(less(array, 1), math.nan, where(small, near, _log_twice(above)))


@of_complex
def atanh(x: Operand) -> Array:
    """The number whose hyperbolic tangent is x; NaN outside [-1, 1]."""
    (array,) = floats(x)
    return multiply(subtract(log1p(array), log1p(negative(array))), 0.5)


def where(condition: Operand, x1: Operand, x2: Operand) -> Array:
    """x1 where condition is true (or not 0), else x2."""
    chosen, other = operands(x1, x2)
    result = apply("select", cast(asarray(condition), BOOL), chosen, other)
    return weakened(result, chosen.weak and other.weak)  # whatever the condition is


# -- helpers ----------------------------------------------------------------------------------------------

_BITS = {2: dtype_named("i16"), 4: dtype_named("i32"), 8: dtype_named("i64")}
_EXP_BOUND = {"f16": 10.0}  # above it, in other dtypes above 20, exp(-x) is lost beside exp(x), which is finite still
_SQUARE_BOUND = {"f16": 100.0}  # above it, in other dtypes above 1e8, x*x + 1 is x*x to the dtype's precision


def _single(array: Array) -> Array:
    """Halves as float32, which have room for what is made of them on the way."""
    return cast(array, F32) if array.type.dtype in (F16, BF16) else array


def _rounded_integers(array: Array, unit: int) -> Array:
    """Integers to multiples of an even number, halves to the even multiple, exactly."""
    bounds = INT_BOUNDS.get(array.type.dtype.name)
    if bounds is None or unit > bounds[1]:  # bools, and integers that are all nearer to 0
        return multiply(array, 0) if bounds else logical_and(array, False)
    multiple = floor_divide(array, unit)
    rest = subtract(array, multiply(multiple, unit))
    odd = not_equal(bitwise_and(multiple, 1), 0)
    up = logical_or(greater(rest, unit // 2), logical_and(equal(rest, unit // 2), odd))
    return multiply(add(multiple, cast(up, array.type.dtype)), unit)


def _bits(array: Array) -> Array:
    return apply("bitcast", array, dtype=_BITS[array.type.dtype.itemsize].name)


def _from_bits(bits: Array, dtype: DType) -> Array:
    return apply("bitcast", bits, dtype=dtype.name)


def _nothing(array: Array) -> Array:
    """What changes nothing that it is added to, zeros of either sign included."""
    return apply("broadcast", like(-0.0, array), shape=array.type.shape)


def _everywhere(array: Array, value: bool) -> Array:
    return apply("broadcast", scalar(value, BOOL), shape=array.type.shape)


def _folded(array: Array) -> Array:
    """The magnitude with slope 1 at 0, where that of abs is 0: an odd or even function of it keeps its derivatives."""
    return where(less(array, 0), apply("neg", array), array)


def unsigned(array: Array) -> Array:
    """The magnitude, by the sign bit as `copysign` puts it on: with that the slope is 1 again, at -0.0 too."""
    return where(signbit(array), apply("neg", array), array)


def _parted(array: Array, bound: float) -> tuple[Array, Array, Array]:
    """A mask of what is below `bound`, and the array twice: with `bound` for what is not, and for what is.

    A formula for one side stays finite on the other, so that its derivative there times 0 is 0.
    """
    small = less(array, bound)
    return small, where(small, array, bound), where(small, bound, array)


def _half_exp(magnitude: Array) -> Array:
    """exp(x) / 2 that overflows only where the result does."""
    root = exp(multiply(magnitude, 0.5))
    return multiply(multiply(root, 0.5), root)


def _log_twice(magnitude: Array) -> Array:
    return add(log(magnitude), math.log(2))


def _exp_bound(array: Array) -> float:
    return _EXP_BOUND.get(array.type.dtype.name, 20.0)


def _square_bound(array: Array) -> float:
    return _SQUARE_BOUND.get(array.type.dtype.name, 1e8)
