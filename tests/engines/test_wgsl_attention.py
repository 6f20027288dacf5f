"""Attention on the wgsl engine: scores are never stored, forward and backward, and are what float64 says they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.adapter import needs_adapter

import mesh
import mesh.numpy as mnp
from mesh import nn
from wire.ir.graph import WireGraph
from wire.passes.simplify import simplify
from worker.wgsl.lower import lower
from worker.wgsl.profile import WEBGPU_MINIMUM, DeviceLimits, Profile
from worker.wgsl.program import Program
from worker.wgsl.shaders import Shaders

Array = NDArray[Any]
LARGE = Profile(limits=DeviceLimits(storage_buffers=32, invocations=1024, workgroup_bytes=32 << 10), software=False)
PROFILES = {
    "minimum": Profile(limits=DeviceLimits(), f16=True),
    "gpu": LARGE,
    "subgroups": replace(LARGE, software=True, subgroup=8),
    "subgroups of 16": replace(LARGE, software=True, subgroup=16),
}


def tril(length: int, keys: int = 0) -> Array:
    return np.tril(np.ones((length, keys or length), bool), (keys or length) - length)


def with_gradients(attend: Callable[..., Any]) -> Callable[..., Any]:
    def both(q: Any, k: Any, v: Any, g: Any, *masks: Any) -> Any:
        out, pull = mesh.vjp(lambda *qkv: attend(*qkv, *masks), q, k, v)
        return out, *pull(g)

    return both


def attend(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    return nn.scaled_dot_product_attention(q, k, v, mask)


def by_hand(q: Any, k: Any, v: Any, mask: Any) -> Any:
    scores = mnp.einsum("btd,bsd->bts", q, k) * q.shape[-1] ** -0.5
    return nn.softmax(mnp.where(mask, scores, -mnp.inf), -1) @ v


def window(q: Any, k: Any, v: Any) -> Any:
    at = mnp.arange(q.shape[-2])
    near = mnp.logical_and(nn.causal_mask(at, at), mnp.expand_dims(at, -1) - at < 9)
    return nn.scaled_dot_product_attention(q, k, v, near)


def grouped(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return nn.scaled_dot_product_attention(q, k[:, :, None], v[:, :, None], mask)


def dropped(q: Any, k: Any, v: Any, kept: Any) -> Any:
    weights = nn.softmax(q @ mnp.swapaxes(k, -1, -2) * q.shape[-1] ** -0.5)
    return mnp.where(kept, weights * 2.0, 0.0) @ v


# -- what becomes of the graph ----------------------------------------------------------------------------


def compiled(function: Callable[..., Any], *arrays: Array, profile: Profile = LARGE) -> Program:
    return lower(simplify(mesh.trace(function, *arrays)), Shaders(profile))


def zeros(*shape: int) -> Array:
    return np.zeros(shape, np.float32)


def stored(program: Program) -> int:
    return max([buffer.size_bytes for buffer in program.buffers if buffer.kind != "input"])


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
@pytest.mark.parametrize(
    ("function", "masks"),
    [(attend, []), (lambda q, k, v: attend(q, k, v, tril(256)), []), (attend, [zeros(256, 256)]), (window, [])],
    ids=["no mask", "causal", "additive", "window"],
)
def test_scores_are_not_stored(function: Any, masks: list[Array], profile: Profile) -> None:
    shape = (2, 4, 256, 16)
    program = compiled(function, *[zeros(*shape)] * 3, *masks, profile=profile)
    assert len(program.dispatches) == 1 and stored(program) == 4 * np.prod(shape)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda q, k, v: attend(q, k, v, tril(256)), [(2, 4, 256, 16)] * 4),
        (lambda q, k, v: by_hand(q, k, v, tril(256)), [(8, 256, 16)] * 4),
        (lambda q, k, v: grouped(q, k, v, tril(256)), [(1, 2, 2, 256, 16), (1, 2, 256, 16), (1, 2, 256, 16)]),
    ],
    ids=["causal", "by hand", "grouped heads"],
)
def test_nor_are_they_for_the_gradients(function: Any, shapes: list[tuple[int, ...]], profile: Profile) -> None:
    arrays = [zeros(*shape) for shape in shapes]
    gradient = arrays[3] if len(arrays) > 3 else arrays[0]
    program = compiled(with_gradients(function), *arrays[:3], gradient, profile=profile)
    assert len(program.dispatches) == 5 and stored(program) == arrays[0].nbytes


def test_scores_that_are_needed_elsewhere_are_stored() -> None:
    def weights_too(q: Any, k: Any, v: Any) -> Any:
        weights = nn.softmax(q @ mnp.swapaxes(k, -1, -2))
        return weights, weights @ v

    assert stored(compiled(weights_too, *[zeros(64, 8)] * 3)) == 4 * 64 * 64


def test_blocks_after_the_diagonal_are_skipped_and_only_those() -> None:
    program = compiled(with_gradients(lambda q, k, v: attend(q, k, v, tril(256))), *[zeros(256, 8)] * 4)
    assert sum("268435" in module.text for module in program.modules) == 4  # the band of blocks, in all that sum scores
    beyond = compiled(lambda q, k, v: attend(q, k, v, np.roll(tril(256), 1, 0)), *[zeros(256, 8)] * 3).modules[0].text
    assert "268435" not in beyond
    empty_rows = compiled(lambda q, k, v: attend(q, k, v, tril(256).T[::-1].copy() & False), *[zeros(256, 8)] * 3)
    assert "268435" not in empty_rows.modules[0].text  # they attend evenly, to all


ROWS_EACH = [  # heads, length, width; the rows of an invocation, for the result and for a gradient
    ((32, 256, 64), 4, 4),
    ((32, 256, 96), 4, 2),  # drivers would take long to compile the kernels
    ((3, 128, 64), 2, 2),  # cores would have nothing to do
    ((64, 24, 64), 2, 2),
]


@pytest.mark.parametrize(("shape", "of_result", "of_gradient"), ROWS_EACH, ids=[str(row[0]) for row in ROWS_EACH])
def test_rows_of_an_invocation_on_a_software_device(shape: tuple[int, ...], of_result: int, of_gradient: int) -> None:
    program = compiled(with_gradients(attend), *[zeros(*shape)] * 4, profile=PROFILES["subgroups"])
    groups = {shape[0] * -(-shape[1] // (8 * rows)): rows for rows in (1, 2, 4)}
    own, *_, first, second, third = (groups.get(dispatch.grid[0]) for dispatch in program.dispatches)
    assert own == of_result and min(first, second, third) == of_gradient


# -- what it computes -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """Shapes of q, k and v, a mask, how attention is said, and of which dtype."""

    q: tuple[int, ...]
    k: tuple[int, ...]
    v: tuple[int, ...]
    mask: Array | None = None
    function: Callable[..., Any] = attend
    dtype: str = "float32"
    masked: float = -1e30
    as_constant: bool = True
    kernels: int = 5  # one for the result, one for each gradient and one for what these share


RNG = np.random.default_rng(0)
SOME = RNG.random((2, 1, 35, 37)) < 0.5
SOME[1, 0, 3] = False  # a row that is masked altogether
ADDED = np.where(RNG.random((1, 33, 40)) < 0.4, -np.inf, RNG.standard_normal((1, 33, 40))).astype(np.float32)
ADDED[..., 0] = 0  # no row is masked altogether

CASES = {
    "no mask": Case((2, 33, 8), (2, 19, 8), (2, 19, 8)),
    "causal": Case((3, 40, 8), (3, 40, 8), (3, 40, 8), tril(40)),
    "causal, keys before": Case((2, 17, 4), (2, 50, 4), (2, 50, 4), tril(17, 50)),
    "causal, rows without keys": Case((1, 50, 4), (1, 17, 4), (1, 17, 4), tril(50, 17)),
    "four rows of an invocation": Case((8, 70, 4), (8, 75, 4), (8, 75, 4), tril(70, 75)),
    "an odd head": Case((2, 18, 5), (2, 21, 5), (2, 21, 3), tril(18, 21)),
    "a mask that is given": Case((2, 3, 35, 4), (2, 3, 37, 4), (2, 3, 37, 4), SOME, as_constant=False),
    "a mask that is added": Case((2, 33, 4), (2, 40, 4), (2, 40, 4), ADDED, as_constant=False),
    "-inf by hand": Case((2, 40, 4), (2, 40, 4), (2, 40, 4), tril(40), by_hand, masked=-np.inf),
    "window": Case((1, 48, 4), (1, 48, 4), (1, 48, 4), None, window),
    "grouped heads": Case((1, 2, 3, 24, 4), (1, 2, 24, 4), (1, 2, 24, 4), tril(24), grouped),
    "dropped": Case(
        (2, 24, 4), (2, 24, 4), (2, 24, 4), RNG.random((2, 24, 24)) < 0.5, dropped, as_constant=False, kernels=6
    ),
    "float16": Case(
        (2, 40, 8), (2, 40, 8), (2, 40, 8), tril(40), dtype="float16", kernels=7
    ),  # and one for each gradient of what was widened
}


def right(case: Case, q: Array, k: Array, v: Array, g: Array) -> list[Array]:
    """Attention and its gradients in float64."""
    q, k, v, g = (array.astype(np.float64) for array in (q, k, v, g))
    if case.function is grouped:
        k, v = k[:, :, None], v[:, :, None]
    scale, mask = q.shape[-1] ** -0.5, case.mask
    scores = q @ k.swapaxes(-1, -2) * scale
    kept = np.ones(scores.shape, bool)
    if case.function is window:
        at = np.arange(scores.shape[-1])
        mask = (at[:, None] >= at) & (at[:, None] - at < 9)
    if case.function is not dropped and mask is not None:
        kept = np.broadcast_to(mask if mask.dtype == bool else True, scores.shape)
        scores = np.where(kept, scores, case.masked) if mask.dtype == bool else scores + mask
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    factor = 2.0 * mask if case.function is dropped and mask is not None else 1.0
    slopes = factor * (g @ v.swapaxes(-1, -2))
    moved = np.where(kept, weights * (slopes - (slopes * weights).sum(-1, keepdims=True)), 0) * scale
    of_k, of_v = moved.swapaxes(-1, -2) @ q, (factor * weights).swapaxes(-1, -2) @ g
    if case.function is grouped:
        of_k, of_v = of_k.sum(2), of_v.sum(2)
    return [(factor * weights) @ v, moved @ k, of_k, of_v]


def check(engine: Any, case: Case) -> None:
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal(shape).astype(case.dtype) for shape in (case.q, case.k, case.v))
    g = rng.standard_normal((*case.q[:-1], case.v[-1])).astype(case.dtype)
    attention, masks = case.function, list[Array]()
    if case.mask is not None and case.as_constant:
        attention = lambda *qkv: case.function(*qkv, case.mask)  # noqa: E731
    elif case.mask is not None:
        masks = [case.mask]
    graph: WireGraph = simplify(mesh.trace(with_gradients(attention), q, k, v, g, *masks))
    executable = engine.compile(graph)
    assert executable.dispatches == case.kernels
    bound = 2e-3 if case.dtype == "float16" else 2e-6
    for found, expected in zip(engine.run(executable, [q, k, v, g, *masks]), right(case, q, k, v, g), strict=True):
        assert found.dtype == case.dtype
        error = np.abs(found.astype(np.float64) - expected).max()
        assert error <= bound * max(1, np.abs(expected).max())


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    from worker.wgsl.engine import WgslEngine

    made = WgslEngine(0)
    yield made
    made.close()


@needs_adapter
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_attention_and_its_gradients_are_those_of_float64(engine: Any, case: Case) -> None:
    if case.dtype == "float16" and not engine._device.profile.f16:
        pytest.skip("this adapter has no float16")
    check(engine, case)


@needs_adapter
@pytest.mark.parametrize("name", ["causal", "an odd head", "grouped heads"])
def test_the_kernels_of_a_real_device_give_the_same(monkeypatch: pytest.MonkeyPatch, engine: Any, name: str) -> None:
    """One row per invocation, and blocks in workgroup memory, within the least that WebGPU promises."""
    hardware = replace(engine._device.profile, software=False, subgroup=0, limits=DeviceLimits(**WEBGPU_MINIMUM))
    monkeypatch.setattr(engine, "_shaders", Shaders(hardware))
    engine._executables.clear()
    check(engine, CASES[name])
    engine._executables.clear()
