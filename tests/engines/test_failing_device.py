"""The Nth call of a WebGPU device fails, for every N: a named error, nothing stays allocated, the next run is right."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from support.adapter import needs_adapter
from support.hostile.failing_calls import Refusing, each_call
from support.hostile.faulty_disk import Fuse

from wire.errors import CompileFailed, DeviceLost, EngineError, ExecuteFailed, OutOfMemory
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder, WireGraph

pytestmark = needs_adapter

RAW = (
    "create_buffer",
    "create_shader_module",
    "create_compute_pipeline",
    "create_bind_group",
    "create_command_encoder",
)
QUEUE = ("write_buffer", "submit")
ERRORS: dict[str, tuple[type[EngineError], ...]] = {
    "Parent device is lost": (DeviceLost,),
    "Not enough memory left": (OutOfMemory,),
    "Validation Error": (ExecuteFailed, CompileFailed),
}
SIDE = 32
X = np.arange(SIDE * SIDE, dtype=np.float32).reshape(SIDE, SIDE) % 7
WEIGHT = X.T.copy()


class Driver(Refusing):
    """A wgpu device whose queue refuses too."""

    def __init__(self, raw: Any, fuse: Fuse, error: Any) -> None:
        super().__init__(raw, RAW, fuse, error)
        self.queue = Refusing(raw.queue, QUEUE, fuse, error)


def program() -> WireGraph:
    builder = GraphBuilder()
    x = builder.input("x", (SIDE, SIDE), F32)
    weight = builder.param("weight", (SIDE, SIDE), F32)
    product = builder.add("dot", x, weight, lhs_batch=(), rhs_batch=(), lhs_contract=(1,), rhs_contract=(0,))
    return builder.build([builder.add("add", product, builder.const(X)), builder.add("reduce_sum", product, axes=(0,))])


def story(engine: Any, graph: WireGraph, force: bool) -> None:
    """Compile, load a weight, run twice, unload; the answers are right."""
    executable = engine.compile(graph, force)
    weight = engine.load(WEIGHT)
    try:
        for _ in range(2):
            first, second = engine.run(executable, [X, weight])
            assert np.array_equal(first, X @ WEIGHT + X) and np.array_equal(second, (X @ WEIGHT).sum(0))
    finally:
        engine.unload(weight)


def allocated(engine: Any) -> int:
    """Bytes of the device that somebody holds."""
    gc.collect()
    engine._device.trim()
    return int(engine._device.allocated_bytes)


LOST, *OTHERS = ERRORS


@pytest.mark.parametrize("text", [LOST, *(pytest.param(text, marks=pytest.mark.long) for text in OTHERS)])
def test_whatever_the_driver_refuses_is_named_and_leaves_nothing(text: str) -> None:
    from worker.wgsl.engine import WgslEngine

    engine, graph = WgslEngine(0), program()
    failed: list[str] = []
    device = engine._device
    raw, read = device._device, device._read
    for fuse in each_call():
        device._device = Driver(raw, fuse, lambda: RuntimeError(text))
        device._read = Refusing(device, ("_read",), fuse, lambda: RuntimeError(text))._read
        try:
            story(engine, graph, force=True)
        except ERRORS[text] as error:
            failed.append(error.cause)  # the error itself would hold what its frames hold
        finally:
            device._device, device._read = raw, read
        assert allocated(engine) == 0, f"left after call {fuse.fails_at} failed"
        story(engine, graph, force=False)
        assert allocated(engine) == 0
    assert len(failed) >= 15 and all(text in cause for cause in failed)
    engine.close()
