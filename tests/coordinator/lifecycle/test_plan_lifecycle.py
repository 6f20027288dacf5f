"""The life of a plan, as calls and sessions share it, and as the architecture page has it in a table."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from coordinator.calls.state import CoordinatorState
from coordinator.lifecycle import events as ev
from coordinator.lifecycle.plan_lifecycle import LivePlan, Phase, PlanLifecycle
from coordinator.lifecycle.retry import ATTEMPTS_MAX, PARK_S_MAX, Retry
from coordinator.sessions.state import SessionState
from wire.errors import ExecuteFailed, MeshError

PAGE = Path(__file__).parents[3] / "docs" / "architecture.md"
ERROR: MeshError = ExecuteFailed("the test says so")
NODES = frozenset({"a", "b"})


class Owner(PlanLifecycle[LivePlan]):
    """It runs a step as soon as it can, and drops a plan that failed or is done."""

    def __init__(self) -> None:
        super().__init__()
        self._nodes = NODES
        self.done: list[dict[int, Any]] = []
        self.actions = self._make(LivePlan(1, NODES), "job")

    def handle(self, event: Any) -> list[Any]:
        self.actions = self._handlers[type(event)](event, 0.0)
        return self.actions

    @property
    def phase(self) -> str:
        return self._plans[1].phase.name if 1 in self._plans else "forgotten"

    def _when_made(self, plan: LivePlan, event: ev.PlanMade, now: float) -> list[Any]:
        return self._deploy(plan, now)

    def _when_ready(self, plan: LivePlan, now: float) -> list[Any]:
        return self._run(plan, 7, now)

    def _when_not_made(self, plan: LivePlan, event: ev.PlanFailed, now: float) -> list[Any]:
        return self._drop(plan)

    def _when_not_deployed(self, plan: LivePlan, event: ev.DeployFailed, now: float) -> list[Any]:
        return self._drop(plan)

    def _when_not_run(self, plan: LivePlan, event: ev.RunFailed, now: float) -> list[Any]:
        return self._drop(plan)

    def _when_done(self, plan: LivePlan, step: int, now: float) -> list[Any]:
        self.done.append(plan.steps.pop(step).outputs)
        plan.phase = Phase.STOPPED
        return []


MADE, READY = ev.PlanMade(1, NODES, 1), (ev.DeployDone(1, "a"), ev.DeployDone(1, "b"))
DONE = (ev.NodeBegan(1, 0, "a"), ev.OutputArrived(1, 0, 0, 5.0), ev.NodeRan(1, 0, "a"), ev.NodeRan(1, 0, "b"))
UNTIL: dict[str, tuple[Any, ...]] = {  # the events until a plan is in a phase
    "PLANNING": (),
    "DEPLOYING": (MADE,),
    "RUNNING": (MADE, *READY),
    "STOPPED": (MADE, *READY, *DONE),
}
EVENTS: dict[str, tuple[Any, ...]] = {
    "PlanMade": (MADE,),
    "PlanFailed": (ev.PlanFailed(1, ERROR),),
    "DeployDone of each node": READY,
    "DeployFailed": (ev.DeployFailed(1, "a", ERROR),),
    "NodeRan of each node, all outputs": DONE,
    "RunFailed": (ev.RunFailed(1, 0, "b", ERROR),),
}
ROWS = re.findall(r"^\| (PLANNING|DEPLOYING|RUNNING|STOPPED) \| (.+?) \| (.+?) \| (.+?) \|$", PAGE.read_text(), re.M)


def reached(phase: str) -> Owner:
    owner = Owner()
    for event in UNTIL[phase]:
        owner.handle(event)
    assert owner.phase == phase
    return owner


def test_the_table_of_the_architecture_page_is_complete() -> None:
    assert {(phase, event) for phase, event, *_ in ROWS} == {
        ("PLANNING", "PlanMade"),
        ("PLANNING", "PlanFailed"),
        ("DEPLOYING", "DeployDone of each node"),
        ("DEPLOYING", "DeployFailed"),
        ("RUNNING", "NodeRan of each node, all outputs"),
        ("RUNNING", "RunFailed"),
    }


@pytest.mark.parametrize(("phase", "event", "actions", "after"), ROWS)
def test_a_plan_lives_as_the_architecture_page_says(phase: str, event: str, actions: str, after: str) -> None:
    owner, found = reached(phase), list[Any]()
    for each in EVENTS[event]:
        found += owner.handle(each)
    wanted = set(re.findall(r"`(\w+)`", actions))
    assert {type(action).__name__ for action in found} <= wanted
    assert owner.phase == after or (after == "its owner decides" and owner.phase in ("forgotten", "STOPPED"))


@pytest.mark.parametrize("phase", UNTIL)
def test_what_is_late_changes_nothing(phase: str) -> None:
    """Events of a plan, a step or a phase that is over, or that never was."""
    owner = reached(phase)
    late = [
        ev.PlanMade(2, NODES, 1),
        ev.PlanFailed(2, ERROR),
        ev.DeployFailed(2, "a", ERROR),
        ev.NodeBegan(1, 9, "a"),
        ev.NodeRan(1, 9, "a"),
        ev.NodeRan(2, 0, "a"),
        ev.OutputArrived(1, 9, 0, 1.0),
        ev.RunFailed(1, 9, "a", ERROR),
    ]
    if phase != "DEPLOYING":
        late.append(ev.DeployDone(1, "a"))
    before = owner.phase, dict(owner._plans[1].steps)
    assert [owner.handle(event) for event in late] == [[]] * len(late)
    assert (owner.phase, owner._plans[1].steps) == before


def test_a_worker_that_deployed_what_is_forgotten_is_told_so() -> None:
    owner = reached("DEPLOYING")
    owner.handle(ev.DeployFailed(1, "a", ERROR))
    assert owner.handle(ev.DeployDone(1, "b")) == [ev.SendDrop(1, "b")]
    assert owner.handle(ev.DeployDone(1, "gone")) == []


def test_only_those_who_were_told_of_a_plan_are_told_to_drop_it() -> None:
    planning, running = reached("PLANNING"), reached("RUNNING")
    assert planning.handle(ev.PlanFailed(1, ERROR)) == [ev.ForgetPlan(1)]
    running._nodes = frozenset({"b"})
    assert running.handle(ev.RunFailed(1, 0, "b", ERROR)) == [ev.SendDrop(1, "b"), ev.ForgetPlan(1)]


def test_a_step_is_done_once_all_nodes_ran_and_all_outputs_came() -> None:
    owner = reached("RUNNING")
    for event in DONE[:-1]:
        assert owner.handle(event) == [] and not owner.done
    owner.handle(DONE[-1])
    assert owner.done == [{0: 5.0}]


def test_calls_and_sessions_take_the_events_of_a_plan_in_the_same_way() -> None:
    methods = {name for name, value in vars(PlanLifecycle).items() if inspect.isfunction(value)}
    shared = {name for name in methods if not name.startswith("_when_")} - {"__init__"}
    assert len(shared) > 10
    for owner in (CoordinatorState, SessionState):
        assert issubclass(owner, PlanLifecycle)
        assert not shared & vars(owner).keys(), "it has a way of its own"


def test_what_fails_again_and_again_waits_longer_and_is_given_up() -> None:
    retry, waits = Retry(), list[float]()
    while not retry.failed():
        retry.park(100.0)
        waits.append((retry.parked_until_s or 100.0) - 100.0)
        assert retry.is_due(100.0 + waits[-1]) == (len(waits) > 1)
        retry.unpark()
        assert not retry.is_due(200.0)
    assert len(waits) == ATTEMPTS_MAX - 1 and waits[0] == 0.0, "the first failure is tried again at once"
    assert waits == sorted(waits) and waits[-1] == pytest.approx(PARK_S_MAX)
    retry.succeeded()
    assert not retry.failed(), "it begins anew"
