"""A coordinator daemon and those who use it at once: clients that vanish, second coordinators, interruptions."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import resource
import signal
import subprocess
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.endless import endless
from support.processes import site as sites
from support.processes.commands import (
    RUN_S,
    asked,
    command,
    daemon,
    environment,
    jobs,
    node_states,
    run,
    until_they_work,
    wait_for,
)
from support.processes.durable import free_port

import mesh.numpy as mnp
from mesh import AsyncMesh, Mesh, errors, trace
from mesh.backends.remote import Remote
from mesh.commands import exit_codes
from mesh.functions.compiled import handle_of
from wire.system.open_file_limit import WANTED, open_files_max

X = np.full((512, 512), 0.01, np.float32)


class Site(sites.Site):
    """With graphs to run there."""

    def submit(self, graph: str, *more: str) -> list[str]:
        """The words that submit a graph of the one input x."""
        return ["submit", f"{graph}.wire", "--input", "x=x.npy", "--output", f"out-{graph}", *more]

    def began(self, job: str) -> bool:
        return "began" in self.log_of(job)


def repeated(times: int) -> Callable[[Any], Any]:
    def work(x: Any) -> Any:
        for _ in range(times):
            x = mnp.tanh(x @ x) * 0.5
        return x

    return work


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    for name, times in (("short", 2), ("other", 3)):
        trace(repeated(times), X).save(folder / f"{name}.wire")
    trace(endless, X).save(folder / "endless.wire")
    np.save(folder / "x.npy", X)
    with sites.site(folder, "serve", kind=Site) as made:
        yield made


@contextmanager
def running(site: Site, *more: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`mesh-coord submit` of a graph that takes long, attached, and the job's id once a part of it runs."""
    before = jobs(site.coordinator).keys()
    words = command("coord", *site.submit("endless", *more))
    process = subprocess.Popen(
        words, env=site.env, cwd=site.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_for(lambda: jobs(site.coordinator).keys() > before)
        (job,) = jobs(site.coordinator).keys() - before
        wait_for(lambda: site.began(job))
        yield process, job
    finally:
        process.kill()
        process.communicate()


# -- clients


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_submit_cancels_its_job_and_says_so_by_its_exit_code(site: Site, number: int) -> None:
    with running(site) as (process, job):
        process.send_signal(number)
        assert process.wait(RUN_S) == exit_codes.INTERRUPTED
        assert site.state(job) == "cancelled"
        assert "Traceback" not in process.communicate()[1]


def test_a_client_that_vanishes_takes_its_job_along_and_hurts_nobody(site: Site) -> None:
    with running(site) as (process, job):
        process.kill()
        wait_for(lambda: site.state(job) == "cancelled")
    again = site.ask(*site.submit("short", "--strategy", "pipeline"))
    assert again.returncode == 0, again.stderr
    wait_for(lambda: node_states(site.coordinator) == {"one": "healthy", "two": "healthy"})


def test_a_detached_job_outlives_its_client_until_it_is_cancelled(site: Site) -> None:
    job = site.json(*site.submit("endless", "--detach"))["job"]
    wait_for(lambda: site.began(job))
    assert site.state(job) == "running"
    assert f"job {job} is cancelled" in site.ask("cancel", job).stdout
    wait_for(lambda: site.state(job) == "cancelled")
    asked = site.ask("result", job, "--output", "never")
    assert asked.returncode == exit_codes.CANCELLED
    assert asked.stderr.splitlines()[-1] == f"mesh-coord: job {job}: the job was cancelled"
    short = site.ask(*site.submit("short"))
    assert short.returncode == 0, "the workers are free again"


def test_progress_is_drawn_on_a_terminal_and_told_in_lines_elsewhere(site: Site) -> None:
    leader, follower = pty.openpty()
    env = {**site.env, "TERM": "xterm", "COLUMNS": "100"}
    words = command("coord", *site.submit("short"))
    with subprocess.Popen(words, env=env, cwd=site.folder, stdout=subprocess.DEVNULL, stderr=follower) as process:
        os.close(follower)
        drawn = read_all(leader)
    assert process.returncode == 0, drawn
    assert "100%" in drawn and "\x1b[" in drawn and "done" in drawn
    lines = site.ask(*site.submit("other")).stderr
    assert "\x1b" not in lines and "%" not in lines
    assert [word in lines for word in ("queued", "planned", "deployed", "done")] == [True] * 4


def read_all(terminal: int) -> str:
    parts = []
    while True:
        try:
            parts.append(os.read(terminal, 65536))
        except OSError:  # the other side closed it
            os.close(terminal)
            return b"".join(parts).decode()


@pytest.fixture
def at_home(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is of the user who runs the coordinator."""
    monkeypatch.setenv("XDG_STATE_HOME", site.coordinator.env["XDG_STATE_HOME"])


def test_a_python_program_is_a_client_of_the_same_coordinator(site: Site, at_home: None) -> None:
    with Mesh.builder().mesh("serve").node(site.coordinator.address).build() as mesh:
        assert [node.name for node in mesh.nodes] == ["one", "two"]
        expected = mesh.run(repeated(2), X, mode="off")
        large = mesh.put(X)  # a megabyte: fetched from this process by its address
        found = until_they_work(mesh, 2, lambda: mesh.run(repeated(2), large, strategy="pipeline"))
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        assert mesh.plan(repeated(2), X, strategy="single").workers
        job = mesh.submit(endless, X)
        with pytest.raises(errors.DeadlineExceeded, match=r"no result after 0\.5 s"):
            job.result(timeout_s=0.5)
        job.cancel()
        with pytest.raises(errors.Cancelled):
            job.result(timeout_s=RUN_S)
        wait_for(lambda: set(jobs(site.coordinator).values()) <= {"done", "cancelled", "failed"})
        given_up = mesh.submit(endless, X)
        given_up.cancel()  # it may have arrived at the coordinator, or may not
        with pytest.raises(errors.Cancelled):
            given_up.result(timeout_s=RUN_S)
        np.testing.assert_allclose(mesh.run(repeated(2), X, mode="on"), expected, rtol=1e-5)
        wait_for(lambda: set(jobs(site.coordinator).values()) <= {"done", "cancelled", "failed"})
        with pytest.raises(errors.InputError, match=r"the input 'x' is float32\[2\], expected f32\[512,512\]"):
            mesh.run(trace(repeated(2), X), {"x": np.ones(2, np.float32)})
    with pytest.raises(errors.ConfigError, match="is a coordinator with workers of its own"):
        Mesh.builder().mesh("serve").node(site.coordinator.address).local(1, "cpu").build()


def test_a_session_has_its_state_on_the_workers_of_the_coordinator(site: Site, at_home: None) -> None:
    """With tensors that ride along and others that are fetched, in both directions."""
    small, large = np.zeros((4,), np.float32), np.zeros((300, 300), np.float32)

    def step(state: Any, x: Any, y: Any) -> Any:
        return {"small": state["small"] + x, "large": state["large"] * 0.5 + y}, (state["small"].sum(), state["large"])

    with Mesh.builder().mesh("serve").node(site.coordinator.address).build() as mesh:
        state = {"small": small, "large": large}
        session = mesh.session(step, state, small, large, copies="checkpoint", every=2, strategy="single")
        steps = [session.step(small + number, large + number) for number in range(6)]
        sums = [float(each.result(RUN_S)[0]) for each in steps]
        assert sums == [0, 0, 4, 12, 24, 40]
        found = session.state()
        np.testing.assert_array_equal(found["small"], small + 15)
        np.testing.assert_array_equal(found["large"], steps[5].result()[1] * 0.5 + 5)
        with pytest.raises(errors.InputError):
            mesh.session(step, state, small, large).step(small, small)
        session.close()
        with pytest.raises(errors.Cancelled):
            session.step(small, large).result(RUN_S)
        left = mesh.session(step, state, small, large)  # it ends with the link
        left.step(small, large).result(RUN_S)
    wait_for(lambda: node_states(site.coordinator) == {"one": "healthy", "two": "healthy"})


def test_a_task_that_is_cancelled_cancels_its_job_at_the_coordinator(site: Site, at_home: None) -> None:
    async def use() -> None:
        builder = AsyncMesh.builder().mesh("serve").node(site.coordinator.address)
        before = (await asyncio.to_thread(jobs, site.coordinator)).keys()
        async with await builder.build_async() as mesh:
            task = asyncio.create_task(mesh.run(endless, X, mode="on"))
            while not (new := (await asyncio.to_thread(jobs, site.coordinator)).keys() - before):
                await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            (job,) = new
            await asyncio.to_thread(wait_for, lambda: site.state(job) == "cancelled")

    asyncio.run(use())


def test_large_outputs_of_a_worker_without_shared_memory_come_as_streams(site: Site, tmp_path: Path) -> None:
    """As they do from another machine: a throttled worker shares no memory."""
    env = {**site.env, **environment(tmp_path, MESH_NAME="elsewhere")}
    log = tmp_path / "coordinator.log"
    with sites.serving(tmp_path, env) as coordinator:
        words = (*sites.WORKER, "--peer", coordinator.address, "--throttle", "delay=1ms")
        with daemon(*words, "--name", "far", env=env, log=tmp_path / "far.log"):
            wait_for(lambda: node_states(coordinator) == {"far": "healthy"})
            given = np.random.default_rng(0).standard_normal((256, 256))

            async def computed(remote: Remote) -> Any:
                graph = trace(lambda x: x * 2, given)
                outputs, _ = await remote.result(await remote.submit(graph, {"x": given}, {}))
                return next(iter(outputs.values()))

            np.testing.assert_array_equal(asked(coordinator, computed), given * 2)
            assert "far is gone" not in log.read_text()


def test_weights_come_from_a_client_once(site: Site) -> None:
    weights = X + np.float32(0.5)  # which no other job has
    graph = trace(lambda x, w: mnp.tanh(x @ w), X[:2], handle_of(weights, "w"))
    (x,), (w,) = graph.input_types, graph.param_types

    async def submitted(remote: Remote) -> list[int]:
        sent = []
        for _ in range(2):
            before = remote.bytes_sent
            await remote.result(await remote.submit(graph, {x: X[:2]}, {w: weights}))
            sent.append(remote.bytes_sent - before)
        return sent

    first, again = asked(site.coordinator, submitted)
    assert first > X.nbytes > 10 * again


def test_outputs_that_are_given_no_place_are_in_a_folder_named_after_the_job(site: Site, tmp_path: Path) -> None:
    done = run(
        "coord",
        "submit",
        str(site.folder / "short.wire"),
        "--input",
        f"x={site.folder / 'x.npy'}",
        env=site.env,
        cwd=tmp_path,
    )
    (job,) = [folder.name for folder in tmp_path.iterdir()]
    assert done.returncode == 0 and f"in {job}/" in done.stdout and job in jobs(site.coordinator)
    again = run("coord", "result", job, env=site.env, cwd=site.folder)
    (first,), (second,) = (list((folder / job).iterdir()) for folder in (tmp_path, site.folder))
    assert again.returncode == 0 and first.read_bytes() == second.read_bytes()


# -- a second coordinator


def test_a_client_has_room_for_files(site: Site, at_home: None) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        with Mesh.builder().mesh("serve").node(site.coordinator.address).build():
            most = open_files_max()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert most == min(WANTED[0], hard if hard != resource.RLIM_INFINITY else WANTED[0])


def test_results_and_inputs_of_many_jobs_are_not_held_open(site: Site, at_home: None) -> None:
    files = Path(f"/proc/{site.coordinator.process.pid}/fd")
    with Mesh.builder().mesh("serve").node(site.coordinator.address).build() as mesh:
        before = len(list(files.iterdir()))
        x = np.zeros((1 << 15,), np.float32)
        compiled = mesh.compile(lambda x: x + 1, x)
        given = []
        for number in range(48):
            value = np.full_like(x, number)
            given.append(weakref.ref(value))
            np.testing.assert_array_equal(compiled(value), value + 1)
        del value
        wait_for(lambda: len(list(files.iterdir())) - before < 32)
        wait_for(lambda: not [each for each in given if each() is not None])  # the client lets go of what it sent
    done = [job for job in site.json("status") if job["name"] == "<lambda>"]
    first = site.ask("result", done[0]["job"], "--output", "out-first")
    assert first.returncode == 0, first.stderr


def test_a_second_coordinator_for_the_same_worker_is_refused_and_told_who_has_it(site: Site, at_home: None) -> None:
    worker = site.workers["one"].address
    words = ("--port", "0", "--host", "127.0.0.1", "--peer", worker, "--name", "second")
    second = run("coord", *sites.SERVE[1:], *words, env=site.env)
    assert second.returncode == exit_codes.UNREACHABLE
    told = "this worker serves coordinator coordinator [worker one]. Connect to that one"
    assert second.stderr.splitlines()[-1].startswith(f"mesh-coord: {told}, at the address that mesh-coord serve prints")
    with pytest.raises(errors.Busy, match="this worker serves coordinator"):
        Mesh.builder().mesh("serve").node(worker).build()
    wait_for(lambda: node_states(site.coordinator) == {"one": "healthy", "two": "healthy"})


def test_a_worker_that_does_not_answer_yet_is_dialled_until_it_does(tmp_path: Path) -> None:
    port, env = free_port(), environment(tmp_path, MESH_NAME="late")
    log = tmp_path / "coordinator.log"
    with sites.serving(tmp_path, env, "--peer", f"127.0.0.1:{port}") as coordinator:
        wait_for(lambda: "this worker is dialled again until it answers" in log.read_text())
        words = ("worker", "--no-mdns", "--device", "cpu", "--port", str(port), "--name", "late")
        with daemon(*words, env=env, log=tmp_path / "late.log"):
            wait_for(lambda: node_states(coordinator) == {"late": "healthy"})


def test_asking_a_worker_instead_of_a_coordinator_says_what_to_name(site: Site) -> None:
    asked = site.ask("nodes", "--coordinator", site.workers["one"].address)
    assert asked.returncode == exit_codes.USAGE
    assert "is a worker, not a coordinator" in asked.stderr


# -- exit codes


def test_every_exit_code_is_documented_where_people_look(site: Site) -> None:
    shown = site.ask("--help").stdout
    for code, meaning in exit_codes.MEANINGS.items():
        assert f"{code:<4} {meaning}" in shown
    assert shown.split("exit codes:")[1] == run("worker", "--help", env=site.env).stdout.split("exit codes:")[1]


def test_without_workers_a_job_waits_a_while_and_then_says_what_to_start(site: Site, tmp_path: Path) -> None:
    env = environment(tmp_path, MESH_NAME="empty")
    trace(repeated(1), X).save(tmp_path / "short.wire")
    np.save(tmp_path / "x.npy", X)
    with sites.serving(tmp_path, env) as coordinator:
        env["MESH_ADDRESS"] = coordinator.address
        failed = run("coord", *site.submit("short"), env=env, cwd=tmp_path)
        assert failed.returncode == exit_codes.UNREACHABLE
        assert "no worker is left, and none joined" in failed.stderr
        planned = run("coord", "plan", "short.wire", env=env, cwd=tmp_path)
        assert planned.returncode == exit_codes.UNREACHABLE
        assert "no worker is connected" in planned.stderr
        detached = run("coord", *site.submit("short"), "--detach", env=env, cwd=tmp_path)
        assert detached.returncode == 0 and "waits for a worker: none is connected" in detached.stderr
        job = detached.stdout.split()[1].rstrip(";")
        assert "waits for a worker: none is connected" in run("coord", "status", job, env=env).stdout


def test_flags_may_stand_before_the_verb_or_after_it(site: Site) -> None:
    assert json.loads(site.ask("--json", "nodes").stdout)[0]["name"] == "one"
    assert site.ask("-q", *site.submit("short")).stderr == ""
    assert run("coord", env=site.env).returncode == exit_codes.USAGE
    assert run("coord", "serve", "--port", "70000", env=site.env).returncode == exit_codes.USAGE
