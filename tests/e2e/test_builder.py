"""Building a mesh of real local workers, and the Python API as a user meets it there."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.compare import assert_as_promised
from support.processes.commands import COMES_TRUE_S, PATIENT_S, RUN_S, until_by_the_same_plan, until_they_work, wait_for
from support.processes.worker_process import is_alive
from support.promised import slowness

import mesh.numpy as mnp
from coordinator.runtime.message_router import MessageRouter
from mesh import AsyncMesh, Handle, Mesh, errors, grad, remat, trace, value_and_grad, vmap
from wire.addresses import PORT
from wire.link.link import Link
from wire.link.websocket_carrier import nobody_at
from wire.protocol.messages import Beat, Message

X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)
W = np.linspace(0, 1, 24, dtype=np.float32).reshape(8, 3)
ROOT = Path(__file__).resolve().parents[2]


def layer(x: Any, w: Any) -> Any:
    return mnp.tanh(x @ w)


@pytest.fixture(scope="module")
def two() -> Iterator[Mesh]:
    """A mesh of two cpu workers."""
    mesh = Mesh.builder().mesh("builder").local(2, "cpu").node_timeout(PATIENT_S).build()
    yield mesh
    mesh.close()


@dataclasses.dataclass
class State:
    weights: Any
    steps: Any


# -- what a mesh tells of itself


def test_nodes_have_the_fields_of_their_first_device(two: Mesh) -> None:
    nodes = two.nodes
    assert [node.name for node in nodes] == ["local-0", "local-1"]
    assert len({node.id for node in nodes}) == len({node.pid for node in nodes}) == 2
    for node in nodes:
        host, _, port = node.address.rpartition(":")
        assert host == "127.0.0.1" and int(port) > 0
        assert is_alive(node.pid)
        assert (node.state, node.engine, node.devices[0].index) == ("healthy", "cpu", 0)
        assert node.version
        assert min(node.memory_bytes, node.gflops, node.gbytes_per_s) > 0
        for field in ("engine", "adapter", "backend", "limits", "memory_bytes", "gflops", "gbytes_per_s"):
            assert getattr(node, field) == getattr(node.devices[0], field)


def test_local_workers_are_started_with_python_p(two: Mesh) -> None:
    for node in two.nodes:
        words = Path(f"/proc/{node.pid}/cmdline").read_bytes().split(b"\0")
        assert words[:2] == [sys.executable.encode(), b"-P"]


def test_a_report_says_who_did_what_and_where_weights_came_from(two: Mesh) -> None:
    held = two.put(np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32))
    x = np.ones((4, 256), np.float32)
    two.run(layer, x, held, strategy="single")
    report = two.report()
    (worker,) = report.workers.values()
    assert [part.engine for part in worker.parts] == ["cpu"]
    assert worker.bytes_in >= x.nbytes and worker.bytes_out >= x.nbytes
    assert worker.compute_s > 0 and worker.wait_s >= 0 and report.seconds >= worker.compute_s
    assert sorted(worker.weight_bytes) == ["client", "disk", "resident", "shared", "socket"]
    assert report.weight_bytes_moved == 256 * 256 * 4
    until_by_the_same_plan(two, lambda: two.run(layer, x, held, strategy="single"))
    assert two.report().weight_bytes_moved == 0, "weights are sent once"


@pytest.mark.parametrize("beat_s", [0.1, 0.2])
def test_heartbeats_come_at_the_interval_that_was_set(beat_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the coordinator hears them; the promise is half more or half less."""
    heard_s: list[float] = []
    taken = MessageRouter.on_notify

    def on_notify(self: MessageRouter, link: Link, body: Message) -> None:
        if isinstance(body, Beat):
            heard_s.append(time.monotonic())
        taken(self, link, body)

    monkeypatch.setattr(MessageRouter, "on_notify", on_notify)
    slow = slowness()
    with Mesh.builder().mesh("beats").local(1, "cpu").heartbeat(beat_s).build():
        wait_for(lambda: len(heard_s) > 15)
    middle_s = statistics.median(after - before for before, after in itertools.pairwise(heard_s))
    assert 0.5 * beat_s <= middle_s <= 1.5 * beat_s * max(slow, slowness())


# -- calls


