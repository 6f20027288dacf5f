"""Heartbeats: a fault at one keeps no later one from being sent."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mesh.simulation.loop import VirtualLoop
from wire.protocol.messages import Beat, Message
from worker.daemon.heartbeats import Heartbeats
from worker.state import events as ev


@pytest.mark.parametrize("place", [1, 3])
@pytest.mark.parametrize("what", ["sending", "watching"])
def test_a_fault_at_a_beat_keeps_no_later_one_from_being_sent(what: str, place: int) -> None:
    """The coordinator would take a worker that is well for dead."""
    sent, watched = list[int](), list[int]()

    def notify(node: str, message: Message) -> None:
        assert isinstance(message, Beat)
        sent.append(message.counter)
        if what == "sending" and len(sent) == place:
            raise MemoryError

    def check(nodes: object) -> None:
        watched.append(1)
        if what == "watching" and len(watched) == place:
            raise MemoryError

    async def story() -> None:
        owner = SimpleNamespace(node="coordinator")
        machine = SimpleNamespace(
            owner=owner, served=True, incarnation=1, queue_depth=0, used=tuple, working=lambda now: ()
        )
        steps, shell = cast(Any, SimpleNamespace(check=check)), cast(Any, SimpleNamespace(machine=machine))
        beats = Heartbeats(shell, notify, steps, lambda: None)
        beats.performers()[ev.StartBeats](ev.StartBeats("coordinator", 0.1))
        await asyncio.sleep(1.05)
        beats.performers()[ev.StopBeats](ev.StopBeats())

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(story())
    assert sent == list(range(1, 12)) and len(watched) == 11
