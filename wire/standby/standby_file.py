"""Standby file: what a voter or a coordinator has to remember about who serves, in its state folder.

A voter keeps its record, and the epoch of the coordinator that it served last.  A coordinator also keeps the epochs of
all coordinators that its journal goes on from, and where the other ones are dialled.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..bounds import STANDBY_PEERS
from ..errors import ConfigError, NotDurable
from ..system.atomic_files import Disk
from ..system.in_order import InOrder
from .configuration import Ballot, Configuration, Record

STANDBY_FILE = "standby.json"
PROMOTE_FILE = "promote"  # in the folder of a coordinator that follows: the operator's word that it takes over
FORMAT = 1
PEERS_MAX = STANDBY_PEERS.most


@dataclass(frozen=True, slots=True)
class Remembered:
    """The contents of the file.  `peers` are the addresses of other coordinators by node id."""

    record: Record = field(default_factory=Record)
    epochs: tuple[int, ...] = ()
    peers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class StandbyFile:
    """The file in `folder`; what it says is read once.  Threads write it, one change after the other."""

    def __init__(self, folder: Path, disk: Disk | None = None) -> None:
        self._path = folder / STANDBY_FILE
        self.exists = self._path.exists()
        self.remembered = self._read() if self.exists else Remembered()
        self._disk = disk or Disk()
        self._changes = InOrder()

    async def change(self, **fields: Any) -> None:
        """Write it with other values in some fields, unless it has them; NotDurable if the disk refuses, and then
        `remembered` is as it was."""
        await self._changes.do("writing who serves", lambda: self._change(fields))

    async def met(self, node: str, addresses: Sequence[str], **fields: Any) -> None:
        """Remember where another coordinator is dialled, and forget the oldest of too many; never one that counts, as
        it may have taken over.  Other fields are written along.  NotDurable if the disk refuses."""

        async def change() -> None:
            peers = {**self.remembered.peers, node: tuple(addresses)}
            known = self.remembered.record.configuration
            counts = {node} | (known.everybody if known is not None else frozenset())
            spare = [each for each in peers if each not in counts]
            for gone in spare[: max(len(peers) - PEERS_MAX, 0)]:
                del peers[gone]
            await self._change({**fields, "peers": peers})

        await self._changes.do("writing where a coordinator is", change)

    async def _change(self, fields: Mapping[str, Any]) -> None:
        changed = dataclasses.replace(self.remembered, **fields)
        if changed == self.remembered and self.exists:
            return
        try:
            data = json.dumps(_fields(changed), indent=1).encode()
            await asyncio.to_thread(self._disk.write_whole, self._path, [data])
        except OSError as error:
            raise NotDurable(
                f"{self._path} cannot be written, and without it this node would forget what it promised",
                cause=str(error),
                next_step="Make room on that disk, or have it repaired",
            ) from None
        self.remembered, self.exists = changed, True

    def _read(self) -> Remembered:
        try:
            fields = json.loads(self._path.read_bytes())
            if fields["format"] != FORMAT:
                raise ConfigError(f"{self._path} has format {fields['format']}", next_step="Upgrade graph-mesh")
            record, configuration = fields["record"], fields["record"]["configuration"]
            known = configuration and Configuration(
                configuration["version"],
                frozenset(configuration["in_sync"]),
                tuple(frozenset(voters) for voters in configuration["voters"]),
            )
            kept = Record(Ballot(*record["promised"]), Ballot(*record["accepted"]), known)
            peers = {node: tuple(addresses) for node, addresses in fields["peers"].items()}
            return Remembered(kept, tuple(fields["epochs"]), peers)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{self._path} is damaged, and without it this node may vote twice",
                cause=f"{type(error).__name__}: {error}",
                next_step="Restore it from a copy, or remove the state folder to make this a new node",
            ) from None


def _fields(remembered: Remembered) -> dict[str, Any]:
    record = remembered.record
    known = record.configuration
    configuration = known and {
        "version": known.version,
        "in_sync": sorted(known.in_sync),
        "voters": [sorted(voters) for voters in known.voters],
    }
    ballots = {name: [ballot.round, ballot.node] for name, ballot in _ballots(record)}
    return {
        "format": FORMAT,
        "record": {**ballots, "configuration": configuration},
        "epochs": list(remembered.epochs),
        "peers": {node: list(addresses) for node, addresses in remembered.peers.items()},
    }


def _ballots(record: Record) -> tuple[tuple[str, Ballot], ...]:
    return ("promised", record.promised), ("accepted", record.accepted)
