"""The demo: a real model over three workers, one of which is killed on the way.

It embeds this project's documents with all-MiniLM-L6-v2, cut across three worker processes, kills one of them with
SIGKILL in the middle, tells what happens, finishes, and answers a search.  Weights and kernels stay in the workers'
caches, so that a second start sends and compiles nothing.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from platformdirs import user_cache_path
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from coordinator.workers.failure_detector import HealthConfig
from wire.protocol.engine_names import ON_CPU
from wire.timeouts import DEFAULT_TIMEOUTS, Timeouts
from worker.devices.registry import PROCESSOR, list_devices

from ..client.mesh import Mesh
from ..client.report import Report
from ..core.node import Node
from ..importers.minilm import WIDTH, Batch, batches, embed_batches, encode, load_model
from ..util.units import counted, size_text, time_text
from .passages import Passage, passages

QUESTION = "What happens when a worker dies?"
ANSWERS = 3
KILL_AT = 0.4  # of the batches
CHAPTERS = ("dead", "planned", "began")  # the story is over when a part began on a survivor
TOLD = ("suspect", "dead", "healthy", "stuck", "unstuck", "planned", "deployed", "began")


def show(
    question: str | None = None,
    cache_dir: Path | None = None,
    timeouts: Timeouts = DEFAULT_TIMEOUTS,
    documents: Sequence[str] = (),
) -> int:
    """Run the demo; `question` None: asked on a terminal, a sample elsewhere; `documents`: those to search,
    () all.  Returns the exit code."""
    console = Console(highlight=False, soft_wrap=True)
    texts = passages(documents)
    work = batches([passage.text for passage in texts])
    model = load_model()
    engines = _engines(console)
    console.print(f"Starting three workers: {', '.join(engines)}.")
    builder = Mesh.builder().timeouts(**asdict(timeouts)).mesh(f"demo-{os.getpid()}")
    console.print(f"{HealthConfig(timeouts.node_timeout_s).describe()}.")
    with builder.local(3, engines, cache_dir or user_cache_path("graph-mesh") / "demo").build() as mesh:
        for node in mesh.nodes:
            console.print(f"  {node.name}  {node.engine}  {node.adapter}  {node.gflops:.1f} GFLOP/s  pid {node.pid}")
        held = mesh.put(model)
        console.print("\nThe plan for 16 passages at a time (all-MiniLM-L6-v2, 22.7 million weights):")
        plan = mesh.plan(encode, held, work[0].ids, work[0].mask, strategy="pipeline")
        console.print(str(plan), markup=False)
        victim = _victim(mesh.nodes, plan.workers)
        embeddings = _embed(console, mesh, held, work, len(texts), victim)
        _answer(console, mesh, held, texts, embeddings, question)
    return 0


class _Story:
    """Prints what the mesh tells from the kill until a part runs again, with seconds since it; on the mesh's thread."""

    def __init__(self, console: Console) -> None:
        self.killed_s: float | None = None
        self._console = console
        self._waiting_for = list(CHAPTERS)
        self._lock = threading.Lock()

    def kill(self, victim: Node) -> None:
        with self._lock:
            self.killed_s = time.monotonic()
            os.kill(victim.pid, getattr(signal, "SIGKILL", signal.SIGTERM))
        self._console.print(f"  0.000 s  kill -9 {victim.pid}: {victim.name} is gone", style="bold red")

    def tell(self, event: Mapping[str, Any]) -> None:
        with self._lock:
            if self.killed_s is None or not self._waiting_for or event["kind"] not in TOLD:
                return
            after_s = time.monotonic() - self.killed_s
        if event["kind"] == "began" and self._waiting_for != ["began"]:
            return  # a call that was in flight on a survivor
        if event["kind"] == self._waiting_for[0]:
            del self._waiting_for[0]
        where = f" {event['node']}" if event["node"] else ""
        self._console.print(f"  {after_s:.3f} s  {event['kind']}{where}: {event['text']}", markup=False)


