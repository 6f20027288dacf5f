"""Tokens per second of many streams at once: this project's server beside llama.cpp's, and transformers one by one.

    python bench/serve.py [--llama SERVER] [--torch PYTHON] [--kind F32] [--streams 32] [--prompt 64] [--tokens 64]

SERVER is llama.cpp's `llama-server`, PYTHON an interpreter that has torch and transformers.  All serve a small Llama of
the same random weights: the two servers the same GGUF file, with matrices of the kind F32 or Q8_0, and transformers the
floats, a text at a time.  Ours is `mesh-coord serve-model` with one worker process.  Everybody has the same number of
threads, and the clients are in this process.  Each round has new prompts, and asks each in turn, in another order.
With `--turns 2` or more a stream that is over asks anew, and answers have 0.4 to 1.6 times as many tokens: so some read
prompts while others go on, as under users who do not begin together.
Given are medians: tokens per second from the first request to the last token, those per second of the server's
processor time, which others on the machine disturb less, seconds to the first token, and the median ratios of the
rounds.  The share of texts that are the same, token by token, says that the weights are.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from support.cases.served_llama import Size, served_llama
from support.processes.commands import daemon, environment
from support.processes.worker_process import children

READY_S, ANSWER_S = 120.0, 600.0
ONE_BY_ONE = 4  # texts that transformers is asked for in a round


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama", default="", help="llama.cpp's llama-server")
    parser.add_argument("--torch", default="", help="an interpreter with torch and transformers")
    parser.add_argument("--kind", choices=("F32", "Q8_0"), default="F32")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--turns", type=int, default=1, help="texts that each stream asks for, one after the other")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    first = "give all of them real-time priority during a measurement, on a machine with much else to do"
    parser.add_argument("--first", action="store_true", help=first)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between two measurements")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        size = Size(layers=asked.layers, width=asked.width)
        file = served_llama(Path(folder) / "llama", size, asked.kind)
        print(f"Llama of {asked.layers} layers, width {asked.width}, {asked.kind}: {file.stat().st_size >> 20} MiB")
        peers: list[Server | OneByOne] = [stack.enter_context(ours(asked, file, Path(folder)))]
        if asked.llama:
            peers.append(stack.enter_context(llama_cpp(asked, file, Path(folder))))
        if asked.torch:
            peers.append(stack.enter_context(transformers(asked, file.parent)))
        rounds: list[list[Measured]] = []
        for number in range(asked.rounds + 1):
            rounds.append(one_round(asked, peers, size.vocabulary, number))
        report(peers, rounds[1:])  # the first one compiles, and reads the weights


@dataclass(frozen=True, slots=True)
class Text:
    """What a stream asks for: so many tokens behind a prompt."""

    prompt: list[int]
    tokens: int


@dataclass(frozen=True, slots=True)
class Measured:
    """What a server did in a round: tokens per second, per second of processor time, seconds to each stream's first
    token, and the tokens of each text as it says them."""

    rate: float
    processor_rate: float
    first_s: list[float]
    said: list[Any]


@dataclass(frozen=True, slots=True)
class Server:
    """A server of OpenAI's interface, and its process."""

    name: str
    url: str
    model: str
    pid: int

    def measure(self, streams: list[list[Text]]) -> Measured:
        began_cpu_s, began_s = processor_s(self.pid), time.perf_counter()
        heard = [each for stream in asyncio.run(self._all(streams)) for each in stream]
        took_s, took_cpu_s = time.perf_counter() - began_s, processor_s(self.pid) - began_cpu_s
        count = sum(text.tokens for stream in streams for text in stream)
        return Measured(count / took_s, count / took_cpu_s, [first for first, _ in heard], [said for _, said in heard])

    async def _all(self, streams: list[list[Text]]) -> list[list[tuple[float, str]]]:
        connector, limit = aiohttp.TCPConnector(limit=0, force_close=True), aiohttp.ClientTimeout(ANSWER_S)
        async with aiohttp.ClientSession(connector=connector, timeout=limit) as session:

            async def one(stream: list[Text]) -> list[tuple[float, str]]:
                return [await self._one(session, text.prompt, text.tokens) for text in stream]

            return await asyncio.gather(*(one(stream) for stream in streams))

    async def _one(self, session: aiohttp.ClientSession, prompt: list[int], tokens: int) -> tuple[float, str]:
        """The seconds to the first token, and the text."""
        body = {
            "model": self.model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True},
        }  # fmt: skip
        began_s, first_s, said, count = time.perf_counter(), 0.0, "", 0
        async with session.post(f"{self.url}/v1/completions", json=body) as answer:
            answer.raise_for_status()
            async for line in answer.content:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                first_s = first_s or time.perf_counter() - began_s
                said += "".join(choice["text"] for choice in event["choices"])
                count = (event.get("usage") or {}).get("completion_tokens", count)
        assert count == tokens, f"{self.name} said {count} tokens of {tokens}"
        return first_s, said


