"""A home's network: a stranger's machines find each other and join, and nobody else does.

`python tests/e2e/test_lan.py` prints how long it takes, without the tests' patience.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from support.audit_events import read_events
from support.lan.lan_mesh import LanMesh, LoggedProcess, errors, until
from support.lan.namespaces import Host, Lan, needs_namespaces
from support.processes.commands import ROOT, environment

from wire.joining.join_port import NOT_ASKED
from wire.joining.join_tokens import Token, discovery_key, parse_token

pytestmark = needs_namespaces
HEALTHY = "healthy"
# A program that has no token and wants a link all the same.
STRANGER = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as here:
    here.sendall(b"GET /graph-mesh/link HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
    try:
        assert here.recv(1) == b""
    except ConnectionError:
        pass
"""
PATIENCE = ("--node-timeout", "10")  # of a machine that runs other tests at the same time


@contextmanager
def serving(folder: Path, hosts: int, *arguments: str, multicast: bool = True) -> Iterator[tuple[LanMesh, list[Host]]]:
    """A mesh on the first of some hosts, and the others."""
    with Lan(hosts) as lan:
        if not multicast:
            lan.block_multicast()
        yield LanMesh(lan.hosts[0], folder, *(arguments or PATIENCE)), lan.hosts[1:]


def refusals(mesh: LanMesh, host: Host) -> list[str]:
    """What the audit log says of strangers from a host."""
    told = ("refused", "turned away", "imposter")
    found = [event for event in mesh.audit() if event["event"] in told and host.address in event["host"]]
    return [f"{event['event']}: {event['reason']}" for event in found]


def test_workers_join_with_the_printed_line_and_no_address_typed(tmp_path: Path) -> None:
    with serving(tmp_path, 3) as (mesh, hosts):
        workers = [mesh.worker(host, name) for host, name in zip(hosts, ("desk", "attic"), strict=True)]
        until(lambda: mesh.nodes() == {"desk": HEALTHY, "attic": HEALTHY})
        joined = [event["name"] for event in mesh.audit() if event["event"] == "joined"]
        assert {"attic", "desk"} <= set(joined) and len(joined) == len(set(joined))
        for worker in workers:
            assert sum("is a member of mesh home" in line for line in worker.lines()) == 1
            assert not [line for line in worker.lines() if "WARNING" in line or "ERROR" in line]


def test_where_multicast_is_blocked_an_address_is_enough(tmp_path: Path) -> None:
    with serving(tmp_path, 3, multicast=False) as (mesh, hosts):
        named = mesh.worker(hosts[0], "named", "--peer", mesh.host.address)
        lost = mesh.worker(hosts[1], "lost")
        until(lambda: mesh.nodes() == {"named": HEALTHY})
        assert lost.ended() == 2
        (said,) = errors(lost.lines())
        assert "announces itself here" in said and "--peer HOST:PORT" in said
        assert named.process.poll() is None


def test_who_does_not_belong_never_joins_and_hears_why_in_a_line(tmp_path: Path) -> None:
    with serving(tmp_path, 3) as (mesh, hosts):
        first, second = hosts
        known = parse_token(mesh.token)
        authority = mesh.authority()
        used, expired, withdrawn = (authority.create_token(ttl_s=seconds).text for seconds in (3600.0, 0.01, 3600.0))
        authority.revoke_token(parse_token(withdrawn).key_id)
        member = mesh.worker(first, "member", token=used)
        until(lambda: mesh.nodes() == {"member": HEALTHY})
        there = ("--peer", mesh.host.address)
        tries = {
            "no join token": mesh.worker(second, "none", *there, token=""),
            "not the coordinator that made": mesh.worker(second, "foreign", *there, token=text(known, pin=bytes(32))),
            "used as often": mesh.worker(second, "used", token=used),
            "time is over": mesh.worker(second, "expired", token=expired),
            "token was revoked": mesh.worker(second, "withdrawn", token=withdrawn),
            "not valid there": mesh.worker(second, "wrong", token=text(known, secret=bytes(20))),
        }
        for why, tried in tries.items():
            assert tried.ended() in (2, 4)
            (said,) = errors(tried.lines())
            assert why in said
        port = "7100"
        assert second.run(sys.executable, "-c", STRANGER, mesh.host.address, port).returncode == 0
        wanted = [  # one each; who has no token does not call, unless it is somebody else's program
            "refused: expired", "refused: used", "refused: withdrawn", "refused: wrong secret",
            "turned away: it does not speak TLS", f"turned away: {NOT_ASKED}",
        ]  # fmt: skip
        until(lambda: len(refusals(mesh, second)) >= len(wanted))
        assert sorted(refusals(mesh, second)) == sorted(wanted)
        assert mesh.nodes() == {"member": HEALTHY} and member.process.poll() is None


