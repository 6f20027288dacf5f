"""mesh.random: a draw is a function of its key, element by element, and has the distribution it is named for.

All keys are fixed, so the statistics below are always the same numbers.
"""

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import mesh
import mesh.numpy as mnp
from mesh import random
from mesh.errors import DTypeError, InputError, ShapeError

MANY = 100_000
KEY = random.key(2024)


def drawn(array: Any) -> Any:
    return np.asarray(array)


def test_keys_are_words_of_the_seed_and_their_children_never_change() -> None:
    assert drawn(random.key(7)).tolist() == [0, 7]
    assert drawn(random.key((5 << 32) + 9)).tolist() == [5, 9]
    assert drawn(random.key(-1)).tolist() == [0xFFFFFFFF, 0xFFFFFFFF]
    assert drawn(random.split(random.key(7))).tolist() == SPLIT_OF_7
    assert drawn(random.fold_in(random.key(7), 3)).tolist() == FOLD_OF_7


def test_a_longer_draw_begins_with_a_shorter_one() -> None:
    for draw in (random.uniform, random.normal, random.gumbel, random.exponential, random.bits):
        assert np.array_equal(drawn(draw(KEY, (40,)))[:17], drawn(draw(KEY, (17,))))
    assert np.array_equal(drawn(random.uniform(KEY, (6, 4))).reshape(-1), drawn(random.uniform(KEY, 24)))
    assert np.array_equal(drawn(random.split(KEY, 9))[:4], drawn(random.split(KEY, 4)))


def test_children_differ_from_each_other_and_from_draws() -> None:
    keys = [tuple(row) for row in drawn(random.split(KEY, 100)).tolist()]
    keys += [tuple(drawn(random.fold_in(KEY, number)).tolist()) for number in range(100)]
    keys += [tuple(drawn(random.fold_in(random.key(seed), 0)).tolist()) for seed in range(100)]
    keys += [tuple(row) for row in drawn(random.bits(KEY, (100, 2))).tolist()]
    assert len(set(keys)) == len(keys)


def test_a_traced_key_gives_the_same_numbers() -> None:
    def noise(key: Any, step: Any) -> Any:
        return random.normal(random.fold_in(key, step), (3, 4))

    assert np.array_equal(mesh.evaluate(noise, drawn(KEY), np.int32(5)), drawn(noise(KEY, 5)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_uniform(dtype: str) -> None:
    kind = getattr(mnp, dtype)
    found = drawn(random.uniform(KEY, (MANY,), kind)).astype(np.float64)
    assert random.uniform(KEY, (3,), kind).dtype == np.asarray(mnp.zeros(1, dtype=kind)).dtype
    assert found.min() >= 0 and found.max() < 1
    counts = np.histogram(found, 8, (0, 1))[0]
    assert np.abs(counts / MANY - 1 / 8).max() < 0.005
    moved = drawn(random.uniform(KEY, (MANY,), kind, -3.0, 5.0)).astype(np.float64)
    assert moved.min() >= -3 and moved.max() <= 5 and abs(moved.mean() - 1) < 0.03


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_normal_has_the_quantiles_of_the_normal_distribution(dtype: Any) -> None:
    found = drawn(random.normal(KEY, (MANY,), dtype))
    assert found.dtype == dtype and np.isfinite(found).all()
    wide = found.astype(np.float64)
    for bound in (-3, -2, -1, -0.5, 0, 0.5, 1, 2, 3):
        expected = 0.5 * (1 + math.erf(bound / math.sqrt(2)))
        assert abs((wide < bound).mean() - expected) < 4 * math.sqrt(expected * (1 - expected) / MANY)
    assert abs(wide.mean()) < 0.01 and abs(wide.std() - 1) < 0.01
    assert wide.max() > 3.8 and wide.min() < -3.8


def test_the_inverse_of_erf() -> None:
    from mesh.numpy.random import erfinv

    y = np.linspace(-3.6, 3.6, 2001)
    x = np.vectorize(math.erf)(y)
    steep = np.abs(y) < 2.5
    np.testing.assert_allclose(drawn(erfinv(mnp.asarray(x)))[steep], y[steep], rtol=1e-12, atol=1e-14)
    single = drawn(erfinv(mnp.asarray(x[steep].astype(np.float32))))
    np.testing.assert_allclose(single, y[steep], rtol=5e-5, atol=1e-6)  # the input's own rounding, steep at the ends


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("lower", "upper"),
    [(8, 9), (-9, -8), (-math.inf, -8), (8, math.inf), (2, 2.5), (1.9, 9), (-8, 9), (0.1, 0.3), (30, 31), (-37, -36.5)],
)
def test_a_tail_of_the_normal_distribution_is_drawn_as_it_is(lower: float, upper: float, dtype: Any) -> None:
    found = drawn(random.truncated_normal(KEY, lower, upper, (MANY,), dtype)).astype(np.float64)
    assert ((found >= lower) & (found <= upper)).all()
    if upper < -lower:  # as its mirror image, whose probabilities have a logarithm
        found, lower, upper = -found, -upper, -lower
    left = np.vectorize(lambda x: math.erfc(x / math.sqrt(2)))
    fallen = np.sort((left(lower) - left(found)) / (left(lower) - left(upper)))
    assert np.abs(fallen - np.linspace(0, 1, MANY)).max() < 1.95 / math.sqrt(MANY), "Kolmogorov and Smirnov's test"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_bounds_that_a_dtype_does_not_have_are_kept(dtype: str) -> None:
    found = drawn(random.truncated_normal(KEY, 0.1, 0.11, (MANY,), dtype)).astype(np.float64)
    assert found.min() >= 0.1 and found.max() <= 0.11
    assert set(drawn(random.truncated_normal(KEY, 8, 8, (9,), dtype)).tolist()) == {8.0}


def test_truncated_normal_stays_inside() -> None:
    found = drawn(random.truncated_normal(KEY, -2, 1, (MANY,)))
    assert found.min() >= -2 and found.max() <= 1
    low, high = (0.5 * (1 + math.erf(bound / math.sqrt(2))) for bound in (-2, 1))
    assert abs((found < 0).mean() - (0.5 - low) / (high - low)) < 0.006


def test_exponential_and_gumbel_have_their_means() -> None:
    assert abs(drawn(random.exponential(KEY, (MANY,))).mean() - 1) < 0.01
    noise = drawn(random.gumbel(KEY, (MANY,)))
    assert np.isfinite(noise).all()
    assert abs(noise.mean() - 0.5772) < 0.015 and abs(noise.var() - math.pi**2 / 6) < 0.04


@pytest.mark.parametrize("span", [1, 2, 7, 1 << 16, (1 << 20) + 3, (1 << 31) + 11, (1 << 32) - 1])
def test_randint_is_the_fraction_of_64_bits(span: int) -> None:
    words = drawn(random.bits(KEY, (50, 2))).astype(object)
    expected = [int(((high << 32) + low) * span >> 64) for high, low in words]
    assert drawn(random.randint(KEY, (50,), 0, span, np.uint32)).tolist() == expected


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        (np.int32, -5, 7),
        (np.int8, -128, 128),
        (np.uint8, 3, 4),
        (np.int32, -(1 << 31), 1 << 31),
        (np.int64, -(1 << 63), 1 << 63),
        (np.int64, -(1 << 40), 1 << 41),
        (np.uint64, 1 << 63, 1 << 64),
    ],
)
def test_randint_covers_its_range(dtype: Any, low: int, high: int) -> None:
    found = drawn(random.randint(KEY, (4000,), low, high, dtype))
    assert found.dtype == dtype
    whole = [int(value) for value in found]
    assert low <= min(whole) and max(whole) < high
    if high - low < 300:
        assert set(whole) == set(range(low, high))
    assert abs(sum(whole) / 4000 - (low + high - 1) / 2) <= (high - low) * 0.03


