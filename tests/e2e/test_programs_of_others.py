"""Programs of other systems, as they write them, on real workers and real ranks (docs/originals.md)."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from support.adapter import adapters, needs_adapter
from support.processes.commands import PATIENT_S, environment, run, wait_for

import mesh
import mesh.numpy as mnp
from wire.errors import ConfigError, ConnectFailed, InputError, NoSuchDevice

RNG = np.random.default_rng(7)
WEIGHTS = {"embed": RNG.normal(size=(4, 4)).astype(np.float32), "head": RNG.normal(size=(4, 4)).astype(np.float32)}
X = RNG.normal(size=(6, 4)).astype(np.float32)


def model(weights: Any, x: Any) -> Any:
    return mnp.tanh(x @ weights["embed"]) @ weights["head"]


def test_a_mesh_of_two_workers_from_start_to_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A program of the Rust mesh: workers, a coordinator, graphs on each of them, inference, training, a death."""
    monkeypatch.setenv("HOME", str(tmp_path))
    expected = np.asarray(model(WEIGHTS, X))
    graph = mesh.trace(lambda x: model(WEIGHTS, x), X[:4])
    with (
        mesh.Worker("anna", device="cpu", threads=3, mesh="t") as anna,
        mesh.Worker("berta", device="cpu", mesh="t") as berta,
        mesh.Coordinator.builder()
        .mesh("t")
        .node(anna.address)
        .node(berta.address)
        .node_timeout(PATIENT_S)
        .build() as coordinator,
    ):
        assert "--threads 3" in " ".join(psutil.Process(anna.pid).cmdline())
        for worker in (anna, berta):
            one = mesh.DeviceMap().layer("", worker.name)
            np.testing.assert_allclose(coordinator.run(graph, X[:4], strategy=one), expected[:4], rtol=1e-4)
            assert list(coordinator.report().workers) == [worker.name]
        assert mesh.partition(graph, coordinator, "pipeline").workers == ("anna", "berta")
        held = coordinator.put(WEIGHTS)
        layers = mesh.DeviceMap().layer("embed", "anna:0").layer("head", "berta:0")
        np.testing.assert_allclose(coordinator.run(model, held, X, strategy=layers), expected, rtol=1e-4)
        assert sorted(coordinator.report().workers) == ["anna", "berta"]
        with pytest.raises(NoSuchDevice, match=r"'anna:1'. There are anna:0 \(cpu\)"):
            coordinator.run(model, held, X, strategy=mesh.DeviceMap().layer("", "anna:1"))
        with mesh.InferenceServer(coordinator) as server:
            server.load_model("gpt", graph, coordinator)
            for rows in (4, 1, 6):  # it was traced for 4
                np.testing.assert_allclose(server.infer("gpt", X[:rows]), expected[:rows], rtol=1e-4)
            with pytest.raises(InputError, match="this server serves on"):
                server.load_model("other", graph, "no mesh")
            with pytest.raises(InputError, match="the graph has the param"):
                server.load_model("held", mesh.trace(model, held, X))
        monitor = mesh.HealthMonitor(coordinator)
        assert monitor.healthy_nodes() == ("anna", "berta")
        os.kill(anna.pid, signal.SIGKILL)
        wait_for(lambda: monitor.tick() == ("anna",))
        assert monitor.healthy_nodes() == ("berta",)
        assert mesh.auto_partition(graph, coordinator).workers == ("berta",)
        np.testing.assert_allclose(coordinator.run(graph, X[:4]), expected[:4], rtol=1e-4)
    assert repr(berta) == "<Worker berta: closed>"


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: mesh.Worker("anna", device="no such"), ConnectFailed, "local worker anna did not start"),
        (lambda: mesh.Worker(3), ConfigError, "3"),
        (lambda: mesh.Worker("anna", device=3), InputError, "of names of devices"),
        (lambda: mesh.Worker("anna", device=[]), ConfigError, "at least one"),
        (lambda: mesh.Worker("anna", device=[None]), ConfigError, "an engine is a name"),
        (lambda: mesh.Worker("anna", threads=0), ConfigError, "one thread or more, and a whole number of them, not 0"),
        (lambda: mesh.Mesh.builder().local(2, threads=1.5), ConfigError, "one thread or more.* not 1.5"),
        (lambda: mesh.Worker("anna", mesh=X), ConfigError, "mesh"),
        (lambda: mesh.Worker("anna", gpu=0), InputError, "unexpected keyword argument 'gpu'"),
    ],
)
def test_a_worker_that_cannot_start_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, make: Any, error: type[Exception], text: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(error, match=text):
        make()


