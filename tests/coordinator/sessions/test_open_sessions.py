"""All sessions of a coordinator: what goes wrong in one of them is nothing to the others."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.sessions.open_sessions import Sessions
from wire.errors import MeshError, NodeLost


class RecordingSession:
    """A session that records its events; one that `fails` raises at each."""

    def __init__(self, fails: bool = False) -> None:
        self.fails, self.events, self.ended = fails, list[str](), list[MeshError]()

    def nodes_changed(self, error: MeshError | None, away: bool) -> None:
        self.feed("nodes changed")

    def feed(self, event: Any) -> None:
        if self.fails:
            raise KeyError("a plan that is gone")
        self.events.append(event if isinstance(event, str) else type(event).__name__)

    def _unanswered(self, error: MeshError) -> None:
        self.ended.append(error)


def sessions(*those: RecordingSession, members: Any = ()) -> Any:
    opened = Sessions(cast(Any, SimpleNamespace(plans=SimpleNamespace(members=members))))
    opened._open.extend(cast(Any, those))
    return opened


async def test_one_that_fails_at_what_it_hears_ends_and_the_others_hear_of_the_death() -> None:
    bad, well = RecordingSession(fails=True), RecordingSession()
    opened = sessions(bad, well)
    opened.nodes_changed(NodeLost("a worker died"), True)
    opened.node_returned("worker", {1: 2})
    opened.stuck("worker")
    opened.close()
    assert well.events == ["nodes changed", "NodeReturned", "NodeStuck", "CloseRequested"]
    await asyncio.sleep(0)
    assert len(bad.ended) == 4 and "KeyError" in str(bad.ended[0]) and not well.ended


@pytest.mark.parametrize("count", [1, 100])
async def test_what_workers_had_kept_is_known_of_those_that_are_there(count: int) -> None:
    members = {"stays": None}
    opened = sessions(members=members)
    opened.node_returned("stays", {7: 1})
    for number in range(count):
        members[f"goes {number}"] = None
        opened.node_returned(f"goes {number}", {number: 1})
        del members[f"goes {number}"]
    opened.node_returned("stays", {8: 1})
    assert opened._kept_by == {"stays": {8: 1}}
