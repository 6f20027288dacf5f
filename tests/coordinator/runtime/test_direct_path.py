"""A direct path between its caller and engine hosts that do not do what they should: a call is right, or goes through
the coordinator, within its time.
"""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest

from coordinator.planning.model.plan import FromInput, FromPart
from coordinator.runtime.direct_path import DirectPath, Hop
from wire.ir.dtypes import F32
from wire.ir.types import TensorType
from wire.protocol.direct_calls import READ_BYTES, DirectAnswer, DirectCall, Unpacker, pack

PATIENT_S, SOON_S = 60.0, 0.1
X = np.arange(4, dtype=np.float32)
RIGHT = pack(DirectAnswer((X.tobytes(),), 0.5))


@dataclass(slots=True)
class Made:
    """A path over one host, which says with `answer` to each call that comes."""

    path: DirectPath
    host: socket.socket
    answer: Callable[[socket.socket], object]
    watched: list[bool] = field(default_factory=list)

    def expect_within(self, seconds: float) -> None:
        """Have the path wait no longer for an answer."""
        self.path._answer_s = seconds
        for hop in self.path._hops:
            hop.connection.settimeout(seconds)

    def serve(self) -> None:
        reading = Unpacker(DirectCall)
        try:
            while data := self.host.recv(READ_BYTES):
                if reading.feed(data) is not None:
                    self.answer(self.host)
        except OSError:
            pass
        self.host.close()


@pytest.fixture
def made() -> Iterator[Made]:
    ours, theirs = socket.socketpair()
    watched: list[bool] = []
    hop = Hop(3, ours, (FromInput("x"),), 1)
    outputs = [(FromPart(3, 0), TensorType((4,), F32))]
    path = DirectPath([hop], outputs, lambda: bool(watched), lambda _: {}, PATIENT_S)
    path._look_s = math.inf
    host = Made(path, theirs, lambda sock: sock.sendall(RIGHT), watched)
    thread = threading.Thread(target=host.serve)
    thread.start()
    yield host
    path.close()
    thread.join()


def test_a_call_has_its_outputs_and_what_each_part_took(made: Made) -> None:
    answered = made.path.call({"x": X})
    assert answered is not None and answered.compute_s == {3: 0.5}
    np.testing.assert_array_equal(answered.outputs[0], X)
    answered.outputs[0][:] = 0
    again = made.path.call({"x": X})
    assert again is not None and again.outputs[0].any()


@pytest.mark.parametrize(
    "answer",
    [
        lambda sock: None,
        lambda sock: sock.sendall(RIGHT[:9]),
        lambda sock: sock.close(),
        lambda sock: sock.sendall(b"\xff" * 32),
        lambda sock: sock.sendall(RIGHT * 2),
        lambda sock: sock.sendall(pack(DirectAnswer((b"short",), 0.5))),
        lambda sock: sock.sendall(pack(DirectAnswer((), 0.5))),
    ],
    ids=["nothing", "a part of it", "its end", "garbage", "two", "a short tensor", "no tensor"],
)
def test_an_answer_that_is_none_ends_the_path(made: Made, answer: Callable[[socket.socket], object]) -> None:
    made.answer = answer
    made.expect_within(SOON_S)
    assert made.path.call({"x": X}) is None
    assert made.path.over
    assert made.path.call({"x": X}) is None, "the coordinator is asked from now on"


def test_an_answer_that_comes_a_few_bytes_at_a_time_has_no_longer(made: Made) -> None:
    def trickle(sock: socket.socket) -> None:
        for place in range(len(RIGHT)):
            sock.sendall(RIGHT[place : place + 1])
            time.sleep(SOON_S / 4)

    made.answer = trickle
    made.expect_within(SOON_S)
    assert made.path.call({"x": X}) is None and made.path.over


def test_a_call_that_the_host_refuses_goes_elsewhere_and_the_next_may_not(made: Made) -> None:
    made.answer = lambda sock: sock.sendall(pack(DirectAnswer()))
    assert made.path.call({"x": X}) is None and not made.path.over
    made.answer = lambda sock: sock.sendall(RIGHT)
    assert made.path.call({"x": X}) is not None


def test_while_one_thread_calls_another_goes_elsewhere(made: Made) -> None:
    others: list[object] = []

    def meanwhile(sock: socket.socket) -> None:
        others.append(made.path.call({"x": X}))
        sock.sendall(RIGHT)

    made.answer = meanwhile
    assert made.path.call({"x": X}) is not None and others == [None]


def test_who_watches_sees_every_call_and_the_coordinator_one_in_a_while(made: Made) -> None:
    made.watched.append(True)
    assert made.path.call({"x": X}) is None
    made.watched.clear()
    assert made.path.call({"x": X}) is not None
    made.path._look_s = 0.0
    assert made.path.call({"x": X}) is None
    assert made.path._look_s > 0


def test_a_path_that_another_thread_closes_ends_the_call_in_flight(made: Made) -> None:
    made.answer = lambda sock: made.path.close()
    assert made.path.call({"x": X}) is None and made.path.over


def test_an_interrupted_call_ends_the_path(made: Made) -> None:
    class Interrupting(dict[str, object]):
        def __getitem__(self, name: str) -> object:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made.path.call(Interrupting())  # type: ignore[arg-type]
    assert made.path.over