@dataclass(frozen=True, slots=True)
class OneByOne:
    """`transformers.generate` in a process of its own, which reads prompts and tells what it did, a line each."""

    name: str
    process: subprocess.Popen[str]

    @property
    def pid(self) -> int:
        return self.process.pid

    def measure(self, streams: list[list[Text]]) -> Measured:
        assert self.process.stdin is not None and self.process.stdout is not None
        texts = [asdict(text) for stream in streams for text in stream][:ONE_BY_ONE]
        began_cpu_s = processor_s(self.pid)
        print(json.dumps(texts), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        assert line, "transformers failed"
        told, took_cpu_s = json.loads(line), processor_s(self.pid) - began_cpu_s
        count = sum(text["tokens"] for text in texts)
        return Measured(count / told["seconds"], count / took_cpu_s, [], told["said"])


@contextmanager
def ours(asked: argparse.Namespace, file: Path, folder: Path) -> Iterator[Server]:
    arguments = (
        "serve-model", f"llama={file}", "--port", "0", "--local", "1", "--engine", "native",
        "--max-batch", str(asked.streams),
    )  # fmt: skip
    with daemon("coord", *arguments, env=environment(folder), log=folder / "log") as started:
        yield Server("graph-mesh", started.ready["url"], "llama", started.process.pid)


@contextmanager
def llama_cpp(asked: argparse.Namespace, file: Path, folder: Path) -> Iterator[Server]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    context = str(asked.streams * (asked.prompt + 2 * asked.tokens + 64))
    command = [
        asked.llama, "--model", str(file), "--host", "127.0.0.1", "--port", port, "--parallel", str(asked.streams),
        "--ctx-size", context, "--threads", str(asked.threads), "--threads-batch", str(asked.threads),
    ]  # fmt: skip
    with (folder / "llama.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        url, until_s = f"http://127.0.0.1:{port}", time.monotonic() + READY_S
        while not asyncio.run(is_ready(url)):
            assert process.poll() is None and time.monotonic() < until_s, (folder / "llama.log").read_text()[-2000:]
            time.sleep(0.2)
        yield Server("llama.cpp", url, "llama", process.pid)
    finally:
        process.kill()
        process.wait()


async def is_ready(url: str) -> bool:
    async with aiohttp.ClientSession() as session:
        try:
            async with session.get(f"{url}/health") as answer:
                return answer.status == 200
        except aiohttp.ClientConnectionError:
            return False


@contextmanager
def transformers(asked: argparse.Namespace, folder: Path) -> Iterator[OneByOne]:
    command = [asked.torch, str(Path(__file__).with_name("serve_torch.py")), str(folder), str(asked.threads)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield OneByOne("transformers", process)
    finally:
        process.kill()
        process.wait()


def one_round(
    asked: argparse.Namespace, peers: list[Server | OneByOne], vocabulary: int, number: int
) -> list[Measured]:
    """What each did, by turns in another order each round."""
    rng = np.random.default_rng(number)

    def text() -> Text:
        share = rng.uniform(0.4, 1.6) if asked.turns > 1 else 1.0
        return Text(rng.integers(1, vocabulary, asked.prompt).tolist(), round(share * asked.tokens))

    streams = [[text() for _ in range(asked.turns)] for _ in range(asked.streams)]
    found: dict[int, Measured] = {}
    for turn in range(len(peers)):
        place = (turn + number) % len(peers)
        with undisturbed(peers[place].pid) if asked.first else nullcontext():
            found[place] = peers[place].measure(streams)
        time.sleep(asked.pause)
    return [found[place] for place in range(len(peers))]


@contextmanager
def undisturbed(pid: int) -> Iterator[None]:
    """Give the threads of this process, of another one, and of those that it started, priority over all else."""

    def set_all(policy: int, priority: int) -> None:
        for each in (os.getpid(), *tree(pid)):
            for thread in Path(f"/proc/{each}/task").iterdir():
                os.sched_setscheduler(int(thread.name), policy, os.sched_param(priority))

    set_all(os.SCHED_RR, 1)
    try:
        yield
    finally:
        set_all(os.SCHED_OTHER, 0)


def tree(pid: int) -> list[int]:
    """A process and those that it started."""
    return [pid, *(below for child in children(pid) for below in tree(child))]


def processor_s(pid: int) -> float:
    """The processor time of a process and of those that it started, in seconds."""
    ticks = 0
    for each in tree(pid):
        fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def report(peers: list[Server | OneByOne], rounds: list[list[Measured]]) -> None:
    print(f"{'':14}{'tokens/s':>9}{'ours/its':>9}{'of cpu':>8}{'ours/its':>9}{'first token':>13}{'p95':>7}{'same':>6}")
    for place, peer in enumerate(peers):
        its, ours = [each[place] for each in rounds], [each[0] for each in rounds]
        first = [seconds for each in its for seconds in each.first_s]
        same = [a == b for one, own in zip(its, ours, strict=True) for a, b in zip(one.said, own.said, strict=False)]
        figures = (
            statistics.median(each.rate for each in its),
            statistics.median(own.rate / each.rate for own, each in zip(ours, its, strict=True)),
            statistics.median(each.processor_rate for each in its),
            statistics.median(own.processor_rate / each.processor_rate for own, each in zip(ours, its, strict=True)),
        )
        waits = f"{np.median(first):11.2f} s{np.percentile(first, 95):6.2f}" if first else f"{'':19}"
        print(f"{peer.name:14}{figures[0]:9.1f}{figures[1]:9.2f}{figures[2]:8.1f}{figures[3]:9.2f}{waits}"
              f"{statistics.mean(same):6.0%}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
