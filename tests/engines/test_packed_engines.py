"""Products with packed matrices of every form are one kernel that reads the packed words, on every engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Type
from support.adapter import needs_adapter
from support.cases.gguf_files import HALVES, random_blocks
from support.kept_kernels import native_engine

import mesh.numpy as mnp
from mesh import trace
from mesh.importers.gguf.blocks import BLOCKS, packed
from mesh.nn.packed import packed_product, unpacked
from wire.passes.simplify import simplify
from worker.cpu.engine import evaluate
from worker.engine.protocol import Engine, explained

INPUTS, OUTPUTS = 512, 96


def wgsl() -> Engine:
    from worker.wgsl.engine import WgslEngine

    return WgslEngine(0)


@pytest.fixture(scope="module", params=["native", pytest.param("wgsl", marks=needs_adapter)])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    made: Engine = native_engine(threads=2) if request.param == "native" else wgsl()
    yield made
    made.close()


@pytest.mark.parametrize("kind", HALVES)
def test_a_product_reads_the_packed_words(engine: Engine, kind: str) -> None:
    rng, block = np.random.default_rng(0), BLOCKS[Type[kind].value]
    parts = packed(block, (OUTPUTS, INPUTS), random_blocks(rng, kind, (OUTPUTS, INPUTS)).reshape(-1))
    x = rng.standard_normal((3, INPUTS)).astype(np.float32)
    given = [x, *map(np.ascontiguousarray, parts.values())]

    def product(x: Any, *arrays: Any) -> Any:
        return packed_product(x, dict(zip(parts, arrays, strict=True)))

    executable = engine.compile(simplify(trace(product, *given), evaluate))
    (found,) = engine.run(executable, [engine.load(array) for array in given])
    matrix = np.asarray(unpacked({part: mnp.asarray(array) for part, array in parts.items()}, INPUTS)).astype(float)
    magnitude = np.abs(x).astype(float) @ np.abs(matrix)
    assert np.all(np.abs(found - x @ matrix) <= 32 * 2.0**-24 * magnitude)
    rows = explained(engine, executable).rows
    assert [row.name for row in rows].count("product") == 1
    assert max(row.written_bytes for row in rows) <= INPUTS * OUTPUTS / 4, "the matrix of floats is nowhere"
