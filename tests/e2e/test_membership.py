"""Who is in a mesh: at home without a token, elsewhere with one, and out again within a second."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from support.machines.links import Recorder
from support.processes.commands import PATIENT_S, Daemon, daemon, environment, node_states, run, wait_for
from support.processes.durable import free_port
from support.processes.site import WORKER
from support.promised import within

from coordinator.authority.authority import Authority
from mesh import Mesh, errors, trace
from mesh.backends.enrolment import authority_folder, client_folder, client_membership, enrolled
from mesh.backends.remote import Remote
from mesh.commands import exit_codes
from wire.joining.credentials import Credentials
from wire.joining.join_port import PORT_OFFSET
from wire.link.identity import identity_here
from wire.link.link import Link
from wire.link.websocket_carrier import Endpoint
from wire.protocol.messages import AskJobs, AskNodes, Message, SubmitJob

MESH = "members"
SERVE = ("coord", "serve", "--no-mdns", "--node-timeout", f"{PATIENT_S:g}")
X = np.arange(6, dtype=np.float32)
REVOKED_S = 1.0  # promised


@dataclass(slots=True)
class Home:
    """A coordinator of one user, and environments of that user and of others."""

    folder: Path
    env: dict[str, str]
    coordinator: Daemon

    def elsewhere(self, name: str) -> dict[str, str]:
        """The environment of another machine's user, who is in no mesh."""
        return environment(self.folder / name)

    def token(self, *more: str) -> str:
        made = run("coord", "token", "create", *more, env=self.env)
        assert made.returncode == exit_codes.OK, made.stderr
        return made.stdout.strip()

    def refuses(self, name: str, token: str) -> str:
        """What a worker hears that this token does not let in."""
        words = (*WORKER, "--host", "127.0.0.1", "--peer", self.coordinator.address)
        done = run("worker", "join", *words[1:], "--name", name, env={**self.elsewhere(name), "MESH_TOKEN": token})
        assert done.returncode in (exit_codes.UNREACHABLE, exit_codes.USAGE), done.stderr
        assert len(done.stderr.strip().splitlines()) == 1 and token not in done.stderr
        return done.stderr


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    folder = tmp_path_factory.mktemp("home")
    env = environment(folder, MESH_NAME=MESH)
    with daemon(*SERVE, "--port", "0", env=env, log=folder / "coordinator.log") as coordinator:
        env["MESH_ADDRESS"] = coordinator.address
        yield Home(folder, env, coordinator)


def test_a_new_mesh_prints_a_token_and_a_later_start_does_not(tmp_path: Path) -> None:
    env = environment(tmp_path, MESH_NAME="first")
    for start in range(2):
        with daemon(*SERVE, "--port", "0", env=env, log=tmp_path / f"{start}.log") as coordinator:
            assert ("token" in coordinator.ready) == (start == 0)
            assert coordinator.stop(signal.SIGTERM) == 0
            assert "gm1_" not in coordinator.log.read_text(), "a token is in no log"


def test_at_home_nobody_needs_a_token_whoever_starts_first(tmp_path: Path) -> None:
    env = environment(tmp_path, MESH_NAME="any-order")
    port = free_port()
    peer = ("--peer", f"127.0.0.1:{port}")
    with (
        daemon(*WORKER, *peer, "--name", "early", env=env, log=tmp_path / "early.log"),
        daemon(*SERVE, "--port", str(port), env=env, log=tmp_path / "serve.log") as coordinator,
        daemon(*WORKER, *peer, "--name", "late", env=env, log=tmp_path / "late.log"),
    ):
        wait_for(lambda: node_states(coordinator) == {"early": "healthy", "late": "healthy"})


def test_several_commands_of_one_user_ask_at_once(home: Home) -> None:
    with ThreadPoolExecutor(5) as pool:
        done = list(pool.map(lambda _: run("coord", "nodes", "--json", env=home.env), range(5)))
    assert [each.returncode for each in done] == [exit_codes.OK] * 5, [each.stderr for each in done]


