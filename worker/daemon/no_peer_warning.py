"""The warning of a worker that has no coordinator: what was tried, what came of it, and what to type.

There is one such line each time that it is alone, so it has to contain everything that a user at a second machine
needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from wire.discovery.multicast_sockets import MulticastCounts
from wire.link.address_policy import is_loopback
from wire.system.steady_log import steady_logger

log = steady_logger("graph_mesh.worker")


async def warn_without_coordinator(after_s: float, owner: Callable[[], str], text: Callable[[float], str]) -> None:
    """Warn with `text(waited_s)` after so long without an owner, and again only after there was one; never returns."""
    loop = asyncio.get_running_loop()
    since_s, warned = loop.time(), False
    while True:
        await asyncio.sleep(after_s / 10)
        waited_s = loop.time() - since_s
        if owner():
            since_s, warned = loop.time(), False
        elif not warned and waited_s >= after_s:
            warned = True
            log.warning("%s", text(waited_s))


def text_without_coordinator(
    waited_s: float, addresses: Sequence[str], tallies: Sequence[MulticastCounts], failures: Mapping[str, str]
) -> str:
    """The warning of a worker that may be dialled at `addresses`.

    `tallies` are what mDNS did on every interface, none where it is off; `failures` has for every --peer why it was not
    reached when it was last tried.
    """
    lines = [f"no coordinator in {waited_s:.0f} s"]
    lines += [f"mDNS on {tally}" for tally in tallies] or ["mDNS is off, so nobody can find this worker by itself"]
    lines += [f"--peer {peer}: {failure}" for peer, failure in failures.items()]
    if tallies and not any(tally.heard for tally in tallies) and not _local(addresses):
        lines.append("nothing was heard from any other machine: the network or a firewall keeps multicast back")
    return "\n  ".join([*lines, *_what_to_type(addresses)])


def _what_to_type(addresses: Sequence[str]) -> list[str]:
    here = "here, with the address that mesh-coord serve printed: mesh-worker --peer HOST:PORT"
    if not addresses:
        return ["this machine has no network that others can reach", here]
    local = _local(addresses)
    where = "on this machine" if local else "where the coordinator runs"
    lines = [f"{where}: mesh-coord serve --peer {addresses[0]}", f"or {here}"]
    if local:
        lines.insert(0, "it keeps to this machine, since it has joined no mesh (mesh-worker join)")
    return lines


def _local(addresses: Sequence[str]) -> bool:
    """Whether a worker that may be dialled there keeps to its own machine."""
    return bool(addresses) and all(is_loopback(address.rpartition(":")[0]) for address in addresses)
