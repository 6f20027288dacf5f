"""Reports on workers fit into messages, however many there are, and all of them arrive."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs

from coordinator.workers.paged_reports import ANSWER_BYTES_MAX, page
from mesh.backends.paged_reports import all_pages
from mesh.core.node import node_from
from wire.limits import DEFAULT
from wire.protocol.messages import NodeReport, Nodes, PairReport, encode_message
from worker.cpu import CpuEngine
from worker.daemon.device_reports import report_of, without_ops
from worker.engine.host_messages import Device
from worker.engine.protocol import Measured

DEVICE = report_of(0, Device(CpuEngine().info, Measured(10.0, 10.0, 1e-4)))


def worker(number: int, devices: int = 1) -> NodeReport:
    of_it = (DEVICE,) * devices
    places = tuple(f"192.168.100.{at}:7100" for at in range(4))
    return NodeReport(f"worker-{number:04}", f"{number:026x}", 1, places, "healthy", "0.1.0", of_it)


def test_the_largest_mesh_is_told_in_one_answer() -> None:
    """Older clients ask no further, and get all workers, too."""
    nodes = [worker(number, devices=4) for number in range(DEFAULT.nodes_max)]
    reports, _, more = page(nodes, [], ())
    assert not more
    assert len(encode_message(Nodes(reports))) < DEFAULT.message_bytes_max
    assert [node_from(each) for each in reports] == [node_from(each) for each in nodes]


def test_who_has_given_up_is_told_so() -> None:
    (report,), _, _ = page([structs.replace(worker(1), devices=(without_ops(DEVICE),))], [], ())
    assert node_from(report).devices[0].given_up
    (report,), _, _ = page([worker(1)], [], ())
    assert not node_from(report).devices[0].given_up


@pytest.mark.parametrize("bytes_max", [1, 700, 5000, ANSWER_BYTES_MAX])
def test_what_takes_several_answers_arrives_whole(bytes_max: int) -> None:
    nodes = [worker(number) for number in range(20)]
    pairs = [
        PairReport(one.name, other.name, "direct", 0.1, 1e6, "h:1", "")
        for one in nodes
        for other in nodes
        if one != other
    ]
    asked = []

    async def ask(after: tuple[str, ...]) -> Nodes:
        asked.append(after)
        reports, ways, more = page(nodes, pairs, after, bytes_max)
        told = Nodes(reports, 1.5, ways, 2.5, "Linux", more)
        assert len(encode_message(told)) <= bytes_max + 1000
        return told

    found = asyncio.run(all_pages(ask))
    assert [node_from(each) for each in found.nodes] == [node_from(each) for each in nodes]
    assert [(each.source, each.target) for each in found.pairs] == [(each.source, each.target) for each in pairs]
    assert (found.node_timeout_s, found.time_s, found.system) == (1.5, 2.5, "Linux")
    assert len(asked) == {1: 400, ANSWER_BYTES_MAX: 1}.get(bytes_max, len(asked)) and len(set(asked)) == len(asked)


def test_workers_may_come_and_go_between_two_answers() -> None:
    """A worker that stays is reported once."""
    staying = [worker(number) for number in range(0, 40, 2)]
    fleeting = [worker(number) for number in range(1, 40, 2)]
    asked = 0

    async def ask(after: tuple[str, ...]) -> Nodes:
        nonlocal asked
        asked += 1
        there = staying + fleeting if asked == 1 else staying
        reports, ways, more = page(sorted(there, key=lambda node: node.name), [], after, 700)
        return Nodes(reports, 1.5, ways, more=more)

    found = [each.node_id for each in asyncio.run(all_pages(ask)).nodes]
    assert len(set(found)) == len(found)
    assert {each.node_id for each in staying} <= set(found)