def test_a_worker_of_another_mesh_stays_in_its_own(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    with serving(tmp_path, 3) as (mesh, (host, elsewhere)):
        theirs = LanMesh(elsewhere, tmp_path / "theirs", *PATIENCE)
        worker = theirs.worker(host, "stranger")
        until(lambda: theirs.nodes() == {"stranger": HEALTHY})
        worker.process.terminate()
        assert worker.ended() == 0
        again = theirs.start(host, "stranger", "--peer", mesh.host.address)
        until(lambda: any("belongs to another mesh" in line for line in again.lines()))
        until(lambda: theirs.nodes() == {"stranger": HEALTHY})
        assert mesh.nodes() == {}
        until(lambda: bool(refusals(mesh, host)))
        assert refusals(mesh, host) == ["turned away: a caller gave up the handshake: it may expect another mesh"]


def test_an_imposter_hears_no_secret_and_keeps_nobody_out(tmp_path: Path) -> None:
    with serving(tmp_path, 3) as (mesh, (host, bad)):
        key = discovery_key(parse_token(mesh.token).pin)
        imposter = LoggedProcess(
            run(bad, tmp_path / "said", "support.hostile.imposter", key.hex(), str(tmp_path)), tmp_path / "said"
        )
        until(lambda: "ready" in imposter.lines())
        until(lambda: any("announced itself but did not join" in line for line in mesh.coordinator.lines()))
        until(lambda: [event.partition(":")[0] for event in refusals(mesh, bad)] == ["imposter"])
        mesh.worker(host, "honest")
        until(lambda: mesh.nodes() == {"honest": HEALTHY})
        fooled = mesh.worker(host, "fooled", "--peer", bad.address)
        assert fooled.ended() == 4
        (said,) = errors(fooled.lines())
        assert "is not the coordinator that made this token" in said
        heard = [event["event"] for event in read_events(tmp_path / "authority", 1000)]
        assert "refused" not in heard and heard.count("joined") == 1  # nobody asked it: one is its own worker
        assert mesh.nodes() == {"honest": HEALTHY}


@pytest.mark.long
def test_who_moves_to_another_address_is_found_there(tmp_path: Path) -> None:
    with serving(tmp_path, 3) as (mesh, hosts):
        workers = [mesh.worker(host, name) for host, name in zip(hosts, ("desk", "attic"), strict=True)]
        everyone = {"desk": HEALTHY, "attic": HEALTHY}
        until(lambda: mesh.nodes() == everyone)
        for host, address in ((hosts[0], "10.77.0.50"), (mesh.host, "10.77.0.60")):
            links = [sum("linked to coordinator" in line for line in worker.lines()) for worker in workers]
            host.change_address(address)
            moved = workers[:1] if host is hosts[0] else workers
            until(
                lambda moved=moved, links=links: all(
                    sum("linked to coordinator" in line for line in worker.lines()) > before
                    for worker, before in zip(moved, links, strict=False)
                )
            )
            until(lambda: mesh.nodes() == everyone)


@pytest.mark.parametrize("connects", [1_500, pytest.param(5_000, marks=pytest.mark.long)])
def test_a_flood_costs_little_and_keeps_nobody_out(tmp_path: Path, connects: int) -> None:
    report = flood(tmp_path, connects, PATIENCE)
    assert report["connects"] > 0.8 * connects
    assert report["grown MiB"] < 30
    assert report["deaths"] == 0


@pytest.mark.long
@pytest.mark.parametrize("words", ["mixed", "hello"])
def test_a_flood_from_the_same_address_does_not_keep_it_out(tmp_path: Path, words: str) -> None:
    """Behind one router, say: 250 callers at a time, as fast as they are dropped."""
    report = flood_beside(tmp_path, words, 8, PATIENCE)
    assert report["joined"] == 8 and report["slowest s"] < 20.0
    assert report["grown MiB"] < 30


def flood_beside(folder: Path, words: str, joins: int, arguments: tuple[str, ...] = ()) -> dict[str, float]:
    """Nodes join one after another from the host that a flood of the join port comes from."""
    with serving(folder, 2, *(arguments or ("--preset", "lan"))) as (mesh, (host,)):
        token = mesh.coord("token", "create", "--uses", str(joins))["token"]
        coordinator = psutil.Process(mesh.coordinator.process.pid)
        before = most = coordinator.memory_info().rss
        flooding = run(host, folder / "flood", "support.hostile.flood", mesh.host.address, "1000000000", words)
        time.sleep(1.5)
        joining = LoggedProcess(
            run(host, folder / "joins", "support.processes.joiner", mesh.host.address, str(joins), token=token), folder
        )
        while joining.process.poll() is None:
            most = max(most, coordinator.memory_info().rss)
            time.sleep(0.05)
        assert flooding.poll() is None
        told = [json.loads(line) for line in (folder / "joins").read_text().splitlines()]
        joined_s = sorted(each["seconds"] for each in told if not each["error"])
        return {
            "joined": len(joined_s),
            "median s": joined_s[len(joined_s) // 2] if joined_s else 0.0,
            "slowest s": max(joined_s, default=0.0),
            "grown MiB": (most - before) / 2**20,
        }


def flood(folder: Path, connects: int, arguments: tuple[str, ...] = ()) -> dict[str, float]:
    """Connect that often from four hosts while a worker works and another one joins."""
    with serving(folder, 7, *(arguments or ("--preset", "lan"))) as (mesh, (works, joins, *strangers)):
        worker = mesh.worker(works, "works")
        until(lambda: mesh.nodes() == {"works": HEALTHY})
        coordinator = psutil.Process(mesh.coordinator.process.pid)
        before = coordinator.memory_info().rss
        count = str(connects // len(strangers))
        floods = [
            LoggedProcess(
                run(each, folder / each.namespace, "support.hostile.flood", mesh.host.address, count),
                folder / each.namespace,
            )
            for each in strangers
        ]
        began_s = time.monotonic()
        joining = mesh.worker(joins, "joins")
        until(lambda: any("linked to coordinator" in line for line in joining.lines()))
        joined_s = time.monotonic() - began_s
        most = before
        while any(each.process.poll() is None for each in floods):
            most = max(most, coordinator.memory_info().rss)
            time.sleep(0.05)
        until(lambda: mesh.nodes() == {"works": HEALTHY, "joins": HEALTHY})
        return {
            "connects": sum(int(each.lines()[-1]) for each in floods),
            "flood s": time.monotonic() - began_s,
            "grown MiB": (most - before) / 2**20,
            "deaths": sum("link to coordinator" in line for line in worker.lines()),  # which ends the link
            "joined s": joined_s,
        }


def run(host: Host, said: Path, module: str, *arguments: str, token: str = "") -> psutil.Popen:
    """A module of the tests' support on a host."""
    env = environment(said.parent) | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "MESH_TOKEN": token}
    with said.open("w") as out:
        return host.start(sys.executable, "-m", module, *arguments, env=env, stdout=out, stderr=out)


def text(token: Token, pin: bytes = b"", secret: bytes = b"") -> str:
    """A token like another one."""
    return Token(pin or token.pin, token.key_id, secret or token.secret).text


def main() -> None:
    for _ in range(5):
        with tempfile.TemporaryDirectory() as folder, serving(Path(folder), 3, "--preset", "lan") as (mesh, hosts):
            began_s = time.monotonic()
            for host, name in zip(hosts, ("desk", "attic"), strict=True):
                mesh.worker(host, name)
            until(lambda: mesh.nodes() == {"desk": HEALTHY, "attic": HEALTHY})
            print(f"two workers joined and listed after {time.monotonic() - began_s:.2f} s")
    with tempfile.TemporaryDirectory() as folder:
        report = flood(Path(folder), 5_000)
    print(", ".join(f"{name} {value:.4g}" for name, value in report.items()))
    for words in ("mixed", "hello"):
        with tempfile.TemporaryDirectory() as folder:
            report = flood_beside(Path(folder), words, 12)
        print(f"beside a flood, {words}:", ", ".join(f"{name} {value:.4g}" for name, value in report.items()))


if __name__ == "__main__":
    sys.exit(pytest.main([__file__]) if "--test" in sys.argv else main())
