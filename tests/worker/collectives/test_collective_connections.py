"""Messages over connections between hosts: the results are those of ring buffers, whenever each end switches."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.ranks import HANGS_S, channels_in_memory, connect, on_channels, sockets

from wire.deadlines import UNACKNOWLEDGED_BY_RANK
from wire.errors import Cancelled, ConnectFailed, DeadlineExceeded, DTypeError, GraphError, OutOfMemory, ShapeError
from wire.ir.dtypes import BF16, F16, F32, F64, I32, DType
from wire.ir.types import TensorType
from worker.collectives.algorithms import ALL_REDUCE
from worker.collectives.channels import Channels
from worker.collectives.connection import HEAD_BYTES, Connection
from worker.collectives.group import Group
from worker.collectives.ring_buffer import ENVELOPE_BYTES, switch_marker, with_tag


def every(n: int) -> list[tuple[int, int]]:
    return list(itertools.combinations(range(n), 2))


def values(n: int, count: int, dtype: DType = F32) -> list[Any]:
    drawn = np.random.default_rng(count)
    return [(drawn.standard_normal(count) * 9).astype(dtype.numpy) for _ in range(n)]


def connected(n: int, pairs: list[tuple[int, int]] | None = None, slot_bytes: int = 256) -> list[Channels]:
    channels = channels_in_memory(n, slot_bytes=slot_bytes)
    connect(channels, every(n) if pairs is None else pairs)
    for rank_channels in channels:
        rank_channels.failure_reason_s = 0.01  # reasons are there, or never come
    return channels


def raised(results: list[Any], kind: type[Exception]) -> None:
    for result in results:
        assert isinstance(result, kind), result


@pytest.mark.parametrize("name", ALL_REDUCE)
@pytest.mark.parametrize("dtype", [F32, F16, BF16, I32], ids=lambda dtype: dtype.name)
def test_every_algorithm_gives_the_bits_that_it_gives_by_ring_buffers(name: str, dtype: DType) -> None:
    for n, count in ((2, 301), (3, 1), (4, 0), (5, 1000)):
        arrays = values(n, count, dtype)

        def body(group: Group, rank: int, arrays: list[Any] = arrays) -> bytes:
            return group.all_reduce(arrays[rank]).tobytes()

        expected = on_channels(channels_in_memory(n), body, algorithm=name)
        for pairs in (every(n), every(n)[1:]):  # without the first, two ranks share a machine
            assert on_channels(connected(n, pairs), body, algorithm=name) == expected


def all_kinds(group: Group, rank: int) -> list[bytes]:
    drawn = np.random.default_rng(rank)
    actual = []
    for count in (0, 3, 3000):
        array = drawn.standard_normal((count, group.size)).astype(np.float32)
        actual.append(group.all_gather(array))
        actual.append(group.reduce_scatter(array, 1))
        actual.append(group.all_to_all(array, 1, 0))
        actual.append(group.broadcast_from(array, count % group.size))
        actual.append(group.permute(array, [(source, (source + 1) % group.size) for source in range(group.size)]))
        actual.append(group.permute(array, [(0, 1)]))
        group.barrier()
    if rank == 0:
        group.send(np.arange(70.0), 1)
    if rank == 1:
        actual.append(group.receive(TensorType((70,), F64), 0))
    return [result.tobytes() for result in actual]


def test_every_operation_over_connections_and_where_only_some_have_one() -> None:
    expected = on_channels(channels_in_memory(3), all_kinds)
    assert all(isinstance(item, list) for item in expected)
    for pairs in (every(3), [(0, 2)], [(1, 2), (0, 1)]):
        channels = connected(3, pairs)
        for tag in (1, 2, 5):
            assert on_channels(channels, all_kinds, tag) == expected


def test_large_pieces_that_no_socket_takes_at_once() -> None:
    arrays = values(3, 2_000_000)
    channels = connected(3, slot_bytes=1 << 18)
    total = (arrays[0] + arrays[1] + arrays[2]).tobytes()
    for tag, name in enumerate(("direct", "exchange", "chain"), 1):
        results = on_channels(
            channels, lambda group, rank: group.all_reduce(arrays[rank]).tobytes(), tag, algorithm=name
        )
        assert results == [total] * 3


def test_either_end_switches_when_it_knows_of_the_connection() -> None:
    channels = channels_in_memory(2)
    arrays = values(2, 700)
    total = (arrays[0] + arrays[1]).tobytes()

    def body(group: Group, rank: int) -> bytes:
        return group.all_reduce(arrays[rank]).tobytes()

    assert on_channels(channels, body, 1) == [total] * 2
    ((here, there),) = connect(channels, every(2))
    newest, there._newest = there._newest, None  # its thread has not come so far
    there._connecting = True
    assert on_channels(channels[:1], lambda _group, _rank: None, 2) == [None]
    assert here.outgoing is not None and there.outgoing is None
    waiting = threading.Thread(target=there.finish_connecting, args=(newest,))
    results: list[Any] = []
    work = threading.Thread(target=lambda: results.extend(on_channels(channels, body, 3)))
    work.start()
    waiting.start()
    work.join(60.0)
    assert results == [total] * 2
    assert on_channels(channels, body, 4) == [total] * 2
    assert here.outgoing is here.incoming is not None and there.outgoing is there.incoming is not None


def test_ranks_that_differ_hear_so_over_connections_too() -> None:
    channels = connected(2)
    raised(on_channels(channels, lambda group, rank: group.all_reduce(np.zeros(3 + rank))), ShapeError)
    raised(on_channels(channels, lambda group, rank: group.broadcast_from(np.zeros(3 + rank), 0), 2), ShapeError)
    channels = connected(2)
    raised(on_channels(channels, lambda group, rank: group.all_reduce(np.zeros(3, ("f4", "f8")[rank]))), DTypeError)


def step(channels: list[Channels], tag: int) -> None:
    """One that is right, whatever was before."""
    arrays = values(len(channels), 999)
    total = arrays[0]
    for array in arrays[1:]:
        total = total + array
    results = on_channels(channels, lambda group, rank: group.all_reduce(arrays[rank]).tobytes(), tag)
    assert results == [total.tobytes()] * len(channels)


def test_a_rank_that_gives_up_ends_the_step_and_its_connections_and_the_next_step_goes_by_ring_buffers() -> None:
    channels = connected(3)
    step(channels, 1)

    def gives_up(group: Group, rank: int) -> None:
        if rank == 1:
            raise OutOfMemory("no room")
        group.all_reduce(np.zeros(5000, np.float32))

    raised(on_channels(channels, gives_up, 2), OutOfMemory)
    for tag in (3, 4):
        step(channels, tag)
        assert all(
            channel.remote is not None and channel.remote.outgoing is None
            for rank_channels in channels
            for channel in rank_channels.peers.values()
        )
    connect(channels, every(3), number=9)
    for tag in (5, 6):
        step(channels, tag)
        assert all(
            channel.remote is not None and channel.remote.incoming is not None
            for rank_channels in channels
            for channel in rank_channels.peers.values()
        )


def test_who_was_not_in_the_step_that_was_given_up_finds_the_end_of_its_connections() -> None:
    channels = connected(3)
    step(channels, 1)
    for rank in (0, 2):  # rank 1 never begins step 2
        channels[rank].begin(2, lambda: False)
        remote = channels[rank].peers[1].remote
        assert remote is not None
        remote.post(with_tag(bytes(ENVELOPE_BYTES), 2), memoryview(bytes(100)))
        channels[rank].fail(Cancelled("stopped"))
    step(channels, 3)


@pytest.mark.parametrize("bytes_sent", [0, 20, HEAD_BYTES, HEAD_BYTES + 4000])
def test_a_connection_that_breaks_off_in_a_step_fails_it_and_not_the_next(bytes_sent: int) -> None:
    """The other end sends so many bytes of a message, and is gone: its machine lost power, say."""
    channels = connected(2, slot_bytes=1 << 14)
    step(channels, 1)
    array = np.zeros(3000, np.float32)

    def breaks(group: Group, rank: int) -> Any:
        if rank == 0:
            return group.all_reduce(array)
        remote = group.channels.peers[0].remote
        assert remote is not None and remote.outgoing is not None
        envelope = group._envelope("all_reduce", "sum", TensorType(array.shape, F32))
        message = envelope + array.nbytes.to_bytes(8, "little") + array.tobytes()
        while remote.outgoing.arrived() is None:  # the other end is in the step, and has not seen the end before it
            time.sleep(0.001)
        remote.outgoing._socket.setblocking(True)
        remote.outgoing._socket.sendall(message[:bytes_sent])
        remote.disconnect()
        return None

    results = on_channels(channels, breaks, 2)
    assert isinstance(results[0], ConnectFailed), results[0]
    step(channels, 3)


def test_a_cut_connection_is_named() -> None:
    channels = connected(3, slot_bytes=1 << 14)
    step(channels, 1)
    channels[0].peers[2].name = "porch"
    cut = threading.Barrier(2)

    def body(group: Group, rank: int) -> Any:
        if rank == 2:
            group.all_reduce(np.zeros(10, np.float32))  # the others hold the first message of the second one
            remote = group.channels.peers[0].remote
            assert remote is not None
            remote.disconnect()
            cut.wait(60.0)
            return None
        group.all_reduce(np.zeros(10, np.float32))
        if rank == 0:
            cut.wait(60.0)
        return group.all_reduce(np.zeros(30_000, np.float32))

    results = on_channels(channels, body, 2)
    assert isinstance(results[0], ConnectFailed)
    assert "rank 2 (porch)" in str(results[0])


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 60), marks=pytest.mark.long)], ids=["some", "many"])
def test_whatever_is_cut_when_each_step_is_right_or_fails_and_the_next_one_is_as_good(seeds: range) -> None:
    for seed in seeds:
        chance = random.Random(seed)
        n = chance.choice((2, 3, 4))
        channels = channels_in_memory(n, slot_bytes=chance.choice((256, 4096)))
        for tag in range(1, 10):
            for number, pair in enumerate(every(n)):
                if chance.random() < 0.4 and not any(stands(channels, *ends) for ends in (pair, pair[::-1])):
                    connect(channels, [pair], 100 * tag + number)
            cuts = chance.random() < 0.4
            results = chaotic(
                channels, tag, chance.randrange(n) if cuts else None, chance.randrange(n), chance.randrange(4)
            )
            errors = [result for result in results if result is not None]
            assert all(isinstance(error, ConnectFailed) for error in errors), errors
            assert cuts or not errors, "nothing was cut in this step"


def stands(channels: list[Channels], here: int, there: int) -> bool:
    remote = channels[here].peers[there].remote
    return remote is not None and remote._newest is not None and not remote._newest.ended


def chaotic(channels: list[Channels], tag: int, cutter: int | None, to: int, at: int) -> list[Any]:
    """A step of collectives, before the `at`-th of which a rank cuts the connection to another; the errors of ranks."""
    arrays = values(len(channels), 3000)
    total = arrays[0]
    for array in arrays[1:]:
        total = total + array

    def body(group: Group, rank: int) -> None:
        for place, name in enumerate(("direct", "exchange", "chain", "star")):
            remote = group.channels.peers[to].remote if rank == cutter != to and place == at else None
            if remote is not None:
                remote.disconnect()
            group.algorithm = name
            assert group.all_reduce(arrays[rank]).tobytes() == total.tobytes()
            assert (
                group.broadcast_from(arrays[rank], place % group.size).tobytes() == arrays[place % group.size].tobytes()
            )

    return on_channels(channels, body, tag)


def test_a_message_that_says_it_is_larger_than_any_ends_the_connection() -> None:
    here, there = sockets()
    connection = Connection(here, 1, 1000)
    there.sendall(bytes(ENVELOPE_BYTES) + (1001).to_bytes(8, "little"))
    until(lambda: connection.arrived() is not None or connection.ended)
    assert connection.ended
    there.close()


@pytest.mark.skipif(not hasattr(socket, "TCP_KEEPIDLE"), reason="this system names it otherwise")
def test_the_system_ends_a_connection_to_a_machine_that_vanished_but_not_to_a_rank_that_reads_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        here = socket.create_connection(listener.getsockname())
        there, _ = listener.accept()
    for sock in (here, there):
        connection = Connection(sock, 1, 1000)
        idle_s, between_s, probes = (
            sock.getsockopt(socket.IPPROTO_TCP, name)
            for name in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert idle_s + between_s * probes <= UNACKNOWLEDGED_BY_RANK.seconds
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 0, "it may compute for long"
        connection.close()


def test_messages_come_in_any_cut_and_the_end_within_one_is_noticed() -> None:
    here, there = sockets()
    connection, envelope = Connection(here, 1, 1000), bytes(range(ENVELOPE_BYTES))
    message = envelope + (5).to_bytes(8, "little") + b"hello"
    for cut in (1, ENVELOPE_BYTES, HEAD_BYTES, HEAD_BYTES + 2):
        there.sendall(message[:cut])
        connection.arrived()
        there.sendall(message[cut:])
        until(lambda: connection.arrived() is not None)
        assert bytes(connection.arrived() or b"") == envelope
        target = memoryview(bytearray(connection.payload_bytes))
        until(lambda target=target: connection.fill(target))
        assert bytes(target) == b"hello"
        connection.release()
    there.sendall(message[:-1])
    there.close()
    until(lambda: connection.arrived() is not None)
    target = memoryview(bytearray(5))
    until(lambda: connection.fill(target) or connection.ended)
    assert not connection.fill(target)


def until(ready: Callable[[], bool]) -> None:
    """What is on its way on loopback comes."""
    waiting = threading.Event()
    for _ in range(60_000):
        if ready():
            return
        waiting.wait(0.001)
    raise AssertionError("nothing came")


@pytest.mark.parametrize("switched", [False, True])
def test_a_rank_that_sends_old_messages_without_end_holds_up_no_other_beyond_the_deadline(switched: bool) -> None:
    """They are dropped as a step begins and, where the other rank has switched, while it waits."""
    channels = channels_in_memory(2)
    ((here, there),) = connect(channels, every(2))
    channels[0].deadline_s = 0.1
    assert there._newest is not None
    sock, old = there._newest._socket, with_tag(bytes(HEAD_BYTES), 1) * 1000
    sock.setblocking(True)
    flooding, over, gives_up_s = threading.Event(), threading.Event(), time.monotonic() + 20.0

    def flood() -> None:
        with contextlib.suppress(OSError):
            while not over.is_set() and time.monotonic() < gives_up_s:
                sock.sendall(old)
                flooding.set()

    sender = threading.Thread(target=flood, daemon=True)
    sender.start()
    assert flooding.wait(HANGS_S)
    if switched:
        here.incoming = here._newest
    (result,) = on_channels(channels[:1], lambda group, rank: group.barrier(), 5, ranks=2)
    assert time.monotonic() < gives_up_s, "it ended since no more came"
    assert isinstance(result, DeadlineExceeded)
    over.set()
    sender.join(HANGS_S)


@pytest.mark.parametrize(("tag", "error"), [(1, DeadlineExceeded), (5, GraphError), (6, Cancelled)])
def test_a_switch_marker_over_a_connection_is_a_message_like_others(tag: int, error: type[Exception]) -> None:
    """It belongs into a ring buffer: over a connection only a rank that lies sends one."""
    channels = channels_in_memory(2)
    ((here, there),) = connect(channels, every(2))
    channels[0].deadline_s = 0.1
    assert there._newest is not None
    there._newest.post(switch_marker(tag, 3), memoryview(b""))
    here.incoming = here._newest
    (result,) = on_channels(channels[:1], lambda group, rank: group.barrier(), 5, ranks=2)
    assert isinstance(result, error)
    assert channels[0].peers[1].reader._words[16] == 0, "nothing of the ring buffer was read"
