"""GF(256): a code over bytes.  k contents and some checks of them, of which any k give all of them back, bit for bit.

The field is GF(256) with the polynomial x^8 + x^4 + x^3 + x^2 + 1, where addition is exclusive or.  Checks are sums of
the contents by the rows of a Cauchy matrix, every square part of which can be inverted (Bloemer et al., "An XOR-based
erasure-resilient coding scheme", 1995), scaled so that the first row and the first column are ones: one check is plain
exclusive or, and the checks of a single content are that content.  Contents may differ in length; what is behind the
end of one counts as zeros.

Codes over the reals (`real_mds.py`) are for sums that workers compute with; this one is for bytes that must come back
as they were.  It knows no machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError

SHARES_MAX = 64
CHUNK_BYTES = 1 << 20  # what is combined at once: tables and results stay in the cache
_POLYNOMIAL = 0x11D

Bytes = bytes | bytearray | memoryview


@cache
def checks(k: int, extra: int) -> tuple[tuple[int, ...], ...]:
    """The coefficients of every check, `extra` rows of k; InputError for sizes that there is no code of."""
    if not (k >= 1 and extra >= 0 and k + extra <= SHARES_MAX):
        raise InputError(f"{k} contents and {extra} checks: at least one content, at most {SHARES_MAX} in all")
    rows = [[_inverse(i ^ (extra + j)) for j in range(k)] for i in range(extra)]
    columns = rows[0] if rows else []
    rows = [[_divided(value, column) for value, column in zip(row, columns, strict=True)] for row in rows]
    return tuple(tuple(_divided(value, row[0]) for value in row) for row in rows)


@lru_cache(maxsize=4096)  # of 32 shares there are hundreds of millions of choices
def coefficients(k: int, extra: int, wanted: int, there: tuple[int, ...]) -> tuple[int, ...]:
    """The factors by which k shares give another one.  Shares 0 to k - 1 are the contents, the others the checks of
    them."""
    if len(set(there)) != k or not all(0 <= number < k + extra for number in (*there, wanted)):
        raise InputError(f"{k} of {k + extra} shares give another one, not {there}")
    generator = [tuple(int(i == j) for j in range(k)) for i in range(k)] + list(checks(k, extra))
    columns = [[generator[share][row] for share in there] for row in range(k)]
    return _solved(columns, list(generator[wanted]))


def combined(terms: Iterable[tuple[int, Bytes]], size_bytes: int) -> NDArray[np.uint8]:
    """The first `size_bytes` bytes of the sum of contents by their coefficients."""
    total = np.zeros(size_bytes, np.uint8)
    for coefficient, content in terms:
        add(total, coefficient, content)
    return total


def add(total: NDArray[np.uint8], coefficient: int, content: Bytes) -> None:
    """Add a content by its coefficient to a sum, as far as that goes."""
    data = np.frombuffer(content, np.uint8)[: total.size]
    if coefficient == 1:
        total[: data.size] ^= data
    elif coefficient:
        row = _products()[coefficient]
        for start in range(0, data.size, CHUNK_BYTES):
            part = data[start : start + CHUNK_BYTES]
            total[start : start + part.size] ^= row[part]


def restored(k: int, extra: int, shares: Mapping[int, Bytes], wanted: int, size_bytes: int) -> NDArray[np.uint8]:
    """A share of any k others, by their numbers."""
    there = tuple(sorted(shares))[:k]
    factors = coefficients(k, extra, wanted, there)
    return combined(((factor, shares[number]) for factor, number in zip(factors, there, strict=True)), size_bytes)


# -- the field --------------------------------------------------------------------------------------------


@cache
def _powers() -> tuple[list[int], list[int]]:
    """2 to every exponent, twice over, and the exponent of every number but 0."""
    powers, exponents, value = [], [0] * 256, 1
    for exponent in range(255):
        powers.append(value)
        exponents[value] = exponent
        value = value << 1 ^ (_POLYNOMIAL if value & 0x80 else 0)
    return powers * 2, exponents


@cache
def _products() -> NDArray[np.uint8]:
    """[a, b]: a times b."""
    return np.array([[_product(a, b) for b in range(256)] for a in range(256)], np.uint8)


def _product(a: int, b: int) -> int:
    powers, exponents = _powers()
    return powers[exponents[a] + exponents[b]] if a and b else 0


def _inverse(a: int) -> int:
    powers, exponents = _powers()
    return powers[255 - exponents[a]]


def _divided(a: int, b: int) -> int:
    return _product(a, _inverse(b))


def _solved(rows: Sequence[Sequence[int]], right: Sequence[int]) -> tuple[int, ...]:
    """x of rows x = right, by Gauss and Jordan; the rows can be inverted."""
    work = [[*row, value] for row, value in zip(rows, right, strict=True)]
    for column in range(len(work)):
        pivot = next(row for row in range(column, len(work)) if work[row][column])
        work[column], work[pivot] = work[pivot], work[column]
        factor = _inverse(work[column][column])
        work[column] = [_product(factor, value) for value in work[column]]
        for row in range(len(work)):
            factor = work[row][column]
            if row != column and factor:
                pairs = zip(work[row], work[column], strict=True)
                work[row] = [value ^ _product(factor, other) for value, other in pairs]
    return tuple(row[-1] for row in work)
