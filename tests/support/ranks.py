"""Ranks of a group: as threads of this process, or each as a process of its own, over mailboxes in memory or files."""

from __future__ import annotations

import mmap
import multiprocessing
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from worker.collectives.group import Group, Wire, Wires
from worker.collectives.mailbox import LETTER_BYTES, LETTERS, Inbox, Outbox, Patience, lay_out, short_sleeps, size_of

Body = Callable[..., Any]  # (group, *arguments), at module level where ranks are processes


def in_threads(n: int, body: Body, letters: int = 4, letter_bytes: int = 256, tag: int = 1, **how: Any) -> list[Any]:
    """What `body(group, rank)` gives or raises on every rank; mailboxes are small, so that they fill."""
    wires = wires_in_memory(n, letters, letter_bytes)
    return on_wires(wires, body, tag, **how)


def wires_in_memory(n: int, letters: int = 4, letter_bytes: int = 256) -> list[Wires]:
    """Each rank's mailboxes."""
    boxes = {(i, j): mailbox(letters, letter_bytes) for i in range(n) for j in range(n) if i != j}
    return [
        Wires(
            {other: Wire(Outbox(boxes[rank, other]), Inbox(boxes[other, rank])) for other in range(n) if other != rank},
            patience=Patience(0),
            letter_bytes=letter_bytes,
        )
        for rank in range(n)
    ]


def on_wires(wires: Sequence[Wires], body: Body, tag: int = 1, **how: Any) -> list[Any]:
    """The same on mailboxes that may have been used before."""
    results: list[Any] = [None] * len(wires)

    def work(rank: int) -> None:
        wires[rank].begin(tag, lambda: False)
        try:
            results[rank] = body(Group(wires[rank], range(len(wires)), rank, **how), rank)
        except Exception as error:
            results[rank] = error
            if hasattr(error, "to_fields"):
                wires[rank].fail(error)

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(len(wires))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert not any(thread.is_alive() for thread in threads), "ranks wait for each other"
    return results


def mailbox(letters: int, letter_bytes: int) -> memoryview:
    """An empty mailbox in this process."""
    buffer = memoryview(mmap.mmap(-1, size_of(letters, letter_bytes)))
    lay_out(buffer, letters, letter_bytes)
    return buffer


class Processes:
    """n ranks, each a process, over mailboxes that are files in `folder`; `ask` has all of them run a function."""

    def __init__(self, n: int, folder: Path, letters: int = LETTERS, letter_bytes: int = LETTER_BYTES) -> None:
        paths = {}
        for pair in ((i, j) for i in range(n) for j in range(n) if i != j):
            paths[pair] = folder / f"{pair[0]}-{pair[1]}"
            with open(paths[pair], "wb") as file:
                file.truncate(size_of(letters, letter_bytes))
            lay_out(mapped(paths[pair]), letters, letter_bytes)
        context = multiprocessing.get_context("spawn")
        pairs = [context.Pipe() for _ in range(n)]
        self._pipes = [ours for ours, _ in pairs]
        self.processes = [
            context.Process(target=_serve, args=(rank, n, paths, theirs, letter_bytes), daemon=True)
            for rank, (_, theirs) in enumerate(pairs)
        ]
        for process in self.processes:
            process.start()

    def begin(self, body: Body, *arguments: Any, ranks: Sequence[int] | None = None) -> None:
        """Have the ranks (all if None) run `body(group, *arguments)`."""
        for rank in range(len(self._pipes)) if ranks is None else ranks:
            self._pipes[rank].send((body, arguments))

    def results(self, ranks: Sequence[int] | None = None) -> list[Any]:
        """What came of it: what was returned, or a MeshError."""
        return [self._pipes[rank].recv() for rank in (range(len(self._pipes)) if ranks is None else ranks)]

    def ask(self, body: Body, *arguments: Any) -> list[Any]:
        """Both."""
        self.begin(body, *arguments)
        return self.results()

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self.processes:
            process.join(10.0)
            process.kill()


def mapped(path: Path) -> memoryview:
    """A file as writable memory."""
    with open(path, "r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), 0))


def _serve(rank: int, n: int, paths: dict[tuple[int, int], Path], pipe: Connection, letter_bytes: int) -> None:
    short_sleeps()
    ends = {
        other: Wire(Outbox(mapped(paths[rank, other])), Inbox(mapped(paths[other, rank])))
        for other in range(n)
        if other != rank
    }
    wires, tag = Wires(ends, letter_bytes=letter_bytes), 0
    while True:
        try:
            body, arguments = pipe.recv()
        except EOFError:
            return
        tag += 1
        wires.begin(tag, lambda: False)
        try:
            pipe.send(body(Group(wires, range(n), rank), *arguments))
        except Exception as error:
            if hasattr(error, "to_fields"):
                wires.fail(error)
            pipe.send(error)