def test_a_worker_joins_with_a_token_once_and_is_thrown_out(home: Home) -> None:
    env = {**home.elsewhere("attic"), "MESH_TOKEN": home.token()}
    words = ("--port", "0", "--no-mdns", "--device", "cpu", "--name", "attic")
    joining = (*words, "--peer", home.coordinator.address)
    with daemon("worker", "join", *joining, env=env, log=home.folder / "attic.log") as attic:
        wait_for(lambda: node_states(home.coordinator).get("attic") == "healthy")
        assert attic.ready["mesh"] == MESH
        assert attic.stop(signal.SIGTERM) == 0
    del env["MESH_TOKEN"]
    with daemon("worker", *words, env=env, log=home.folder / "attic-again.log") as attic:
        wait_for(lambda: node_states(home.coordinator).get("attic") == "healthy")
        out = run("coord", "nodes", "revoke", "attic", env=home.env)
        assert out.returncode == exit_codes.OK and "attic" in out.stdout
        with within(REVOKED_S, "a node that was revoked loses its link"):
            wait_for(lambda: node_states(home.coordinator)["attic"] == "dead")
        wait_for(lambda: "did not accept our certificate" in attic.log.read_text())
    again = run("coord", "nodes", "revoke", "attic", env=home.env)
    assert again.returncode == exit_codes.USAGE and "there is no node 'attic'" in again.stderr


def test_a_worker_of_somebody_else_is_known_as_such_by_its_token(home: Home) -> None:
    token = home.token("--untrusted")
    listed = json.loads(run("coord", "token", "list", "--json", env=home.env).stdout)
    assert listed[0]["role"] == "worker, untrusted"
    env = {**home.elsewhere("theirs"), "MESH_TOKEN": token}
    words = ("--port", "0", "--no-mdns", "--device", "cpu", "--name", "theirs", "--peer", home.coordinator.address)
    with daemon("worker", "join", *words, env=env, log=home.folder / "theirs.log"):
        wait_for(lambda: node_states(home.coordinator).get("theirs") == "healthy")
    trusted = {member.name: not member.untrusted for member in authority_of(home).members()}
    assert not trusted.pop("theirs") and all(trusted.values())
    refused = run("coord", "token", "create", "--role", "client", "--untrusted", env=home.env)
    assert refused.returncode == exit_codes.USAGE and "only workers are trusted or not" in refused.stderr


def test_a_quiet_coordinator_prints_no_token(tmp_path: Path) -> None:
    env = environment(tmp_path, MESH_NAME="quiet")
    with daemon(*SERVE, "-q", "--port", "0", env=env, log=tmp_path / "serve.log") as coordinator:
        assert "token" not in coordinator.ready and "gm1_" not in coordinator.log.read_text()
        assert json.loads(run("coord", "token", "list", "--json", env=env).stdout) == []


def test_tokens_that_let_nobody_in_say_why(home: Home) -> None:
    once = home.token()
    env = {**home.elsewhere("once"), "MESH_TOKEN": once}
    words = ("worker", "join", *WORKER[1:], "--peer", home.coordinator.address, "--name", "once")
    with daemon(*words, env=env, log=home.folder / "once.log"):
        assert "used as often as it may be" in home.refuses("twice", once)
    withdrawn = home.token()
    listed = run("coord", "token", "list", "--json", env=home.env)
    ids = [row["id"] for row in json.loads(listed.stdout) if row["state"] == "open"]
    assert ids
    for each in ids:
        assert run("coord", "token", "revoke", each, env=home.env).returncode == exit_codes.OK
    assert "the token was revoked" in home.refuses("late", withdrawn)
    assert "join token" in home.refuses("mistyped", withdrawn[:-4])


