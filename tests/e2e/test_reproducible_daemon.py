"""A coordinator that was started with --reproducible: its clients know, and nothing of theirs has other bits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.processes.commands import Daemon, client_of, environment, node_states, wait_for
from support.processes.site import serving, working

from mesh import AsyncInferenceServer, AsyncMesh, DataParallel, DistributedTrainer, Mesh, Single, nn, random
from mesh.errors import InputError, NodeLost

ROWS = np.ones((4, 4), np.float32)


@pytest.fixture
def coordinator(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Daemon]:
    env = environment(tmp_path, MESH_NAME="exact")
    with serving(tmp_path, env, *request.param) as served, working(tmp_path, env, served.address, ["kitchen"]):
        wait_for(lambda: node_states(served).get("kitchen") == "healthy")
        yield served


PARAMS = {"layer": nn.Linear.init(random.key(1), 4, 4)}


def loss(params: Any, x: Any) -> Any:
    return (params["layer"](x) ** 2).sum(axis=-1)


@pytest.mark.parametrize("coordinator", [("--reproducible",)], indirect=True)
def test_clients_compute_nothing_that_has_other_bits(coordinator: Daemon) -> None:
    async def scenario() -> None:
        async with AsyncMesh(await client_of(coordinator)) as own, AsyncInferenceServer(own) as server:
            assert own.reproducible
            await server.load_model("double", lambda x: x * 2)
            for found in await asyncio.gather(*(server.infer("double", ROWS) for _ in range(2))):
                np.testing.assert_array_equal(found, ROWS * 2)
            assert server.loaded_models()[0].batches == 2, "a batch of both may have other bits than each alone"
            with pytest.raises(InputError, match="'data' is not reproducible"):
                await own.run(lambda x: x + 1, ROWS, strategy="data")
            with pytest.raises(InputError, match="deterministic"):
                DistributedTrainer(loss, PARAMS, strategy=DataParallel()).distribute(own)
            coordinator.process.kill()
            with pytest.raises(NodeLost):  # and not this process's value
                await own.run(lambda x: x + 1, ROWS)

    asyncio.run(scenario())


@pytest.mark.parametrize("coordinator", [()], indirect=True)
def test_calls_that_ask_for_it_wait_for_workers_alone(coordinator: Daemon) -> None:
    async def scenario() -> None:
        async with AsyncMesh(await client_of(coordinator)) as own:
            assert not own.reproducible
            coordinator.process.kill()
            with pytest.raises(NodeLost):
                await own.run(lambda x: x + 1, ROWS, strategy=Single(reproducible=True))
            assert not own.stays_here(Single(reproducible=True))

    asyncio.run(scenario())


def test_a_mesh_without_workers_refuses_them() -> None:
    with Mesh.builder().build() as own:
        assert float(own.run(lambda x: x + 1, np.float32(1), strategy="single")) == 2.0
        with pytest.raises(NodeLost):
            own.run(lambda x: x + 1, np.float32(1), strategy=Single(reproducible=True))
