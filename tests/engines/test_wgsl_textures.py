"""Copies of operands in textures: the bits of buffers, which tensors lie there, what limits forbid, and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.adapter import as_gpu, needs_adapter

import mesh
import mesh.numpy as mnp
from mesh.core.array import apply
from wire.errors import OutOfMemory
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder
from worker.wgsl.emit import Shader
from worker.wgsl.lower import lower
from worker.wgsl.profile import MIB, DeviceLimits, Profile
from worker.wgsl.program import Program, extent, from_json, texture_size, to_json
from worker.wgsl.shaders import Shaders
from worker.wgsl.textures import READ_MAX, in_textures

SOFTWARE = {lanes: Profile(subgroup=lanes, f16=True) for lanes in (8, 16)}
Function = Callable[..., Any]
Shape = tuple[int, ...]


def conv(stride: int, low: int, high: int, spread: int = 1, reach: int = 1, groups: int = 1) -> Function:
    def function(x: Any, w: Any) -> Any:
        each = {"stride": stride, "low": low, "high": high, "lhs_dilation": spread, "rhs_dilation": reach}
        return apply("conv", x, w, groups=groups, **{name: (value,) * (x.ndim - 2) for name, value in each.items()})

    return function


def turned(x: Any, y: Any) -> Any:
    return x.T @ y


CASES: dict[str, tuple[Function, list[Shape], int]] = {  # how many tensors lie in textures
    "3x3": (conv(1, 1, 1), [(2, 24, 40, 40), (32, 24, 3, 3)], 2),
    "unpadded, strided, odd": (conv(2, 0, 0), [(2, 48, 61, 59), (32, 48, 3, 3)], 2),
    "padded on one side, dilated": (conv(1, 0, 3, reach=3), [(2, 40, 40, 44), (40, 40, 3, 2)], 2),
    "spread": (conv(1, 2, 2, spread=2), [(2, 16, 20, 20), (64, 16, 3, 3)], 2),
    "grouped": (conv(1, 1, 1, groups=2), [(2, 32, 40, 40), (80, 16, 3, 3)], 2),
    "five groups, strided": (conv(3, 1, 2, groups=5), [(2, 60, 71, 67), (85, 12, 5, 5)], 2),
    "odd rows and columns": (conv(1, 2, 1), [(3, 20, 31, 29), (37, 20, 3, 4)], 2),
    "a function of the result": (lambda x, w: mnp.tanh(conv(1, 1, 1)(x, w)) + 1, [(2, 24, 40, 40), (32, 24, 3, 3)], 2),
    "channels that are no fours": (conv(2, 3, 3), [(2, 3, 64, 64), (64, 3, 7, 7)], 0),
    "one axis, odd channels": (conv(1, 2, 2), [(2, 33, 1024), (64, 33, 5)], 0),
    "one axis": (conv(1, 2, 2), [(2, 36, 1024), (64, 36, 5)], 2),
    "three axes": (conv(1, 1, 1), [(1, 16, 12, 13, 11), (40, 16, 3, 3, 3)], 2),
    "no copies": (conv(1, 1, 1), [(2, 8, 16, 16), (24, 8, 3, 3)], 0),
    "a dot, both copied": (turned, [(640, 612), (640, 520)], 2),
}


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[str, Any]]:
    from worker.wgsl.engine import WgslEngine

    made = {"textures": WgslEngine(0), "buffers": WgslEngine(0, limits_override={"texture_side": 1})}
    yield made
    for engine in made.values():
        engine.close()


@pytest.fixture
def engine(engines: dict[str, Any]) -> Any:
    return engines["textures"]


def uneven(shape: Shape) -> NDArray[Any]:
    """f32 of many sizes; denormals and both zeros are among them."""
    rng = np.random.default_rng(shape)
    values = np.ldexp(rng.standard_normal(shape), rng.integers(-20, 20, shape)).astype(np.float32)
    values.reshape(-1)[::7] = 1e-41
    values.reshape(-1)[::11] = -0.0
    return values


def textures(program: Program) -> int:
    return sum(buffer.kind == "texture" for buffer in program.buffers)


def traced(function: Function, shapes: list[Shape]) -> Any:
    return mesh.trace(function, *(np.zeros(shape, np.float32) for shape in shapes))


def lowered(function: Function, shapes: list[Shape], profile: Profile = SOFTWARE[8]) -> Program:
    return lower(traced(function, shapes), Shaders(profile))


def ran(engine: Any, function: Function, arrays: list[NDArray[Any]]) -> tuple[Program, NDArray[Any]]:
    executable = engine.compile(mesh.trace(function, *arrays))
    (result,) = engine.run(executable, arrays)
    return executable.program, result


# -- the bits ---------------------------------------------------------------------------------------------


@needs_adapter
@pytest.mark.parametrize("name", CASES)
def test_the_bits_are_those_of_buffers(engines: dict[str, Any], name: str) -> None:
    function, shapes, count = CASES[name]
    arrays = [uneven(shape) for shape in shapes]
    (program, result), (plain, right) = (ran(engines[kind], function, arrays) for kind in ("textures", "buffers"))
    assert (textures(program), textures(plain)) == (count, 0)
    assert len(program.dispatches) == len(plain.dispatches)
    np.testing.assert_array_equal(result.view(np.uint32), right.view(np.uint32))


@needs_adapter
def test_what_is_not_finite_reaches_the_same_results(engines: dict[str, Any]) -> None:
    """Which NaN a sum of two is, WGSL leaves to the driver's compiler: of NaN, the sign may be another."""
    function, shapes, _ = CASES["3x3"]
    x, w = (uneven(shape) for shape in shapes)
    x[0, 3, 5, 6], x[1, 0, 0, 0], w[7, 2, 1, 1] = np.nan, np.inf, -np.inf
    (_, result), (_, right) = (ran(engines[kind], function, [x, w]) for kind in ("textures", "buffers"))
    assert np.isnan(result[0, :, 5, 6]).all() and np.isfinite(result[0, 0, 20:]).all()
    assert np.isinf(result[1, 0, 0, 0]) and not np.isfinite(result[0, 7]).any()
    bits, right_bits = (np.where(np.isnan(values), 0, values.view(np.uint32)) for values in (result, right))
    np.testing.assert_array_equal(bits, right_bits)
    np.testing.assert_array_equal(np.isnan(result), np.isnan(right))


