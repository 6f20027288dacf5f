"""dot and conv in every form of their kernel: those of a software device, and those of a GPU, which software runs too.

The table of forms is also asked directly: who gets which one is decided by sizes, dtype and device alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.adapter import as_gpu, needs_adapter
from support.compare import assert_close

import mesh
import mesh.numpy as mnp
from mesh import nn
from mesh.core.array import apply
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder, WireGraph
from worker.cpu import evaluate
from worker.wgsl.kernels.product_forms import LENGTH_MAX, TILES, Form, Sizes, broadcast, form_of, parts
from worker.wgsl.lower import lower
from worker.wgsl.profile import DeviceLimits, Profile
from worker.wgsl.program import Program
from worker.wgsl.shaders import Shaders

GPU = Profile(software=False, f16=True)
SOFTWARE = Profile(subgroup=8, f16=True)
WIDE = replace(SOFTWARE, subgroup=16)
DEVICES = {"software": SOFTWARE, "gpu": GPU}


@pytest.fixture(scope="module", params=[pytest.param(name, marks=needs_adapter) for name in DEVICES])
def engine(request: pytest.FixtureRequest) -> Iterator[Any]:
    from worker.wgsl.engine import WgslEngine

    made = WgslEngine(0)
    yield as_gpu(made) if request.param == "gpu" else made
    made.close()


def fine(*shape: int) -> NDArray[Any]:
    """f32 that no f16 holds, of both signs."""
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32) * np.float32(1 + 2**-20)


def whole(*shape: int) -> NDArray[Any]:
    """i32 whose products and sums wrap."""
    return np.random.default_rng(shape).integers(-(1 << 31), 1 << 31, shape).astype(np.int32)


def half(*shape: int) -> NDArray[Any]:
    """f16 whose sums need f32: many small ones after a large one."""
    values = np.random.default_rng(shape).uniform(0.5, 1, shape)
    values[..., 0] = 2048
    return values.astype(np.float16)


def split_heads(x: Any, heads: int) -> Any:
    """(rows, heads * width) as (heads, rows, width), of which no axis is a power of two."""
    return mnp.swapaxes(x.reshape(x.shape[0], heads, -1), 0, 1)


def joined(x: Any, w: Any) -> Any:
    """What attention does with its heads: (heads, rows, width) and (heads, width, columns), summed over both."""
    return mnp.tensordot(split_heads(x, 3), w.reshape(3, -1, w.shape[1]), axes=((0, 2), (0, 1)))


Make = Callable[..., NDArray[Any]]
PRODUCTS: dict[str, tuple[Callable[..., Any], Make, list[tuple[int, ...]]]] = {
    "whole tiles": (lambda x, y: x @ y, fine, [(128, 64), (64, 128)]),
    "many tiles": (lambda x, y: x @ y, fine, [(768, 16), (16, 1024)]),
    "in panels": (lambda x, y: x.T @ y, fine, [(260, 1030), (260, 1052)]),
    "odd sizes": (lambda x, y: x @ y, fine, [(67, 53), (53, 71)]),
    "a length below a tile": (lambda x, y: x @ y, fine, [(40, 3), (3, 50)]),
    "left turned": (lambda x, y: x.T @ y, fine, [(64, 70), (64, 52)]),
    "right turned": (lambda x, y: x @ y.T, fine, [(40, 36), (50, 36)]),
    "both turned, odd": (lambda x, y: x.T @ y.T, fine, [(35, 41), (49, 35)]),
    "batch": (lambda x, y: x @ y, fine, [(5, 33, 20), (5, 20, 65)]),
    "heads": (joined, fine, [(50, 3 * 20), (3 * 20, 70)]),
    "few rows": (lambda x, y: x @ y, fine, [(5, 96), (96, 1030)]),
    "sixteen rows": (lambda x, y: x @ y, fine, [(16, 40), (40, 1030)]),
    "some rows": (lambda x, y: x @ y, fine, [(24, 33), (33, 150)]),
    "few columns": (lambda x, y: x @ y, fine, [(200, 40), (40, 7)]),
    "some columns": (lambda x, y: x @ y, fine, [(150, 33), (33, 24)]),
    "two columns, a long sum": (lambda x, y: x @ y, fine, [(9, 3001), (3001, 2)]),
    "three columns of a batch": (lambda x, y: x @ y, fine, [(5, 9, 20), (5, 20, 3)]),
    "three rows of a batch": (lambda x, y: x @ y, fine, [(5, 3, 40), (5, 40, 72)]),
    "a row": (lambda x, y: x @ y, fine, [(1, 101), (101, 90)]),
    "a row, right turned": (lambda x, y: x @ y.T, fine, [(1, 100), (92, 100)]),
    "a column": (lambda x, y: x @ y, fine, [(90, 100), (100, 1)]),
    "rows of a batch": (lambda x, y: x @ y, fine, [(6, 1, 40), (6, 40, 132)]),
    "a long sum": (lambda x, y: x @ y, fine, [(8, 3001), (3001, 9)]),
    "bias, gelu": (lambda x, y, b: nn.gelu(x @ y + b), fine, [(33, 24), (24, 68), (68,)]),
    "bias, odd columns": (lambda x, y, b: (x @ y + b).T * 2.0, fine, [(33, 24), (24, 35), (35,)]),
    "f16": (lambda x, y: x @ y, half, [(65, 48), (48, 64)]),
    "f16, a row": (lambda x, y: x @ y.T, half, [(1, 96), (40, 96)]),
    "i32 wraps": (lambda x, y: x @ y, whole, [(40, 37), (37, 44)]),
    "i32, a row": (lambda x, y: x @ y, whole, [(1, 64), (64, 32)]),
}


def agrees_with_cpu(engine: Any, function: Callable[..., Any], arrays: list[NDArray[Any]], op: str) -> WireGraph:
    graph = mesh.trace(function, *arrays)
    names = [*graph.input_types, *graph.param_types]
    (actual,) = engine.run(engine.compile(graph), arrays)
    (right,) = evaluate(graph, dict(zip(names, arrays, strict=True)))
    (sizes,) = evaluate(graph, {name: np.abs(array) for name, array in zip(names, arrays, strict=True)})
    magnitude = np.where(np.isfinite(sizes.astype(np.float64)), np.abs(sizes.astype(np.float64)), 0.0)
    assert_close(actual, right, op, next(iter(graph.output_types.values())).dtype, magnitude)
    return graph


LONG = {  # others of the default run have the same form
    "both turned, odd", "some columns", "few columns", "sixteen rows", "bias, odd columns", "f16, a row", "i32, a row",
    "a length below a tile", "batch",
}  # fmt: skip
EACH = [pytest.param(name, marks=pytest.mark.long) if name in LONG else name for name in PRODUCTS]


@pytest.mark.parametrize("name", EACH)
def test_a_product_is_right_in_every_form(engine: Any, name: str) -> None:
    function, make, shapes = PRODUCTS[name]
    agrees_with_cpu(engine, function, [make(*shape) for shape in shapes], "dot")


def test_what_lies_past_an_edge_reaches_no_result(engine: Any) -> None:
    """Inf and NaN in the last row, column and depth: zeros past the length are chosen, not multiplied."""
    x, y = fine(67, 53), fine(53, 71)
    x[66, 52], y[52, 70], x[3, 52] = np.inf, np.nan, np.inf
    y[52, 5] = 0.0
    graph = agrees_with_cpu(engine, lambda x, y: x @ y, [x, y], "dot")
    (result,) = engine.run(engine.compile(graph), [x, y])
    assert np.isnan(result[:, 70]).all() and np.isnan(result[3, 5])
    assert np.isfinite(np.delete(np.delete(result, [3, 66], 0), 70, 1)).all()


ZEROS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {  # known beforehand, times an operand of this shape
    "a matrix": (lambda x: x @ mnp.zeros((24, 32), x.dtype), (20, 24)),
    "padding": (lambda x: conv(2, 1, 1, spread=2)(mnp.ones((2, 8, 1, 1), x.dtype), x), (4, 8, 1, 1)),
    "between elements": (
        lambda x: conv(2, 0, 0, spread=2, groups=7)(mnp.ones((3, 7, 8, 9), x.dtype), x),
        (14, 1, 2, 2),
    ),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("name", ZEROS)
def test_zeros_that_are_known_beforehand_times_what_is_no_number_are_none(engine: Any, name: str, dtype: Any) -> None:
    function, shape = ZEROS[name]
    x = fine(*shape).astype(dtype)
    x[1, 0], x[3, -1], x[2, -1] = np.nan, np.inf, -np.inf
    agrees_with_cpu(engine, function, [x], "conv")


def conv(stride: int, low: int, high: int, spread: int = 1, reach: int = 1, groups: int = 1) -> Callable[..., Any]:
    def function(x: Any, w: Any) -> Any:
        each = {"stride": stride, "low": low, "high": high, "lhs_dilation": spread, "rhs_dilation": reach}
        return apply("conv", x, w, groups=groups, **{name: (value,) * (x.ndim - 2) for name, value in each.items()})

    return function


CONVS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], tuple[int, int]]] = {  # kernels: software, GPU
    "3x3": (conv(1, 1, 1), [(2, 24, 40, 40), (32, 24, 3, 3)], (3, 2)),
    "unpadded, strided": (conv(2, 0, 0), [(2, 48, 61, 59), (32, 48, 3, 3)], (3, 2)),
    "padded on one side, dilated": (conv(1, 0, 3, reach=3), [(2, 40, 40, 44), (40, 40, 3, 2)], (3, 2)),
    "spread": (conv(1, 2, 2, spread=2), [(2, 16, 20, 20), (64, 16, 3, 3)], (3, 2)),
    "grouped": (conv(1, 1, 1, groups=2), [(2, 32, 40, 40), (80, 16, 3, 3)], (3, 2)),
    "three channels": (conv(2, 3, 3), [(2, 3, 64, 64), (64, 3, 7, 7)], (3, 3)),
    "one position": (conv(1, 0, 0), [(2, 70, 32, 32), (130, 70, 1, 1)], (1, 1)),
    "one axis": (conv(1, 2, 2), [(2, 33, 1024), (64, 33, 5)], (3, 2)),
    "small": (conv(1, 1, 1), [(2, 8, 16, 16), (24, 8, 3, 3)], (1, 1)),
}


LONG_ON_GPU = {"unpadded, strided", "spread", "one axis", "small"}  # the default run has them on software
EACH_CONV = [
    pytest.param(
        device, name, marks=[needs_adapter, *([pytest.mark.long] if device == "gpu" and name in LONG_ON_GPU else [])]
    )
    for device in DEVICES
    for name in CONVS
]


@pytest.mark.parametrize(("engine", "name"), EACH_CONV, indirect=["engine"])
def test_a_conv_is_right_whether_its_operands_are_copied_or_not(engine: Any, name: str) -> None:
    function, shapes, kernels = CONVS[name]
    graph = agrees_with_cpu(engine, function, [fine(*shape) for shape in shapes], "conv")
    software = engine._device.profile.software
    assert engine.compile(graph).dispatches == kernels[0 if software else 1]


# -- who gets which form ----------------------------------------------------------------------------------

WHO: list[tuple[Sizes, str, str]] = [  # (rows x columns of the tile, on a GPU and on software)
    (Sizes(1, 1024, 1024, 1024), "tiles 128x128", "broadcast 32x64"),
    (Sizes(1, 512, 512, 512), "tiles 64x64", "broadcast 32x64"),
    (Sizes(64, 512, 512, 512), "tiles 128x128", "broadcast 32x64"),
    (Sizes(32, 256, 64, 256), "tiles 64x64", "broadcast 32x64"),
    (Sizes(1, 24, 4096, 1024), "tiles 32x128", "broadcast 32x64"),
    (Sizes(1, 4096, 24, 1024), "tiles 128x32", "broadcast 32x32"),
    (Sizes(1, 8, 4096, 1024), "tiles 16x256", "broadcast 8x128"),
    (Sizes(1, 4096, 8, 1024), "tiles 256x16", "broadcast 32x32"),
    (Sizes(1, 20, 20, 20), "tiles 32x32", "broadcast 16x32"),
    (Sizes(1, 1, 4096, 4096), "line 1x64", "line 1x512"),
    (Sizes(1, 1, 100, 4096), "line 1x64", "line 1x128"),
    (Sizes(1, 1, 20, 4096), "line 1x64", "line 1x32"),
    (Sizes(1, 1, 4096, 4096, along=True), "line 1x64", "line 1x64"),
]


def called(form: Form) -> str:
    width = form.x * form.columns
    return f"{form.family} {form.rows if form.family == 'line' else form.tile_rows}x{width}"


@pytest.mark.parametrize(("sizes", "gpu", "software"), WHO, ids=[str(row[0]) for row in WHO])
def test_who_gets_which_form(sizes: Sizes, gpu: str, software: str) -> None:
    assert (called(form_of(sizes, GPU)), called(form_of(sizes, SOFTWARE))) == (gpu, software)


def test_wide_subgroups_have_tiles_with_more_rows_where_there_are_rows_for_them() -> None:
    rows = {49: "64x64", 48: "32x128", 24: "32x128", 12: "16x128", 8: "8x128"}
    assert {n: called(form_of(Sizes(8, n, 1024, 64), WIDE)) for n in rows} == {
        n: f"broadcast {tile}" for n, tile in rows.items()
    }
    assert called(form_of(Sizes(8, 64, 48, 64), WIDE)) == "broadcast 32x64"


@pytest.mark.parametrize("profile", [SOFTWARE, WIDE], ids=["8 lanes", "16 lanes"])
def test_a_row_times_a_matrix_occupies_all_lanes(profile: Profile) -> None:
    for columns in (20, 100, 200, 600, 4096):
        assert form_of(Sizes(1, 1, columns, 4096), profile).invocations == profile.subgroup


def test_every_form_is_somebodys_and_keeps_to_the_minimum_of_webgpu() -> None:
    sides = (2, 8, 12, 20, 40, 100, 500, 3000)
    for profile, table in ((GPU, TILES), (SOFTWARE, broadcast(8)), (WIDE, broadcast(16))):
        chosen = {form_of(Sizes(b, m, n, 64), profile) for b in (1, 64) for m in sides for n in sides}
        assert chosen == set(table)
    for form in (*TILES, *broadcast(16)):
        assert form.invocations <= 256 and form.workgroup_bytes <= 16 << 10


def lowered(function: Callable[..., Any], profile: Profile, *shapes: tuple[int, ...]) -> Program:
    return lower(mesh.trace(function, *(np.zeros(shape, F32.numpy) for shape in shapes)), Shaders(profile))


def test_a_smaller_device_gets_a_smaller_form() -> None:
    for limits in (
        DeviceLimits(workgroup_bytes=8 << 10),
        DeviceLimits(invocations=64),
        DeviceLimits(storage_buffers=4),
    ):
        profile = Profile(limits=limits, software=False)
        assert lowered(lambda x, y: x @ y, profile, (1024, 256), (256, 1024)).modules  # emit refuses what is too large


def test_a_long_sum_of_few_results_is_cut_into_parts() -> None:
    assert parts(Sizes(1, 64, 64, 65_536), GPU) == 96 and parts(Sizes(1, 64, 64, 65_536), SOFTWARE) == 16
    assert parts(Sizes(1, 2048, 2048, 65_536), GPU) == 1  # there are sums enough
    assert parts(Sizes(1, 64, 64, 900), GPU) == 1  # a part would be too short
    assert parts(Sizes(64, 512, 512, 3 * LENGTH_MAX), GPU) == 3
    assert len(lowered(lambda x, y: x @ y, GPU, (64, 65_536), (65_536, 64)).dispatches) == 2


def test_a_software_product_whose_tiles_would_read_far_apart_gets_copies() -> None:
    def kernels(rows: int, length: int, columns: int, profile: Profile) -> int:
        return len(lowered(lambda x, y: x @ y, profile, (rows, length), (length, columns)).dispatches)

    assert kernels(1024, 1024, 1024, SOFTWARE) == 2  # rows lie along the length as it is
    assert len(lowered(lambda x, y: x.T @ y, SOFTWARE, (1024, 1024), (1024, 1024)).dispatches) == 3
    assert kernels(64, 1024, 4096, SOFTWARE) == kernels(512, 512, 512, SOFTWARE) == 1  # a copy would cost more
    assert kernels(1024, 1022, 1024, SOFTWARE) == 1
    for turned in (lambda x, y: x @ y.T, lambda x, y: mnp.tensordot(x, y, axes=((1,), (1,)))):
        assert len(lowered(turned, SOFTWARE, (1024, 1024), (1024, 1024)).dispatches) == 1  # it lies well as it is
    assert kernels(1024, 1024, 1024, GPU) == kernels(1024, 1024, 1024, Profile()) == 1


def test_a_line_reads_both_operands_in_fours_whichever_way_they_lie() -> None:
    for profile in (GPU, SOFTWARE):
        for function, matrix in ((lambda x, y: x @ y, (512, 1024)), (lambda x, y: x @ y.T, (1024, 512))):
            text = lowered(function, profile, (1, 512), matrix).modules[0].text
            assert text.count("var<storage, read> in0: array<vec4<f32>>;") == 1
            assert text.count("var<storage, read> in1: array<vec4<f32>>;") == 1
            assert " / " not in text and " % " not in text


def test_copies_that_cannot_be_bound_are_not_made() -> None:
    """128 MiB are what every adapter binds; a copy is a little larger than the operand, with dilation much larger."""
    for left, right, kernels in (((32_260, 1_024), (32_260, 1_024), 3), ((32_260, 1_040), (32_260, 1_024), 1),
                                 ((32_260, 1_024), (32_260, 1_040), 1)):  # fmt: skip
        builder = GraphBuilder()
        x, y = builder.input("x", left, F32), builder.input("y", right, F32)
        product = builder.add("dot", x, y, lhs_batch=(), rhs_batch=(), lhs_contract=(0,), rhs_contract=(0,))
        assert len(lower(builder.build([product]), Shaders(SOFTWARE)).dispatches) == kernels
    assert len(lowered(conv(4, 1, 1, spread=4), SOFTWARE, (1, 64, 256, 256), (32, 64, 3, 3)).dispatches) == 2
    assert len(lowered(conv(4, 1, 1, spread=4), SOFTWARE, (1, 64, 64, 64), (32, 64, 3, 3)).dispatches) == 3


def test_a_software_product_shares_registers_and_needs_no_workgroup_memory() -> None:
    (module,) = lowered(lambda x, y: x @ y, SOFTWARE, (128, 64), (64, 128)).modules
    assert "subgroupBroadcast(" in module.text and "var<workgroup>" not in module.text
    (module,) = lowered(lambda x, y: x @ y, Profile(), (128, 64), (64, 128)).modules  # no subgroups are known there
    assert "subgroupBroadcast(" not in module.text and "var<workgroup>" in module.text
