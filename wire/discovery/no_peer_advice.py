"""What to say where a worker has been alone for a while: what was tried, what came of it, and what to type.  Pure.

There is one such line per loneliness, so it has to hold everything that somebody at a second machine needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..link.address_policy import is_loopback

if TYPE_CHECKING:
    from .multicast_sockets import Tally


def alone(waited_s: float, addresses: Sequence[str], tallies: Sequence[Tally], failures: Mapping[str, str]) -> str:
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
