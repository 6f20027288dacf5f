"""The network without sockets: delay, loss, reorder and faults come when the script says, and a seed replays them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from support.machines.links import Pair, joined

from mesh.simulation.virtual_network import PERFECT, Conditions, Network
from wire.errors import NodeLost, RemoteError
from wire.limits import KIB
from wire.protocol.frames import Notify, encode
from wire.protocol.peer import BULK, CONTROL, Closed, NotifyReceived, Peer, StreamDone, StreamOpened

STILL = replace(PERFECT, delay_s=0.0, bytes_per_s=1e15)


class Heard:
    """When each note arrived at the acceptor, by its text."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.times: list[tuple[str, float]] = []
        pair.react = self._react

    def _react(self, peer: Peer, event: Any) -> None:
        if isinstance(event, NotifyReceived):
            self.times.append((bytes(event.body).decode(), round(self.pair.network.now_s, 9)))

    def say(self, *texts: str) -> Heard:
        for text in texts:
            self.pair.dialer.notify(text.encode())
        self.pair.wire.pump()
        return self

    @property
    def order(self) -> list[str]:
        return [text for text, _ in self.times]


def quiet(there: Conditions = STILL, seed: int = 0) -> tuple[Pair, Heard]:
    """Joined peers whose clock stands at 0, so to speak: `there` holds from here."""
    pair = joined(seed=seed, there=STILL, back=STILL)
    pair.wire.change(there=there)
    return pair, Heard(pair)


# -- the clock ---------------------------------------------------------------------------------------------


def test_things_happen_in_order_of_time_and_then_of_being_scheduled() -> None:
    network, done = Network(), []
    for name, time_s in (("c", 2.0), ("a", 1.0), ("b", 1.0), ("late", 9.0)):
        network.at(time_s, lambda name=name: done.append((name, network.now_s)))
    assert network.run(until_s=5.0) == 3
    assert done == [("a", 1.0), ("b", 1.0), ("c", 2.0)] and network.now_s == 5.0
    network.at(1.0, lambda: done.append(("past", network.now_s)))  # the past is now
    network.run()
    assert done[3:] == [("past", 5.0), ("late", 9.0)]


def test_a_run_ends_after_so_many_steps() -> None:
    network = Network()

    def again() -> None:
        network.at(network.now_s + 1, again)

    again()
    assert network.run(steps_max=10) == 10 and network.now_s == 10.0


# -- delay and bandwidth -----------------------------------------------------------------------------------


def test_a_delay_is_exact_and_one_way() -> None:
    pair, heard = quiet(replace(STILL, delay_s=0.25))
    heard.say("x")
    pair.network.run()
    assert heard.times == [("x", 0.25)]
    pair.acceptor.notify(b"back")
    pair.wire.pump()
    pair.network.run()
    assert heard.times[1] == ("back", 0.25)


def test_bytes_take_their_time_one_after_the_other() -> None:
    pair, heard = quiet(replace(STILL, bytes_per_s=100.0))
    size = len(encode(Notify(b"12345")))
    heard.say("12345", "67890")
    pair.network.run()
    assert heard.times == [("12345", round(size / 100, 9)), ("67890", round(2 * size / 100, 9))]


def test_jitter_delays_and_never_reorders() -> None:
    pair, heard = quiet(replace(STILL, delay_s=0.01, jitter_s=0.5))
    heard.say(*map(str, range(100)))
    pair.network.run()
    assert heard.order == [str(number) for number in range(100)]
    assert heard.times[-1][1] > 0.1


def test_bulk_does_not_delay_control() -> None:
    pair, heard = quiet(replace(STILL, bytes_per_s=1e6))

    def place(peer: Peer, event: Any) -> None:
        heard._react(peer, event)
        if isinstance(event, StreamOpened):
            peer.place_stream(event.stream, memoryview(bytearray(event.size)))

    pair.react = place
    pair.dialer.open_stream(b"", [memoryview(bytes(1 << 20))])
    pair.wire.pump()
    heard.say("between")
    pair.network.run()
    assert heard.times[0][1] < 0.001
    assert pair.network.now_s > 1.0 and pair.seen("acceptor", StreamDone)


def test_a_peer_is_asked_for_no_more_than_the_sockets_hold() -> None:
    pair, _ = quiet(replace(STILL, bytes_per_s=1e3, buffer_bytes=10 * KIB))
    for _ in range(100):
        pair.dialer.notify(bytes(KIB))
    pair.wire.pump()
    assert 85 * KIB < pair.dialer.queued_bytes < 100 * KIB


