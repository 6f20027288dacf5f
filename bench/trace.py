"""What it costs to make a graph of a function, and to call one that is made: MiniLM, with its weights put.

python bench/trace.py [ROUNDS]

The goals are 150 ms for the first and 100 us for the second: all that a cached call does before anything is dispatched.
Then what comes before a first run on the native engine, in processor time: a trace of 32 texts of 128 tokens, passes,
and kernels, which are made, or read from disk.  The goals are 0.6 s and 0.15 s.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

import mesh
from mesh import tree
from mesh.functions.compiled import CompiledFunction, handle_of
from mesh.importers import minilm
from wire.passes.simplify import simplify
from worker.cpu.engine import evaluate
from worker.native.engine import NativeEngine

CALLS = 300


def fastest_and_median(work: Callable[[], Any], times: int) -> tuple[float, float]:
    work()
    seconds = []
    for _ in range(times):
        began_s = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began_s)
    return min(seconds), statistics.median(seconds)


def first_calls_s(model: Any) -> tuple[float, float]:
    """Seconds of processor time before a first run: without kernels on disk, and with them."""
    args = model, np.zeros((32, 128), np.int32), np.ones((32, 128), np.float32)
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(2):
            engine = NativeEngine(folder=Path(folder))
            began_s = time.process_time()
            engine.compile(simplify(mesh.trace(minilm.encode, *args), evaluate))
            seconds.append(time.process_time() - began_s)
            engine.close()
    return seconds[0], seconds[1]


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    model = tree.map(handle_of, minilm.load_model())
    ids, mask = np.zeros((16, 64), np.int32), np.ones((16, 64), np.float32)
    best_s, median_s = fastest_and_median(lambda: mesh.trace(minilm.encode, model, ids, mask), rounds)
    nodes = len(mesh.trace(minilm.encode, model, ids, mask).nodes)
    print(f"trace of MiniLM ({nodes} nodes): median {median_s * 1e3:.1f} ms, best {best_s * 1e3:.1f} ms (goal 150)")
    cold_s, warm_s = first_calls_s(model)
    print(f"before a first run: {cold_s:.2f} s (goal 0.6), with kernels on disk {warm_s:.2f} s (goal 0.15)")
    function = CompiledFunction(minilm.encode)
    args = (model, ids, mask)
    best_s, median_s = fastest_and_median(lambda: function.bind(args), CALLS)
    leaves = len(tree.leaves(args))
    print(f"cached call, {leaves} leaves: median {median_s * 1e6:.0f} us, best {best_s * 1e6:.0f} us (goal 100)")
    params = dict(tree.flatten_with_paths(model)[0])
    by_name = CompiledFunction(lambda params, ids: sum(map(mesh.numpy.asarray, params.values()), ids))
    flat = {name: handle for name, handle in params.items() if handle.shape == (384,)}
    zeros = np.zeros(384, np.float32)
    best_s, median_s = fastest_and_median(lambda: by_name.bind((flat, zeros)), CALLS)
    print(f"cached call, a dict of {len(flat)}: median {median_s * 1e6:.0f} us, best {best_s * 1e6:.0f} us (goal 100)")
    x = handle_of(np.ones((64, 64), np.float32))
    small = CompiledFunction(lambda a, b: a @ b)
    best_s, median_s = fastest_and_median(lambda: small.bind((x, x)), CALLS)
    print(f"cached call, 2 leaves: median {median_s * 1e6:.0f} us, best {best_s * 1e6:.0f} us (goal 100)")


if __name__ == "__main__":
    main()
