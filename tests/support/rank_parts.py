"""The body of an spmd node computed by separate ranks, each with its own engine, over ring buffers in memory."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from support.ranks import HANGS_S, channels_in_memory

from wire.ir.graph import WireGraph
from wire.ir.grids import block, coordinates, parts, spec_of
from worker.collectives.rank import RankCollectives
from worker.cpu.engine import CpuEngine
from worker.engine.protocol import Engine, never

Array = NDArray[Any]


def by_ranks(
    graph: WireGraph, given: Mapping[str, Array], first: Engine | None = None, bodies: Sequence[WireGraph] = ()
) -> list[Array]:
    """The outputs of a graph that is one spmd node and its operands.  Each rank is computed by a thread and the cpu
    engine; the first one in the calling thread, by the engine `first` if there is one.  `bodies` are those by rank,
    where they have their own."""
    nodes = [graph.nodes[index] for index in graph.outputs]
    attrs = nodes[0].attrs
    axes, sizes, places = attrs["axes"], attrs["sizes"], coordinates(attrs["sizes"])
    operands = [given[graph.nodes[index].attrs["name"]] for index in nodes[0].inputs]
    blocks = [
        [part(whole, text, axes, sizes, at) for whole, text in zip(operands, attrs["in_specs"], strict=True)]
        for at in places
    ]
    results = each_by_itself(bodies or [attrs["body"]] * len(places), blocks, axes, sizes, first)
    found = []
    for node in nodes:
        output = node.attrs["output"]
        text = attrs["out_specs"][output]
        found.append(whole_of([result[output] for result in results], text, axes, sizes, places))
    return found


def each_by_itself(
    bodies: Sequence[WireGraph], given: Sequence[list[Array]], axes: Any, sizes: Any, first: Engine | None = None
) -> list[list[Array]]:
    """What each rank of a grid makes with its own graph of its own inputs, twice."""
    engines: list[Engine] = [first or CpuEngine(), *(CpuEngine() for _ in bodies[1:])]
    executables = [engine.compile(body) for engine, body in zip(engines, bodies, strict=True)]
    channels = channels_in_memory(len(bodies))
    results: list[Any] = [None] * len(bodies)

    def work(rank: int) -> None:
        ranks = RankCollectives(channels[rank], axes, sizes, rank)
        for tag in (1, 2):
            ranks.begin(tag, never)
            results[rank] = engines[rank].run(executables[rank], given[rank], never, ranks)
            ranks.end()

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(1, len(bodies))]
    for thread in threads:
        thread.start()
    work(0)
    for thread in threads:
        thread.join(HANGS_S)
    return results


def part(whole: Array, text: str, axes: Any, sizes: Any, at: Any) -> Array:
    spec = spec_of(text)
    for axis, (count, place) in enumerate(zip(parts(spec, axes, sizes), block(spec, axes, sizes, at), strict=True)):
        whole = np.split(whole, count, axis)[place]
    return np.ascontiguousarray(whole).reshape(whole.shape)


def whole_of(blocks: list[Array], text: str, axes: Any, sizes: Any, places: Any) -> Array:
    spec = spec_of(text)
    counts = parts(spec, axes, sizes)
    shape = tuple(dim * count for dim, count in zip(blocks[0].shape, counts, strict=True))
    whole = np.empty(shape, blocks[0].dtype)
    for value, at in reversed(list(zip(blocks, places, strict=True))):
        numbers = block(spec, axes, sizes, at)
        whole[tuple(slice(n * d, (n + 1) * d) for n, d in zip(numbers, value.shape, strict=True))] = value
    return whole
