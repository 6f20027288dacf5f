"""Bulk bytes of one link: which chunk goes next, how far ahead of the receiver, and where arriving ones belong.

A Sender takes one chunk in turn from every stream and from the oldest long frame, and stops when the window is used up;
a Receiver puts chunks in place, checks that none is missing or too much, and says when credit is due.  Neither knows
requests, events or states (`peer.py`); bytes are only copied when a chunk leaves and when it is put in place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..errors import LocalError, ProtocolError
from .frames import Bytes, Piece, StreamChunk


@dataclass(slots=True)
class _Outgoing:
    """What is left to send of one stream or long frame; `label` is the stream, or the request a long frame carries."""

    label: int
    size: int
    data: Sequence[memoryview]
    offset: int = 0
    part: int = 0
    part_offset: int = 0

    def take(self, size_max: int) -> memoryview:
        """The next bytes, at most `size_max`, never across two parts."""
        while self.part_offset == len(self.data[self.part]):
            self.part, self.part_offset = self.part + 1, 0
        chunk = self.data[self.part][self.part_offset : self.part_offset + size_max]
        self.part_offset += len(chunk)
        self.offset += len(chunk)
        return chunk


@dataclass(slots=True)
class Sender:
    """Outgoing streams and long frames.  `credit` is how many more bytes may leave now."""

    chunk_bytes_max: int
    window_bytes: int = 0
    credit: int = 0
    finished: list[int] = field(default_factory=list)  # streams whose last byte left, until the caller takes them
    _streams: dict[int, _Outgoing] = field(default_factory=dict)
    _turns: deque[_Outgoing] = field(default_factory=deque)
    _long: deque[_Outgoing] = field(default_factory=deque)  # sent one after the other
    _long_turn: bool = False

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def has_bytes(self) -> bool:
        """Whether anything is left to send, with or without credit."""
        return bool(self._turns or self._long)

    def open(self, window_bytes: int) -> None:
        """The link stands."""
        self.window_bytes = self.credit = window_bytes

    def add_stream(self, stream: int, data: Sequence[memoryview]) -> None:
        """Send a stream's bytes; an empty one is finished at once."""
        size = sum(len(part) for part in data)
        if size == 0:
            self.finished.append(stream)
            return
        outgoing = self._streams[stream] = _Outgoing(stream, size, data)
        self._turns.append(outgoing)

    def add_long(self, request: int, frame: bytes) -> None:
        """Send a frame in pieces; `request` (0 for none) is the request it carries."""
        self._long.append(_Outgoing(request, len(frame), [memoryview(frame)]))

    def stop_stream(self, stream: int) -> bool:
        """Send no more of a stream; False if its last byte has left."""
        outgoing = self._streams.pop(stream, None)
        if outgoing is not None:
            self._turns.remove(outgoing)
        return outgoing is not None

    def stop_long(self, request: int) -> bool:
        """Send no more of the frame that carries a request; False if its last byte has left."""
        stopped = [outgoing for outgoing in self._long if outgoing.label == request]
        for outgoing in stopped:
            self._long.remove(outgoing)
        return bool(stopped)

    def next(self) -> Piece | StreamChunk | None:
        """The next chunk, or None if there is none or no credit."""
        size_max = min(self.chunk_bytes_max, self.credit)
        if size_max == 0 or not (self._long or self._turns):
            return None
        self._long_turn = not self._long_turn
        long = bool(self._long) and (self._long_turn or not self._turns)
        outgoing = (self._long if long else self._turns).popleft()
        offset = outgoing.offset
        chunk = outgoing.take(size_max)
        self.credit -= len(chunk)
        unfinished = outgoing.offset < outgoing.size
        if long:
            if unfinished:
                self._long.appendleft(outgoing)
            return Piece(outgoing.size, offset, chunk)
        if unfinished:
            self._turns.append(outgoing)
        else:
            del self._streams[outgoing.label]
            self.finished.append(outgoing.label)
        return StreamChunk(outgoing.label, offset, chunk)

    def add_credit(self, size: int) -> None:
        """The receiver took bytes.  ProtocolError for more than were sent."""
        self.credit += size
        if self.credit > self.window_bytes:
            raise ProtocolError("more credit came than was used")


@dataclass(slots=True, eq=False)
class PacedBuffer:
    """A stream's buffer that its owner empties while it fills: the sender gets credit for what was `emptied` only."""

    view: memoryview
    arrived: int = 0  # bytes, from its beginning on
    emptied: int = 0
    given_up: bool = False  # nobody empties it any more: bytes that come get their credit at once


@dataclass(slots=True)
class _Incoming:
    """A stream being received; without a buffer its bytes are dropped (it was refused)."""

    size: int
    buffer: memoryview | None = None
    paced: PacedBuffer | None = None
    waits: bool = True  # for `place` or `drop`
    offset: int = 0


