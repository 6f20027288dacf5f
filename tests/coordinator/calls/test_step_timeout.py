"""How long a session waits for a step: by how long steps took, longer after each that was given up."""

from __future__ import annotations

import math

import pytest
from support.machines.session_world import PIECES

from coordinator.lifecycle.step_timeout import (
    AVOIDED_S,
    FIRST_S,
    MOVE_S_MIN,
    PREPARE_S_MIN,
    STEP_OBSERVED,
    STEP_S_MIN,
    StepTimeout,
)
from coordinator.sessions import events as ev
from coordinator.sessions.state import COMPILES_LOST_MAX, Policy, SessionState
from wire.errors import DeviceLost, NodeLost, PlacementError
from wire.timeouts import DEFAULT_TIMEOUTS


def test_it_goes_by_what_steps_took_of_late() -> None:
    timeout = StepTimeout()
    timeout.planned(2.0)
    assert timeout.due_s(False) is None and timeout.half_done(0.0)
    timeout.began(10.0)
    timeout.began(11.0)  # another one, beside it
    assert timeout.due_s(False) == timeout.due_s(True) == 10.0 + FIRST_S + 20 * 2.0
    timeout.done(14.0, more=True)
    assert timeout.due_s(False) == 14.0 + STEP_OBSERVED * 4.0 and timeout.due_s(True) == 14.0 + 3 * 4.0
    assert not timeout.half_done(15.9) and timeout.half_done(16.0)
    for now in range(15, 60):
        timeout.done(float(now), more=now < 59)
    assert timeout.due_s(False) is None
    timeout.began(100.0)
    assert timeout.due_s(False) == 100.0 + STEP_S_MIN and 1.0 <= MOVE_S_MIN <= timeout.due_s(True) - 100.0 <= 3.0


def test_it_is_doubled_with_every_step_given_up_and_who_slept_waits_anew() -> None:
    timeout = StepTimeout()
    timeout.planned(0.0)
    for times in (1, 2, 4):
        timeout.began(0.0)
        assert not timeout.is_over(FIRST_S * times - 0.1, False) and timeout.is_over(FIRST_S * times, False)
        timeout.stopped()
    timeout.began(0.0)
    assert not timeout.is_over(1000.0, False) and timeout.due_s(False) == 1000.0 + 8 * FIRST_S
    timeout.done(1001.0, more=False)
    assert timeout.given_up == 0


def test_for_work_that_depends_on_values_it_has_no_end() -> None:
    timeout = StepTimeout()
    timeout.planned(math.inf)
    timeout.began(0.0)
    assert timeout.due_s(False) is None and timeout.due_s(True) is None and not timeout.is_over(1e9, False)


@pytest.mark.parametrize("whole", [True, False])
def test_a_worker_that_is_stuck_is_planned_without_for_a_while(whole: bool) -> None:
    numbers = iter(range(1, 100))
    machine = SessionState(Policy(every=100), {"a", "b"}, lambda: next(numbers), DEFAULT_TIMEOUTS)
    (plan,) = machine.begin(0.0)
    owners = {piece: frozenset({"a"}) for piece in PIECES}
    machine.handle(ev.PlanMade(plan.generation, frozenset({"a"}), 0, step_s=0.1, owners=owners), 0.0)
    machine.handle(ev.DeployDone(plan.generation, "a"), 0.0)
    machine.handle(ev.StepRequested(), 0.0)
    due_s = machine.next_deadline()
    assert due_s == FIRST_S + 20 * 0.1
    working = {"a": (plan.generation, 0, due_s - 1 if whole else 0.5)}  # else it was idle most of that time
    stuck, *actions = machine.handle(ev.Tick(working), due_s)
    assert stuck == ev.ReportStuckStep(plan.generation, frozenset({"a"} if whole else ()))
    assert ev.SendCancel(plan.generation, 0, "a") in actions and ev.SendDrop(plan.generation, "a") in actions
    assert actions[-1].nodes == ({"b"} if whole else {"a", "b"})
    machine.handle(ev.PlanFailed(actions[-1].generation, NodeLost("it is gone")), due_s + AVOIDED_S)
    (again,) = machine.handle(ev.Tick(), machine.next_deadline())
    assert again.nodes == {"a", "b"}
    machine.validate()


