"""Matrix products of the native engine beside numpy's, and torch's if it is there: one thread, interleaved.

python bench/native_products.py [--dtype f32] [--rounds 15] [--without avx512] [--runner]

A line is a shape and how the operands lie: "n" by rows, "t" by columns.  Figures are medians of processor time, which
other work on the machine disturbs least, and ratios to the native engine's: above 1 it is faster.  OPENBLAS_CORETYPE
says which loops numpy takes.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"
sys.path.append(str(Path(__file__).parent.parent))

import numpy as np

from worker.native import runner
from worker.native.cores import FEW, FUNCTION, tile_for
from worker.native.library import CORES, Library
from worker.native.llvm import Loaded, Processor, ir, machine_code, new_module, this_processor
from worker.native.threads import Program, Stop, Threads

DTYPES = {"f32": np.float32, "f64": np.float64}
SHAPES = [  # m, n, K
    (1024, 1024, 1024), (512, 512, 512), (256, 256, 256), (128, 128, 128), (64, 64, 64), (197, 197, 64),
    (197, 64, 197), (64, 384, 1536), (64, 1536, 384), (256, 384, 1536), (3136, 64, 9), (3136, 64, 27),
    (64, 3136, 576), (16, 1024, 1024), (8, 1024, 1024), (4, 4096, 1024), (1, 1536, 384), (1, 4096, 4096),
    (1024, 16, 1024), (1024, 4, 1024), (1024, 1, 1024),
]  # fmt: skip
TURN_S = 1e-3  # of one engine, so that a clock's step is small


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=DTYPES, default="f32")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--without", default="", help="features that the processor is to lack: avx512")
    parser.add_argument("--runner", action="store_true", help="the cost of a kernel instead")
    chosen = parser.parse_args()
    if chosen.runner:
        measure_runner()
    else:
        measure_products(chosen.dtype, chosen.rounds, chosen.without)


def measure_products(dtype: str, rounds: int, without: str) -> None:
    processor = lacking(without) if without else this_processor()
    core = Core(dtype, processor)
    rng = np.random.default_rng(0)
    print(f"{'m x n x K':18} {'lie':4} {'native':>16} {'numpy':>7} {'torch':>7}")
    for m, n, length in SHAPES:
        for lie in ("nn", "nt"):
            a, b = (rng.standard_normal(shape).astype(DTYPES[dtype]) for shape in ((m, length), (length, n)))
            b = np.asfortranarray(b) if lie[1] == "t" else b
            works = [core.work(a, b), lambda a=a, b=b, out=np.empty((m, n), a.dtype): np.matmul(a, b, out=out)]
            works += torchs(a, b)
            native, *others = interleaved(works, rounds)
            ratios = " ".join(f"{other / native:7.2f}" for other in others)
            flops = 2 * m * n * length
            print(f"{f'{m} x {n} x {length}':18} {lie:4} {native * 1e6:8.1f} us {flops / native / 1e9:5.0f} G {ratios}")


class Core:
    """The cores of a dtype, for arrays."""

    def __init__(self, dtype: str, processor: Processor) -> None:
        tile = tile_for(processor, dtype)
        forms = [CORES[form](processor, dtype, tile) for form in ("product", "few_rows")]
        self._loaded = [Loaded(machine_code(form, processor)) for form in forms]
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 12)
        self._calls = [kind(loaded.address(FUNCTION)) for loaded in self._loaded]
        self._scratch = np.zeros(tile.scratch_bytes + 64, np.uint8)

    def work(self, a: Any, b: Any) -> Callable[[], object]:
        c = np.empty((a.shape[0], b.shape[1]), a.dtype)
        words = [[each.ctypes.data, *(step // each.itemsize for step in each.strides)] for each in (a, b, c)]
        begin = self._scratch.ctypes.data + -self._scratch.ctypes.data % 64
        args = [*words[0], *words[1], *words[2][:2], *c.shape, a.shape[1], begin]
        call, held = self._calls[min(*c.shape) <= FEW], [ctypes.c_int64(each) for each in args]
        return lambda kept=(a, b, c): call(*held)


def torchs(a: Any, b: Any) -> list[Callable[[], object]]:
    try:
        import torch
    except ImportError:
        return []
    torch.set_num_threads(1)
    x, y = torch.from_numpy(a), torch.from_numpy(b)
    return [lambda out=torch.empty(a.shape[0], b.shape[1], dtype=x.dtype): torch.matmul(x, y, out=out)]


def lacking(feature: str) -> Processor:
    here = this_processor()
    off = (f"-{name[1:]}" if name[1:].startswith(feature) else name for name in here.features.split(","))
    return Processor(here.triple, "x86-64", ",".join(off))


def interleaved(works: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """The median seconds of every work, which take turns."""
    times: list[list[float]] = [[] for _ in works]
    began_s = time.thread_time()
    for work in works:
        work()
    turns = max(1, int(TURN_S * len(works) / max(time.thread_time() - began_s, 1e-7)))
    for _ in range(rounds):
        for work, taken in zip(works, times, strict=True):
            began_s = time.thread_time()
            for _ in range(turns):
                work()
            taken.append((time.thread_time() - began_s) / turns)
    return [statistics.median(taken) for taken in times]


def measure_runner() -> None:
    """Programs of kernels that do nothing, each of which waits for the one before."""
    module = new_module("nothing")
    ir.IRBuilder(ir.Function(module, runner.KERNEL, "nothing").append_basic_block("entry")).ret_void()
    loaded = Loaded(machine_code(module, this_processor()))
    threads = Threads(Library().runner(), 2)
    for kernels in (1, 130):
        rows = [(loaded.address("nothing"), 0, 2, at) for at in range(kernels)]
        program = Program(np.array(rows, np.int64), 0)
        for count in (1, 2):
            times = []
            for _ in range(400):
                began_s = time.perf_counter()
                threads.run(program, Stop(), count)
                times.append(time.perf_counter() - began_s)
            times.sort()
            print(
                f"{kernels:4} kernels, {count} threads: best {times[0] * 1e6:6.1f}  median {times[200] * 1e6:6.1f}  "
                f"p90 {times[360] * 1e6:6.1f} us"
            )
    threads.close()


if __name__ == "__main__":
    main()