@needs_adapter
def test_runs_that_follow_each_other_see_their_own_inputs(engines: dict[str, Any]) -> None:
    """Textures are taken from the pool again; steps of a loop are recorded, and submitted together."""
    function, shapes, _ = CASES["3x3"]
    graph = traced(function, shapes)
    compiled = {kind: engine.compile(graph) for kind, engine in engines.items()}
    w = uneven(shapes[1])
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal(shapes[0]).astype(np.float32)
        results = [engine.run(compiled[kind], [x, w])[0] for kind, engine in engines.items()]
        np.testing.assert_array_equal(*results)

    def layers(x: Any, w: Any) -> Any:
        return mesh.fori_loop(0, 4, lambda i, carry: mnp.tanh(conv(1, 1, 1)(carry, w)), x)

    arrays = [uneven((2, 32, 40, 40)) / np.float32(1e6), uneven((32, 32, 3, 3)) / np.float32(1e6)]
    loops = [engine.compile(mesh.trace(layers, *arrays)) for engine in engines.values()]
    counts = [textures(made.program) for loop in loops for work in loop.work for made in work.made.values()]
    assert sum(counts) == 2
    looped = [engine.run(loop, arrays)[0] for engine, loop in zip(engines.values(), loops, strict=True)]
    np.testing.assert_array_equal(*looped)


# -- which tensors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("lanes", SOFTWARE)
@pytest.mark.parametrize("name", CASES)
def test_only_software_devices_with_subgroups_have_textures(name: str, lanes: int) -> None:
    function, shapes, count = CASES[name]
    assert textures(lowered(function, shapes, SOFTWARE[lanes])) == count
    for other in (Profile(), Profile(software=False)):
        program = lowered(function, shapes, other)
        assert textures(program) == 0 and not any("textureLoad" in module.text for module in program.modules)


