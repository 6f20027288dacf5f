"""What the wgsl lowering makes of known graphs: how many kernels, which text, how much memory; without an adapter."""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.cases.op_cases import ROWS, cases
from support.cases.random_graphs import random_graph

import mesh
import mesh.numpy as mnp
from mesh import nn
from mesh.core.array import apply
from wire.errors import CompileFailed, ConfigError, Unsupported
from wire.ir.dtypes import F32, I64
from wire.ir.graph import GraphBuilder, WireGraph
from wire.ir.ops import CONTROL
from wire.passes.simplify import simplify
from worker.cpu import evaluate
from worker.wgsl.cache import ProgramCache
from worker.wgsl.emit import folded
from worker.wgsl.lower import lower
from worker.wgsl.profile import WEBGPU_MINIMUM, DeviceLimits, Profile
from worker.wgsl.program import Program, from_json, to_json
from worker.wgsl.shaders import Shaders

MINIMUM = Profile(limits=DeviceLimits(), f16=True)
LARGE = Profile(limits=DeviceLimits(storage_buffers=32, invocations=1024, workgroup_bytes=32 << 10), software=False)


def compiled(graph: WireGraph, profile: Profile = MINIMUM) -> Program:
    return lower(graph, Shaders(profile))


def zeros(*shape: int) -> NDArray[Any]:
    return np.zeros(shape, np.float32)


# -- fusion -----------------------------------------------------------------------------------------------


def chain(x: Any) -> Any:
    """Ten elementwise ops with views between them."""
    x = mnp.abs(x) + 1
    x = mnp.sqrt(x.reshape(8, -1).T) * 2
    x = -x[::-1]
    x = mnp.floor(x) + 3
    x = (x * x).reshape(-1)
    return mnp.maximum(x, 1) / 7


def attention(queries: Any, keys: Any, values: Any) -> Any:
    return nn.softmax(queries @ mnp.swapaxes(keys, -1, -2) * 0.125) @ values


def scaled_rows(x: Any) -> Any:
    return x / mnp.sum(x, axis=-1, keepdims=True)


def convolved(x: Any, w: Any, bias: Any) -> Any:
    pair, groups = (1, 1), x.shape[1] // w.shape[1]
    product = apply("conv", x, w, stride=pair, low=pair, high=pair, lhs_dilation=pair, rhs_dilation=pair, groups=groups)
    return nn.relu(product + bias[:, None, None])


def halved_for_two(x: Any, w: Any) -> Any:
    """A product, and half of it for a sum over rows and a maximum over columns."""
    product = x @ w
    half = product * 0.5
    return mnp.sum(half, axis=0), mnp.max(half, axis=1), product


KERNELS: list[tuple[str, int, Callable[..., Any], list[NDArray[Any]]]] = [
    ("ten elementwise ops and views", 1, chain, [zeros(1024)]),
    ("softmax", 1, nn.softmax, [zeros(64, 128)]),
    ("layer_norm", 1, nn.layer_norm, [zeros(64, 128), zeros(128), zeros(128)]),
    ("rows by their sum", 1, scaled_rows, [zeros(300, 40)]),
    ("matmul, bias, gelu", 1, lambda x, w, b: nn.gelu(x @ w + b), [zeros(64, 128), zeros(128, 256), zeros(256)]),
    ("matmul, residual", 1, lambda x, w: x @ w + x, [zeros(64, 64), zeros(64, 64)]),
    ("matmul of views", 1, lambda x, w: x.T @ w.reshape(64, 32), [zeros(64, 48), zeros(32, 64)]),
    ("what is cheap is made by each that needs it", 3, halved_for_two, [zeros(64, 48), zeros(48, 80)]),
    ("attention", 1, attention, [zeros(4, 32, 16)] * 3),
    ("conv, bias, relu", 1, convolved, [zeros(2, 8, 16, 16), zeros(24, 8, 3, 3), zeros(24)]),
    ("conv channel by channel, bias, relu", 1, convolved, [zeros(2, 24, 16, 16), zeros(24, 1, 3, 3), zeros(24)]),
    ("gather, then elementwise", 1, lambda x, i: mnp.tanh(mnp.take(x, i, axis=0)), [zeros(9, 8), np.arange(4)]),
    ("a sum of 100,000 in two steps", 2, mnp.sum, [zeros(100_000)]),
    ("one reduction for many", 1, lambda x: mnp.max(x) - mnp.min(x) + mnp.sum(x), [zeros(300)]),
]


