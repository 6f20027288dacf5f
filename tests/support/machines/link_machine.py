"""One link after another between two Peers, as a hypothesis state machine: who says what, and how far the carrier is.

Nothing moves by itself: a rule has a peer hand frames to the carrier, or the carrier hand some over, on one connection
in one direction; so any frame may be the last before the carrier is lost, and any two directions may be out of step.
What must hold is checked where it is heard; `teardown` lets everything arrive and finds both sides idle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from wire.errors import Busy, LocalError, MeshError, NodeLost, OutOfMemory
from wire.limits import DEFAULT
from wire.protocol.flow_control import PacedBuffer
from wire.protocol.frames import Piece, StreamChunk, decode
from wire.protocol.peer import (
    BULK,
    CONTROL,
    Acknowledged,
    CancelReceived,
    Channel,
    Closed,
    HelloReceived,
    NotifyReceived,
    Opened,
    Peer,
    Ponged,
    Replied,
    RequestReceived,
    StreamDone,
    StreamOpened,
    StreamSent,
)

from .links import node

LIMITS = replace(
    DEFAULT, chunk_bytes_max=100, window_bytes=400, graph_bytes_max=1000, control_frame_bytes_max=1000,
    requests_per_peer_max=4, streams_per_peer_max=3,
)  # fmt: skip
LANES = tuple((side, channel) for side in (0, 1) for channel in (CONTROL, BULK))
HEADERS = (b"take", b"refuse", b"pace")
SIZES = (0, 1, 99, 100, 101, 399, 400, 401, 900)
ROUNDS_MAX = 1000  # of everything that can move, until nothing can
side = st.integers(0, 1)
which = st.integers(0, 7)  # of what is open, modulo their number
size = st.sampled_from(SIZES)
lane = st.sampled_from(LANES)
mostly = st.sampled_from((True,) * 15 + (False,))


@dataclass
class Stream:
    """One that somebody sends: what it carries, and what both ends heard of it."""

    data: bytes
    refused: bool  # by its receiver, as soon as it begins
    slow: bool  # its receiver gives credit for what it has taken out of the buffer
    given_up: bool = False
    sent: list[MeshError | None] = field(default_factory=list)
    buffer: bytearray | None = None
    paced: PacedBuffer | None = None  # the receiver empties it as it likes
    taken: bytearray = field(default_factory=bytearray)  # out of that
    done: list[MeshError | None] = field(default_factory=list)


@dataclass
class End:
    """One side of a link, and what it said and heard over it."""

    peer: Peer
    open: bool = False
    over: bool = False
    asked: dict[int, bytes] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)
    answered: dict[int, bytes] = field(default_factory=dict)
    answering: dict[int, bytes] = field(default_factory=dict)  # requests of the other side that wait for our answer
    heard: set[int] = field(default_factory=set)  # and all of them
    cancelled: set[int] = field(default_factory=set)
    streams: dict[int, Stream] = field(default_factory=dict)
    notes: dict[bool, list[bytes]] = field(default_factory=lambda: {True: [], False: []})  # said; short ones, long ones
    noted: dict[bool, list[bytes]] = field(default_factory=lambda: {True: [], False: []})  # heard
    pings: list[int] = field(default_factory=list)
    ponged: list[int] = field(default_factory=list)

    @property
    def waiting(self) -> list[int]:
        """Requests that an answer may still come to."""
        return [number for number in self.asked if number not in self.answered and number not in self.dropped]

    @property
    def sending(self) -> list[int]:
        return [number for number, stream in self.streams.items() if not stream.sent and not stream.given_up]


class LinkMachine(RuleBasedStateMachine):
    """Any order of what two nodes may do over their link, and of what may become of it."""

    links: ClassVar[int] = 0  # that were made
    whole: ClassVar[int] = 0  # streams that arrived

    def __init__(self) -> None:
        super().__init__()
        self.number = self.count = 0

    @initialize(opened=mostly)
    def connect(self, opened: bool) -> None:
        """A new link, at its first frame or `opened`."""
        type(self).links += 1
        self.number += 1
        self.ends = (
            End(Peer.dialer(node("dialer"), LIMITS, self.number.to_bytes(16, "big"))),
            End(Peer.acceptor(node("acceptor"), LIMITS)),
        )
        self.lanes: dict[tuple[int, Channel], deque[bytes]] = {lane: deque() for lane in LANES}
        self.broken = False
        if opened:
            self.move(4)
            assert all(end.open for end in self.ends)

    # -- what nodes do

    @rule(side=side, size=size)
    def ask(self, side: int, size: int) -> None:
        end, body = self.ends[side], self.body(size)
        number = self.attempt(end, lambda: end.peer.request(body), len(end.peer._asked) >= LIMITS.requests_per_peer_max)
        if number is not None:
            end.asked[number] = body

    @rule(side=side, which=which, fails=st.booleans())
    def answer(self, side: int, which: int, fails: bool) -> None:
        end = self.ends[side]
        if end.answering and end.open:
            number = self.pick(list(end.answering), which)
            if fails:
                end.peer.reply_error(number, OutOfMemory(f"answer to {number}"))
            else:
                end.peer.reply(number, b"answer to " + end.answering[number])
            del end.answering[number]

    @rule(side=side, which=which)
    def cancel(self, side: int, which: int) -> None:
        end = self.ends[side]
        if end.waiting and end.open and not end.over:
            number = self.pick(end.waiting, which)
            end.peer.cancel(number)
            end.dropped.add(number)

    @rule(side=side, size=size, left=st.integers(0, 5))
    def change_mind(self, side: int, size: int, left: int) -> None:
        """Drop a request while it leaves: in none of its pieces, in some or in all."""
        end, asked = self.ends[side], len(self.ends[side].asked)
        self.ask(side, size)
        self.send((side, BULK), left)
        if len(end.asked) > asked:
            self.cancel(side, end.waiting.index(max(end.asked)))

    @rule(side=side, size=size)
    def note(self, side: int, size: int) -> None:
        end, body = self.ends[side], self.body(size)
        if self.attempt(end, lambda: end.peer.notify(body) or 1) is not None:
            end.notes[size <= LIMITS.chunk_bytes_max].append(body)

    @rule(side=side)
    def ping(self, side: int) -> None:
        end, token = self.ends[side], len(self.ends[side].pings)
        if self.attempt(end, lambda: end.peer.ping(token) or 1) is not None:
            end.pings.append(token)

    @rule(side=side, size=size, cut=st.integers(0, 400), header=st.sampled_from(HEADERS))
    def stream(self, side: int, size: int, cut: int, header: bytes) -> None:
        end, data = self.ends[side], self.body(size)
        parts = [memoryview(data)[:cut], memoryview(data)[cut:]]
        full = len(end.peer._sender) >= LIMITS.streams_per_peer_max
        number = self.attempt(end, lambda: end.peer.open_stream(header, parts), full)
        if number is not None:
            end.streams[number] = Stream(data, header == b"refuse", header == b"pace")

    @rule(side=side, size=st.integers(1, 400))
    def empty(self, side: int, size: int) -> None:
        """Take bytes out of buffers, as a slow disk does."""
        for stream in self.ends[1 - side].streams.values():
            if (paced := stream.paced) is not None and not paced.given_up:
                count = min(size, paced.arrived - paced.emptied)
                stream.taken += paced.view[paced.emptied : paced.emptied + count]
                self.ends[side].peer.emptied(paced, count)

    @rule(side=side, stay=mostly)
    def empty_no_more(self, side: int, stay: bool) -> None:
        for stream in self.ends[1 - side].streams.values():
            if stream.paced is not None and not stay:
                self.ends[side].peer.give_up(stream.paced)

    @rule(side=side, which=which)
    def give_up(self, side: int, which: int) -> None:
        end = self.ends[side]
        self.settle_sent(side)
        if end.sending and end.open:
            number = self.pick(end.sending, which)
            end.peer.abort_stream(number, OutOfMemory(f"stream {number}"))
            end.streams[number].given_up = True

    @rule(side=side, stay=mostly)
    def leave(self, side: int, stay: bool) -> None:
        end = self.ends[side]
        if end.open and not (end.over or stay):
            end.peer.close("going home")
            end.over = True

    # -- what the carrier does

    @rule(lane=lane, count=st.integers(1, 12))
    def send(self, lane: tuple[int, Channel], count: int) -> None:
        if not self.broken:
            for _ in range(count):
                frame = self.ends[lane[0]].peer.next_frame(lane[1])
                if frame is None:
                    break
                self.lanes[lane].append(frame)
            self.settle_sent(lane[0])

    @rule(lane=lane, count=st.integers(1, 12))
    def arrive(self, lane: tuple[int, Channel], count: int) -> None:
        for _ in range(min(count, len(self.lanes[lane]))):
            self.deliver(lane)

    @rule(count=st.integers(1, 6))
    def move(self, count: int) -> None:
        """So much of everything, as on a healthy network."""
        for _ in range(count):
            for each in LANES:
                self.send(each, 4)
                self.arrive(each, 4)

    @rule(side=side)
    def urgent(self, side: int) -> None:
        """What is short arrives though no byte moves on bulk."""
        here, there = self.ends[side], self.ends[1 - side]
        if not self.broken and all(end.open and not end.over for end in self.ends):
            self.note(side, 1)
            self.send((side, CONTROL), 1000)
            self.arrive((side, CONTROL), 1000)
            assert there.over or there.noted[True] == here.notes[True]

    @rule(lost=st.integers(0, 3), early=st.none() | side, lasts=mostly)
    def lose(self, lost: int, early: int | None, lasts: bool) -> None:
        """The carrier is lost; what is on its way may still arrive at one side, which does not know."""
        if not (self.broken or lasts):
            self.broken = True
            for at, each in enumerate(LANES):
                if early is None or each[0] == early or at == lost:
                    self.lanes[each].clear()
            for number in (0, 1) if early is None else (early,):
                self.hear_end(number)

    @precondition(lambda self: self.broken)
    @rule(side=side)
    def hear_end(self, side: int) -> None:
        for channel in (CONTROL, BULK):
            self.lanes[1 - side, channel].clear()
        self.hear(side, self.ends[side].peer.receive_eof(CONTROL))

    @precondition(lambda self: all(end.over for end in self.ends))
    @rule(opened=mostly)
    def reconnect(self, opened: bool) -> None:
        self.finish()
        self.connect(opened)

    # -- what must hold

    @invariant()
    def what_is_under_way_is_bounded(self) -> None:
        for number in (0, 1):
            frames = (decode(frame, LIMITS) for frame in self.lanes[number, BULK])
            flying = sum(len(frame.payload) for frame in frames if isinstance(frame, Piece | StreamChunk))
            paced = [stream.paced for stream in self.ends[number].streams.values() if stream.paced is not None]
            full = sum(each.arrived - each.emptied for each in paced if not each.given_up)
            assert flying + full <= LIMITS.window_bytes
            assert self.ends[number].peer.queued_bytes >= 0

    def teardown(self) -> None:
        self.finish()

    # -- helpers

    def body(self, size: int) -> bytes:
        """Of so many bytes, and like no other of that size."""
        self.count += 1
        return (self.count.to_bytes(4, "big") * (size // 4 + 1))[:size]

    def pick(self, numbers: list[int], which: int) -> int:
        return numbers[which % len(numbers)]

    def attempt(self, end: End, act: Callable[[], Any], full: bool = False) -> Any:
        """Do something that an open link allows, and no other; None if it did not."""
        try:
            done = act()
        except LocalError:
            assert full or not end.open
            return None
        except NodeLost:
            assert end.over
            return None
        assert end.open and not end.over and not full
        return done

    def deliver(self, lane: tuple[int, Channel]) -> None:
        """Between honest ends no frame is ever a mistake, so that this raises nothing."""
        if self.lanes[lane]:
            receiver = 1 - lane[0]
            frame = self.lanes[lane].popleft()
            self.hear(receiver, self.ends[receiver].peer.receive(lane[1], frame))

    def settle_sent(self, side: int) -> None:
        self.hear(side, self.ends[side].peer.sent_events())

    def hear(self, side: int, events: list[Any]) -> None:
        for event in events:
            getattr(self, f"hear_{type(event).__name__}")(self.ends[side], self.ends[1 - side], event)

    def hear_HelloReceived(self, end: End, other: End, event: HelloReceived) -> None:
        end.peer.accept()

    def hear_Acknowledged(self, end: End, other: End, event: Acknowledged) -> None:
        end.peer.start_bulk()

    def hear_Opened(self, end: End, other: End, event: Opened) -> None:
        assert not end.open
        end.open = True

    def hear_RequestReceived(self, end: End, other: End, event: RequestReceived) -> None:
        assert event.number not in end.heard, "a request is heard once"
        assert bytes(event.body) == other.asked[event.number]
        end.heard.add(event.number)
        end.answering[event.number] = bytes(event.body)

    def hear_Replied(self, end: End, other: End, event: Replied) -> None:
        assert event.number in end.waiting, "a request ends once, and one that was dropped is not answered"
        end.answered[event.number] = bytes(event.body)
        if event.error is None:
            assert bytes(event.body) == b"answer to " + end.asked[event.number]
        else:
            assert isinstance(event.error, OutOfMemory) and event.error.message == f"answer to {event.number}"

    def hear_CancelReceived(self, end: End, other: End, event: CancelReceived) -> None:
        assert event.number in other.dropped and event.number in end.answering
        assert event.number not in end.cancelled
        end.cancelled.add(event.number)

    def hear_NotifyReceived(self, end: End, other: End, event: NotifyReceived) -> None:
        short = len(event.body) <= LIMITS.chunk_bytes_max
        end.noted[short].append(bytes(event.body))
        assert end.noted[short] == other.notes[short][: len(end.noted[short])], "in the order in which they were said"

    def hear_Ponged(self, end: End, other: End, event: Ponged) -> None:
        end.ponged.append(event.token)
        assert end.ponged == end.pings[: len(end.ponged)]

    def hear_StreamOpened(self, end: End, other: End, event: StreamOpened) -> None:
        stream = other.streams[event.stream]
        assert event.size == len(stream.data) and stream.buffer is None
        assert bytes(event.header) == (b"refuse" if stream.refused else b"pace" if stream.slow else b"take")
        if stream.refused:
            end.peer.refuse_stream(event.stream, Busy(f"stream {event.stream}"))
        else:
            stream.buffer = bytearray(event.size)
            view = memoryview(stream.buffer)
            stream.paced = PacedBuffer(view) if stream.slow else None
            for done in end.peer.place_stream(event.stream, stream.paced or view):
                self.hear_StreamDone(end, other, done)

    def hear_StreamDone(self, end: End, other: End, event: Any) -> None:
        assert isinstance(event, StreamDone)
        stream = other.streams[event.stream]
        assert not stream.done and not stream.refused, "a stream ends once"
        stream.done.append(event.error)
        if event.error is None:
            assert bytes(stream.buffer or b"") == stream.data, "a stream arrives whole"
            type(self).whole += 1
        else:
            assert stream.given_up and event.error.message == f"stream {event.stream}"
            if stream.paced is not None:
                end.peer.give_up(stream.paced)

    def hear_StreamSent(self, end: End, other: End, event: StreamSent) -> None:
        stream = end.streams[event.stream]
        assert not stream.sent and not stream.given_up, "nothing is said of a stream that is over"
        stream.sent.append(event.error)
        if event.error is not None:
            assert isinstance(event.error, Busy)

    def hear_Closed(self, end: End, other: End, event: Closed) -> None:
        assert not end.over, "a link ends once"
        assert (event.error is None) == (other.over and not isinstance(event.error, NodeLost))
        end.over = True

    # -- the end

    def finish(self) -> None:
        """Let everything arrive and be answered; then both sides have what they should, and hold nothing more."""
        rounds = 0
        while not self.broken and self._moves():
            rounds += 1
            assert rounds < ROUNDS_MAX, "it never comes to rest"
        for number in (0, 1):
            if self.broken:
                self.hear_end(number)
        if any(end.over for end in self.ends):
            return
        for end, other in (self.ends, self.ends[::-1]):
            assert end.open and not end.waiting and not end.answering and end.ponged == end.pings
            assert other.noted == end.notes
            assert other.heard | end.dropped >= end.asked.keys()
            for stream in end.streams.values():
                self._judge(stream)
                if stream.paced is not None and not stream.paced.given_up:
                    assert bytes(stream.taken) == stream.data
            peer = end.peer
            assert not peer._asked and not peer._dropped and not peer._serving and not peer.has_to_send()
            assert not len(peer._sender) and not len(peer._receiver) and peer.queued_bytes == 0
            assert peer._sender.credit + other.peer._receiver.taken == LIMITS.window_bytes, "no credit is lost"

    def _judge(self, stream: Stream) -> None:
        """It arrived whole, or who wanted it was told that it did not, or did not want it."""
        if stream.refused:
            assert not stream.done
        elif stream.given_up:
            assert [error is None for error in stream.done] == [False]
        else:
            assert stream.sent == [None] and stream.done == [None]

    def _moves(self) -> bool:
        moved = False
        for each in LANES:
            self.send(each, 100)
            moved = moved or bool(self.lanes[each])
            self.arrive(each, 100)
        for number in (0, 1):
            self.empty(number, 400)
        if not moved:
            for number in (0, 1):
                moved = self._answers_all(number) or moved
        return moved

    def _answers_all(self, side: int) -> bool:
        """Everything that was said has arrived; so has who dropped a request."""
        end, other = self.ends[side], self.ends[1 - side]
        if end.over or not end.answering:
            return False
        assert other.over or end.cancelled >= end.answering.keys() & other.dropped
        while end.answering:
            self.answer(side, 0, False)
        return True
