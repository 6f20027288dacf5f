"""Of a worker that is gone for good nothing is left, or a mesh whose workers come and go would grow."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from coordinator.runtime.worker_registry import WorkerRegistry


def test_one_that_has_been_gone_for_longest_is_forgotten_everywhere() -> None:
    def forgets(where: str) -> Any:
        return SimpleNamespace(forget=lambda node: forgotten.append((where, node)), heard_s={"a": 1.0, "b": 2.0}.get)

    forgotten: list[tuple[str, str]] = []
    registry = cast(Any, WorkerRegistry.__new__(WorkerRegistry))
    registry._known, registry._members = dict.fromkeys("abc"), {"c": None}
    registry._endpoint = SimpleNamespace(limits=SimpleNamespace(nodes_max=2))
    registry._health, registry._names, registry._pacing = (
        SimpleNamespace(detector=forgets("detector")), forgets("names"), forgets("pace"),
    )  # fmt: skip
    registry._forget_gone()
    assert registry._known.keys() == {"b", "c"}
    assert sorted(forgotten) == [("detector", "a"), ("names", "a"), ("pace", "a")]
