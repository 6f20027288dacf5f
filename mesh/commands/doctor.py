"""`mesh-coord doctor`: gathers facts about a mesh and this machine, and tells what is wrong with them.

What counts as wrong, and what to do then, is in `mesh/commands/diagnosis.py`.  It changes nothing, and works without a
running coordinator: then it says so and looks at this machine only.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import errno
import json
import os
import platform
import secrets
import shutil
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from wire.addresses import parse_address
from wire.discovery.mdns import Browser
from wire.discovery.multicast_sockets import LOOPBACK, MulticastCounts
from wire.errors import MeshError
from wire.joining.join_port import PORT_OFFSET
from wire.link.address_policy import is_loopback
from wire.link.membership import COORDINATOR_FILE, coordinator_known
from wire.package import package_version
from wire.protocol.messages import Nodes
from worker.config import WorkerConfig
from worker.devices.registry import list_devices
from worker.engine_host.sandbox import layers_here, sandbox_text

from ..backends.enrolment import is_client
from .diagnosis import (
    EVERY,
    PROBLEM,
    SYSTEMS,
    Adapter,
    Checked,
    Facts,
    Here,
    Knock,
    Multicast,
    Reached,
    Room,
    Trouble,
    Unreached,
    Worker,
    checked,
    diagnose,
)
from .exit_codes import FAILED, OK
from .find_coordinator import connect, named
from .flags import mesh_name
from .output import say
from .tables import pair_fields, print_pairs, print_table

LISTEN_S = 2.5  # in which the question goes out three times; what is there answers within a second
KNOCK_S = 3.0
KEY_BYTES = 32


def doctor(options: argparse.Namespace) -> int:
    """Check everything; 1 if there is a problem, else 0."""
    facts = asyncio.run(_gather(options))
    troubles = diagnose(facts)
    rows = checked(facts, troubles)
    wrong = any(trouble.level == PROBLEM for trouble in troubles)
    if options.json:
        say(json.dumps(_as_json(facts, rows, troubles, not wrong)))
    else:
        _print(facts, rows, troubles, options.quiet)
    return FAILED if wrong else OK


# -- gathering --------------------------------------------------------------------------------------------


async def _gather(options: argparse.Namespace) -> Facts:
    config = WorkerConfig(mesh=mesh_name(options))
    address = named(options)
    multicast, reply = await asyncio.gather(_multicast(), _ask(options))
    coordinator, nodes = reply
    if isinstance(coordinator, Reached):
        addresses = [parse_address(coordinator.address)]
    else:
        addresses = [address] if address else _known(config.state_base)
    knocks = await asyncio.gather(*(_knock(*port) for port in _ports(addresses)))
    adapters = None if nodes else _adapters(await asyncio.to_thread(list_devices))
    rooms = (_room("state", config.state_base), _room("cache", config.cache_folder("")))
    here = Here(platform.system(), package_version(), multicast, rooms, adapters, sandbox_text(layers_here()))
    if nodes is None:
        return Facts(here, coordinator, tuple(knocks))
    return Facts(here, coordinator, tuple(knocks), _workers(nodes), nodes.pairs)


async def _ask(options: argparse.Namespace) -> tuple[Reached | Unreached, Nodes | None]:
    """The coordinator and its reports; if none answers, why."""
    try:
        remote = await connect(options)
        try:
            asked_s = time.time()
            nodes = await remote.census()
            ahead_s = nodes.time_s - (asked_s + time.time()) / 2 if nodes.time_s else 0.0
            peer = remote.coordinator
            return Reached(peer.name, remote.address, nodes.system, peer.version, ahead_s), nodes
        finally:
            await remote.close()
    except MeshError as error:
        why = f"{error.message} ({error.cause})" if error.cause else error.message
        return Unreached(why, error.next_step, await asyncio.to_thread(is_client, mesh_name(options))), None


async def _multicast() -> tuple[Multicast, ...]:
    """Send and receive multicast for a while, with a key of no mesh, to see whether packets go out and come in."""
    browser = Browser(secrets.token_bytes(KEY_BYTES))
    await browser.start()
    try:
        await asyncio.sleep(LISTEN_S)
        tallies = [tally for tally in browser.tallies if tally.interface != LOOPBACK.interface]
    finally:
        await browser.close()
    names = dict.fromkeys(tally.interface for tally in tallies)
    return tuple(_multicast_of(name, [tally for tally in tallies if tally.interface == name]) for name in names)


def _multicast_of(interface: str, tallies: Sequence[MulticastCounts]) -> Multicast:
    """Sum up the tallies of an interface, which is well if one IP family works."""
    sent = sum(tally.sent for tally in tallies)
    errors = [errno.errorcode.get(tally.last_errno, "?") for tally in tallies if tally.last_errno]
    return Multicast(interface, sent, sum(tally.heard for tally in tallies), "" if sent else "".join(errors[:1]))


def _known(state: Path) -> list[tuple[str, int]]:
    """The addresses at which nodes of this user last reached a coordinator, without this machine's own."""
    addresses = dict.fromkeys(text for file in state.glob(f"*/{COORDINATOR_FILE}") for text in coordinator_known(file))
    return [address for address in map(parse_address, addresses) if not is_loopback(address[0])]


