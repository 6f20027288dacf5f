"""The coordinator's machine: short event scripts, then random ones with its invariants checked after every event."""

from __future__ import annotations

import random

import pytest
from support.machines.coordinator_machine import Driver, of

from coordinator.calls import events as ev
from coordinator.lifecycle.retry import ATTEMPTS_MAX, PARK_S_MAX
from wire.errors import CompileFailed, DeviceLost, NodeLost, QueueFull

LOST = NodeLost("gone")


def test_a_call_is_planned_deployed_run_and_resolved() -> None:
    drive = Driver("a", "b")
    assert drive(ev.CallSubmitted(1, "job")) == [ev.MakePlan(1, "job", frozenset({"a", "b"}))]
    assert drive(ev.PlanMade(1, frozenset({"a", "b"}), 1)) == [ev.SendDeploy(1, "a"), ev.SendDeploy(1, "b")]
    assert drive(ev.DeployDone(1, "a")) == []
    assert drive(ev.DeployDone(1, "b")) == [ev.SendRun(1, 0, "a", 1), ev.SendRun(1, 0, "b", 1)]
    assert drive(ev.NodeRan(1, 0, "a")) == []
    assert drive(ev.OutputArrived(1, 0, 0, "value")) == []
    assert drive(ev.NodeRan(1, 0, "b")) == [ev.Resolve(1, 1, {0: "value"})]
    assert drive.machine.idle


def test_a_second_call_of_a_job_runs_at_once_beside_the_first() -> None:
    drive = Driver("a", "b")
    drive(ev.CallSubmitted(1, "job"))
    drive.deployed()
    assert drive(ev.CallSubmitted(2, "job")) == [ev.SendRun(1, 1, "a", 2), ev.SendRun(1, 1, "b", 2)]


def test_calls_submitted_while_deploying_wait_for_it() -> None:
    drive = Driver("a", "b")
    drive(ev.CallSubmitted(1, "job"))
    assert drive(ev.CallSubmitted(2, "job")) == []
    assert [run.number for run in of(ev.SendRun, drive.deployed())] == [1, 1, 2, 2]


def test_a_death_replans_on_the_survivors_and_fences_the_old_generation() -> None:
    drive = Driver("a", "b")
    drive(ev.CallSubmitted(1, "job"))
    drive.deployed()
    actions = drive(ev.NodeGone("b", LOST))
    assert actions == [ev.SendDrop(1, "a"), ev.ForgetPlan(1), ev.MakePlan(2, "job", frozenset({"a"}))]
    assert drive(ev.OutputArrived(1, 0, 0, "stale")) == []
    assert drive(ev.NodeRan(1, 0, "a")) == []
    assert drive.deployed(2, ("a",)) == [ev.SendRun(2, 0, "a", 1)]
    drive(ev.OutputArrived(2, 0, 0, "fresh"))
    assert drive(ev.NodeRan(2, 0, "a")) == [ev.Resolve(1, 2, {0: "fresh"})]


def test_a_death_while_planning_or_deploying_starts_over() -> None:
    for made in (False, True):
        drive = Driver("a", "b")
        drive(ev.CallSubmitted(1, "job"))
        if made:
            drive(ev.PlanMade(1, frozenset({"a", "b"}), 1))
        assert of(ev.MakePlan, drive(ev.NodeGone("a", LOST))) == [ev.MakePlan(2, "job", frozenset({"b"}))]
        assert drive(ev.PlanMade(1, frozenset({"a", "b"}), 1)) == []
        assert drive(ev.DeployDone(1, "b")) == [ev.SendDrop(1, "b")]


def test_the_death_of_a_node_the_plan_does_not_use_lets_the_step_finish() -> None:
    drive = Driver("a", "b")
    drive(ev.CallSubmitted(1, "job"))
    drive.deployed(nodes=("a",))
    assert drive(ev.NodeGone("b", LOST)) == []
    drive(ev.OutputArrived(1, 0, 0, "value"))
    assert drive(ev.NodeRan(1, 0, "a")) == [ev.Resolve(1, 1, {0: "value"}), ev.SendDrop(1, "a"), ev.ForgetPlan(1)]


