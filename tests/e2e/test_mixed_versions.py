"""A mesh of two versions of graph-mesh: the worker and the client of an older release beside today's, as processes.

They are members of one mesh, whose authority is on this machine.  Without one they do not talk: the older release does
not prove which user runs it.
The older release speaks an older minor version of the protocol and lacks or has other rows of many ops, `dot` and
`add` among them.  So it is a member, it gets parts of ops that both have, and no others.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from support.processes.commands import PATIENT_S, ROOT, RUN_S, Daemon, daemon, environment, node_states, run, wait_for

import mesh.numpy as mnp
from coordinator.authority.authority import Authority
from mesh import Auto, Mesh, errors
from wire.protocol import messages
from wire.protocol.versions import PROTOCOL

OLDER = ("1.0",)
X = np.linspace(-3, 3, 512, dtype=np.float32).reshape(8, 64)
W = np.linspace(-1, 1, 64 * 64, dtype=np.float32).reshape(64, 64)

OLDER_CLIENT = """
import sys
import numpy as np
import mesh.numpy as mnp
from mesh import Mesh, errors
from wire.versions import PROTOCOL, text

x = np.load(sys.argv[2])
with Mesh.builder().mesh("mixed").node(sys.argv[1]).node_timeout(60).build() as mesh:
    np.save(sys.argv[3], mesh.run(lambda x: mnp.maximum(mnp.exp2(x), mnp.floor(x)), x))
    assert list(mesh.report().workers) == ["newer"]
    try:
        mesh.run(lambda x: x @ x.T, x)
    except errors.PlacementError as refused:
        print(text(PROTOCOL), refused.op.split()[0])
"""


FIELDS = """
import json
import msgspec

try:
    import wire.protocol.messages as messages
except ImportError:  # an older release
    import wire.messages as messages

