"""Ranks that are run apart give the bits of the unrolled form, for all collectives and dtypes, also within loops."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.cases.spmd_cases import CASES, DTYPES
from support.rank_parts import by_ranks
from support.ranks import at_once, channels_in_memory

from coordinator.planning.model.profiles import Link, Profiles
from coordinator.planning.spmd.collective_cost import sending_rates
from wire.errors import Cancelled, OutOfMemory
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder, WireGraph
from wire.ir.types import Attrs
from wire.system.cores import core_count
from worker.collectives.algorithms import shares
from worker.collectives.open_channels import is_oversubscribed
from worker.collectives.rank import RankCollectives
from worker.cpu.engine import compile_graph, evaluate, run
from worker.engine.protocol import never

Array = NDArray[Any]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_ranks_apart_give_the_bits_of_the_unrolled_form(name: str, dtype: Any) -> None:
    for label, graph, given in CASES[name](dtype):
        if any(graph.nodes[index].op != "spmd" for index in graph.outputs):
            continue  # within a loop: not a part of its own
        for actual, expected in zip(by_ranks(graph, given), evaluate(graph, given), strict=True):
            assert actual.tobytes() == expected.tobytes(), label


def summed(count: int) -> WireGraph:
    """`count` sums over the axis "dp", none of which needs another, and then what needs them."""
    builder = GraphBuilder()
    x = builder.input("x", (4,), F32)
    sums = []
    for index in range(count):
        scaled = builder.add("mul", x, builder.const(np.full((4,), float(index + 1), np.float32)))
        sums.append(builder.add("all_reduce", scaled, axes=("dp",), sizes=(2,), reduction="sum"))
    return builder.build([builder.add("neg", total) for total in sums])


@dataclass
class StartedCollective:
    value: Array
    events: list[str]

    def result(self) -> Array:
        self.events.append("needed")
        return self.value


class RecordingCollectives:
    """Collectives of two ranks with the same values, which record when they are started and when they are needed."""

    def __init__(self, oversubscribed: bool = False) -> None:
        self.oversubscribed = oversubscribed
        self.events: list[str] = []

    def start(self, op: str, attrs: Any, operand: Array | None, meanwhile: bool = True) -> StartedCollective:
        assert operand is not None
        self.events.append("started" if meanwhile else "started at once")
        return StartedCollective(operand * (2 if op == "all_reduce" else 1), self.events)


def test_all_collectives_are_started_before_the_first_result_is_needed() -> None:
    collectives = RecordingCollectives()
    outputs = run(compile_graph(summed(3)), [np.ones(4, np.float32)], never, collectives)
    assert [float(output[0]) for output in outputs] == [-2, -4, -6]
    assert collectives.events == ["started"] * 3 + ["needed"] * 3
    alone = RecordingCollectives()
    run(compile_graph(summed(1)), [np.ones(4, np.float32)], never, alone)
    assert alone.events == ["started at once", "needed"]


def test_oversubscribed_ranks_move_themselves_what_nobody_waits_for_alone() -> None:
    collectives = RecordingCollectives(oversubscribed=True)
    run(compile_graph(summed(3)), [np.ones(4, np.float32)], never, collectives)
    assert collectives.events == ["started at once"] * 3 + ["needed"] * 3
    builder = GraphBuilder()
    sent = builder.add("permute", builder.input("x", (4,), F32), axes=("dp",), sizes=(2,), pairs=(0, 1))
    busy = builder.add("neg", builder.input("y", (4,), F32))
    sender = RecordingCollectives(oversubscribed=True)
    run(compile_graph(builder.build([sent, busy])), [np.ones(4, np.float32)] * 2, never, sender)
    assert sender.events == ["started", "needed"], "rank 1 waits for it"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="a process can be kept to some cores on Linux only")
def test_ranks_are_oversubscribed_where_they_have_fewer_than_two_cores_each() -> None:
    mine = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, sorted(mine)[:2])
        assert [is_oversubscribed(ranks) for ranks in (1, 2, 4)] == [core_count() < 2, True, True]
    finally:
        os.sched_setaffinity(0, mine)


def test_a_rank_that_fails_ends_its_own_collectives_and_those_of_all() -> None:
    channels = channels_in_memory(2)
    first, second = (RankCollectives(channels[rank], ("dp",), (2,), rank) for rank in range(2))
    first.begin(1, never)
    second.begin(1, never)
    executable, given = compile_graph(summed(3)), [np.ones(4, np.float32)]
    raised: list[BaseException] = []

    def work() -> None:
        try:
            run(executable, given, never, first)
        except OutOfMemory as error:
            raised.append(error)
            first.fail(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    second.fail(OutOfMemory("no room", node="b"))
    thread.join(60.0)
    assert not thread.is_alive()
    assert isinstance(raised[0], OutOfMemory)
    assert raised[0].node == "b"
    outputs: dict[int, list[Array]] = {}

    def again(rank: int, ranks: RankCollectives) -> None:
        ranks.begin(2, never)
        outputs[rank] = run(executable, given, never, ranks)
        ranks.end()

    threads = [threading.Thread(target=again, args=arguments, daemon=True) for arguments in enumerate((first, second))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert [[float(output[0]) for output in outputs[rank]] for rank in range(2)] == [[-2, -4, -6]] * 2


def test_a_part_that_is_stopped_stops_waiting() -> None:
    channels = channels_in_memory(2)
    ranks = RankCollectives(channels[0], ("dp",), (2,), 0)
    stopped = threading.Event()
    ranks.begin(1, stopped.is_set)
    pending = ranks.start("all_reduce", summed(1).nodes[-2].attrs, np.ones(4, np.float32))
    stopped.set()
    with pytest.raises(Cancelled):
        pending.result()
    ranks.fail(Cancelled("stopped"))


def test_ranks_on_unequal_links_combine_unequal_shares_of_the_same_bits() -> None:
    channels = channels_in_memory(3)
    arrays = [np.random.default_rng(rank).standard_normal(5000).astype(np.float32) for rank in range(3)]
    attrs = Attrs({"axes": ("dp",), "sizes": (3,), "reduction": "sum"})
    results: dict[int, Array] = {}

    def work(rank: int) -> None:
        ranks = RankCollectives(channels[rank], ("dp",), (3,), rank, (1e9, 1e9, 2e8))
        ranks.begin(1, never)
        assert ranks._group(("dp",)).shares == shares([1e9, 1e9, 2e8])
        ranks._group(("dp",)).algorithm = "direct"
        results[rank] = ranks.start("all_reduce", attrs, arrays[rank]).result()
        ranks.end()

    at_once(work, 3)
    expected = arrays[0] + arrays[1] + arrays[2]
    assert [results[rank].tobytes() for rank in range(3)] == [expected.tobytes()] * 3


def test_what_ranks_can_send_is_told_where_it_differs() -> None:
    fast, slow = Link(1e-3, 1e8), Link(1e-3, 1e7)
    names = ("a", "b", "c")
    pairs = [(one, other) for one in names for other in names if one != other]
    alike = Profiles((), links=dict.fromkeys(pairs, fast))
    assert sending_rates(names, alike) == ()
    unlike = Profiles((), links={pair: slow if "c" in pair else fast for pair in pairs})
    assert sending_rates(names, unlike) == (1e8, 1e8, 1e7)
    assert sending_rates(("a", "a"), unlike) == ()


def test_a_collective_whose_result_nobody_needs_fails_its_rank_whatever_it_raises() -> None:
    """Else the rank would say that it is done, and the others wait for what it did not send."""
    ranks = RankCollectives(channels_in_memory(1)[0], ("dp",), (1,), 0)
    ranks.begin(1, never)
    too_large = np.broadcast_to(np.float32(0), (1 << 46,))
    attrs = Attrs({"axes": ("dp",), "sizes": (1,), "reduction": "sum"})
    ranks.start("all_reduce", attrs, too_large, meanwhile=False)
    with pytest.raises(MemoryError):
        ranks.end()
    ranks.fail(OutOfMemory("no room"))