def test_a_new_node_gets_work_from_the_next_call_on() -> None:
    drive = Driver("a")
    drive(ev.CallSubmitted(1, "job"))
    drive.deployed(nodes=("a",))
    assert drive(ev.NodeJoined("b")) == []
    assert drive(ev.CallSubmitted(2, "job")) == [ev.MakePlan(2, "job", frozenset({"a", "b"}))]


def test_without_nodes_a_call_waits_then_fails_naming_the_cause() -> None:
    drive = Driver("a")
    drive(ev.CallSubmitted(1, "job"))
    drive.deployed(nodes=("a",))
    drive(ev.NodeGone("a", LOST))
    assert drive.machine.next_deadline() == 5.0
    assert drive(ev.Tick(), after_s=4.9) == []
    (rejected,) = drive(ev.Tick(), after_s=0.1)
    assert isinstance(rejected.error, NodeLost) and "no worker is left" in str(rejected.error)
    assert drive.machine.idle


def test_a_waiting_call_runs_on_the_node_that_comes_back() -> None:
    drive = Driver("a")
    drive(ev.CallSubmitted(1, "job"))
    drive(ev.NodeGone("a", LOST))
    assert drive(ev.NodeJoined("a")) == [ev.MakePlan(2, "job", frozenset({"a"}))]


def test_an_error_that_will_not_go_away_rejects_every_call_of_the_plan() -> None:
    drive = Driver("a", "b")
    drive(ev.CallSubmitted(1, "job"))
    drive(ev.CallSubmitted(2, "job"))
    drive(ev.PlanMade(1, frozenset({"a", "b"}), 1))
    error = CompileFailed("no such op")
    rejected = of(ev.Reject, drive(ev.DeployFailed(1, "a", error)))
    assert [(reject.number, reject.error) for reject in rejected] == [(1, error), (2, error)]


def test_a_failed_step_rejects_its_call_only() -> None:
    drive = Driver("a", "b")
    drive(ev.CallSubmitted(1, "job"))
    drive.deployed()
    drive(ev.CallSubmitted(2, "job"))
    actions = drive(ev.RunFailed(1, 0, "a", CompileFailed("x")))
    assert [reject.number for reject in of(ev.Reject, actions)] == [1]
    assert of(ev.SendCancel, actions) == [ev.SendCancel(1, 0, "b")]
    drive(ev.OutputArrived(1, 1, 0, "value"))
    drive(ev.NodeRan(1, 1, "a"))
    assert drive(ev.NodeRan(1, 1, "b")) == [ev.Resolve(2, 1, {0: "value"})]


def test_a_step_without_room_on_a_worker_is_tried_again_by_the_same_plan_while_calls_get_done() -> None:
    drive = Driver("a", "b")
    drive(ev.CallSubmitted(1, "job"))
    drive.deployed()
    full, step = QueueFull("no room"), 0
    for other in range(2, 2 + 2 * ATTEMPTS_MAX):  # one after the other gets done beside it
        (run, _) = of(ev.SendRun, drive(ev.CallSubmitted(other, "job")))
        actions = drive(ev.RunFailed(1, step, "b", full))
        assert of(ev.SendCancel, actions) == [ev.SendCancel(1, step, "a")]
        assert not of(ev.Reject, actions) and not of(ev.SendDrop, actions)
        drive(ev.OutputArrived(1, run.step, 0, "value"))
        drive(ev.NodeRan(1, run.step, "a"))
        assert of(ev.Resolve, drive(ev.NodeRan(1, run.step, "b")))
        again = of(ev.SendRun, actions) or of(ev.SendRun, drive(ev.Tick(), after_s=PARK_S_MAX))
        step = again[0].step
    for _ in range(ATTEMPTS_MAX):  # nobody else gets anything done any more
        actions = drive(ev.RunFailed(1, step, "b", full))
        if of(ev.Reject, actions):
            break
        step = of(ev.SendRun, drive(ev.Tick(), after_s=PARK_S_MAX))[0].step
    assert [(reject.number, reject.error) for reject in of(ev.Reject, actions)] == [(1, full)]
    assert drive.machine.idle


