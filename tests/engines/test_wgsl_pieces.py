"""Tensors that are larger than one binding: kernels bind them in several pieces.

Adapters bind 128 MiB and more, so devices that bind less stand for them: tensors of the op table then lie in two to
eight pieces, for the kernels of software devices and for those of GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from support.adapter import as_gpu, needs_adapter
from support.cases.op_cases import ROWS, Case, cases
from support.compare import assert_close, magnitude_of

import mesh
import mesh.numpy as mnp
from mesh.core.array import apply
from wire.errors import Unsupported
from wire.ir.dtypes import F16, F32
from wire.ir.graph import GraphBuilder, WireGraph
from worker.cpu import evaluate
from worker.wgsl.lower import lower
from worker.wgsl.profile import CPU_ONLY, GIB, MIB, DeviceLimits, Profile
from worker.wgsl.program import Program, stored_size
from worker.wgsl.shaders import Shaders

NARROW = {"binding_bytes": 256, "storage_buffers": 32}  # tensors of up to 2 KiB
NARROWEST = {"binding_bytes": 256, "storage_buffers": 8}  # of up to 512 bytes
UNTOUCHED = {"input", "param", "const", "after", "constraint", "transfer", "reshape"}  # ops without a kernel
OTHERWISE = {"dynamic_slice", "dynamic_update_slice", "random_bits", "reverse", "transpose"}  # in `PROGRAMS`
IN_PIECES = ("load_in", "store_in")  # what a kernel calls to read them and to write them


@pytest.fixture(scope="module", params=["software", "gpu"])
def engine(request: pytest.FixtureRequest) -> Iterator[Any]:
    made = opened(NARROW)
    yield as_gpu(made) if request.param == "gpu" else made
    made.close()


def opened(limits: dict[str, int]) -> Any:
    from worker.wgsl.engine import WgslEngine

    return WgslEngine(0, limits_override=limits)


def text_of(program: Program) -> str:
    return "".join(module.text for module in program.modules)


def in_pieces(op: str, known: Shaders) -> Iterator[Case]:
    """The cases of an op of which a kernel has a tensor in pieces."""
    for case in cases(op):
        if NARROW["binding_bytes"] < max(map(stored_size, case.graph.types)) <= known.profile.limits.tensor_bytes:
            with suppress(Unsupported):  # a dtype, or rows that are filled up
                if any(called in text_of(lower(case.graph, known)) for called in IN_PIECES):
                    yield case


@needs_adapter
@pytest.mark.parametrize("op", sorted(ROWS.keys() - CPU_ONLY - UNTOUCHED - OTHERWISE))
def test_every_op_takes_tensors_in_pieces(engine: Any, op: str) -> None:
    case = next(in_pieces(op, engine._shaders))
    made, right = engine.run(engine.compile(case.graph), case.arguments), evaluate(case.graph, case.inputs)
    kinds = case.graph.output_types.values()
    for actual, wanted, kind, magnitude in zip(made, right, kinds, magnitude_of(case), strict=True):
        assert_close(actual, wanted, case.op, kind.dtype, magnitude)


def shrinking(x: Any, w: Any) -> Any:
    """Small tensors come to lie where large ones were."""
    for _ in range(3):
        x = mnp.tanh(x @ w)
    x = mnp.tanh(x @ w[:, :3])
    return mnp.tanh(x @ x.T) @ x


def moved(x: Any, w: Any) -> Any:
    at = mnp.asarray(x[0, :2] * 0 + 3, dtype="int32")
    updated = apply("dynamic_update_slice", x, x[1:3, 2:9] * 2, at)
    picked = apply("dynamic_slice", x, at, sizes=(9, 21))
    drawn = apply("random_bits", mnp.asarray(np.array([7, 9], np.uint32)), shape=(13, 17))
    return updated, picked, drawn, mnp.flip(x, axis=1).T, mnp.concat([x, x[:2], x[5:], x[:1], x[2:4]], axis=0)[3:17]


def attended(x: Any, w: Any) -> Any:
    return mesh.nn.scaled_dot_product_attention(x[None], x[None] + 1, x[None] * 2)


def several(x: Any, w: Any) -> Any:
    """More tensors in pieces than one kernel can have."""
    terms = [mnp.sin(x * (1 + n)) @ w for n in range(5)]
    total = terms[0]
    for term in terms[1:]:
        total = mnp.where(total > 0, total + term, total * term)
    return total, sum(terms), mesh.scan(lambda c, row: (c + row, c * 2), mnp.zeros(w.shape[0]), total)


PROGRAMS = [("software", shrinking), ("software", moved), ("gpu", moved), ("software", several), ("gpu", attended)]


@needs_adapter
@pytest.mark.parametrize(("engine", "program"), PROGRAMS, indirect=["engine"])
def test_programs_over_tensors_in_pieces(engine: Any, program: Callable[..., Any]) -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.uniform(-0.3, 0.3, shape).astype(np.float32) for shape in ((16, 21), (21, 21)))
    graph = mesh.trace(program, x, w)
    inputs = dict(zip((*graph.input_types, *graph.param_types), (x, w), strict=True))
    made, right = engine.run(engine.compile(graph), list(inputs.values())), evaluate(graph, inputs)
    for actual, wanted in zip(made, right, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-5)


@needs_adapter
def test_groups_are_made_smaller_where_bindings_run_out() -> None:
    """Of two pieces each, a kernel has three tensors besides its result."""
    engine = opened(NARROWEST)
    x, w = (np.linspace(-1, 1, size, dtype=np.float32).reshape(-1, 8) for size in (128, 64))
    for graph in (mesh.trace(several, x, w), mesh.trace(lambda *all: sum(all) * mnp.max(sum(all)), *[x] * 9)):
        given = [x, w] if len(graph.input_types) == 2 else [x * n for n in range(9)]
        executable = engine.compile(graph)
        right = evaluate(graph, dict(zip(graph.input_types, given, strict=True)))
        for actual, wanted in zip(engine.run(executable, given), right, strict=True):
            np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-5)
    assert executable.dispatches >= 4
    engine.close()


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        (DeviceLimits(), 256 * MIB),
        (DeviceLimits(storage_buffers=32, buffer_bytes=2 * GIB), GIB),
        (DeviceLimits(storage_buffers=32, buffer_bytes=1 << 40, binding_bytes=2 * GIB - 16), 4 * GIB - 256),
        (DeviceLimits(storage_buffers=3, binding_bytes=1000), 768),
    ],
)
def test_a_tensor_beyond_what_four_take_together_is_refused_with_need_and_have(limits: DeviceLimits, most: int) -> None:
    assert limits.tensor_bytes == most

    def selected(elements: int, dtype: Any) -> WireGraph:
        """Whichever op has most operands is computed up to the limit."""
        builder = GraphBuilder()
        x, y = (builder.input(name, (elements,), dtype) for name in "xy")
        return builder.build([builder.add("select", builder.add("lt", x, y), x, y)])

    known = Shaders(Profile(limits=limits, f16=True))
    dtype = F16 if most > 2 * GIB else F32
    assert lower(selected(most // dtype.itemsize, dtype), known).dispatches
    with pytest.raises(Unsupported, match=r"a tensor f\d+\[\d+\] needs .*, kernels of this adapter take .*Cut the"):
        lower(selected(most // dtype.itemsize + 1, dtype), known)
