"""Products with matrices of 8 and 4 bits per weight beside the same product in float32, in turn in one run.

    python bench/quantised.py [--engine native] [--size 4096] [--rounds 9] [ROWS ...]

x is (ROWS, size), the matrix (size, size).  Printed are medians of milliseconds, of processor time on the native engine
(one thread), of the wall clock on wgsl, with the bytes of the matrix, and the median ratio of a round.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from mesh import nn, trace
from wire.passes.simplify import simplify
from worker.cpu.engine import evaluate
from worker.native.engine import NativeEngine


def prepared(engine: Any, function: Callable[..., Any], *arrays: Any) -> Callable[[], Any]:
    executable = engine.compile(simplify(trace(function, *arrays), evaluate))
    handles = [engine.load(np.asarray(array)) for array in arrays]
    return lambda: engine.read(engine.run(executable, handles, keep=range(1))[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", type=int, default=[1, 4, 16, 128], metavar="ROWS")
    parser.add_argument("--engine", choices=("native", "wgsl"), default="native")
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=9)
    asked = parser.parse_args()
    if asked.engine == "native":
        engine, clock = NativeEngine(threads=1), time.process_time
    else:
        from worker.wgsl.engine import WgslEngine

        engine, clock = WgslEngine(), time.perf_counter
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((asked.size, asked.size), dtype=np.float32)
    packed = {bits: nn.quantise(weight, bits) for bits in (8, 4)}
    for rows in asked.rows:
        x = rng.standard_normal((rows, asked.size), dtype=np.float32)
        calls = {"float32": (prepared(engine, lambda x, w: x @ w, x, weight), weight.nbytes)}
        for bits, arrays in packed.items():
            call = prepared(engine, lambda x, *packed, bits=bits: x @ nn.dequantise(*packed, bits), x, *arrays)
            calls[f"{bits} bits"] = call, sum(np.asarray(array).nbytes for array in arrays)
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        for turn in range(asked.rounds + 1):
            for name, (call, _) in calls.items():
                began_s = clock()
                call()
                if turn:
                    seconds[name].append(clock() - began_s)
        for name, (_, size) in calls.items():
            ratio = statistics.median(
                mine / plain for mine, plain in zip(seconds[name], seconds["float32"], strict=True)
            )
            median_ms = 1e3 * statistics.median(seconds[name])
            print(f"{rows:4} rows  {name:8} {size / 2**20:6.1f} MiB {median_ms:9.2f} ms  ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