kinds = [kind for kind in vars(messages).values() if isinstance(kind, type) and issubclass(kind, msgspec.Struct)]
print(json.dumps({kind.__name__: kind.__struct_fields__ for kind in kinds if kind is not msgspec.Struct}))
"""


def shared_ops(x: Any) -> Any:
    """Only ops whose rows both versions have."""
    return mnp.maximum(mnp.exp2(x), mnp.floor(x))


def expected_of_shared_ops() -> Any:
    return np.maximum(np.exp2(X), np.floor(X))


def newer_ops(x: Any) -> Any:
    return shared_ops(x) @ W


@dataclass(frozen=True, slots=True)
class Mixed:
    """Two workers on loopback, `older` and `newer`; the last test that has them kills `newer`."""

    older: Daemon
    newer: Daemon
    packages: Path
    home: dict[str, str]  # what tells a process of this mesh where its authority is

    def mesh(self) -> Mesh:
        builder = Mesh.builder().mesh("mixed").node(self.older.address).node(self.newer.address)
        return builder.node_timeout(PATIENT_S).build()


@pytest.fixture(params=OLDER, scope="module")
def packages(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the older release's packages."""
    folder = tmp_path_factory.mktemp("older")
    with tarfile.open(ROOT / "tests" / "older" / f"protocol-{request.param}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def mixed(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mixed]:
    folder = tmp_path_factory.mktemp("mixed")
    home = environment(folder)
    Authority(Path(home["XDG_STATE_HOME"]) / "graph-mesh" / "mixed" / "@authority", "mixed")
    with ExitStack() as stack:
        words = ("--device", "cpu", "--mesh", "mixed", "--no-mdns", "--port", "0")
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("XDG_STATE_HOME", home["XDG_STATE_HOME"])

        def started(name: str, source: Path) -> Daemon:
            env = {**environment(folder / name, PYTHONPATH=str(source)), "XDG_STATE_HOME": home["XDG_STATE_HOME"]}
            log = folder / f"{name}.log"
            return stack.enter_context(daemon("worker", "--name", name, *words, env=env, log=log))

        known = {"XDG_STATE_HOME": home["XDG_STATE_HOME"]}
        yield Mixed(started("older", packages), started("newer", ROOT), packages, known)


def test_without_a_token_the_versions_do_not_talk_and_say_why(packages: Path, tmp_path: Path) -> None:
    """The older one proves no user, as an imposter would not."""
    words = ("--device", "cpu", "--mesh", "alone", "--no-mdns", "--port", "0")
    env = environment(tmp_path, PYTHONPATH=str(packages))
    says = r"does not prove which user runs it.*upgrade graph-mesh"
    with (
        daemon("worker", "--name", "older", *words, env=env, log=tmp_path / "older.log") as older,
        pytest.raises(errors.ConnectFailed, match=says),
    ):
        Mesh.builder().mesh("alone").node(older.address).build()


def test_parts_of_ops_that_both_versions_have_run_on_both_and_others_on_the_newer_worker(mixed: Mixed) -> None:
    with mixed.mesh() as mesh:
        assert {node.name: node.state for node in mesh.nodes} == {"older": "healthy", "newer": "healthy"}
        found = mesh.run(shared_ops, X, strategy=Auto(use_all=True))
        assert sorted(mesh.report().workers) == ["newer", "older"]
        np.testing.assert_array_equal(found, expected_of_shared_ops())
        found = mesh.run(newer_ops, X, strategy="pipeline")
        assert list(mesh.report().workers) == ["newer"]
        np.testing.assert_allclose(found, expected_of_shared_ops() @ W, rtol=1e-5, atol=1e-4)


def test_an_older_client_works_with_a_newer_worker(mixed: Mixed, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    words = [mixed.newer.address, str(tmp_path / "x.npy"), str(tmp_path / "y.npy")]
    env = {**environment(tmp_path / "client", PYTHONPATH=str(mixed.packages)), **mixed.home}
    done = subprocess.run(
        [sys.executable, "-P", "-c", OLDER_CLIENT, *words],
        env=env, capture_output=True, text=True, timeout=RUN_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    version, op = done.stdout.split()
    assert version in OLDER and op == "dot"
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), expected_of_shared_ops())


def test_older_clients_hear_of_the_workers_of_a_newer_coordinator(packages: Path, tmp_path: Path) -> None:
    env = environment(tmp_path, MESH_NAME="newer")
    with ExitStack() as stack:
        words = ("serve", "--port", "0", "--no-mdns", "--node-timeout", f"{PATIENT_S:g}")
        coordinator = stack.enter_context(daemon("coord", *words, env=env, log=tmp_path / "coordinator.log"))
        env["MESH_ADDRESS"] = coordinator.address
        words = ("--device", "cpu", "--port", "0", "--no-mdns", "--name", "only", "--peer", coordinator.address)
        stack.enter_context(daemon("worker", *words, env=env, log=tmp_path / "worker.log"))
        wait_for(lambda: node_states(coordinator) == {"only": "healthy"})
        done = run("coord", "nodes", "--json", "--verbose", env=env | {"PYTHONPATH": str(packages)})
        assert done.returncode == 0, done.stderr
        (node,) = json.loads(done.stdout)["nodes"]
        assert (node["name"], node["state"], node["devices"][0]["given_up"]) == ("only", "healthy", False)


def test_an_older_worker_cannot_be_asked_for_its_kernels(mixed: Mixed) -> None:
    with mixed.mesh() as mesh:
        too_old = r"older is too old to explain graphs: it speaks protocol 1\.0.*Upgrade graph-mesh on older"
        with pytest.raises(errors.VersionMismatch, match=too_old):
            mesh.explain(shared_ops, X, worker="older")
        assert mesh.explain(shared_ops, X, worker="newer").flops > 0


def test_the_older_worker_takes_over_what_it_can_and_the_rest_is_refused_by_op(mixed: Mixed) -> None:
    with mixed.mesh() as mesh:
        mesh.run(shared_ops, X, strategy=Auto(use_all=True))
        mixed.newer.process.kill()
        found = mesh.run(shared_ops, X)
        assert list(mesh.report().workers) == ["older"]
        np.testing.assert_array_equal(found, expected_of_shared_ops())
        with pytest.raises(errors.PlacementError) as refused:
            mesh.run(newer_ops, X)
        assert refused.value.op == "dot (node 5)"


def test_no_message_of_one_version_could_not_be_read_by_the_other(mixed: Mixed) -> None:
    """After the tests above: a message that cannot be read ends its link, and the log says so."""
    for each in (mixed.older, mixed.newer):
        assert "not a message" not in each.log.read_text()


def test_every_field_and_message_that_is_new_is_known_to_be(packages: Path, tmp_path: Path) -> None:
    def fields(source: Path) -> dict[str, list[str]]:
        env = environment(tmp_path, PYTHONPATH=str(source))
        done = subprocess.run([sys.executable, "-P", "-c", FIELDS], env=env, capture_output=True, check=True)
        found: dict[str, list[str]] = json.loads(done.stdout)
        return found

    older, newer = fields(packages), fields(ROOT)
    assert older.keys() <= newer.keys()
    appended = {name: len(newer[name]) - len(had) for name, had in older.items() if newer[name] != had}
    assert all(newer[name][: len(had)] == had for name, had in older.items())
    assert appended == {kind.__name__: count for kind, count in messages.APPENDED.items() if count}
    new = {kind.__name__ for kind in get_args(messages.AnyMessage)} - older.keys()
    assert new == {kind.__name__ for kind in messages.SINCE_1}


def test_there_is_an_older_release_of_every_minor_version() -> None:
    assert tuple(f"{PROTOCOL[0]}.{minor}" for minor in range(PROTOCOL[1])) == OLDER
