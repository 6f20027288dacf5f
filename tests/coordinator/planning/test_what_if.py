"""What follows from a death, before it happens: the plan then, which weights move, and from whom."""

from __future__ import annotations

import pytest
from support.cases.towers import layers
from support.machines.profiles import device, near, worker

from coordinator.planning.model.plan import Plan
from coordinator.planning.model.profiles import CLIENT, Link
from coordinator.planning.planner import make_plan
from coordinator.planning.redundancy.what_if import described, moves

THREE = near(*(worker(number, device(0, 1.0, 1e3)) for number in range(3)))
GRAPH = layers(64, 64, 6)
WEIGHT_BYTES = 64 * 64 * 4


def cut() -> tuple[Plan, Plan]:
    """A plan over three workers, and the one without the first."""
    return make_plan(GRAPH, THREE, "pipeline"), make_plan(GRAPH, THREE.without("node-0"), "pipeline")


def test_weights_that_only_the_dead_had_come_from_the_client() -> None:
    before, after = cut()
    found = moves(before, after, THREE, "node-0", lambda node: ())
    lost = {place.name for place in before.params if place.homes == ("node-0",)}
    assert {each.param for each in found if each.source == "client"} == lost
    assert all(each.size_bytes == WEIGHT_BYTES for each in found)
    assert {each.source for each in found} <= {"client", "peer"}
    homes = {place.name: place.homes for place in before.params}
    assert all(each.source == "peer" for each in found if "node-0" not in homes[each.param]), "the others have theirs"


def test_weights_that_another_worker_has_come_from_there_and_those_on_disk_from_nowhere() -> None:
    before, after = cut()
    everything = set(GRAPH.param_types)
    from_disk = moves(before, after, THREE, "node-0", lambda node: everything)
    assert {each.source for each in from_disk} == {"disk"} and not any(each.size_bytes for each in from_disk)
    dead_only = moves(before, after, THREE, "node-0", lambda node: everything if node == "node-0" else ())
    assert "client" in {each.source for each in dead_only}, "the dead gives nothing"


def test_what_it_takes_goes_by_the_links() -> None:
    slow = {(CLIENT, node): Link(0.0, 1e4) for node in ("node-1", "node-2")}
    profiles = near(*THREE.workers).__class__(THREE.workers, THREE.near, slow)
    before, after = cut()
    effects = described(before, after, profiles, "node-0", lambda node: (), ahead=False)
    by_worker: dict[str, float] = {}
    for each in effects["weights"]:
        by_worker[each["worker"]] = by_worker.get(each["worker"], 0.0) + each["seconds"]
    assert effects["seconds"] == pytest.approx(0.05 + max(by_worker.values()))
    assert effects["moved_bytes"] == sum(each["size_bytes"] for each in effects["weights"]) > 0
    assert effects["call_s"] == after.seconds and effects["before_s"] == before.seconds
    assert {part["worker"] for part in effects["plan"]["parts"]} == {"worker-1", "worker-2"}
