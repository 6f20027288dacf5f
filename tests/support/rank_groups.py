"""Ranks of scripts as threads of this process, each with mailboxes of its own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mesh.scripts.group import Group, Neighbours
from mesh.scripts.meeting import Meeting
from wire.sharedmem import SharedDir

LONG_S = 100.0


def as_ranks(n: int, folder: Path, body: Callable[[Group], Any], timeout_s: float = LONG_S) -> list[Any]:
    """What `body(world)` gives or raises on each of n ranks."""
    results: list[Any] = [None] * n

    def work(rank: int) -> None:
        own, meeting, found = SharedDir.create(folder), Meeting(folder, rank), dict[int, Path]()

        def meet() -> None:
            meeting.come(own)
            found.update(meeting.others(set(range(n)) - {rank}, LONG_S))

        with contextlib.closing(own):
            try:
                results[rank] = body(Group("world", range(n), rank, Neighbours(own, found, {}), timeout_s, meet))
            except Exception as error:
                results[rank] = error

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S)
    assert not any(thread.is_alive() for thread in threads), "ranks wait for each other"
    return results