class _Deploying:
    """A session whose plan is being compiled."""

    def __init__(self, *nodes: str, prepare_s: float = 0.0) -> None:
        numbers = iter(range(1, 100))
        self.machine = SessionState(Policy(every=100), set(nodes), lambda: next(numbers), DEFAULT_TIMEOUTS)
        self.prepare_s = prepare_s
        self.planned(self.machine.begin(0.0))

    def planned(self, actions: list[ev.Action]) -> None:
        """The plan that was asked for is there."""
        (plan,) = [each for each in actions if isinstance(each, ev.MakePlan)]
        self.generation, self.nodes = plan.generation, plan.nodes
        owners = {piece: frozenset(self.nodes) for piece in PIECES}
        made = ev.PlanMade(self.generation, frozenset(self.nodes), 0, {}, {0: self.prepare_s}, 0.1, owners)
        self.machine.handle(made, 0.0)

    def compiles(self, node: str, seconds: float) -> list[ev.Action]:
        found = self.machine.handle(ev.CompilationReported(node, self.generation, 0, seconds), seconds)
        self.machine.validate()
        return found


@pytest.mark.parametrize(("expected_s", "patience_s"), [(0.5, PREPARE_S_MIN), (20.0, 200.0)])
def test_a_worker_that_compiles_too_long_is_planned_without_and_the_next_one_has_twice_the_time(
    expected_s: float, patience_s: float
) -> None:
    session = _Deploying("a", "b", "c", prepare_s=expected_s)
    assert session.compiles("a", patience_s) == []
    stuck, *actions = session.compiles("a", patience_s + 0.1)
    assert stuck == ev.ReportStuckStep(session.generation, frozenset({"a"}))
    session.planned(actions)
    assert session.nodes == {"b", "c"}
    assert session.compiles("b", 2 * patience_s) == [] != session.compiles("b", 2 * patience_s + 0.1)


def test_a_worker_that_is_stuck_with_something_else_is_planned_without_at_once() -> None:
    session = _Deploying("a", "b")
    stuck, *actions = session.machine.handle(ev.NodeStuck("a"), 0.5)
    assert stuck == ev.ReportStuckStep(session.generation, frozenset({"a"}))
    session.planned(actions)
    assert session.nodes == {"b"} and session.machine.handle(ev.NodeStuck("b"), 0.6) == []


def test_the_last_worker_may_compile_for_as_long_as_its_daemon_lets_it() -> None:
    assert _Deploying("a").compiles("a", 1e6) == []


def test_whoever_loses_its_device_compiling_is_avoided_and_after_some_times_the_session_ends() -> None:
    session, lost = _Deploying("a", "b", "c", "d"), DeviceLost("a part took longer than 600 s", part="0")
    tried = ""
    for node in "abcd":
        tried += node
        actions = session.machine.handle(ev.DeployFailed(session.generation, node, lost), 0.0)
        if any(isinstance(each, ev.EndSession) for each in actions):
            break
        due_s = session.machine.next_deadline()
        actions += session.machine.handle(ev.Tick(), due_s) if due_s is not None else []
        session.planned(actions)
        assert node not in session.nodes
    assert len(tried) == COMPILES_LOST_MAX and ev.EndSession(lost) in actions


def test_where_there_is_no_plan_without_those_that_were_stuck_they_are_tried_again() -> None:
    session = _Deploying("a", "b")
    _, *actions = session.compiles("a", PREPARE_S_MIN + 1)
    session.planned(actions)
    assert session.nodes == {"b"}
    session.machine.handle(ev.PlanFailed(session.generation, PlacementError("a grid of 2 needs 2")), 100.0)
    session.planned(session.machine.handle(ev.Tick(), session.machine.next_deadline()))
    assert session.nodes == {"a", "b"}
