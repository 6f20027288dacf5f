"""Calls share the device of one worker, real processes: endless ones hold nobody up, and each has the bits it has
alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from support.adapter import needs_adapter
from support.endless import endless
from support.processes.commands import PATIENT_S
from support.processes.worker_process import children

import mesh
import mesh.numpy as mnp
from mesh import Mesh, errors

ENGINES = ["cpu", "native", pytest.param("wgsl", marks=needs_adapter)]
X = np.random.default_rng(0).standard_normal((32, 32)).astype(np.float32) / 8
SOON_S = 120.0  # for what takes milliseconds
TURNS = 3000


@contextmanager
def one_worker(engine: str) -> Iterator[Mesh]:
    with Mesh.builder().local(1, engine=engine).node_timeout(PATIENT_S).build() as built:
        yield built


def loop(x: Any, turns: Any) -> Any:
    """A loop in a loop, with work before and after."""

    def turn(carry: Any) -> Any:
        at, value = carry
        rows, sums = mesh.scan(lambda c, row: (mnp.tanh(c + row), c.sum()), value[0], value[:4])
        return at + 1, mnp.tanh(value @ x) + rows + sums.sum() / 64

    return mnp.exp(mesh.while_loop(lambda carry: carry[0] < turns, turn, (0, mnp.sin(x)))[1])


@pytest.mark.parametrize("engine", ENGINES)
def test_a_call_has_its_bits_beside_endless_ones(engine: str) -> None:
    turns = TURNS if engine != "wgsl" else TURNS // 20
    with one_worker(engine) as mesh:
        alone = mesh.run(loop, X, turns, mode="on")
        jobs = [mesh.submit(endless, X * number) for number in range(3)]
        for number in range(4):
            np.testing.assert_allclose(
                mesh.submit(lambda x, number=number: x @ x + number, X).result(SOON_S), X @ X + number, atol=1e-5
            )
        several = [mesh.submit(loop, X, turns) for _ in range(2)]  # of one program, suspended in each other
        assert {job.result(SOON_S).tobytes() for job in several} == {alone.tobytes()}
        assert not any(job.done() for job in jobs)
        for job in jobs:
            job.cancel()
            with pytest.raises(errors.Cancelled):
                job.result(SOON_S)
        assert mesh.run(loop, X, turns, mode="on").tobytes() == alone.tobytes()


def test_a_session_takes_its_steps_beside_an_endless_call() -> None:
    with one_worker("native") as mesh:
        job = mesh.submit(endless, X)
        with mesh.session(lambda w, x: (w + x, w.sum()), np.zeros((4, 4), np.float32), np.float32(1)) as session:
            assert [float(session.step(np.float32(1)).result(SOON_S)) for _ in range(5)] == [
                0.0,
                16.0,
                32.0,
                48.0,
                64.0,
            ]
        assert not job.done()
        job.cancel()


def test_suspended_calls_outlive_their_engine_host() -> None:
    with one_worker("cpu") as mesh:
        alone = mesh.run(loop, X, 8 * TURNS, mode="on")
        job = mesh.submit(endless, X)
        long = mesh.submit(loop, X, 8 * TURNS)
        assert np.array_equal(mesh.submit(lambda x: x + 1, X).result(SOON_S), X + 1)
        (host,) = children(mesh.nodes[0].pid)
        os.kill(host, signal.SIGKILL)
        assert long.result(SOON_S).tobytes() == alone.tobytes()
        assert not job.done()
        job.cancel()
