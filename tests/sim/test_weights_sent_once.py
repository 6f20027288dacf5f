"""What several workers need comes from the coordinator once, and to the others from workers, however large it is."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest

import mesh.numpy as mnp
from mesh import Mesh
from mesh.simulation.cluster import COORDINATOR
from mesh.simulation.virtual_network import Conditions
from wire.deadlines import FETCH

SETTLED_S = 20.0  # virtual: the links are measured by then


def client_bytes(mesh: Mesh, workers: int, weights: dict[str, Any]) -> int:
    """How many bytes of weights the coordinator sent for a call on so many workers, each of which has all of them."""
    rows = np.ones((workers * 64, 1024), np.float32)

    def sums(params: Any, x: Any) -> Any:
        return sum((mnp.sum(x @ params[name], axis=1) for name in weights), mnp.zeros(workers * 64, np.float32))

    found = np.asarray(mesh.run(sums, mesh.put(weights), rows, strategy="data", mode="on"))
    assert (found == sum(each.sum() for each in weights.values())).all()
    shares = [worker.weight_bytes for worker in mesh.report().workers.values()]
    size = sum(each.nbytes for each in weights.values())
    assert [share["socket"] + share["shared"] for share in shares] == [size] * workers
    return sum(share["client"] for share in shares)


@pytest.mark.parametrize("workers", [2, 3, 9])
def test_the_coordinator_sends_each_weight_once_and_workers_send_them_on(workers: int) -> None:
    weights = {f"w{each}": np.full((1024, 64 + each), each, np.float32) for each in range(12)}
    with Mesh.builder().mesh("sim").simulate(workers).build() as mesh:
        assert client_bytes(mesh, workers, weights) == sum(each.nbytes for each in weights.values())


@pytest.mark.parametrize(("bytes_per_s", "times"), [(1e8, 1), (2e7, 2)])
def test_a_worker_waits_for_no_weights_of_one_on_a_much_slower_line(bytes_per_s: float, times: int) -> None:
    weights = {f"w{each}": np.full((1024, 16 + each), each, np.float32) for each in range(4)}
    with Mesh.builder().mesh("sim").simulate(2).build() as mesh:
        network = mesh.simulation._cluster.network
        for other in (COORDINATOR, "sim-1"):
            network.set_way("sim-0", other, Conditions(bytes_per_s=bytes_per_s))
            network.set_way(other, "sim-0", Conditions(bytes_per_s=bytes_per_s))
        mesh.simulation.wait(SETTLED_S)
        assert client_bytes(mesh, 2, weights) == times * sum(each.nbytes for each in weights.values())


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_workers_that_all_lost_what_they_had_do_not_wait_for_each_other(workers: int) -> None:
    """The coordinator thinks that each has it still: it asks the one before it, which asks the one before it."""
    weights = {f"w{each}": np.full((1024, 64 + each), each, np.float32) for each in range(4)}
    with Mesh.builder().mesh("sim").simulate(workers).build() as mesh:
        client_bytes(mesh, workers, weights)
        for process in mesh.simulation._cluster._processes.values():
            assert process.daemon is not None
            for folder in process.daemon._store.folders:
                shutil.rmtree(folder)
                folder.mkdir()
        before_s = mesh.simulation.now_s
        again = {f"w{each}": weights[f"w{each}"] for each in range(3)}  # another program, and so another plan
        assert client_bytes(mesh, workers, again) == sum(each.nbytes for each in again.values())
        assert mesh.simulation.now_s - before_s < FETCH.seconds
