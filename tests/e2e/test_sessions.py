"""Sessions over real workers: one of them dies in the middle, and memory that does not grow."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

import numpy as np
import pytest
from support.cases.training import batch, first_state, train
from support.processes.commands import COMES_TRUE_S, PATIENT_S
from support.processes.footprint import footprint, shared_files
from support.processes.worker_process import children
from support.waiting import until

from mesh import Mesh, tree
from mesh.errors import PlacementError

MIB = 1 << 20
STEPS = 30


def bits(state: object) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in tree.leaves(state)]


@pytest.mark.skipif(sys.platform == "win32", reason="there is no kill -9")
@pytest.mark.parametrize("copies", ["buddy", pytest.param("coded", marks=pytest.mark.long)])
def test_a_worker_killed_in_the_middle_loses_no_step_and_changes_no_bit(copies: str) -> None:
    with Mesh.builder().local(3, engine="cpu").node_timeout(PATIENT_S).build() as mesh:
        with mesh.session(train, first_state(), *batch(0), mode="off") as alone:
            expected = [float(alone.step(*batch(step)).result()) for step in range(STEPS)]
            final = bits(alone.state())
        with mesh.session(train, first_state(), *batch(0), copies=copies, every=4, strategy="pipeline") as session:
            steps = [session.step(*batch(step)) for step in range(STEPS)]
            losses = [float(step.result(COMES_TRUE_S)) for step in steps[:10]]
            os.kill(mesh.nodes[1].pid, signal.SIGKILL)
            losses += [float(step.result(COMES_TRUE_S)) for step in steps[10:]]
            assert losses == expected and bits(session.state()) == final


@pytest.mark.skipif(sys.platform == "win32", reason="there is no kill -9")
@pytest.mark.parametrize("strategy", ["data", "fully-sharded"])
def test_ranks_carry_what_they_share_and_go_on_with_one_less(strategy: str) -> None:
    """Data parallel, every rank has all of the state; fully sharded, each has a window of it and a buddy the copy."""
    with Mesh.builder().local(2, engine="cpu").node_timeout(PATIENT_S).build() as mesh:
        with mesh.session(train, first_state(), *batch(0), mode="off") as alone:
            expected = [float(alone.step(*batch(step)).result()) for step in range(STEPS)]
        with mesh.session(train, first_state(), *batch(0), strategy=strategy, every=3) as session:
            steps = [session.step(*batch(step)) for step in range(STEPS)]
            losses = [float(step.result(COMES_TRUE_S)) for step in steps[:12]]
            os.kill(mesh.nodes[0].pid, signal.SIGKILL)
            losses += [float(step.result(COMES_TRUE_S)) for step in steps[12:]]
            np.testing.assert_allclose(losses, expected, rtol=1e-4)
            assert int(session.state()["steps"]) == STEPS


@pytest.mark.skipif(sys.platform == "win32", reason="there is no kill -9")
def test_a_state_lies_with_workers_as_far_as_their_memory_goes() -> None:
    """Of 48 MiB: a worker of 384 MiB has room for its values, its snapshots and the other's copy, one of 128 MiB has
    not."""
    state, one = np.zeros((3, 4 * MIB), np.float32), np.float32(1)

    def add(total: Any, x: Any) -> Any:
        return total + x, x

    with Mesh.builder().local(2, engine="cpu", max_memory="384MiB").node_timeout(PATIENT_S).build() as mesh:
        events: list[str] = []
        mesh.watch(lambda event: events.append(event["kind"]))
        with mesh.session(add, state, one, copies="buddy", every=2, strategy="single") as session:
            for step in [session.step(one) for _ in range(4)]:
                step.result(COMES_TRUE_S)
            assert (session.state() == 4).all()
            (used,) = {part.node for part in session.running.plan.parts}
            os.kill(next(node.pid for node in mesh.nodes if node.id == used), signal.SIGKILL)
            session.step(one).result(COMES_TRUE_S)
            assert (session.state() == 5).all() and "unguarded" not in events
    with (
        Mesh.builder().local(2, engine="cpu", max_memory="128MiB").node_timeout(PATIENT_S).build() as mesh,
        mesh.session(add, state, one, copies="buddy", every=2, strategy="single") as session,
        pytest.raises(PlacementError, match="max-memory"),
    ):
        session.step(one).result(COMES_TRUE_S)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")
def test_memory_is_flat_over_a_thousand_steps_and_free_after_the_end() -> None:
    state, x = np.zeros((512, 512), np.float32), np.float32(1)
    with Mesh.builder().local(1, engine="cpu").node_timeout(PATIENT_S).build() as mesh:
        pid = mesh.nodes[0].pid
        pids = [pid, *children(pid)]

        def held() -> float:
            return sum(footprint(each).rss_kib for each in pids) / 1024

        before = shared_files([pid])
        with mesh.session(lambda total, one: (total + one, one), state, x, copies="checkpoint", every=50) as session:
            for done in (200, 1000):
                for step in [session.step(x) for _ in range(done - int(session.state()[0, 0]))]:
                    step.result(COMES_TRUE_S)
                assert int(session.state()[0, 0]) == done
                if done == 200:
                    early_mib = held()
            assert held() - early_mib < 50, "a leak of the state would be 800 MiB"
        for _ in range(4):
            large = np.ones((2048, 2048), np.float32)
            with mesh.session(lambda total, one: (total + one, one), large, x, every=2) as session:
                for step in [session.step(x) for _ in range(5)]:
                    step.result(COMES_TRUE_S)
        assert held() - early_mib < 10 * 16, "four states of 16 MiB, each of three values and copies, are gone"
        asyncio.run(until(lambda: shared_files([pid]) <= before, COMES_TRUE_S))  # a snapshot may be on its way still
