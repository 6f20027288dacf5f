"""Jobs outlive their coordinator: killed at any step of writing its journal, it keeps every promise it made.

python tests/e2e/test_durable_jobs.py KILLS        one life per kill, and the time to have 8 workers back
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.endless import endless
from support.processes import site as sites
from support.processes.commands import (
    RUN_S,
    STATE_HOME,
    Daemon,
    asked,
    command,
    environment,
    job_log,
    jobs,
    node_states,
    run,
    wait_for,
)
from support.processes.durable import MESH, attached, free_port, killed_often, workers
from support.processes.small_disk import fill, small_disk

import mesh.numpy as mnp
from mesh import errors, to_device, trace
from mesh.backends.remote import Remote
from mesh.commands import exit_codes
from mesh.core.handle import Handle
from wire.ir.codec import hash_array
from wire.ir.dtypes import F32
from wire.ir.types import TensorType

X = np.linspace(-1, 1, 300 * 300, dtype=np.float32).reshape(300, 300)  # 360 kB: travels and is kept as a file
STEPS_ALL = 120  # kill at each of the first steps of a life in turn, which is beyond its start; then at any
STEPS_MAX = 400


def layers(times: int) -> Any:
    def work(x: Any, w: Any) -> Any:
        for _ in range(times):
            x = mnp.tanh(x @ w)
        return x

    return trace(work, X, X)


SHORT, ENDLESS = layers(1), trace(endless, X, X)
TIMES = (200, 2_000, 10_000, 40_000)  # of layers: the first may be over at once, the last take half a minute


def serving(folder: Path, port: int, *more: str) -> AbstractContextManager[Daemon]:
    """`mesh-coord serve` on a port, with what it kept in the folder."""
    return sites.serving(folder, environment(folder, MESH_NAME=MESH), *more, port=port)


@contextmanager
def site(folder: Path, count: int = 2) -> Iterator[int]:
    """Workers that dial the port that is given."""
    port = free_port()
    with workers(folder, port, count):
        yield port


def submitted(coordinator: Daemon, graph: Any, job: str, detach: bool = True, x: Any = X) -> str:
    return asked(coordinator, lambda remote: remote.submit(graph, {"x": x, "w": X}, {}, detach=detach, job=job))


def result(coordinator: Daemon, job: str) -> Any:
    outputs, _ = asked(coordinator, lambda remote: remote.result(job))
    (array,) = outputs.values()
    return array


def kept(folder: Path) -> list[Path]:
    return list(folder.glob(f"{STATE_HOME}/graph-mesh/{MESH}/@coordinator/jobs/content/*"))


# -- kills


def test_killed_at_any_step_of_writing_it_keeps_its_promises(tmp_path: Path) -> None:
    rng = random.Random(tmp_path.name)
    steps = [rng.randrange(1, 60) for _ in range(6)] + [rng.randrange(60, STEPS_MAX) for _ in range(4)]
    promises = asyncio.run(killed_often(tmp_path, steps))
    assert promises.answered.keys() == promises.accepted.keys()


def test_a_running_job_goes_on_after_a_kill_and_results_stay(tmp_path: Path) -> None:
    with site(tmp_path) as port:
        with serving(tmp_path, port) as first:
            wait_for(lambda: len(node_states(first)) == 2)
            submitted(first, SHORT, "over")
            before = result(first, "over")
        for rounds, times in enumerate(TIMES, 1):
            job = f"under-way-{times}"
            with serving(tmp_path, port) as first:
                wait_for(lambda: len(node_states(first)) == 2)
                submitted(first, layers(times), job)
                wait_for(lambda job=job: "began" in job_log(first, job))
                log = job_log(first, "over")
                first.stop(signal.SIGKILL)
            with serving(tmp_path, port) as second:
                np.testing.assert_array_equal(result(second, "over"), before)
                assert job_log(second, "over") == log
                np.testing.assert_allclose(result(second, job), expected(times), rtol=1e-3, atol=1e-4)
                assert "done" in job_log(second, job)
                assert set(jobs(second).values()) == {"done"}
                same = submitted(second, SHORT, "over")
                assert (same, len(jobs(second))) == ("over", 1 + rounds), "it came before"
                if was_cut_short(second, job):
                    return
        raise AssertionError("every job was over before its coordinator was killed")


def was_cut_short(coordinator: Daemon, job: str) -> bool:
    """Whether the job was running when the coordinator before this one ended; one that was over is no proof."""
    return "queued again: the coordinator started anew" in job_log(coordinator, job)


def expected(times: int) -> Any:
    """What so many layers make of X: from the 20th on they alternate between two values."""
    x = X
    for _ in range(times if times < 100 else 100 + times % 2):
        x = np.tanh(x @ X)
    return x


def test_workers_come_back_with_what_they_hold(tmp_path: Path) -> None:
    weights = [np.full((300, 300), 0.001 * place, np.float32) for place in range(4)]
    handles = [Handle(hash_array(array), TensorType(array.shape, F32), local=array) for array in weights]

    def two_halves(p: Any, x: Any) -> Any:
        """On workers that are named, since which would be chosen goes by what was measured just then."""
        half = to_device(x, "w0") @ p[0] @ p[1]
        return to_device(half, "w1") @ p[2] @ p[3]

    graph = trace(two_halves, handles, X)
    params = dict(zip(graph.param_types, weights, strict=True))

    async def weigh(remote: Remote) -> dict[str, int]:
        """Bytes of weights by where the workers had them from."""
        job = await remote.submit(graph, {"x": X}, params, strategy="pipeline")
        _, report = await remote.result(job)
        rows = [worker["weight_bytes"] for worker in report["workers"].values()]
        return {source: sum(row[source] for row in rows) for source in ("socket", "shared", "disk", "resident")}

    with site(tmp_path) as port:
        with serving(tmp_path, port) as first:
            wait_for(lambda: len(node_states(first)) == 2)
            cold = asked(first, weigh)
            assert cold["socket"] + cold["shared"] == 4 * X.nbytes
            first.stop(signal.SIGKILL)
        with serving(tmp_path, port) as second:
            wait_for(lambda: len(node_states(second)) == 2)
            warm = asked(second, weigh)
            assert warm["socket"] + warm["shared"] == 0
            assert warm["disk"] + warm["resident"] == 4 * X.nbytes


def test_a_stop_in_good_order_ends_no_job_either(tmp_path: Path) -> None:
    with site(tmp_path) as port:
        with serving(tmp_path, port) as first:
            wait_for(lambda: len(node_states(first)) == 2)
            submitted(first, ENDLESS, "endless")
            wait_for(lambda: "began" in job_log(first, "endless"))
            assert first.stop(signal.SIGTERM) == exit_codes.OK
        with serving(tmp_path, port) as second:
            wait_for(lambda: jobs(second) == {"endless": "running"})
            asked(second, lambda remote: remote.cancel("endless"))
            assert not kept(tmp_path), "what it needed is freed"
            second.stop(signal.SIGKILL)
        with serving(tmp_path, port) as third:
            assert jobs(third) == {"endless": "cancelled"}
            with pytest.raises(errors.Cancelled, match="the job was cancelled"):
                result(third, "endless")


# -- clients


def test_a_submit_under_way_does_not_notice_that_its_coordinator_was_killed(tmp_path: Path) -> None:
    env = environment(tmp_path, MESH_NAME=MESH)
    np.save(tmp_path / "x.npy", X)
    with site(tmp_path) as port:
        env["MESH_ADDRESS"] = f"127.0.0.1:{port}"
        assert any(killed_meanwhile(tmp_path, port, env, times) for times in TIMES)


def killed_meanwhile(folder: Path, port: int, env: dict[str, str], times: int) -> bool:
    """A submit gets its result although its coordinator is killed; whether that was before the job was over."""
    layers(times).save(folder / "long.wire")
    into = f"out-{times}"
    words = command("coord", "submit", "long.wire", "--input", "x=x.npy", "--input", "w=x.npy", "--output", into)
    with serving(folder, port) as first:
        wait_for(lambda: len(node_states(first)) == 2)
        before = set(jobs(first))
        client = subprocess.Popen(words, env=env, cwd=folder, stderr=subprocess.PIPE, text=True)
        wait_for(lambda: any("began" in job_log(first, job) for job in set(jobs(first)) - before))
        first.stop(signal.SIGKILL)
    with serving(folder, port) as second:
        told = client.communicate(timeout=RUN_S)[1]
        assert client.returncode == 0, told
        (output,) = (folder / into).iterdir()
        np.testing.assert_allclose(np.load(output), expected(times), rtol=1e-3, atol=1e-4)
        (job,) = set(jobs(second)) - before
        return was_cut_short(second, job)


def test_a_job_counts_once_and_its_id_is_its_own(tmp_path: Path) -> None:
    with site(tmp_path, 1) as port, serving(tmp_path, port) as coordinator:
        wait_for(lambda: len(node_states(coordinator)) == 1)
        assert [submitted(coordinator, SHORT, "mine") for _ in range(3)] == ["mine"] * 3
        with pytest.raises(errors.InputError, match="there is a job mine with another content"):
            submitted(coordinator, SHORT, "mine", x=X + 1)
        with pytest.raises(errors.InputError, match="is no id for a job"):
            submitted(coordinator, SHORT, "../mine")
        assert jobs(coordinator).keys() == {"mine"}


# -- the disk


def test_what_was_kept_long_enough_leaves_nothing(tmp_path: Path) -> None:
    with site(tmp_path, 1) as port, serving(tmp_path, port, "--keep-results", "2s") as coordinator:
        wait_for(lambda: len(node_states(coordinator)) == 1)
        submitted(coordinator, ENDLESS, "endless")
        wait_for(lambda: jobs(coordinator) == {"endless": "running"})
        assert kept(tmp_path), "its values are files"
        submitted(coordinator, SHORT, "short", x=X * 2)
        asked(coordinator, lambda remote: remote.cancel("endless"))
        wait_for(lambda: jobs(coordinator) == {} and not kept(tmp_path))


def test_a_full_disk_is_said_and_promises_nothing(tmp_path: Path) -> None:
    """No file may grow beyond what a result takes: a job with longer inputs is refused, others go on."""
    longer = np.zeros((1000, 1000), np.float32)
    big = trace(lambda x, w: mnp.sum(x) + mnp.sum(w), longer, X)
    with site(tmp_path, 1) as port:
        with ExitStack() as stack:
            with files_up_to(2 * 10**6):
                coordinator = stack.enter_context(serving(tmp_path, port))
            wait_for(lambda: len(node_states(coordinator)) == 1)
            submitted(coordinator, layers(TIMES[0]), "before")
            with pytest.raises(errors.NotDurable, match="a job's values cannot be written"):
                submitted(coordinator, big, "big", x=longer)
            assert result(coordinator, "before").shape == X.shape
            submitted(coordinator, SHORT, "after")
            assert result(coordinator, "after").shape == X.shape
            assert jobs(coordinator) == {"before": "done", "big": "failed", "after": "done"}
            coordinator.stop(signal.SIGKILL)
        with serving(tmp_path, port) as again:
            assert jobs(again) == {"before": "done", "after": "done"}


@contextmanager
def files_up_to(size_bytes: int) -> Iterator[None]:
    """Processes that are started meanwhile can make no file longer than this."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_job_that_ends_on_a_full_disk_is_answered_and_kept_once_there_is_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / STATE_HOME, "6m") as disk, site(tmp_path, 1) as port:
        with serving(tmp_path, port) as first:
            wait_for(lambda: len(node_states(first)) == 1)
            ends = {}
            for times in TIMES:
                job = f"of-{times}"
                submitted(first, layers(times), job)
                wait_for(lambda job=job: "began" in job_log(first, job))
                fill(disk / "filler")
                ends[job] = result(first, job)
                np.testing.assert_allclose(ends[job], expected(times), rtol=1e-3, atol=1e-4)
                if "not kept yet" in job_log(first, job):
                    break
                (disk / "filler").unlink()  # it was over before the disk was full
            assert "not kept yet" in job_log(first, job)
            with pytest.raises(errors.NotDurable, match="Make room"):
                submitted(first, SHORT, "b")
            (disk / "filler").unlink()
            submitted(first, SHORT, "c")
            ends["c"] = result(first, "c")
            names = {hash_array(array).hex() for array in ends.values()}
            wait_for(lambda: {path.name for path in disk.rglob("content/*")} == names)  # inputs are not needed any more
            first.stop(signal.SIGKILL)
        with serving(tmp_path, port) as second:
            assert jobs(second) == dict.fromkeys(ends, "done")
            for job, array in ends.items():
                np.testing.assert_array_equal(result(second, job), array)


