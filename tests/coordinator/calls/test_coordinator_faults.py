"""The coordinator's machine where workers are stuck, die of what they compute, or have no memory for it."""

from __future__ import annotations

import pytest
from support.machines.coordinator_machine import Driver, of

from coordinator.calls import events as ev
from coordinator.calls import state as s
from coordinator.lifecycle.step_timeout import PREPARE_S_MIN
from wire.errors import DeviceLost, MeshError, NodeLost, OutOfMemory, PoisonTask

LOST = NodeLost("gone")
ABC = ("a", "b", "c")


def running(*nodes: str, seconds: float = 0.1) -> Driver:
    """A call of one step that every node computes a part of; parts are numbered as the nodes."""
    drive = Driver(*nodes)
    drive(ev.CallSubmitted(1, "job"))
    drive.deployed(1, nodes, seconds=dict.fromkeys(range(len(nodes)), seconds))
    return drive


def working(node: str, took_s: float, part: int = 0, generation: int = 1, step: int = 0) -> ev.WorkReported:
    return ev.WorkReported(node, ((generation, step, part, took_s),))


# -- stuck


def test_a_part_that_takes_far_too_long_is_issued_again_without_its_worker() -> None:
    drive = running(*ABC)
    assert drive(working("a", 1.9)) == []
    assert drive(working("a", 2.1)) == [ev.MakePlan(2, "job", frozenset("bc"))]
    assert drive.machine.stuck == {"a"}
    assert drive(working("a", 2.2)) == [], "once is enough"


def test_the_first_answer_wins_and_the_slow_worker_is_told_to_stop() -> None:
    drive = running(*ABC)
    drive(ev.NodeRan(1, 0, "b"))
    drive(working("a", 3.0))
    drive.deployed(2, ("b", "c"))
    drive(ev.OutputArrived(2, 0, 0, "second"))
    drive(ev.NodeRan(2, 0, "b"))
    actions = drive(ev.NodeRan(2, 0, "c"))
    assert of(ev.Resolve, actions) == [ev.Resolve(1, 2, {0: "second"})]
    assert of(ev.SendCancel, actions) == [ev.SendCancel(1, 0, "a"), ev.SendCancel(1, 0, "c")]
    assert drive(ev.NodeRan(1, 0, "a")) == [] and drive.machine.idle


def test_a_slow_worker_may_still_be_first() -> None:
    drive = running(*ABC)
    drive(working("a", 3.0))
    drive.deployed(2, ("b", "c"))
    drive(ev.OutputArrived(1, 0, 0, "first"))
    actions = [action for node in ABC for action in drive(ev.NodeRan(1, 0, node))]
    assert of(ev.Resolve, actions) == [ev.Resolve(1, 1, {0: "first"})]
    assert of(ev.SendCancel, actions) == [ev.SendCancel(2, 0, "b"), ev.SendCancel(2, 0, "c")]


def test_what_a_part_took_of_late_says_how_long_it_may_take() -> None:
    drive = running("a", "b", seconds=1.0)
    assert drive(working("a", 19.0)) == [], "predictions are rough"
    for node in "ab":
        drive(ev.NodeRan(1, 0, node, {0: 1.5}))
    drive(ev.OutputArrived(1, 0, 0, "value"))
    drive(ev.CallSubmitted(2, "job"))
    assert drive(working("a", 2.9, step=1)) == []
    assert of(ev.MakePlan, drive(working("a", 3.1, step=1)))


def test_one_quick_run_does_not_shorten_the_patience_by_much() -> None:
    drive = running("a", seconds=1.0)
    for step, took_s in enumerate((4.0, 1.0)):
        drive(ev.NodeRan(1, step, "a", {0: took_s}))
        drive(ev.OutputArrived(1, step, 0, "value"))
        drive(ev.CallSubmitted(2 + step, "job"))
    drive(working("a", 6.3, step=2))
    assert not drive.machine.stuck
    drive(working("a", 6.5, step=2))
    assert drive.machine.stuck


