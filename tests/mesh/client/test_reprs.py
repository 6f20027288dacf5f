"""What a notebook shows of an object is one line that says what it is now."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import mesh
from mesh import Mesh
from mesh.backends.config import MeshConfig
from mesh.client.async_mesh import AsyncMesh

X = np.ones((8, 4), np.float32)
LINE_MAX = 160


def rate(step: Any) -> Any:
    return 0.1 / step


def loss(params: Any, x: Any) -> Any:
    return ((x @ params["w"]) ** 2)[:, 0]


def doubled(x: Any) -> Any:
    return x * 2


@pytest.fixture(scope="module")
def shown() -> Iterator[dict[str, Any]]:
    """Objects that people have in their hands, on a mesh of two simulated workers."""
    with Mesh.builder().simulate(2).build() as m:
        trainer = mesh.DistributedTrainer(loss, {"w": np.zeros((4, 1), np.float32)}).distribute(m)
        server = mesh.InferenceServer(m)
        server.load_model("twice", doubled)
        job = m.submit(doubled, X)
        job.result()
        session = m.session(lambda s, x: (s + x, s.sum()), X, X)
        step = session.step(X)
        step.result()
        yield {
            "mesh": m, "trainer": trainer, "history": trainer.fit((X,), epochs=2), "server": server, "job": job,
            "report": job.report(), "plan": m.plan(doubled, X), "node": m.nodes[0], "device": m.nodes[0].devices[0],
            "session": session, "step": step, "handle": m.put(X), "function": mesh.function(doubled),
            "compiled": m.compile(doubled, X), "sgd": mesh.optim.sgd(0.1, momentum=0.9),
            "chain": mesh.optim.chain(mesh.optim.clip_by_global_norm(1.0), mesh.optim.adam(rate)),
            "own": mesh.optim.Optimiser(lambda params: (), lambda gradients, state, params=None: (gradients, state)),
            "checkpoints": mesh.training.Checkpoints("runs"),
            "coding": mesh.Coding(m, n=2, k=1), "gradients": trainer.forward_backward((X,)),
        }  # fmt: skip
        session.close()
        server.close()


SHOWN = {
    "mesh": r"<Mesh: 2 workers: sim-0, sim-1>",
    "trainer": r"<DistributedTrainer: 4 params, loss, data, step 2, on <Mesh: 2 workers: sim-0, sim-1>>",
    "history": r"<History: 2 steps, loss \S+ to \S+, 16 rows in \S+ m?s>",
    "server": r"<InferenceServer: twice, on Mesh: 2 workers: sim-0, sim-1>",
    "job": r"<Job: doubled, done>",
    "report": r"<Report: \S+ ms on sim-\d, .* of weights moved>",
    "plan": r"<PlanPreview: 1 part on sim-\d, predicted \S+ ms per call; print\(\) shows it>",
    "node": r"<Node sim-0: healthy, \S+.*, \S+ \wiB, \S+ GFLOP/s>",
    "device": r"<Device 0: \S+.*, \S+ \wiB, \S+ GFLOP/s>",
    "session": r"<Session: 1 tensor carried, 128 B>",
    "step": r"<Step: done>",
    "handle": r"Handle\(.*f32\[8,4\].*\)",
    "function": r"<mesh.function doubled>",
    "compiled": r"<compiled doubled, on <Mesh: 2 workers: sim-0, sim-1>>",
    "sgd": r"<Optimiser: sgd\(0\.1, momentum=0\.9\)>",
    "chain": r"<Optimiser: chain\(clip_by_global_norm\(1\.0\), adam\(rate\)\)>",
    "own": r"<Optimiser: <lambda>>",
    "checkpoints": r"<Checkpoints: in runs, nothing saved or loaded yet>",
    "coding": r"<Coding: any 1 of 2 shares, on <Mesh: 2 workers: sim-0, sim-1>>",
    "gradients": r"<Gradients: of 8 rows, loss 0>",
}


@pytest.mark.parametrize("name", SHOWN)
def test_one_line_says_what_it_is(name: str, shown: dict[str, Any]) -> None:
    text = repr(shown[name])
    assert re.fullmatch(SHOWN[name], text), text
    assert len(text) <= LINE_MAX
    assert " at 0x" not in text


def test_a_worker_that_died_and_a_mesh_that_closed_are_shown_so() -> None:
    with Mesh.builder().simulate(2).build() as m:
        m.simulation.kill("sim-1")
        m.simulation.wait(10.0)
        assert repr(m) == "<Mesh: 2 workers: sim-0, sim-1 (dead)>"
        server = mesh.InferenceServer(m)
        assert repr(server).startswith("<InferenceServer: no model, on")
    assert repr(m) == "<Mesh: closed>"
    with Mesh(MeshConfig()) as alone:
        assert repr(alone) == "<Mesh: no workers>"
    assert repr(Mesh.builder()) == "<MeshBuilder: no settings yet>"
    assert repr(Mesh.builder().simulate(1).audit(0.5)).endswith("audit=0.5>")


def test_those_of_event_loops_are_shown_likewise() -> None:
    async def shown() -> list[str]:
        async with await AsyncMesh.connect(MeshConfig()) as m:
            job = await m.submit(doubled, X)
            under_way = repr(job)
            await job.result()
            async with await m.session(lambda s, x: (s + x, s.sum()), X, X) as session:
                return [repr(m), under_way, repr(job), repr(session)]

    assert asyncio.run(shown()) == [
        "<AsyncMesh: no workers>", "<AsyncJob: doubled, running>", "<AsyncJob: doubled, over>",
        "<AsyncSession: 1 tensor carried, 128 B>",
    ]  # fmt: skip