# -- loss, drop, reorder -----------------------------------------------------------------------------------


def test_loss_as_under_tcp_delays_what_is_behind_and_loses_nothing() -> None:
    pair, heard = quiet(replace(STILL, loss=0.2, resend_s=0.2), seed=3)
    heard.say(*map(str, range(50)))
    pair.network.run()
    assert heard.order == [str(number) for number in range(50)]
    assert {time_s for _, time_s in heard.times} <= {0.0, 0.2} and heard.times[-1][1] == 0.2


def test_certain_loss_delays_every_frame_by_the_resend_time() -> None:
    pair, heard = quiet(replace(STILL, loss=1.0, resend_s=0.5))
    heard.say("x")
    pair.network.run()
    assert heard.times == [("x", 0.5)]


def test_a_dropped_frame_vanishes_and_the_rest_arrive_in_order() -> None:
    pair, heard = quiet(replace(STILL, drop=0.3), seed=1)
    heard.say(*map(str, range(100)))
    pair.network.run()
    got = list(map(int, heard.order))
    assert got == sorted(got) and 50 < len(got) < 90


def test_a_reordered_frame_is_overtaken_and_none_is_lost() -> None:
    pair, heard = quiet(replace(STILL, delay_s=0.01, reorder=0.3), seed=1)
    heard.say(*map(str, range(100)))
    pair.network.run()
    got = list(map(int, heard.order))
    assert got != sorted(got) and sorted(got) == list(range(100))


def test_one_direction_may_be_bad_and_the_other_good() -> None:
    pair, heard = quiet(replace(STILL, drop=1.0))
    heard.say("lost")
    pair.acceptor.notify(b"heard")
    pair.wire.pump()
    pair.network.run()
    assert heard.order == ["heard"]


# -- faults by script --------------------------------------------------------------------------------------


def test_conditions_change_when_the_script_says() -> None:
    pair, heard = quiet()
    slow = replace(STILL, delay_s=1.0)
    pair.network.at(1.0, lambda: pair.wire.change(there=slow))
    pair.network.at(2.0, lambda: pair.wire.change(there=STILL))
    for number in range(6):
        pair.network.at(number * 0.5, lambda number=number: heard.say(str(number)))
    pair.network.run()
    assert heard.times == [("0", 0.0), ("1", 0.5), ("2", 2.0), ("3", 2.5), ("4", 2.5), ("5", 2.5)]


def test_a_stall_holds_everything_back_and_loses_nothing() -> None:
    pair, heard = quiet(replace(STILL, delay_s=0.1))
    heard.say("under way")
    pair.network.at(0.05, lambda: pair.wire.stall(2.0))
    pair.network.at(1.0, lambda: heard.say("during"))
    pair.network.run()
    assert heard.order == ["under way", "during"] and all(time_s >= 2.05 for _, time_s in heard.times)


def test_a_cut_ends_both_sides_at_once_and_loses_what_is_under_way() -> None:
    pair, heard = quiet(replace(STILL, delay_s=0.1))
    heard.say("under way")
    pair.network.at(0.05, pair.wire.cut)
    pair.network.run()
    assert heard.order == []
    for side in ("dialer", "acceptor"):
        (closed,) = pair.seen(side, Closed)
        assert isinstance(closed.error, NodeLost)
    pair.wire.pump()
    assert pair.network.run() == 0


def test_bytes_may_be_injected_and_what_a_peer_raises_is_kept() -> None:
    pair, heard = quiet()
    pair.wire.inject(pair.acceptor, CONTROL, encode(Notify(b"forged")))
    assert heard.order == ["forged"]
    pair.wire.inject(pair.acceptor, BULK, b"\xee")
    (error,) = pair.wire.errors
    assert isinstance(error, RemoteError)


def test_a_seed_replays_a_run_and_another_does_not() -> None:
    def run(seed: int) -> list[tuple[str, float]]:
        pair, heard = quiet(Conditions(delay_s=0.01, jitter_s=0.02, loss=0.1, drop=0.1, reorder=0.1), seed)
        heard.say(*map(str, range(100)))
        pair.network.run()
        return heard.times

    assert run(5) == run(5) != run(6)


def test_a_wire_without_conditions_only_delays() -> None:
    assert (PERFECT.loss, PERFECT.drop, PERFECT.reorder, PERFECT.jitter_s) == (0.0, 0.0, 0.0, 0.0)
