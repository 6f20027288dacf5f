"""Windows of convolution and pooling: what numbers mean, what does not fit, and padding below zero."""

from typing import Any

import numpy as np
import pytest

import mesh.numpy as mnp
from mesh import nn
from mesh.errors import InputError, ShapeError
from mesh.nn.convolution import correlation

RANDOM = np.random.default_rng(3)


def random(*shape: int) -> Any:
    return mnp.asarray(RANDOM.integers(-4, 5, shape).astype(np.float32))


@pytest.mark.parametrize("spread", [1, 2, 3])
@pytest.mark.parametrize("pair", [(-1, 2), (-2, -3), (3, -4), (-7, 6), (0, -9), (-20, 25), (12, -11)])
def test_padding_below_zero_cuts_the_dilated_array(pair: tuple[int, int], spread: int) -> None:
    x, w = random(2, 3, 10), random(4, 3, 2)
    wide = np.zeros((2, 3, 9 * spread + 1), np.float32)
    wide[..., ::spread] = np.asarray(x)
    wide = np.pad(wide, ((0, 0), (0, 0), (max(pair[0], 0), max(pair[1], 0))))
    wide = wide[..., max(-pair[0], 0) : wide.shape[-1] - max(-pair[1], 0)]
    if wide.shape[-1] < 2:
        with pytest.raises(ShapeError, match="does not fit"):
            correlation(x, w, (1,), (pair,), (spread,), (1,), 1)
        return
    expected = nn.conv(mnp.asarray(wide), w)
    found = correlation(x, w, (1,), (pair,), (spread,), (1,), 1)
    assert np.array_equal(np.asarray(found), np.asarray(expected))


def test_same_keeps_ceil_of_dim_by_stride_and_pads_behind_or_before() -> None:
    x, w = random(1, 2, 8), random(3, 2, 4)
    behind, before = (nn.conv(x, w, stride=3, padding=padding) for padding in ("same", "same_lower"))
    assert behind.shape == before.shape == (1, 3, 3)
    assert np.array_equal(np.asarray(behind), np.asarray(nn.conv(x, w, stride=3, padding=[(1, 1)])))
    odd = random(1, 2, 9)
    assert np.array_equal(np.asarray(nn.conv(odd, w, padding="same")), np.asarray(nn.conv(odd, w, padding=[(1, 2)])))
    lower = nn.conv(odd, w, padding="same_lower")
    assert np.array_equal(np.asarray(lower), np.asarray(nn.conv(odd, w, padding=[(2, 1)])))


def test_axes_before_the_channels_are_kept() -> None:
    x, w, bias = random(2, 3, 4, 9, 9), random(5, 4, 3, 3), random(5)
    found = nn.conv(x, w, bias)
    assert found.shape == (2, 3, 5, 7, 7)
    assert np.array_equal(np.asarray(found[1, 2]), np.asarray(nn.conv(x[1, 2], w, bias)))


def test_integers_convolve_and_pool() -> None:
    x, w = np.arange(8, dtype=np.int32).reshape(1, 1, 8), np.array([[[1, -2]]], np.int32)
    assert np.asarray(nn.conv(x, w)).tolist() == [[[-2, -3, -4, -5, -6, -7, -8]]]
    assert np.asarray(nn.max_pool(-x, 3, padding=1)).tolist() == [[[0, -2, -5]]]
    assert nn.avg_pool(x, 2).dtype == np.float32


def test_half_precision_means_are_made_in_single() -> None:
    x = np.full((1, 1, 4096), 0.1, np.float16)
    for found in (nn.avg_pool(x, 4000, stride=1), nn.avg_pool(x, 4096)):
        assert found.dtype == np.float16
        np.testing.assert_allclose(np.asarray(found).astype(np.float64), 0.1, rtol=1e-3)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: nn.conv(random(1, 2, 5), random(3, 2, 6)), ShapeError),
        (lambda: nn.conv(random(1, 3, 5), random(3, 2, 2)), ShapeError),
        (lambda: nn.conv(random(1, 2, 5), random(3, 2, 2), stride=(1, 2)), ShapeError),
        (lambda: nn.conv(random(1, 2, 5), random(3, 2, 2), padding="full"), InputError),
        (lambda: nn.conv(random(5), random(3, 2, 2)), ShapeError),
        (lambda: nn.conv_transpose(random(1, 2, 5), random(3, 2, 2)), ShapeError),
        (lambda: nn.max_pool(random(1, 2, 5), 6), ShapeError),
        (lambda: nn.max_pool(random(1, 2, 5), (2, 2, 2, 2)), ShapeError),
        (lambda: nn.max_pool(random(1, 2, 5), 2, stride=0), ShapeError),
    ],
)
def test_what_does_not_fit_is_said(call: Any, error: Any) -> None:
    with pytest.raises(error):
        call()
