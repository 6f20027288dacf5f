"""Paused workers in the coordinator's machine: their work goes to others, and calls wait for them or say so."""

from __future__ import annotations

from support.machines.coordinator_machine import Driver, of

from coordinator.calls import events as ev
from wire.errors import NodeLost

LOST = NodeLost("connection closed")


def test_work_of_a_paused_node_is_issued_again_at_once_on_the_others() -> None:
    drive = Driver("a", "b")
    drive(ev.CallSubmitted(1, "job"))
    drive.deployed()
    actions = drive(ev.NodePaused("a"))
    assert actions == [ev.SendDrop(1, "b"), ev.ForgetPlan(1), ev.MakePlan(2, "job", frozenset({"b"}))]
    assert drive(ev.RunFailed(1, 0, "a", NodeLost("this worker was paused"))) == [], "what comes back late is stale"
    assert drive(ev.CallSubmitted(2, "job")) == [], "later calls share the plan without it"


def test_a_paused_node_gets_work_again_once_it_is_resumed() -> None:
    drive = Driver("a", "b")
    drive(ev.NodePaused("a"))
    drive(ev.NodeJoined("a"))
    assert drive(ev.CallSubmitted(1, "job")) == [ev.MakePlan(1, "job", frozenset({"a", "b"}))]


def test_pauses_are_no_failures_however_many_there_are() -> None:
    drive = Driver("a")
    drive(ev.CallSubmitted(1, "job"))
    for _ in range(50):
        assert of(ev.Reject, drive(ev.NodePaused("a"))) == []
        assert of(ev.MakePlan, drive(ev.NodeJoined("a")))


def test_where_all_are_paused_a_call_says_so_after_a_while() -> None:
    drive = Driver("a", "b")
    drive(ev.CallSubmitted(1, "job"))
    drive(ev.NodePaused("a"))
    drive(ev.NodePaused("b"), after_s=1.0)
    assert drive.machine.next_deadline() == 6.0
    (rejected,) = drive(ev.Tick(), after_s=5.0)
    assert "all 2 workers are paused" in str(rejected.error) and "mesh-worker resume" in rejected.error.next_step


def test_a_patient_call_waits_for_paused_nodes_as_long_as_it_takes() -> None:
    drive = Driver("a")
    drive(ev.NodePaused("a"))
    drive(ev.CallSubmitted(1, "job", patient=True))
    assert drive.machine.next_deadline() is None
    assert drive(ev.Tick(), after_s=1e6) == []
    assert drive(ev.NodeJoined("a")) == [ev.MakePlan(1, "job", frozenset({"a"}))]


def test_a_patient_call_goes_on_waiting_when_the_last_paused_node_is_gone() -> None:
    drive = Driver("a", "b")
    drive(ev.NodePaused("a"))
    drive(ev.NodePaused("b"))
    drive(ev.CallSubmitted(1, "job", patient=True))
    drive(ev.NodeGone("a", LOST), after_s=100.0)
    assert drive(ev.Tick(), after_s=100.0) == [], "b may be lent again"
    drive(ev.NodeGone("b", LOST), after_s=100.0)
    assert drive.machine.next_deadline() is None and drive(ev.Tick(), after_s=1e6) == []
    assert drive(ev.NodeJoined("c")) == [ev.MakePlan(1, "job", frozenset({"c"}))]


def test_a_patient_call_whose_nodes_all_died_waits_for_another_one_and_an_impatient_one_does_not() -> None:
    drive = Driver("a")
    drive(ev.CallSubmitted(1, "job", patient=True))
    drive(ev.CallSubmitted(2, "job"))
    drive(ev.NodeGone("a", LOST))
    (rejected,) = drive(ev.Tick(), after_s=5.0)
    assert rejected.number == 2 and "no worker is left" in str(rejected.error)
    assert drive(ev.Tick(), after_s=1e6) == []
    assert drive(ev.NodeJoined("b")) == [ev.MakePlan(2, "job", frozenset({"b"}))]


def test_a_call_is_cancelled_while_it_waits_for_paused_nodes() -> None:
    drive = Driver("a")
    drive(ev.NodePaused("a"))
    drive(ev.CallSubmitted(1, "job", patient=True))
    (rejected,) = drive(ev.CallCancelled(1))
    assert rejected.number == 1 and drive.machine.idle


def test_a_node_that_was_stuck_and_is_paused_counts_as_neither() -> None:
    drive = Driver("a", "b")
    drive(ev.CallSubmitted(1, "job"))
    drive.deployed()
    drive(ev.WorkReported("a", ((1, 0, 0, 1e3),)))
    assert drive.machine.stuck == {"a"}
    drive(ev.NodePaused("a"))
    assert drive.machine.stuck == frozenset()
    assert drive(ev.WorkReported("a", ((1, 0, 0, 1e3),))) == []
