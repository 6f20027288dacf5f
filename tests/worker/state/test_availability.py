"""A worker that is paused, or whose machine goes to sleep: it hands its work back, takes none, and comes back."""

from __future__ import annotations

import pytest
from support.machines.worker_machine import (
    COORD,
    GRAPH,
    ONE_PART,
    PEER,
    SMALL,
    WEIGHT,
    Driver,
    deploy,
    made,
    of,
    one,
    weight,
)

from wire.errors import Busy, NodeLost, StaleGeneration
from wire.protocol.messages import Done, PlanKey
from worker.state import events as ev
from worker.state.availability import COORDINATOR, MACHINE, SLEEP_S_MAX

NEXT = PlanKey(7, 2)


def pause(drive: Driver, on: bool = True, node: str = COORD) -> list[ev.Action]:
    return drive(ev.PauseRequested(node, drive.request(), on))


def refused(actions: list[ev.Action]) -> str:
    return str(one(ev.Refuse, actions).error)


def test_a_pause_hands_the_work_back_and_lets_the_dispatch_under_way_end() -> None:
    drive = Driver()
    drive.deployed(deploy(ONE_PART, blobs=(weight(""),)))
    run = one(ev.Execute, drive.run(0, (0, 0, SMALL))).run
    actions = drive(ev.PauseFileChanged(MACHINE))
    assert actions[0] == ev.SendPaused(COORD, MACHINE), "the coordinator knows before its work comes back"
    assert isinstance(one(ev.Refuse, actions).error, NodeLost) and "paused" in refused(actions)
    assert one(ev.StopRun, actions).run == run
    assert of(ev.Unprepare, actions) and one(ev.UnpinBlobs, actions).blobs == {WEIGHT}
    assert not of(ev.StopBeats, actions) and not of(ev.CloseLink, actions), "it stays"
    assert drive.machine.owner is not None and drive.machine.paused == MACHINE and drive.machine.queue_depth == 1
    assert drive(ev.PartExecuted(run, made(SMALL), 0.1)) == []
    assert drive.machine.queue_depth == 0


def test_a_paused_worker_takes_nothing_and_its_coordinator_may_try_elsewhere() -> None:
    drive = Driver()
    drive.deployed(deploy(ONE_PART))
    drive(ev.PauseFileChanged(MACHINE))
    for actions in (drive.ask_deploy(deploy(ONE_PART, plan=NEXT)), drive.run(1, (0, 0, SMALL))):
        error = one(ev.Refuse, actions).error
        assert isinstance(error, NodeLost) and error.retry and "paused" in str(error)
    assert drive.push(0, 0, SMALL, step=1, plan=NEXT) == [ev.Release(SMALL)], "nothing is kept for later"


def test_it_works_again_once_the_pause_is_over() -> None:
    drive = Driver()
    drive.deployed(deploy(ONE_PART))
    drive(ev.PauseFileChanged(MACHINE))
    assert drive(ev.PauseFileChanged("")) == [ev.SendPaused(COORD, "")]
    assert of(ev.Refuse, drive.run(1, (0, 0, SMALL))), "what it had before the pause is over"
    drive.deployed(deploy(ONE_PART, plan=NEXT))
    assert of(ev.Execute, drive.run(0, (0, 0, SMALL), plan=NEXT))
    assert drive.push(0, 0, SMALL, step=1) == [ev.Release(SMALL)], "a late push of the plan that it handed back"


def test_its_coordinator_pauses_and_resumes_it_and_it_remembers() -> None:
    drive = Driver()
    actions = pause(drive)
    assert actions == [ev.KeepPause(COORDINATOR), ev.SendPaused(COORD, COORDINATOR), ev.Reply(drive.requests, Done())]
    assert pause(drive) == [ev.Reply(drive.requests, Done())], "once is enough"
    actions = pause(drive, on=False)
    assert actions == [ev.KeepPause(""), ev.SendPaused(COORD, ""), ev.Reply(drive.requests, Done())]


