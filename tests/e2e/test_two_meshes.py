"""Two meshes on one host stay apart by their names, and workers that announce themselves join as they come and go."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
from support.lan.multicast import needs_multicast
from support.processes.commands import (
    PATIENT_S,
    Daemon,
    daemon,
    environment,
    node_states,
    run,
    until_they_work,
    wait_for,
)

from mesh import Mesh, errors
from mesh.commands import exit_codes

pytestmark = needs_multicast
X = np.ones((8, 8), np.float32)
APPEAR_S = 120.0


def unique(name: str) -> str:
    """A mesh of this test alone: announcements of other runs are seen too."""
    return f"{name}-{secrets.token_hex(4)}"


@contextmanager
def announced(folder: Path, mesh: str, *names: str) -> Iterator[list[Daemon]]:
    """Workers that nobody was told of."""
    words = ("worker", "--port", "0", "--device", "cpu", "--mesh", mesh)
    env = environment(folder)
    with ExitStack() as stack:
        yield [
            stack.enter_context(daemon(*words, "--name", name, env=env, log=folder / f"{name}.log")) for name in names
        ]


def names(mesh: Mesh) -> list[str]:
    return [node.name for node in mesh.nodes if node.state == "healthy"]


def test_announced_workers_are_found_and_later_ones_join_and_get_work(tmp_path: Path) -> None:
    name = unique("found")
    two = Mesh.builder().mesh(name).discover(wait_s=APPEAR_S, min_nodes=2).node_timeout(PATIENT_S)
    with announced(tmp_path, name, "first", "second"), two.build() as mesh:
        assert names(mesh) == ["first", "second"]
        with announced(tmp_path, name, "late"):
            wait_for(lambda: "late" in names(mesh))
            found = until_they_work(mesh, 3, lambda: mesh.run(lambda x: (x @ x + 1) @ x, X, strategy="pipeline"))
            np.testing.assert_allclose(found, (X @ X + 1) @ X)
            assert "late" in mesh.report().workers


def test_meshes_of_two_names_on_one_host_stay_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    red, blue = unique("red"), unique("blue")
    with announced(tmp_path, red, "r"), announced(tmp_path, blue, "b") as (worker,):
        with Mesh.builder().mesh(red).discover(wait_s=APPEAR_S).node_timeout(PATIENT_S).build() as mesh:
            assert names(mesh) == ["r"]
            monkeypatch.setenv("MESH_NAME", blue)
            with Mesh.builder().discover(wait_s=APPEAR_S).node_timeout(PATIENT_S).build() as other:
                assert names(other) == ["b"]
                assert names(mesh) == ["r"]
        with pytest.raises(errors.WrongMesh, match=f"{red}.*{blue}.*Give both the same --mesh NAME"):
            Mesh.builder().mesh(red).node(worker.address).build()


def refused(mesh: str) -> str:
    """What is said where no worker of a mesh is to be had within two seconds."""
    with pytest.raises(errors.ConnectFailed, match="0 of at least 1") as caught:
        Mesh.builder().mesh(mesh).discover(wait_s=2).build()
    return str(caught.value)


def test_a_worker_that_is_busy_joins_once_its_coordinator_is_gone(tmp_path: Path) -> None:
    name = unique("busy")
    with announced(tmp_path, name, "w") as (worker,):
        first = Mesh.builder().mesh(name).node(worker.address).node_timeout(PATIENT_S).build()
        wait_for(lambda: "this worker serves coordinator" in refused(name))
        with Mesh.builder().mesh(name).discover(wait_s=0.1, min_nodes=0).node_timeout(PATIENT_S).build() as second:
            assert second.nodes == ()
            first.close()
            wait_for(lambda: names(second) == ["w"])


def test_too_few_workers_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(errors.ConnectFailed, match=r"0 of at least 1 worker of mesh 'nobody.*Start mesh-worker"):
        Mesh.builder().mesh(unique("nobody")).discover(wait_s=0.5).build()
    with Mesh.builder().mesh(unique("nobody")).discover(wait_s=0.5, min_nodes=0).build() as mesh:
        assert mesh.nodes == ()
        np.testing.assert_array_equal(mesh.run(lambda x: x + 1, X), X + 1)
        assert mesh.report().reasons == ("computed in this process",)


def test_a_coordinator_daemon_takes_in_workers_as_they_announce_themselves(tmp_path: Path) -> None:
    env = environment(tmp_path, MESH_NAME=unique("served"))
    worker = ("worker", "--port", "0", "--device", "cpu", "--name", "w")
    with daemon(
        "coord", "serve", "--port", "0", "--preset", "test", env=env, log=tmp_path / "coordinator.log"
    ) as coordinator:
        with daemon(*worker, env=env, log=tmp_path / "w.log") as each:
            wait_for(lambda: node_states(coordinator) == {"w": "healthy"})
            assert each.stop(15) == 0
        wait_for(lambda: node_states(coordinator) == {"w": "left"})
        with daemon(*worker, env=env, log=tmp_path / "again.log"):
            wait_for(lambda: node_states(coordinator) == {"w": "healthy"})
        asked = run("coord", "nodes", "--mesh", "other", "--coordinator", coordinator.address, env=env)
        assert asked.returncode == exit_codes.USAGE
        assert "are no member of mesh 'other'" in asked.stderr