@dataclass(slots=True)
class Receiver:
    """Incoming streams and the long frame being put together.  All mistakes of the sender are ProtocolErrors."""

    window_bytes: int = 0
    allowed: int = 0  # bytes that may still come
    taken: int = 0  # bytes that came and are not yet credited
    _streams: dict[int, _Incoming] = field(default_factory=dict)
    _long: bytearray | None = None  # as much of it as came: what it claims to become is not believed
    _long_size: int = 0

    def __len__(self) -> int:
        return len(self._streams)

    def open(self, window_bytes: int) -> None:
        """The link stands."""
        self.window_bytes = self.allowed = window_bytes

    def add_stream(self, stream: int, size: int) -> None:
        """A stream begins; `place` or `drop` it before its first chunk."""
        if stream in self._streams:
            raise ProtocolError(f"stream {stream} is already open")
        self._streams[stream] = _Incoming(size)

    def place(self, stream: int, room: memoryview | PacedBuffer) -> bool:
        """Set the buffer for the bytes; True if that is all (an empty stream)."""
        incoming = self._waiting(stream)
        buffer, paced = (room.view, room) if isinstance(room, PacedBuffer) else (room, None)
        if buffer.readonly or buffer.nbytes != incoming.size:
            raise LocalError(f"stream {stream} needs a writable buffer of {incoming.size} bytes, got {buffer.nbytes}")
        incoming.waits, incoming.paced = False, paced
        incoming.buffer = buffer.cast("B") if buffer.nbytes else buffer
        return self._is_complete(stream, incoming)

    def drop(self, stream: int) -> None:
        """Ignore what comes of a stream."""
        incoming = self._waiting(stream)
        incoming.waits = False
        self._is_complete(stream, incoming)

    def chunk(self, frame: StreamChunk) -> bool:
        """Put a chunk in place; True if it completes a stream that is still needed."""
        incoming = self._streams.get(frame.stream)
        if incoming is None:
            raise ProtocolError(f"stream {frame.stream} is not open")
        end = frame.offset + len(frame.payload)
        if frame.offset != incoming.offset or end > incoming.size:
            there = f"{incoming.offset} of {incoming.size} were there"
            raise ProtocolError(f"stream {frame.stream}: bytes {frame.offset} to {end} came, {there}")
        if incoming.waits:
            raise LocalError(f"stream {frame.stream} was neither placed nor dropped")
        paced = incoming.paced
        self._count(len(frame.payload), later=paced is not None and not paced.given_up)
        if incoming.buffer is not None:
            incoming.buffer[frame.offset : end] = frame.payload
        if paced is not None:
            paced.arrived = end
        incoming.offset = end
        return self._is_complete(frame.stream, incoming)

    def emptied(self, paced: PacedBuffer, size: int) -> None:
        """Count bytes that the owner of a buffer took out of it."""
        if not paced.given_up:
            paced.emptied += size
            self.taken += size

    def give_up(self, paced: PacedBuffer) -> None:
        """Count what is in a buffer, and what still comes: its owner takes no more out of it."""
        self.emptied(paced, paced.arrived - paced.emptied)
        paced.given_up = True

    def abort(self, stream: int) -> bool:
        """The sender gave a stream up; whether it was still needed."""
        incoming = self._streams.pop(stream, None)
        if incoming is None:
            raise ProtocolError(f"stream {stream} is not open")
        return incoming.buffer is not None

    def piece(self, frame: Piece) -> Bytes | None:
        """Add a piece; the long frame once it is complete.  A first piece replaces a frame that was given up."""
        self._count(len(frame.payload))
        if frame.offset == 0:
            self._long, self._long_size = bytearray(), frame.total
        if self._long is None or self._long_size != frame.total or len(self._long) != frame.offset:
            raise ProtocolError("a piece of a long frame is missing")
        self._long += frame.payload
        if len(self._long) < frame.total:
            return None
        message, self._long = self._long, None
        return message

    def credit_due(self) -> int:
        """Bytes to give credit for now (a quarter of the window at a time), else 0."""
        if self.taken * 4 < self.window_bytes:
            return 0
        due, self.taken = self.taken, 0
        self.allowed += due
        return due

    def _count(self, size: int, later: bool = False) -> None:
        self.allowed -= size
        self.taken += 0 if later else size
        if self.allowed < 0:
            raise ProtocolError(f"{-self.allowed} bytes came beyond the credit given")

    def _waiting(self, stream: int) -> _Incoming:
        incoming = self._streams.get(stream)
        if incoming is None or not incoming.waits:
            raise LocalError(f"stream {stream} does not wait for a buffer")
        return incoming

    def _is_complete(self, stream: int, incoming: _Incoming) -> bool:
        if incoming.offset < incoming.size:
            return False
        del self._streams[stream]
        return incoming.buffer is not None
