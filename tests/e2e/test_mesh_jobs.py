"""Jobs of a Mesh: waiting, giving up waiting, cancelling, failing, and many at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import psutil
import pytest
from support.by_numpy import by_numpy
from support.endless import endless
from support.processes.commands import PATIENT_S, until_by_the_same_plan, until_they_work
from support.processes.worker_process import children

import mesh.numpy as mnp
from mesh import AsyncMesh, Mesh, errors, trace
from wire.protocol.messages import INLINE_BYTES_MAX
from wire.system.mapped_files import READ_BYTES_MAX
from wire.system.open_file_limit import WANTED
from worker.engine_host.host import MAPPED_BYTES_MIN

X = np.full((512, 512), 0.01, np.float32)
SOON_S = 120.0  # for what takes milliseconds


def chain(count: int) -> Any:
    def work(x: Any) -> Any:
        for _ in range(count):
            x = mnp.tanh(x @ x) * 0.5
        return x

    return work


@pytest.fixture(scope="module")
def two() -> Iterator[Mesh]:
    """A mesh of two cpu workers."""
    mesh = Mesh.builder().mesh("jobs").local(2, "cpu").node_timeout(PATIENT_S).build()
    yield mesh
    mesh.close()


def test_a_job_is_waited_for_given_up_waiting_for_and_asked_again(two: Mesh) -> None:
    job = two.submit(endless, X)
    for _ in range(2):
        with pytest.raises(errors.DeadlineExceeded, match=r"no result after 0\.01 s.*Ask again, or cancel") as caught:
            job.result(timeout_s=0.01)
        assert caught.value.retry and not job.done()
    job.cancel()
    job, found = two.submit(chain(300), X), None
    while found is None:
        with contextlib.suppress(errors.DeadlineExceeded):
            found = job.result(timeout_s=0.1)
    assert job.done()
    np.testing.assert_array_equal(found, by_numpy(chain(300), X))
    assert job.result() is not None, "a result may be asked for twice"
    job.cancel()
    np.testing.assert_array_equal(job.result(), found)


@pytest.mark.parametrize("strategy", ["single", "pipeline"])
def test_a_cancelled_job_frees_its_workers(two: Mesh, strategy: str) -> None:
    hosts = [children(node.pid) for node in two.nodes]
    job = two.submit(endless, X, strategy=strategy)
    with pytest.raises(errors.DeadlineExceeded):
        job.result(timeout_s=1.0)
    job.cancel()
    with pytest.raises(errors.Cancelled, match="the job was cancelled"):
        job.result(timeout_s=SOON_S)
    quick = two.submit(lambda x: (x + 1) * 2, X, strategy="pipeline").result(timeout_s=SOON_S)
    np.testing.assert_array_equal(quick, (X + 1) * 2)
    assert [children(node.pid) for node in two.nodes] == hosts, "their engine hosts stopped and were not ended"


def test_a_task_that_is_cancelled_cancels_its_call() -> None:
    async def use() -> None:
        async with (
            await AsyncMesh.builder().mesh("tasks").local(1, "cpu").node_timeout(PATIENT_S).build_async() as mesh
        ):
            task = asyncio.create_task(mesh.run(endless, X))
            await asyncio.sleep(1.0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            job = await mesh.submit(endless, X)
            with pytest.raises(errors.DeadlineExceeded):
                await job.result(timeout_s=0.1)
            job.cancel()
            with pytest.raises(errors.Cancelled):
                await job.result(timeout_s=SOON_S)
            async with asyncio.timeout(SOON_S):
                np.testing.assert_array_equal(await mesh.run(lambda x: x + 1, X), X + 1)

    asyncio.run(use())


def test_many_jobs_at_once_each_have_their_own_answer_and_report(two: Mesh) -> None:
    until_they_work(two, 2, lambda: two.run(chain(3), X, strategy="pipeline"))
    jobs = [two.submit(chain(3), X + np.float32(number / 100), strategy="pipeline") for number in range(12)]
    for number, job in enumerate(jobs):
        expected = by_numpy(chain(3), X + np.float32(number / 100))
        np.testing.assert_array_equal(job.result(timeout_s=SOON_S), expected)


def test_different_functions_from_many_threads_do_not_disturb_each_other(two: Mesh) -> None:
    def call(number: int) -> Any:
        return two.run(lambda x: mnp.sum(x, axis=0) * number, X)

    with ThreadPoolExecutor(6) as pool:
        for number, found in enumerate(pool.map(call, range(18))):
            np.testing.assert_allclose(found, X.sum(axis=0) * number, rtol=1e-5)


def test_an_error_inside_an_op_names_the_worker_and_the_op() -> None:
    """A worker that may plan with more memory than its system gives it."""

    def too_large(x: Any) -> Any:
        return mnp.sum(mnp.tanh(mnp.broadcast_to(x, (1 << 12, 1 << 20))))  # 16 GiB

    with Mesh.builder().mesh("oom").local(1, "cpu", max_memory="1TiB").node_timeout(PATIENT_S).build() as mesh:
        (host,) = children(mesh.nodes[0].pid)
        resource.prlimit(host, resource.RLIMIT_AS, (8 << 30, 8 << 30))
        with pytest.raises(errors.OutOfMemory) as caught:
            mesh.run(too_large, np.ones((1 << 20,), np.float32))
        assert caught.value.node == "local-0"
        assert caught.value.op in ("tanh", "broadcast")
        assert "[worker local-0]" in str(caught.value)
        np.testing.assert_array_equal(mesh.run(lambda x: x + 1, X), X + 1)


def test_a_mesh_that_is_closed_ends_its_jobs() -> None:
    mesh = Mesh.builder().mesh("closing").local(1, "cpu").node_timeout(PATIENT_S).build()
    job = mesh.submit(endless, X)
    with pytest.raises(errors.DeadlineExceeded):
        job.result(timeout_s=0.2)
    mesh.close()
    with pytest.raises(errors.Cancelled):
        job.result(timeout_s=SOON_S)
    mesh.close()


def test_a_job_reports_and_is_cancelled_at_any_time() -> None:
    mesh = Mesh.builder().mesh("anytime").local(1, "cpu").node_timeout(PATIENT_S).build()
    job = mesh.submit(lambda x: x + 1, X)
    assert job.report().seconds >= 0, "a job that has hardly begun has a report too"
    job.result(timeout_s=SOON_S)
    assert list(job.report().workers) == ["local-0"]
    mesh.close()
    job.cancel()
    with pytest.raises(errors.ConfigError, match="this mesh is closed"):
        mesh.watch(print)
    with pytest.raises(errors.ConfigError, match="this mesh is closed"):
        mesh.__enter__()


def test_calls_of_many_threads_end_when_the_mesh_is_closed() -> None:
    mesh = Mesh.builder().mesh("ending").local(1, "cpu").node_timeout(PATIENT_S).build()
    ends: list[Exception] = []

    def call(mode: str) -> None:
        try:
            while True:
                mesh.run(chain(3), X[:64, :64], mode=mode)
        except (errors.Cancelled, errors.ConfigError) as error:
            ends.append(error)

    with ThreadPoolExecutor(6) as pool:
        calls = [pool.submit(call, mode) for mode in ("on", "off") * 3]
        mesh.run(chain(3), X)
        closing = threading.Thread(target=mesh.close)
        closing.start()
        mesh.close()
        closing.join(SOON_S)
        for each in calls:
            each.result(SOON_S)
    assert len(ends) == 6


def test_a_report_names_every_plan_its_call_went_through() -> None:
    """On a fast machine a worker may have done its part before it is killed; then longer parts show it."""
    assert any(went_through_two_plans(times) for times in (200, 1_000, 5_000))


def went_through_two_plans(times: int) -> bool:
    with Mesh.builder().mesh("plans").local(2, "cpu").node_timeout(PATIENT_S).build() as mesh:
        compiled = mesh.compile(chain(times), X, strategy="pipeline")
        expected = compiled(X)
        until_by_the_same_plan(mesh, lambda: compiled(X))
        assert mesh.report().generations == (mesh.report().generation,)
        began = threading.Event()
        mesh.watch(lambda event: began.set() if event["kind"] == "began" else None)
        with ThreadPoolExecutor(1) as pool:
            calling = pool.submit(compiled, X)
            assert began.wait(SOON_S)
            os.kill(mesh.nodes[0].pid, signal.SIGKILL)
            np.testing.assert_array_equal(calling.result(SOON_S), expected)
        went = mesh.report().generations
        assert list(went) == sorted(set(went)) and went[-1] == mesh.report().generation
        return len(went) > 1


def test_calls_in_this_process_stop_when_they_are_cancelled(two: Mesh) -> None:
    """As many as this process has threads for: the next call would wait for one."""
    graph = trace(chain(5_000), X)
    jobs = [two.submit(graph, X, mode="off") for _ in range((os.cpu_count() or 1) + 4)]
    with pytest.raises(errors.DeadlineExceeded):
        jobs[0].result(timeout_s=0.3)
    for job in jobs:
        job.cancel()
    for job in jobs:
        with pytest.raises(errors.Cancelled):
            job.result(timeout_s=SOON_S)
    np.testing.assert_array_equal(two.submit(lambda x: x + 1, X, mode="off").result(timeout_s=SOON_S), X + 1)


def test_a_watcher_that_asks_its_own_mesh_is_told_and_not_stuck(two: Mesh) -> None:
    said: list[str] = []

    def watcher(event: Any) -> None:
        try:
            two.run(lambda x: x + 1, X)
        except errors.ConfigError as error:
            said.append(str(error))

    two.watch(watcher)
    np.testing.assert_array_equal(two.run(lambda x: x * 3, X), X * 3)
    assert said[0].startswith("a watcher cannot wait for its own mesh")


@pytest.fixture
def few_files() -> Iterator[int]:
    """This process, and those that it starts, begin with a low limit of open files: the highest it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    yield min(WANTED[0], hard if hard != resource.RLIM_INFINITY else WANTED[0])
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_every_process_has_room_for_files_and_needs_none_for_every_tensor_it_holds(few_files: int) -> None:
    with Mesh.builder().mesh("files").local(1, "cpu").node_timeout(PATIENT_S).build() as mesh:
        (host,) = children(mesh.nodes[0].pid)
        for pid in (os.getpid(), mesh.nodes[0].pid, host):
            assert resource.prlimit(pid, resource.RLIMIT_NOFILE)[0] == few_files
        resource.prlimit(host, resource.RLIMIT_NOFILE, (64, 64))
        large = mesh.put([np.full(MAPPED_BYTES_MIN // 4, number, np.float32) for number in range(70)])
        assert mesh.run(lambda tree: sum(tree), large)[0] == 35 * 69
        for number in range(80):
            held = mesh.put(np.full((8,), number, np.float32))
            np.testing.assert_array_equal(mesh.run(lambda x: x + 1, held), np.full(8, number + 1))
        many = mesh.put([np.full((8,), number, np.float32) for number in range(600)])
        np.testing.assert_array_equal(mesh.run(lambda tree: sum(tree), many), np.full(8, 599 * 300))


@pytest.mark.parametrize("mode", ["on", "off"])
@pytest.mark.parametrize("size_bytes", [8, INLINE_BYTES_MAX + 8, READ_BYTES_MAX, READ_BYTES_MAX + 8])
def test_results_are_the_callers_own_whatever_their_size(two: Mesh, mode: str, size_bytes: int) -> None:
    x = np.ones(size_bytes // 8, np.float64)
    program = two.compile(lambda x: (x + 1, x, x + 2), x, mode=mode)
    program(x)
    files, held = psutil.Process().num_fds(), []
    for _ in range(8):
        first, same, other = program(x)
        first += 1
        same -= 1
        held += [first, same, other]
        assert first[0] == other[0] == 3 and same[0] == 0 and x[0] == 1
    assert psutil.Process().num_fds() <= files + 4, "a copy that is on its way may have a file open, and no other"


def test_a_submitted_job_has_the_values_its_arguments_had_then(two: Mesh) -> None:
    for size, mode in ((8, "on"), (1 << 20, "on"), (1 << 20, "off")):
        for number in range(5):
            x = np.full(size, number, np.float32)
            job = two.submit(lambda x: x + 1, x, mode=mode)
            x.fill(-1)
            np.testing.assert_array_equal(job.result(timeout_s=SOON_S), np.full(size, number + 1, np.float32))


def test_tasks_of_an_async_mesh_that_is_closed_get_a_typed_error() -> None:
    async def use() -> None:
        mesh = await AsyncMesh.builder().mesh("closing-tasks").local(1, "cpu").node_timeout(PATIENT_S).build_async()
        task = asyncio.create_task(mesh.run(endless, X))
        await asyncio.sleep(0.3)
        await asyncio.gather(mesh.close(), mesh.close())
        with pytest.raises(errors.Cancelled, match="the mesh was closed"):
            await task
        for call in (mesh.run(chain(1), X), mesh.submit(chain(1), X), mesh.put(X), mesh.plan(chain(1), X)):
            with pytest.raises(errors.ConfigError, match="this mesh is closed"):
                await call

    asyncio.run(use())
