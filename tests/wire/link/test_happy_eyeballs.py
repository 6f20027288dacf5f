"""Several addresses of one node: the first connection is kept, a failure starts the next at once, nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from mesh.simulation.loop import VirtualLoop
from wire.errors import ConfigError, ConnectFailed, MeshError
from wire.link.happy_eyeballs import AGAIN_S, HEAD_START_S, STAGGER_S, race

T = TypeVar("T")


class Addresses:
    """`answers` says after how long each is connected, or how it fails; `begun` when each was tried."""

    def __init__(self, **answers: float | tuple[float, MeshError]) -> None:
        self.answers = answers
        self.begun: dict[str, float] = {}
        self.discarded: list[str] = []

    async def connect(self, address: str) -> str:
        loop = asyncio.get_running_loop()
        self.begun[address] = loop.time()
        answer = self.answers[address]
        wait_s, error = answer if isinstance(answer, tuple) else (answer, None)
        await asyncio.sleep(wait_s)
        if error is not None:
            raise error
        return f"to {address}"

    async def race(self, head_start_s: float = STAGGER_S) -> tuple[str, str]:
        winner = await race(list(self.answers), self.connect, self.discarded.append, head_start_s)
        await asyncio.sleep(10)
        return winner


def run(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


def unreachable(after_s: float = 0.0) -> tuple[float, MeshError]:
    return after_s, ConnectFailed("no node answers", cause="No route to host")


def test_the_fastest_is_kept_wherever_it_stands() -> None:
    assert run(Addresses(wifi=0.05, cable=0.001).race()) == ("cable", "to cable")
    assert run(Addresses(cable=0.001, wifi=0.05).race()) == ("cable", "to cable")


def test_the_one_that_worked_before_has_a_head_start() -> None:
    addresses = Addresses(before=0.2, other=0.001)
    assert run(addresses.race(HEAD_START_S))[0] == "before"
    assert set(addresses.begun) == {"before"}
    slow = Addresses(before=0.5, other=0.001)
    assert run(slow.race(HEAD_START_S))[0] == "other"
    assert slow.begun["other"] == pytest.approx(HEAD_START_S)


def test_a_failure_lets_the_next_begin_at_once() -> None:
    addresses = Addresses(gone=unreachable(0.001), there=0.001)
    assert run(addresses.race(HEAD_START_S))[0] == "there"
    assert addresses.begun["there"] == pytest.approx(0.001)


def test_one_that_never_answers_does_not_hold_up_the_others() -> None:
    assert run(Addresses(silent=1e6, there=0.01).race())[0] == "there"


def test_one_that_begins_to_listen_while_another_never_answers_is_found() -> None:
    """A standby, once the machine of the coordinator before it has lost its power."""

    async def scenario() -> tuple[str, float]:
        begun = Counter[str]()

        async def connect(address: str) -> str:
            begun[address] += 1
            if address == "lost":
                await asyncio.sleep(1e6)
            if begun[address] < 5:
                raise ConnectFailed("no", cause="Connection refused")
            return f"to {address}"

        found, _ = await race(["lost", "standby"], connect, print)
        assert begun == {"lost": 1, "standby": 5}
        return found, asyncio.get_running_loop().time()

    assert run(scenario()) == ("standby", pytest.approx(4 * AGAIN_S + STAGGER_S))


def test_what_failed_is_tried_again_only_while_others_were_not_heard_of() -> None:
    addresses = Addresses(soon=unreachable(0.1), late=unreachable(0.6), fault=(0.2, ConfigError("not loopback")))
    begun = list[str]()

    async def connect(address: str) -> str:
        begun.append(address)
        return await addresses.connect(address)

    with pytest.raises(ConnectFailed, match="at any of"):
        run(race(list(addresses.answers), connect, print))
    assert Counter(begun) == {"soon": 2, "late": 1, "fault": 1}


def test_late_connections_are_given_back() -> None:
    async def stubborn(address: str) -> str:
        with contextlib.suppress(asyncio.CancelledError):  # it had just been connected
            await asyncio.sleep({"first": 0.01, "late": 1}[address])
        return address

    async def scenario() -> list[str]:
        discarded: list[str] = []
        assert await race(["first", "late"], stubborn, discarded.append) == ("first", "first")
        await asyncio.sleep(2)
        return discarded

    assert run(scenario()) == ["late"]


def test_where_all_fail_every_reason_is_told() -> None:
    addresses = Addresses(a=unreachable(), b=(0.1, ConnectFailed("no", cause="Connection refused")))
    with pytest.raises(ConnectFailed, match="at any of a, b") as raised:
        run(addresses.race())
    assert raised.value.cause == "a: No route to host; b: Connection refused"


def test_the_same_failures_have_the_same_text_whichever_came_first() -> None:
    quick, slow = (ConnectFailed("no", next_step="See its log"),) * 2
    texts = []
    for order in ((0.0, 0.1), (0.1, 0.0)):
        with pytest.raises(ConnectFailed) as raised:
            run(Addresses(b=(order[0], quick), a=(order[1], slow)).race())
        texts.append(str(raised.value))
    assert texts[0] == texts[1]


def test_one_address_fails_with_its_own_error_and_none_at_all_with_one_too() -> None:
    error = ConfigError("not loopback")
    with pytest.raises(ConfigError, match="not loopback"):
        run(Addresses(a=(0.0, error)).race())
    with pytest.raises(ConnectFailed, match="no address"):
        run(Addresses().race())


def test_a_fault_of_ours_is_not_taken_for_an_address_that_fails() -> None:
    async def broken(address: str) -> str:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(race(["a", "b"], broken, print))


def test_giving_up_stops_all_attempts() -> None:
    addresses = Addresses(a=100.0, b=100.0)

    async def scenario() -> None:
        async with asyncio.timeout(1):
            await addresses.race()

    with pytest.raises(TimeoutError):
        run(scenario())
    assert not addresses.discarded
