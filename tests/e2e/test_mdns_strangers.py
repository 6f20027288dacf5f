"""What strangers announce is noise: no candidate, no memory, no line in a log, and never in the way of who belongs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
import time
import tracemalloc
from collections.abc import AsyncIterator

import pytest
from support.hostile.mdns import advert, send
from support.lan.multicast import needs_multicast
from zeroconf import IPVersion, ServiceInfo
from zeroconf.asyncio import AsyncZeroconf

from wire.discovery.announcements import CANDIDATES_MAX, Candidate
from wire.discovery.mdns import SERVICE, Announcer, Browser, advert_in
from wire.link.identity import identity_here
from wire.timeouts import DEFAULT_TIMEOUTS

pytestmark = needs_multicast
HERE = ("127.0.0.1",)
APPEAR_S = 60.0


@pytest.fixture
def key() -> bytes:
    return secrets.token_bytes(32)


def member(key: bytes, port: int, role: str = "worker") -> Announcer:
    """On loopback, as a member without any network announces itself."""
    return Announcer(identity_here(role, "m", "n", None), port, key, "::", look=list)


@contextlib.asynccontextmanager
async def browsing(key: bytes, gone: list[Candidate] | None = None) -> AsyncIterator[Browser]:
    browser = Browser(key, on_gone=(gone if gone is not None else []).append, look=list)
    await browser.start()
    try:
        yield browser
    finally:
        await browser.close()


async def soon(browser: Browser) -> Candidate:
    async with asyncio.timeout(APPEAR_S):
        return await browser.next()


async def nobody(browser: Browser, for_s: float = 0.3) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(for_s):
            await browser.next()


async def test_another_mesh_and_a_forged_record_are_nobody(key: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    stranger = AsyncZeroconf(interfaces=list(HERE), ip_version=IPVersion.V4Only)
    try:
        async with browsing(key) as browser, member(secrets.token_bytes(32), 7101):
            for text in ({b"v": b"1", b"n": bytes(8), b"t": bytes(16)}, {b"v": b"1"}, {b"m": b"mesh", b"r": b"worker"}):
                name = f"{secrets.token_hex(8)}.{SERVICE}"
                forged = ServiceInfo(SERVICE, name, port=7102, parsed_addresses=list(HERE), properties=text)
                await stranger.async_register_service(forged, cooperating_responders=True)
            await nobody(browser)
            async with member(key, 7103):
                assert (await soon(browser)).addresses == ("127.0.0.1:7103",)
            assert browser.tallies[0].adverts > browser.tallies[0].known > 0
    finally:
        await stranger.async_close()
    assert caplog.messages == []


async def test_ten_thousand_forged_adverts_cost_nothing(key: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    wrong = secrets.token_bytes(32)
    flood = [advert(wrong, time.time(), addresses=HERE, port=7100 + number % 32) for number in range(10_000)]
    async with browsing(key) as browser:
        tracemalloc.start()
        try:
            for at in range(0, len(flood), 50):
                send(flood[at : at + 50])
                for _ in range(60):  # a loop reads one packet a turn
                    await asyncio.sleep(0)
            grown, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert grown < 1 << 20
        assert len(browser._candidates) == 0 and browser.tallies[0].adverts > 5_000
        assert all(len(channel.zeroconf.cache.cache) == 0 for channel in browser._channels.open)
        async with member(key, 7104):
            assert (await soon(browser)).addresses == ("127.0.0.1:7104",)
    assert caplog.messages == []


async def test_who_has_the_key_can_cost_a_mesh_a_few_dials_and_no_more(key: bytes) -> None:
    async with browsing(key) as browser:
        for _ in range(10):
            send([advert(key, time.time(), addresses=HERE) for _ in range(30)])
            await asyncio.sleep(0.01)
        async with asyncio.timeout(APPEAR_S):
            while len(browser._candidates) < CANDIDATES_MAX:
                await asyncio.sleep(0.01)
        dialled = [await soon(browser) for _ in range(len(browser._candidates))]
        assert len(dialled) == len({candidate.label for candidate in dialled}) == CANDIDATES_MAX
        await nobody(browser)


async def test_one_that_was_turned_away_is_found_once_others_have_joined(key: bytes) -> None:
    async with browsing(key) as browser:
        async with asyncio.timeout(APPEAR_S):
            while len(browser._candidates) < CANDIDATES_MAX:
                send([advert(key, time.time(), addresses=HERE) for _ in range(30)])
                await asyncio.sleep(0.01)
        browser._candidates._turned_away = False
        async with member(key, 7105):
            async with asyncio.timeout(APPEAR_S):
                while not browser._candidates._turned_away:
                    await asyncio.sleep(0.01)
            for channel in browser._channels.open:
                channel._asking.cancel()  # no question but that which is tested
            joined = 0
            while (candidate := await soon(browser)).addresses != ("127.0.0.1:7105",):
                browser.joined(candidate)
                joined += 1
            assert joined, "there was room for it before"


async def test_a_copied_advert_is_no_second_candidate_and_leads_nowhere_else(key: bytes) -> None:
    now = time.time()
    async with browsing(key) as browser:
        send([advert(key, now, label="original", addresses=HERE)])
        first = await soon(browser)
        assert first == Candidate(("127.0.0.1:7100",), "worker", "original")
        for port in (7100, 22, 443):  # its port is part of the tag
            send([advert(key, now, label="original", addresses=("127.0.0.2",), srv_port=port)])
        send([advert(key, now, label="other", addresses=HERE).replace(b"other", b"fake1")])
        send([advert(key, now, addresses=("8.8.8.8", "192.168.1.1"))])  # heard on loopback
        async with asyncio.timeout(APPEAR_S):
            while browser.tallies[0].adverts < 6:
                await asyncio.sleep(0.01)
        await nobody(browser)
        again = browser._candidates.due(asyncio.get_running_loop().time() + DEFAULT_TIMEOUTS.discovery_redial_s)
        assert again is not None and again.addresses == ("127.0.0.1:7100", "127.0.0.2:7100")


async def test_an_old_advert_is_noise(key: bytes) -> None:
    async with browsing(key) as browser:
        send([advert(key, time.time() - 3600, addresses=HERE), advert(key, time.time() + 3600, addresses=HERE)])
        await nobody(browser)


async def test_an_advert_is_renewed_as_time_passes_and_remains_one_candidate(key: bytes) -> None:
    clock = [time.time()]
    gone: list[Candidate] = []
    announcer = Announcer(identity_here("worker", "m", "n", None), 7105, key, "::", look=list, wall=lambda: clock[0])
    browser = Browser(key, on_gone=gone.append, look=list, wall=lambda: clock[0])
    async with announcer:
        await browser.start()
        try:
            label = (await soon(browser)).label
            nonce = announcer._nonce
            clock[0] += 3600
            async with asyncio.timeout(APPEAR_S):
                while announcer._nonce == nonce:
                    await asyncio.sleep(0.05)
                known = browser.tallies[0].known
                while browser.tallies[0].known == known:
                    await asyncio.sleep(0.05)
            assert not gone and len(browser._candidates) == 1 and browser._candidates.gone(label, 0.0) is not None
        finally:
            await browser.close()


def test_no_packet_is_too_strange_to_read(key: bytes) -> None:
    chance = random.Random(11)
    whole = advert(key, 0.0, addresses=("10.0.0.1", "fd00::1"))
    found = advert_in(whole)
    assert found is not None and (found.port, found.hosts) == (7100, ("10.0.0.1", "fd00::1"))
    for _ in range(20_000):
        packet = bytearray(whole)
        for _ in range(chance.randint(1, 6)):
            packet[chance.randrange(len(packet))] = chance.choice((0, 0xC0, 0xFF, chance.randrange(256)))
        advert_in(bytes(packet[: chance.randint(3, len(packet))]))
