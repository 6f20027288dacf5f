"""Each fault of the proxy, on plain sockets: what a test orders is what passes."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.processes.fault_proxy import DOWN, UP, FaultProxy, resets

WAIT_S = 120.0
DATA = random.Random(5).randbytes(300_000)


@contextmanager
def ends(proxy: FaultProxy, server: socket.socket) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection through the proxy: the side that dialled, the side that was reached."""
    with socket.create_connection((proxy.host, proxy.port), WAIT_S) as client:
        reached, _ = server.accept()
        with reached:
            reached.settimeout(WAIT_S)
            yield client, reached


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(WAIT_S)
        yield listening


def proxy_of(server: socket.socket, **options: Any) -> FaultProxy:
    return FaultProxy(server.getsockname()[:2], **options)


def send(side: socket.socket, data: bytes) -> threading.Thread:
    """Send all and end that direction, beside the test."""

    def work() -> None:
        side.sendall(data)
        side.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def receive(side: socket.socket) -> bytes:
    """Everything up to the end; ConnectionResetError if that is a reset."""
    found = bytearray()
    while data := side.recv(1 << 16):
        found += data
    return bytes(found)


def first_byte(proxy: FaultProxy) -> bytes:
    """What a new connection says first; a reset may come as early as the end of connecting."""
    with socket.create_connection((proxy.host, proxy.port), WAIT_S) as client:
        return client.recv(1)


def test_without_faults_bytes_pass_unchanged_and_each_side_may_end_first(server: socket.socket) -> None:
    with proxy_of(server) as proxy, ends(proxy, server) as (client, reached):
        sending = send(client, DATA)
        assert receive(reached) == DATA
        sending.join()
        send(reached, DATA[::-1]).join()  # after the client ended its own direction
        assert receive(client) == DATA[::-1]
        assert (proxy.passed(UP, 0), proxy.passed(DOWN, 0)) == (len(DATA), len(DATA))


def test_delay_and_jitter_hold_bytes_back_and_keep_their_order(server: socket.socket) -> None:
    with proxy_of(server) as proxy, ends(proxy, server) as (client, reached):
        proxy.change(UP, delay_s=0.1, jitter_s=0.05)
        began_s = time.monotonic()
        sending = send(client, DATA)
        first = reached.recv(1)
        assert time.monotonic() - began_s >= 0.1
        assert first + receive(reached) == DATA
        sending.join()


def test_a_slow_line_takes_as_long_as_its_rate_says(server: socket.socket) -> None:
    with proxy_of(server) as proxy, ends(proxy, server) as (client, reached):
        proxy.change(UP, bytes_per_s=1e6)
        began_s = time.monotonic()
        sending = send(client, DATA)
        assert receive(reached) == DATA
        assert time.monotonic() - began_s >= 0.28
        sending.join()


def test_connections_share_a_slow_line(server: socket.socket) -> None:
    with proxy_of(server) as proxy, ends(proxy, server) as (client, reached), ends(proxy, server) as (other, there):
        proxy.change(UP, bytes_per_s=1e6)
        began_s = time.monotonic()
        sending = [send(client, DATA[:150_000]), send(other, DATA[150_000:])]
        assert receive(reached) + receive(there) == DATA
        assert time.monotonic() - began_s >= 0.28
        for each in sending:
            each.join()


def test_a_slow_line_makes_the_sender_wait(server: socket.socket) -> None:
    with proxy_of(server) as proxy, ends(proxy, server) as (client, _):
        proxy.change(UP, bytes_per_s=1e3)
        client.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.sendall(bytes(16 << 20))


def test_a_stall_holds_one_direction_until_it_is_lifted(server: socket.socket) -> None:
    with proxy_of(server) as proxy, ends(proxy, server) as (client, reached):
        proxy.change(UP, stalled=True)
        client.sendall(b"there")
        reached.sendall(b"back")
        assert client.recv(16) == b"back"
        reached.settimeout(0.2)
        with pytest.raises(TimeoutError):
            reached.recv(16)
        proxy.change(UP, stalled=False)
        reached.settimeout(WAIT_S)
        assert reached.recv(16) == b"there"


