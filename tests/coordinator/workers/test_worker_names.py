"""Names of workers: each is one connected worker's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from support.call_count import calls_of

from coordinator.workers.worker_names import NamesTaken


class Joining:
    """Workers that join under the names that they are given."""

    def __init__(self) -> None:
        self.members: dict[str, Any] = {}
        self.names = NamesTaken(self.members)

    def join(self, node: str, name: str) -> str:
        given = self.names.give(node, name)
        self.members[node] = SimpleNamespace(profile=SimpleNamespace(name=given))
        return given


def test_a_name_that_another_worker_has_gets_a_number() -> None:
    mesh = Joining()
    assert [mesh.join(node, "worker") for node in "abc"] == ["worker", "worker-2", "worker-3"]
    assert mesh.join("d", "worker-2") == "worker-4"


def test_a_worker_that_joins_again_has_its_own_name() -> None:
    mesh = Joining()
    mesh.join("a", "worker")
    assert mesh.join("b", "worker") == "worker-2"
    assert mesh.join("a", "worker") == "worker"
    assert mesh.join("b", "other") == "other"
    assert mesh.join("c", "worker") == "worker-2", "nobody has it any more"


def test_the_name_of_a_worker_that_is_gone_is_free() -> None:
    mesh = Joining()
    mesh.join("a", "worker")
    del mesh.members["a"]
    assert mesh.join("b", "worker") == "worker"
    assert mesh.join("a", "worker") == "worker-2", "another has it now"
    del mesh.members["a"]
    mesh.names.forget("a")
    mesh.names.forget("never joined")
    assert mesh.join("c", "worker") == "worker-2"


def test_a_name_is_given_without_a_look_at_all_workers() -> None:
    mesh = Joining()
    calls = [calls_of(lambda at=at: mesh.join(str(at), f"worker-{at}x")) for at in range(500)]
    assert max(calls) <= 1.5 * calls[1]
