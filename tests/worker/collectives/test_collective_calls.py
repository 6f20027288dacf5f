"""Engine hosts that connect to each other: who gets through, who does not, and what the daemons say to each other."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.machines.bridges import MEMBERS, PLAN, Network, Node, reducing
from support.ranks import channels_in_memory, on_channels

from mesh.simulation.throttled_worker import throttled
from wire.protocol.messages import Gang, Meet
from wire.security.tls import secured_by_key
from wire.timeouts import DEFAULT_TIMEOUTS, Timeouts
from worker.collectives.connector import KEY_BYTES, Connector, listening_on
from worker.collectives.open_channels import open_rank
from worker.collectives.remote_channel import RemoteChannel
from worker.config import WorkerConfig
from worker.daemon.collective_rendezvous import HostConnections, host_connections_of
from worker.daemon.environment import REAL
from worker.engine import descriptors
from worker.engine.host_messages import Connect, Disconnected, FromHost, Listen, Listening

KEY, BUFFER = bytes(range(KEY_BYTES)), "box"


class Ends:
    """The hosts of two ranks, of which the first expects the other.  Nothing is late because the machine is busy."""

    def __init__(self) -> None:
        self.messages: queue.Queue[FromHost] = queue.Queue()
        folder = Path(tempfile.gettempdir())
        self.first, self.second = Connector(self.messages.put, folder), Connector(folder=folder)

    def expect(self, tls: bool = False, host: str = "127.0.0.1", wait_s: float = 120.0, proof_s: float = 60.0) -> int:
        """The port where it does."""
        self.first.begin(Listen(BUFFER, KEY, host, 256, tls, wait_s, proof_s))
        messages = self.messages.get(timeout=60.0)
        while isinstance(messages, Disconnected):
            messages = self.messages.get(timeout=60.0)
        assert isinstance(messages, Listening) and messages.key == KEY and messages.buffer == BUFFER
        return messages.port

    def call(self, port: int, key: bytes = KEY, tls: bool = False, host: str = "127.0.0.1") -> RemoteChannel:
        """The caller's remote channel, once the call has come to something or to nothing."""
        self.second.begin(Connect(BUFFER, key, host, port, 256, tls, 120.0, 60.0))
        remote = self.second.remote(BUFFER)
        settled(remote)
        return remote

    @property
    def connected(self) -> bool:
        """Whether both have the same connection, and nothing else."""
        remotes = self.first.remote(BUFFER), self.second.remote(BUFFER)
        settled(remotes[0])
        numbers = [remote._newest.number for remote in remotes if remote._newest is not None]
        return len(numbers) == 2 and len(set(numbers)) == 1

    def reduce(self) -> None:
        """Something, by way of the connection."""
        channels = channels_in_memory(2)
        for rank, remotes in enumerate((self.first, self.second)):
            channels[rank].peers[1 - rank].remote = remotes.remote(BUFFER)
        for tag in (1, 2):
            actual = on_channels(channels, lambda group, rank: group.all_reduce(np.full(5000, rank + 1.0)).sum(), tag)
            assert actual == [15_000.0] * 2
        assert self.first.remote(BUFFER).incoming is not None


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.first.keep_only(())
    made.second.keep_only(())


def settled(remote: RemoteChannel) -> None:
    """Wait until nobody makes a connection on it."""
    waiting = threading.Event()
    for _ in range(60_000):
        if not remote._connecting:
            return
        waiting.wait(0.001)
    raise AssertionError("an attempt does not end")


@pytest.mark.parametrize(("listens", "calls"), [("127.0.0.1", "127.0.0.1"), ("::", "127.0.0.1")])
def test_a_host_calls_one_that_expects_it(ends: Ends, listens: str, calls: str) -> None:
    ends.call(ends.expect(host=listens), host=calls)
    assert ends.connected
    ends.reduce()


def test_strangers_are_turned_away_and_do_not_keep_the_caller_out(ends: Ends) -> None:
    port = ends.expect(proof_s=0.1)
    strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(4)]
    strangers[0].sendall(bytes(KEY_BYTES))  # not the key
    strangers[1].sendall(KEY[:-1])  # not all of it, and never more
    strangers[2].close()
    for each in (strangers[0], strangers[1], strangers[3]):
        each.settimeout(60.0)
        assert hung_up(each)
    assert any(ends.call(port)._newest for _ in range(100)), "where the machine is busy it is later than proof_s, too"
    assert ends.connected
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), 60.0).recv(1)  # the port is closed again