def test_slices_of_one_byte_arrive_whole(server: socket.socket) -> None:
    with proxy_of(server) as proxy, ends(proxy, server) as (client, reached):
        proxy.change(UP, slice_bytes=1)
        written: list[int] = []
        send_all = proxy._loop.sock_sendall

        async def counted(to: socket.socket, data: Any) -> None:  # what arrives in time arrives together
            written.append(len(data))
            await send_all(to, data)

        proxy._loop.sock_sendall = counted
        sending = send(client, DATA[:3000])
        assert receive(reached) == DATA[:3000]
        assert written == [1] * 3000
        sending.join()


@pytest.mark.parametrize("size", [0, 1, 1000, 65_536, 65_537, 299_999])
def test_a_cut_comes_after_exactly_so_many_bytes(server: socket.socket, size: int) -> None:
    with proxy_of(server) as proxy:
        proxy.change(UP, cut_after=size, cut_with="fin")
        with ends(proxy, server) as (client, reached):
            sending = threading.Thread(target=_sendall, args=(client, DATA))
            sending.start()
            assert receive(reached) == DATA[:size]
            sending.join()


def _sendall(side: socket.socket, data: bytes) -> None:
    try:
        side.sendall(data)
    except ConnectionError:
        return  # it was cut


@pytest.mark.parametrize("place", [0, 7, 65_535, 65_536, 299_999])
def test_one_byte_is_flipped_and_no_other(server: socket.socket, place: int) -> None:
    with proxy_of(server) as proxy:
        proxy.change(DOWN, flip_at=place, flip_mask=0x81)
        with ends(proxy, server) as (client, reached):
            sending = send(reached, DATA)
            found = receive(client)
            sending.join()
            assert found == DATA[:place] + bytes([DATA[place] ^ 0x81]) + DATA[place + 1 :]


def test_a_reset_is_seen_as_one_on_both_sides(server: socket.socket) -> None:
    with proxy_of(server) as proxy, ends(proxy, server) as (client, reached):
        proxy.end("rst")
        for side in (client, reached):
            with pytest.raises(ConnectionResetError):
                side.recv(1)


def test_an_end_in_good_order_is_seen_as_one(server: socket.socket) -> None:
    with proxy_of(server) as proxy, ends(proxy, server) as (client, reached):
        proxy.end("fin")
        assert (client.recv(1), reached.recv(1)) == (b"", b"")


def test_a_reset_of_one_side_reaches_the_other(server: socket.socket) -> None:
    with proxy_of(server) as proxy, ends(proxy, server) as (client, reached):
        reached.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        reached.close()
        with pytest.raises(ConnectionResetError):
            client.recv(1)


def test_refused_connections_never_reach_the_target(server: socket.socket) -> None:
    with proxy_of(server) as proxy:
        proxy.change(UP, refused=True)
        with pytest.raises(ConnectionResetError):
            first_byte(proxy)
        proxy.change(UP, refused=False)
        with ends(proxy, server) as (client, reached):
            client.sendall(b"x")
            assert reached.recv(1) == b"x"


def test_a_change_may_name_one_connection(server: socket.socket) -> None:
    with proxy_of(server) as proxy:
        proxy.change(UP, connection=1, flip_at=0)
        with ends(proxy, server) as first, ends(proxy, server) as second:
            for (client, reached), expected in ((first, b"\x00"), (second, b"\x01")):
                client.sendall(b"\x00")
                assert reached.recv(1) == expected


def test_a_target_that_is_not_there_is_a_reset() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with FaultProxy(("127.0.0.1", port)) as proxy, pytest.raises(ConnectionResetError):
        first_byte(proxy)


def test_what_was_logged_replays(server: socket.socket) -> None:
    with proxy_of(server) as proxy:
        proxy.change(UP, connection=0, flip_at=3)
        time.sleep(0.05)
        proxy.change(DOWN, cut_after=5, cut_with="fin")
        logged = proxy.schedule
    assert logged[1].at_s - logged[0].at_s >= 0.045
    with proxy_of(server, script=logged) as again:
        deadline_s = time.monotonic() + WAIT_S
        while len(again.schedule) < 2:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        assert again.schedule == logged
        with ends(again, server) as (client, reached):
            sending = send(client, bytes(4))
            assert receive(reached) == b"\0\0\0\x01"
            sending.join()
            _sendall(reached, b"1234567")
            assert receive(client) == b"12345"


def test_random_scripts_are_the_same_for_a_seed() -> None:
    assert resets(3, 10, 2.0) == resets(3, 10, 2.0) != resets(4, 10, 2.0)
    assert all(change.end in ("rst", "fin") and 0 <= change.at_s <= 2.0 for change in resets(3, 10, 2.0))
