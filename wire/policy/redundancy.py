"""Redundancy: which copies of what a plan needs are kept against deaths, as values.  Pure data, with a text form that
travels.

    replica         another device has it too: nothing moves when a worker dies
    buddy           a second worker has the bytes
    coded           workers have checks of what several others hold; any k of n give all back ("coded 3 of 5")
    checkpoint      this process has it: the client's, or the coordinator's
    none            nobody has it twice

What each costs, and what a death then costs, `coordinator/planning/redundancy/redundancy_cost.py` says of a plan.  To
add one, a row of `KINDS`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import InputError

_CODED = re.compile(r"coded (\d+) of (\d+)")
SHARES_MAX = 32


@dataclass(frozen=True, slots=True)
class Kind:
    """What a word means.  With `members` contents that workers hold, `extra` others hold one check each; 0 members are
    as many as there are workers for, and 0 checks none.  With `here`, this process is a holder."""

    meaning: str
    members: int = 0
    extra: int = 0
    here: bool = False
    on_devices: bool = False


KINDS = {
    "replica": Kind("another device has it", on_devices=True),
    "buddy": Kind("a second worker has the bytes", members=1, extra=1),
    "coded": Kind("workers have checks of what others hold", extra=1),
    "checkpoint": Kind("this process has it", here=True),
    "none": Kind("nobody has it twice"),
}
OF_CALLS = ("replica", "buddy", "coded", "checkpoint")  # this process has the params of calls in any case
OF_SESSIONS = ("buddy", "coded", "checkpoint", "none")


@dataclass(frozen=True, slots=True)
class Copies:
    """A policy: the text that was given, and what it means."""

    text: str
    members: int
    extra: int
    here: bool
    on_devices: bool

    @property
    def on_workers(self) -> bool:
        """Whether workers hold something for each other."""
        return self.extra > 0


def copies_of(text: object, known: tuple[str, ...] = tuple(KINDS)) -> Copies:
    """The policy that a text means; InputError unless it is one of those `known`, or "coded K of N" where that is."""
    match = _CODED.fullmatch(text) if isinstance(text, str) and "coded" in known else None
    if match is not None:
        k, n = int(match[1]), int(match[2])
        if not 1 <= k < n <= SHARES_MAX:
            raise InputError(f"copies={text!r}: any k of n, where 1 <= k < n <= {SHARES_MAX}")
        return Copies(match[0], k, n - k, here=False, on_devices=False)
    kind = KINDS.get(text) if isinstance(text, str) and text in known else None
    if kind is None or not isinstance(text, str):
        more = ', or "coded K of N"' if "coded" in known else ""
        names = ", ".join(map(repr, known))
        raise InputError(f"copies={text!r} is not known", next_step=f"Choose one of {names}{more}")
    return Copies(text, kind.members, kind.extra, kind.here, kind.on_devices)
