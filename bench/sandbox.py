"""What the sandbox of engine hosts costs: the same parts in two hosts by turns, one of which is in a sandbox.

    python bench/sandbox.py [--engine native] [--pairs 5] [--seconds 8] [--starts 10] [CASE ...]

The parts are the cases of bench/engines.py and an addition of 8x8, which is next to no kernel: what is left of it are
the calls of the system that any run makes.  Of each part it prints the time in a sandbox over the time without, by the
host's own clock.  Runs of the two follow each other by turns, so what else the machine does hits both, and of each host
the quickest run counts.  Two processes differ by where their memory lies, so this is done with several pairs of hosts:
the median of their ratios, and all of them.  Of starts it prints the difference of the medians, from the start of the
process until its device is open.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import queue
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from engine_peers import CASES, given, mesh_cases, traced

from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder, WireGraph
from wire.system.shared_memory import SharedDir
from worker.config import WorkerConfig
from worker.engine import host_messages as hm
from worker.engine_host.host_client import HostProcess
from worker.engine_host.sandbox import sandbox_text

ENGINES = ("native", "cpu", "wgsl")
TINY = "add 8x8"
TURNS_MIN = 10

Part = tuple[WireGraph, list[np.ndarray]]  # a graph, and what it is called with


def part(what: str) -> Part:
    if what != TINY:
        arrays = given(what)
        return traced(mesh_cases()[what], arrays), arrays
    builder = GraphBuilder()
    x, y = builder.input("x", (8, 8), F32), builder.input("y", (8, 8), F32)
    return builder.build([builder.add("add", x, y)]), [np.ones((8, 8), np.float32)] * 2


class Host:
    """An open host, and its answers."""

    def __init__(self, engine: str, folder: Path, sandboxed: bool) -> None:
        self.shared, self.said = SharedDir.create(), queue.Queue[hm.FromHost]()
        stop = self.shared.allocate(hm.STOP_BYTES)
        opening = hm.Open(
            device=engine, memory_bytes=0, threads=1, cache_dir=str(folder / "kernels"),
            measured_dir=str(folder / "measured"), shared_dir=str(self.shared.path), stop_file=stop.name,
            parent_pid=os.getpid(), beat_s=0.5, readable=(str(folder),), sandboxed=sandboxed,
        )  # fmt: skip
        self.process = HostProcess(opening, stop.buffer, WorkerConfig(), lambda _, m: self.said.put(m), lambda *_: None)
        self.run = 0

    async def start(self) -> float:
        began_s = time.perf_counter()
        await self.process.start()
        answer = await self.process.opened
        took_s = time.perf_counter() - began_s
        assert isinstance(answer, hm.Opened) and answer.device is not None, answer
        self.sandbox = sandbox_text(answer.sandbox)
        return took_s

    async def ask(self, message: hm.ToHost) -> hm.FromHost:
        self.process.send(message)
        while self.said.empty():
            await asyncio.sleep(0)
        return self.said.get()

    async def prepare(self, number: int, graph: WireGraph) -> None:
        counts = len(graph.inputs), len(graph.outputs)
        answer = await self.ask(hm.PreparePart(number, graph.hash, graph.encoded, *counts, (), {}, False))
        assert isinstance(answer, hm.Prepared), answer

    async def compute_s(self, number: int, arrays: Sequence[np.ndarray], outputs: int) -> float:
        self.run += 1
        inputs = tuple(
            hm.Input(at, F32.name, array.shape, True, None, str(self.shared.path), self.shared.write([array]))
            for at, array in enumerate(arrays)
        )
        answer = await self.ask(hm.ExecutePart(self.run, number, inputs, (hm.OutputRequest(0, 0),) * outputs))
        assert isinstance(answer, hm.Executed), answer
        return answer.compute_s

    async def close(self) -> None:
        self.process.kill()
        await self.process.exited.wait()
        self.shared.close()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=[*CASES, TINY], metavar="CASE")
    parser.add_argument("--engine", action="append", default=[], choices=ENGINES)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each part and pair")
    parser.add_argument("--starts", type=int, default=10)
    options = parser.parse_args()
    if unknown := [case for case in options.cases if case not in (*CASES, TINY)]:
        parser.error(f"no case {unknown[0]!r}; there are {', '.join((*CASES, TINY))}")
    parts = {what: part(what) for what in options.cases}
    for engine in options.engine or ENGINES:
        with tempfile.TemporaryDirectory() as folder:
            if options.starts:
                await measure_starts(engine, Path(folder), options.starts)
            ratios: dict[str, list[float]] = {what: [] for what in parts}
            for _ in range(options.pairs):
                for what, ratio in (await measured(engine, Path(folder), parts, options.seconds)).items():
                    ratios[what].append(ratio)
            for what, all_ in ratios.items():
                each = " ".join(f"{ratio:.3f}" for ratio in sorted(all_))
                print(f"  {what}: in a sandbox {statistics.median(all_):.4f} of the time ({each})", flush=True)
            medians = [statistics.median(all_) for what, all_ in ratios.items() if what != TINY]
            if medians:
                print(f"  the kernel bench, geometric mean: {statistics.geometric_mean(medians):.4f}", flush=True)


async def measure_starts(engine: str, folder: Path, starts: int) -> None:
    took: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(starts + 1):
        for sandboxed in (turn % 2 == 0, turn % 2 == 1):
            host = Host(engine, folder, sandboxed)
            took_s = await host.start()
            if turn:  # the first ones fill caches
                took[sandboxed].append(took_s)
            await host.close()
    without, within = (statistics.median(took[sandboxed]) for sandboxed in (False, True))
    quickest = min(took[True]) - min(took[False])
    print(f"{engine}: start {1e3 * without:.0f} ms, in a sandbox {1e3 * (within - without):+.1f} ms more")
    print(f"  the quickest start {1e3 * min(took[False]):.0f} ms, in a sandbox {1e3 * quickest:+.1f} ms more")


async def measured(engine: str, folder: Path, parts: dict[str, Part], seconds: float) -> dict[str, float]:
    """The ratio of the quickest runs of a new pair of hosts, by part."""
    hosts = {sandboxed: Host(engine, folder, sandboxed) for sandboxed in (True, False)}
    ratios = {}
    for host in hosts.values():
        await host.start()
    for number, (what, (graph, arrays)) in enumerate(parts.items(), 1):
        for host in hosts.values():
            await host.prepare(number, graph)
        took: dict[bool, list[float]] = {True: [], False: []}
        turn, end_s = 0, time.perf_counter() + seconds
        while turn < TURNS_MIN or time.perf_counter() < end_s:
            for sandboxed in (True, False) if turn % 2 else (False, True):
                took[sandboxed].append(await hosts[sandboxed].compute_s(number, arrays, len(graph.outputs)))
            turn += 1
        ratios[what] = min(took[True]) / min(took[False])
    for host in hosts.values():
        await host.close()
    return ratios


if __name__ == "__main__":
    asyncio.run(main())
