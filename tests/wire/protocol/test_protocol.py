"""docs/protocol.md, "Link": hello, requests, streams and flow control on the pure machine."""

from __future__ import annotations

import ast
import random
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.machines.links import LINK_ID, Pair, joined, node

import wire.protocol.dial_collision
import wire.protocol.flow_control
import wire.protocol.frames
import wire.protocol.peer
import wire.protocol.versions
from mesh.simulation.virtual_network import Conditions
from wire.errors import (
    Busy,
    Cancelled,
    ConnectFailed,
    FrameError,
    LimitExceeded,
    LocalError,
    NodeLost,
    OutOfMemory,
    ProtocolError,
    RemoteError,
    VersionMismatch,
    WrongMesh,
)
from wire.limits import DEFAULT, KIB
from wire.protocol.frames import (
    Cancel,
    Credit,
    Frame,
    Goodbye,
    Hello,
    HelloAck,
    Notify,
    Piece,
    Ping,
    Refuse,
    Reply,
    Request,
    StreamAbort,
    StreamChunk,
    StreamOpen,
    decode,
    encode,
)
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
    State,
    StreamDone,
    StreamOpened,
    StreamSent,
)
from wire.protocol.versions import PROTOCOL, negotiate, usable_ops
from wire.units import need_text, room_text

SMALL = replace(DEFAULT, chunk_bytes_max=1000, window_bytes=4000, graph_bytes_max=10_000, control_frame_bytes_max=1000)


def place_streams(pair: Pair) -> dict[int, bytearray]:
    """Give every incoming stream of the acceptor a buffer."""
    buffers: dict[int, bytearray] = {}

    def react(peer: Peer, event: Any) -> None:
        if isinstance(event, StreamOpened):
            buffers[event.stream] = bytearray(event.size)
            for done in peer.place_stream(event.stream, memoryview(buffers[event.stream])):
                pair.events["acceptor"].append(done)

    pair.react = react
    return buffers


