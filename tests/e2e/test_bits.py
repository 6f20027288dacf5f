"""What travels arrives bit for bit: every dtype, odd values, empty and 0-d tensors, through two workers and back."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from support.processes.commands import PATIENT_S, until_they_work

import mesh.numpy as mnp
from mesh import Array, Mesh, evaluate
from wire.ir.dtypes import BF16, DTYPES, DType

SHAPES = {"empty": (0, 3), "0-d": (), "small": (5, 7), "larger than a message": (257, 311)}


@pytest.fixture(scope="module")
def two() -> Iterator[Mesh]:
    with Mesh.builder().local(2, engine="cpu").node_timeout(PATIENT_S).build() as mesh:
        yield mesh


def moved(x: Array) -> tuple[Array, Array]:
    """Only views: every bit of the result is one of the argument."""
    flat = mnp.reshape(x, (-1,)) if x.ndim != 1 else x
    turned = mnp.flip(flat)
    return turned, mnp.concat([turned, flat])


def any_bits(kind: DType, shape: tuple[int, ...]) -> np.ndarray:
    """Random bits, so NaNs with and without payloads, infinities, denormals and both zeros; floats begin with those."""
    rng = np.random.default_rng(7)
    count = int(np.prod(shape))
    if kind.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    found = np.frombuffer(rng.bytes(count * kind.numpy.itemsize), kind.numpy).copy()
    if kind.kind == "f":
        odd = np.array([np.nan, -np.nan, np.inf, -np.inf, -0.0, 0.0], kind.numpy)
        found[: len(odd)] = odd[:count]
    return found.reshape(shape)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", DTYPES, ids=[kind.name for kind in DTYPES])
def test_bits_survive_the_way_there_and_back(two: Mesh, kind: DType, shape: str) -> None:
    x = any_bits(kind, SHAPES[shape])
    turned, both = two.run(moved, x, strategy="pipeline", mode="on")
    flat = x.reshape(-1)
    assert turned.dtype == both.dtype == x.dtype
    assert turned.tobytes() == flat[::-1].tobytes()
    assert both.tobytes() == flat[::-1].tobytes() + flat.tobytes()


def filtered(x: Array, w: Array) -> tuple[Array, Array]:
    """Real layers around a complex one."""
    spectrum = mnp.fft.rfft(mnp.tanh(x), n=126) @ w
    turned = mnp.exp(1j * mnp.angle(spectrum)) * mnp.log1p(mnp.abs(spectrum))
    return mnp.tanh(mnp.fft.irfft(turned)) * 2, spectrum


def test_a_complex_program_cut_in_two_gives_the_bits_of_a_whole_one(two: Mesh) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((48, 64)).astype(np.float32)
    w = (rng.standard_normal((64, 64)) + 1j * rng.standard_normal((64, 64))).astype(np.complex64)
    found = until_they_work(two, 2, lambda: two.run(filtered, x, w, strategy="pipeline", mode="on"))
    assert [array.tobytes() for array in found] == [array.tobytes() for array in evaluate(filtered, x, w)]


def test_a_pipeline_of_views_is_cut_across_both(two: Mesh) -> None:
    until_they_work(two, 2, lambda: two.run(moved, any_bits(BF16, (257, 311)), strategy="pipeline", mode="on"))