def test_a_run_equals_the_same_function_in_this_process(two: Mesh) -> None:
    expected = two.run(layer, X, W, mode="off")
    assert two.report().reasons == ("computed in this process",)
    for strategy in ("auto", "single", "pipeline"):
        found = two.run(layer, X, W, strategy=strategy, mode="on")
        assert isinstance(found, np.ndarray)
        assert_as_promised(strategy, found, expected, 1)
    until_they_work(two, 2, lambda: two.run(layer, X, W, strategy="pipeline", mode="on"))
    np.testing.assert_allclose(expected, np.tanh(X @ W), rtol=1e-6)


def test_a_plan_is_seen_before_anything_is_sent(two: Mesh) -> None:
    plan = two.plan(layer, X, W, strategy="pipeline")
    assert sorted(plan.workers) == ["local-0", "local-1"]
    assert plan.seconds > 0 and plan.reasons
    titles = ["part", "worker", "device", "engine", "nodes", "GFLOP", "weights", "from", "to"]
    assert str(plan).splitlines()[0].split() == titles
    assert two.plan(layer, X, W, strategy="single").workers in (("local-0",), ("local-1",))


def test_pytrees_go_in_and_come_out_as_they_are(two: Mesh) -> None:
    def step(state: State, batch: dict[str, Any], extra: tuple[Any, list[Any]]) -> State:
        return State({"w": state.weights["w"] + batch["x"], "all": [extra[0], (extra[1][0],)]}, state.steps + 1)

    given = State({"w": X}, np.int32(4))
    found = two.run(step, given, {"x": 2 * X}, (W, [X > 0]))
    assert isinstance(found, State)
    assert found.steps == 5 and found.steps.dtype == np.int32
    np.testing.assert_array_equal(found.weights["w"], 3 * X)
    first, (second,) = found.weights["all"]
    np.testing.assert_array_equal(first, W)
    np.testing.assert_array_equal(second, X > 0)


def test_put_gives_a_handle_for_each_array_and_keeps_the_structure(two: Mesh) -> None:
    held = two.put({"w": W, "b": [np.float32(1)]})
    assert isinstance(held["w"], Handle) and isinstance(held["b"][0], Handle)
    found = two.run(lambda x, p: x @ p["w"] + p["b"][0], X, held)
    np.testing.assert_allclose(found, X @ W + 1, rtol=1e-6)


def test_what_is_put_counts_as_it_would_as_an_argument(two: Mesh) -> None:
    given = {"half": 0.5, "count": 3, "big": np.arange(40_000, dtype=">f4"), "yes": True}
    held = two.put(given)
    for name, value in given.items():
        found, expected = two.run(lambda x: x * 2, held[name]), two.run(lambda x: x * 2, value)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(two.run(lambda x: x * 2, held["big"]), np.arange(40_000) * 2)
    for wrong in ("text", object(), np.array([object()])):
        with pytest.raises(errors.InputError, match="'layer/0'"):
            two.put({"layer": [wrong]})


def test_a_compiled_function_takes_other_shapes_when_they_come(two: Mesh) -> None:
    compiled = two.compile(layer, X, W)
    np.testing.assert_allclose(compiled(X, W), np.tanh(X @ W), rtol=1e-6)
    np.testing.assert_allclose(compiled(X[:2], W), np.tanh(X[:2] @ W), rtol=1e-6)


def test_a_graph_is_run_by_position_or_by_name(two: Mesh) -> None:
    graph = trace(layer, X, W)
    by_name = two.run(graph, {"x": X, "w": W})
    np.testing.assert_array_equal(by_name, two.run(graph, X, W))
    several = two.run(trace(lambda x: {"a": x + 1, "b": x * 2}, X), {"x": X})
    np.testing.assert_array_equal(several["b"], X * 2)


def test_calls_from_many_threads_each_get_their_own_answer(two: Mesh) -> None:
    def call(number: int) -> Any:
        return two.run(layer, X + np.float32(number), W)

    with ThreadPoolExecutor(8) as pool:
        for number, found in enumerate(pool.map(call, range(40))):
            np.testing.assert_allclose(found, np.tanh((X + np.float32(number)) @ W), rtol=1e-6)


def test_arrays_in_a_with_block_are_computed_on_the_mesh() -> None:
    with Mesh.builder().mesh("block").local(1, "cpu").node_timeout(PATIENT_S).build() as mesh:
        np.testing.assert_array_equal(np.asarray(mnp.asarray(X) + 1), X + 1)
        assert list(mesh.report().workers) == ["local-0"]
        pid = mesh.nodes[0].pid
    assert not is_alive(pid)
    np.testing.assert_array_equal(np.asarray(mnp.asarray(X) + 2), X + 2)
    with pytest.raises(errors.ConfigError, match="this mesh is closed"):
        mesh.run(layer, X, W)


