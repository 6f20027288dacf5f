"""Every finding of the doctor shows in facts that have it, and in no others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from mesh.commands import diagnosis
from mesh.commands.diagnosis import (
    CHECKS,
    EVERY,
    FINDINGS,
    OK,
    PROBLEM,
    SYSTEMS,
    UNKNOWN,
    WARNING,
    Adapter,
    Facts,
    Here,
    Knock,
    Multicast,
    Reached,
    Room,
    Unreached,
    Worker,
    checked,
    diagnose,
)
from mesh.commands.doctor import _print
from wire.limits import GIB, MIB
from wire.protocol.messages import PairReport
from wire.protocol.missing_gpu import short_text

GPU = Adapter("wgsl", "A card", False)
CPU = Adapter("cpu", "A processor", False)
HERE = Here(
    "Linux",
    "1.2.3",
    (Multicast("eth0", 4, 9),),
    (Room("state", "/s", 90 * GIB), Room("cache", "/c", 90 * GIB)),
    None,
    "files, network",
)
LINUX = Worker("linux", "Linux", "healthy", 0.1, "1.2.3", "10.0.0.2:7101", (GPU, CPU))
WINDOWS = Worker("windows", "Windows", "healthy", 0.1, "1.2.3", "10.0.0.3:7100", (GPU, CPU))
WELL = Facts(
    HERE,
    Reached("boss", "10.0.0.1:7100", "Darwin", "1.2.3", 0.2),
    (Knock("mesh port", "10.0.0.1", 7100, True), Knock("join port", "10.0.0.1", 8100, True)),
    (LINUX, WINDOWS),
    (
        PairReport("linux", "windows", "direct", 0.001, 1e8, "10.0.0.3:7100"),
        PairReport("windows", "boss", "direct", 0.001, 1e8, "10.0.0.1:7100"),
        PairReport("boss", "linux", "shared memory", 0.0, 0.0),
    ),
)
SOFTWARE = Adapter("wgsl", "llvmpipe", True)
CLOSED = Knock("join port", "10.0.0.1", 8100, False, cause="no answer in 3 s")


def here(**changes: Any) -> Facts:
    return replace(WELL, here=replace(HERE, **changes))


def worker(**changes: Any) -> Facts:
    return replace(WELL, workers=(LINUX, replace(WINDOWS, **changes)))


def pair(**changes: Any) -> Facts:
    return replace(WELL, pairs=(structs.replace(WELL.pairs[0], **changes), *WELL.pairs[1:]))


def clock(ahead_s: float) -> Facts:
    assert isinstance(WELL.coordinator, Reached)
    return replace(WELL, coordinator=replace(WELL.coordinator, clock_ahead_s=ahead_s))


def room(free_bytes: int) -> Facts:
    return here(rooms=(Room("state", "/s", 90 * GIB), Room("cache", "/c", free_bytes)))


# finding -> facts that have it and nothing else, and what must stand in what is said and in the fix
SHOWN: dict[str, tuple[Facts, tuple[str, ...]]] = {
    "no-coordinator": (
        Facts(HERE, Unreached("nobody answers", "Start one: mesh-coord serve")),
        ("this machine", "nobody answers", "mesh-coord serve"),
    ),
    "no-client": (
        Facts(HERE, Unreached("no member", "Join one", client=False), WELL.knocks),
        ("this machine", "at 10.0.0.1", "mesh-coord token create --role client"),
    ),
    "blocked-port": (
        replace(WELL, knocks=(WELL.knocks[0], CLOSED)),
        ("boss", "join port 10.0.0.1:8100", "no answer in 3 s", "socketfilterfw"),
    ),
    "no-worker": (replace(WELL, workers=(), pairs=()), ("boss", "no worker", "mesh-worker join")),
    "worker-dead": (worker(state="dead", silent_s=7.0), ("windows", "dead", "7.0 s ago")),
    "worker-wrong": (worker(state="quarantined"), ("windows", "quarantined", "driver")),
    "worker-silent": (worker(state="suspect", silent_s=0.7), ("windows", "suspect", "0.7 s ago")),
    "worker-paused": (worker(state="paused"), ("windows", "paused", "mesh-worker resume")),
    "worker-throttled": (
        worker(adapters=(GPU, replace(CPU, name="A processor (throttled: rate=1Mbit/s)"))),
        ("windows", "rate=1Mbit/s", "without --throttle"),
    ),
    "blocked-pair": (
        pair(path="relay", address="", cause="timed out"),
        ("linux -> windows is blocked", "timed out", "New-NetFirewallRule", "-LocalPort 7100"),
    ),
    "one-way-pair": (pair(cause="timed out"), ("windows", "used both ways", "-Protocol TCP")),
    "slow-pair": (pair(bytes_per_s=0.5e6), ("linux -> windows", "4.0 Mbit/s", "cable")),
    "multicast-fails": (
        here(multicast=(Multicast("eth0", 4, 0, "ENODEV"), Multicast("eth1", 4, 1))),
        ("eth0", "ENODEV", "ip link set dev eth0 multicast on", "5353/udp", "firewall-cmd"),
    ),
    "multicast-silent": (
        here(multicast=(Multicast("eth0", 4, 0), Multicast("eth1", 4, 0))),
        ("multicast", "--peer", "sudo ufw allow 5353/udp", "firewall-cmd"),
    ),
    "clock-wrong": (clock(4000), ("4000 s behind", "timedatectl")),
    "clock-off": (clock(-60), ("60 s ahead", "timedatectl")),
    "version-differs": (worker(version="1.0.0"), ("windows", "1.0.0", "graph-mesh==1.2.3")),
    "adapter-software": (worker(adapters=(SOFTWARE, CPU)), ("windows", "llvmpipe", "driver")),
    "processor-only": (
        worker(adapters=(CPU,)),
        ("windows", "or was given none", "mesh-worker --list-devices", "without --device cpu"),
    ),
    "processor-asked": (
        worker(adapters=(CPU,), without_gpu="asked"),
        ("windows", "started with --device cpu", "without --device cpu"),
    ),
    "adapter-none": (worker(adapters=(CPU,), without_gpu="none"), ("no graphics adapter with a driver", "its vendor")),
    "adapter-only-software": (
        worker(adapters=(CPU,), without_gpu="software"),
        ("only software graphics adapters", "otherwise nothing", "the vendor's driver"),
    ),
    "adapter-no-wgpu": (worker(adapters=(CPU,), without_gpu="library"), ("no wgpu", "pip install wgpu")),
    "adapter-fails": (
        worker(adapters=(CPU,), without_gpu="failed: exit code -6"),
        ("(exit code -6)", "--list-devices", "update"),
    ),
    "sandbox-open": (
        worker(system="Linux", sandbox="network, rights; without files: this kernel has no Landlock"),
        ("this kernel has no Landlock", "without --no-sandbox"),
    ),
    "disk-full": (room(3 * MIB), ("3 MiB", "cache", 'du -xh "/c"')),
    "disk-low": (room(300 * MIB), ("300 MiB", "cache", 'du -xh "/c"')),
}


def test_where_all_is_well_nothing_is_found_and_every_check_says_what_it_saw() -> None:
    assert diagnose(WELL) == []
    rows = checked(replace(WELL, here=replace(HERE, adapters=(GPU,))), [])
    assert [row.check for row in rows] == list(CHECKS)
    assert {row.result for row in rows} == {OK}
    assert all(row.summary for row in rows)


def test_every_finding_has_facts_that_show_it() -> None:
    assert list(SHOWN) == [finding.name for finding in FINDINGS]


@pytest.mark.parametrize("name", SHOWN)
def test_a_finding_shows_where_it_is_and_alone(name: str) -> None:
    facts, said = SHOWN[name]
    (trouble,) = diagnose(facts)
    assert trouble.name == name
    assert len(trouble.fix) == 1, "the system is known, so there is one line to type"
    text = " ".join([trouble.where, trouble.what, *trouble.fix.values()])
    assert [word for word in said if word not in text] == []
    (row,) = [row for row in checked(facts, [trouble]) if row.check == trouble.check]
    assert row.result == trouble.level


def test_no_driver_is_to_be_installed_before_somebody_looked_whether_one_is_there() -> None:
    """A worker that was told `--device cpu` computes on its processor beside any driver."""
    (finding,) = [each for each in FINDINGS if each.name == "processor-only"]
    for line in finding.fix.values():
        assert line.startswith("mesh-worker --list-devices ")
        assert line.index("without --device") < line.index("if none:")
    there = [each for each in FINDINGS if each.name in ("processor-asked", "adapter-fails", "adapter-no-wgpu")]
    for line in [line for each in there for line in each.fix.values()]:
        assert "driver from" not in line and "apt install" not in line and "maker" not in line, line


def test_a_reason_of_a_newer_worker_is_told_as_it_is_and_advises_to_look() -> None:
    (trouble,) = diagnose(worker(adapters=(CPU,), without_gpu="borrowed: by a game"))
    assert trouble.name == "processor-only" and trouble.what.endswith("it has no GPU: borrowed: by a game")
    assert short_text("borrowed: by a game") == "borrowed: by a game"


@pytest.mark.parametrize("finding", FINDINGS, ids=lambda finding: finding.name)
def test_a_fix_has_a_line_for_every_system(finding: diagnosis.Finding) -> None:
    assert set(finding.fix) in ({EVERY}, set(SYSTEMS))
    assert finding.level in (PROBLEM, WARNING)
    assert finding.check in CHECKS


def test_it_is_printed_for_which_system_a_line_is(capsys: pytest.CaptureFixture[str]) -> None:
    facts = SHOWN["blocked-pair"][0]
    _print(facts, [], diagnose(facts), quiet=True)
    problem, fix = capsys.readouterr().out.splitlines()
    assert problem.startswith("problem: windows: linux -> windows is blocked")
    assert fix.startswith("  to do on Windows: New-NetFirewallRule ")


def test_a_machine_whose_system_is_not_known_gets_the_lines_of_all() -> None:
    facts = replace(SHOWN["blocked-pair"][0], workers=(LINUX, replace(WINDOWS, system="")))
    (trouble,) = diagnose(facts)
    assert list(trouble.fix) == list(SYSTEMS)


def test_the_port_to_allow_is_that_of_the_machine_that_was_dialled() -> None:
    blocked = PairReport("windows", "linux", "relay", 0.0, 0.0, "", "timed out")
    (trouble,) = diagnose(replace(WELL, pairs=(blocked,)))
    assert trouble.fix == {"Linux": trouble.fix["Linux"]}
    assert trouble.fix["Linux"].startswith("sudo ufw allow 7101/tcp")
    assert "--add-port=7101/tcp" in trouble.fix["Linux"]


def test_a_port_that_is_refused_is_no_firewall_s_while_no_coordinator_is_there() -> None:
    gone = Facts(HERE, Unreached("nobody answers", ""))
    refused = Knock("mesh port", "10.0.0.1", 7100, False, refused=True, cause="refused")
    assert [trouble.name for trouble in diagnose(replace(gone, knocks=(refused,)))] == ["no-coordinator"]
    ports = next(row for row in checked(replace(gone, knocks=(refused,)), []) if row.check == "ports")
    assert ports.summary == "mesh port 7100 with nobody behind it", "and not closed, which a firewall does"
    silent = replace(refused, refused=False, cause="no answer in 3 s")
    found = diagnose(replace(gone, knocks=(silent,)))
    assert [trouble.name for trouble in found] == ["no-coordinator", "blocked-port"]
    assert list(found[1].fix) == list(SYSTEMS)


def test_without_a_coordinator_what_it_alone_knows_is_not_checked() -> None:
    facts = SHOWN["no-coordinator"][0]
    unknown = {row.check for row in checked(facts, diagnose(facts)) if row.result == UNKNOWN}
    assert unknown == {"ports", "workers", "pairs", "clock", "adapters"}


def test_who_is_no_client_has_a_problem_only_where_no_coordinator_is() -> None:
    facts = SHOWN["no-client"][0]
    shut = tuple(replace(knock, opened=False) for knock in facts.knocks)
    assert [trouble.name for trouble in diagnose(replace(facts, knocks=()))] == ["no-coordinator"]
    assert {trouble.name for trouble in diagnose(replace(facts, knocks=shut))} == {"no-coordinator", "blocked-port"}


def test_problems_come_before_warnings() -> None:
    facts = replace(worker(state="dead"), here=replace(HERE, multicast=(Multicast("eth0", 4, 0),)))
    assert [trouble.level for trouble in diagnose(facts)] == [PROBLEM, WARNING]


def test_a_pair_that_was_not_probed_yet_is_no_finding() -> None:
    assert diagnose(pair(path="?", rtt_s=0.0, bytes_per_s=0.0, cause="timed out")) == []


def test_a_worker_that_left_is_no_problem_unless_all_did() -> None:
    there, *_ = WELL.workers
    gone = replace(there, name="gone", state="left")
    assert diagnose(replace(WELL, workers=(*WELL.workers, gone))) == diagnose(WELL)
    names = [trouble.name for trouble in diagnose(replace(WELL, workers=(gone,), pairs=()))]
    assert names == ["no-worker"]