def test_a_compilation_has_a_minute_or_ten_times_what_it_should_take() -> None:
    for expected_s, patience_s in ((0.5, PREPARE_S_MIN), (20.0, 200.0)):
        drive = Driver(*ABC)
        drive(ev.CallSubmitted(1, "job"))
        drive(ev.PlanMade(1, frozenset(ABC), 1, {}, {0: expected_s}))
        drive(ev.DeployDone(1, "b"))
        assert drive(working("b", 999.0, step=s.PREPARING, generation=9)) == [], "of another plan: it waits for a and c"
        drive(ev.WorkReported("b", ()))
        assert drive(working("a", patience_s - 0.1, step=s.PREPARING)) == []
        assert drive(working("a", patience_s + 0.1, step=s.PREPARING)) == [ev.MakePlan(2, "job", frozenset("bc"))]
        for node in "ac":
            drive(ev.DeployDone(1, node))
        drive(ev.OutputArrived(1, 0, 0, "first after all"))
        for node in ABC:
            actions = drive(ev.NodeRan(1, 0, node))
        assert of(ev.Resolve, actions) == [ev.Resolve(1, 1, {0: "first after all"})]


def test_later_calls_do_without_a_stuck_worker_until_it_goes_on() -> None:
    drive = running(*ABC)
    drive(working("a", 3.0))
    drive.deployed(2, ("b", "c"))
    assert {run.node for run in of(ev.SendRun, drive(ev.CallSubmitted(2, "job")))} == {"b", "c"}
    drive(ev.WorkReported("a", ()))
    assert drive.machine.stuck == frozenset()
    assert {run.node for run in of(ev.SendRun, drive(ev.CallSubmitted(3, "job")))} == set(ABC)


def test_a_worker_that_computes_on_for_nobody_is_stuck() -> None:
    drive = running("a", "b")
    drive(ev.CallCancelled(1))
    drive(working("a", 4.9))
    assert not drive.machine.stuck
    drive(working("a", 5.1))
    assert of(ev.MakePlan, drive(ev.CallSubmitted(2, "other"))) == [ev.MakePlan(2, "other", frozenset("b"))]


def test_where_every_worker_is_stuck_there_is_nobody_else_to_ask() -> None:
    drive = running("a", "b")
    drive(working("a", 3.0))
    drive.deployed(2, ("b",))
    assert of(ev.MakePlan, drive(working("b", 3.0, generation=2))) == []
    assert of(ev.SendRun, drive(ev.CallSubmitted(2, "job"))), "better late than never"


def test_a_call_of_a_stuck_worker_is_tried_on_one_that_joins_later() -> None:
    """The first one may never end."""
    drive = running("a")
    drive(working("a", 3.0))
    assert of(ev.MakePlan, drive(ev.NodeJoined("b"))) == [ev.MakePlan(2, "job", frozenset("b"))]
    assert not of(ev.MakePlan, drive(ev.NodeJoined("c"))), "once is enough"
    drive.deployed(2, ("b",))
    drive(ev.OutputArrived(2, 0, 0, "second"))
    assert of(ev.Resolve, drive(ev.NodeRan(2, 0, "b"))) == [ev.Resolve(1, 2, {0: "second"})]


def test_a_stuck_worker_that_dies_costs_nothing_more() -> None:
    drive = running(*ABC)
    drive(working("a", 3.0))
    drive.deployed(2, ("b", "c"))
    assert not of(ev.MakePlan, drive(ev.NodeGone("a", LOST)))
    drive(ev.OutputArrived(2, 0, 0, "value"))
    assert of(ev.Resolve, [*drive(ev.NodeRan(2, 0, "b")), *drive(ev.NodeRan(2, 0, "c"))])


def test_a_try_that_fails_beside_another_is_no_failure_of_the_call() -> None:
    drive = running(*ABC)
    drive(working("a", 3.0))
    drive.deployed(2, ("b", "c"))
    assert not of(ev.Reject, drive(ev.RunFailed(2, 0, "b", LOST)))
    drive(ev.OutputArrived(1, 0, 0, "value"))
    assert of(ev.Resolve, [action for node in ABC for action in drive(ev.NodeRan(1, 0, node))])


def test_a_cancelled_call_is_cancelled_on_every_plan() -> None:
    drive = running(*ABC)
    drive(working("a", 3.0))
    drive.deployed(2, ("b", "c"))
    cancels = of(ev.SendCancel, drive(ev.CallCancelled(1)))
    assert {(cancel.generation, cancel.node) for cancel in cancels} == {
        (1, "a"),
        (1, "b"),
        (1, "c"),
        (2, "b"),
        (2, "c"),
    }