def hung_up(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_caller_with_another_key_gets_nothing_and_takes_nobody_for_the_right_one(ends: Ends) -> None:
    port = ends.expect()
    assert ends.call(port, key=bytes(KEY_BYTES))._newest is None
    ends.call(port)
    assert ends.connected
    with socket.create_server(("127.0.0.1", 0)) as imposter:  # it answers, without knowing the key

        def answer() -> None:
            caller = imposter.accept()[0]
            caller.recv(KEY_BYTES)
            caller.sendall(bytes(KEY_BYTES))

        threading.Thread(target=answer, daemon=True).start()
        third = Ends()
        assert third.call(imposter.getsockname()[1])._newest is None


def test_nobody_answers_and_nobody_comes(ends: Ends) -> None:
    port = ends.expect(wait_s=0.05)
    first = ends.first.remote(BUFFER)
    settled(first)
    assert first._newest is None
    assert ends.messages.get(timeout=60.0) == Disconnected(BUFFER)  # the daemons try again
    assert ends.call(port)._newest is None
    ends.call(ends.expect())  # the next attempt may come to something
    assert ends.connected


def test_a_connection_for_a_plan_that_is_over_is_closed(ends: Ends) -> None:
    port = ends.expect()
    ends.second.remote(BUFFER)
    ends.second.begin(Connect(BUFFER, KEY, "127.0.0.1", port, 256))
    remote = ends.second.remote(BUFFER)
    ends.second.keep_only(())
    settled(remote)
    assert remote._newest is None
    assert ends.second.remote(BUFFER) is not remote


# -- within TLS


def test_hosts_of_a_mesh_connect_within_tls_that_only_those_pass_who_were_told_the_key(ends: Ends) -> None:
    port = ends.expect(tls=True)
    assert Ends().call(port, key=bytes(KEY_BYTES), tls=True)._newest is None, (
        "another member, who does not know the key"
    )
    assert Ends().call(port)._newest is None, "without TLS, and so by the key in the clear"
    ends.call(port, tls=True)
    assert ends.connected
    ends.reduce()


def test_who_answers_without_the_key_is_told_nothing(tmp_path: Path) -> None:
    """Its certificate is another one, and the caller hangs up before it says the key."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as imposter:

        def answer() -> None:
            caller = imposter.accept()[0]
            with contextlib.suppress(OSError):
                secured = secured_by_key(caller, bytes(KEY_BYTES), True, tmp_path)
                heard.append(secured.recv(KEY_BYTES))

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        assert Ends().call(imposter.getsockname()[1], tls=True)._newest is None
        thread.join(60.0)
    assert heard in ([], [b""]) and not list(tmp_path.iterdir()), "and no key stays on the disk"


def test_sockets_that_a_daemon_hands_over_are_taken_in_the_order_of_their_messages() -> None:
    ours, theirs = descriptors.pair()
    with ours, socket.create_server(("127.0.0.1", 0)) as elsewhere:
        messages: queue.Queue[FromHost] = queue.Queue()
        connector = Connector(messages.put, handed=descriptors.Handed(theirs.detach()))
        listener = listening_on("127.0.0.1")
        port = listener.getsockname()[1]
        assert descriptors.hand(ours, listener)
        assert descriptors.hand(ours, socket.create_connection(elsewhere.getsockname()))
        connector.begin(Listen(BUFFER, KEY, "127.0.0.1", 256, False, 120.0, 60.0))
        connector.begin(Connect("other", KEY, "127.0.0.1", 1, 256, False, 120.0, 60.0))
        assert messages.get(timeout=60.0) == Listening(BUFFER, KEY, port)
        caller = elsewhere.accept()[0]
        caller.settimeout(60.0)
        assert caller.recv(KEY_BYTES) == KEY
        caller.close()
        third = Ends()
        assert third.call(port)._newest is not None
        connector.keep_only(())
        third.second.keep_only(())
    assert not descriptors.hand(ours, socket.socket()), "the host is gone"


def test_a_message_without_its_socket_is_a_failed_connection() -> None:
    ours, theirs = descriptors.pair()
    with ours:
        messages: queue.Queue[FromHost] = queue.Queue()
        connector = Connector(messages.put, handed=descriptors.Handed(theirs.detach()))
        connector.begin(Listen(BUFFER, KEY, "127.0.0.1", 256, False, 120.0, 60.0))
        assert messages.get(timeout=60.0) == Disconnected(BUFFER)


# -- what the daemons say


class Daemons(Network):
    """Two daemons whose hosts may call each other: the first one's node dialled the link."""

    def __init__(self, folder: Path, timeouts: Timeouts = DEFAULT_TIMEOUTS) -> None:
        super().__init__(folder, timeouts=timeouts)
        self.connectors: dict[str, Connector] = {}
        loop = asyncio.get_running_loop()
        for name, node in self.nodes.items():

            def said(message: FromHost, node: Node = node) -> None:
                loop.call_soon_threadsafe(node.bridge.host_said, 0, message)

            self.connectors[name] = Connector(said)
            node.bridge._connections = HostConnections(
                lambda _device, message, name=name: self.tell(name, message), "127.0.0.1"
            )

    def tell(self, name: str, message: Any) -> None:
        self.connectors[name].begin(message)

    def connect(self) -> None:
        super().connect()
        self.nodes["a"].links["b"].address = "127.0.0.1:7100"

    def prepared(self, *names: str) -> list[Any]:
        """The ranks of these nodes, prepared in that order."""
        loop, actual = asyncio.get_running_loop(), {}
        for name in names:
            rank, node = "ab".index(name), self.nodes[name]
            gang = node.bridge.prepare(7, PLAN, Gang(("dp",), (2,), rank, MEMBERS))

            def ring(node: Node = node) -> None:
                loop.call_soon_threadsafe(node.bridge.buffers_changed, 0)

            own = str(node.shared.path)
            actual[name] = open_rank(gang, own, node.bridge.directories(7), ring, remote=self.connectors[name].remote)
        return [actual[name] for name in sorted(actual)]

    async def until(self, ready: Callable[[], bool]) -> None:
        for _ in range(60_000):
            while self.flying:
                self.deliver()
            if ready():
                return
            await asyncio.sleep(0.001)
        raise AssertionError("the daemons have nothing more to say")

    def over_connection(self) -> bool:
        remotes = [remote for connector in self.connectors.values() for remote in connector._remotes.values()]
        return len(remotes) == 2 and all(remote._newest is not None and not remote._newest.ended for remote in remotes)

    def close(self) -> None:
        for name, node in self.nodes.items():
            self.connectors[name].keep_only(())
            node.bridge.close()
            node.shared.close()


def deliver(network: Daemons) -> None:
    """Links as the receiving end sees them, for `Network.deliver` makes new ones."""
    _, source, message, data, sent = network.flying.pop(0)
    target = network.nodes["b" if source == "a" else "a"]
    assert data is None and sent is None
    target.bridge.take(target.links[source], message)


@pytest.mark.parametrize("order", ["ab", "ba"])
async def test_whoever_is_prepared_first_the_hosts_are_connected(tmp_path: Path, order: str) -> None:
    network = Daemons(tmp_path)
    network.deliver = lambda: deliver(network)  # type: ignore[method-assign]
    try:
        network.connect()
        network.prepared(order[0])
        await network.until(lambda: not network.flying)
        network.prepared(order[1])
        await network.until(network.over_connection)
    finally:
        network.close()


async def test_a_link_that_comes_later_and_a_connection_that_ended_are_made_up_for(tmp_path: Path) -> None:
    network = Daemons(tmp_path, replace(DEFAULT_TIMEOUTS, rank_reconnect_s=0.0))
    try:
        network.connect()
        network.nodes["a"].links["b"].same_host = network.nodes["b"].links["a"].same_host = False
        ranks = network.prepared("a", "b")
        network.cut()
        network.connect()
        network.deliver = lambda: deliver(network)  # type: ignore[method-assign]
        await network.until(network.over_connection)
        (remote,) = network.connectors["a"]._remotes.values()
        remote.disconnect()
        await network.until(lambda: not network.over_connection())
        (other,) = network.connectors["b"]._remotes.values()
        other.disconnect()
        await network.until(network.over_connection)
        arrays = [np.full(9000, rank, np.float32) for rank in (0, 1)]
        results: list[Any] = [None, None]

        def work(rank: int) -> None:
            results[rank] = reducing(ranks, arrays, 1)(rank)

        threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in (0, 1)]
        for thread in threads:
            thread.start()
        await network.until(lambda: not any(thread.is_alive() for thread in threads))
        assert results == [(arrays[0] + arrays[1]).tobytes()] * 2
    finally:
        network.close()


