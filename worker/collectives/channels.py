"""Channels: how a process reaches the other ranks, each through a ring buffer in either direction.

For a rank on another machine the daemons carry what is in the ring buffers, until there is a connection beside them.  A
rank that fails sends all others the error (`Channels.fail`), so none waits for one that will not come.  Every message
carries the number of its step, so a message of a step that failed is never taken for one of the next step.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from wire.errors import Cancelled, DeadlineExceeded, MeshError, RemoteError, error_of_peer, from_fields
from wire.timeouts import COLLECTIVE_TIMEOUT_S, DEFAULT_TIMEOUTS

from .remote_channel import RemoteChannel
from .ring_buffer import ERROR_BYTES_MAX, SLOT_BYTES, RingReader, RingWriter, SpinWait
from .shared_arena import SharedArena


@dataclass(slots=True)
class Channel:
    """The ring buffers to and from another rank.  If `bridged`, the daemons carry what is in them, unless there is a
    connection on `remote`."""

    writer: RingWriter
    reader: RingReader
    name: str = ""  # of the worker at the other end
    bridged: bool = False
    alive: Callable[[], bool] = lambda: True  # whether the process at the other end runs, where that can be seen
    remote: RemoteChannel | None = None


@dataclass(slots=True)
class Channels:
    """A process's channels, by any key of the other end, and the step that they are used for."""

    peers: Mapping[Any, Channel]
    notify: Callable[[], None] = lambda: None  # notifies the daemon that bridged ring buffers have changed
    tag: int = 0
    stopped: Callable[[], bool] = lambda: False
    slot_bytes: int = SLOT_BYTES  # the same on all ranks, since it determines how tensors are cut into chunks
    deadline_s: float = COLLECTIVE_TIMEOUT_S
    failure_reason_s: float = DEFAULT_TIMEOUTS.rank_failure_reason_s  # to learn why a connection ended
    spin_wait: SpinWait = field(default_factory=SpinWait)
    uses_arena: bool = False  # large tensors are reduced in shared arenas, if there is room: the same on all ranks
    arena: SharedArena | None = None
    copy_s: float = 0.0  # time in this step for copying values into ring buffers and the arena
    sent_bytes: int = 0  # values sent in this step

    def begin(self, tag: int, stopped: Callable[[], bool]) -> None:
        """Begin a step.  Tags grow, from 1."""
        self.tag, self.stopped = tag, stopped
        self.copy_s, self.sent_bytes = 0.0, 0
        if self.arena is not None:
            self.arena.begin()
        for channel in self.peers.values():
            channel.writer.resume()
            channel.reader.resume()
        remotes = [(channel.remote, channel.writer) for channel in self.peers.values() if channel.remote is not None]
        if sum(remote.begin(tag, writer) for remote, writer in remotes):
            self.notify()

    def end(self) -> None:
        """End the step."""
        self.stopped = lambda: False  # the last one refers to the runner of the step, which refers to these channels

    def fail(self, error: MeshError) -> None:
        """Give the step up, and send all other ranks the error."""
        reason = _reason_of(error)
        for channel in self.peers.values():
            channel.writer.fail(self.tag, reason)
            if channel.remote is not None:
                channel.remote.disconnect()
        self.notify()

    def check(self, waited_s: float, missing: Callable[[], str]) -> None:
        """Raise if waiting is no use any more: the run was stopped, another rank failed, or the time is over."""
        if self.stopped():
            raise Cancelled("the run was stopped while it waited for other ranks")
        for channel in self.peers.values():
            failure = channel.reader.failure(self.tag)
            if failure is not None:
                raise error_of_peer(_error_of(failure, channel.name), channel.name)
        if waited_s > self.deadline_s:
            raise DeadlineExceeded(
                f"waited {self.deadline_s:g} s for {missing()}",
                next_step="See whether it is well, or allow more time: docs/collectives.md says how",
            )


def _reason_of(error: MeshError) -> bytes:
    """An error for the other ranks, with as much of its texts as there is room for: a letter may take 12 bytes."""
    text = json.dumps({**error.to_fields(), "cause": error.cause[:500], "next_step": error.next_step[:500]})
    for chars_max in (500, 100):
        if len(text) > ERROR_BYTES_MAX:
            fields = {"code": error.code, "message": error.message[:chars_max], "node": error.node[:chars_max]}
            text = json.dumps(fields)
    return text.encode()


def _error_of(reason: bytes, name: str) -> MeshError:
    """The error that the node `name` sent.  It may have sent anything."""
    try:
        fields = json.loads(reason)
    except (ValueError, RecursionError):
        fields = None
    if isinstance(fields, dict):
        return from_fields(fields)
    return RemoteError("another rank gave up, and its reason cannot be read", node=name)
