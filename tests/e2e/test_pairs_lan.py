"""`mesh-coord nodes -v` on a home's network: every pair is measured as it is, and one that is cut is relayed.

`python tests/e2e/test_pairs_lan.py` prints the table.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.lan.lan_mesh import LanMesh, until
from support.lan.namespaces import Lan, needs_namespaces, needs_rate_limit
from support.processes.commands import PATIENT_S

pytestmark = needs_namespaces
COORDINATOR = "coordinator"
NODES = (COORDINATOR, "desk", "attic")
RATE = 20_000_000  # of the slow cable, in bits per second: no machine is so busy that others look like it
Pair = tuple[str, str]


def pairs(mesh: LanMesh) -> dict[Pair, dict[str, Any]]:
    """What is known so far, by the ends' names."""
    return {(row["source"], row["target"]): row for row in mesh.coord("nodes", "-v")["pairs"]}


def known(mesh: LanMesh, within_s: float = 120.0, relayed: Sequence[Pair] = ()) -> dict[Pair, dict[str, Any]]:
    """The same once every pair is known, and direct except those; others may be relayed until their link stands."""
    wanted = {
        (source, target): "relay" if (source, target) in relayed else "direct"
        for source in NODES
        for target in NODES
        if source != target
    }
    found: dict[Pair, dict[str, Any]] = {}

    def all_there() -> bool:
        found.update(pairs(mesh))
        return {pair: row["path"] for pair, row in found.items()} == wanted

    try:
        until(all_there, within_s)
    except AssertionError as error:
        error.add_note(f"known: {found}; nodes: {mesh.coord('nodes')}")
        raise
    return found


@needs_rate_limit
def test_a_slow_cable_is_measured_as_slow_and_the_others_are_not(tmp_path: Path) -> None:
    with Lan(3) as lan:
        lan.hosts[2].limit_rate(RATE)
        mesh = LanMesh(lan.hosts[0], tmp_path, "--node-timeout", f"{PATIENT_S:g}")
        for host, name in zip(lan.hosts[1:], NODES[1:], strict=True):
            mesh.worker(host, name)
        slow, others = [], []
        for pair, row in known(mesh).items():
            assert row["rtt_s"] > 0
            (slow if "attic" in pair else others).append(row["bytes_per_s"] * 8)
        assert 0 < min(slow) <= max(slow) < 3 * RATE, "the cable lets a burst through at once"
        assert max(others) > max(slow), "not each of them, since this machine may be busy"


def test_two_workers_that_do_not_hear_each_other_are_shown_as_relayed_with_the_reason(tmp_path: Path) -> None:
    with Lan(3) as lan:
        desk, attic = lan.hosts[1:]
        desk.lose_what_goes_to(attic)
        attic.lose_what_goes_to(desk)
        mesh = LanMesh(lan.hosts[0], tmp_path, "--node-timeout", f"{PATIENT_S:g}")
        for host, name in zip(lan.hosts[1:], NODES[1:], strict=True):
            mesh.worker(host, name)
        both = ("desk", "attic"), ("attic", "desk")
        found = known(mesh, relayed=both)
        assert all(found[pair]["cause"] for pair in both)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, Lan(3) as lan:
        lan.hosts[2].limit_rate(RATE)
        mesh = LanMesh(lan.hosts[0], Path(folder))
        for host, name in zip(lan.hosts[1:], NODES[1:], strict=True):
            mesh.worker(host, name)
        for (source, target), row in known(mesh).items():
            speed = f"{row['rtt_s'] * 1e3:.2f} ms, {row['bytes_per_s'] * 8 / 1e6:.0f} Mbit/s"
            print(f"{source:12} {target:12} {row['path']:10} {speed} {row['address']} {row['cause']}")


if __name__ == "__main__":
    sys.exit(main() if len(sys.argv) == 1 else pytest.main(sys.argv))