def test_a_copy_that_others_read_too_stays_in_a_buffer() -> None:
    """Of the two kernels that read it, one would take another text; and an output is a buffer."""

    def padded(x: Any) -> Any:
        return mnp.pad(mnp.transpose(x, (0, 2, 3, 1)), ((0, 0), (1, 1), (1, 1), (0, 0)))

    def also_read(x: Any, w: Any) -> Any:
        return conv(1, 1, 1)(x, w), padded(x)

    shapes = CASES["3x3"][1]
    program = lower(mesh.trace(also_read, *(np.zeros(shape, np.float32) for shape in shapes)), Shaders(SOFTWARE[8]))
    assert textures(program) == 1  # the weights' copy
    assert len(program.outputs) == 2


def test_other_dtypes_stay_in_buffers() -> None:
    function, shapes, _ = CASES["3x3"]
    for dtype in (np.float16, np.int32):
        graph = mesh.trace(function, *(np.zeros(shape, dtype) for shape in shapes))
        assert textures(lower(graph, Shaders(SOFTWARE[8]))) == 0


def test_a_kernel_reads_no_more_textures_than_every_adapter_allows() -> None:
    builder = GraphBuilder()
    zero = builder.const(np.float32(0))
    none = {"low": (0,), "high": (0,), "interior": (0,)}
    nodes = [builder.input(f"x{number}", (64,), F32) for number in range(20)]
    pads = [builder.add("pad", node, zero, **none) for node in nodes]
    total = pads[0]
    for pad in pads[1:]:
        total = builder.add("add", total, pad)
    graph = builder.build([total])
    pads = [number for number, node in enumerate(graph.nodes) if node.op == "pad"]
    quads = frozenset(range(len(graph.nodes)))
    made = [Shader("", (pad,), (True,), (1, 1, 1), quads=quads) for pad in pads]
    reader = Shader("", tuple(pads), (False,) * 20, (1, 1, 1), quads=quads, from_textures=frozenset(pads))
    assert len(in_textures(graph, [*made, reader], DeviceLimits())) == READ_MAX < 20
    assert not in_textures(graph, [*made, replace(reader, quads=frozenset())], DeviceLimits())
    assert not in_textures(graph, [*made, reader, replace(reader, from_textures=frozenset())], DeviceLimits())


# -- limits -----------------------------------------------------------------------------------------------


def test_an_extent_has_room_and_is_that_of_the_whole_texture() -> None:
    for size in (*range(1, 5000), 16 * 9216, 6_889_472, 128 * MIB - 16, 128 * MIB):
        width, height = extent(size)
        assert height <= width and width & (width - 1) == 0
        whole = texture_size(size)
        assert size <= whole == 16 * width * height < size + 16 * width + 16
        assert extent(whole) == (width, height) and texture_size(whole) == whole
    assert extent(128 * MIB) == (4096, 2048)  # WebGPU promises 8192 along a side


def test_what_a_device_has_no_texture_for_lies_in_a_buffer() -> None:
    function, shapes, _ = CASES["3x3"]  # 16 x 42 x 42 x 6 texels of x, and 32 x 9 x 6 of w
    for side, count in ((256, 2), (255, 1), (64, 1), (63, 0)):
        profile = replace(SOFTWARE[8], limits=DeviceLimits(texture_side=side))
        assert textures(lowered(function, shapes, profile)) == count, side
    function, shapes, _ = CASES["unpadded, strided, odd"]  # 86,376 texels of x: 169 rows of 512
    for texels, count in ((512 * 169, 2), (512 * 169 - 1, 1)):
        profile = replace(SOFTWARE[8], limits=DeviceLimits(buffer_bytes=16 * texels))
        program = lowered(function, shapes, profile)
        assert (textures(program), len(program.dispatches)) == (count, 3), texels