def test_the_async_mesh_has_the_same_names() -> None:
    async def use() -> None:
        async with (
            await AsyncMesh.builder().mesh("async").local(2, "cpu").node_timeout(PATIENT_S).build_async() as mesh
        ):
            assert [node.name for node in await mesh.nodes()] == ["local-0", "local-1"]
            held = await mesh.put(W)
            expected = np.asarray(await mesh.run(layer, X, W, mode="off"))
            compiled = await mesh.compile(layer, X, held)
            job = await mesh.submit(layer, X, held, strategy="pipeline")
            found = await asyncio.gather(
                mesh.run(layer, X, held), compiled(X, held), job.result(timeout_s=COMES_TRUE_S)
            )
            for each in found:
                np.testing.assert_array_equal(each, expected)
            assert job.done() and job.report().workers
            assert (await mesh.plan(layer, X, held, strategy="single")).workers
            assert mesh.report().seconds > 0

    asyncio.run(use())
    public = {name for name in vars(Mesh) if not name.startswith("_")}
    of_its_thread = {"wait", "on_loop", "as_completed"}  # a program that is on the loop has asyncio for these
    of_its_thread |= {"elastic_session"}  # and open_session(others=) for this
    assert public - of_its_thread <= {name for name in vars(AsyncMesh) if not name.startswith("_")} | {"builder"}


# -- mistakes


def test_every_node_that_failed_is_named() -> None:
    ports = []
    for _ in range(2):
        with socket.create_server(("127.0.0.1", 0)) as server:
            ports.append(server.getsockname()[1])
    builder = Mesh.builder().mesh("dead")
    for port in ports:
        builder = builder.node(f"127.0.0.1:{port}")
    others = sum(thread.name == "mesh" for thread in threading.enumerate())
    with pytest.raises(errors.ConnectFailed) as caught:
        builder.build()
    assert all(f"127.0.0.1:{port}" in str(caught.value) for port in ports)
    assert sum(thread.name == "mesh" for thread in threading.enumerate()) == others, (
        "a failed build leaves nothing running"
    )


def test_a_worker_that_cannot_have_its_device_says_so() -> None:
    with pytest.raises(errors.MeshError, match="there is no device 'nonsense'"):
        Mesh.builder().local(1, "nonsense").build()


def test_a_node_without_a_port_is_looked_for_at_7100_and_the_error_says_so() -> None:
    assert Mesh.builder().node("127.0.0.1").config.addresses == (("127.0.0.1", PORT),)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(errors.ConnectFailed, match=f"no node answers at 127.0.0.1:{port}") as caught:
        Mesh.builder().mesh("nowhere").node(f"127.0.0.1:{port}").build()
    said = "is the port of an address that names none)"
    assert said not in str(caught.value)
    assert str(nobody_at(f"127.0.0.1:{port}", caught.value.cause)) == str(caught.value), "which another port has, too"
    assert f"({PORT} {said}" in str(nobody_at(f"127.0.0.1:{PORT}", "Connection refused"))


def test_wgsl_without_an_adapter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES"):
        monkeypatch.setenv(name, "/nowhere")
    monkeypatch.setenv("WGPU_BACKEND_TYPE", "Vulkan")
    with pytest.raises(errors.ConnectFailed, match=r"local-0.*local-1.*no adapter") as caught:
        Mesh.builder().local(2, engine="wgsl").build()
    assert str(caught.value).count("no adapter") == 1, "a cause that both have is said once"


def test_each_local_worker_may_have_an_engine_of_its_own() -> None:
    with pytest.raises(errors.ConfigError, match=r"local\(3\): 2 engines given"):
        Mesh.builder().local(3, engine=["cpu", "cpu"])
    with pytest.raises(errors.ConfigError, match=r"an engine is a name, such as 'cpu', got \[0\]"):
        Mesh.builder().local(1, engine=[0])  # type: ignore[list-item]  # what the check is for
    for count in (0, -1, 1.5):
        with pytest.raises(errors.ConfigError, match="at least one"):
            Mesh.builder().local(count)  # type: ignore[arg-type]  # what the check is for