@needs_adapter
def test_layers_are_on_two_devices_of_one_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    expected = np.asarray(model(WEIGHTS, X))
    with (
        mesh.Worker("anna", device=("cpu", adapters()[0].select), mesh="t") as anna,
        mesh.Mesh.builder().mesh("t").node(anna.address).node_timeout(PATIENT_S).build() as m,
    ):
        held = m.put(WEIGHTS)
        for embed, head in ((0, 1), (1, 0), (1, 1)):
            layers = mesh.DeviceMap().layer("embed", f"anna:{embed}").layer("head", f"anna:{head}")
            placed = {part["device"] for part in m.plan(model, held, X, strategy=layers).parts}
            assert placed == {embed, head}
            found = m.run(model, held, X, strategy=layers)
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
            engines = {part.engine for part in m.report().workers["anna"].parts}
            assert engines == {["wgsl", "cpu"][device] for device in (embed, head)}


RANKS = """
import os, sys
import numpy as np
import mesh
import mesh.numpy as mnp

world = mesh.init(strict=True)
x = np.arange(4, dtype=np.float32) + world.rank
assert world.all_sum(x).tolist() == [1, 3, 5, 7]
assert world.all_max(x).tolist() == [1, 2, 3, 4] and world.all_min(x).tolist() == [0, 1, 2, 3]
assert world.sum_scatter(x).tolist() == [[1, 3], [5, 7]][world.rank]
if world.rank == 0:
    world.send(x, 1)
else:
    assert world.recv_like(x, 0).tolist() == [0, 1, 2, 3]
with mesh.Mesh.builder().simulate(1).build() as m:  # each rank compiles a kernel of its own
    kernel = m.compile(lambda x: x * (mesh.rank() + 1), x, name="kernel", build_dir=sys.argv[1],
                       use_cached_if_exists=False)
    print(np.asarray(kernel(np.ones(4, np.float32))).tolist())
"""


def test_ranks_reduce_and_compile_as_other_launchers_start_them(tmp_path: Path) -> None:
    script, built = tmp_path / "script.py", tmp_path / "built"
    script.write_text(RANKS)
    flags = ["--nodes", "1", "--gpus-per-node", "2", "--master-addr", "localhost", "--master-port", "29500"]
    done = run("coord", "launch", *flags, str(script), str(built), env=environment(tmp_path))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] [1.0, 1.0, 1.0, 1.0]", "[1] [2.0, 2.0, 2.0, 2.0]"]
    assert done.stderr.splitlines() == [
        "mesh-coord: --master-addr and --master-port are not needed, ranks meet through this command"
    ]
    assert sorted(path.name for path in built.iterdir()) == ["rank_0", "rank_1"]
    assert all(list((built / f"rank_{rank}").glob("kernel-*.wire")) for rank in (0, 1))


@needs_adapter
def test_an_adapter_computes_with_a_tensor_that_it_cannot_bind_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from worker.wgsl.device import list_adapters

    monkeypatch.setenv("HOME", str(tmp_path))
    limit = list_adapters()[int(adapters()[0].select)].limits["binding_bytes"]
    if limit > 256 << 20:
        pytest.skip(f"this adapter binds {limit >> 20} MiB at once")
    table = np.arange(limit // 4 + 64, dtype=np.float32).reshape(-1, 64)
    rows = np.array([0, 7, len(table) - 1], np.int32)
    with (
        mesh.Worker("anna", device=adapters()[0].select, mesh="t") as anna,
        mesh.Mesh.builder().mesh("t").node(anna.address).node_timeout(PATIENT_S).build() as m,
    ):
        found = m.run(lambda table, rows: mesh.nn.embedding(rows, table) * 2, m.put(table), rows)
        np.testing.assert_array_equal(np.asarray(found), table[rows] * 2)
        assert {part.engine for part in m.report().workers["anna"].parts} == {"wgsl"}