def _engines(console: Console) -> list[str]:
    """One wgsl worker where there is an adapter, the processor for the rest."""
    adapters = [row for row in list_devices() if row.engine == "wgsl"]
    if not adapters:
        console.print("No WebGPU adapter on this machine: all three workers compute on the processor.")
    return ["wgsl" if adapters else PROCESSOR, PROCESSOR, PROCESSOR]


def _victim(nodes: Sequence[Node], working: Sequence[str]) -> Node:
    """The last worker of the plan that computes on the processor: one that has work, and not the adapter."""
    return [node for node in nodes if node.name in working and node.engine in ON_CPU][-1]


def _embed(
    console: Console, mesh: Mesh, model: Any, work: Sequence[Batch], count: int, victim: Node
) -> NDArray[np.float32]:
    """Every passage's embedding, float32 (count, 384), with `victim` killed on the way."""
    story = _Story(console)
    mesh.watch(story.tell)
    embeddings = np.zeros((count, WIDTH), np.float32)
    reports: list[Report] = []
    began_s = time.monotonic()
    console.print(f"\nEmbedding {counted(count, 'passage')} in {len(work)} batches:")
    with ExitStack() as stack:
        advance = _progress(stack, console, count)
        for number, done in enumerate(embed_batches(mesh, model, work, "pipeline"), 1):
            embeddings[list(done.batch.places)] = done.rows
            reports.append(done.report)
            advance(len(done.batch.places))
            if story.killed_s is None and number >= KILL_AT * len(work):
                before = _weights(reports)
                console.print(f"  weights and kernels at the start: {before}")
                reports.clear()
                story.kill(victim)
    seconds = time.monotonic() - began_s
    console.print(f"  weights and kernels after the kill: {_weights(reports)}")
    for name, worker in sorted(reports[-1].workers.items()):
        engines = ", ".join(sorted({part.engine for part in worker.parts}))
        console.print(f"  the rest ran on {name} ({engines}): {counted(len(worker.parts), 'part')}")
    console.print(f"{counted(count, 'passage')} in {time_text(seconds)}, none lost.")
    return embeddings


def _progress(stack: ExitStack, console: Console, count: int) -> Any:
    """How to tell progress: a bar on a terminal, a line per tenth elsewhere."""
    if console.is_terminal:
        columns = TextColumn("  embedding"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        progress = stack.enter_context(Progress(*columns, console=console))
        task: TaskID = progress.add_task("embedding", total=count)
        return lambda steps: progress.advance(task, steps)
    done = 0

    def advance(steps: int) -> None:
        nonlocal done
        before, done = done, done + steps
        if before * 10 // count != done * 10 // count:
            console.print(f"  {done:,} of {counted(count, 'passage')}")

    return advance


def _weights(reports: Sequence[Report]) -> str:
    """The origin of some calls' weights and kernels."""
    workers = [worker for report in reports for worker in report.workers.values()]
    moved = sum(worker.weight_bytes["socket"] + worker.weight_bytes["shared"] for worker in workers)
    disk = sum(worker.weight_bytes["disk"] for worker in workers)
    compiled = sum(worker.kernels_compiled for worker in workers)
    cached = sum(worker.kernels_cached for worker in workers)
    kernels = f"{counted(compiled, 'kernel')} compiled, {cached} from a cache"
    return f"{size_text(moved)} sent to workers, {size_text(disk)} from their disks; {kernels}"


def _answer(
    console: Console,
    mesh: Mesh,
    model: Any,
    texts: Sequence[Passage],
    embeddings: NDArray[np.float32],
    asked: str | None,
) -> None:
    """Semantic search: the passages nearest to the question by cosine similarity."""
    question = asked or _ask(console)
    (done,) = embed_batches(mesh, model, batches([question]), "pipeline")
    scores = embeddings @ done.rows[0]
    console.print(f"\nSearch: {question}", style="bold", markup=False)
    for place in np.argsort(-scores)[:ANSWERS].tolist():
        console.print(f"  {scores[place]:.3f}  {texts[place].source}: {texts[place].text}", markup=False)


def _ask(console: Console) -> str:
    if not sys.stdin.isatty():
        return QUESTION
    try:
        return console.input(f"\nWhat do you want to know? [dim]({QUESTION})[/] ").strip() or QUESTION
    except EOFError:
        return QUESTION
