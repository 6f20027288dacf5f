"""Calls that a program makes to engine hosts of its machine itself, with real processes: the same answers, and what
follows when a host, a daemon or the program is killed or stopped under them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from support.processes.commands import PATIENT_S, wait_for
from support.processes.worker_process import children

import mesh.numpy as mnp
from mesh import Mesh
from mesh.core.backend import Answered
from mesh.errors import MeshError

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="there are no sockets to hand to a host")

X = np.linspace(-1, 1, 16, dtype=np.float32)
STOPPED_S = 0.5
ANSWER_S = 120.0  # a machine under load
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


def local(workers: int = 1) -> Mesh:
    return Mesh.builder().local(workers, engine="cpu").node_timeout(PATIENT_S).build()


def was_direct(mesh: Mesh) -> bool:
    """Whether the last call was a direct one."""
    return isinstance(mesh._async._last, Answered)


def until_direct(mesh: Mesh, call: Callable[[], Any], expected: Any) -> None:
    """Call until a call is a direct one; every answer is right."""
    until_s = time.monotonic() + ANSWER_S
    while time.monotonic() < until_s:
        np.testing.assert_array_equal(call(), expected)
        if was_direct(mesh):
            return
    pytest.fail("no call was a direct one")


def chain(x: Any) -> Any:
    return mnp.exp(mnp.tanh(mnp.sin(x)))


@pytest.mark.parametrize("strategy", ["auto", "pipeline"])
def test_direct_calls_give_the_same_bits_and_their_report(strategy: str) -> None:
    with local(3) as mesh:
        expected = mesh.run(chain, X, strategy=strategy)
        parts = sum(len(worker.parts) for worker in mesh.report().workers.values())
        called = mesh.compile(chain, X, strategy=strategy)
        until_direct(mesh, lambda: called(X), expected)
        one, other = called(X), called(X)
        one[:] = 0  # a result is memory of the caller's own
        np.testing.assert_array_equal(other, expected)
        until_direct(mesh, lambda: called(X), expected)
        report = mesh.report()
        assert sum(len(worker.parts) for worker in report.workers.values()) == parts
        assert report.seconds > 0 and len(report.generations) == 1
        assert all(worker.bytes_in == worker.bytes_out == X.nbytes for worker in report.workers.values())


def test_params_stay_where_they_are() -> None:
    weights = np.arange(16 * 16, dtype=np.float32).reshape(16, 16)
    with local() as mesh:
        held = mesh.put(weights)
        called = mesh.compile(lambda w, x: x @ w, held, X)
        for value in (X, -X, 2 * X):
            until_direct(mesh, lambda: called(held, value), mesh.run(lambda w, x: x @ w, held, value))  # noqa: B023
        other = mesh.put(2 * weights)
        np.testing.assert_array_equal(called(other, X), mesh.run(lambda w, x: x @ w, other, X))


def test_threads_call_at_the_same_time() -> None:
    with local() as mesh:
        called = mesh.compile(lambda x: x + 1.0, X)
        until_direct(mesh, lambda: called(X), X + 1)
        wrong: list[object] = []

        def calling(number: int) -> None:
            for turn in range(100):
                value = X + np.float32(1000 * number + turn)
                if not np.array_equal(called(value), value + 1):
                    wrong.append((number, turn))

        threads = [threading.Thread(target=calling, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


def test_whoever_watches_the_mesh_sees_every_call() -> None:
    with local() as mesh:
        called = mesh.compile(lambda x: x + 1.0, X)
        until_direct(mesh, lambda: called(X), X + 1)
        seen: list[str] = []
        mesh.watch(lambda event: seen.append(event["kind"]))
        for _ in range(5):
            np.testing.assert_array_equal(called(X), X + 1)
            assert not was_direct(mesh)
        wait_for(lambda: seen.count("ran") == 5)


@pytest.mark.parametrize("victim", ["host", "daemon"])
@pytest.mark.parametrize("kind", SIGNALS)
def test_calls_are_right_when_a_process_of_theirs_is_struck(kind: str, victim: str) -> None:
    with local(2) as mesh:
        called = mesh.compile(lambda x: x + 1.0, X)
        until_direct(mesh, lambda: called(X), X + 1)
        (name,) = mesh.report().workers
        (daemon,) = [node.pid for node in mesh.nodes if node.name == name]
        pid = daemon if victim == "daemon" else children(daemon)[0]
        with calling(lambda: np.testing.assert_array_equal(called(X), X + 1)) as count:
            wait_for(lambda: count() > 100)
            os.kill(pid, SIGNALS[kind])
            before = count()
            if kind == "stop":
                time.sleep(STOPPED_S)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            wait_for(lambda: count() > before + 100)
        until_direct(mesh, lambda: called(X), X + 1)


@contextlib.contextmanager
def calling(call: Callable[[], object]) -> Iterator[Callable[[], int]]:
    """Call again and again in another thread, whose errors are raised at the end; how many calls were answered."""
    count, over, errors = [0], threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            while not over.is_set():
                call()
                count[0] += 1
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield lambda: count[0] if not errors else pytest.fail(f"a call raised {errors[0]!r}")
    finally:
        over.set()
        thread.join(ANSWER_S)
    assert not thread.is_alive() and not errors


def test_a_part_that_the_daemon_takes_back_is_called_no_more() -> None:
    with local(2) as mesh:
        called = mesh.compile(lambda x: x + 1.0, X)
        until_direct(mesh, lambda: called(X), X + 1)
        (name,) = mesh.report().workers
        mesh._loop.wait(mesh._async._backend.coordinator.pause(name, True))  # type: ignore[attr-defined]
        np.testing.assert_array_equal(called(X), X + 1)
        assert [*mesh.report().workers] != [name]


def test_a_call_that_is_interrupted_leaves_no_answer_for_the_next() -> None:
    class Interrupted(BaseException):
        """As Ctrl-C, which would end the tests wherever it comes."""

    def interrupt(*_: object) -> None:
        raise Interrupted

    def call_and_be_interrupted() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        called(X)

    with local() as mesh:
        called = mesh.compile(lambda x: x + 1.0, X)
        until_direct(mesh, lambda: called(X), X + 1)
        (host,) = children(mesh.nodes[0].pid)
        before = signal.signal(signal.SIGALRM, interrupt)
        os.kill(host, signal.SIGSTOP)
        try:
            with pytest.raises(Interrupted):
                call_and_be_interrupted()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            os.kill(host, signal.SIGCONT)
            signal.signal(signal.SIGALRM, before)
        np.testing.assert_array_equal(called(2 * X), 2 * X + 1)


def test_a_mesh_that_is_closed_ends_calls_in_other_threads() -> None:
    with local() as mesh:
        called = mesh.compile(lambda x: x + 1.0, X)
        until_direct(mesh, lambda: called(X), X + 1)
        ended: list[BaseException] = []

        def run() -> None:
            try:
                while True:
                    called(X)
            except MeshError as error:
                ended.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        time.sleep(0.05)
    thread.join(ANSWER_S)
    assert len(ended) == 1


PROGRAM = """
import sys
import numpy as np
from mesh import Mesh
x = np.ones(16, np.float32)
with Mesh.builder().local(1, engine="cpu").node_timeout(1.5).build() as mesh:
    called = mesh.compile(lambda x: x + 1.0, x)
    print(mesh.nodes[0].pid, flush=True)
    while True:
        assert (called(x) == 2).all()
        print(type(mesh._async._last).__name__, flush=True)
"""


@pytest.fixture
def program() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def read_until(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    for said in process.stdout:
        if said.strip() == line:
            return
    pytest.fail("the program has ended")


def test_a_program_that_was_stopped_goes_on(program: subprocess.Popen[str]) -> None:
    read_until(program, "Answered")
    program.send_signal(signal.SIGSTOP)
    time.sleep(4 * STOPPED_S)  # its worker has given its plans up, or is about to
    program.send_signal(signal.SIGCONT)
    for _ in range(3):
        read_until(program, "Started")
        read_until(program, "Answered")


def test_nothing_of_a_killed_program_runs_on(program: subprocess.Popen[str]) -> None:
    assert program.stdout is not None
    daemon = int(program.stdout.readline())
    read_until(program, "Answered")
    (host,) = children(daemon)
    program.kill()
    for pid in (daemon, host):
        wait_for(lambda: not os.path.exists(f"/proc/{pid}"))  # noqa: B023
