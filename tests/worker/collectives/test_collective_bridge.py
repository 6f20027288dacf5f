"""The daemons' bridge between ring buffers of two machines, over links that reorder, end and come back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from support.machines.bridges import MEMBERS, PLAN, Link, Network, prepared, reducing

from wire.errors import ConnectFailed, NodeLost, OutOfMemory, ProtocolError, StaleGeneration
from wire.protocol.messages import Gang, Letter, LettersRead, Member, Message, PlanKey
from worker.collectives.ring_buffer import _READ, _WRITTEN, SLOTS
from worker.daemon.collective_bridge import name_of
from worker.engine.protocol import never


@pytest_asyncio.fixture
async def network(tmp_path: Path) -> AsyncIterator[Network]:
    made = Network(tmp_path)
    made.connect()
    yield made
    for node in made.nodes.values():
        node.bridge.close()
        node.shared.close()


async def test_messages_arrive_in_any_order_and_are_read_in_theirs(network: Network) -> None:
    ranks = prepared(network)
    for tag, size in enumerate((3, 5000, 3_000_000), 1):
        arrays = [np.random.default_rng([rank, tag]).standard_normal(size).astype(np.float32) for rank in (0, 1)]
        assert await network.run(reducing(ranks, arrays, tag)) == [(arrays[0] + arrays[1]).tobytes()] * 2


async def test_what_a_link_lost_is_sent_again(network: Network) -> None:
    ranks = prepared(network)
    arrays = [np.random.default_rng(rank).standard_normal(3_000_000).astype(np.float32) for rank in (0, 1)]
    assert await network.run(reducing(ranks, arrays, 1), cuts=5) == [(arrays[0] + arrays[1]).tobytes()] * 2


async def test_who_gives_up_is_heard_on_the_other_machine_and_the_next_step_is_clean(network: Network) -> None:
    ranks = prepared(network)
    arrays = [np.ones(1000, np.float32)] * 2
    good = reducing(ranks, arrays, 3)

    def fails(rank: int) -> Any:
        if rank == 1:
            ranks[1].begin(2, never)
            ranks[1].fail(OutOfMemory("no room", node="b"))
            return None
        return reducing(ranks, arrays, 2)(0)

    failed = (await network.run(fails))[0]
    assert isinstance(failed, OutOfMemory)
    assert failed.node == "b"
    ranks[0].fail(failed)
    assert await network.run(good) == [(arrays[0] + arrays[1]).tobytes()] * 2


async def test_ring_buffers_go_with_the_last_part_that_has_them(network: Network) -> None:
    prepared(network)
    node = network.nodes["a"]
    second = Gang(("tp",), (2,), 0, (Member("a", 2, 0), Member("b", 3, 0)))
    node.bridge.prepare(8, PLAN, second)
    files = {path.name for path in node.shared.path.iterdir()} - {"lock"}
    assert files == {name_of(PLAN, MEMBERS[0], MEMBERS[1]), name_of(PLAN, MEMBERS[1], MEMBERS[0])}
    node.bridge.unprepare(7)
    assert {path.name for path in node.shared.path.iterdir()} - {"lock"} == files
    node.bridge.unprepare(8)
    assert {path.name for path in node.shared.path.iterdir()} == {"lock"}


async def test_messages_of_a_plan_that_is_over_or_without_a_place_are_refused(network: Network) -> None:
    prepared(network)
    bridge, link = network.nodes["b"].bridge, Link(network, "a", "b")
    mine, other = name_of(PLAN, MEMBERS[0], MEMBERS[1]), name_of(PlanKey(9, 9), MEMBERS[0], MEMBERS[1])
    with pytest.raises(StaleGeneration):
        bridge.open_stream(link, Letter(other, 0), 500)  # type: ignore[arg-type]
    for number, size in ((8, 500), (0, 3), (0, 1 << 20)):
        with pytest.raises(ProtocolError):
            bridge.open_stream(link, Letter(mine, number), size)  # type: ignore[arg-type]
    with pytest.raises(StaleGeneration):
        bridge.open_stream(Link(network, "c", "b"), Letter(mine, 0), 500)  # type: ignore[arg-type]
    for message in (Letter(other, 0, bytes(200)), LettersRead(other, 5), LettersRead(mine, 1 << 40)):
        bridge.take(link, message)  # type: ignore[arg-type]


async def test_a_gang_whose_workers_are_not_linked_is_an_error_that_says_so(network: Network) -> None:
    network.cut()
    bridge = network.nodes["a"].bridge
    bridge.prepare(7, PLAN, Gang(("dp",), (2,), 0, MEMBERS))
    with pytest.raises(ConnectFailed, match="no link"):
        bridge.directories(7)


async def test_a_link_that_ends_under_what_is_sent_takes_no_host_along(network: Network) -> None:
    """Its end ends the plan at once, whose ring buffers are being looked at."""
    ranks = prepared(network)
    bridge, link = network.nodes["a"].bridge, network.nodes["a"].links["b"]
    sent: list[Any] = []

    def notify(message: Any) -> None:
        if link.closed:
            raise NodeLost("the link is closed")
        sent.append(message)
        link.closed = True
        bridge.unprepare(7)

    link.notify = notify
    ranks[0].begin(2, never)
    ranks[0].fail(OutOfMemory("no room"))
    ranks[0].begin(3, never)
    ranks[0].fail(OutOfMemory("no room"))
    bridge.buffers_changed(0)
    assert len(sent) == 1 and link.closed


@pytest.mark.parametrize("read", [0, 1 << 39])
async def test_a_host_that_counts_wrongly_holds_up_its_daemon_no_longer_than_its_ring_buffer(
    network: Network, read: int
) -> None:
    """As one may whose driver wrote into its memory: the daemon still beats."""
    prepared(network)
    while network.flying:
        network.deliver()
    bridge, link = network.nodes["a"].bridge, network.nodes["a"].links["b"]
    (original,) = bridge._originals.values()
    assert original.reader is not None
    original.reader._words[_WRITTEN] = 1 << 40
    original.reader._words[_READ] = read
    sent: list[Message] = []

    def notify(message: Message) -> None:
        sent.append(message)
        assert len(sent) <= SLOTS, "it would go on and on"

    link.notify = notify
    bridge.buffers_changed(0)
    assert [type(each) for each in sent] == [Letter] * SLOTS


async def test_gangs_of_many_and_of_few_ranks_do_not_share_ring_buffers_whichever_is_prepared_first(
    network: Network,
) -> None:
    """Many ranks have smaller slots.  What is prepared first depends on when its weights arrive."""
    large = tuple(Member("ab"[rank] if rank < 2 else f"c{rank}", 10 + rank, 0) for rank in range(17))
    network.nodes["b"].bridge.prepare(8, PLAN, Gang(("tp",), (17,), 1, large))
    ranks = prepared(network)
    network.nodes["a"].bridge.prepare(8, PLAN, Gang(("tp",), (17,), 0, large))
    arrays = [np.random.default_rng(rank).standard_normal(300_000).astype(np.float32) for rank in (0, 1)]
    assert await network.run(reducing(ranks, arrays, 1)) == [(arrays[0] + arrays[1]).tobytes()] * 2