async def test_no_host_is_told_to_call_where_memory_is_shared_or_links_are_slowed(tmp_path: Path) -> None:
    network = Daemons(tmp_path)
    network.tell = lambda *_: pytest.fail("a host was told to call")  # type: ignore[method-assign]
    try:
        network.connect()
        network.deliver = lambda: deliver(network)  # type: ignore[method-assign]
        for node in network.nodes.values():
            for link in node.links.values():
                link.same_host, link.peer.shared_memory = True, str(node.shared.path)
        for rank, node in enumerate(network.nodes.values()):
            node.bridge.prepare(7, PLAN, Gang(("dp",), (2,), rank, MEMBERS))
        assert not network.flying
    finally:
        network.close()
    config = WorkerConfig.local("w", "test", tmp_path)
    assert host_connections_of(config, False, lambda _device, _message: None) is not None
    for text in ("rate=20Mbit/s", "delay=5ms"):
        slowed, _ = throttled(config, REAL, text)
        assert host_connections_of(slowed, False, lambda _device, _message: None) is None
    paced, _ = throttled(config, REAL, "flops=1e9")
    assert host_connections_of(paced, False, lambda _device, _message: None) is not None, (
        "its links are as fast as others'"
    )


async def test_a_node_that_says_again_and_again_where_its_host_listens_is_called_once_at_a_time() -> None:
    """Each call has a thread of the few that the daemon has, for seconds where nobody answers."""
    over: asyncio.Queue[int] = asyncio.Queue()

    def hand(device: int, sock: socket.socket) -> bool:
        sock.close()
        over.put_nowait(device)
        return True

    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        listener.setblocking(False)
        connections = HostConnections(lambda _device, _message: None, "127.0.0.1", hand=hand)
        link: Any = SimpleNamespace(address="127.0.0.1:7100")
        meet = Meet(BUFFER, False, listener.getsockname()[1], KEY)
        for calls in (1, 2):
            for _ in range(20):
                connections.connect(0, BUFFER, 256, link, meet, over.task_done)
            while connections._tasks:
                await asyncio.wait(list(connections._tasks))
            assert over.qsize() == calls
        connections.close()


async def test_a_host_that_takes_no_socket_now_is_offered_another_later() -> None:
    failures: list[str] = []

    def hand(device: int, sock: socket.socket) -> bool:
        sock.close()
        return False

    connections = HostConnections(lambda _device, _message: failures.append("told"), "127.0.0.1", hand=hand)
    connections.listen(0, BUFFER, 256, lambda: failures.append("failed"))
    assert failures == ["failed"]


async def test_connections_that_come_to_nothing_are_offered_again_once(tmp_path: Path) -> None:
    """Both ends hear of each that failed, by their hosts and by themselves: offers must not become more and more."""
    network, loop = Daemons(tmp_path, replace(DEFAULT_TIMEOUTS, rank_reconnect_s=0.0)), asyncio.get_running_loop()
    try:
        network.connect()
        bridge = network.nodes["a"].bridge
        bridge.prepare(7, PLAN, Gang(("dp",), (2,), 0, MEMBERS))
        network.flying.clear()
        for offers in (1, 2):
            for buffer in bridge._originals:
                for _ in range(5):
                    bridge.host_said(0, Disconnected(buffer))
            due = loop.create_future()
            loop.call_later(0.001, due.set_result, None)
            await due
            assert len(network.flying) == offers
    finally:
        network.close()
