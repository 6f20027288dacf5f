"""The code over bytes: any k shares give every other back, bit for bit, whatever their lengths."""

from itertools import combinations, islice

import numpy as np
import pytest

from wire.erasure import gf256
from wire.errors import InputError


def _contents(k: int, seed: int) -> list[bytes]:
    random = np.random.default_rng(seed)
    return [random.bytes(int(size)) for size in random.integers(0, 40, k)]


@pytest.mark.parametrize(("k", "extra"), [(1, 1), (2, 1), (3, 1), (1, 3), (2, 2), (3, 2), (4, 3), (6, 2)])
def test_any_k_shares_give_every_other_one(k: int, extra: int) -> None:
    contents = _contents(k, seed=k * 10 + extra)
    longest = max(map(len, contents))
    made = [
        gf256.combined(zip(row, contents, strict=True), longest).tobytes() for row in gf256.checks(k, extra)
    ]  # fmt: skip
    shares = dict(enumerate([*contents, *made]))
    for there in combinations(range(k + extra), k):
        for wanted, share in shares.items():
            restored = gf256.restored(k, extra, {number: shares[number] for number in there}, wanted, len(share))
            assert restored.tobytes() == share


def test_one_check_is_exclusive_or_and_the_checks_of_one_content_are_that_content() -> None:
    assert gf256.checks(5, 1) == ((1, 1, 1, 1, 1),)
    assert gf256.checks(1, 3) == ((1,), (1,), (1,))


def test_long_contents_are_combined_in_pieces() -> None:
    size = gf256.CHUNK_BYTES + 3
    contents = [np.random.default_rng(seed).bytes(size) for seed in range(2)]
    check = gf256.combined(zip(gf256.checks(2, 2)[1], contents, strict=True), size)
    assert gf256.restored(2, 2, {1: contents[1], 3: check.data}, 0, size).tobytes() == contents[0]


def test_products_are_those_of_the_field() -> None:
    assert gf256._product(2, 0x80) == 0x1D  # x times x^7 is x^4 + x^3 + x^2 + 1
    for value in range(1, 256):
        assert gf256._product(value, gf256._inverse(value)) == 1
    assert gf256._products()[7, 9] == gf256._product(7, 9)


@pytest.mark.parametrize(("k", "extra"), [(0, 1), (1, -1), (60, 5)])
def test_sizes_without_a_code_are_refused(k: int, extra: int) -> None:
    with pytest.raises(InputError):
        gf256.checks(k, extra)


def test_few_of_the_many_choices_of_shares_are_remembered() -> None:
    for there in islice(combinations(range(4, 32), 4), 5000):
        gf256.coefficients(4, 28, 0, there)
    assert gf256.coefficients.cache_info().currsize < 5000


def test_too_few_shares_are_refused() -> None:
    with pytest.raises(InputError):
        gf256.coefficients(2, 1, 0, (1,))
