"""`mesh-worker tune` with real engine hosts: what it prints and keeps, and forms that take their host with them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.adapter import needs_adapter
from support.processes.failing_form import command
from support.processes.worker_process import HANGS_S, Coordinator, WorkerProcess, gone, worker

from mesh.commands.tune import tune
from mesh.commands.worker import parser
from wire.errors import ConfigError, InputError, Unsupported
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder, WireGraph
from wire.protocol.messages import PartSpec, PlanKey, Source, SourceKind, Target
from wire.timeouts import PRESETS
from worker.config import WorkerConfig
from worker.engine import protocol
from worker.engine.protocol import Tuned
from worker.engine_host.tuning import LOSSES_MAX, Tuning
from worker.wgsl.tuned_file import FILE, TRIES_MAX

SUM = "sum f32 512x64"
FORM = "64 rows"
LIMIT_S = 300.0  # a machine under load; it takes two seconds
PLAN = PlanKey(1, 1)
needs_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
# `mesh-worker` that has LIMIT_S for one class.
MESH_WORKER = f"""
from mesh.commands.worker import main
from worker.engine_host import tuning

tuning.CLASS_S_MAX = tuning.HANG_S = {LIMIT_S}
main()
"""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class may take LIMIT_S here: a machine under load takes a minute for what needs two seconds."""
    for name in ("CLASS_S_MAX", "HANG_S"):
        monkeypatch.setattr(f"worker.engine_host.tuning.{name}", LIMIT_S)


def tuned(folder: Path, fault: str, part_s: float = 600.0, form: str = FORM) -> tuple[list[Tuned], dict[str, object]]:
    """What came of measuring with a host of that fault, and what was kept."""
    config = WorkerConfig(cache_dir=str(folder), timeouts=replace(PRESETS["test"], part_s=part_s))
    found: list[Tuned] = []
    tuning = Tuning(config, "wgsl", found.append, command(fault, form))
    asyncio.run(tuning.run(lambda info: [SUM], LIMIT_S))
    (row,) = json.loads((folder / "kernels" / FILE).read_text())["rows"]
    return found, row


@needs_adapter
def test_a_form_that_ends_its_host_is_refused_and_the_others_are_measured(tmp_path: Path) -> None:
    found, row = tuned(tmp_path, "abort")
    (one,) = found
    assert one.finished and one.tried >= 6 and one.refused == {FORM: "it never came back"}
    assert row["refused"] == one.refused and row["tries"] == {} and TRIES_MAX < LOSSES_MAX
    found, _ = tuned(tmp_path, "abort")  # whoever measures again does not run it at all
    assert found[0].finished and found[0].refused == one.refused


@pytest.mark.long
@needs_adapter
def test_a_form_that_hangs_its_host_is_refused(tmp_path: Path) -> None:
    tuned(tmp_path, "none")  # kernels of the others are in the driver's cache from now on, so that they take no time
    (tmp_path / "kernels" / FILE).unlink()
    found, row = tuned(tmp_path, "hang", part_s=20.0)
    assert found[0].finished and row["refused"] == {FORM: "it never came back"}


@pytest.mark.long
@needs_adapter
def test_a_device_that_loses_every_host_is_told(tmp_path: Path) -> None:
    config = WorkerConfig(cache_dir=str(tmp_path), timeouts=PRESETS["test"])
    found: list[Tuned] = []
    guess = "128 rows"  # nobody can do without it
    asyncio.run(Tuning(config, "wgsl", found.append, command("abort", guess)).run(lambda info: [SUM], LIMIT_S))
    (one,) = found
    assert not one.finished and f"it lost {LOSSES_MAX} engine hosts" in one.why and "signal" in one.why


@needs_adapter
def test_hosts_are_not_lost_beyond_the_time_limit(tmp_path: Path) -> None:
    config = WorkerConfig(cache_dir=str(tmp_path), timeouts=PRESETS["test"])
    found: list[Tuned] = []
    asyncio.run(Tuning(config, "wgsl", found.append, command("abort", "128 rows")).run(lambda info: [SUM, SUM], 0.01))
    first, second = found
    assert "it lost 1 engine host, the last one because" in first.why and "time was over before" in second.why


@needs_adapter
def test_a_form_is_not_refused_because_work_came_while_the_driver_compiled_it(tmp_path: Path) -> None:
    config = WorkerConfig(cache_dir=str(tmp_path), timeouts=PRESETS["test"])
    path = tmp_path / "kernels" / FILE

    def tries() -> dict[str, int]:
        rows = json.loads(path.read_text())["rows"] if path.exists() else [{"tries": {}}]
        return dict(rows[0]["tries"])

    async def begun_and_stopped() -> None:
        measuring = asyncio.create_task(Tuning(config, "wgsl", print, command("hang", FORM)).run(lambda _: [SUM], 300))
        await until(lambda: tries() == {FORM: 1})
        measuring.cancel()
        await asyncio.wait([measuring])

    asyncio.run(begun_and_stopped())
    assert tries() == {}


def test_every_shape_is_checked_before_any_is_measured(tmp_path: Path) -> None:
    for text, error in (("nonsense", "is no shape class"), ("sum i32 4x4", "there is no shape class")):
        options = parser().parse_args(["tune", "--device", "wgsl", "--shape", SUM, "--shape", text])
        with pytest.raises(InputError, match=error):
            tune(options, WorkerConfig(cache_dir=str(tmp_path)))
    assert not list(tmp_path.iterdir())