def test_a_retried_failure_backs_off_and_ends() -> None:
    drive = Driver("a", "b")
    drive(ev.CallSubmitted(1, "job"))
    waits = []
    for generation in range(1, ATTEMPTS_MAX + 1):
        drive(ev.PlanMade(generation, frozenset({"a", "b"}), 1))
        actions = drive(ev.DeployFailed(generation, "a", LOST))
        if of(ev.Reject, actions):
            break
        if not of(ev.MakePlan, actions):
            due = drive.machine.next_deadline()
            assert due is not None
            waits.append(due - drive.now)
            assert of(ev.MakePlan, drive(ev.Tick(), after_s=waits[-1]))
    assert generation == ATTEMPTS_MAX
    assert waits[:3] == pytest.approx([0.05, 0.1, 0.2])
    assert max(waits) == pytest.approx(PARK_S_MAX)


def test_cancel_stops_the_step_on_every_node() -> None:
    drive = Driver("a", "b")
    drive(ev.CallSubmitted(1, "job"))
    drive.deployed()
    actions = drive(ev.CallCancelled(1))
    assert of(ev.SendCancel, actions) == [ev.SendCancel(1, 0, "a"), ev.SendCancel(1, 0, "b")]
    assert drive(ev.NodeRan(1, 0, "a")) == [] and drive.machine.idle
    assert drive(ev.CallCancelled(1)) == []


def test_plans_of_a_job_that_is_over_go_with_their_weights_once_nobody_waits_for_them() -> None:
    drive = Driver("a", "b")
    drive(ev.CallSubmitted(1, "job"))
    drive.deployed()
    assert drive(ev.JobForgotten("other")) == [] and drive(ev.JobForgotten("job")) == [], "a call is under way"
    drive(ev.OutputArrived(1, 0, 0, "value"))
    drive(ev.NodeRan(1, 0, "a"))
    last = drive(ev.NodeRan(1, 0, "b"))
    assert of(ev.SendDrop, last) == [ev.SendDrop(1, "a", True), ev.SendDrop(1, "b", True)]
    assert drive(ev.CallSubmitted(2, "job")) == [ev.MakePlan(2, "job", frozenset({"a", "b"}))]


def test_a_graph_that_needs_no_node_resolves_without_one() -> None:
    drive = Driver("a")
    drive(ev.CallSubmitted(1, "job"))
    assert drive(ev.PlanMade(1, frozenset(), 0)) == [ev.Resolve(1, 1, {})]


def test_calls_wait_until_there_is_room_for_their_inputs() -> None:
    drive = Driver("a", "b", inputs_bytes_max=100)
    for call, size in enumerate((60, 60, 40, 0), 1):
        drive(ev.CallSubmitted(call, "job", input_bytes=size))
    assert [run.number for run in drive.deployed(nodes=("a",))] == [1], "the others wait in turn"
    assert drive(ev.CallSubmitted(5, "job")) == [ev.SendRun(1, 1, "a", 5)], "one without large inputs waits for nobody"
    drive(ev.NodeRan(1, 0, "a"))
    resolved, *runs = drive(ev.OutputArrived(1, 0, 0, "one"))
    assert resolved == ev.Resolve(1, 1, {0: "one"})
    assert [run.number for run in of(ev.SendRun, runs)] == [2, 3, 4], "60 and 40 fit together"


def test_a_call_with_inputs_larger_than_the_room_runs_alone() -> None:
    drive = Driver("a", inputs_bytes_max=100)
    drive(ev.CallSubmitted(1, "job", input_bytes=10))
    drive.deployed(nodes=("a",))
    assert drive(ev.CallSubmitted(2, "job", input_bytes=1000)) == []
    assert drive(ev.CallSubmitted(3, "job", input_bytes=10)) == [], "else the large one might wait for ever"
    assert [run.number for run in of(ev.SendRun, drive(ev.CallCancelled(1)))] == [2]
    assert [run.number for run in of(ev.SendRun, drive(ev.CallCancelled(2)))] == [3]


