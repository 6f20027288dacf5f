"""Direct calls in an engine host: the thread that computes takes them itself, between the daemon's messages.

Nobody can be held up by them: a call is of one part that took less than 2 ms before, its tensors are small, and a
caller that does not read its answer is hung up on.  A part that the daemon takes back takes no more calls.  Where runs
are suspended the daemon alone says for what there is memory, so callers are sent to it.
"""

from __future__ import annotations

import contextlib
import select
import socket
import sys
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Protocol

from wire.bounds import DIRECT_CALLERS
from wire.errors import FrameError
from wire.ir.types import TensorType
from wire.protocol.direct_calls import READ_BYTES, TENSORS_BYTES_MAX, DirectAnswer, DirectCall, Unpacker, pack

from ..engine import host_messages as messages
from ..engine.descriptors import Handed

CALLERS_MAX = DIRECT_CALLERS.most
RUN = 1 << 62  # the number of all direct calls: the daemon's runs, which it stops by theirs, never have such a one


class Runs(Protocol):
    """What direct calls need of the host."""

    lost: bool  # whether this process is to end

    def signature(self, number: int) -> tuple[dict[int, TensorType], list[TensorType]] | None:
        """The types of what a prepared part is given, by position, and of what it gives; None where the daemon alone
        may run it now."""
        ...

    def handle(self, message: messages.ToHost) -> messages.FromHost | None:
        """The answer to one message."""
        ...


@dataclass(slots=True)
class _Caller:
    prepared: int
    socket: socket.socket
    reading: Unpacker[DirectCall] = field(default_factory=lambda: Unpacker(DirectCall))


class DirectCalls:
    """The callers of a host, to which the daemon hands their connections, and writes to `pipe_fd`."""

    def __init__(self, host: Runs, pipe_fd: int, handed: Handed | None) -> None:
        self._host, self._pipe_fd, self._handed = host, pipe_fd, handed
        self._callers: OrderedDict[int, _Caller] = OrderedDict()  # by file; the least recently used first

    def heard(self, message: messages.ToHost) -> None:
        """The host has handled a message of the daemon."""
        match message:
            case messages.OpenDirect(prepared):
                self._take(prepared)
            case messages.Unprepare(prepared):
                self.close(prepared)

    def _take(self, prepared: int) -> None:
        try:
            connection = self._handed.take() if self._handed is not None else None
        except ConnectionError as error:  # this process has no file left for it; the caller sees the connection end
            print(f"no direct calls: {error}", file=sys.stderr, flush=True)
            return
        if connection is not None:
            self.open(prepared, connection)

    def open(self, prepared: int, connection: socket.socket) -> None:
        """Take calls of a prepared part over a connection."""
        if not self._callers:
            self._poll = select.poll()
            self._poll.register(self._pipe_fd, select.POLLIN)
        connection.setblocking(False)
        file = connection.fileno()
        self._callers[file] = _Caller(prepared, connection)
        self._poll.register(file, select.POLLIN)
        if len(self._callers) > CALLERS_MAX:
            self._hang_up(next(iter(self._callers)))

    def close(self, prepared: int) -> None:
        """Take no more calls of a part."""
        for file in [file for file, caller in self._callers.items() if caller.prepared == prepared]:
            self._hang_up(file)

    def serve(self) -> bool:
        """Answer calls until the daemon has written something; False if this process is to end."""
        while self._callers and not self._host.lost:
            ready = [file for file, _ in self._poll.poll()]
            for file in ready:
                if file in self._callers:
                    self._answer(file, self._callers[file])
            if self._pipe_fd in ready:
                break
        return not self._host.lost

    def _answer(self, file: int, caller: _Caller) -> None:
        try:
            data = caller.socket.recv(READ_BYTES)
            call = caller.reading.feed(data) if data else None
            if call is not None:
                self._callers.move_to_end(file)
                answer = pack(self._called(caller.prepared, call))
                if caller.socket.send(answer) < len(answer):
                    data = b""  # it has not read the one before
        except (OSError, FrameError):
            data = b""
        if not data:
            self._hang_up(file)

    def _called(self, prepared: int, call: DirectCall) -> DirectAnswer:
        """Run a part, if that can be."""
        signature, refused = self._host.signature(prepared), DirectAnswer()
        if signature is None:
            return refused
        given, made = signature
        if len(given) != len(call.inputs) or sum(kind.size_bytes for kind in made) > TENSORS_BYTES_MAX:
            return refused
        inputs = tuple(
            [
                messages.Input(place, kind.dtype.name, kind.shape, False, data)
                for (place, kind), data in zip(given.items(), call.inputs, strict=True)
            ]
        )
        wanted = (messages.OutputRequest(0, 1),) * len(made)
        answer = self._host.handle(messages.ExecutePart(RUN, prepared, inputs, wanted))
        if not isinstance(answer, messages.Executed):
            return refused
        return DirectAnswer(tuple([output.data or b"" for output in answer.outputs]), answer.compute_s)

    def _hang_up(self, file: int) -> None:
        caller = self._callers.pop(file, None)
        if caller is not None:
            with contextlib.suppress(OSError):
                self._poll.unregister(file)
            caller.socket.close()
