"""What an engine host tells of a part: reading back, packing, and bytes to other ranks, whichever way they go."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.part_costs import part_costs
from support.ranks import channels_in_memory, connect, on_channels

from mesh.simulation.throttled_engine import ThrottledEngine
from worker.collectives.rank import RankCollectives
from worker.cpu.engine import CpuEngine
from worker.engine.protocol import never

X = np.arange(1 << 15, dtype=np.float32)


class ReadingEngine(CpuEngine):
    """Says that each run reads back for so long."""

    readback_s = 3.0

    def run(self, *arguments: Any) -> Any:
        self.readback_s += 0.25
        return super().run(*arguments)


@pytest.mark.parametrize(
    ("engine", "read_s"),
    [(CpuEngine(), 0.0), (ReadingEngine(), 0.25), (ThrottledEngine(ReadingEngine(), 1e15), 0.25)],
    ids=["cpu", "reading", "throttled"],
)
def test_a_part_tells_its_reading_and_packing(engine: Any, read_s: float, tmp_path: Path) -> None:
    costs, output = part_costs(engine, tmp_path, X)
    assert np.array_equal(output, -X)
    assert costs.readback_s == read_s and costs.encode_s > 0
    assert (costs.exchange_s, costs.sent_bytes) == (0.0, 0)


def summed(group: Any, rank: int) -> int:
    group.all_reduce(X)
    return int(group.channels.sent_bytes)


@pytest.mark.parametrize("pairs", [(), ((0, 1),), ((0, 1), (0, 2), (1, 2))], ids=["rings", "both", "connections"])
def test_bytes_to_other_ranks_are_those_of_an_all_reduce_whichever_way_they_go(pairs: Any) -> None:
    channels = channels_in_memory(3)
    connect(channels, pairs)
    assert sum(on_channels(channels, summed, algorithm="ring")) == 2 * 2 * X.nbytes


@pytest.mark.parametrize("meanwhile", [False, True])
def test_a_step_tells_what_it_sent_and_what_it_packed_while_it_waited(meanwhile: bool) -> None:
    channels, costs = channels_in_memory(2), [(0.0, 0.0, 0)] * 2

    def work(rank: int) -> None:
        ranks = RankCollectives(channels[rank], ("dp",), (2,), rank)
        for tag in (1, 2):
            ranks.begin(tag, never)
            assert ranks.costs == (0.0, 0.0, 0)
            pending = ranks.start("all_reduce", {"axes": ("dp",), "reduction": "sum"}, X, meanwhile)
            while meanwhile and not pending.done:
                time.sleep(0.001)
            assert np.array_equal(pending.result(), 2 * X)
            ranks.end()
            costs[rank] = ranks.costs

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for waited_s, copy_s, sent_bytes in costs:
        assert sent_bytes == X.nbytes
        assert copy_s == 0.0 if meanwhile else 0.0 < copy_s <= waited_s
