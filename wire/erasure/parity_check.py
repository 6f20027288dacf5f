"""Find which of several shares is wrong: what is a combination of blocks satisfies the parity checks of the code.

Of m shares of k blocks, m - k independent checks H (orthonormal rows, H G = 0) must give zero.  One check says that
something is wrong; with two, leaving out the wrong share alone makes the rest agree; with 2 e, any e of them are found.
Real shares are rounded, so "zero" is small beside the shares: what is wrong by less than the tolerance is not seen.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from .real_mds import Code, Shares

TOLERANCE = 1e-4  # of the largest element: products in float32 of some thousand terms are rounded by less


def parity(code: Code, numbers: tuple[int, ...]) -> NDArray[np.float64]:
    """The checks (m - k, m) of m shares, orthonormal rows."""
    left, _, _ = np.linalg.svd(code.generator[list(numbers)])
    checks: NDArray[np.float64] = left[:, code.k :].T
    return checks


def residual(code: Code, shares: Shares) -> float:
    """The largest element of the checks, beside the largest of the shares; infinite where a share is not finite."""
    numbers, stacked = code.stacked(shares)
    if not np.isfinite(stacked).all():
        return float("inf")
    largest = float(np.abs(stacked).max(initial=0.0))
    if len(numbers) == code.k or largest == 0:
        return 0.0
    checked = parity(code, numbers) @ stacked.reshape(len(numbers), -1).astype(np.float64)
    return float(np.abs(checked).max(initial=0.0)) / largest


def wrong_shares(code: Code, shares: Shares, tolerance: float = TOLERANCE) -> tuple[int, ...] | None:
    """Numbers of the shares that are wrong; none if all agree, None if some are and nobody can say which.

    k + 1 shares show that one is wrong, k + 2 which one it is, k + 2 e which e.
    """
    if residual(code, shares) <= tolerance:
        return ()
    for count in range(1, (len(shares) - code.k) // 2 + 1):
        agreeing = [
            left_out
            for left_out in combinations(sorted(shares), count)
            if residual(code, {number: shares[number] for number in shares if number not in left_out}) <= tolerance
        ]
        if agreeing:
            return agreeing[0] if len(agreeing) == 1 else None
    return None
