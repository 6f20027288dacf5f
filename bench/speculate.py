"""Tokens per second with a drafter and without, where the drafter is right in about 80 of 100 cases.

    python bench/speculate.py [--layers 12] [--width 768] [--agreement 0.8] [--drafts 4] [--rounds 7]

The target is a small random GPT-2.  The drafter is its first layer, with its table and its last norm.  What the other
layers add is scaled down, and they compute as much as ever; the scale is searched for with which this share of single
drafts is right, once for the likeliest tokens and once for tokens that are drawn at temperature 1.  Target and drafter
are on a native worker each, with one thread.  Each round asks for the same texts in turn without a drafter, with it and
with a stranger, which has other random weights and is never right; the tokens have to be the same.  Given are medians
of tokens per second, medians of the rounds' ratios, and the share of drafts that were right of those that were judged.
The second ratio is that of the processor time of all processes, which others on the machine disturb less.  Drafts and
steps that check them take turns, so on a machine with nothing else to do both are about the same.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from support.cases.language import gpt2_folder
from support.processes.worker_process import children

import mesh
from mesh.inference import Generating, Sampling
from mesh.inference.drafting import Drafter
from mesh.models.safetensors import load_safetensors, save_safetensors

VOCABULARY, POSITIONS, PROMPT = 4096, 512, 16
KV_BYTES = 64 << 20
SEARCHES = 6
WEIGHTS = "model.safetensors"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--agreement", type=float, default=0.8)
    parser.add_argument("--drafts", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(asked, Path(folder)))


async def measure(asked: argparse.Namespace, folder: Path) -> None:
    size = {"vocabulary": VOCABULARY, "heads": 12, "positions": POSITIONS, "width": asked.width}
    stranger = mesh.load(gpt2_folder(folder / "stranger", layers=1, seed=9, **size))
    print(
        f"{'':24}{'without':>9}{'drafter':>9}{'ratio':>7}{'time':>6}{'right':>7}{'stranger':>10}{'ratio':>7}{'time':>6}"
    )
    for how, said in ((Sampling(), "greedy"), (Sampling(1.0), "drawn")):
        async with await mesh.AsyncMesh.builder().local(2, engine="native", threads=1).build_async() as own:
            pids = [node.pid for node in await own.nodes()]
            places = [mesh.DeviceMap().layer("", node.name).text for node in await own.nodes()]
            target, drafter = await tuned(asked, folder, how, own, places)
            for texts in (1, 4):
                batches = [
                    batch_of(own, places, target, model, texts, asked.drafts) for model in (None, drafter, stranger)
                ]
                rounds = [
                    await one_round(batches, asked.tokens, texts, how, seed, pids) for seed in range(asked.rounds + 2)
                ]
                right = batches[1]._drafter.speculation.agreement.share
                report(f"{texts} at once, {said}", rounds[2:], right)
                for batch in batches:
                    await batch.close()


def batch_of(
    own: mesh.AsyncMesh, places: list[str], target: mesh.Model, draft: mesh.Model | None, texts: int, drafts: int,
    adaptive: bool = True,
) -> Any:  # fmt: skip
    drafter = None
    if draft is not None:
        drafter = Drafter(own, draft, drafts, slots=texts, strategy=places[1], kv_bytes=KV_BYTES, adaptive=adaptive)
    return Generating(own, target, slots=texts, strategy=places[0], kv_bytes=KV_BYTES, drafter=drafter)


async def tuned(
    asked: argparse.Namespace, folder: Path, how: Sampling, own: mesh.AsyncMesh, places: list[str]
) -> tuple[mesh.Model, mesh.Model]:
    """A target, and a drafter that is right as often as is asked for."""
    size = {"vocabulary": VOCABULARY, "heads": 12, "positions": POSITIONS, "width": asked.width}
    whole = gpt2_folder(folder / "target", layers=asked.layers, **size)
    first = gpt2_folder(folder / "drafter", layers=1, **size)
    weights = {name: np.array(array) for name, array in load_safetensors(whole / WEIGHTS, mmap=False).items()}
    save_safetensors({name: weights[name] for name in load_safetensors(first / WEIGHTS)}, folder / WEIGHTS)
    (folder / WEIGHTS).replace(first / WEIGHTS)
    later = {name: array for name, array in weights.items() if ".c_proj." in name and ".h.0." not in name}
    drafter, least, most = mesh.load(first), 1e-3, 1.0
    for _ in range(SEARCHES):
        scale = (least * most) ** 0.5
        target = mesh.load(whole).trained(weights | {name: array * np.float32(scale) for name, array in later.items()})
        batch = batch_of(own, places, target, drafter, 4, 1, adaptive=False)
        streams = [batch.begin(prompt_of(seed), 48, how.shifted(seed), ()) for seed in range(4)]
        await asyncio.gather(*(all_of(stream) for stream in streams))
        right = batch.accepted / max(batch.drafted, 1)
        await batch.close()
        least, most = (scale, most) if right > asked.agreement else (least, scale)
    sizes = [sum(array.size for array in model.weights.values()) / 1e6 for model in (target, drafter)]
    print(f"target {sizes[0]:.0f} M weights, drafter {sizes[1]:.0f} M, right in {right:.0%}", flush=True)
    return target, drafter


def prompt_of(seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, PROMPT).tolist()


async def one_round(
    batches: list[Generating], tokens: int, texts: int, how: Sampling, seed: int, pids: list[int]
) -> list[tuple[float, float]]:
    """Tokens per second of each batch, and per second of processor time, by turns in another order each round; all say
    the same."""
    rates, said = [(0.0, 0.0)] * len(batches), []
    for turn in range(len(batches)):
        place = (turn + seed) % len(batches)
        began_s, began_cpu_s = time.perf_counter(), processor_s(pids)
        streams = [
            batches[place].begin(prompt_of(100 * seed + text), tokens, how.shifted(seed + text), ())
            for text in range(texts)
        ]
        said.append(await asyncio.gather(*(all_of(stream) for stream in streams)))
        took_s, took_cpu_s = time.perf_counter() - began_s, processor_s(pids) - began_cpu_s
        rates[place] = texts * tokens / took_s, texts * tokens / took_cpu_s
    assert all(each == said[0] for each in said), "a drafter changed a text"
    return rates


async def all_of(stream: Any) -> list[int]:
    return [token async for token in stream]


def processor_s(pids: list[int]) -> float:
    """The processor time of this process, of workers and of their engine hosts, in seconds."""
    ticks = 0
    for pid in [*pids, *(child for daemon in pids for child in children(daemon))]:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def report(what: str, rounds: list[list[tuple[float, float]]], right: float) -> None:
    without, drafter, stranger = (statistics.median(rate for rate, _ in rates) for rates in zip(*rounds, strict=True))
    first, second = (
        [statistics.median(rates[place][kind] / rates[0][kind] for rates in rounds) for kind in (0, 1)]
        for place in (1, 2)
    )
    print(
        f"{what:24}{without:9.1f}{drafter:9.1f}{first[0]:7.2f}{first[1]:6.2f}{right:7.0%}"
        f"{stranger:10.1f}{second[0]:7.2f}{second[1]:6.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
