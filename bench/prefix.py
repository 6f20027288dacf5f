"""Time to the first token of a prompt that begins as another one did, and what pages cost those that do not.

    python bench/prefix.py [--layers 6] [--width 384] [--prefix 512] [--rounds 15]

A small random GPT-2 on one native worker with one thread.  Each round takes new tokens, and asks in turn for a prompt
that nobody asked for before, for one that begins with the same tokens and ends with others, and for a short one.  Given
are medians, the median of the rounds' ratios, and how many tokens were read.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from support.cases.language import gpt2_folder

import mesh
from mesh.inference import Generating

VOCABULARY, HEADS, POSITIONS, TAIL = 4096, 6, 2048, 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--prefix", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=15)
    asyncio.run(measure(parser.parse_args()))


async def measure(asked: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        size = {"vocabulary": VOCABULARY, "heads": HEADS, "positions": POSITIONS}
        model = mesh.load(gpt2_folder(Path(folder), width=asked.width, layers=asked.layers, **size))
        builder = mesh.AsyncMesh.builder().local(1, engine="native", threads=1)
        async with await builder.build_async() as own:
            batch = Generating(own, model)
            rows = [await one_round(batch, asked.prefix, seed) for seed in range(asked.rounds + 2)][2:]
            await batch.close()
    first, second, short = (statistics.median(times) for times in zip(*(row[0] for row in rows), strict=True))
    ratio = statistics.median(times[1] / times[0] for times, _ in rows)
    print(f"first prompt of {asked.prefix + TAIL} tokens   {first * 1e3:8.1f} ms, {rows[0][1][0]} tokens read")
    print(f"second one with its beginning   {second * 1e3:8.1f} ms, {rows[0][1][1]} tokens read")
    print(f"a prompt of {TAIL} tokens            {short * 1e3:8.1f} ms, {rows[0][1][2]} tokens read")
    print(f"second over first: {ratio:.3f}, median of {len(rows)} rounds")


async def one_round(batch: Generating, prefix: int, seed: int) -> tuple[list[float], list[int]]:
    """The seconds to the first token, and the tokens read, of the three prompts."""
    rng = np.random.default_rng(seed)
    shared, *tails = (rng.integers(0, VOCABULARY, count).tolist() for count in (prefix, TAIL, TAIL, TAIL))
    times, read = [], []
    for prompt in ([*shared, *tails[0]], [*shared, *tails[1]], tails[2]):
        before, began_s = batch.tokens_read, time.perf_counter()
        stream = batch.begin(prompt, 1, ends=())
        await anext(stream)
        times.append(time.perf_counter() - began_s)
        read.append(batch.tokens_read - before)
    return times, read


if __name__ == "__main__":
    main()
