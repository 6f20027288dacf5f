"""An auto dialer dials every candidate in turn, tells of each new failure once, of few in all, and knows imposters."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from wire.discovery.announcements import Candidate
from wire.discovery.auto_dialer import LINES_PER_MINUTE_MAX, AutoDialer
from wire.discovery.mdns import Browser
from wire.errors import Busy, ConnectFailed, MeshError, NotTrusted, VersionMismatch


class Found:
    """A browser whose candidates a test names."""

    def __init__(self) -> None:
        self.candidates: asyncio.Queue[Candidate] = asyncio.Queue()
        self.closed = False

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        self.closed = True

    async def next(self) -> Candidate:
        return await self.candidates.get()


def node(number: int) -> Candidate:
    return Candidate((f"10.0.0.{number}:7100",), "worker", f"{number}")


@asynccontextmanager
async def looking(dial: Callable[[Candidate], Any], **options: Any) -> AsyncIterator[tuple[Found, AutoDialer]]:
    source = Found()

    async def dialled(candidate: Candidate) -> None:
        answer = dial(candidate)
        if isinstance(answer, MeshError):
            raise answer
        if answer is not None:
            await answer

    wanted = options.pop("wanted", lambda candidate: True)
    dialer = AutoDialer(cast(Browser, source), dialled, wanted, "join", **options)
    await dialer.start()
    yield source, dialer
    await dialer.close()
    assert source.closed


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def show(source: Found, *candidates: Candidate) -> None:
    for candidate in candidates:
        source.candidates.put_nowait(candidate)
        await settle()


async def test_every_candidate_is_dialled_each_time_it_is_due_and_wanted() -> None:
    dialled: list[str] = []
    async with looking(
        lambda candidate: dialled.append(candidate.label), wanted=lambda candidate: candidate.label != "2"
    ) as (source, _):
        await show(source, node(1), node(2), node(3), node(1))
    assert dialled == ["1", "3", "1"]


async def test_one_that_is_being_dialled_is_not_dialled_twice_and_may_be_forgotten() -> None:
    dialled: list[str] = []
    never = asyncio.Event()

    async def wait(candidate: Candidate) -> None:
        dialled.append(candidate.label)
        await never.wait()

    async with looking(wait) as (source, dialer):
        await show(source, node(1), node(1), node(2))
        assert dialled == ["1", "2"]
        dialer.forget(node(1))
        await show(source, node(1), node(2))
        assert dialled == ["1", "2", "1"]


async def test_a_failure_is_told_once_and_tried_again_if_that_may_help(caplog: pytest.LogCaptureFixture) -> None:
    tries: list[str] = []
    failures = {"1": Busy("has an owner"), "2": VersionMismatch("too old")}

    def dial(candidate: Candidate) -> MeshError:
        tries.append(candidate.label)
        return failures[candidate.label]

    async with looking(dial) as (source, dialer):
        await show(source, node(1), node(2), node(1), node(2), node(1))
        assert tries == ["1", "2", "1", "1"]
        assert [str(error) for error in dialer.failures.values()] == [str(error) for error in failures.values()]
        dialer.forget(node(2))
        await show(source, node(2))
        assert tries[-1] == "2"
    assert [line.split(" announced")[0] for line in caplog.messages] == [
        f"10.0.0.{number}:7100" for number in (1, 2, 2)
    ]


@pytest.mark.parametrize("fault", [RuntimeError("can't start new thread"), MemoryError(), OSError(24, "no file")])
async def test_a_node_whose_dialling_met_a_fault_of_this_process_is_dialled_again(fault: Exception) -> None:
    tries: list[str] = []

    def dial(candidate: Candidate) -> None:
        tries.append(candidate.label)
        raise fault

    async with looking(dial) as (source, _):
        await show(source, node(1), node(1), node(1))
    assert tries == ["1"] * 3


async def test_who_announces_many_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with looking(lambda candidate: ConnectFailed(f"nobody at {candidate.label}")) as (source, dialer):
        for number in range(200):
            await show(source, node(number))
            dialer.forget(node(number))
    assert len(caplog.messages) == LINES_PER_MINUTE_MAX


async def test_an_imposter_is_told_of_by_name_and_once() -> None:
    told: list[tuple[str, str]] = []
    tries: list[str] = []
    errors = {"1": NotTrusted("belongs to another mesh"), "2": ConnectFailed("nobody there")}

    def dial(candidate: Candidate) -> MeshError:
        tries.append(candidate.label)
        return errors[candidate.label]

    async with looking(dial, imposter=lambda where, error: told.append((where, error.code))) as (source, _):
        await show(source, node(1), node(2), node(1))
    assert tries == ["1", "2", "1"]  # a certificate that ran out is renewed
    assert told == [("10.0.0.1:7100", NotTrusted("x").code)]
