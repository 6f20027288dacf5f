"""Collectives between real processes, over ring buffers that are files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from support.ranks import Processes

from wire.errors import DeadlineExceeded, ShapeError
from worker.collectives.group import Group


def many(group: Group, seed: int) -> list[bytes]:
    """The results of collectives of all kinds and sizes, in an order that all ranks draw alike."""
    shared, own = np.random.default_rng(seed), np.random.default_rng([seed, group.rank])
    results = []
    for size in (0, 1, 17, 4096, 70_001, 300_000, *shared.integers(0, 5000, 30)):
        array = own.standard_normal(int(size)).astype(np.float32)
        results.append(group.all_reduce(array).tobytes())
        results.append(group.all_gather(array).tobytes())
        results.append(group.broadcast_from(array, int(shared.integers(group.size))).tobytes())
    group.barrier()
    return results


def expected(n: int, seed: int) -> list[bytes]:
    shared, own = np.random.default_rng(seed), [np.random.default_rng([seed, rank]) for rank in range(n)]
    results = []
    for size in (0, 1, 17, 4096, 70_001, 300_000, *shared.integers(0, 5000, 30)):
        arrays = [each.standard_normal(int(size)).astype(np.float32) for each in own]
        total = arrays[0]
        for array in arrays[1:]:
            total = total + array
        root = int(shared.integers(n))
        results += [total.tobytes(), np.concatenate(arrays).tobytes(), arrays[root].tobytes()]
    return results


def differing(group: Group) -> None:
    group.all_reduce(np.zeros(3 + group.rank // 2, np.float32))


def waiting(group: Group, deadline_s: float) -> None:
    group.channels.deadline_s = deadline_s
    group.barrier()


def test_ranks_agree_to_the_bit_fail_together_and_outlive_the_death_of_one(tmp_path: Path) -> None:
    ranks = Processes(3, tmp_path, slots=3, slot_bytes=1 << 14)
    try:
        for seed in range(2):
            assert ranks.ask(many, seed) == [expected(3, seed)] * 3
        for result in ranks.ask(differing):
            assert isinstance(result, ShapeError)
            assert "f32[3]" in str(result) and "f32[4]" in str(result)
        assert ranks.ask(many, 7) == [expected(3, 7)] * 3
        ranks.processes[1].kill()
        ranks.begin(waiting, 3.0, ranks=(0, 2))  # one may begin that much later than the other
        results: list[Any] = ranks.results(ranks=(0, 2))
        assert all(isinstance(each, DeadlineExceeded) for each in results)
        assert any("rank 1" in str(each) for each in results)
    finally:
        ranks.close()