def test_a_worker_s_budget_is_a_size_or_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(errors.ConfigError, match="'lots' is not a size"):
        Mesh.builder().local(1, max_memory="lots")
    monkeypatch.setenv("HOME", str(tmp_path))
    builder = Mesh.builder().mesh("budget").local(1, "cpu", cache_dir="~/kept", max_memory=3 << 30)
    with builder.build() as mesh:
        assert mesh.nodes[0].memory_bytes == 3 << 30
    assert (tmp_path / "kept" / "local-0").is_dir()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda mesh: mesh.run(layer, X, W, strategy="best"), "strategy='best' is not known"),
        (lambda mesh: mesh.run(layer, X, W, mode="maybe"), "mode='maybe' is not known"),
        (lambda mesh: mesh.run(trace(layer, X, W), {"x": X}), r"the input 'w' \(f32\[8,3\]\) is missing"),
        (lambda mesh: mesh.run(trace(layer, X, W), {"x": X, "v": W}), "has no input 'v'.*It takes: x, w"),
        (
            lambda mesh: mesh.run(trace(layer, X, W), {"x": X.astype(np.float64), "w": W}),
            r"the input 'x' is float64\[4, 8\], expected f32\[4,8\]",
        ),
    ],
)
def test_a_mistake_names_what_was_expected(two: Mesh, call: Any, said: str) -> None:
    with pytest.raises(errors.InputError, match=said):
        call(two)


# -- scripts


def script(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Run a script that lies in `folder` from the folder `here` inside it; its temporary folder is `temporary`."""
    (folder / "script.py").write_text(text)
    for name in ("here", "temporary"):
        (folder / name).mkdir(exist_ok=True)
    environment = {
        "PYTHONPATH": str(ROOT),
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "TMPDIR": str(folder / "temporary"),
    }
    return subprocess.run(
        [sys.executable, "../script.py"], cwd=folder / "here", env=environment,
        capture_output=True, text=True, timeout=RUN_S, check=False,
    )  # fmt: skip


def test_a_script_needs_no_main_guard_and_stray_files_in_its_current_folder_hurt_nobody(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    for name in ("wire", "json"):
        (tmp_path / "here" / f"{name}.py").write_text("raise SystemExit('imported from the current folder')")
    text = (
        "import numpy as np\nfrom mesh import Mesh\n"
        "with Mesh.builder().mesh('script').local(1, 'cpu').build() as mesh:\n"
        "    print('sum', mesh.run(lambda x: x + 1, np.ones(3, np.float32)).sum())\n"
    )
    done = script(tmp_path, text)
    assert done.stdout.splitlines() == ["sum 6.0"], done.stderr


def left_after(folder: Path, end: str) -> list[str]:
    """What lies in the temporary folder after a script that makes a mesh, then ends by `end` without closing it."""
    text = "import os\nfrom mesh import Mesh\nmesh = Mesh.builder().mesh('left').local(1, 'cpu').build()\n"
    done = script(folder, f"{text}print('made', flush=True)\n{end}\n")
    assert done.stdout == "made\n", done.stderr
    return sorted(path.name for path in (folder / "temporary").glob("graph-mesh-*"))


def test_a_mesh_that_nobody_closes_leaves_no_folder(tmp_path: Path) -> None:
    assert len(left_after(tmp_path, "os.kill(os.getpid(), 9)")) == 1
    assert left_after(tmp_path, "") == []  # and the next one removes what a kill -9 left


def test_a_file_that_hides_a_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "wire.py").write_text("")
    done = script(tmp_path, "import mesh\n")
    assert done.returncode == 1
    assert f"{tmp_path / 'wire.py'} hides graph-mesh's package 'wire'" in done.stderr


def test_derivatives_and_batches_run_on_the_mesh(two: Mesh) -> None:
    def loss(weights: Any, x: Any) -> Any:
        hidden = remat(layer)(x, weights["w"])
        return mnp.sum(hidden * hidden)

    def per_row(weights: Any, x: Any) -> Any:
        return vmap(lambda row: grad(loss)(weights, row))(x)

    put = two.put({"w": W})
    (value, gradient), rows = two.run(value_and_grad(loss), put, X), two.run(per_row, put, X)
    hidden = np.tanh(X @ W)
    np.testing.assert_allclose(value, np.sum(hidden * hidden), 1e-5)
    np.testing.assert_allclose(gradient["w"], X.T @ (2 * hidden * (1 - hidden * hidden)), 1e-4, 1e-5)
    np.testing.assert_allclose(rows["w"].sum(0), gradient["w"], 1e-4, 1e-5)
