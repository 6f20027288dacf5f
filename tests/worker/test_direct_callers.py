"""Direct calls in an engine host, over sockets, with an engine: what is answered, and who is hung up on."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from wire.bounds import DIRECT_CALLERS
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder, WireGraph
from wire.protocol.direct_calls import READ_BYTES, TENSORS_BYTES_MAX, DirectAnswer, DirectCall, Unpacker, pack
from wire.system.shared_memory import SharedDir
from worker.cpu import CpuEngine
from worker.engine import host_messages as hm
from worker.engine_host.direct_calls import DirectCalls
from worker.engine_host.host import Host

X = np.arange(4, dtype=np.float32)


class Serving:
    """A host that answers direct calls when `serve` is called, until its daemon writes."""

    def __init__(self, folder: Path) -> None:
        self.shared = SharedDir.create(folder)
        self.host = Host(CpuEngine(), self.shared, memoryview(bytearray(hm.STOP_BYTES)), 1 << 30)
        self.pipe, self.daemon = os.pipe()
        self.direct = DirectCalls(self.host, self.pipe, None)

    def prepare(self, number: int, graph: WireGraph) -> None:
        counts = len(graph.inputs), len(graph.outputs)
        answer = self.host.handle(hm.PreparePart(number, graph.hash, graph.encoded, *counts, (), {}, False))
        assert isinstance(answer, hm.Prepared)

    def caller(self, prepared: int) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX)
        ours.settimeout(10)
        self.direct.open(prepared, theirs)
        return ours

    def serve(self) -> bool:
        """Answer what has come so far."""
        os.write(self.daemon, b".")
        served = self.direct.serve()
        os.read(self.pipe, 1)
        return served

    def ask(self, caller: socket.socket, *inputs: bytes) -> DirectAnswer | None:
        caller.sendall(pack(DirectCall(inputs)))
        assert self.serve()
        return Unpacker(DirectAnswer).feed(caller.recv(READ_BYTES))

    def close(self) -> None:
        os.close(self.pipe)
        os.close(self.daemon)
        self.shared.close()


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    made = Serving(tmp_path)
    yield made
    made.close()


def doubled(length: int = 4, op: str = "add") -> WireGraph:
    builder = GraphBuilder()
    x = builder.input("x", (length,), F32)
    return builder.build([builder.add(op, x, x)])


def test_a_call_is_computed_and_another_after_it(serving: Serving) -> None:
    serving.prepare(1, doubled())
    caller = serving.caller(1)
    for value in (X, -X):
        answer = serving.ask(caller, value.tobytes())
        assert answer is not None and answer.outputs == ((value + value).tobytes(),) and answer.compute_s > 0


def test_each_caller_calls_its_part(serving: Serving) -> None:
    serving.prepare(1, doubled())
    serving.prepare(2, doubled(op="mul"))
    first, second = serving.caller(1), serving.caller(2)
    for caller in (first, second):
        caller.sendall(pack(DirectCall((X.tobytes(),))))
    assert serving.serve()
    answers = [Unpacker(DirectAnswer).feed(caller.recv(READ_BYTES)) for caller in (first, second)]
    assert [answer and answer.outputs for answer in answers] == [((X + X).tobytes(),), ((X * X).tobytes(),)]


@pytest.mark.parametrize("inputs", [(), (b"1234",), (X.tobytes(), X.tobytes())], ids=["none", "short", "two"])
def test_what_does_not_fit_is_refused_and_the_caller_may_go_on(serving: Serving, inputs: tuple[bytes, ...]) -> None:
    serving.prepare(1, doubled())
    caller = serving.caller(1)
    assert serving.ask(caller, *inputs) == DirectAnswer()
    answer = serving.ask(caller, X.tobytes())
    assert answer is not None and answer.outputs == ((X + X).tobytes(),)


def test_large_outputs_are_refused_and_leave_no_file(serving: Serving) -> None:
    builder = GraphBuilder()
    x = builder.input("x", (4,), F32)
    serving.prepare(1, builder.build([builder.add("broadcast", x, shape=(TENSORS_BYTES_MAX, 4))]))
    assert serving.ask(serving.caller(1), X.tobytes()) == DirectAnswer()
    assert {path.name for path in serving.shared.path.iterdir()} == {"lock"}


def test_a_part_that_the_daemon_takes_back_takes_no_more_calls(serving: Serving) -> None:
    serving.prepare(1, doubled())
    serving.prepare(2, doubled())
    caller, other = serving.caller(1), serving.caller(2)
    serving.host.handle(hm.Unprepare(1))
    serving.direct.heard(hm.Unprepare(1))
    assert caller.recv(READ_BYTES) == b""
    answer = serving.ask(other, X.tobytes())
    assert answer is not None and answer.outputs is not None


def test_beside_suspended_runs_the_daemon_is_asked(serving: Serving) -> None:
    serving.prepare(1, doubled())
    caller = serving.caller(1)
    serving.host._suspended[7] = frozenset(), 0
    assert serving.ask(caller, X.tobytes()) == DirectAnswer()
    del serving.host._suspended[7]
    answer = serving.ask(caller, X.tobytes())
    assert answer is not None and answer.outputs is not None


@pytest.mark.parametrize("data", [b"\xff" * 64, pack(DirectCall(())) * 2], ids=["garbage", "two at once"])
def test_who_sends_something_else_is_hung_up_on_and_others_are_served(serving: Serving, data: bytes) -> None:
    serving.prepare(1, doubled())
    caller, other = serving.caller(1), serving.caller(1)
    caller.sendall(data)
    assert serving.serve()
    assert caller.recv(READ_BYTES) == b""
    answer = serving.ask(other, X.tobytes())
    assert answer is not None and answer.outputs is not None


def test_who_reads_no_answers_is_hung_up_on_and_holds_nobody_up(serving: Serving) -> None:
    length = TENSORS_BYTES_MAX // 4
    serving.prepare(1, doubled(length))
    caller = serving.caller(1)
    call = pack(DirectCall((np.ones(length, np.float32).tobytes(),)))
    for _ in range(1000):
        caller.sendall(call)
        assert serving.serve()
        if not serving.direct._callers:
            break
    while caller.recv(READ_BYTES):  # what was sent until it was hung up on
        pass
    assert not serving.direct._callers


def test_who_hangs_up_is_forgotten(serving: Serving) -> None:
    serving.prepare(1, doubled())
    caller, other = serving.caller(1), serving.caller(1)
    caller.close()
    answer = serving.ask(other, X.tobytes())
    assert answer is not None and len(serving.direct._callers) == 1


def test_of_too_many_callers_the_one_that_was_not_used_for_longest_goes(serving: Serving) -> None:
    serving.prepare(1, doubled())
    callers = [serving.caller(1) for _ in range(DIRECT_CALLERS.most)]
    serving.ask(callers[0], X.tobytes())
    newest = serving.caller(1)
    assert callers[1].recv(READ_BYTES) == b""
    for caller in (callers[0], newest):
        answer = serving.ask(caller, X.tobytes())
        assert answer is not None and answer.outputs is not None


def test_a_host_that_has_lost_its_device_serves_no_more(serving: Serving) -> None:
    serving.prepare(1, doubled())
    caller = serving.caller(1)
    serving.host.lost = True
    caller.sendall(pack(DirectCall((X.tobytes(),))))
    assert not serving.serve()