# -- purity ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "module",
    [
        wire.protocol.flow_control,
        wire.protocol.frames,
        wire.protocol.dial_collision,
        wire.protocol.peer,
        wire.protocol.versions,
    ],
    ids=lambda m: m.__name__,
)
def test_the_machine_imports_nothing_ambient(module: Any) -> None:
    tree = ast.parse(Path(module.__file__).read_text())
    names = {alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names}
    names |= {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert not names & {"asyncio", "aiohttp", "time", "random", "os", "socket", "secrets", "threading"}


# -- hello -------------------------------------------------------------------------------------------------


def test_hello_opens_both_ends_and_tells_each_who_the_other_is() -> None:
    pair = joined()
    assert pair.seen("acceptor", HelloReceived) == [HelloReceived(node("dialer"), LINK_ID)]
    assert pair.seen("dialer", Acknowledged) == [Acknowledged(node("acceptor"), b"")]
    assert len(pair.seen("dialer", Opened)) == len(pair.seen("acceptor", Opened)) == 1


def test_a_smaller_minor_is_spoken_by_both() -> None:
    dialer = Peer.dialer(node("dialer", protocol=(1, 5)), DEFAULT, LINK_ID)
    acceptor = Peer.acceptor(node("acceptor", protocol=(1, 2)))
    Pair(dialer, acceptor).settle()
    assert dialer.state is State.OPEN
    assert dialer.version == acceptor.version == (1, 2)


def test_another_major_is_refused_with_both_versions_and_the_side_to_upgrade() -> None:
    dialer = Peer.dialer(node("dialer", protocol=(1, 0)), DEFAULT, LINK_ID)
    acceptor = Peer.acceptor(node("acceptor", protocol=(2, 0)))
    pair = Pair(dialer, acceptor).settle()
    (error,) = pair.wire.errors
    assert isinstance(error, VersionMismatch)
    assert (error.expected, error.got, error.upgrade) == ("2.0", "1.0", "the other node")
    (closed,) = pair.seen("dialer", Closed)
    assert isinstance(closed.error, VersionMismatch)
    assert (closed.error.expected, closed.error.got, closed.error.upgrade) == ("1.0", "2.0", "this node")


def test_another_major_is_refused_before_the_rest_of_its_hello_is_read() -> None:
    data = encode(Hello((7, 0), LINK_ID, False))[:9] + b"\xff" * 100_000
    acceptor = Peer.acceptor(node("acceptor"))
    with pytest.raises(VersionMismatch):
        acceptor.receive(CONTROL, data)
    refusal = decode(acceptor.next_frame(CONTROL) or b"")
    assert isinstance(refusal, Refuse) and refusal.version == node("acceptor").protocol


def test_another_mesh_name_is_refused_at_hello() -> None:
    dialer = Peer.dialer(node("dialer", mesh="home"), DEFAULT, LINK_ID)
    pair = Pair(dialer, Peer.acceptor(node("acceptor", mesh="work"))).settle()
    (closed,) = pair.seen("dialer", Closed)
    assert isinstance(closed.error, WrongMesh) and "'home'" in str(closed.error) and "--mesh" in str(closed.error)


def test_the_acceptor_may_refuse_with_any_error() -> None:
    dialer = Peer.dialer(node("dialer"), DEFAULT, LINK_ID)
    acceptor = Peer.acceptor(node("acceptor"))
    acceptor.receive(CONTROL, dialer.next_frame(CONTROL) or b"")
    acceptor.refuse(Busy("it works for c1"))
    (closed,) = dialer.receive(CONTROL, acceptor.next_frame(CONTROL) or b"")
    assert isinstance(closed, Closed) and isinstance(closed.error, Busy) and acceptor.state is State.CLOSED


def test_a_node_does_not_link_to_itself() -> None:
    pair = Pair(Peer.dialer(node("same"), DEFAULT, LINK_ID), Peer.acceptor(node("same"))).settle()
    assert isinstance(pair.wire.errors[0], ProtocolError) and "own id" in str(pair.wire.errors[0])


def test_shared_memory_needs_both_sides_to_read_the_other() -> None:
    for mine, theirs in ((True, True), (True, False), (False, True), (False, False)):
        dialer, acceptor = Peer.dialer(node("d"), DEFAULT, LINK_ID), Peer.acceptor(node("a"))

        def react(peer: Peer, event: Any, mine: bool = mine, theirs: bool = theirs) -> None:
            if isinstance(event, HelloReceived):
                peer.accept(shared_ok=mine)
            if isinstance(event, Acknowledged):
                peer.start_bulk(shared_ok=theirs)

        pair = Pair(dialer, acceptor)
        pair.react = react
        pair.settle()
        assert dialer.shared_ok == acceptor.shared_ok == (mine and theirs)


def test_control_frames_may_overtake_the_answer_on_bulk() -> None:
    dialer, acceptor = Peer.dialer(node("d"), DEFAULT, LINK_ID), Peer.acceptor(node("a"))
    acceptor.receive(CONTROL, dialer.next_frame(CONTROL) or b"")
    acceptor.accept()
    dialer.receive(CONTROL, acceptor.next_frame(CONTROL) or b"")
    dialer.start_bulk()
    acceptor.receive(BULK, dialer.next_frame(BULK) or b"")
    acceptor.notify(b"early")
    assert dialer.receive(CONTROL, acceptor.next_frame(CONTROL) or b"") == [Opened(), NotifyReceived(b"early")]
    assert dialer.receive(BULK, acceptor.next_frame(BULK) or b"") == []
    dialer.notify(b"late")


WRONG_HELLOS: list[tuple[Channel, Frame]] = [
    (CONTROL, Request(1, b"")),
    (CONTROL, HelloAck((1, 0), LINK_ID, False)),
    (CONTROL, Hello((1, 0), bytes(16), False)),
    (CONTROL, Hello((1, 0), LINK_ID, False, b"not an identity")),
    (BULK, Hello((1, 0), LINK_ID, False)),
    (CONTROL, Ping(1)),
]


@pytest.mark.parametrize(("channel", "frame"), WRONG_HELLOS, ids=lambda value: type(value).__name__)
def test_nothing_but_a_hello_begins_a_link(channel: Channel, frame: Frame) -> None:
    acceptor = Peer.acceptor(node("acceptor"))
    with pytest.raises(ProtocolError):
        acceptor.receive(channel, encode(frame))
    assert acceptor.state is State.CLOSED
    assert isinstance(decode(acceptor.next_frame(CONTROL) or b""), Refuse)


def test_a_bulk_connection_of_another_link_is_refused() -> None:
    dialer, acceptor = Peer.dialer(node("d"), DEFAULT, LINK_ID), Peer.acceptor(node("a"))
    acceptor.receive(CONTROL, dialer.next_frame(CONTROL) or b"")
    acceptor.accept()
    with pytest.raises(ProtocolError, match="another link"):
        acceptor.receive(BULK, encode(Hello((1, 0), b"x" * 16, False)))


def test_a_bulk_connection_whose_control_connection_ended_may_be_dialled_again() -> None:
    with pytest.raises(ConnectFailed, match="the other connection of the link ended") as refused:
        Peer.acceptor(node("a")).receive(CONTROL, encode(Hello(PROTOCOL, LINK_ID, False)))
    assert refused.value.retry


def test_a_dialer_may_leave_after_the_answer() -> None:
    dialer, acceptor = Peer.dialer(node("d"), DEFAULT, LINK_ID), Peer.acceptor(node("a"))
    acceptor.receive(CONTROL, dialer.next_frame(CONTROL) or b"")
    acceptor.accept(existing=b"e" * 16)
    assert dialer.receive(CONTROL, acceptor.next_frame(CONTROL) or b"") == [Acknowledged(node("a"), b"e" * 16)]
    dialer.close()
    assert acceptor.receive(CONTROL, dialer.next_frame(CONTROL) or b"") == [Closed(None)]


# -- versions ----------------------------------------------------------------------------------------------


def test_negotiation() -> None:
    assert negotiate((1, 3), (1, 7)) == (1, 3) and negotiate((1, 7), (1, 3)) == (1, 3)
    with pytest.raises(VersionMismatch) as caught:
        negotiate((2, 0), (1, 9))
    assert caught.value.upgrade == "the other node" and caught.value.next_step


def test_only_ops_with_equal_rows_are_usable() -> None:
    mine = node("a", op_rows={"add": b"1", "dot": b"1", "sort": b"1"})
    theirs = node("b", op_rows={"add": b"1", "dot": b"2", "new": b"1"})
    assert usable_ops(mine, theirs) == {"add"} == usable_ops(theirs, mine)


# -- requests ----------------------------------------------------------------------------------------------


def test_a_request_gets_its_own_reply() -> None:
    pair = joined()
    first, second = pair.dialer.request(b"one"), pair.dialer.request(b"two")
    pair.settle()
    assert pair.seen("acceptor", RequestReceived) == [RequestReceived(first, b"one"), RequestReceived(second, b"two")]
    pair.acceptor.reply(second, b"2")
    pair.acceptor.reply_error(first, OutOfMemory("no room", op="dot"))
    pair.settle()
    two, one = pair.seen("dialer", Replied)
    assert (two.number, bytes(two.body), two.error) == (second, b"2", None)
    assert isinstance(one.error, OutOfMemory) and (one.error.op, one.error.node) == ("dot", "acceptor")


def test_both_sides_may_ask_at_once_with_equal_numbers() -> None:
    pair = joined()
    assert pair.dialer.request(b"from dialer") == pair.acceptor.request(b"from acceptor") == 1
    pair.settle()
    pair.dialer.reply(1, b"a")
    pair.acceptor.reply(1, b"b")
    pair.settle()
    assert [bytes(e.body) for e in pair.seen("dialer", Replied)] == [b"b"]
    assert [bytes(e.body) for e in pair.seen("acceptor", Replied)] == [b"a"]


def test_a_cancelled_request_is_told_and_its_answer_ignored() -> None:
    pair = joined()
    number = pair.dialer.request(b"slow")
    pair.settle()
    pair.dialer.cancel(number)
    pair.dialer.cancel(number)
    pair.settle()
    assert pair.seen("acceptor", CancelReceived) == [CancelReceived(number)]
    pair.acceptor.reply_error(number, Cancelled("stopped"))
    pair.settle()
    assert pair.seen("dialer", Replied) == [] and pair.wire.errors == []


def test_a_cancel_that_crosses_the_answer_is_ignored() -> None:
    pair = joined()
    number = pair.dialer.request(b"")
    pair.settle()
    pair.acceptor.reply(number, b"")
    pair.dialer.cancel(number)
    pair.settle()
    assert pair.wire.errors == [] and pair.seen("acceptor", CancelReceived) == [] and pair.seen("dialer", Replied) == []


@pytest.mark.parametrize("size", [999, 1000, 1001, 10_900])
def test_long_bodies_travel_in_pieces_and_arrive_whole(size: int) -> None:
    pair = joined(SMALL)
    body = random.Random(size).randbytes(size)
    number = pair.dialer.request(body)
    pair.dialer.notify(body)
    pair.settle()
    assert [bytes(e.body) for e in pair.seen("acceptor", RequestReceived)] == [body]
    assert [bytes(e.body) for e in pair.seen("acceptor", NotifyReceived)] == [body]
    pair.acceptor.reply(number, body)
    pair.settle()
    assert [bytes(e.body) for e in pair.seen("dialer", Replied)] == [body]


@pytest.mark.parametrize("limit", [SMALL.chunk_bytes_max, SMALL.message_bytes_max])
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_bodies_at_each_limit_arrive_or_are_refused_and_an_answer_is_always_one(limit: int, more: int) -> None:
    pair, body = joined(SMALL), bytes(limit + more)
    fits = len(body) <= SMALL.message_bytes_max
    asked = pair.dialer.request(b"ask")
    pair.settle()
    pair.acceptor.reply(asked, body)
    pair.settle()
    (answer,) = pair.seen("dialer", Replied)
    if fits:
        pair.dialer.request(body)
        pair.dialer.notify(body)
        pair.settle()
        assert [len(e.body) for e in pair.seen("acceptor", RequestReceived)] == [3, len(body)]
        assert [len(e.body) for e in pair.seen("acceptor", NotifyReceived)] == [len(body)]
        assert answer.error is None and len(answer.body) == len(body)
    else:
        for send in (pair.dialer.request, pair.dialer.notify):
            with pytest.raises(LocalError, match="too long"):
                send(body)
        assert isinstance(answer.error, LimitExceeded)
        assert f"has {need_text(len(body))}, at most {room_text(limit)} fit" in str(answer.error)
    assert pair.wire.errors == []


def test_a_body_over_the_limit_is_the_callers_mistake() -> None:
    pair = joined(SMALL)
    with pytest.raises(LocalError, match="too long"):
        pair.dialer.request(bytes(SMALL.graph_bytes_max + SMALL.control_frame_bytes_max + 100))
    pair.dialer.request(b"still works")
    assert len(pair.settle().seen("acceptor", RequestReceived)) == 1


def test_a_short_note_overtakes_a_long_one() -> None:
    pair = joined(SMALL, there=Conditions(bytes_per_s=1e5, buffer_bytes=2000))
    pair.dialer.notify(bytes(8000))
    pair.dialer.notify(b"beat")
    assert [len(e.body) for e in pair.settle().seen("acceptor", NotifyReceived)] == [4, 8000]


def test_cancelling_a_long_request_that_has_not_left_stops_it() -> None:
    pair = joined(SMALL, there=Conditions(bytes_per_s=1e4, buffer_bytes=1500))
    number = pair.dialer.request(bytes(9000))
    pair.wire.pump()
    pair.dialer.cancel(number)
    pair.dialer.notify(bytes(3000))
    pair.settle()
    assert pair.seen("acceptor", RequestReceived) == [] and len(pair.seen("acceptor", NotifyReceived)) == 1
    assert pair.wire.errors == []


def test_cancelling_a_long_request_that_has_left_follows_it() -> None:
    pair = joined(SMALL)
    number = pair.dialer.request(bytes(3000))
    pair.wire.pump()
    pair.dialer.cancel(number)
    pair.settle()
    assert [type(e) for e in pair.events["acceptor"][-2:]] == [RequestReceived, CancelReceived]


def test_requests_have_a_limit_on_both_sides() -> None:
    few = replace(DEFAULT, requests_per_peer_max=3)
    pair = joined(DEFAULT, few)
    for _ in range(3):
        pair.dialer.request(b"")
        pair.acceptor.request(b"")
    with pytest.raises(LocalError, match="the limit"):
        pair.acceptor.request(b"")
    number = pair.dialer.request(b"one too many for the other side")
    pair.settle()
    (refused,) = pair.seen("dialer", Replied)
    assert refused.number == number and isinstance(refused.error, Busy)
    assert len(pair.seen("acceptor", RequestReceived)) == 3


def test_requests_have_a_limit_in_bytes() -> None:
    pair = joined(DEFAULT, replace(DEFAULT, request_bytes_per_peer_max=100))
    for _ in range(2):
        pair.dialer.request(bytes(50))
    number = pair.dialer.request(b"a byte too many")
    pair.settle()
    (refused,) = pair.seen("dialer", Replied)
    assert refused.number == number and isinstance(refused.error, Busy)
    for served in pair.seen("acceptor", RequestReceived):
        pair.acceptor.reply(served.number, b"")
    pair.dialer.request(bytes(100))
    pair.settle()
    assert len(pair.seen("acceptor", RequestReceived)) == 3, "the room is free again"


def test_ping_comes_back() -> None:
    pair = joined()
    pair.dialer.ping(77)
    assert pair.settle().seen("dialer", Ponged) == [Ponged(77)]


# -- streams -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 999, 1000, 1001, 3999, 4000, 4001, 25_000])
def test_a_stream_arrives_whole_whatever_its_size(size: int) -> None:
    pair = joined(SMALL)
    buffers = place_streams(pair)
    data = random.Random(size).randbytes(size)
    stream = pair.dialer.open_stream(b"header", [memoryview(data)])
    pair.settle()
    assert bytes(buffers[stream]) == data
    assert pair.seen("acceptor", StreamDone) == [StreamDone(stream, None)]
    assert pair.seen("dialer", StreamSent) == [StreamSent(stream, None)]


def test_a_stream_of_several_parts_is_one() -> None:
    pair = joined(SMALL)
    buffers = place_streams(pair)
    parts = [random.Random(i).randbytes(size) for i, size in enumerate((0, 10, 1500, 0, 1, 2000, 0))]
    stream = pair.dialer.open_stream(b"", [memoryview(part) for part in parts])
    pair.settle()
    assert bytes(buffers[stream]) == b"".join(parts)


def test_streams_take_turns() -> None:
    pair = joined(SMALL, there=Conditions(bytes_per_s=1e6, buffer_bytes=1000))
    place_streams(pair)
    big = pair.dialer.open_stream(b"big", [memoryview(bytes(50_000))])
    small = pair.dialer.open_stream(b"small", [memoryview(bytes(2000))])
    pair.settle()
    assert pair.seen("acceptor", StreamDone) == [StreamDone(small, None), StreamDone(big, None)]


def test_no_more_than_the_window_is_ever_under_way() -> None:
    pair = joined(SMALL)
    place_streams(pair)
    pair.dialer.open_stream(b"", [memoryview(bytes(50_000))])
    sent = 0
    while (frame := pair.dialer.next_frame(BULK)) is not None:
        sent += len(decode(frame).payload) if isinstance(decode(frame), StreamChunk) else 0  # type: ignore[union-attr]
    assert sent == SMALL.window_bytes


@pytest.mark.parametrize(("mine", "theirs"), [(4000, 1000), (1000, 4000), (1 << 24, 64)])
def test_the_smaller_window_of_the_two_is_used(mine: int, theirs: int) -> None:
    pair = joined(replace(SMALL, window_bytes=mine), replace(SMALL, window_bytes=theirs))
    buffers = place_streams(pair)
    stream = pair.dialer.open_stream(b"", [memoryview(bytes(range(256)) * 40)])
    pair.settle()
    assert bytes(buffers[stream]) == bytes(range(256)) * 40


def test_a_refused_stream_ends_at_the_sender_with_the_receivers_error() -> None:
    pair = joined(SMALL, there=Conditions(bytes_per_s=1e6))

    def react(peer: Peer, event: Any) -> None:
        if isinstance(event, StreamOpened):
            peer.refuse_stream(event.stream, OutOfMemory("no room"))

    pair.react = react
    stream = pair.dialer.open_stream(b"", [memoryview(bytes(100_000))])
    pair.settle()
    (sent,) = pair.seen("dialer", StreamSent)
    assert sent.stream == stream and isinstance(sent.error, OutOfMemory)
    assert pair.seen("acceptor", StreamDone) == [] and pair.wire.errors == []
    buffers = place_streams(pair)
    again = pair.dialer.open_stream(b"", [memoryview(b"x" * 20_000)])
    pair.settle()
    assert bytes(buffers[again]) == b"x" * 20_000


def test_an_aborted_stream_ends_at_the_receiver_with_the_senders_error() -> None:
    pair = joined(SMALL)
    place_streams(pair)
    stream = pair.dialer.open_stream(b"", [memoryview(bytes(100_000))])
    pair.wire.pump()
    pair.dialer.abort_stream(stream, Cancelled("not needed"))
    pair.settle()
    (done,) = pair.seen("acceptor", StreamDone)
    assert done.stream == stream and isinstance(done.error, Cancelled)


def test_streams_have_a_limit_on_both_sides() -> None:
    few = replace(SMALL, streams_per_peer_max=2)
    pair = joined(few)
    for _ in range(2):
        pair.dialer.open_stream(b"", [memoryview(bytes(10))])
    with pytest.raises(LocalError, match="the limit"):
        pair.dialer.open_stream(b"", [memoryview(bytes(10))])
    pair = joined(SMALL, few)
    buffers = place_streams(pair)
    for _ in range(3):
        pair.dialer.open_stream(b"", [memoryview(bytes(2000))])
    pair.settle()
    assert len(buffers) == 2
    assert [type(e.error) for e in pair.seen("dialer", StreamSent) if e.error] == [Busy]


def test_who_opens_streams_and_stops_none_that_is_refused_has_its_link_ended() -> None:
    pair = joined(SMALL, replace(SMALL, streams_per_peer_max=2))
    for stream in range(1, 5):
        pair.acceptor.receive(BULK, encode(StreamOpen(stream, 10, b"")))
    with pytest.raises(ProtocolError, match="4 streams are open at once"):
        pair.acceptor.receive(BULK, encode(StreamOpen(5, 10, b"")))


def test_a_name_is_shown_without_control_characters() -> None:
    named = Peer.dialer(node("\x1b[2Jbad\nname"), DEFAULT, b"l" * 16)
    acceptor = Peer.acceptor(node("here"), DEFAULT)
    (hello,) = acceptor.receive(CONTROL, named.next_frame(CONTROL) or b"")
    assert hello.identity.name == "\\x1b[2Jbad\\nname"


def test_a_buffer_of_another_size_or_read_only_is_the_callers_mistake() -> None:
    pair = joined(SMALL)
    stream = pair.dialer.open_stream(b"", [memoryview(bytes(10))])
    pair.acceptor.receive(BULK, pair.dialer.next_frame(BULK) or b"")
    for wrong in (memoryview(bytearray(9)), memoryview(bytearray(11)), memoryview(bytes(10))):
        with pytest.raises(LocalError):
            pair.acceptor.place_stream(stream, wrong)
    assert pair.acceptor.place_stream(stream, memoryview(bytearray(10))) == []
    with pytest.raises(LocalError):
        pair.acceptor.place_stream(stream, memoryview(bytearray(10)))


def test_limits_on_what_is_sent_are_local_mistakes() -> None:
    pair = joined(replace(SMALL, stream_bytes_max=50))
    with pytest.raises(LocalError, match="at most 50"):
        pair.dialer.open_stream(b"", [memoryview(bytes(51))])
    with pytest.raises(LocalError, match="header"):
        pair.dialer.open_stream(bytes(65 * KIB), [memoryview(bytes(1))])
    pair.dialer.open_stream(b"", [memoryview(bytes(50))])


# -- misbehaviour ------------------------------------------------------------------------------------------

WRONG: list[tuple[str, Channel, Frame]] = [
    ("reply to nothing", CONTROL, Reply(9, b"")),
    ("control frame on bulk", BULK, Request(1, b"")),
    ("chunk on control", CONTROL, StreamChunk(1, 0, b"x")),
    ("chunk of no stream", BULK, StreamChunk(1, 0, b"x")),
    ("abort of no stream", BULK, StreamAbort(1, Cancelled(""))),
    ("credit for nothing", CONTROL, Credit(1)),
    ("a piece from the middle", BULK, Piece(100, 50, b"x")),
    ("another hello", CONTROL, Hello((1, 0), LINK_ID, False)),
    ("another answer", CONTROL, HelloAck((1, 0), LINK_ID, False)),
    ("a stream in pieces", BULK, Piece(17, 0, encode(StreamOpen(1, 1, b""))[:17])),
]


@pytest.mark.parametrize(("what", "channel", "frame"), WRONG, ids=[row[0] for row in WRONG])
def test_misbehaviour_ends_the_link_and_says_why(what: str, channel: Channel, frame: Frame) -> None:
    pair = joined()
    with pytest.raises(ProtocolError) as caught:
        pair.acceptor.receive(channel, encode(frame))
    assert caught.value.node == "dialer" and not isinstance(caught.value, LocalError)
    assert pair.acceptor.state is State.CLOSED
    (closed,) = pair.settle().seen("dialer", Closed)
    assert isinstance(closed.error, ProtocolError)
    with pytest.raises(NodeLost):
        pair.dialer.request(b"")


def test_a_request_number_stands_once() -> None:
    pair = joined()
    pair.acceptor.receive(CONTROL, encode(Request(5, b"")))
    with pytest.raises(ProtocolError, match="already open"):
        pair.acceptor.receive(CONTROL, encode(Request(5, b"")))


@pytest.mark.parametrize("offset", [0, 9, 11])
def test_a_lost_or_repeated_chunk_is_noticed(offset: int) -> None:
    pair = joined(SMALL)
    place_streams(pair)
    pair.wire.inject(pair.acceptor, BULK, encode(StreamOpen(1, 100, b"")))
    pair.wire.inject(pair.acceptor, BULK, encode(StreamChunk(1, 0, bytes(10))))
    pair.wire.inject(pair.acceptor, BULK, encode(StreamChunk(1, offset, bytes(10))))
    assert isinstance(pair.wire.errors[0], ProtocolError)


def test_bytes_beyond_the_stream_or_the_window_are_refused() -> None:
    pair = joined(SMALL)
    place_streams(pair)
    pair.wire.inject(pair.acceptor, BULK, encode(StreamOpen(1, 5, b"")))
    pair.wire.inject(pair.acceptor, BULK, encode(StreamChunk(1, 0, bytes(6))))
    assert isinstance(pair.wire.errors[0], ProtocolError)
    pair = joined(SMALL)
    place_streams(pair)
    pair.acceptor.receive(BULK, encode(StreamOpen(1, 1 << 30, b"")))
    pair.acceptor.refuse_stream(1, Cancelled("no"))
    pair.acceptor._receiver.allowed = 999
    with pytest.raises(ProtocolError, match="beyond the credit"):
        pair.acceptor.receive(BULK, encode(StreamChunk(1, 0, bytes(1000))))


def test_nothing_is_received_after_the_end() -> None:
    pair = joined()
    with pytest.raises(FrameError):
        pair.acceptor.receive(CONTROL, b"\xee")
    assert pair.acceptor.receive(CONTROL, encode(Notify(b"late"))) == []
    assert pair.acceptor.receive_eof(BULK) == []


def test_our_own_mistakes_change_nothing() -> None:
    pair = joined()
    for mistake in (
        lambda: pair.dialer.reply(3, b""),
        lambda: pair.dialer.accept(),
        lambda: pair.dialer.start_bulk(),
        lambda: pair.dialer.place_stream(1, memoryview(bytearray(1))),
        lambda: pair.dialer.refuse_stream(1, Cancelled("")),
        lambda: Peer.dialer(node("x"), DEFAULT, b"short"),
        lambda: Peer.acceptor(node("x")).request(b""),
    ):
        with pytest.raises(LocalError):
            mistake()
    pair.dialer.request(b"fine")
    assert len(pair.settle().seen("acceptor", RequestReceived)) == 1


def test_a_long_frame_takes_no_more_memory_than_came_of_it() -> None:
    pair = joined()
    piece = encode(Piece(DEFAULT.message_bytes_max, 0, b"x"))
    tracemalloc.start()
    for _ in range(100):
        pair.acceptor.receive(BULK, piece)
    assert tracemalloc.get_traced_memory()[1] < 100 * KIB
    tracemalloc.stop()


def test_frames_that_wait_count_with_the_memory_they_take() -> None:
    pair = joined()
    for _ in range(1000):
        pair.acceptor.receive(CONTROL, encode(Ping(1)))
    assert pair.acceptor.queued_bytes >= 1000 * 60
    while pair.acceptor.next_frame(CONTROL) is not None:
        pass
    assert pair.acceptor.queued_bytes == 0


# -- the end -----------------------------------------------------------------------------------------------


def test_goodbye_ends_both_sides_in_good_order_after_what_was_said_before() -> None:
    pair = joined()
    pair.dialer.notify(b"last words")
    pair.dialer.close("going home")
    pair.settle()
    assert [type(e) for e in pair.events["acceptor"][-2:]] == [NotifyReceived, Closed]
    assert pair.seen("acceptor", Closed) == [Closed(None)]
    with pytest.raises(NodeLost):
        pair.dialer.notify(b"")
    pair.dialer.reply(1, b"ignored")
    pair.dialer.cancel(1)


def test_a_cut_ends_both_sides_with_node_lost() -> None:
    pair = joined()
    pair.wire.cut()
    for side in ("dialer", "acceptor"):
        (closed,) = pair.seen(side, Closed)
        assert isinstance(closed.error, NodeLost)


# -- chance ------------------------------------------------------------------------------------------------


def converse(pair: Pair, rng: random.Random, steps: int) -> dict[str, Any]:
    """Requests, notes and streams at random both ways; answers echo.  What was sent and what was answered."""
    said: dict[str, Any] = {"asked": {}, "answered": {}, "notes": [], "streams": {}, "placed": {}}

    def react(peer: Peer, event: Any) -> None:
        if isinstance(event, RequestReceived):
            body = bytes(event.body)
            delay_s = rng.random() * 0.01
            pair.network.at(pair.network.now_s + delay_s, lambda: (peer.reply(event.number, body), pair.wire.pump()))
        elif isinstance(event, Replied):
            said["answered"][peer is pair.dialer, event.number] = bytes(event.body)
        elif isinstance(event, StreamOpened):
            buffer = said["placed"][peer is pair.acceptor, event.stream] = bytearray(event.size)
            peer.place_stream(event.stream, memoryview(buffer))

    pair.react = react

    def act(peer: Peer) -> None:
        if peer.state is not State.OPEN:
            return
        body = rng.randbytes(rng.choice([0, 10, 999, 1001, 7000]))
        match rng.randrange(4):
            case 0 | 1:
                said["asked"][peer is pair.dialer, peer.request(body)] = body
            case 2:
                peer.notify(body)
            case _:
                said["streams"][peer is pair.dialer, peer.open_stream(b"h", [memoryview(body)])] = body
        pair.wire.pump()

    for step in range(steps):
        peer = rng.choice([pair.dialer, pair.acceptor])
        pair.network.at(pair.network.now_s + step * 0.001, lambda peer=peer: act(peer))
    pair.network.run()
    return said


@pytest.mark.parametrize("seed", range(20))
def test_delay_and_loss_change_nothing_but_time(seed: int) -> None:
    bad = Conditions(delay_s=0.01, jitter_s=0.05, loss=0.1, bytes_per_s=2e5, buffer_bytes=3000)
    pair = joined(SMALL, seed=seed, there=bad, back=bad)
    pair.network.at(0.05, lambda: pair.wire.stall(1.0))
    said = converse(pair, random.Random(seed), 120)
    assert pair.wire.errors == []
    assert said["answered"] == said["asked"]
    assert {key: bytes(data) for key, data in said["placed"].items()} == said["streams"]


def test_a_seed_replays_a_run_exactly() -> None:
    def run(seed: int) -> tuple[Any, ...]:
        bad = Conditions(jitter_s=0.05, loss=0.2, drop=0.02, buffer_bytes=3000)
        pair = joined(SMALL, seed=seed)
        pair.wire.change(there=bad)
        converse(pair, random.Random(seed), 80)
        return pair.network.now_s, pair.wire.frames, [str(error) for error in pair.wire.errors]

    assert run(3) == run(3)
    assert run(3) != run(4)


@pytest.mark.parametrize("seed", range(40))
def test_a_broken_wire_is_noticed_or_harmless_but_never_wrong(seed: int) -> None:
    pair = joined(SMALL, seed=seed)
    broken = Conditions(delay_s=0.001, jitter_s=0.003, drop=0.03, reorder=0.05, buffer_bytes=3000)
    pair.wire.change(broken, broken)
    said = converse(pair, random.Random(seed), 100)
    assert all(isinstance(error, RemoteError) for error in pair.wire.errors)
    assert all(said["asked"][key] == body for key, body in said["answered"].items())
    for side in ("dialer", "acceptor"):
        for done in pair.seen(side, StreamDone):
            if done.error is None:
                key = side == "acceptor", done.stream
                assert bytes(said["placed"][key]) == said["streams"][key]


def test_a_cancel_frame_travels_on_both_connections() -> None:
    pair = joined()
    pair.acceptor.receive(CONTROL, encode(Request(1, b"")))
    assert pair.acceptor.receive(BULK, encode(Cancel(1))) == [CancelReceived(1)]
    assert pair.acceptor.receive(CONTROL, encode(Goodbye(""))) == [Closed(None)]
