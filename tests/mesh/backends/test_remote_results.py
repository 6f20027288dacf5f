"""Results whose content is gone as it is fetched, and questions that end the link, are asked for again, but not for
ever; nor is a coordinator that is gone."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mesh.backends.remote import BROKEN_MAX, BROKEN_S, MISSING_WAITS_S, Remote
from mesh.simulation.loop import VirtualLoop
from wire.errors import BlobMissing, ConnectFailed, NodeLost, RemoteError
from wire.protocol.messages import JobResult, Jobs, NamedValue


@pytest.mark.parametrize("missing", [0, 3, 1 << 30])
def test_it_is_asked_for_again_after_a_pause_and_no_more_than_so_often(missing: int) -> None:
    asked_s, value = list[float](), NamedValue("y", "f32", (1,), None, bytes(32))

    async def fetch_all(link: Any, values: Any) -> list[Any]:
        if len(asked_s) <= missing:
            raise BlobMissing("it is gone")
        return ["array"]

    async def story() -> None:
        async def ask(question: Any, kind: Any) -> JobResult:
            await asyncio.sleep(0)
            asked_s.append(asyncio.get_running_loop().time())
            return JobResult((value,), "")

        async def link() -> Any:
            return SimpleNamespace(closed=False)

        remote = cast(Any, Remote.__new__(Remote))
        remote._ask, remote._open, remote._exchange = ask, link, SimpleNamespace(fetch_all=fetch_all)
        async with asyncio.timeout(600):
            if missing < len(MISSING_WAITS_S):
                assert await remote.result("job") == ({"y": "array"}, {})
            else:
                with pytest.raises(BlobMissing):
                    await remote.result("job")

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(story())
    assert len(asked_s) == 1 + min(missing, len(MISSING_WAITS_S))
    assert all(later > before for before, later in itertools.pairwise(asked_s))


@pytest.mark.parametrize(
    ("breaks", "after_s", "answered"),
    [(1, 0.0, True), (BROKEN_MAX - 1, 0.0, True), (1 << 30, 0.0, False), (5 * BROKEN_MAX, BROKEN_S, True)],
    ids=["once", "a few times", "always", "often, but each link lasted"],
)
def test_a_question_that_ends_each_link_is_not_asked_for_ever(breaks: int, after_s: float, answered: bool) -> None:
    asked_s = list[float]()

    async def request(link: Any) -> Jobs:
        asked_s.append(asyncio.get_running_loop().time())
        await asyncio.sleep(after_s)
        if len(asked_s) <= breaks:
            link.closed = True
            raise RemoteError("the link ended")
        return Jobs(())

    async def story() -> None:
        async def link() -> Any:
            made = SimpleNamespace(closed=False, peer=SimpleNamespace(name="coordinator"))
            made.request = lambda _: request(made)
            return made

        remote = cast(Any, Remote.__new__(Remote))
        remote._open = link
        async with asyncio.timeout(3600):
            if answered:
                assert await remote.jobs() == ()
            else:
                with pytest.raises(NodeLost, match=f"{BROKEN_MAX} times.*log"):
                    await remote.jobs()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(story())
    assert len(asked_s) == (breaks + 1 if answered else BROKEN_MAX)
    if len(asked_s) > 2:
        assert asked_s[-1] - asked_s[1] > 0, "there are pauses"


@pytest.mark.parametrize("breaks", [BROKEN_MAX - 1, 1 << 30], ids=["a few times", "always"])
def test_outputs_that_end_each_link_are_not_fetched_for_ever(breaks: int) -> None:
    fetched = 0

    async def fetch_all(link: Any, values: Any) -> list[Any]:
        nonlocal fetched
        fetched += 1
        if fetched <= breaks:
            link.closed = True
            raise RemoteError("the link ended")
        return []

    async def story() -> None:
        async def ask(question: Any, kind: Any) -> JobResult:
            return JobResult((), "")

        async def link() -> Any:
            return SimpleNamespace(closed=False)

        remote = cast(Any, Remote.__new__(Remote))
        remote._ask, remote._open, remote._exchange = ask, link, SimpleNamespace(fetch_all=fetch_all)
        async with asyncio.timeout(3600):
            if breaks < BROKEN_MAX:
                assert await remote.result("job") == ({}, {})
            else:
                with pytest.raises(NodeLost, match=f"{BROKEN_MAX} times, each time as the outputs of job 7"):
                    await remote.result("7")

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(story())
    assert fetched == min(breaks + 1, BROKEN_MAX)


@pytest.mark.parametrize("askers", [1, 20])
def test_all_who_wait_for_a_coordinator_that_is_gone_hear_of_it_at_once(askers: int) -> None:
    dialled_s = list[float]()

    async def story() -> None:
        loop, return_s = asyncio.get_running_loop(), 15.0

        async def dial() -> Any:
            dialled_s.append(loop.time())
            raise ConnectFailed("nobody answers")

        async def refresh() -> None:
            return

        remote = cast(Any, Remote.__new__(Remote))
        remote._gone, remote._link, remote._farewell, remote._dialling = None, None, False, asyncio.Lock()
        remote._membership, remote._dial = SimpleNamespace(refresh=refresh), dial
        remote._endpoint = SimpleNamespace(timeouts=SimpleNamespace(coordinator_return_s=return_s))
        for round_ in (1, 2):  # who asks after that has it dialled again
            failures = await asyncio.gather(*(remote._open() for _ in range(askers)), return_exceptions=True)
            assert all(isinstance(failure, NodeLost) and "gone" in str(failure) for failure in failures)
            assert loop.time() <= round_ * return_s and len({*map(id, failures)}) == askers
        dials = len(dialled_s)
        waiting = asyncio.ensure_future(remote._open())
        while len(dialled_s) == dials:
            await asyncio.sleep(0)
        remote._farewell = True
        with pytest.raises(NodeLost, match="closed"):
            await waiting
        assert len(dialled_s) == dials + 1, "a client that is closed dials nobody"

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(story())