def _ports(addresses: Iterable[tuple[str, int]]) -> Iterable[tuple[str, str, int]]:
    for host, port in addresses:
        yield "mesh port", host, port
        if port + PORT_OFFSET < 1 << 16:
            yield "join port", host, port + PORT_OFFSET


async def _knock(what: str, host: str, port: int) -> Knock:
    try:
        async with asyncio.timeout(KNOCK_S):
            _, writer = await asyncio.open_connection(host, port)
        writer.transport.abort()
        return Knock(what, host, port, True)
    except TimeoutError:
        return Knock(what, host, port, False, cause=f"no answer in {KNOCK_S:g} s")
    except (OSError, UnicodeError) as error:
        nobody = f"[Errno {errno.ECONNREFUSED}]" in str(error)  # a name of several addresses has them all in its text
        refused = nobody or isinstance(error, ConnectionRefusedError)
        number = getattr(error, "errno", None) or 0  # that of a name without an address is below 0
        return Knock(what, host, port, False, refused, os.strerror(number) if number > 0 else str(error))


def _room(what: str, folder: Path) -> Room:
    """The space on the disk that has the folder, or would have it."""
    there = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    return Room(what, str(folder), shutil.disk_usage(there).free)


class _Device(Protocol):
    @property
    def engine(self) -> str: ...
    @property
    def adapter(self) -> str: ...
    @property
    def software(self) -> bool: ...


def _adapters(devices: Iterable[_Device]) -> tuple[Adapter, ...]:
    return tuple(Adapter(device.engine, device.adapter, device.software) for device in devices)


def _workers(nodes: Nodes) -> tuple[Worker, ...]:
    return tuple(
        Worker(
            node.name,
            node.system,
            node.state,
            node.silent_s,
            node.version,
            next(iter(node.addresses), ""),
            _adapters(node.devices),
            node.without_gpu,
            node.sandbox,
        )
        for node in nodes.nodes
    )


# -- telling ----------------------------------------------------------------------------------------------


def _print(facts: Facts, rows: Sequence[Checked], troubles: Sequence[Trouble], quiet: bool) -> None:
    if not quiet:
        print_table(("check", "result", "seen"), [dataclasses.astuple(row) for row in rows])
        if facts.pairs:
            say()
            print_pairs(facts.pairs)
        say()
    for trouble in troubles:
        if trouble.level == PROBLEM or not quiet:
            say(f"{trouble.level}: {trouble.where}: {trouble.what}")
            for system, line in trouble.fix.items():
                say(f"  to do{'' if system == EVERY else f' on {SYSTEMS[system]}'}: {line}")
    if not (troubles or quiet):
        say("nothing is wrong")


def _as_json(facts: Facts, rows: Sequence[Checked], troubles: Sequence[Trouble], well: bool) -> dict[str, Any]:
    return {
        "ok": well,
        "checks": [dataclasses.asdict(row) for row in rows],
        "findings": [{**dataclasses.asdict(trouble), "fix": dict(trouble.fix)} for trouble in troubles],
        "facts": {**dataclasses.asdict(facts), "pairs": [pair_fields(pair) for pair in facts.pairs]},
    }