def test_programs_take_turns_in_waiting_for_room() -> None:
    drive = Driver("a", inputs_bytes_max=100)
    for generation, job in enumerate("xy", 1):
        drive(ev.CallSubmitted(generation, job))
        drive.deployed(generation, nodes=("a",))
    for call in range(3, 7):
        drive(ev.CallSubmitted(call, "x" if call < 6 else "y", input_bytes=100))
    order = [3]
    while more := of(ev.SendRun, drive(ev.CallCancelled(order[-1]))):
        order += [run.number for run in more]
    assert order == [3, 4, 6, 5]


@pytest.mark.parametrize("seed", range(300))
def test_random_scripts_keep_the_invariants_and_every_call_ends(seed: int) -> None:
    """A world that answers every action after a random delay, while nodes come and go."""
    rng = random.Random(seed)
    drive = Driver("a", "b", "c", inputs_bytes_max=100)
    alive = {"a", "b", "c"}
    outbox: list[ev.Event] = []
    ended: dict[int, ev.Action] = {}
    submitted = 0

    def perform(actions: list[ev.Action]) -> None:
        for action in actions:
            match action:
                case ev.MakePlan(generation, _, nodes):
                    used = frozenset(rng.sample(sorted(nodes), rng.randint(1, len(nodes))))
                    outbox.append(ev.PlanMade(generation, used, 2))
                case ev.SendDeploy(generation, node):
                    outbox.append(ev.DeployDone(generation, node))
                case ev.SendRun(generation, step, node, _):
                    if rng.random() < 0.05:
                        outbox.append(ev.WorkReported(node, ((generation, step, 0, rng.choice((0.1, 3.0))),)))
                    if rng.random() < 0.05:
                        lost = DeviceLost("its engine died")
                        outbox.append(ev.RunFailed(generation, step, node, lost, frozenset(rng.sample("uvwxyz", 2))))
                        continue
                    outbox.append(ev.NodeRan(generation, step, node, {0: 0.01}))
                    outbox.extend(ev.OutputArrived(generation, step, slot, (generation, slot)) for slot in (0, 1))
                case ev.Resolve(call, generation, outputs):
                    assert outputs == {slot: (generation, slot) for slot in (0, 1)}, "a stale output got in"
                    assert call not in ended
                    ended[call] = action
                case ev.Reject(call, _):
                    assert call not in ended
                    ended[call] = action

    for _ in range(150):
        choice = rng.random()
        if choice < 0.2:
            submitted += 1
            input_bytes = rng.choice((0, 0, 0, 10, 60, 100, 300))
            perform(drive(ev.CallSubmitted(submitted, rng.choice("xy"), input_bytes=input_bytes)))
        elif choice < 0.28 and alive:
            node = rng.choice(sorted(alive))
            alive.discard(node)
            perform(drive(ev.NodeGone(node, LOST)))
        elif choice < 0.36 and len(alive) < 3:
            node = rng.choice(sorted({"a", "b", "c"} - alive))
            alive.add(node)
            perform(drive(ev.NodeJoined(node)))
        elif choice < 0.4 and submitted:
            perform(drive(ev.CallCancelled(rng.randint(1, submitted))))
        elif outbox:
            perform(drive(outbox.pop(rng.randrange(len(outbox))), after_s=0.01))
    for node in {"a", "b", "c"} - alive:
        perform(drive(ev.NodeJoined(node)))
    while outbox or drive.machine.next_deadline() is not None:
        perform(drive(outbox.pop(rng.randrange(len(outbox))) if outbox else ev.Tick(), after_s=0.1))
    assert set(ended) == set(range(1, submitted + 1)) and drive.machine.idle
