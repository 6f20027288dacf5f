"""Finding nodes of one mesh on the network by mDNS, or in a list (docs/protocol.md, "Discovery").

A node announces `_graph-mesh._tcp.local.` under a name that is random per start, with a record that only its own mesh
can read (`announcements.py`), on every interface that others can reach and as these come and go; one without a token on
the loopback interface only.  What a browser finds is an address to try and nothing more: TLS and
hello verify the node.

An interface where multicast fails is tried again for ever, and everything else goes on without it.  This file alone
knows zeroconf, which codes packets, opens sockets and answers questions; what comes in is looked at here first, so
that no packet of a stranger is remembered or logged.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import secrets
import socket
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from zeroconf import (
    DNSAddress,
    DNSIncoming,
    DNSOutgoing,
    DNSQuestion,
    DNSService,
    DNSText,
    IPVersion,
    NotRunningException,
    ServiceInfo,
    Zeroconf,
)
from zeroconf.asyncio import AsyncZeroconf

from ..link.interfaces import Interface, interfaces_here
from ..link.sleep_detector import SleepDetector
from ..protocol.peer import Identity
from ..system.steady_log import steady_logger
from ..system.tasks import Tasks, unheard
from ..timeouts import DEFAULT_TIMEOUTS
from .announcements import (
    NONCE_BYTES,
    TTL_S,
    Candidate,
    Candidates,
    bucket_of,
    fields_of,
    key_of_name,
    role_in,
    text_of,
)
from .multicast_sockets import LOOPBACK, MulticastCounts, MulticastInterface, dialled, listened, multicast_interfaces

log = steady_logger("graph_mesh.discovery")

SERVICE = "_graph-mesh._tcp.local."
TOLD_AFTER = 3  # failures of an interface: an address that is new cannot be used for a second or two
LOOK_S = 2.0  # how often the interfaces are looked at, and those that failed tried again
ASK_SOON_S = (1.0, 1.0, 2.0, 4.0)  # between the first questions on an interface
ASK_S = 30.0  # between later ones, of a whole network: a node that hears another ask does not ask
ADVERT_BYTES_MAX = 1024  # ours have a quarter
ADVERTS_PER_S_MAX = 500  # read; a flood of more costs no more, and ours come again
TALLIES_MAX = 64

_LABEL = b"\x0b_graph-mesh\x04_tcp"  # as a packet that is about us has it
_PTR, _IN, _QUERY = 12, 1, 0  # RFC 1035
_TO_ME = 0x8000  # of a question's class: the answer may be unicast, RFC 6762
_ANSWER_BIT = 0x80  # of a packet's third byte
_MULTICAST_ALL = {4: (socket.IPPROTO_IP, 49), 6: (socket.IPPROTO_IPV6, 29)}  # Linux

OnCandidate = Callable[[Candidate], object]
Keys = Callable[[], Sequence[bytes]]  # the newest first: a mesh may get a new authority, and so another key
Look = Callable[[], Sequence[Interface]]


class Announcer:
    """An advert of this node, which listens on `port`; it lasts from `start` until `close`.

    Members give the `key` that their mesh knows adverts by (tokens.discovery_key), or a function that returns the
    present keys, and `host`, what they listen on.  `interfaces` are the names of those to use, if not all.
    """

    def __init__(
        self,
        identity: Identity,
        port: int,
        key: bytes | Keys | None = None,
        host: str = "0.0.0.0",
        interfaces: Sequence[str] = (),
        look: Look = interfaces_here,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._role, self._port, self._host = identity.role, port, host if key else "127.0.0.1"
        self._keys = _keys(key or identity.mesh)
        self._key = b""  # that the adverts of now were made with
        self._label = secrets.token_hex(8)
        self._wall = wall
        self._bucket = -1
        self._nonce = b""
        self._announced: set[_Channel] = set()
        self._channels = _Channels("announce this node", key is not None, interfaces, look, self._announce, self._renew)

    @property
    def tallies(self) -> tuple[MulticastCounts, ...]:
        """What was sent and heard, by interface."""
        return tuple(self._channels.tallies.values())

    async def start(self) -> None:
        """Announce; without multicast, say so and keep trying."""
        await self._renew()
        await self._channels.start()

    async def close(self) -> None:
        """Take the announcement back."""
        await self._channels.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    async def _announce(self, channel: _Channel) -> None:
        info = self._info(channel.place)
        if info is None:
            return
        if channel in self._announced:
            channel.sending(await channel.zeroconf.async_update_service(info))
        else:  # the name is random, so nobody else's; skipping the probes saves half a second
            self._announced.add(channel)
            channel.sending(await channel.zeroconf.async_register_service(info, cooperating_responders=True))

    async def _renew(self) -> None:
        """Make a new nonce and tag with every bucket, and for a new key."""
        bucket, key = bucket_of(self._wall()), self._keys()[0]
        if (bucket, key) == (self._bucket, self._key):
            return
        self._key, self._bucket, self._nonce = key, bucket, secrets.token_bytes(NONCE_BYTES)
        self._announced = {channel for channel in self._announced if not channel.lost}
        for channel in list(self._announced):
            await self._announce(channel)

    def _info(self, place: MulticastInterface) -> ServiceInfo | None:
        addresses = listened(place.advertised, self._host)
        if not addresses:
            return None
        return ServiceInfo(
            SERVICE,
            f"{self._label}.{SERVICE}",
            port=self._port,
            parsed_addresses=addresses,
            server=f"{self._label}.local.",
            properties=text_of(self._key, self._label, self._nonce, self._role, self._port, self._bucket),
            host_ttl=TTL_S,
            other_ttl=TTL_S,
        )


class Browser:
    """The nodes of a mesh, of one role or of any: those to dial by `next`, news by `on_found` and `on_gone`.

    `mesh` is the discovery key of members, or a function that returns their present keys, or the name of a mesh without
    tokens.
    """

    def __init__(
        self,
        mesh: bytes | str | Keys,
        on_found: OnCandidate = lambda candidate: None,
        on_gone: OnCandidate = lambda candidate: None,
        role: str = "",
        interfaces: Sequence[str] = (),
        look: Look = interfaces_here,
        wall: Callable[[], float] = time.time,
        redial_s: float = DEFAULT_TIMEOUTS.discovery_redial_s,
    ) -> None:
        self._keys = _keys(mesh)
        self._role = role
        self._on_found = on_found
        self._on_gone = on_gone
        self._wall = wall
        self._candidates = Candidates(redial_s)
        self._news = asyncio.Event()
        self._budget = _RateLimit()
        self._channels = _Channels(
            "look for nodes", not isinstance(mesh, str), interfaces, look, self._ask, self._tick, self._hear
        )

    @property
    def tallies(self) -> tuple[MulticastCounts, ...]:
        """What was sent and heard, by interface."""
        return tuple(self._channels.tallies.values())

    async def start(self) -> None:
        """Begin to report; without multicast, say so and keep trying."""
        await self._channels.start()

    async def close(self) -> None:
        """Report no more."""
        await self._channels.close()

    async def next(self) -> Candidate:
        """A candidate to dial: each at once, and again every few seconds for as long as it is there."""
        loop = asyncio.get_running_loop()
        while (candidate := self._candidates.due(loop.time())) is None:
            self._news.clear()
            due_s = self._candidates.next_due_s()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due_s):
                    await self._news.wait()
        return candidate

    def joined(self, candidate: Candidate) -> None:
        """A candidate has joined for as long as it is there: `next` is for others."""
        self._candidates.joined(candidate.label)

    async def _ask(self, channel: _Channel) -> None:
        channel.ask()

    async def _tick(self) -> None:
        for candidate in self._candidates.expired(asyncio.get_running_loop().time()):
            self._on_gone(candidate)
        if self._candidates.ask_again():
            for channel in self._channels.open:
                channel.ask(ASK_SOON_S[:1])

    def _hear(self, channel: _Channel, packet: bytes, scope: int) -> None:
        """Take an answer that names our service: an advert of this mesh, or noise."""
        now_s = asyncio.get_running_loop().time()
        if len(packet) > ADVERT_BYTES_MAX or not self._budget.take(now_s):
            return
        advert = advert_in(packet)
        if advert is None:
            return
        fields, bucket = fields_of(advert.text), bucket_of(self._wall())
        roles = (role_in(key, advert.label, fields, advert.port, bucket) for key in self._keys())
        role = next(filter(None, roles), "")
        channel.tally.known += bool(role)
        if role and self._role in ("", role):
            addresses = dialled(advert.hosts, advert.port, scope, channel.place)
            self._know(advert.label, role, addresses, advert.ttl_s, now_s)

    def _know(self, label: str, role: str, addresses: Sequence[str], ttl_s: float, now_s: float) -> None:
        if ttl_s <= 0:
            candidate = self._candidates.gone(label, now_s)
            if candidate is not None:
                self._on_gone(candidate)
        else:
            candidate = self._candidates.heard(label, role, addresses, now_s, ttl_s)
            if candidate is not None:
                self._news.set()
                self._on_found(candidate)


async def discover(
    mesh: bytes | str, role: str = "", wait_s: float | None = None, interfaces: Sequence[str] = ()
) -> AsyncGenerator[Candidate, None]:
    """Candidates to dial, each at once and again every few seconds, until `wait_s` seconds are over (None: for ever).

    `mesh` as a Browser takes it.
    """
    browser = Browser(mesh, role=role, interfaces=interfaces)
    loop = asyncio.get_running_loop()
    until_s = None if wait_s is None else loop.time() + wait_s
    await browser.start()
    try:
        while True:
            try:
                async with asyncio.timeout_at(until_s):
                    candidate = await browser.next()
            except TimeoutError:
                return
            yield candidate
    finally:
        await browser.close()


@dataclass(frozen=True, slots=True)
class Advert:
    """What a packet says of a service of ours, believed by nobody yet; `hosts` are addresses."""

    label: str
    text: bytes
    port: int
    hosts: tuple[str, ...]
    ttl_s: float


def advert_in(packet: bytes) -> Advert | None:
    """The first service of ours in a packet, as a node puts one in each; None where there is none that is whole."""
    records = DNSIncoming(packet).answers()
    text = next(
        (record for record in records if isinstance(record, DNSText) and record.name.endswith(f".{SERVICE}")), None
    )
    if text is None:
        return None
    service = next((record for record in records if isinstance(record, DNSService) and record.name == text.name), None)
    if service is None or not service.port:  # nobody listens on port 0
        return None
    hosts = (record.address for record in records if isinstance(record, DNSAddress) and record.name == service.server)
    return Advert(
        text.name.removesuffix(f".{SERVICE}"),
        text.text,
        service.port,
        tuple(str(ipaddress.ip_address(host)) for host in hosts),
        text.ttl,
    )


# -- interfaces as they come and go ------------------------------------------------------------------------


class _Channels:
    """A channel on every interface that is there; `opened` is called with new ones, and with all after the machine
    slept."""

    def __init__(
        self,
        what: str,
        member: bool,
        names: Sequence[str],
        look: Look,
        opened: Callable[[_Channel], Awaitable[None]],
        tick: Callable[[], Awaitable[None]],
        hear: Callable[[_Channel, bytes, int], None] | None = None,
    ) -> None:
        self.tallies: dict[tuple[str, str], MulticastCounts] = {}
        self._what = what
        self._member, self._names, self._look_here = member, names, look
        self._opened, self._tick, self._hear = opened, tick, hear
        self._open: dict[MulticastInterface, _Channel] = {}
        self._failed: dict[MulticastInterface, int] = {}  # times since it last worked
        self._waking = SleepDetector()
        self._tasks = Tasks()
        self._task: asyncio.Task[None] | None = None

    @property
    def open(self) -> list[_Channel]:
        return list(self._open.values())

    async def start(self) -> None:
        await self._look()
        self._task = self._tasks.keep("mDNS", self._keep)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await asyncio.gather(*(channel.close() for channel in self._open.values()))
        self._open.clear()

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self._look()
            await self._tick()
            if self._waking.tick(asyncio.get_running_loop().time(), time.time()):
                for channel in self.open:
                    await self._begin(channel)

    async def _look(self) -> None:
        """Open what is new or failed before, close what went."""
        try:
            wanted = multicast_interfaces(self._look_here(), self._names) if self._member else [LOOPBACK]
        except OSError as error:
            log.warning("cannot look at this machine's network interfaces: %s", error)
            return
        for place, channel in list(self._open.items()):
            if place not in wanted or channel.lost:
                del self._open[place]
                await channel.close()
        for place in wanted:
            if place not in self._open:
                await self._try(place)
        self._failed = {place: times for place, times in self._failed.items() if place in wanted}

    async def _try(self, place: MulticastInterface) -> None:
        tally = self.tallies.setdefault((place.interface, place.group), MulticastCounts(place.interface, place.group))
        while len(self.tallies) > TALLIES_MAX:
            del self.tallies[next(iter(self.tallies))]
        try:
            channel = self._open[place] = await _Channel.opened(place, tally, self._hear)
        except Exception as fault:  # others are still to be opened
            self._not_open(place, tally, fault)
        else:
            await self._begin(channel)

    async def _begin(self, channel: _Channel) -> None:
        """Have something said on a channel; one on which that fails is opened anew."""
        try:
            await self._opened(channel)
            self._failed.pop(channel.place, None)
        except Exception as fault:
            channel.lost = True
            self._not_open(channel.place, channel.tally, fault)

    def _not_open(self, place: MulticastInterface, tally: MulticastCounts, fault: Exception) -> None:
        error = fault if isinstance(fault, OSError) else OSError(errno.EIO, str(fault))
        tally.failed(error)
        self._failed[place] = self._failed.get(place, 0) + 1
        if self._failed[place] == TOLD_AFTER:
            log.warning(
                "cannot %s by mDNS on %s (%s): %s; trying again, and --peer works without it",
                self._what, place.interface, place.group, fault, exc_info=None if error is fault else fault,
            )  # fmt: skip


class _Channel:
    """mDNS on one interface in one IP family."""

    def __init__(
        self,
        place: MulticastInterface,
        tally: MulticastCounts,
        zeroconf: _Zeroconf,
        hear: Callable[[_Channel, bytes, int], None] | None,
    ) -> None:
        self.place = place
        self.tally = tally
        self.zeroconf = zeroconf
        self.lost = False  # a socket ended by itself
        self._own = {address.partition("%")[0] for address in place.own}
        self._hear = hear
        self._heard_asking_s = float("-inf")
        self._soon: list[float] = []
        self._asking: asyncio.TimerHandle | None = None
        self._sending = Tasks()

    @classmethod
    async def opened(
        cls, place: MulticastInterface, tally: MulticastCounts, hear: Callable[[_Channel, bytes, int], None] | None
    ) -> _Channel:
        """A channel that sends and hears; OSError for an interface that cannot."""
        try:
            channel = cls(place, tally, _Zeroconf(place, tally), hear)
        except RuntimeError as error:  # the interface went meanwhile
            raise OSError(errno.ENODEV, str(error)) from None
        try:
            await channel._open()
        except BaseException:
            await channel.close()
            raise
        return channel

    async def _open(self) -> None:
        try:
            await self.zeroconf.async_wait_for_start()
        except NotRunningException:
            raise OSError(errno.ETIMEDOUT, "its sockets did not open") from None
        if not self.zeroconf.engine.senders:
            raise OSError(errno.EADDRNOTAVAIL, "no multicast here, or its address is not in use yet")
        for reader in self.zeroconf.engine.readers:
            _hear_this_interface_only(reader.sock, self.place.version)
            reader.transport.set_protocol(_PacketFilter(self, reader.transport.get_protocol()))

    async def close(self) -> None:
        self.lost = True
        if self._asking is not None:
            self._asking.cancel()
        self._sending.cancel()
        await AsyncZeroconf(zc=self.zeroconf).async_close()

    def sending(self, packets: Awaitable[Any]) -> None:
        """Packets that leave over the next half second."""
        self._sending.run("sending by mDNS", _awaited(packets), unheard)

    def ask(self, soon_s: Sequence[float] = ASK_SOON_S) -> None:
        """Ask who is there, a few times soon and then now and again.

        The first answers may come to this node alone: a node that has just answered all may not do so again for a
        second.
        """
        self._soon = list(soon_s)
        self._ask(_TO_ME)

    def _ask(self, whom: int = 0) -> None:
        loop = asyncio.get_running_loop()
        if self._asking is not None:
            self._asking.cancel()
        soon = bool(self._soon)
        self._asking = loop.call_later(self._soon.pop(0) if soon else ASK_S, self._ask)
        if soon or loop.time() - self._heard_asking_s > ASK_S / 2:
            question = DNSOutgoing(_QUERY)
            question.add_question(DNSQuestion(SERVICE, _PTR, _IN | whom))
            self.zeroconf.async_send(question)

    def received(self, packet: bytes, source: tuple[Any, ...], inner: asyncio.DatagramProtocol) -> None:
        """Count what comes, and keep from zeroconf all but questions about our service."""
        if source[0].partition("%")[0] not in self._own:
            self.tally.heard += 1
        if len(packet) < 3 or _LABEL not in packet:
            return
        if not packet[2] & _ANSWER_BIT:
            self._heard_asking_s = asyncio.get_running_loop().time()
            inner.datagram_received(packet, source)
            return
        self.tally.adverts += 1
        if self._hear is not None:
            self._hear(self, packet, source[3] if len(source) == 4 else 0)


class _PacketFilter(asyncio.DatagramProtocol):
    """A filter between a socket and zeroconf."""

    def __init__(self, channel: _Channel, inner: Any) -> None:
        self._channel = channel
        self._inner = inner

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        self._channel.received(data, addr, self._inner)

    def error_received(self, exc: Exception) -> None:
        """A packet did not leave; the next may."""
        if isinstance(exc, OSError):
            self._channel.tally.failed(exc)

    def connection_lost(self, exc: Exception | None) -> None:
        self._channel.lost = True
        self._inner.connection_lost(exc)


class _Zeroconf(Zeroconf):
    """zeroconf on one interface, with a count of what it sends."""

    def __init__(self, place: MulticastInterface, tally: MulticastCounts) -> None:
        self._tally = tally
        version = IPVersion.V4Only if place.version == 4 else IPVersion.V6Only
        super().__init__(interfaces=[_as_zeroconf_names(place)], ip_version=version)

    def async_send(self, *args: Any, **options: Any) -> None:
        self._tally.sent += 1
        super().async_send(*args, **options)


def _keys(given: bytes | str | Keys) -> Keys:
    if callable(given):
        return given
    keys = (given if isinstance(given, bytes) else key_of_name(given),)
    return lambda: keys


class _RateLimit:
    """Limits how many adverts are read in a second."""

    def __init__(self) -> None:
        self._since_s = float("-inf")
        self._left = 0

    def take(self, now_s: float) -> bool:
        if now_s - self._since_s >= 1.0:
            self._since_s, self._left = now_s, ADVERTS_PER_S_MAX
        self._left -= 1
        return self._left >= 0


def _as_zeroconf_names(place: MulticastInterface) -> str | int:
    """IPv6 multicast goes by an interface's number, since a link-local address may be that of several."""
    if place.version == 6:
        with contextlib.suppress(OSError):  # Windows has other names for some
            return socket.if_nametoindex(place.interface)
    return place.own[0].partition("%")[0]


def _hear_this_interface_only(sock: Any, version: int) -> None:
    """Linux gives a socket what comes in by any interface where any process listens; others do not."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # a kernel without the option: a packet is then counted twice
            sock.setsockopt(*_MULTICAST_ALL[version], 0)


async def _awaited(packets: Awaitable[Any]) -> None:
    await packets