def test_bernoulli() -> None:
    assert abs(drawn(random.bernoulli(KEY, 0.3, (MANY,))).mean() - 0.3) < 0.005
    chances = np.array([[0.0, 1.0]], np.float32)
    assert drawn(random.bernoulli(KEY, chances)).tolist() == [[False, True]]


def test_permutations() -> None:
    order = drawn(random.permutation(KEY, 1000))
    assert order.dtype == np.int32 and sorted(order.tolist()) == list(range(1000))
    assert abs(np.corrcoef(order, np.arange(1000))[0, 1]) < 0.1
    rows = np.arange(12).reshape(3, 4)
    shuffled = drawn(random.permutation(KEY, rows, axis=1))
    assert sorted(shuffled[0].tolist()) == [0, 1, 2, 3] and np.array_equal(
        shuffled - shuffled[0], rows[:, :1] + 0 * rows
    )
    firsts = [int(random.permutation(key, 4)[0]) for key in random.split(KEY, 200)]
    assert all(30 < firsts.count(place) < 70 for place in range(4))


def test_categorical_and_choice() -> None:
    chances = np.array([0.1, 0.2, 0.0, 0.7], np.float32)
    with np.errstate(divide="ignore"):
        logits = np.log(chances)
    for found in (
        random.categorical(KEY, logits, shape=(MANY,)),
        random.choice(KEY, 4, (MANY,), p=chances),
        random.categorical(KEY, np.tile(logits[:, None], (1, MANY)), axis=0),
    ):
        assert np.abs(np.bincount(drawn(found), minlength=4) / MANY - chances).max() < 0.005
    rows = random.categorical(KEY, np.tile(logits, (5, 1)))
    assert rows.shape == (5,) and rows.dtype == np.int32
    names = np.array([10, 20, 30, 40, 50])
    assert set(drawn(random.choice(KEY, names, (200,))).tolist()) == set(names.tolist())
    assert sorted(drawn(random.choice(KEY, names, (5,), replace=False)).tolist()) == names.tolist()
    few = [drawn(random.choice(key, 4, (2,), replace=False, p=[0.0, 0.5, 0.0, 0.5])) for key in random.split(KEY, 20)]
    assert all(sorted(pair.tolist()) == [1, 3] for pair in few)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: random.uniform(np.zeros(2, np.int32)), InputError),
        (lambda: random.uniform(np.zeros(3, np.uint32)), InputError),
        (lambda: random.uniform(KEY, (2,), np.int32), DTypeError),
        (lambda: random.bits(KEY, (2,), np.int32), DTypeError),
        (lambda: random.randint(KEY, (2,), 3, 3), InputError),
        (lambda: random.randint(KEY, (2,), 0, 300, np.uint8), InputError),
        (lambda: random.fold_in(KEY, np.zeros(2, np.uint32)), ShapeError),
        (lambda: random.choice(KEY, 3, (4,), replace=False), InputError),
        *[
            (lambda p=p: random.choice(KEY, 3, (4,), p=np.array(p)), InputError)
            for p in ([-1.0, 1, 1], [0.0, 0, 0], [math.nan, 1, 1], [math.inf, 1, 1])
        ],
        *[
            (lambda bounds=bounds: random.truncated_normal(KEY, *bounds), InputError)
            for bounds in ((2, -2), (9, 8), (math.nan, 2), (math.inf, math.inf), (-math.inf, -math.inf))
        ],
        *[
            (lambda bounds=bounds: random.uniform(KEY, (3,), np.float32, *bounds), InputError)
            for bounds in ((-3e38, 3e38), (0, math.inf), (math.nan, 1.0))
        ],
        (lambda: random.choice(KEY, 3, (4,), p=[0.5, 0.5]), ShapeError),
        (lambda: random.categorical(KEY, np.zeros((2, 3)), shape=(5,)), ShapeError),
        (lambda: random.key(1 << 64), InputError),
    ],
)
def test_misuse_is_said(call: Any, error: Any) -> None:
    with pytest.raises(error):
        call()


