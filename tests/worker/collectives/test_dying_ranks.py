"""A rank dies in each phase of an all-reduce: the others hear who it was, and do the step again without it.

A thread that says no more stands for a process that was killed; the others see that it ended, as they do of a process.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from support.ranks import channels_in_memory

from wire.errors import MeshError, NodeLost
from worker.collectives.channels import Channels
from worker.collectives.group import Group

COUNT = 24  # elements: a message of each region for up to 4 ranks


class Killed(Exception):
    """The rank's process ended."""


def dies_after(channels: Channels, messages: int) -> None:
    """The next message after so many is never sent, nor anything else."""
    left = [messages]
    for channel in channels.peers.values():
        channel.writer.publish = _counted(channel.writer.publish, left)  # type: ignore[method-assign]


def _counted(publish: Any, left: list[int]) -> Any:
    def counted(*args: Any) -> None:
        if left[0] == 0:
            raise Killed
        left[0] -= 1
        publish(*args)

    return counted


def reduced(channels: list[Channels], ranks: list[int], arrays: list[Any], algorithm: str, tag: int) -> dict[int, Any]:
    """What each of these ranks has or hears."""
    results: dict[int, Any] = {}

    def work(rank: int) -> None:
        channels[rank].begin(tag, lambda: False)
        try:
            group = Group(channels[rank], ranks, ranks.index(rank), algorithm=algorithm)
            results[rank] = group.all_reduce(arrays[rank].copy())
        except Killed as end:
            results[rank] = end
            for other in ranks:
                if other != rank:
                    channels[other].peers[rank].alive = lambda: False
        except MeshError as error:
            results[rank] = error
            channels[rank].fail(error)

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert results.keys() == set(ranks), "ranks wait for the dead"
    return results


@pytest.mark.parametrize("algorithm", ["ring", "direct", "exchange"])
@pytest.mark.parametrize("n", [3, 4])
def test_a_rank_that_dies_in_any_phase_is_named_and_the_step_is_done_without_it(n: int, algorithm: str) -> None:
    arrays = [np.arange(COUNT, dtype=np.float32) * (rank + 1) for rank in range(n)]
    before = [array.copy() for array in arrays]
    phases = {"ring": 2 * (n - 1), "direct": 2 * (n - 1), "exchange": n - 1}[algorithm]
    for dead in range(n):
        for phase in range(phases):
            channels = channels_in_memory(n)
            for rank in range(n):
                for other, channel in channels[rank].peers.items():
                    channel.name = f"worker-{other}"
            dies_after(channels[dead], phase)
            actual = reduced(channels, list(range(n)), arrays, algorithm, tag=1)
            assert isinstance(actual.pop(dead), Killed), f"{algorithm} has no phase {phase}"
            lost = [result for result in actual.values() if isinstance(result, NodeLost)]
            done = [result for result in actual.values() if not isinstance(result, MeshError)]
            assert lost, "somebody must have waited for what never came"
            assert len(lost) + len(done) == n - 1
            assert all(f"rank {dead} (worker-{dead})" in str(error) or f"worker-{dead}" in str(error) for error in lost)
            for result in done:  # it had all it needed before
                np.testing.assert_array_equal(result, np.sum(before, axis=0))
            assert all(np.array_equal(array, was) for array, was in zip(arrays, before, strict=True)), "given as it was"
            left = [rank for rank in range(n) if rank != dead]
            again = reduced(channels, left, arrays, algorithm, tag=2)
            for result in again.values():
                np.testing.assert_array_equal(result, sum(before[rank] for rank in left))
