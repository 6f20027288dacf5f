"""Workers that round otherwise than each other: each engine host as its daemon's environment says, and honest all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from processors import VARIANTS, environment, has
from support.processes.commands import PATIENT_S, Daemon, daemon
from support.processes.commands import environment as own_folders
from support.processes.site import WORKER
from support.rounding import Recorded, allowed, assert_rounds_alike, traced

import mesh.numpy as mnp
from mesh import Mesh
from mesh.errors import PlacementError

KINDS = ("Haswell's BLAS", "Sandybridge's BLAS", "Haswell's BLAS")
RNG = np.random.default_rng(6)
X, W = RNG.standard_normal((31, 300)).astype(np.float32), RNG.standard_normal((300, 65)).astype(np.float32) / 17
EXACTLY = Recorded(computed=0.0, written=0.0)
pytestmark = pytest.mark.skipif(not all(has(VARIANTS[kind]) for kind in KINDS), reason="an x86 processor with AVX2")


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[Daemon]]:
    folder = tmp_path_factory.mktemp("unlike")
    words = (*WORKER, "--mesh", "unlike", "--name")
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                daemon(
                    *words, f"w{number}", log=folder / f"{number}.log",
                    env={**environment(VARIANTS[kind]), **own_folders(folder, **VARIANTS[kind].environment())},
                )
            )
            for number, kind in enumerate(KINDS)
        ]  # fmt: skip


def mesh_of(workers: Sequence[Daemon], **wishes: Any) -> Mesh:
    builder = Mesh.builder().mesh("unlike").node_timeout(PATIENT_S)
    for worker in workers:
        builder = builder.node(worker.address)
    for name, value in wishes.items():
        builder = getattr(builder, name)(value)
    return builder.build()


def layer(x: Any, w: Any) -> Any:
    return mnp.tanh(x @ w)


def test_reproducible_workers_have_one_kind_of_processor(workers: Sequence[Daemon]) -> None:
    with mesh_of(workers, reproducible=True) as mesh, pytest.raises(PlacementError) as caught:
        mesh.run(layer, X, W)
    said = caught.value.message
    assert "w0, w2: numpy" in said and "w1: numpy" in said and " Haswell" in said and " Sandybridge" in said
    with mesh_of([workers[0], workers[2]], reproducible=True) as mesh:
        found = {mesh.run(layer, X, W, strategy=how).tobytes() for how in ("auto", "single", "pipeline")}
    assert len(found) == 1


def test_honest_workers_of_several_types_pass_their_audits(workers: Sequence[Daemon]) -> None:
    with mesh_of(workers, audit=1.0) as mesh:
        wrong: list[Any] = []
        mesh.watch(lambda event: wrong.append(event) if event["kind"] in ("wrong", "quarantined", "doubted") else None)
        for number in range(12):
            x = X * np.float32(1 + number / 16)
            (bound,) = allowed(*traced(layer, x, W), EXACTLY)
            assert_rounds_alike(mesh.run(layer, x, W), np.tanh(x.astype(np.float64) @ W.astype(np.float64)), bound)
        assert not wrong and {node.state for node in mesh.nodes} <= {"healthy", "suspect"}
