"""One machine as two workers of one thread each, beside it as one worker of two threads: the same calls, by `auto`.

    python bench/split.py [--rounds 15] [CASE ...]

Both meshes are up at once, and called in turn; weights lie on the workers.  Printed are medians of milliseconds, the
median, the least and the largest ratio of a round (two workers' time over one worker's), and how many of the two took
part.
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
    asked = parser.parse_args()
    with (
        Mesh.builder().local(2, engine="native").build() as two,
        Mesh.builder().local(1, engine="native").build() as one,
    ):
        for name in asked.cases:
            function, weights, sent = CASES[name]
            held = {mesh: mesh.put(weights) for mesh in (two, one)}
            seconds: dict[Mesh, list[float]] = {two: [], one: []}
            calls = {mesh: mesh.compile(function, held[mesh], *sent) for mesh in (two, one)}
            results = {mesh: np.asarray(call(held[mesh], *sent)) for mesh, call in calls.items()}
            np.testing.assert_allclose(results[two], results[one], rtol=1e-3, atol=1e-4)
            for turn in range(asked.rounds + 5):
                for mesh in (two, one) if turn % 2 else (one, two):
                    began_s = time.perf_counter()
                    calls[mesh](held[mesh], *sent)
                    if turn >= 5:
                        seconds[mesh].append(time.perf_counter() - began_s)
            ratios = sorted(a / b for a, b in zip(seconds[two], seconds[one], strict=True))
            ms = [1e3 * statistics.median(seconds[mesh]) for mesh in (two, one)]
            print(
                f"{name:18} two workers {ms[0]:8.2f} ms  one {ms[1]:8.2f} ms  ratio {statistics.median(ratios):.2f} "
                f"({ratios[0]:.2f} to {ratios[-1]:.2f})  of the two took part {len(two.report().workers)}", flush=True,
            )  # fmt: skip


if __name__ == "__main__":
    main()