def test_whoever_sits_at_the_machine_comes_first() -> None:
    drive = Driver()
    drive(ev.PauseFileChanged(MACHINE))
    assert pause(drive) == [ev.Reply(drive.requests, Done())]
    error = one(ev.Refuse, pause(drive, on=False)).error
    assert isinstance(error, Busy) and error.next_step == "Type there: mesh-worker resume"
    assert drive.machine.paused == MACHINE
    drive(ev.PauseFileChanged(""))
    pause(drive)
    assert drive(ev.PauseFileChanged("")) == [ev.SendPaused(COORD, "")], "and may end what the coordinator began"


def test_the_machine_takes_over_a_pause_without_work_being_handed_back_twice() -> None:
    drive = Driver()
    pause(drive)
    assert drive(ev.PauseFileChanged(MACHINE)) == [ev.SendPaused(COORD, MACHINE)]
    assert drive(ev.PauseFileChanged(MACHINE)) == []


def test_nobody_but_its_coordinator_pauses_it() -> None:
    drive = Driver()
    assert isinstance(one(ev.Refuse, pause(drive, node=PEER)).error, StaleGeneration)
    assert drive.machine.paused == ""


def test_it_says_at_every_join_that_it_is_paused() -> None:
    drive = Driver(join=False)
    assert drive(ev.PauseFileChanged(MACHINE)) == []
    assert one(ev.ReplyJoined, drive.join()).paused == MACHINE
    drive(ev.NodeUnlinked(COORD))
    assert one(ev.ReplyJoined, drive.join(epoch=8)).paused == MACHINE
    drive(ev.PauseFileChanged(""))
    assert one(ev.ReplyJoined, drive.join(epoch=9)).paused == ""


def test_it_beats_and_refutes_while_it_is_paused() -> None:
    drive = Driver()
    drive(ev.PauseFileChanged(MACHINE))
    assert drive(ev.SuspectedBy(COORD, 1)) == [ev.SendBeat()]


def test_graphs_that_it_learnt_are_there_after_the_pause() -> None:
    drive = Driver()
    drive.deployed(deploy(ONE_PART))
    drive(ev.PauseFileChanged(MACHINE))
    drive(ev.PauseFileChanged(""))
    again = deploy(ONE_PART, plan=NEXT)
    again.graphs.pop(GRAPH)
    assert of(ev.Prepare, drive.ask_deploy(again)), "nothing is sent twice"


def test_sleep_is_announced_like_leaving_and_nobody_has_the_worker_meanwhile() -> None:
    drive = Driver()
    drive.deployed(deploy(ONE_PART))
    drive.run(0, (0, 0, SMALL))
    actions = drive(ev.SleepRequested())
    assert actions[0] == ev.SendLeaving(COORD, "its machine goes to sleep")
    assert of(ev.StopBeats, actions) and of(ev.Refuse, actions) and not of(ev.Stop, actions)
    assert "about to sleep" in refused(drive.join(epoch=8))
    assert drive(ev.Woke(announced=True), after_s=2.0) == [ev.LookForOwner()]
    assert one(ev.ReplyJoined, drive.join(epoch=8))


@pytest.mark.parametrize("joined", [True, False])
def test_a_machine_that_does_not_sleep_after_all_is_used_again(joined: bool) -> None:
    drive = Driver(join=joined)
    drive(ev.SleepRequested())
    due_s = drive.machine.next_deadline()
    assert due_s == drive.now + SLEEP_S_MAX
    assert drive(ev.Tick(), after_s=SLEEP_S_MAX - 1) == []
    assert drive(ev.Tick(), after_s=1) == [ev.LookForOwner()]
    assert drive.machine.next_deadline() is None
    assert one(ev.ReplyJoined, drive.join(epoch=8))


def test_a_network_that_goes_down_before_the_machine_sleeps_is_not_taken_for_waking() -> None:
    drive = Driver()
    drive(ev.SleepRequested())
    assert drive(ev.Woke(), after_s=1.0) == []
    assert "about to sleep" in refused(drive.join(epoch=8))
    assert drive(ev.Woke(), after_s=SLEEP_S_MAX) == [ev.LookForOwner()], "a clock that says so long is right"


def test_waking_changes_nothing_for_one_that_has_its_coordinator_or_leaves() -> None:
    drive = Driver()
    assert drive(ev.Woke()) == []
    drive(ev.DrainRequested("SIGTERM"))
    assert drive(ev.Woke()) == []
