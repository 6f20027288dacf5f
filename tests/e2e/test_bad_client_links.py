"""A client whose link to its coordinator is cut, slow or corrupt: an answer or a typed error, and the mesh goes on."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from support.processes.commands import PATIENT_S, Daemon, daemon, environment, jobs, node_states, run, wait_for
from support.processes.fault_proxy import DOWN, UP, FaultProxy

import mesh.numpy as mnp
from mesh import Mesh, errors
from mesh.commands import exit_codes

WITHIN_S = 120.0
CONTROL, BULK = 0, 1
NAME = "clients"
X = np.random.default_rng(0).standard_normal((200, 200)).astype(np.float32)  # too long to ride in a message


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One that serves a worker; both as another user's, so that tensors of clients travel over the link."""
    folder = tmp_path_factory.mktemp("clients")
    env = environment(folder, LOGNAME="somebody-else", MESH_NAME=NAME)
    port = ("--port", "0", "--no-mdns")
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("XDG_STATE_HOME", env["XDG_STATE_HOME"])  # where this process, as a client, is a member
        serve = ("coord", "serve", *port, "--node-timeout", f"{PATIENT_S:g}")
        made = stack.enter_context(daemon(*serve, env=env, log=folder / "coordinator.log"))
        words = ("worker", *port, "--device", "cpu", "--peer", made.address)
        stack.enter_context(daemon(*words, env=env, log=folder / "worker.log"))
        wait_for(lambda: "healthy" in node_states(made).values())
        yield made


def work(x: Any) -> Any:
    return mnp.tanh(x @ x) @ x


def call(address: str) -> Any:
    """What the client gets: the answer, or the error's class."""
    began_s = time.monotonic()
    try:
        with Mesh.builder().mesh(NAME).node(address).build() as mesh:
            return mesh.submit(work, X, mode="on").result(timeout_s=WITHIN_S)
    except errors.DeadlineExceeded:
        raise  # it hung
    except errors.MeshError as error:
        return type(error)
    finally:
        assert time.monotonic() - began_s < WITHIN_S


@pytest.fixture(scope="module")
def expected(coordinator: Daemon) -> Any:
    found = call(coordinator.address)
    np.testing.assert_allclose(found, np.tanh(X @ X) @ X, rtol=1e-4, atol=1e-4)
    return found


def is_right_or_typed(found: Any, expected: Any) -> bool:
    return isinstance(found, type) or np.array_equal(found, expected)


def test_a_coordinator_that_answers_too_late_is_not_taken_for_a_worker(coordinator: Daemon) -> None:
    """As one does that was stopped while it was dialled: it is asked as a worker next, and answers that."""
    with FaultProxy(("127.0.0.1", coordinator.ready["port"])) as proxy:
        proxy.change(connection=CONTROL, stalled=True)
        builder = Mesh.builder().mesh(NAME).node(proxy.address).timeouts(dial_s=5.0)
        with pytest.raises(errors.ConnectFailed, match="is a coordinator that did not answer") as refused:
            builder.build()
        assert refused.value.retry and "Connect again" in refused.value.next_step
        with builder.timeouts(dial_s=WITHIN_S).build() as mesh:
            assert len(mesh.nodes) == 1


def test_a_command_says_that_the_coordinator_of_this_machine_stands_still(coordinator: Daemon) -> None:
    coordinator.process.send_signal(signal.SIGSTOP)
    try:
        told = run("coord", "nodes", "--timeout", "dial_s=1", env=coordinator.env)
    finally:
        coordinator.process.send_signal(signal.SIGCONT)
    assert told.returncode == exit_codes.UNREACHABLE
    assert f"{coordinator.ready['port']} did not answer within 1 s" in told.stderr


@pytest.mark.parametrize("connection", [CONTROL, BULK])
@pytest.mark.parametrize("way", [UP, DOWN])
def test_a_client_cut_off_anywhere_gets_an_answer_or_an_error_and_leaves_nothing_running(
    coordinator: Daemon, expected: Any, way: str, connection: int
) -> None:
    with FaultProxy(("127.0.0.1", coordinator.ready["port"])) as proxy:
        assert np.array_equal(call(proxy.address), expected)
        total = proxy.passed(way, connection)
    for place in sorted({0, 200, 700, total // 2, total - 1}):
        for how in ("rst", "fin"):
            with FaultProxy(("127.0.0.1", coordinator.ready["port"])) as proxy:
                proxy.change(way, connection, cut_after=place, cut_with=how)
                assert is_right_or_typed(call(proxy.address), expected), (place, how)
    assert np.array_equal(call(coordinator.address), expected)
    wait_for(lambda: not {"queued", "planning", "deploying", "running"} & set(jobs(coordinator).values()))


def test_a_slow_client_gets_its_answer(coordinator: Daemon, expected: Any) -> None:
    with FaultProxy(("127.0.0.1", coordinator.ready["port"])) as proxy:
        proxy.change(delay_s=0.08, jitter_s=0.02, bytes_per_s=20e6 / 8)
        assert np.array_equal(call(proxy.address), expected)


def test_a_client_link_of_single_bytes_works(coordinator: Daemon) -> None:
    with FaultProxy(("127.0.0.1", coordinator.ready["port"])) as proxy:
        proxy.change(slice_bytes=1)
        with Mesh.builder().mesh(NAME).node(proxy.address).build() as mesh:
            small = X[:8, :8]
            found = mesh.run(work, small, mode="on")
            np.testing.assert_allclose(found, np.tanh(small @ small) @ small, rtol=1e-4, atol=1e-5)
