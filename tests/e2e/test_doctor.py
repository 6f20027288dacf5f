"""`mesh-coord doctor` on real processes: all well, a worker that was killed, no coordinator, networks that are cut."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.lan.lan_mesh import MESH, LanMesh, until
from support.lan.namespaces import Host, Lan, needs_namespaces
from support.processes.commands import (
    PATIENT_S,
    Daemon,
    asked,
    command,
    environment,
    node_states,
    run,
    wait_for,
)
from support.processes.site import Site, site

from mesh.commands import doctor, exit_codes
from mesh.commands.diagnosis import Unreached
from wire.errors import NodeLost


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("patient"), "patient") as made:
        wait_for(lambda: len(_probed(made.coordinator, "shared memory")) == 6)
        yield made


def _probed(coordinator: Daemon, path: str) -> set[tuple[str, str]]:
    pairs = asked(coordinator, lambda remote: remote.pairs())
    return {(pair.source, pair.target) for pair in pairs if pair.path == path}


def examined(env: dict[str, str], *arguments: str) -> tuple[int, dict[str, Any]]:
    """What the doctor exits with, and says."""
    done = run("coord", "doctor", *arguments, "--json", env=env)
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout)


def results(said: dict[str, Any]) -> dict[str, str]:
    return {row["check"]: row["result"] for row in said["checks"]}


def names(said: dict[str, Any]) -> set[str]:
    return {finding["name"] for finding in said["findings"]}


def problems(said: dict[str, Any]) -> list[str]:
    return [finding["name"] for finding in said["findings"] if finding["level"] == "problem"]


def test_all_is_well(patient: Site) -> None:
    """Warnings depend on the machine that runs the tests; what the mesh itself is made of, does not."""
    code, said = examined(patient.env)
    assert (code, said["ok"], problems(said)) == (exit_codes.OK, True, [])
    assert {results(said)[check] for check in ("coordinator", "ports", "workers", "clock", "versions")} == {"ok"}
    assert results(said)["pairs"] == ("warning" if "slow-pair" in names(said) else "ok"), "of a busy machine"
    facts = said["facts"]
    assert facts["coordinator"]["address"] == patient.coordinator.address
    assert abs(facts["coordinator"]["clock_ahead_s"]) < 30
    assert [(knock["what"], knock["opened"]) for knock in facts["knocks"]] == [("mesh port", True), ("join port", True)]
    assert {(worker["name"], worker["system"]) for worker in facts["workers"]} == {
        (name, facts["here"]["system"]) for name in patient.workers
    }
    assert {(pair["source"], pair["target"]) for pair in facts["pairs"]} == _probed(
        patient.coordinator, "shared memory"
    )
    assert {pair["path"] for pair in facts["pairs"]} == {"shared memory"}
    assert {room["what"] for room in facts["here"]["rooms"]} == {"state", "cache"}
    alone = [finding for finding in said["findings"] if finding["name"] == "processor-asked"]
    assert [finding["where"] for finding in alone] == ["one", "two"], "they were told to use the cpu: a warning"
    assert not names(said) & {"processor-only", "adapter-none"}, "and no driver is missed"


def test_it_is_told_as_a_table_the_pairs_and_what_to_do(patient: Site) -> None:
    done = run("coord", "doctor", env=patient.env)
    assert done.returncode == exit_codes.OK, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["check", "result", "seen"]
    assert any(line.split()[:4] == ["one", "two", "shared", "memory"] for line in lines)
    warned = next(place for place, line in enumerate(lines) if line.startswith("warning: one: "))
    assert lines[warned + 1].startswith("  to do: mesh-worker ")


def test_a_worker_that_was_killed_is_a_problem_with_its_name(patient: Site) -> None:
    patient.workers["two"].stop(signal.SIGKILL)
    wait_for(lambda: node_states(patient.coordinator)["two"] == "dead")
    code, said = examined(patient.env)
    assert (code, said["ok"], problems(said)) == (exit_codes.FAILED, False, ["worker-dead"])
    assert said["findings"][0]["where"] == "two"
    assert "mesh-worker" in said["findings"][0]["fix"]["every system"]
    assert results(said)["workers"] == "problem"
    assert results(said)["coordinator"] == "ok"
    done = run("coord", "doctor", "--quiet", env=patient.env)
    first, fix = done.stdout.splitlines()
    assert first.startswith("problem: two: the worker is dead")
    assert fix.startswith("  to do: mesh-worker")


def test_without_a_coordinator_it_says_so_and_looks_at_this_machine(tmp_path: Path, patient: Site) -> None:
    nobody = {**patient.env, "MESH_ADDRESS": "127.0.0.1:9"}  # a member, but nobody listens there
    code, said = examined(nobody)
    assert (code, problems(said)) == (exit_codes.FAILED, ["no-coordinator"])
    assert "127.0.0.1:9" in said["findings"][0]["what"]
    assert {results(said)[check] for check in ("workers", "pairs", "clock")} == {"not checked"}
    assert results(said)["disk"] != "not checked" != results(said)["adapters"]
    stranger = environment(tmp_path, MESH_NAME="nowhere")
    code, said = examined(stranger)
    assert (code, problems(said)) == (exit_codes.FAILED, ["no-coordinator"])
    assert "mesh-coord serve" in said["findings"][0]["fix"]["every system"]


def test_an_address_that_is_none_is_a_mistake_and_no_finding(tmp_path: Path) -> None:
    done = run("coord", "doctor", "--coordinator", "nowhere:port", env=environment(tmp_path))
    assert done.returncode == exit_codes.USAGE
    assert len(done.stderr.splitlines()) == 1


def test_a_name_that_no_resolver_takes_is_a_coordinator_that_is_not_there(tmp_path: Path) -> None:
    code, said = examined(environment(tmp_path), "--coordinator", "a..b:7100")
    assert code == exit_codes.FAILED and "no-coordinator" in problems(said)


async def test_a_coordinator_that_ends_while_it_is_asked_is_one_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def census() -> Any:
        raise NodeLost("the link was closed")

    async def close() -> None:
        return

    async def connect(options: Any) -> Any:
        return SimpleNamespace(census=census, close=close)

    monkeypatch.setattr(doctor, "connect", connect)
    found, nodes = await doctor._ask(SimpleNamespace(mesh="ends"))
    assert isinstance(found, Unreached) and "the link was closed" in found.why and nodes is None


@needs_namespaces
def test_on_a_network_it_names_the_machine_and_the_port_that_somebody_blocks(tmp_path: Path) -> None:
    with Lan(3) as lan:
        boss, desk, attic = lan.hosts
        desk.lose_what_goes_to(attic)
        attic.lose_what_goes_to(desk)
        mesh = LanMesh(boss, tmp_path, "--node-timeout", f"{PATIENT_S:g}")
        mesh.worker(desk, "desk")
        mesh.worker(attic, "attic")
        until(lambda: [pair["path"] for pair in mesh.coord("nodes", "-v")["pairs"]].count("relay") == 2)
        said = on(boss, tmp_path, "coordinator")
        while not said["facts"]["here"]["multicast"][0]["heard"]:  # it listens for as long as others take to answer
            said = on(boss, tmp_path, "coordinator")
        blocked = {finding["where"]: finding for finding in said["findings"] if finding["name"] == "blocked-pair"}
        assert set(problems(said)) == {"blocked-pair"} and blocked.keys() == {"desk", "attic"}
        assert blocked["desk"]["what"].startswith("attic -> desk is blocked (no answer")
        (fix,) = blocked["desk"]["fix"].values()
        assert "7100" in fix, "the one line for this system"
        assert len(said["facts"]["here"]["multicast"]) == 1

        said = on(desk, tmp_path, "desk")
        assert (said["ok"], results(said)["ports"]) == (True, "ok"), "a worker's user cannot ask, and needs not"
        assert "no-client" in [finding["name"] for finding in said["findings"]]

        desk.lose_what_goes_to(boss)
        said = on(desk, tmp_path, "desk")
        assert problems(said) == ["no-coordinator", "blocked-port", "blocked-port"]
        ports = [finding["fix"]["Windows"] for finding in said["findings"] if finding["name"] == "blocked-port"]
        assert ["-LocalPort 7100" in ports[0], "-LocalPort 8100" in ports[1]] == [True, True]


def on(host: Host, folder: Path, name: str) -> dict[str, Any]:
    """What the doctor says to the user of a node, on its machine."""
    env = environment(folder / name)
    done = host.run(*command("coord", "doctor", "--mesh", MESH, "--json"), env=env)
    said: dict[str, Any] = json.loads(done.stdout)
    return said
