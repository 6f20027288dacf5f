"""The polynomials of worker/compiler/functions.py, as Python: `python -m docs.tools.polynomials >
worker/compiler/polynomials.py`.  It needs mpmath.

Each row of `ROWS` is a function on an interval, how much an error counts at each place, and the degrees for f32 and
f64.  The polynomial of least largest error is found by Remez' exchange on a dense grid (W. Fraser, "A Survey of Methods
of Computing Minimax and Near-Minimax Polynomial Approximations", J. ACM 12, 1965), and its coefficients are rounded to
the format.  The errors that this prints to stderr are those of the rounded coefficients, in bits.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np
from mpmath import mp, mpf

mp.dps = 60
GRID = 600
TANH_NEAR, ERF_NEAR = 0.9375, 1.0  # up to here tanh and erf are polynomials
FIXED = 2  # coefficients that are rounded first
Function = Callable[[mpf], mpf]
ROUNDED = {32: np.float32, 64: np.float64}


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    meaning: str
    wanted: Function
    counts: Function  # what an error is multiplied by: it is made to count as much in the result everywhere
    low: float
    high: float
    degrees: dict[int, int]  # by the width of the float
    high_f32: float = 0.0  # where f32 ends earlier


def log_of_quotient(s: mpf) -> mpf:
    return 2 * mpmath.atanh(s)


def odd(function: Function, *first: mpf) -> Function:
    """Of z = x^2: what a function's odd series leaves behind its first coefficients, divided by the next power."""

    def rest(z: mpf) -> mpf:
        x = mpmath.sqrt(z)
        begun = mpmath.fsum(coefficient * z**power for power, coefficient in enumerate(first))
        return (function(x) / x - begun) / z ** len(first)

    return rest


def exp_rest(r: mpf) -> mpf:
    return (mpmath.expm1(r) - r) / r**2


ROWS = (
    Row("EXP", "(exp(r) - 1 - r) / r^2", exp_rest, abs, -0.3475, 0.3475, {32: 5, 64: 10}),
    Row("EXP_SHORT", "The same, as f32's pow needs it.", exp_rest, abs, -0.3475, 0.3475, {64: 6}),
    Row("LOG", "(log((1 + s) / (1 - s)) - 2 s) / s^3, of s^2", odd(log_of_quotient, mpf(2)), lambda z: z,
        0.0, 0.02947, {32: 3, 64: 6}),
    Row("LOG_SHORT", "The same, as f32's pow needs it.", odd(log_of_quotient, mpf(2)), lambda z: z,
        0.0, 0.02947, {64: 4}),
    Row("LOG_TAIL", "(log((1 + s) / (1 - s)) - 2 s - 2/3 s^3 - 2/5 s^5) / s^7, of s^2",
        odd(log_of_quotient, mpf(2), mpf(2) / 3, mpf(2) / 5), lambda z: z**3, 0.0, 0.02947, {64: 6}),
    Row("SIN", "(sin(r) - r) / r^3, of r^2", odd(mpmath.sin, mpf(1)), lambda z: z, 0.0, 0.63, {32: 3, 64: 6}),
    Row("COS", "(cos(r) - 1 + r^2 / 2) / r^4, of r^2",
        lambda z: (mpmath.cos(mpmath.sqrt(z)) - 1 + z / 2) / z**2, lambda z: z**2, 0.0, 0.63, {32: 2, 64: 5}),
    Row("ATAN", "(atan(t) - t) / t^3, of t^2", odd(mpmath.atan, mpf(1)), lambda z: z, 0.0, 0.1716, {32: 4, 64: 11}),
    Row("TANH", "(tanh(x) - x) / x^3, of x^2", odd(mpmath.tanh, mpf(1)), lambda z: z,
        0.0, TANH_NEAR**2, {32: 6, 64: 16}),
    Row("ERF", "erf(x) / x - 1, of x^2", lambda z: odd(mpmath.erf)(z) - 1, lambda z: mpf(1),
        0.0, ERF_NEAR**2, {32: 6, 64: 12}),
    Row("ERFC", "log(1 - erf(x)), of x from ERF_NEAR on", lambda x: mpmath.log(mpmath.erfc(x)), mpmath.erfc,
        ERF_NEAR, 6.0, {32: 6, 64: 18}, 4.0),
)  # fmt: skip


PARTS = (  # a name, how many floats, what their sum is, and whether each is the nearest one below
    ("LN2", 2, mpmath.ln2, False),
    ("LOG2E", 2, 1 / mpmath.ln2, False),
    ("HALF_PI", 2, mpmath.pi / 2, False),
    ("HALF_PI_BELOW", 3, mpmath.pi / 2, True),
    ("TWO_OVER_PI_NEAR", 1, 2 / mpmath.pi, False),
)
TURN_BITS = 1280  # what the reduction of the largest f64 needs: 1024 + 3 * 64, and some


def parts(value: mpf, count: int, rounded: Callable[[str], Any], below: bool = False) -> tuple[float, ...]:
    found: list[float] = []
    for _ in range(count):
        left = +value - mpmath.fsum(mpf(one) for one in found)
        part = rounded(mpmath.nstr(left, 40))
        if below and mpf(float(part)) > left:
            part = np.nextafter(part, rounded(0))
        found.append(float(part))
    return tuple(found)


def grid(row: Row, high: float, count: int) -> list[mpf]:
    """Places that are dense at the ends, none of them 0."""
    low, top = mpf(row.low), mpf(high)
    places = [(low + top) / 2 - (top - low) / 2 * mpmath.cos(mpmath.pi * i / count) for i in range(count + 1)]
    return [x for x in places if abs(x) > (top - low) / 5000]