# -- poison


def crash(drive: Driver, generation: int, node: str, *work: str) -> list[ev.Action]:
    """The engine of a node dies of its part; the call's next plan is deployed on who is left."""
    lost = DeviceLost("the engine host is gone", node=node)
    actions = drive(ev.RunFailed(generation, 0, node, lost, frozenset(work)))
    for plan in of(ev.MakePlan, actions):
        drive.deployed(plan.generation, tuple(sorted(plan.nodes)))
    return actions


def error_of(actions: list[ev.Action]) -> MeshError:
    (rejected,) = of(ev.Reject, actions)
    assert isinstance(rejected.error, MeshError)
    return rejected.error


def test_a_part_that_killed_three_engines_ends_its_call_with_its_ops() -> None:
    drive = running(*ABC, "d")
    assert of(ev.MakePlan, crash(drive, 1, "a", "dot f32[2]", "add f32[2]"))[0].nodes == frozenset("bcd")
    assert of(ev.MakePlan, crash(drive, 2, "b", "dot f32[2]"))[0].nodes == frozenset("cd")
    error = error_of(crash(drive, 3, "c", "exp f32[2]", "dot f32[2]"))
    assert isinstance(error, PoisonTask) and not error.retry
    assert error.op == "dot f32[2]" and error.node == "c" and "3 times" in str(error)


def test_other_calls_go_on_where_one_is_poison() -> None:
    drive = running(*ABC, "d")
    drive(ev.CallSubmitted(2, "other"))
    for generation, node in ((1, "a"), (3, "b"), (4, "c")):
        actions = crash(drive, generation, node, "dot f32[2]")
    assert isinstance(error_of(actions), PoisonTask)
    drive.deployed(2, (*ABC, "d"))
    drive(ev.OutputArrived(2, 0, 0, "value"))
    assert of(ev.Resolve, [action for node in (*ABC, "d") for action in drive(ev.NodeRan(2, 0, node))])


def test_crashes_that_have_nothing_in_common_are_no_poison() -> None:
    drive = running(*ABC, "d", "e")
    for generation, node, work in ((1, "a", "dot"), (2, "b", "exp"), (3, "c", "add"), (4, "d", "mul")):
        assert not of(ev.Reject, crash(drive, generation, node, work))


def test_workers_that_die_of_a_part_count_as_engines_do() -> None:
    drive = running(*ABC, "d")
    for generation, node in ((1, "a"), (2, "b"), (3, "c")):
        drive(ev.NodeBegan(generation, 0, node))
        actions = drive(ev.NodeGone(node, LOST, {generation: frozenset({"dot"})}))
        for plan in of(ev.MakePlan, actions):
            drive.deployed(plan.generation, tuple(sorted(plan.nodes)))
    assert isinstance(error_of(actions), PoisonTask)


def test_workers_that_die_before_they_began_are_not_held_against_a_part() -> None:
    drive = running(*ABC, "d")
    for generation, node in ((1, "a"), (2, "b"), (3, "c")):
        actions = drive(ev.NodeGone(node, LOST, {generation: frozenset({"dot"})}))
        for plan in of(ev.MakePlan, actions):
            drive.deployed(plan.generation, tuple(sorted(plan.nodes)))
    assert not of(ev.Reject, actions)


def test_one_bad_device_is_not_taken_for_poison() -> None:
    drive = running("a")
    for generation in (1, 2, 3):
        assert not of(ev.Reject, crash(drive, generation, "a", "dot"))
        for plan in of(ev.MakePlan, drive(ev.Tick(), after_s=1.0)):
            drive.deployed(plan.generation, ("a",))
    assert isinstance(error_of(crash(drive, 4, "a", "dot")), PoisonTask), "there is nobody else to try"


def test_a_device_that_is_away_for_a_while_is_done_without() -> None:
    drive = Driver(*ABC)
    drive(ev.CallSubmitted(1, "job"))
    drive(ev.PlanMade(1, frozenset(ABC), 1))
    actions = drive(ev.DeployFailed(1, "b", DeviceLost("device 0 was lost and is not there again")))
    assert of(ev.MakePlan, actions) == [ev.MakePlan(2, "job", frozenset("ac"))]


# -- memory


