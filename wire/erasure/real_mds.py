"""MDS code over the reals: n shares of k blocks, any k of which give these back.  Sums of shares are shares, products
with them are too.

Share i is the sum over j of G[i, j] times block j.  The generator G has orthonormal columns: the first k functions of

    1, cos t, sin t, cos 2t, sin 2t, ...                          k odd
    cos t/2, sin t/2, cos 3t/2, sin 3t/2, ...                     k even

at n equally spaced angles of one turn.  Both are Chebyshev systems there (a sum of k of them has at most k - 1 zeros;
Karlin and Studden, 1966), so every k rows are independent, whatever n: a code that is MDS over the reals.

Codes for matrix products: Lee et al., "Speeding Up Distributed Machine Learning Using Codes", IEEE Trans. Inf. Theory
2018.  Over the reals what counts is how well the k rows are conditioned: monomials and Cauchy matrices lose a digit or
more with every k.  Orthogonal polynomials at Chebyshev points (Fahim and Cadambe, ISIT 2019) and points on the unit
circle (Ramamoorthy and Tang, IEEE Trans. Inf. Theory 2022) do not; this is the latter, in real numbers.

It knows arrays and no machines.  What is wrong among shares, `parity_check.py` finds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cached_property import cached_property
from ..errors import InputError, ShapeError

SHARES_MAX = 16
CONDITION_MAX = 1e3  # float32 has 7 digits, and decoding is to leave 4
FLOATS = ("float32", "float64")

Shares = Mapping[int, NDArray[Any]]  # by their numbers, from 0


@dataclass(frozen=True)
class Code:
    """k blocks in n shares; InputError unless 1 <= k <= n <= 16, and unless every k shares decode well."""

    n: int
    k: int
    generator: NDArray[np.float64] = field(init=False, repr=False, compare=False)  # (n, k)

    def __post_init__(self) -> None:
        counts = isinstance(self.n, int) and isinstance(self.k, int)
        if not counts or not 1 <= self.k <= self.n <= SHARES_MAX:
            raise InputError(f"a code of {self.n!r} shares for {self.k!r} blocks: 1 <= k <= n <= {SHARES_MAX}")
        object.__setattr__(self, "generator", _generator(self.n, self.k))
        if self.condition > CONDITION_MAX:
            raise InputError(
                f"of {self.n} shares some {self.k} would be decoded with a condition number of {self.condition:.2g}",
                next_step=f"Choose fewer shares, or more blocks: at most {CONDITION_MAX:g} is allowed",
            )

    @cached_property
    def condition(self) -> float:
        """The worst condition number of any k shares: how much of a relative error in them decoding may make."""
        return condition(self.generator)

    def encode(self, blocks: NDArray[Any]) -> NDArray[Any]:
        """The shares (n, ...) of blocks (k, ...), float32 or float64."""
        if blocks.shape[:1] != (self.k,):
            raise ShapeError(f"expected {self.k} blocks, got an array {blocks.shape}")
        _check_floats(blocks)
        return _combined(self.generator, blocks)

    def share(self, number: int, blocks: NDArray[Any]) -> NDArray[Any]:
        """One share alone."""
        combined: NDArray[Any] = _combined(self.generator[number : number + 1], blocks)[0]
        return combined

    def decode(self, shares: Shares) -> NDArray[Any]:
        """The blocks (k, ...) of k shares or more, of all of them by least squares; InputError for fewer."""
        numbers, stacked = self.stacked(shares)
        return _combined(self._decoder(numbers), stacked)

    def stacked(self, shares: Shares) -> tuple[tuple[int, ...], NDArray[Any]]:
        """Numbers of shares and the shares in their order; InputError unless they are k, known and alike."""
        numbers = tuple(sorted(shares))
        if len(numbers) < self.k or not all(0 <= number < self.n for number in numbers):
            raise InputError(f"{self.k} of the shares 0 to {self.n - 1} are needed, got {list(numbers)}")
        shapes = {shares[number].shape for number in numbers}
        if len(shapes) > 1:
            raise ShapeError(f"shares of one tensor have one shape, got {sorted(shapes)}")
        stacked = np.stack([shares[number] for number in numbers])
        _check_floats(stacked)
        return numbers, stacked

    def _decoder(self, numbers: Sequence[int]) -> NDArray[np.float64]:
        return np.asarray(np.linalg.pinv(self.generator[list(numbers)]), np.float64)


@lru_cache(maxsize=64)
def _generator(n: int, k: int) -> NDArray[np.float64]:
    angles = 2 * np.pi * (np.arange(n) + 0.5) / n
    columns = [np.full(n, math.sqrt(0.5))] if k % 2 else []
    for turn in range(k // 2):
        frequency = turn + (1 if k % 2 else 0.5)
        columns += [np.cos(frequency * angles), np.sin(frequency * angles)]
    scaled = np.stack(columns, axis=1) * math.sqrt(2 / n)
    scaled.flags.writeable = False
    return scaled


def condition(generator: NDArray[np.float64]) -> float:
    """The worst condition number of the rows of a generator (n, k), any k of them; all subsets are tried."""
    n, k = generator.shape
    subsets = np.array(list(combinations(range(n), k)))
    return float(np.linalg.cond(generator[subsets]).max())


def _combined(rows: NDArray[np.float64], blocks: NDArray[Any]) -> NDArray[Any]:
    """rows (m, k) times blocks (k, ...), in the dtype of the blocks."""
    flat = blocks.reshape(len(blocks), -1)
    combined: NDArray[Any] = rows.astype(blocks.dtype) @ flat
    return combined.reshape(len(rows), *blocks.shape[1:])


def _check_floats(array: NDArray[Any]) -> None:
    if array.dtype.name not in FLOATS:
        raise InputError(
            f"{array.dtype} cannot be coded", next_step=f"Convert it to {' or '.join(FLOATS)}: shares are sums"
        )


# -- tensors and blocks -----------------------------------------------------------------------------------


def blocks_of(tensor: NDArray[Any], k: int, axis: int = 0) -> NDArray[Any]:
    """A tensor as k blocks (k, ...) of one shape along `axis`, the last of them filled up with zeros."""
    size = tensor.shape[axis]
    block_size = -(-size // k)
    padding = [(0, block_size * k - size if at == axis % tensor.ndim else 0) for at in range(tensor.ndim)]
    return np.stack(np.split(np.pad(tensor, padding), k, axis))


def joined(blocks: NDArray[Any], size: int, axis: int = 0) -> NDArray[Any]:
    """The tensor of blocks (k, ...), `size` long along `axis`: the way back of `blocks_of`."""
    tensor = np.concatenate(list(blocks), axis)
    return np.take(tensor, range(size), axis) if tensor.shape[axis] != size else tensor
