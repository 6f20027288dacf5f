"""Training over real workers with an adapter: the state stays on the device, and its copies have its bits."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from typing import Any

import numpy as np
import pytest
from support.adapter import needs_adapter
from support.cases.training import OPTIMISER, train
from support.processes.commands import COMES_TRUE_S, PATIENT_S
from support.processes.worker_process import children

from mesh import Mesh, tree
from mesh import numpy as mnp

WIDTHS, ROWS, STEPS = (8, 1024, 1376, 4), 4, 8


def first_state() -> dict[str, Any]:
    """16 MiB: weights and both moments of Adam."""
    rng = np.random.default_rng(0)
    layers = [
        {"w": rng.normal(0, 0.03, (n, m)).astype(np.float32), "b": np.zeros(m, np.float32)}
        for n, m in itertools.pairwise(WIDTHS)
    ]
    return {"layers": layers, "optimiser": OPTIMISER.init(layers), "steps": np.int32(0)}


def batch(step: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(1000 + step)
    x = rng.normal(size=(ROWS, WIDTHS[0])).astype(np.float32)
    return x, np.sin(x[:, : WIDTHS[-1]])


def bits(state: object) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in tree.leaves(state)]


def kill_hosts(mesh: Mesh, session: Any) -> None:
    """Kill the engine hosts of the worker that has the state."""
    (node,) = [node for node in mesh.nodes if node.name == session.running.spans[-1].worker]
    for host in children(node.pid):
        os.kill(host, signal.SIGKILL)


@needs_adapter
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="engine hosts are found in /proc")
def test_a_state_moves_no_byte_between_steps_and_its_copies_have_its_bits() -> None:
    state, sizes = first_state(), [sum(array.nbytes for array in batch(0)), 4]
    assert sum(len(leaf) for leaf in bits(state)) >= 16 << 20
    with Mesh.builder().local(2, engine="wgsl").node_timeout(PATIENT_S).build() as mesh:
        with mesh.session(train, state, *batch(0), copies="checkpoint", every=3, strategy="single") as session:
            losses = [float(session.step(*batch(step)).result(COMES_TRUE_S)) for step in range(STEPS // 2)]
            middle = bits(session.state())
            losses += [float(session.step(*batch(step)).result(COMES_TRUE_S)) for step in range(STEPS // 2, STEPS)]
            final = bits(session.state())
            moved = [[span.uploaded_bytes, span.readback_bytes] for span in session.running.spans]
            assert moved == [sizes] * STEPS, "the state was moved"
        with mesh.session(train, state, *batch(0), copies="buddy", every=3, strategy="single") as session:
            again = [float(session.step(*batch(step)).result(COMES_TRUE_S)) for step in range(STEPS // 2)]
            kill_hosts(mesh, session)
            assert bits(session.state()) == middle, "the copy, and the steps since"
            steps = [session.step(*batch(step)) for step in range(STEPS // 2, STEPS)]
            again.append(float(steps[0].result(COMES_TRUE_S)))
            kill_hosts(mesh, session)  # in the middle of the next step, or between two
            again += [float(step.result(COMES_TRUE_S)) for step in steps[1:]]
            assert again == losses and bits(session.state()) == final


def remembering(state: Any, row: Any, at: Any) -> tuple[Any, Any]:
    """A row of a large tensor, which is updated in place, and a sum over all of it."""
    rows = state["rows"].at[at].set(row)
    return {"rows": rows}, mnp.sum(rows)


@needs_adapter
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="engine hosts are found in /proc")
def test_a_state_that_is_updated_in_place_is_right_in_copies_and_after_deaths() -> None:
    right, x = np.zeros((4096, 128), np.float32), np.ones(128, np.float32)  # 2 MiB
    with Mesh.builder().local(2, engine="wgsl").node_timeout(PATIENT_S).build() as mesh:
        first = {"rows": right.copy()}
        with mesh.session(remembering, first, x, np.int32(0), copies="buddy", every=3, strategy="single") as session:
            for step in range(STEPS):
                told = session.step(x * (1 + step), np.int32(5 * step))
                right[5 * step] = 1 + step
                assert float(told.result(COMES_TRUE_S)) == right.sum()
                if step == 4:
                    kill_hosts(mesh, session)
                    np.testing.assert_array_equal(np.asarray(session.state()["rows"]), right)
            steps = [session.step(x * -step, np.int32(5 * step)) for step in range(STEPS)]  # several in flight
            right[: 5 * STEPS : 5] = -np.arange(STEPS, dtype=np.float32)[:, None]
            assert float(steps[-1].result(COMES_TRUE_S)) == right.sum()
            np.testing.assert_array_equal(np.asarray(session.state()["rows"]), right)