@needs_adapter
def test_a_gpu_s_kernels_have_none_and_limits_are_told() -> None:
    from worker.wgsl.engine import WgslEngine

    engine = as_gpu(WgslEngine(0))
    try:
        function, shapes, _ = CASES["3x3"]
        assert textures(ran(engine, function, [uneven(shape) for shape in shapes])[0]) == 0
        assert engine.info.limits["texture_side"] >= 8192
    finally:
        engine.close()


# -- memory -----------------------------------------------------------------------------------------------


def test_textures_count_and_equal_widths_share() -> None:
    def layers(x: Any, *weights: Any) -> Any:
        for w in weights:
            x = mnp.tanh(conv(1, 1, 1)(x, w))
        return x

    program = lowered(layers, [(2, 32, 40, 40), *[(32, 32, 3, 3)] * 6])
    sizes = [buffer.size_bytes for buffer in program.buffers if buffer.kind == "texture"]
    assert len(program.dispatches) == 18 and len(sizes) <= 4
    assert program.memory_bytes == sum(buffer.size_bytes for buffer in program.buffers if buffer.kind != "input")
    assert sum(sizes) < program.memory_bytes


@needs_adapter
def test_textures_are_freed_and_count_against_the_budget() -> None:
    from worker.wgsl.engine import WgslEngine

    function, shapes, _ = CASES["3x3"]
    arrays = [uneven(shape) for shape in shapes]
    engine = WgslEngine(0, memory_bytes=64 * MIB)
    try:
        device = engine._device
        program, _ = ran(engine, function, arrays)
        sizes = [buffer.size_bytes for buffer in program.buffers if buffer.kind == "texture"]
        before = device.allocated_bytes
        assert before >= program.memory_bytes and len(sizes) == 2
        ran(engine, function, arrays)
        assert device.allocated_bytes == before  # the pool had them
        held = [device.take_texture(size) for size in sizes]
        assert device.allocated_bytes == before
        for memory in held:
            device.give(memory)
        other = np.ones((4, 4), np.float32)
        for _ in range(140):  # runs that have no use for them
            ran(engine, lambda x: x + 1, [other])
        assert device.allocated_bytes < min(sizes)
        device.trim()
        with pytest.raises(OutOfMemory, match="left"):
            device.take_texture(texture_size(80 * MIB))
        device.profile = replace(device.profile, limits=replace(device.profile.limits, texture_side=16))
        with pytest.raises(OutOfMemory, match="along a side"):
            device.take_texture(16 * 17 * 16)
    finally:
        engine.close()
    small = WgslEngine(0, memory_bytes=program.memory_bytes // 2)
    try:
        with pytest.raises(OutOfMemory, match="budget"):
            small.compile(mesh.trace(function, *arrays))
        assert ran(small, lambda x: x + 1, [other])[1][0, 0] == 2  # and it goes on
    finally:
        small.close()


# -- as data ----------------------------------------------------------------------------------------------


def test_a_program_with_textures_is_kept_and_checked() -> None:
    program = lowered(*CASES["3x3"][:2])
    text = to_json(program)
    assert from_json(text) == program
    number = next(at for at, buffer in enumerate(program.buffers) if buffer.kind == "texture")
    size = program.buffers[number].size_bytes
    damaged = {
        f'["texture", "", {size}]': f'["texture", "", {size + 16}]',
        f'"outputs": [{program.outputs[0]}]': f'"outputs": [{number}]',
    }
    for old, new in damaged.items():
        assert old in text
        with pytest.raises(ValueError, match="texture"):
            from_json(text.replace(old, new))


@needs_adapter
def test_a_kept_program_runs_from_the_disk(tmp_path: Any) -> None:
    from worker.wgsl.engine import WgslEngine

    function, shapes, _ = CASES["3x3"]
    arrays, results = [uneven(shape) for shape in shapes], []
    for known in (False, True):
        engine = WgslEngine(0, cache_dir=tmp_path)
        executable = engine.compile(mesh.trace(function, *arrays))
        assert executable.from_cache == known and textures(executable.program) == 2
        results += engine.run(executable, arrays)
        engine.close()
    np.testing.assert_array_equal(*results)
