"""One machine as two workers of one thread each, beside it as one worker of two threads: the same calls, by `auto`.

    python bench/split.py [--rounds 15] [CASE ...]

Both meshes are up at once, and called in turn; weights lie on the workers.  Calls before the rounds teach `auto` what
its plans take.  Printed are medians of milliseconds, the median, the least and the largest ratio of a round (two
workers' time over one worker's), how many of the two took part, and the ratio to the best of the strategies that one
may name instead of `auto` on the same two workers.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from mesh import Mesh, nn
from mesh import numpy as mnp

WIDTH, LENGTH, HEADS, LAYERS = 1024, 256, 16, 4
FIXED = ("single", "data", "tensor")
Case = tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...]]  # the function, weights, and what is sent


def normal(*shape: int) -> Any:
    return (np.random.default_rng(shape).standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)


def mlp(weights: Any, x: Any) -> Any:
    for w in weights:
        x = nn.gelu(x @ w, approximate=True)
    return x


def attention(weights: Any, x: Any) -> Any:
    q, k, v = (mnp.swapaxes(mnp.reshape(x @ w, (LENGTH, HEADS, -1)), 0, 1) for w in weights)
    return nn.scaled_dot_product_attention(q, k, v)


CASES: dict[str, Case] = {
    "product, 256 rows": (lambda weights, x: x @ weights[0], (normal(WIDTH, WIDTH),), (normal(LENGTH, WIDTH),)),
    "MLP, 1 row": (mlp, tuple(normal(WIDTH, WIDTH) for _ in range(LAYERS)), (normal(1, WIDTH),)),
    "MLP, 256 rows": (mlp, tuple(normal(WIDTH, WIDTH) for _ in range(LAYERS)), (normal(LENGTH, WIDTH),)),
    "MLP, 2048 rows": (mlp, tuple(normal(WIDTH, WIDTH) for _ in range(LAYERS)), (normal(2048, WIDTH),)),
    "attention": (attention, tuple(normal(WIDTH, WIDTH) for _ in range(3)), (normal(LENGTH, WIDTH),)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="CASE", help="; ".join(CASES))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--before", type=int, default=60, help="calls before the rounds")
    asked = parser.parse_args()
    with (
        Mesh.builder().local(2, engine="native").build() as two,
        Mesh.builder().local(1, engine="native").build() as one,
    ):
        for name in asked.cases:
            function, weights, sent = CASES[name]
            held = {mesh: mesh.put(weights) for mesh in (two, one)}
            ways = {("auto", two): two, ("one", one): one, **{(word, two): two for word in FIXED}}
            calls = {
                way: mesh.compile(function, held[mesh], *sent, strategy=way[0] if way[0] in FIXED else "auto")
                for way, mesh in ways.items()
            }
            results = [np.asarray(call(held[ways[way]], *sent)) for way, call in calls.items()]
            for result in results[1:]:
                np.testing.assert_allclose(result, results[0], rtol=1e-3, atol=1e-4)
            seconds: dict[str, list[float]] = {word: [] for word, _ in ways}
            workers = 0
            for turn in range(asked.before + asked.rounds):
                some = list(calls) if turn >= asked.before - 5 else list(calls)[:2]
                for word, mesh in some if turn % 2 else some[::-1]:
                    began_s = time.perf_counter()
                    calls[word, mesh](held[mesh], *sent)
                    if turn >= asked.before:
                        seconds[word].append(time.perf_counter() - began_s)
                    workers = len(mesh.report().workers) if word == "auto" else workers
            ratios = sorted(a / b for a, b in zip(seconds["auto"], seconds["one"], strict=True))
            ms = {word: 1e3 * statistics.median(took) for word, took in seconds.items()}
            best = min(FIXED, key=lambda word: ms[word])
            print(
                f"{name:18} two workers {ms['auto']:8.2f} ms  one {ms['one']:8.2f} ms  "
                f"ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})  "
                f"of the two took part {workers}  to {best} {ms['auto'] / ms[best]:.2f}", flush=True,
            )  # fmt: skip


if __name__ == "__main__":
    main()