@needs_adapter
def test_the_command_prints_what_it_keeps(tmp_path: Path) -> None:
    line = [sys.executable, "-c", MESH_WORKER, "tune", "--device", "wgsl", "--cache-dir", str(tmp_path)]
    line += ["--preset", "test", "--timeout", f"device_open_s={LIMIT_S}"]
    shapes = ["--shape", SUM, "--shape", "product f32 1x64x64x64", "--time-limit", "10m"]
    done = subprocess.run([*line, *shapes, "--json"], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    rows = json.loads((tmp_path / "kernels" / FILE).read_text())["rows"]
    assert [one["shape_class"] for one in told["classes"]] == [SUM, "product f32 1x64x64x64"]
    for one, row in zip(told["classes"], rows, strict=True):
        assert one["finished"], one["why"]
        assert (row["shape_class"], row["adapter"]) == (one["shape_class"], told["adapter"])
        assert row["form"] == (one["form"] if one["form"] != one["guess"] else "")
        assert one["form_s"] <= one["guess_s"]
    short = subprocess.run([*line, "--time-limit", "1s"], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert short.returncode == 0, short.stderr
    table = short.stdout.splitlines()
    assert table[1].split()[:3] == ["shapes", "first", "guess"] and len(table) > 15
    assert "the time was" in short.stdout and table[-1].startswith("another form is faster for ")


@pytest.mark.parametrize("device", ["cpu", "native", "processor"])
def test_a_processor_has_nothing_to_tune(device: str) -> None:
    with pytest.raises(ConfigError, match="has nothing to tune"):
        Tuning(WorkerConfig(), device, lambda tuned: None)


def test_an_engine_without_forms_says_so() -> None:
    from worker.cpu import CpuEngine

    with pytest.raises(Unsupported, match="has nothing to tune"):
        protocol.tune(CpuEngine(), SUM, 1.0)


def sum_graph(*shape: int) -> WireGraph:
    builder = GraphBuilder()
    return builder.build([builder.add("reduce_sum", builder.input("x", shape, F32), axes=(1,))], names=["y"])


def product_graph(side: int) -> WireGraph:
    builder = GraphBuilder()
    x = builder.input("x", (side, side), F32)
    axes = {"lhs_batch": (), "rhs_batch": (), "lhs_contract": (1,), "rhs_contract": (0,)}
    return builder.build([builder.add("dot", x, x, **axes)], names=["y"])


@asynccontextmanager
async def idle_worker(folder: Path, graph: WireGraph, after_s: float) -> AsyncIterator[tuple[WorkerProcess, Any, Any]]:
    """A worker with a software adapter that measures its kernels, and what deployed this graph there."""
    coordinator = Coordinator()
    times = replace(PRESETS["test"], idle_tuning_s=after_s)
    try:
        async with worker(folder, devices=("wgsl",), tune_software=True, timeouts=times) as process:
            link, _ = await coordinator.join(process)
            part = PartSpec(0, 0, graph.hash, (Source(SourceKind.INPUT),), ((Target("", 0, 0),),))
            await coordinator.deploy(link, [(part, graph)], PLAN)
            yield process, coordinator, link
    finally:
        await coordinator.close()


def rows_in(folder: Path) -> dict[str, dict[str, Any]]:
    """What is kept, by class."""
    try:
        content = json.loads(next(folder.glob(f"cache/*/kernels/{FILE}")).read_text())
    except (StopIteration, FileNotFoundError):
        return {}
    return {row["shape_class"]: row for row in content["rows"]}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(HANGS_S):
        while not condition():
            await asyncio.sleep(0.02)


@needs_adapter
@needs_linux
@pytest.mark.asyncio
async def test_a_worker_without_work_measures_what_its_parts_have(tmp_path: Path) -> None:
    graph = sum_graph(512, 64)
    async with idle_worker(tmp_path, graph, 0.1) as (process, coordinator, link):
        own = set(process.host_pids())
        await until(lambda: rows_in(tmp_path).get(SUM, {}).get("form") is not None)
        await until(lambda: set(process.host_pids()) == own)  # the host that measured is gone
        x = np.arange(512 * 64, dtype=np.float32).reshape(512, 64)
        _, outputs = await coordinator.run(link, PLAN, 0, coordinator.feed(0, 0, x, "shared"))
        np.testing.assert_array_equal(outputs[0], x.sum(1))
    assert rows_in(tmp_path)[SUM]["tries"] == {}


@needs_adapter
@needs_linux
@pytest.mark.asyncio
async def test_work_ends_a_measurement_at_once(tmp_path: Path) -> None:
    graph = product_graph(1024)
    async with idle_worker(tmp_path, graph, 0.5) as (process, coordinator, link):
        own = set(process.host_pids())
        await until(lambda: rows_in(tmp_path) != {})  # it has begun with the first form
        (measuring,) = set(process.host_pids()) - own
        x = np.ones((1024, 1024), np.float32)
        for step in range(3):
            await coordinator.run(link, PLAN, step, coordinator.feed(0, 0, x, "shared"))
        assert await gone(measuring)
        (row,) = rows_in(tmp_path).values()
        assert row["form"] is None and set(process.host_pids()) >= own