SPLIT_OF_7 = [[1399050475, 3844594329], [1463546940, 3405490802]]
FOLD_OF_7 = [3635311895, 3060304482]


def test_randint_over_most_of_64_bits_is_even() -> None:
    """A remainder of 64 bits drew the lower third of this range with probability 1/2."""
    found = drawn(random.randint(KEY, (20_000,), -(1 << 63), 1 << 62, np.int64))
    share = (found < -(1 << 62)).mean()
    assert abs(share - 1 / 3) < 0.02
    assert found.max() < 1 << 62


@pytest.mark.parametrize("span", [(1 << 32) + 1, 10**12 + 7, (1 << 63) + 12345, (1 << 64) - 1])
def test_randint_of_a_wide_span_is_the_fraction_of_128_bits(span: int) -> None:
    pairs = drawn(random.bits(KEY, (50, 2), np.uint64)).tolist()
    expected = [((high << 64 | low) * span) >> 128 for high, low in pairs]
    assert drawn(random.randint(KEY, (50,), 0, span, np.uint64)).tolist() == expected


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_draws_by_narrow_probabilities_have_them(dtype: Any) -> None:
    """The draw had as many bits as the dtype: 0.001 in bfloat16 came 4 times as often, and of equal logits around 100
    the first one came 1.5 times as often as the last one."""
    hits = drawn(random.bernoulli(KEY, np.array(0.001, dtype), (400_000,))).mean()
    assert abs(hits - float(dtype(0.001))) < 2e-4
    for places in (
        random.categorical(KEY, np.full(4, 100, dtype), shape=(40_000,)),
        random.choice(KEY, 4, (40_000,), p=np.full(4, 1e-30 if dtype is not np.float16 else 6e-8, dtype)),
    ):
        shares = np.bincount(drawn(places), minlength=4) / 40_000
        assert np.abs(shares - 0.25).max() < 0.01


def test_choice_without_replacement_draws_nothing_of_probability_0() -> None:
    """As numpy refuses it: entries of probability 0 were drawn where no others were left."""
    with pytest.raises(ValueError, match="Fewer non-zero"):
        np.random.default_rng(0).choice(4, 3, replace=False, p=[0.5, 0.5, 0, 0])
    with pytest.raises(InputError, match="probability above 0"):
        random.choice(KEY, 4, (3,), replace=False, p=np.array([0.5, 0.5, 0, 0]))
    assert sorted(drawn(random.choice(KEY, 4, (2,), replace=False, p=np.array([0.5, 0.5, 0, 0]))).tolist()) == [0, 1]


@pytest.mark.parametrize("number", [-1, 1 << 32, (1 << 40) + 3, 1.5, math.nan])
def test_fold_in_refuses_what_would_make_the_key_of_another_number(number: float) -> None:
    """2^32 made the key of 0, and 1.5 that of 1."""
    with pytest.raises(InputError, match="fold_in"):
        random.fold_in(KEY, number)
    assert drawn(random.fold_in(KEY, (1 << 32) - 1)).tolist() != drawn(random.fold_in(KEY, 0)).tolist()
