"""mDNS where interfaces fail: each is tried again for ever, and all others go on without it."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, cast

import pytest

from mesh.simulation.loop import VirtualLoop
from wire.discovery import mdns
from wire.discovery.mdns import LOOK_S
from wire.discovery.multicast_sockets import MulticastCounts
from wire.link.interfaces import Interface

FAULTS = [OSError(errno.ENETDOWN, "Network is down"), RuntimeError("no one foresaw this")]
INTERFACES = [Interface(name, (address,)) for name, address in (("one", "10.0.0.1"), ("two", "10.0.1.1"))]


class FakeChannel:
    """A channel of an interface of which nothing is sent; those whose interface is in `broken` cannot be opened."""

    broken: ClassVar[dict[str, Exception]] = {}
    closed: ClassVar[list[str]] = []

    def __init__(self, place: Any, tally: MulticastCounts) -> None:
        self.place, self.tally, self.lost = place, tally, False

    @classmethod
    async def opened(cls, place: Any, tally: MulticastCounts, hear: Any) -> FakeChannel:
        if (fault := cls.broken.get(place.interface)) is not None:
            raise fault
        return cls(place, tally)

    async def close(self) -> None:
        self.closed.append(self.place.interface)


def run(monkeypatch: pytest.MonkeyPatch, story: Callable[[], Awaitable[None]]) -> None:
    monkeypatch.setattr(mdns, "_Channel", FakeChannel)
    FakeChannel.broken, FakeChannel.closed = {}, []

    async def main() -> None:
        await story()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


def channels(opened: Any) -> Any:
    async def tick() -> None:
        return

    return mdns._Channels("look for nodes", True, (), lambda: INTERFACES, cast(Any, opened), tick)


@pytest.mark.parametrize("fault", FAULTS, ids=repr)
def test_one_that_cannot_be_opened_keeps_no_other_from_it(monkeypatch: pytest.MonkeyPatch, fault: Exception) -> None:
    told = list[str]()

    async def opened(channel: FakeChannel) -> None:
        told.append(channel.place.interface)

    async def story() -> None:
        FakeChannel.broken = {"one": fault}
        all_of_them = channels(opened)
        await all_of_them.start()
        assert "one" not in told and "two" in told
        FakeChannel.broken = {}
        await asyncio.sleep(2 * LOOK_S)
        assert told.count("one") == 1 and told.count("two") == 1
        await all_of_them.close()

    run(monkeypatch, story)


@pytest.mark.parametrize("fault", FAULTS, ids=repr)
def test_one_on_which_nothing_can_be_said_is_tried_again(monkeypatch: pytest.MonkeyPatch, fault: Exception) -> None:
    """It was opened, but a node that is not announced there is found by nobody."""
    told, failing = list[str](), [fault] * 3

    async def opened(channel: FakeChannel) -> None:
        if channel.place.interface == "one" and failing:
            raise failing.pop()
        told.append(channel.place.interface)

    async def story() -> None:
        all_of_them = channels(opened)
        await all_of_them.start()
        assert "one" not in told and "two" in told
        await asyncio.sleep(10 * LOOK_S)
        assert told.count("one") == 1 and told.count("two") == 1 and FakeChannel.closed.count("one") == 3
        await all_of_them.close()

    run(monkeypatch, story)


def test_after_a_sleep_of_the_machine_all_are_told_of_though_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    told, awake = list[str](), [False]

    async def opened(channel: FakeChannel) -> None:
        told.append(channel.place.interface)
        if awake[0] and told.count("one") == 2 and channel.place.interface == "one":
            raise OSError(errno.ENETUNREACH, "Network is unreachable")

    async def story() -> None:
        all_of_them = channels(opened)
        await all_of_them.start()
        before = told.count("two")
        all_of_them._waking = cast(Any, type("Waking", (), {"tick": lambda self, now, wall: awake[0]})())
        awake[0] = True
        await asyncio.sleep(1.5 * LOOK_S)
        awake[0] = False
        assert told.count("two") == before + 1
        await asyncio.sleep(3 * LOOK_S)
        assert told.count("one") == 3, "it is opened anew"
        await all_of_them.close()

    run(monkeypatch, story)
