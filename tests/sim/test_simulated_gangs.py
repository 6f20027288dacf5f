"""Programs of ranks on a simulated mesh: right to the bit, after a death in the middle, and the same in every run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

import mesh.numpy as mnp
from mesh import Grid, Mesh, PartitionSpec, Ranks, collectives, shard_map
from wire.errors import DeviceLost, OutOfMemory
from worker.engine.protocol import Engine

GRID = Grid((3,), ("dp",))
X = np.random.default_rng(3).standard_normal((12, 16)).astype(np.float32)


def program(x: Any) -> Any:
    """Rounds in which every rank adds to its block what the one before has, and all know the largest."""

    def body(block: Any) -> Any:
        for _ in range(4):
            before = collectives.permute(block, "dp", [(0, 1), (1, 2), (2, 0)])
            block = mnp.tanh(block + before) / collectives.all_reduce(mnp.max(mnp.abs(block)), "dp", "max")
        return block, collectives.all_reduce(mnp.sum(block), "dp")

    spec = PartitionSpec("dp", None)
    return shard_map(body, GRID, in_specs=(spec,), out_specs=(spec, PartitionSpec()))(x)


def with_a_death(seed: int) -> tuple[bytes, str]:
    with Mesh.builder().mesh("sim").simulate(4, seed).build() as mesh:
        job = mesh.submit(program, X, strategy=Ranks())
        mesh.simulation.kill("sim-1")
        found = job.result()
        return b"".join(np.asarray(each).tobytes() for each in found), mesh.simulation.transcript()


def test_ranks_on_simulated_workers_give_the_bits_of_the_program_alone() -> None:
    with Mesh.builder().mesh("sim").simulate(3).build() as mesh:
        expected = mesh.run(program, X, mode="off")
        for _ in range(2):
            for found, right in zip(mesh.run(program, X, strategy=Ranks()), expected, strict=True):
                assert np.asarray(found).tobytes() == np.asarray(right).tobytes()
        assert len(mesh.report().workers) == 3


def test_a_death_in_the_middle_is_survived_and_replays() -> None:
    with Mesh.builder().mesh("sim").simulate(1).build() as mesh:
        right = b"".join(np.asarray(each).tobytes() for each in mesh.run(program, X, mode="off"))
    results, transcripts = zip(*(with_a_death(seed) for seed in (1, 1, 2)), strict=True)
    assert set(results) == {right}
    assert transcripts[0] == transcripts[1]


class _Bad:
    """An engine that fails in every part of a gang, so that the other ranks wait for it in vain."""

    def __init__(self, engine: Engine, error: Callable[[str], Exception]) -> None:
        self._engine, self._error = engine, error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def run(self, executable: Any, inputs: Any, stopped: Any, ranks: Any, keep: Any) -> Any:
        if ranks is not None:
            raise self._error("the test's device")
        return self._engine.run(executable, inputs, stopped, ranks, keep)


@pytest.mark.parametrize("error", [DeviceLost, OutOfMemory])
def test_what_is_wrong_with_the_device_of_one_rank_is_no_fault_of_the_others(error: Callable[[str], Exception]) -> None:
    with Mesh.builder().mesh("sim").simulate(4).build() as mesh:
        expected = mesh.run(program, X, mode="off")
        there, devices = mesh.simulation, mesh.simulation._cluster.devices
        there.kill("sim-2")
        devices[2].wrap = lambda engine: cast(Engine, _Bad(engine, error))
        there.wait(1)
        there.start("sim-2")
        there.wait(5)
        for found, right in zip(mesh.run(program, X, strategy=Ranks()), expected, strict=True):
            assert np.asarray(found).tobytes() == np.asarray(right).tobytes()
        assert set(mesh.report().workers) == {"sim-0", "sim-1", "sim-3"}
        assert [device.lost for device in devices if device is not devices[2]] == [0, 0, 0]
