"""The comparison that judges engines: what passes, what does not, and what it says."""

from typing import Any

import numpy as np
import pytest
from support.cases.op_cases import cases
from support.compare import assert_close, magnitude_of, same_bits

from wire.ir.dtypes import BF16, F16, F32, F64, I32, DType, dtype_of

TINY = 1e-40


def agrees(actual: Any, expected: Any, op: str, dtype: DType = F32, magnitude: Any = None) -> bool:
    a, b = (np.array(value, dtype.numpy) for value in (actual, expected))
    try:
        assert_close(a, b, op, dtype, magnitude)
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize(
    ("op", "actual", "expected", "same"),
    [
        ("neg", 0.0, 0.0, True),
        ("neg", 0.0, -0.0, False),  # exact rows keep the sign of zero
        ("neg", 0.0, TINY, False),  # and denormals
        ("max", 0.0, -0.0, True),  # except where the table leaves it open
        ("max", 0.0, TINY, False),
        ("add", 0.0, -0.0, True),
        ("add", 0.0, TINY, True),  # a rounded row may flush
        ("add", 1.0, 1.0000001, True),
        ("add", 1.0, 1.000001, False),
        ("exp", 1.0, 1.000001, True),
        ("exp", 1.0, 1.00001, False),
        ("add", np.nan, np.nan, True),
        ("add", np.nan, 1.0, False),
        ("add", 1.0, np.nan, False),
        ("add", np.inf, np.inf, True),
        ("add", np.inf, -np.inf, False),
        ("add", 3.4e38, np.inf, False),
        ("add", np.inf, 3.4e38, False),
        ("sin", 1e-7, 0.0, True),
    ],
)
def test_rows_of_the_tolerance_column(op: str, actual: float, expected: float, same: bool) -> None:
    assert agrees(actual, expected, op) is same


def test_sums_are_scaled_by_what_was_summed() -> None:
    assert not agrees(0.01, 0.0, "reduce_sum")
    assert agrees(0.01, 0.0, "reduce_sum", magnitude=np.array(1e3))
    assert not agrees(0.03, 0.0, "reduce_sum", magnitude=np.array(1e3))
    assert not agrees(0.01, 0.0, "reduce_sum", magnitude=np.array(np.inf))


def test_narrow_floats_may_be_a_rounding_apart_and_integers_never() -> None:
    assert agrees(1.0, 1.001, "add", F16)
    assert not agrees(1.0, 1.01, "add", F16)
    assert agrees(1.0, 1.01, "add", BF16)
    assert not agrees(1, 2, "add", I32)
    assert not agrees(1.0, 1.001, "neg", F16)


def test_the_message_names_op_index_and_values() -> None:
    actual, expected = np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32)
    expected[1, 2] = 1
    with pytest.raises(AssertionError, match=r"mul f32: 1 of 6 differ, first at \[1, 2\]: got 0.0 .*expected 1.0"):
        assert_close(actual, expected, "mul", F32)
    with pytest.raises(AssertionError, match="shape"):
        assert_close(actual[0], expected, "mul", F32)
    with pytest.raises(AssertionError, match="dtype"):
        assert_close(actual.astype(np.float64), expected, "mul", F32)


def test_the_magnitude_of_a_dot_is_the_dot_of_absolute_values() -> None:
    case = next(case for case in cases("dot") if case.id == "dot/f64/matmul")
    (magnitude,) = magnitude_of(case)
    left, right = case.arguments
    np.testing.assert_allclose(magnitude, np.abs(left) @ np.abs(right))
    assert dtype_of(magnitude) is F64
    assert magnitude_of(cases("exp")[0]) == [None]


def test_bits_are_the_same_but_for_payloads_of_nan() -> None:
    one, other = np.array([0xFFFD, 0x3F80], np.uint16).view(BF16.numpy), np.array([np.nan, 1.0], BF16.numpy)
    assert same_bits(one, other)
    for array in (np.array([1.0, -0.0], np.float32), np.array([1.0, np.inf], np.float32), np.array([1, 2], np.int32)):
        assert same_bits(array, array.copy()) and not same_bits(array, array[::-1])
    assert not same_bits(np.zeros(2), -np.zeros(2)), "zeros keep their signs"
    assert not same_bits(np.zeros(2, np.float32), np.zeros(2, np.int32)) and not same_bits(np.zeros(2), np.zeros(3))
