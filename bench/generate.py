"""Tokens per second of a small random GPT-2: in this process, on one worker, over three stages, and by torch.

    python bench/generate.py [--torch PYTHON] [--layers 6] [--width 384] [--tokens 128]

PYTHON is an interpreter that has torch and transformers; what it says, greedily, has to be the same tokens.  Everybody
has one thread (each worker its own).  One text at a time, and eight at once; the time is that of the tokens after the
first, the median of three runs.  Over three stages also eight texts in three running batches, which keep all stages
busy.  Beside it: what it costs the stream when a stage is killed in the middle; the tokens have to be the same.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from support.cases.language import gpt2_folder

import mesh
from mesh import InferenceServer, Mesh
from mesh.backends.config import MeshConfig

VOCABULARY, HEADS, POSITIONS = 4096, 6, 512
BATCH = 8
PROMPT = 16
RUNS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", default="", help="an interpreter with torch and transformers")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--tokens", type=int, default=128)
    asked = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    prompts = np.random.default_rng(1).integers(0, VOCABULARY, (BATCH, PROMPT)).tolist()
    with tempfile.TemporaryDirectory() as folder:
        size = {"vocabulary": VOCABULARY, "heads": HEADS, "positions": POSITIONS}
        model = mesh.load(gpt2_folder(Path(folder), width=asked.width, layers=asked.layers, **size))
        weights = sum(array.size for array in model.weights.values()) / 1e6
        print(f"GPT-2 of {asked.layers} layers, width {asked.width}: {weights:.1f} M weights; {asked.tokens} tokens")
        with Mesh(MeshConfig()) as here:
            said = measure("this process", here, model, prompts, asked.tokens)
        with Mesh.builder().local(1, engine="native", threads=1).build() as one:
            assert measure("one worker", one, model, prompts, asked.tokens) == said
        with Mesh.builder().local(3, engine="native", threads=1).build() as three:
            assert measure("three stages", three, model, prompts, asked.tokens, "pipeline") == said
            assert measure("three stages", three, model, prompts, asked.tokens, "pipeline", batches=3) == said
            assert killed(three, model, prompts[0], asked.tokens) == said[0]
        if asked.torch:
            assert by_torch(asked.torch, folder, prompts, asked.tokens) == said, "torch says something else"
            print("all say the same tokens")


def measure(
    what: str, where: Mesh, model: mesh.Model, prompts: Any, tokens: int, strategy: str = "auto", batches: int = 1
) -> Any:
    """Tokens per second of one text and of all; what they say.  With several `batches`, of which one is at the last
    stage while another is at the first, of all alone."""
    said: list[list[int]] = []
    for count in (1, len(prompts)) if batches == 1 else (len(prompts),):
        rates = []
        with InferenceServer(where) as server:
            server.load_model(
                "gpt2", model, max_batch=-(-count // batches), replicas=batches, strategy=strategy, chunk=PROMPT
            )
            for _ in range(RUNS):
                said, rate = one_run(where, server, prompts[:count], tokens)
                rates.append(rate)
        report(f"{what}, {count} at once{f' in {batches} batches' if batches > 1 else ''}", statistics.median(rates))
    return said


def one_run(where: Mesh, server: InferenceServer, prompts: Any, tokens: int) -> tuple[list[list[int]], float]:
    """What is said, and the tokens per second after the first token of the last text to begin."""
    replies = [server.generate("gpt2", prompt, max_new_tokens=tokens, stream=True) for prompt in prompts]
    said = [[next(reply)] for reply in replies]
    began_s = time.perf_counter()
    for one, reply in zip(said, replies, strict=True):
        one += list(reply)
    took_s = time.perf_counter() - began_s
    return said, len(prompts) * (tokens - 1) / took_s


def killed(where: Mesh, model: mesh.Model, prompt: list[int], tokens: int) -> list[int]:
    """A text one of whose stages is killed in the middle: the longest pause, beside the usual one."""
    pids = [node.pid for node in where.nodes]
    with InferenceServer(where) as server:
        server.load_model("gpt2", model, max_batch=1, strategy="pipeline", chunk=PROMPT)
        said, at_s = [], [time.perf_counter()]
        for token in server.generate("gpt2", prompt, max_new_tokens=tokens, stream=True):
            said.append(token)
            at_s.append(time.perf_counter())
            if len(said) == tokens // 2:
                os.kill(pids[1], signal.SIGKILL)
    pauses = np.diff(at_s)[1:]
    usual_ms, longest_ms = np.median(pauses) * 1e3, pauses.max() * 1e3
    print(f"{'a stage killed in the middle':38} {longest_ms:8.0f} ms pause, {usual_ms:.1f} ms between tokens")
    return said


def by_torch(python: str, folder: str, prompts: Any, tokens: int) -> Any:
    """The same by transformers, in a process of its own."""
    script = Path(__file__).with_name("generate_torch.py")
    asked = json.dumps({"folder": folder, "prompts": prompts, "tokens": tokens, "runs": RUNS})
    found = subprocess.run([python, str(script)], input=asked, capture_output=True, text=True, check=False)
    if found.returncode:
        raise SystemExit(found.stderr)
    answer = json.loads(found.stdout.splitlines()[-1])
    for count, rate in answer["rates"].items():
        report(f"torch, {count} at once", rate)
    return answer["said"]


def report(what: str, rate: float) -> None:
    print(f"{what:38} {rate:8.1f} tokens/s", flush=True)


if __name__ == "__main__":
    main()
