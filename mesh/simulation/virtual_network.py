"""Links without sockets: two sans-IO peers joined under a virtual clock, with faults by seed or by script.

The same seed gives the same run, frame by frame.  By default a wire behaves as TCP does: it delays, and a lost packet
only delays everything behind it.  `drop` and `reorder` break that promise, to test what the protocol itself notices.
To script a fault, schedule it: `network.at(1.5, wire.cut)`, `network.at(2, lambda: wire.change(there=SLOW))`.  It does
not know what the peers are for.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wire.errors import MeshError
from wire.limits import KIB
from wire.protocol.peer import BULK, CONTROL, Acknowledged, Channel, Event, HelloReceived, Peer, State

React = Callable[[Peer, Event], None]


@dataclass(frozen=True, slots=True)
class Conditions:
    """How one direction of a wire treats frames.  Probabilities are per frame."""

    delay_s: float = 0.0005
    jitter_s: float = 0.0  # up to so much more, uniformly
    bytes_per_s: float = 1e9
    loss: float = 0.0  # a packet is lost and sent again, everything behind it waits
    resend_s: float = 0.2
    drop: float = 0.0  # the frame vanishes
    reorder: float = 0.0  # the frame is overtaken by those behind it
    buffer_bytes: int = 512 * KIB  # what the sockets hold; a peer is asked for more only below that


PERFECT = Conditions()


class Network:
    """The clock, the chance and everything scheduled.  `run` advances virtual time."""

    def __init__(self, seed: int = 0) -> None:
        self.now_s = 0.0
        self.random = random.Random(seed)
        self._order = itertools.count()
        self._scheduled: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, time_s: float, action: Callable[[], None]) -> None:
        """Do something at a time; things at equal times happen in the order they were scheduled."""
        heapq.heappush(self._scheduled, (max(time_s, self.now_s), next(self._order), action))

    def run(self, until_s: float = float("inf"), steps_max: int = 1_000_000) -> int:
        """Do what is scheduled up to a time, or until nothing is; how many things were done."""
        steps = 0
        while self._scheduled and self._scheduled[0][0] <= until_s and steps < steps_max:
            self.now_s, _, action = heapq.heappop(self._scheduled)
            action()
            steps += 1
        if until_s != float("inf"):
            self.now_s = max(self.now_s, until_s)
        return steps

    def join(
        self, dialer: Peer, acceptor: Peer, react: React, there: Conditions = PERFECT, back: Conditions = PERFECT
    ) -> Wire:
        """Join two peers: `there` is the way from dialer to acceptor.  `react` gets every event of both.

        The hello's two decisions are made here (always accept, always go on) unless `react` made them.
        """
        return Wire(self, (dialer, acceptor), (there, back), react)


@dataclass(slots=True)
class _Direction:
    """One direction of one connection."""

    sender: Peer
    receiver: Peer
    channel: Channel
    conditions: Conditions
    flying_bytes: int = 0
    free_s: float = 0.0  # when the last byte has left
    arrived_s: float = 0.0  # when the last frame arrives


class Wire:
    """The two connections between two peers."""

    def __init__(self, network: Network, peers: tuple[Peer, Peer], ways: Sequence[Conditions], react: React) -> None:
        self.network = network
        self.peers = peers
        self.errors: list[MeshError] = []  # what a peer's `receive` raised
        self.frames = 0  # delivered
        self._react = react
        self._stalled = False
        self._alive = True
        self._lanes = [
            _Direction(peers[side], peers[1 - side], channel, ways[side])
            for side in (0, 1)
            for channel in (CONTROL, BULK)
        ]
        self.pump()

    def pump(self) -> None:
        """Take what the peers have to send; call it after using a peer."""
        if not self._alive or self._stalled:
            return
        for lane in self._lanes:
            while lane.flying_bytes < lane.conditions.buffer_bytes:
                frame = lane.sender.next_frame(lane.channel)
                if frame is None:
                    break
                self._send(lane, frame)
        for peer in self.peers:
            for event in peer.sent_events():
                self._react(peer, event)

    def change(self, there: Conditions | None = None, back: Conditions | None = None) -> None:
        """Set the conditions of later frames in one direction."""
        for lane in self._lanes:
            lane.conditions = (there if lane.sender is self.peers[0] else back) or lane.conditions

    def cut(self) -> None:
        """End both connections without a word; frames on the way are lost."""
        self._alive = False
        for peer in self.peers:
            for event in peer.receive_eof(CONTROL):
                self._react(peer, event)

    def stall(self, seconds: float) -> None:
        """Nothing moves for a while; nothing is lost."""
        self._stalled = True
        self.network.at(self.network.now_s + seconds, self._resume)

    def inject(self, receiver: Peer, channel: Channel, data: bytes) -> None:
        """Let a peer receive these bytes now."""
        self._deliver(receiver, channel, data)

    def _resume(self) -> None:
        self._stalled = False
        self.pump()

    def _send(self, lane: _Direction, frame: bytes) -> None:
        network, how = self.network, lane.conditions
        chance = network.random.random
        lane.free_s = max(lane.free_s, network.now_s) + len(frame) / how.bytes_per_s
        arrives_s = lane.free_s + how.delay_s + how.jitter_s * chance()
        if how.loss and chance() < how.loss:
            arrives_s += how.resend_s
        if not (how.reorder and chance() < how.reorder):
            arrives_s = lane.arrived_s = max(arrives_s, lane.arrived_s)
        else:
            arrives_s += how.delay_s + how.jitter_s
        lost = bool(how.drop) and chance() < how.drop
        lane.flying_bytes += len(frame)
        network.at(arrives_s, lambda: self._arrive(lane, frame, lost))

    def _arrive(self, lane: _Direction, frame: bytes, lost: bool) -> None:
        if self._stalled and self._alive:
            self.network.at(
                self.network.now_s + max(lane.conditions.delay_s, 1e-3), lambda: self._arrive(lane, frame, lost)
            )
            return
        lane.flying_bytes -= len(frame)
        if self._alive and not lost:
            self._deliver(lane.receiver, lane.channel, frame)
        self.pump()

    def _deliver(self, receiver: Peer, channel: Channel, frame: bytes) -> None:
        self.frames += 1
        try:
            for event in receiver.receive(channel, frame):
                self._react(receiver, event)
                _go_on(receiver, event)
        except MeshError as error:
            self.errors.append(error)
        self.pump()


def _go_on(peer: Peer, event: Event) -> None:
    """Make the decisions of the hello that nobody has made."""
    if isinstance(event, HelloReceived) and peer.state is State.HELLO_SEEN:
        peer.accept()
    elif isinstance(event, Acknowledged) and peer.state is State.ACKNOWLEDGED:
        peer.start_bulk()