def test_a_damaged_journal_is_refused_with_its_name_and_the_next_step(tmp_path: Path) -> None:
    with site(tmp_path, 1) as port:
        with serving(tmp_path, port) as coordinator:
            wait_for(lambda: len(node_states(coordinator)) == 1)
            submitted(coordinator, SHORT, "a")
            coordinator.stop(signal.SIGTERM)
        (database,) = tmp_path.rglob("jobs.sqlite")
        data = bytearray(database.read_bytes())
        data[data.index(b'"content"')] ^= 1
        database.write_bytes(data)
        env = environment(tmp_path, MESH_NAME=MESH)
        refused = run("coord", "serve", "--port", str(port), "--no-mdns", env=env)
        assert refused.returncode == exit_codes.FAILED
        assert "the journal of jobs is damaged" in refused.stderr and str(database) in refused.stderr
        assert "Restore" in refused.stderr.splitlines()[-1]


def test_an_altered_result_is_refused_and_the_rest_is_served(tmp_path: Path) -> None:
    with site(tmp_path, 1) as port:
        with serving(tmp_path, port) as coordinator:
            wait_for(lambda: len(node_states(coordinator)) == 1)
            for name, x in (("a", X), ("b", X * 2)):
                submitted(coordinator, SHORT, name, x=x)
                result(coordinator, name)
            coordinator.stop(signal.SIGTERM)
        content = np.tanh(X @ X)
        altered = min(kept(tmp_path), key=lambda path: abs(np.fromfile(path, np.float32) - content.ravel()).max())
        data = bytearray(altered.read_bytes())
        data[1000] ^= 1
        altered.write_bytes(data)
        with serving(tmp_path, port) as again:
            with pytest.raises(errors.BlobCorrupt, match=f"{altered.name}"):
                result(again, "a")
            np.testing.assert_allclose(result(again, "b"), np.tanh(X * 2 @ X), rtol=1e-3, atol=1e-4)