@pytest.mark.parametrize("profile", [MINIMUM, LARGE], ids=["minimum", "large"])
@pytest.mark.parametrize(
    ("most", "function", "arguments"), [row[1:] for row in KERNELS], ids=[row[0] for row in KERNELS]
)
def test_number_of_kernels(most: int, function: Any, arguments: list[NDArray[Any]], profile: Profile) -> None:
    narrow = [array.astype(np.int32) if array.dtype == np.int64 else array for array in arguments]
    assert len(compiled(mesh.trace(function, *narrow), profile).dispatches) == most


def test_views_alone_cost_no_arithmetic_beyond_the_index() -> None:
    graph = mesh.trace(lambda x: x.reshape(4, 256).reshape(32, 32).T.T.reshape(1024) + 1, zeros(1024))
    text = compiled(graph).modules[0].text
    assert "/" not in text and "%" not in text and "vec4<f32>" in text


SOFTWARE, GPU = replace(MINIMUM, software=True), replace(MINIMUM, software=False)
LARGE_MAPS = [  # function, elements, profile, invocations
    ("large, software", lambda x: x * x, 1 << 20, SOFTWARE, (1 << 20) // 8),
    ("large, GPU", lambda x: x * x, 1 << 20, GPU, (1 << 20) // 4),
    ("smaller, software", lambda x: x * x, 1 << 19, SOFTWARE, (1 << 19) // 4),
    ("no multiple of eight", lambda x: x * x, (1 << 20) + 4, SOFTWARE, (1 << 20) // 4 + 1),
    ("a long chain", lambda x: functools.reduce(lambda y, k: y * 0.5 + k, range(50), x), 1 << 20, SOFTWARE, 1 << 18),
]


@pytest.mark.parametrize(
    ("function", "size", "profile", "invocations"), [row[1:] for row in LARGE_MAPS], ids=[row[0] for row in LARGE_MAPS]
)
def test_neighbours_of_an_invocation(function: Any, size: int, profile: Profile, invocations: int) -> None:
    """Software devices have eight in large results, if the code of that stays decoded; else there are four."""
    program = compiled(mesh.trace(function, zeros(size)), profile)
    (dispatch,) = program.dispatches
    found = re.search(r"@workgroup_size\((\d+)\)", program.modules[dispatch.shader].text)
    assert found and math.prod(dispatch.grid) == -(-invocations // int(found[1]))
    assert int(found[1]) == (256 if invocations * 8 == size else profile.usual_invocations)


def test_matmul_loads_and_stores_fours_through_workgroup_memory() -> None:
    (module,) = compiled(mesh.trace(lambda x, w: x @ w, zeros(64, 64), zeros(64, 64))).modules
    assert module.text.count("array<vec4<f32>>;") == 3  # both operands and the result
    assert "var<workgroup> left: array<vec4<f32>" in module.text and "workgroupBarrier();" in module.text


def test_a_reduction_of_few_long_rows_uses_workgroup_memory() -> None:
    (module,) = compiled(mesh.trace(lambda x: mnp.sum(x, axis=1), zeros(4, 4000)), LARGE).modules
    assert "var<workgroup>" in module.text and "workgroupBarrier();" in module.text


def encoder_layer(width: int, hidden: int, heads: int) -> nn.TransformerBlock:
    """A layer of BERT."""

    def linear(rows: int, columns: int) -> nn.Linear:
        return nn.Linear(zeros(columns, rows), zeros(columns))

    def norm() -> nn.LayerNorm:
        return nn.LayerNorm(zeros(width), zeros(width))

    attention = nn.Attention(*(linear(width, width) for _ in range(4)), heads=heads)
    mlp = nn.MLP(linear(width, hidden), linear(hidden, width))
    return nn.TransformerBlock(attention, norm(), mlp, norm(), pre_norm=False)


@pytest.mark.parametrize(
    "profile", [MINIMUM, replace(MINIMUM, subgroup=8), LARGE], ids=["minimum", "software", "large"]
)
def test_a_layer_of_minilm_is_at_most_twelve_dispatches(profile: Profile) -> None:
    """32 sentences of 128 tokens, with a mask that is given, as mesh/importers/minilm.py encodes them."""

    def layers(x: Any, hidden: Any, blocks: list[nn.TransformerBlock]) -> Any:
        for block in blocks:
            x = block(x, (1.0 - hidden[:, None, None, :]) * -1e9)
        return x

    def count(depth: int) -> int:
        blocks = [encoder_layer(384, 1536, 12) for _ in range(depth)]
        graph = simplify(mesh.trace(layers, zeros(32, 128, 384), zeros(32, 128), blocks), evaluate)
        return len(compiled(graph, profile).dispatches)

    assert 0 < count(2) - count(1) <= 12


def test_equal_layers_share_their_shaders() -> None:
    def layers(x: Any, weights: list[Any]) -> Any:
        for weight in weights:
            x = scaled_rows(nn.gelu(x @ weight))
        return x

    def program(count: int) -> Program:
        return compiled(mesh.trace(layers, zeros(32, 32), [zeros(32, 32)] * count))

    deep, shallow = program(6), program(1)
    assert len(deep.dispatches) == 6 * len(shallow.dispatches)
    assert {module.text for module in deep.modules} == {module.text for module in shallow.modules}


def test_a_group_met_before_is_not_lowered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Shaders(MINIMUM)
    graph = mesh.trace(lambda x: nn.softmax(x), zeros(8, 16))
    first = lower(graph, known)
    monkeypatch.setattr("worker.wgsl.shaders.lower_cut", lambda *_: pytest.fail("lowered again"))
    assert lower(graph, known) == first


# -- limits -----------------------------------------------------------------------------------------------


def everything() -> Iterator[WireGraph]:
    """Every case of the op table, and random graphs."""
    for op in (*ROWS, "composite"):
        yield from (case.graph for case in cases(op))
    yield from (random_graph(seed, matrices=False).graph for seed in range(20))


def test_every_program_keeps_to_the_minimum_of_webgpu() -> None:
    known, limits, seen = Shaders(MINIMUM), DeviceLimits(), 0
    for graph in everything():
        try:
            program = lower(graph, known)
        except Unsupported:
            continue
        seen += 1
        assert all(len(dispatch.buffers) <= limits.storage_buffers for dispatch in program.dispatches)
        assert all(
            1 <= count <= limits.groups_per_dimension for dispatch in program.dispatches for count in dispatch.grid
        )
        assert all(16 <= buffer.size_bytes <= limits.binding_bytes for buffer in program.buffers)
        assert from_json(to_json(program)) == program
    assert seen > 2_000


def test_more_workgroups_than_one_dimension_has() -> None:
    assert folded(65_535, 65_535) == (65_535, 1, 1)
    for groups in (65_536, 156_251, 40_000_000, 4_294_836_225):
        x, y, z = folded(groups, 65_535)
        assert x <= 65_535 and y <= 65_535 and z == 1
        assert 0 <= x * y - groups < y  # less than one row is idle


def test_a_chain_over_many_inputs_is_cut_where_buffers_run_out() -> None:
    builder = GraphBuilder()
    inputs = [builder.input(f"x{number}", (16,), F32) for number in range(64)]
    total = inputs[0]
    for other in inputs[1:]:
        total = builder.add("add", total, other)
    program = compiled(builder.build([total]))
    assert 9 <= len(program.dispatches) <= 12  # seven new inputs each, and the total so far


def test_many_reductions_of_one_row_fit_into_workgroup_memory() -> None:
    def best(x: Any) -> Any:
        return sum(mnp.argmax(x * float(k), axis=1) for k in range(1, 40))

    for profile in (MINIMUM, LARGE):  # emit refuses a kernel with more workgroup memory than the profile has
        assert len(compiled(mesh.trace(best, zeros(4, 4000)), profile).dispatches) > 1


def test_what_costs_the_driver_minutes_to_compile_is_cut() -> None:
    def deep(x: Any) -> Any:
        for _ in range(200):
            x = mnp.tanh(mnp.sin(x))
        return x

    program = compiled(mesh.trace(deep, zeros(64)))
    assert max(module.text.count(" = gm_") for module in program.modules) <= 80  # four lanes of at most twenty


def test_groups_get_smaller_where_text_would_be_too_long() -> None:
    def deep(x: Any) -> Any:
        for number in range(100):
            x = x * 0.5 + float(number)
        return x

    graph = mesh.trace(deep, zeros(64))
    whole = compiled(graph)
    cut = compiled(graph, replace(MINIMUM, wgsl_bytes=4_000))
    assert len(whole.dispatches) == 2 and len(cut.dispatches) > 6
    assert all(len(module.text) <= 4_000 for module in cut.modules)
    with pytest.raises(CompileFailed, match="of WGSL, of at most 100 B"):
        compiled(graph, replace(MINIMUM, wgsl_bytes=100))


def test_views_that_never_simplify_stay_linear_in_text() -> None:
    """Each view asks for divisions of the one before it; without memory of them the work doubles at every view."""
    rng = np.random.default_rng(0)

    def shuffled(x: Any, count: int) -> Any:
        for _ in range(count):
            x = mnp.transpose(x, tuple(rng.permutation(7).tolist())).reshape(2, 3, 2, 5, 2, 3, 2)
        return x

    short, long = (
        compiled(mesh.trace(lambda x, count=count: shuffled(x, count), zeros(2, 3, 2, 5, 2, 3, 2)))
        for count in (10, 60)
    )
    assert sum(len(m.text) for m in long.modules) < 10 * sum(len(m.text) for m in short.modules)


def test_loops_stay_below_what_software_drivers_run() -> None:
    for length in (65_536, 262_144, 1_000_000, 3_000_001):
        graph = mesh.trace(lambda x, y: x @ y.T, zeros(2, length), zeros(2, length))
        assert compiled(graph).modules  # emit refuses a kernel with more iterations than the profile has
        assert compiled(mesh.trace(lambda x: (mnp.sum(x), mnp.argmax(x)), zeros(length))).modules


def test_a_dtype_that_wgsl_lacks_is_refused_by_name() -> None:
    builder = GraphBuilder()
    graph = builder.build([builder.add("cast", builder.input("x", (3,), I64), dtype="f32")])
    with pytest.raises(Unsupported, match="i64"):
        compiled(graph)


def test_limits_can_only_be_lowered_and_only_by_name() -> None:
    own = DeviceLimits(storage_buffers=32)
    assert own.lowered_to(WEBGPU_MINIMUM).storage_buffers == 8
    assert own.lowered_to({"storage_buffers": 64}).storage_buffers == 32
    with pytest.raises(ConfigError, match="max_buffers"):
        own.lowered_to({"max_buffers": 1})


# -- memory -----------------------------------------------------------------------------------------------


def test_a_long_chain_runs_in_three_buffers() -> None:
    def layers(x: Any, weight: Any) -> Any:
        for _ in range(12):
            x = mnp.tanh(x @ weight)
        return x

    program = compiled(mesh.trace(layers, zeros(64, 64), zeros(64, 64)))
    slots = [buffer for buffer in program.buffers if buffer.kind == "slot"]
    assert len(program.dispatches) == 12 and len(slots) <= 3
    assert program.memory_bytes == sum(slot.size_bytes for slot in slots) == len(slots) * 64 * 64 * 4


def test_what_is_computed_again_is_not_kept() -> None:
    def block(x: Any, w: Any) -> Any:
        return x + mnp.tanh(mnp.sin(x @ w["up"]) * 2) @ w["down"]

    def gradient(make: Callable[..., Any]) -> Program:
        def fn(weights: Any, x: Any) -> Any:
            for w in weights:
                x = make(x, w)
            return mnp.sum(x * x)

        weights = [{"up": zeros(16, 64), "down": zeros(64, 16)} for _ in range(8)]
        return compiled(mesh.trace(mesh.grad(fn), weights, zeros(64, 16)))

    plain, again = gradient(block), gradient(mesh.remat(block))
    assert again.memory_bytes < plain.memory_bytes / 2
    assert len(again.dispatches) > len(plain.dispatches)


def test_no_kernel_stores_what_it_reads_from_another_tensor() -> None:
    for seed in range(40):
        try:
            program = compiled(random_graph(seed, matrices=False).graph)
        except Unsupported:
            continue
        for dispatch in program.dispatches:
            assert len(set(dispatch.buffers)) == len(dispatch.buffers)
            stored = {b for b, s in zip(dispatch.buffers, program.modules[dispatch.shader].stored, strict=True) if s}
            assert stored and all(program.buffers[number].kind == "slot" for number in stored)


# -- the cache --------------------------------------------------------------------------------------------


def test_equal_graphs_are_equal_text_whoever_lowers_them() -> None:
    graphs = (random_graph(seed, dtypes=(F32,), matrices=False).graph for seed in range(7, 99))
    graph = next(candidate for candidate in graphs if not any(node.op in CONTROL for node in candidate))  # in one piece
    assert to_json(compiled(graph)) == to_json(compiled(graph))


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: data.replace(b"@compute", b"@fragment"),
        lambda data: b"\xff\xfe" + data,
        lambda data: data.partition(b"\n")[0] + b"\n",
    ],
    ids=["empty", "short", "changed", "binary", "head only"],
)
def test_a_damaged_file_is_as_good_as_none(damage: Callable[[bytes], bytes], tmp_path: Any) -> None:
    cache, program = ProgramCache(tmp_path), compiled(mesh.trace(nn.softmax, zeros(4, 4)))
    cache.write("key", program)
    assert cache.read("key") == program and cache.read("other") is None
    (file,) = tmp_path.rglob("*.json")
    file.write_bytes(damage(file.read_bytes()))
    assert cache.read("key") is None
    cache.write("key", program)
    assert cache.read("key") == program
    assert [path.name for path in tmp_path.rglob("*.tmp")] == []


def test_the_folder_is_bounded_and_keeps_what_was_read_last(tmp_path: Any) -> None:
    program = compiled(mesh.trace(nn.softmax, zeros(4, 4)))
    ProgramCache(tmp_path).write("0", program)
    (file,) = tmp_path.rglob("*.json")
    cache = ProgramCache(tmp_path, bytes_max=3 * file.stat().st_size)
    for number in range(1, 6):
        os.utime(file.parent / "0.json", ns=(0, 0))
        assert cache.read("0") == program  # and so it is the youngest
        cache.write(str(number), program)
        os.utime(file.parent / f"{number}.json", ns=(number, number))
    assert sorted(path.stem for path in tmp_path.rglob("*.json")) == ["0", "4", "5"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[1, 1, 1]", "[0, 1, 1]"),
        ('"slot"', '"hole"'),
        ('"outputs": [', '"outputs": [99, '),
        ('"format": 3', '"format": 0'),
    ],
)
def test_a_program_that_cannot_be_is_not_read(old: str, new: str) -> None:
    text = to_json(compiled(mesh.trace(lambda x: x + 1, zeros(4))))
    assert old in text and from_json(text)
    with pytest.raises(ValueError):
        from_json(text.replace(old, new))