@pytest.mark.parametrize("nodes", ["ab", "abcd"])
def test_a_call_without_memory_is_tried_elsewhere_twice_then_fails(nodes: str) -> None:
    drive = running(*nodes)
    for generation, node in enumerate(nodes, start=1):
        actions = drive(ev.RunFailed(generation, 0, node, OutOfMemory("too large")))
        if of(ev.Reject, actions):
            break
        (plan,) = of(ev.MakePlan, actions)
        assert node not in plan.nodes
        drive.deployed(plan.generation, tuple(sorted(plan.nodes)))
    assert isinstance(error_of(actions), OutOfMemory)
    assert generation == min(len(nodes), 3)


def test_a_worker_that_waited_for_one_without_memory_may_go_on_with_the_call() -> None:
    drive = running(*ABC)
    actions = drive(ev.RunFailed(1, 0, "a", OutOfMemory("too large", node="b"), culprit="b"))
    assert [plan.nodes for plan in of(ev.MakePlan, actions)] == [frozenset("ac")]


# -- calls that nobody works on


def ticked(drive: Driver, until_s: float, busy: str = "") -> list[ev.Action]:
    """What comes of the time that passes, while a node computes something else, or none does."""
    actions: list[ev.Action] = []
    while drive.now < until_s:
        actions += drive(ev.Tick(), after_s=1.0)
        if busy:
            drive(ev.WorkReported(busy, ((99, 0, 0, 0.1),)))
    return actions


def test_a_plan_that_nobody_works_on_is_made_anew_and_the_next_one_has_twice_the_time() -> None:
    drive = running(*ABC)
    assert ticked(drive, s.STALLED_S_MIN) == []
    began_s = 0.0
    for generation, times in ((1, 1), (2, 2), (3, 4)):
        actions = ticked(drive, began_s + times * s.STALLED_S_MIN + s.STALLED_LOOK_S + 1.0)
        (told,) = of(ev.ReportStalled, actions)
        assert told.generation == generation and "nobody has worked" in str(told.error) and told.error.retry
        assert of(ev.SendDrop, actions) == [ev.SendDrop(generation, node) for node in ABC]
        assert of(ev.MakePlan, actions) == [ev.MakePlan(generation + 1, "job", frozenset(ABC))]
        drive.deployed(generation + 1, ABC)
        began_s = drive.now


@pytest.mark.parametrize("sign", [ev.NodeBegan(1, 0, "a"), ev.NodeRan(1, 0, "a"), ev.OutputArrived(1, 0, 0, 1.0)])
def test_every_sign_of_work_gives_it_more_time(sign: ev.Event) -> None:
    drive = running(*ABC)
    ticked(drive, s.STALLED_S_MIN - 1.0)
    drive(sign)
    assert ticked(drive, 2 * s.STALLED_S_MIN - 1.0) == []
    assert of(ev.ReportStalled, ticked(drive, 2 * s.STALLED_S_MIN + s.STALLED_LOOK_S + 1.0))


def test_it_waits_behind_what_its_nodes_compute_and_for_slow_links() -> None:
    drive = running(*ABC)
    assert of(ev.ReportStalled, ticked(drive, 1000.0, busy="b")) == []
    drive = Driver(*ABC)
    drive(ev.CallSubmitted(1, "job"))
    drive(ev.PlanMade(1, frozenset(ABC), 1, step_s=10.0))
    for node in ABC:
        drive(ev.DeployDone(1, node))
    assert of(ev.ReportStalled, ticked(drive, 10.0 * s.STALLED_PREDICTED - 1.0)) == []
    assert of(ev.ReportStalled, ticked(drive, 10.0 * s.STALLED_PREDICTED + s.STALLED_LOOK_S + 1.0))


def test_a_coordinator_that_slept_gives_all_of_it_again() -> None:
    drive = running(*ABC)
    ticked(drive, 3.0)
    assert of(ev.ReportStalled, drive(ev.Tick(), after_s=8 * 3600.0)) == []
    assert of(ev.ReportStalled, ticked(drive, 8 * 3600.0 + s.STALLED_S_MIN)) == []
    assert of(ev.ReportStalled, ticked(drive, 8 * 3600.0 + 3.0 + s.STALLED_S_MIN + s.STALLED_LOOK_S + 1.0))
