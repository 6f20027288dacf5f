"""Ranks of scripts as threads of this process, each with ring buffers of its own."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mesh.scripts.group import Group, Neighbours
from mesh.scripts.listening_ports import Door
from mesh.scripts.rank_certificates import issue, keep, passport
from mesh.scripts.rendezvous import Meeting, Note
from wire.system.shared_memory import SharedDir

LONG_S = 100.0


def as_ranks(
    n: int, folder: Path, body: Callable[[Group], Any], timeout_s: float = LONG_S, hosts: Sequence[str] = ()
) -> list[Any]:
    """What `body(world)` gives or raises on each of n ranks, on `hosts` that share nothing but their notes."""
    results: list[Any] = [None] * n
    for host, texts in issue(hosts, time.time()).items():
        (folder / host).mkdir()
        keep(texts, folder / host)

    def work(rank: int) -> None:
        host = hosts[rank] if hosts else ""
        own, meeting, notes = SharedDir.create(folder), Meeting(folder, rank, host), dict[int, Note]()
        door = Door(passport(folder / host), hosts, rank) if hosts else None

        def meet() -> None:
            where = (("127.0.0.1",), door.port) if door is not None else ()
            notes.update(meeting.meet(Note(str(own.path), host, *where), set(range(n)) - {rank}, LONG_S))

        with contextlib.closing(own):
            world = None
            try:
                world = Group("world", range(n), rank, Neighbours(own, meeting, notes, hosts, door), timeout_s, meet)
                results[rank] = body(world)
            except Exception as error:
                results[rank] = error
            if world is not None:
                world.close()
            if door is not None:
                door.close()

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S)
    assert not any(thread.is_alive() for thread in threads), "ranks wait for each other"
    return results
