"""A mesh gets a new authority while it runs: `mesh-coord authority rotate`, by real processes and a short overlap."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.machines.links import Recorder
from support.processes.commands import PATIENT_S, ROOT, daemon, environment, node_states, run, wait_for
from support.tls import credentials

from coordinator.authority.audit_log import verify
from coordinator.authority.authority import Authority
from mesh.commands import exit_codes
from wire.errors import NotTrusted
from wire.joining.join_protocol import Grant
from wire.link.identity import identity_here
from wire.link.websocket_carrier import Endpoint
from wire.security.certificates import authority_from_pem, is_issued, new_key

MESH = "rotated"
SERVE = ("coord", "serve", "--no-mdns", "--port", "0", "--node-timeout", f"{PATIENT_S:g}")
OVERLAP_S = 8


@pytest.mark.long
def test_a_mesh_goes_on_by_a_new_authority(tmp_path: Path) -> None:
    env = environment(tmp_path, MESH_NAME=MESH)

    def coord(*words: str) -> Any:
        done = run("coord", *words, "--json", env=env)
        assert done.returncode == exit_codes.OK, done.stderr
        return json.loads(done.stdout)

    def words(name: str) -> tuple[str, ...]:
        return ("--port", "0", "--no-mdns", "--device", "cpu", "--name", name, "--peer", coordinator.address)

    with daemon(*SERVE, env=env, log=tmp_path / "serve.log") as coordinator:
        elsewhere = {name: environment(tmp_path / name) for name in ("there", "away", "late", "client")}
        for name in ("there", "away"):
            token = {"MESH_TOKEN": coordinator.ready["token"]}
            with daemon(
                "worker", "join", *words(name), env=elsewhere[name] | token, log=tmp_path / f"{name}.log"
            ) as worker:
                wait_for(lambda name=name: node_states(coordinator).get(name) == "healthy")  # type: ignore[misc]
                assert worker.stop(signal.SIGTERM) == 0
        client = {**elsewhere["client"], "MESH_TOKEN": coord("token", "create", "--role", "client")["token"]}
        assert run("coord", "join", "--coordinator", coordinator.address, env=client).returncode == exit_codes.OK

        with daemon(
            "worker", "--mesh", MESH, *words("there"), env=elsewhere["there"], log=tmp_path / "there.log"
        ) as there:
            wait_for(lambda: node_states(coordinator)["there"] == "healthy")
            rotated = coord("authority", "rotate", "--overlap", f"{OVERLAP_S}s")
            assert rotated["number"] == 2 and len(rotated["tokens_revoked"]) == 1
            assert {each["name"] for each in rotated["behind"]} >= {"there", "away"}
            wait_for(lambda: "there" not in {each["name"] for each in coord("authority", "show")["behind"]}, 5.0)
            asking = ("nodes", "--mesh", MESH, "--coordinator", coordinator.address)
            assert run("coord", *asking, env=client).returncode == exit_codes.OK
            assert node_states(coordinator)["there"] == "healthy", "and who is at home changes over in passing"
            assert [each["name"] for each in coord("authority", "show")["behind"]] == ["away"]

            late = {**elsewhere["late"], "MESH_TOKEN": coordinator.ready["token"]}
            refused = run("worker", "join", *words("late"), env=late)
            assert refused.returncode != exit_codes.OK and "make a new token there" in refused.stderr
            late["MESH_TOKEN"] = coord("token", "create")["token"]
            with daemon("worker", "join", *words("late"), env=late, log=tmp_path / "late.log"):
                wait_for(lambda: node_states(coordinator).get("late") == "healthy")

                wait_for(lambda: "former_until" not in coord("authority", "show"), OVERLAP_S + 5.0)
                assert set(node_states(coordinator).values()) == {"healthy", "left"}
                assert node_states(coordinator) == {"there": "healthy", "late": "healthy", "away": "left"}
            assert there.stop(signal.SIGTERM) == 0
        with daemon("worker", "--mesh", MESH, *words("there"), env=elsewhere["there"], log=tmp_path / "there.log"):
            wait_for(lambda: node_states(coordinator)["there"] == "healthy")
            assert run("coord", *asking, env=client).returncode == exit_codes.OK
            with daemon(
                "worker", "--mesh", MESH, *words("away"), env=elsewhere["away"], log=tmp_path / "away.log"
            ) as away:
                wait_for(lambda: "by an authority that this node does not know" in away.log.read_text())
                assert node_states(coordinator)["away"] == "left"
        coordinator.stop(signal.SIGTERM)
    events = [json.loads(line)["event"] for line in next(tmp_path.rglob("audit.jsonl")).read_text().splitlines()]
    assert [event for event in events if event.startswith("authority")] == [
        "authority made", "authority changed", "authority dropped",
    ]  # fmt: skip


@pytest.mark.long
async def test_what_a_thief_made_with_the_old_key_ends_with_it(tmp_path: Path) -> None:
    env = environment(tmp_path, MESH_NAME=MESH)
    with daemon(*SERVE, env=env, log=tmp_path / "serve.log") as coordinator:
        folder = next(tmp_path.rglob("authority.key")).parent
        stolen = authority_from_pem(*((folder / name).read_bytes() for name in ("authority.key", "authority.pem")))
        thief = credentials(tmp_path / "thief", stolen, "client", mesh=MESH)
        endpoint = Endpoint(identity_here("client", MESH, "thief", None, thief.node_id), Recorder(), credentials=thief)
        link = await endpoint.dial("127.0.0.1", coordinator.ready["port"])
        done = await asyncio.to_thread(run, "coord", "authority", "rotate", "--overlap", "4s", env=env)
        assert done.returncode == exit_codes.OK and not link.closed
        async with asyncio.timeout(15.0):
            await link.wait_closed()
        with pytest.raises(NotTrusted):
            await endpoint.dial("127.0.0.1", coordinator.ready["port"])
        await endpoint.close()


@pytest.mark.long
def test_a_process_that_is_killed_in_the_middle_of_it_leaves_a_mesh_that_works(tmp_path: Path) -> None:
    """By SIGKILL before every step of the disk; what the folder says then is the old mesh or the new one."""
    path = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
    outcomes, step = [], 0
    while not outcomes or outcomes[-1] != (0, 2):
        step += 1
        folder = tmp_path / str(step)
        member = Authority(folder, MESH).admit_here(new_key().public, "worker", "desk")
        words = [sys.executable, "-m", "support.processes.dying_rotation", str(folder), MESH, str(step)]
        done = subprocess.run(words, env={**os.environ, "PYTHONPATH": path}, capture_output=True, timeout=60.0)
        after = Authority(folder, MESH)
        number = after.rotation().number
        outcomes.append((done.returncode, number))
        renewed = after.renew(member.grant.certificate, "h")
        assert isinstance(renewed, Grant) and is_issued(renewed.certificate, after.certificate)
        assert (after.certificate == member.authority) == (number == 1)
        assert len(list(folder.glob("*.key"))) == number and not verify(folder).broken
        after.create_token()
    assert {(-signal.SIGKILL, 1), (-signal.SIGKILL, 2), (0, 2)} == set(outcomes) and len(outcomes) > 10