def test_a_python_client_elsewhere_needs_a_token_the_first_time(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", home.elsewhere("laptop")["XDG_STATE_HOME"])
    builder = Mesh.builder().mesh(MESH).node(home.coordinator.address)
    with pytest.raises(errors.MeshError):
        builder.build()
    with builder.token(home.token("--role", "client")).build() as mesh:
        assert mesh.nodes is not None
    with builder.build() as mesh:
        np.testing.assert_array_equal(mesh.run(lambda x: x + 1, X, mode="off"), X + 1)
    monkeypatch.setenv("XDG_STATE_HOME", home.elsewhere("tablet")["XDG_STATE_HOME"])
    of_a_worker = builder.token(home.token())
    with pytest.raises(errors.JoinRefused):
        of_a_worker.build()


class Silent(Recorder):
    """Never answers, so that nothing comes of being asked to join."""

    async def on_request(self, link: Link, body: Message) -> Message:
        await asyncio.Event().wait()
        return body


def test_a_worker_may_not_submit_jobs_or_look_at_them(home: Home, tmp_path: Path) -> None:
    authority = Path(home.env["XDG_STATE_HOME"]) / "graph-mesh" / MESH / "@authority"
    credentials = enrolled(tmp_path, MESH, "worker", "curious", authority)
    assert credentials is not None
    graph = trace(lambda x: x + 1, X)

    async def ask(message: Message) -> None:
        identity = identity_here("worker", MESH, "curious", None, credentials.node_id)
        endpoint = Endpoint(identity, Silent(), credentials=credentials)
        try:
            link = await endpoint.dial("127.0.0.1", home.coordinator.ready["port"])
            await link.request(message)
        finally:
            await endpoint.close()

    for message in (SubmitJob(graph.encoded, (), ()), AskJobs(""), AskNodes()):
        with pytest.raises(errors.NotTrusted, match="only clients submit jobs"):
            asyncio.run(ask(message))


# -- clients that name a coordinator which does not take them: one line that says what is wrong and what to do


def asking(home: Home, folder: Path, address: str = "") -> errors.MeshError:
    """The error of a client whose state folder this is."""
    at = address or home.coordinator.address

    async def connected() -> None:
        host, _, port = at.rpartition(":")
        remote = await Remote.connect(MESH, host, int(port), client_membership(MESH, str(folder), where=at))
        await remote.close()

    with pytest.raises(errors.MeshError) as raised:
        asyncio.run(connected())
    assert "\n" not in str(raised.value) and raised.value.next_step
    return raised.value


def refused(home: Home, folder: Path) -> bool:
    try:
        asking(home, folder)
    except pytest.fail.Exception:  # it was let in
        return False
    return True


def client_by(authority: Authority, state: Path, name: str) -> Credentials:
    """A client that this authority let in."""
    made = Credentials(client_folder(MESH, str(state)))
    made.adopt(authority.admit_here(made.key.public, "client", name))
    return made


def authority_of(home: Home, hours: float = 0.0) -> Authority:
    """The mesh's own, so many hours ago."""
    folder = authority_folder(MESH, str(Path(home.env["XDG_STATE_HOME"]) / "graph-mesh"))
    return Authority(folder, MESH, lambda: time.time() - hours * 3600.0)


def test_a_client_that_is_no_member_is_told_how_to_become_one(home: Home, tmp_path: Path) -> None:
    said = str(asking(home, tmp_path))
    assert f"no member of mesh '{MESH}'" in said and f"mesh-coord join --coordinator {home.coordinator.address}" in said
    assert "mesh-coord token create --role client" in said


def test_a_client_that_names_the_wrong_mesh_is_told_which_it_is_in(home: Home, tmp_path: Path) -> None:
    other = Credentials(client_folder("garage", str(tmp_path)))
    made = Authority(tmp_path / "authority", "garage")
    other.adopt(made.admit_here(other.key.public, "client", "me"))
    assert "Name the one you are in: --mesh garage" in str(asking(home, tmp_path))


def test_a_client_of_another_authority_is_told_so(home: Home, tmp_path: Path) -> None:
    client_by(Authority(tmp_path / "theirs", MESH), tmp_path, "me")
    said = str(asking(home, tmp_path))
    assert f"mesh '{MESH}' has a new authority" in said or "an authority that this node does not know" in said
    assert "join again with a new token" in said.lower()


def test_a_client_that_was_revoked_is_told_so(home: Home, tmp_path: Path) -> None:
    client = client_by(authority_of(home), tmp_path, "former")
    authority_of(home).revoke_node(client.node_id)
    wait_for(lambda: refused(home, tmp_path))
    said = str(asking(home, tmp_path))
    assert "it was revoked" in said and "mesh-coord join" in said


def test_a_client_whose_certificate_ran_out_renews_it_where_it_asks_or_is_told(home: Home, tmp_path: Path) -> None:
    client = client_by(authority_of(home, 30.0), tmp_path, "sleeper")
    assert client.member.ends_s < time.time()
    said = str(asking(home, tmp_path, f"127.0.0.1:{free_port()}"))
    assert "certificate of this node has run out, and is not renewed: nobody answers" in said and "join port" in said

    async def connected() -> None:
        host, _, port = home.coordinator.address.rpartition(":")
        await (await Remote.connect(MESH, host, int(port), client_membership(MESH, str(tmp_path)))).close()

    asyncio.run(connected())
    assert Credentials(client_folder(MESH, str(tmp_path))).member.ends_s > time.time()


def test_the_join_port_is_no_coordinator(home: Home, tmp_path: Path) -> None:
    client_by(authority_of(home), tmp_path, "hasty")
    said = str(asking(home, tmp_path, f"127.0.0.1:{home.coordinator.ready['port'] + PORT_OFFSET}"))
    assert len(said) < 300 and "Check the port" in said


def test_a_node_of_no_mesh_is_told_that_it_is_none(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(errors.MeshError, match="hung up on this node, which has joined no mesh") as raised:
        Mesh.builder().mesh("nowhere").node(home.coordinator.address).build()
    assert "mesh-coord join" in str(raised.value)
