"""The prober of links: a probe always has an answer, or both of its nodes would be busy for ever."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from coordinator.planning.model.profiles import CLIENT
from coordinator.workers import link_table
from coordinator.workers.link_prober import LinkProber
from mesh.simulation.loop import VirtualLoop


def test_a_probe_that_fails_by_a_fault_is_one_that_did_not_reach_and_others_go_on() -> None:
    measured: list[str] = []

    async def measure(link: Any, answer_s: float) -> Any:
        measured.append(link.peer.name)
        raise RuntimeError("no one foresaw this")

    async def story() -> None:
        def link_to(node: str) -> Any:
            return SimpleNamespace(peer=SimpleNamespace(name=node, addresses=()), same_host=False, request=None)

        meter = cast(Any, SimpleNamespace(measure=measure))
        prober = LinkProber("here", meter, link_to, lambda: None)
        running = asyncio.create_task(prober.run())
        for node in ("a", "b"):
            prober.joined(node)
        await asyncio.sleep(20 * link_table.REST_S)
        assert not running.done() and not prober.table._asked and not prober.table._busy
        ways = {pair: way for pair, way, _ in prober.table.rows()}
        assert "RuntimeError" in ways[CLIENT, "a"].cause and "RuntimeError" in ways[CLIENT, "b"].cause
        running.cancel()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(story())
    assert {"a", "b"} <= set(measured)