def rounded_minimax(row: Row, high: float, degree: int, rounded: Callable[[str], float]) -> list[float]:
    """Coefficients from the constant on.  The first ones are rounded in turn, and those behind make up for it."""
    places = grid(row, high, GRID)
    wanted, counts = [row.wanted(x) for x in places], [row.counts(x) for x in places]
    found: list[mpf] = []
    for power in range(FIXED):
        first = minimax(places, wanted, counts, degree - power)[0]
        found.append(mpf(float(rounded(mpmath.nstr(first, 40)))))
        wanted = [(y - found[-1]) / x for x, y in zip(places, wanted, strict=True)]
        counts = [c * abs(x) for x, c in zip(places, counts, strict=True)]
    found += minimax(places, wanted, counts, degree - FIXED)
    return [float(rounded(mpmath.nstr(each, 40))) for each in found]


def minimax(places: list[mpf], wanted: list[mpf], counts: list[mpf], degree: int) -> list[mpf]:
    """Coefficients from the constant on, of the polynomial whose largest counted error at the places is least."""
    count = degree + 2
    chosen = [round((len(places) - 1) * i / (count - 1)) for i in range(count)]
    found: list[mpf] = []
    for _ in range(40):
        matrix = mpmath.matrix(count, count)
        right = mpmath.matrix(count, 1)
        for line, at in enumerate(chosen):
            for power in range(degree + 1):
                matrix[line, power] = places[at] ** power
            matrix[line, count - 1] = (-1) ** line / counts[at]
            right[line] = wanted[at]
        found = list(mpmath.lu_solve(matrix, right))[:-1]
        errors = [(mpmath.polyval(found[::-1], x) - y) * c for x, y, c in zip(places, wanted, counts, strict=True)]
        following = _extremes(errors, count)
        if following == chosen or len(following) < count:
            break
        chosen = following
    return found


def _extremes(errors: list[mpf], count: int) -> list[int]:
    """The largest error of each run of one sign; of too many the ends with the smaller error go."""
    runs: list[int] = []
    for at, error in enumerate(errors):
        if runs and (error < 0) == (errors[runs[-1]] < 0):
            if abs(error) > abs(errors[runs[-1]]):
                runs[-1] = at
        else:
            runs.append(at)
    while len(runs) > count:
        runs.pop(0 if abs(errors[runs[0]]) < abs(errors[runs[-1]]) else -1)
    return runs


def bits_of_error(row: Row, high: float, coefficients: list[float]) -> float:
    places = grid(row, high, 2 * GRID + 1)
    exact = [mpf(each) for each in coefficients[::-1]]
    return float(mpmath.log(max(abs(mpmath.polyval(exact, x) - row.wanted(x)) * row.counts(x) for x in places), 2))


def main() -> None:
    lines = ['"""Coefficients of polynomials, from the constant on, printed by docs/tools/polynomials.py."""', ""]
    lines += ["from __future__ import annotations", "", "# width of the float in bits -> coefficients"]
    for row in ROWS:
        lines += [f"# {row.meaning}", f"{row.name}: dict[int, tuple[float, ...]] = {{"]
        for width, degree in row.degrees.items():
            rounded = ROUNDED[width]
            high = row.high_f32 if width == 32 and row.high_f32 else row.high
            found = rounded_minimax(row, high, degree, rounded)
            print(row.name, width, degree, round(bits_of_error(row, high, found), 1), file=sys.stderr, flush=True)
            lines += [f"    {width}: (", *(f"        {each!r}," for each in found), "    ),"]
        lines += ["}"]
    lines += ["# A constant as a sum of floats, each the nearest one to what those before it leave, or the one below."]
    for name, count, value, below in PARTS:
        lines += [f"{name}: dict[int, tuple[float, ...]] = {{"]
        for width, rounded in ROUNDED.items():
            lines += [f"    {width}: {parts(value, count, rounded, below)!r},"]
        lines += ["}"]
    lines += [
        "# ln 2 in two parts, the first so short that its product with an exponent is exact.",
        "LN2_SHORT: dict[int, tuple[float, ...]] = {",
    ]
    for width, bits in ((32, 14), (64, 41)):
        short = mpmath.floor(mpmath.ln2 * 2**bits) / 2**bits
        lines += [f"    {width}: {(float(short), *parts(mpmath.ln2 - short, 1, ROUNDED[width]))!r},"]
    halves = tuple(part for odd in (3, 5) for part in parts(mpf(2) / odd, 2, np.float64))
    lines += ["}", "# 2/3 and 2/5, each in two parts of f64.", f"THIRD_AND_FIFTH = {halves!r}"]
    with mp.workprec(TURN_BITS + 64):
        digits = int(mpmath.floor(2 / mpmath.pi * mpf(2) ** TURN_BITS))
    text = f"{digits:0{TURN_BITS // 4}X}"
    lines += [f"# The first {TURN_BITS} bits of 2 / pi behind the binary point.", "TWO_OVER_PI = int("]
    lines += [f'    "{text[at : at + 96]}"' for at in range(0, len(text), 96)]
    lines += ["    , 16)", f"TURN_BITS = {TURN_BITS}"]
    lines += ["# Up to here tanh and erf are polynomials.", f"TANH_NEAR, ERF_NEAR = {TANH_NEAR}, {ERF_NEAR}"]
    print("\n".join(lines))


if __name__ == "__main__":
    main()