# -- any number


def all_steps(kills: int) -> Iterator[int]:
    rng = random.Random(1)
    for number in range(1, kills + 1):
        yield number if number <= STEPS_ALL else rng.randrange(1, STEPS_MAX)


@pytest.mark.long
def test_each_step_of_writing_in_turn(tmp_path: Path) -> None:
    promises = asyncio.run(killed_often(tmp_path, all_steps(200)))
    assert promises.answered.keys() == promises.accepted.keys()


def returning(folder: Path, count: int, rounds: int) -> list[float]:
    """Seconds from starting a coordinator that was killed until its workers are back, per round."""
    times = []
    with site(folder, count) as port:
        with serving(folder, port) as first:
            asyncio.run(attached(folder, port, count, within_s=120))
            first.stop(signal.SIGKILL)
        for _ in range(rounds):
            env = environment(folder, MESH_NAME=MESH)
            words = command("coord", "serve", "--port", str(port), "--host", "127.0.0.1", "--no-mdns", "--json")
            with (folder / "again.log").open("ab") as log:
                process = subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=log)
            try:
                times.append(asyncio.run(attached(folder, port, count)))
            finally:
                process.kill()
                process.wait()
    return times


def report(kills: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        times = returning(Path(folder), 8, 10)
        shown = f"median {statistics.median(times):.2f} s, longest {max(times):.2f} s of {len(times)}"
        print(f"8 workers are back after a kill, from starting the process: {shown}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        promises = asyncio.run(killed_often(Path(folder), all_steps(kills)))
    told = {"kills": kills, "accepted": len(promises.accepted), "answers": promises.asked, "lost": 0, "wrong": 0}
    print(json.dumps(told))


if __name__ == "__main__":
    report(int(sys.argv[1]))
