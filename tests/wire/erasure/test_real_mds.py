"""Codes over the reals: every k of n shares give the blocks back in float32, and wrong shares are found."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from wire.erasure.parity_check import parity, residual, wrong_shares
from wire.erasure.real_mds import CONDITION_MAX, Code, blocks_of, condition, joined
from wire.errors import InputError, ShapeError

ERROR_MAX = 1e-4
CODES = [Code(n, k) for n in range(1, 9) for k in range(1, min(n, 6) + 1)]
ids = [f"{code.k} of {code.n}" for code in CODES]


def weights(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def error(decoded: NDArray[np.float32], wanted: NDArray[np.float32]) -> float:
    return float(np.abs(decoded - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize("code", CODES, ids=ids)
def test_any_k_of_n_shares_give_the_weights_back_in_float32(code: Code) -> None:
    tensor = weights(41, 7)  # 41 divides by no k but 1
    shares = code.encode(blocks_of(tensor, code.k))
    assert shares.dtype == np.float32 and shares.shape == (code.n, -(-41 // code.k), 7)
    for numbers in combinations(range(code.n), code.k):
        decoded = code.decode({number: shares[number] for number in numbers})
        assert error(joined(decoded, 41), tensor) <= ERROR_MAX
    assert error(joined(code.decode(dict(enumerate(shares))), 41), tensor) <= ERROR_MAX


@pytest.mark.parametrize("code", CODES, ids=ids)
def test_columns_are_orthonormal_and_every_subset_is_well_conditioned(code: Code) -> None:
    np.testing.assert_allclose(code.generator.T @ code.generator, np.eye(code.k), atol=1e-14)
    assert condition(code.generator) == code.condition < 16


def test_a_cauchy_matrix_is_not_used_since_it_fails_in_float32_from_k_4() -> None:
    for k in (4, 5, 6):
        cauchy = 1 / (np.arange(8)[:, None] + 8.0 + np.arange(k)[None, :])
        blocks, worst = weights(k, 500), 0.0
        shares = cauchy.astype(np.float32) @ blocks
        for numbers in combinations(range(8), k):
            decoder = np.linalg.inv(cauchy[list(numbers)]).astype(np.float32)
            worst = max(worst, error(decoder @ shares[list(numbers)], blocks))
        assert worst > ERROR_MAX, (k, worst)
        assert condition(cauchy) > 1e4 * Code(8, k).condition


def test_a_code_that_would_decode_badly_is_refused_when_it_is_made() -> None:
    assert Code(16, 7).condition < CONDITION_MAX
    with pytest.raises(InputError, match="condition number"):
        Code(16, 8)
    for n, k in ((3, 4), (3, 0), (17, 3), (5, 2.5), ("5", 3)):
        with pytest.raises(InputError, match="1 <= k <= n <= 16"):
            Code(n, k)


def test_shares_of_products_and_sums_are_products_and_sums_of_shares() -> None:
    code, tensor, change, x = Code(5, 3), weights(20, 16), weights(20, 16, seed=1), weights(4, 16, seed=2)
    shares, changes = code.encode(blocks_of(tensor, 3)), code.encode(blocks_of(change, 3))
    answers = {number: x @ (shares[number] - changes[number]).T for number in (0, 2, 4)}
    assert error(joined(code.decode(answers), 20, axis=-1), x @ (tensor - change).T) <= ERROR_MAX
    alone = code.share(3, blocks_of(tensor, 3))
    assert error(alone, shares[3]) <= 4 * np.finfo(np.float32).eps, "but for how this processor rounds sums"


def test_what_cannot_be_coded_is_refused() -> None:
    code, tensor = Code(4, 2), weights(2, 3)
    with pytest.raises(InputError, match="int32 cannot be coded"):
        code.encode(tensor.astype(np.int32))
    with pytest.raises(ShapeError, match="expected 2 blocks"):
        code.encode(weights(3, 3))
    for numbers in ((1,), (1, 4)):
        with pytest.raises(InputError, match="are needed"):
            code.decode(dict.fromkeys(numbers, tensor[0]))
    with pytest.raises(ShapeError, match="one shape"):
        code.decode({0: tensor, 1: tensor[:1]})


# -- wrong shares


@pytest.mark.parametrize("code", [code for code in CODES if code.n >= code.k + 2], ids=str)
def test_k_and_one_shares_detect_a_wrong_one_and_k_and_two_locate_it(code: Code) -> None:
    shares = dict(enumerate(code.encode(blocks_of(weights(30, 5), code.k))))
    for more in (1, 2):
        for numbers in combinations(range(code.n), code.k + more):
            asked = {number: shares[number] for number in numbers}
            np.testing.assert_allclose(parity(code, numbers) @ code.generator[list(numbers)], 0, atol=1e-14)
            assert wrong_shares(code, asked) == ()
            for wrong in numbers:
                changed = shares[wrong].copy()
                changed.reshape(-1)[3] += 0.5  # a single element
                wrong_numbers = wrong_shares(code, {**asked, wrong: changed})
                assert wrong_numbers == (None if more == 1 else (wrong,)), (numbers, wrong)


def test_two_wrong_shares_are_located_by_four_checks_and_nan_is_wrong() -> None:
    code = Code(8, 4)
    shares = dict(enumerate(code.encode(blocks_of(weights(30, 5), 4))))
    for first, second in combinations(range(8), 2):
        worse = {**shares, first: shares[first] + 1, second: -2 * shares[second]}
        assert wrong_shares(code, worse) == (first, second)
    broken = shares[5].copy()
    broken[0] = np.nan
    assert residual(code, {**shares, 5: broken}) == float("inf")
    assert wrong_shares(code, {**shares, 5: broken}) == (5,)


def test_what_is_below_the_tolerance_is_not_seen() -> None:
    code = Code(5, 3)
    shares = dict(enumerate(code.encode(blocks_of(weights(30, 5), 3))))
    assert residual(code, shares) < 1e-6
    assert wrong_shares(code, {**shares, 1: shares[1] * np.float32(1 + 1e-5)}) == ()
    assert wrong_shares(code, {**shares, 1: shares[1] * np.float32(1 + 1e-2)}) == (1,)
    assert wrong_shares(code, dict.fromkeys(range(5), np.zeros((2, 2), np.float32))) == ()
