"""The coordinator's machine on its own: a driver that validates it after every event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coordinator.calls import events as ev
from coordinator.calls import state as s


class Driver:
    """Feeds events, validates after each, and remembers the actions."""

    def __init__(self, *nodes: str, inputs_bytes_max: int = s.INPUTS_BYTES_MAX) -> None:
        self.machine = s.CoordinatorState(inputs_bytes_max=inputs_bytes_max)
        self.now = 0.0
        for node in nodes:
            self(ev.NodeJoined(node))

    def __call__(self, event: ev.Event, after_s: float = 0.0) -> list[ev.Action]:
        self.now += after_s
        actions = self.machine.handle(event, self.now)
        self.machine.validate()
        return actions

    def deployed(
        self,
        generation: int = 1,
        nodes: tuple[str, ...] = ("a", "b"),
        outputs: int = 1,
        seconds: Mapping[int, float] | None = None,
    ) -> list[ev.Action]:
        self(ev.PlanMade(generation, frozenset(nodes), outputs, seconds or {}))
        return [action for node in nodes for action in self(ev.DeployDone(generation, node))]


def of(kind: type, actions: list[ev.Action]) -> list[Any]:
    return [action for action in actions if isinstance(action, kind)]
