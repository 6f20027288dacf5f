"""A part of one op run by an engine host, and what the host tells of its costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder
from wire.system.shared_memory import SharedDir, take
from worker.engine import host_messages as hm
from worker.engine.protocol import Engine
from worker.engine_host.host import Host


def part_costs(engine: Engine, folder: Path, x: NDArray[np.float32]) -> tuple[hm.Executed, NDArray[Any]]:
    """The answer to running -x, and the output, which is a file."""
    builder = GraphBuilder()
    graph = builder.build([builder.add("neg", builder.input("x", x.shape, F32))])
    shared = SharedDir.create(folder)
    try:
        host = Host(engine, shared, memoryview(bytearray(8)), 1 << 30)
        host.handle(hm.PreparePart(1, graph.hash, graph.encoded, 1, 1, (), {}, False))
        given = hm.Input(0, F32.name, x.shape, True, None, str(shared.path), shared.write([x]))
        told = host.handle(hm.ExecutePart(1, 1, (given,), (hm.OutputRequest(0, 1),)))
        assert isinstance(told, hm.Executed), told
        (file,) = told.outputs[0].files
        return told, np.frombuffer(take(str(shared.path), file, x.nbytes, unlink=True), np.float32).copy()
    finally:
        shared.close()
