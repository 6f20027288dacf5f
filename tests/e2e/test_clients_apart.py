"""Clients of one coordinator, each with a certificate of its own: nobody sees or touches what is another's, and roles
give what they are for."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from support.machines.links import Recorder
from support.processes.commands import Daemon, asked, daemon, environment, node_states, run, wait_for
from support.processes.site import WORKER, serving

from mesh import AsyncMesh, errors, trace
from mesh.backends.enrolment import client_membership
from mesh.backends.remote import Remote
from mesh.commands import exit_codes
from wire.link.endpoint import Endpoint as AnyEndpoint
from wire.link.identity import identity_here
from wire.link.websocket_carrier import Endpoint
from wire.protocol.messages import AskAuthority, AskTokens, FetchBlob, PauseNode, RevokeNode, RotateAuthority

T = TypeVar("T")
MESH = "apart"
LARGE = np.arange(200_000, dtype=np.float32)  # does not ride along with a message


def doubled(x: Any) -> Any:
    return x * 2


@dataclass(slots=True)
class Site:
    """A coordinator with a worker, and the people who ask it, each from a machine of their own."""

    folder: Path
    env: dict[str, str]
    coordinator: Daemon
    joined: dict[str, dict[str, str]] = field(default_factory=dict)

    def token(self, role: str, *more: str) -> str:
        made = run("coord", "token", "create", "--role", role, *more, env=self.env)
        assert made.returncode == exit_codes.OK, made.stderr
        return made.stdout.strip()

    def env_of(self, name: str, role: str) -> dict[str, str]:
        """The environment of somebody who has joined with a token for this role."""
        if name not in self.joined:
            env = environment(self.folder / name, MESH_NAME=MESH, MESH_ADDRESS=self.coordinator.address)
            token = {"MESH_TOKEN": self.token(role)}
            done = run("coord", "join", "--coordinator", self.coordinator.address, env=env | token)
            assert done.returncode == exit_codes.OK, done.stderr
            self.joined[name] = env
        return self.joined[name]

    def state(self, name: str, role: str) -> str:
        return str(Path(self.env_of(name, role)["XDG_STATE_HOME"]) / "graph-mesh")

    def ask(self, name: str, role: str, ask: Callable[[Remote], Awaitable[T]]) -> T:
        state = self.state(name, role)

        async def connected() -> T:
            port = self.coordinator.ready["port"]
            remote = await Remote.connect(MESH, "127.0.0.1", port, client_membership(MESH, state))
            try:
                return await ask(remote)
            finally:
                await remote.close()

        return asyncio.run(connected())

    def audited(self) -> list[dict[str, str]]:
        log = Path(self.env["XDG_STATE_HOME"]) / "graph-mesh" / MESH / "@authority" / "audit.jsonl"
        return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("apart")
    env = environment(folder, MESH_NAME=MESH)
    with serving(folder, env) as coordinator:
        env["MESH_ADDRESS"] = coordinator.address
        words = (*WORKER, "--peer", coordinator.address, "--name", "kitchen")
        with daemon(*words, env=env, log=folder / "kitchen.log"):
            wait_for(lambda: node_states(coordinator).get("kitchen") == "healthy")
            yield Site(folder, env, coordinator)


async def done(remote: Remote, job: str, by: float = 1.0) -> str:
    """Have a job done whose result is fetched by its address."""
    graph = trace(lambda x: x * by, LARGE)
    await remote.submit(graph, {"x": LARGE}, {}, detach=True, job=job)
    await remote.result(job)
    return job


def as_unknown(error: errors.MeshError, name: str) -> str:
    """What an error says, whatever the id is that was asked for."""
    return str(error).replace(name, "ID")


def test_another_clients_job_is_answered_as_one_that_never_was(site: Site) -> None:
    site.ask("ann", "client", lambda remote: done(remote, "taxes"))

    async def look(remote: Remote) -> None:
        assert "taxes" not in {report.job for report in await remote.jobs()}
        for ask in (remote.jobs, remote.result, remote.cancel):
            with pytest.raises(errors.InputError) as foreign:
                await ask("taxes")
            with pytest.raises(errors.InputError) as unknown:
                await ask("nowhere")
            assert as_unknown(foreign.value, "taxes") == as_unknown(unknown.value, "nowhere")
        await done(remote, "taxes", by=3.0)  # the id is free for everybody
        outputs, _ = await remote.result("taxes")
        np.testing.assert_array_equal(next(iter(outputs.values())), LARGE * 3.0)

    site.ask("bob", "client", look)
    outputs, _ = site.ask("ann", "client", lambda remote: remote.result("taxes"))
    np.testing.assert_array_equal(next(iter(outputs.values())), LARGE)


def test_another_clients_content_is_not_there_even_for_who_knows_its_address(site: Site) -> None:
    site.ask("ann", "client", lambda remote: done(remote, "secret", by=7.0))

    async def addresses(remote: Remote) -> list[bytes]:
        from wire.protocol.messages import AwaitJob, JobResult

        answer = await remote._ask(AwaitJob("secret"), JobResult)
        return [output.blob for output in answer.outputs if output.blob is not None]

    found = site.ask("ann", "client", addresses)
    assert found, "the result does not ride along"

    async def steal(remote: Remote) -> None:
        link = await remote._open()
        for address in (*found, bytes(32)):
            with pytest.raises(errors.BlobMissing) as missing:
                await link.request(FetchBlob(address, 1))
            assert as_unknown(missing.value, address.hex()[:16]).startswith("blob ID is not held here")

    site.ask("bob", "client", steal)


def test_another_clients_session_is_not_there_and_its_name_is_free(site: Site) -> None:
    def step(state: Any, x: Any) -> Any:
        return state + x, state

    async def begin(remote: Remote, name: str) -> float:
        mesh = AsyncMesh(remote)
        async with await mesh.session(step, np.float32(0), np.float32(1), name=name) as session:
            await session.step(np.float32(1))
            await session.detach()
        return 0.0

    site.ask("ann", "client", lambda remote: begin(remote, "run7"))

    async def look(remote: Remote) -> None:
        assert "run7" not in {session.name for session in await remote.named_sessions()}
        with pytest.raises(errors.InputError) as foreign:
            await remote.end_session("run7")
        with pytest.raises(errors.InputError) as unknown:
            await remote.end_session("run8")
        assert as_unknown(foreign.value, "run7") == as_unknown(unknown.value, "run8")
        with pytest.raises(errors.InputError, match="no session 'run7' of yours"):
            await AsyncMesh(remote).attach("run7", step)
        await begin(remote, "run7")
        await remote.end_session("run7")

    site.ask("bob", "client", look)
    sessions = site.ask("ann", "client", lambda remote: remote.named_sessions())
    assert [session.name for session in sessions] == ["run7"]
    site.ask("ann", "client", lambda remote: remote.end_session("run7"))


def test_a_client_pauses_and_revokes_nobody_and_an_operator_does(site: Site) -> None:
    async def try_it(remote: Remote) -> None:
        for message in (PauseNode("kitchen", True), RevokeNode("kitchen"), AskTokens(), AskAuthority()):
            link = await remote._open()
            with pytest.raises(errors.NotTrusted, match=r"needs the role (operator|admin)") as refused:
                await link.request(message)
            assert "mesh-coord token create --role" in (refused.value.next_step or "")

    site.ask("bob", "client", try_it)
    assert node_states(site.coordinator)["kitchen"] == "healthy"
    operator = site.env_of("olga", "operator")
    for word, state in (("pause", "paused"), ("resume", "healthy")):
        said = run("coord", "nodes", word, "kitchen", env=operator)
        assert said.returncode == exit_codes.OK, said.stderr
        wait_for(lambda state=state: node_states(site.coordinator)["kitchen"] == state)  # type: ignore[misc]
    said = run("coord", "token", "list", env=operator)
    assert said.returncode == exit_codes.UNREACHABLE and "needs the role admin" in said.stderr


def test_an_operator_sees_and_cancels_everybodys_jobs_and_reads_no_results(site: Site) -> None:
    site.ask("ann", "client", lambda remote: done(remote, "mine", by=5.0))
    site.ask("bob", "client", lambda remote: done(remote, "his", by=6.0))

    async def look(remote: Remote) -> None:
        reports = {report.job: report for report in await remote.jobs()}
        assert {"mine", "his"} <= reports.keys() and reports["mine"].client != reports["his"].client
        assert (await remote.jobs("mine"))[0].log
        with pytest.raises(errors.InputError, match="no job 'mine' here"):
            await remote.result("mine")
        with pytest.raises(errors.InputError, match="job mine is over already"):
            await remote.cancel("mine")

    site.ask("olga", "operator", look)


def test_an_admin_elsewhere_has_tokens_and_an_operator_cannot_throw_it_out(site: Site) -> None:
    admin = site.env_of("ada", "admin")
    made = run("coord", "token", "create", "--role", "client", "--json", env=admin)
    assert made.returncode == exit_codes.OK, made.stderr
    token = json.loads(made.stdout)
    listed = run("coord", "token", "list", "--json", env=admin)
    assert {"id": token["id"], "state": "open"}.items() <= json.loads(listed.stdout)[0].items()
    assert run("coord", "token", "revoke", token["id"], env=admin).returncode == exit_codes.OK
    assert '"behind"' in run("coord", "authority", "show", "--json", env=admin).stdout
    outputs, _ = site.ask("ada", "admin", lambda remote: remote.result("mine"))
    np.testing.assert_array_equal(next(iter(outputs.values())), LARGE * 5.0)
    id = site.ask("ada", "admin", lambda remote: _member(remote))
    refused = run("coord", "nodes", "revoke", id, env=site.env_of("olga", "operator"))
    assert refused.returncode == exit_codes.UNREACHABLE and "only an admin may throw it out" in refused.stderr


def test_whoever_changes_the_audit_log_is_found_out(site: Site, tmp_path: Path) -> None:
    state = Path(site.env["XDG_STATE_HOME"]) / "graph-mesh"
    whole = run("coord", "authority", "audit", "--json", env=site.env)
    lines = json.loads(whole.stdout)["lines"]
    assert whole.returncode == exit_codes.OK and lines > 2 and json.loads(whole.stdout)["changed_at"] == ""
    changed = shutil.copytree(state, tmp_path / "state", ignore=shutil.ignore_patterns("*.sock")) / MESH / "@authority"
    log = (changed / "audit.jsonl").read_text().splitlines(keepends=True)
    (changed / "audit.jsonl").write_text("".join([*log[:2], *log[3:]]))
    found = run("coord", "authority", "audit", "--state-dir", str(tmp_path / "state"), env=site.env)
    assert found.returncode == exit_codes.FAILED and "changed at audit.jsonl:3, after 2 lines" in found.stdout
    elsewhere = run("coord", "authority", "audit", env=site.env_of("ann", "client"))
    assert elsewhere.returncode == exit_codes.USAGE and "not on this machine" in elsewhere.stderr


async def _member(remote: Remote) -> str:
    return remote._membership.credentials.node_id


def test_nobody_has_more_by_saying_so(site: Site) -> None:
    """The role of the hello is that of the certificate."""
    credentials = client_membership(MESH, site.state("bob", "client")).credentials

    async def lie(role: str) -> None:
        identity = identity_here(role, MESH, "bob", None, credentials.node_id)
        endpoint: AnyEndpoint = Endpoint(identity, Recorder(), credentials=credentials)
        try:
            link = await endpoint.dial("127.0.0.1", site.coordinator.ready["port"])
            await link.request(RotateAuthority(60.0))
        finally:
            await endpoint.close()

    for role in ("operator", "admin", "coordinator", "worker"):
        with pytest.raises(errors.NotTrusted, match=f"says it is {role}"):
            asyncio.run(lie(role))


def test_the_user_of_the_coordinators_machine_sees_everything_as_before(site: Site) -> None:
    reports = asked(site.coordinator, lambda remote: remote.jobs())
    assert {"taxes", "secret", "mine", "his"} <= {report.job for report in reports}
    outputs, _ = asked(site.coordinator, lambda remote: remote.result("secret"))
    np.testing.assert_array_equal(next(iter(outputs.values())), LARGE * 7.0)


def test_what_clients_did_is_in_the_audit_log(site: Site) -> None:
    def written() -> bool:
        acts = {(line["event"], line.get("what")) for line in site.audited()}
        return {("submit", "mine"), ("read", "mine"), ("pause", "kitchen"), ("resume", "kitchen")} <= acts

    wait_for(written)
    ann = site.ask("ann", "client", _member)
    assert {line["client"] for line in site.audited() if line.get("what") == "mine"} >= {ann}
    assert all(line["client"] for line in site.audited() if line["event"] == "submit")
