"""Runs that share a device: one that takes long is suspended for others, and goes on when it has its turn."""

from __future__ import annotations

import pytest
from support.machines.worker_machine import (
    COORD,
    KEY,
    ONE_PART,
    SMALL,
    TO_COORD,
    Driver,
    deploy,
    made,
    of,
    one,
    part,
)

from wire.errors import Cancelled, DeviceLost, OutOfMemory
from wire.protocol.messages import Gang, Member, PartSpec, PlanKey, with_fields
from worker.state import events as ev
from worker.state.device_queue import TIME_SLICE_S
from worker.state.time_slices import SUSPENDED_MAX, IssuedRun, TimeSlices

FREE = part(0, [], [TO_COORD])  # it is ready as soon as it is asked for
LONG, OTHER = KEY, PlanKey(7, 2)
ROOM = 1 << 30


def tick(drive: Driver, after_s: float) -> list[ev.Action]:
    return drive(ev.Tick(), after_s)


@pytest.fixture
def drive() -> Driver:
    """Two plans on one device."""
    driver = Driver(devices=1)
    for key in (LONG, OTHER):
        driver.deployed(deploy(FREE, plan=key))
    return driver


def suspended(drive: Driver, room_bytes: int = ROOM) -> tuple[int, list[ev.Action]]:
    """A long run that is suspended for another: its number, and the actions of that."""
    run = one(ev.Execute, drive.run(plan=LONG)).run
    assert not of(ev.Execute, drive.run(plan=OTHER))
    assert one(ev.SuspendRun, tick(drive, TIME_SLICE_S)).run == run
    return run, drive(ev.RunSuspended(run, room_bytes))


def test_a_run_that_nothing_waits_for_goes_on(drive: Driver) -> None:
    drive.run(plan=LONG)
    assert drive.machine.next_deadline() is None or not of(ev.SuspendRun, tick(drive, 100.0))


def test_a_run_has_its_time_slice_and_then_another_begins(drive: Driver) -> None:
    run = one(ev.Execute, drive.run(plan=LONG)).run
    assert not of(ev.SuspendRun, drive.run(plan=OTHER))
    assert not of(ev.SuspendRun, tick(drive, TIME_SLICE_S - 0.01))
    assert drive.machine.next_deadline() == pytest.approx(drive.now + 0.01)
    assert one(ev.SuspendRun, tick(drive, 0.02)) == ev.SuspendRun(0, run)
    assert not of(ev.SuspendRun, tick(drive, 1.0)), "it is asked once"
    other = one(ev.Execute, drive(ev.RunSuspended(run, ROOM)))
    assert other.prepared != run
    resumed = drive(ev.PartExecuted(other.run, made(SMALL), 0.001), 0.001)
    assert one(ev.ResumeRun, resumed) == ev.ResumeRun(0, run, False) and one(ev.ReplyRan, resumed).plan == OTHER
    assert one(ev.ReplyRan, drive(ev.PartExecuted(run, made(SMALL), 9.0))).plan == LONG
    assert drive.machine.queue_depth == 0


def test_one_that_is_over_before_it_could_be_suspended_makes_way_as_any(drive: Driver) -> None:
    run = one(ev.Execute, drive.run(plan=LONG)).run
    drive.run(plan=OTHER)
    assert of(ev.SuspendRun, tick(drive, TIME_SLICE_S))
    assert one(ev.Execute, drive(ev.PartExecuted(run, made(SMALL), 0.3)))
    assert not of(ev.ResumeRun, drive(ev.PartExecuted(run + 1, made(SMALL), 0.3)))


def test_a_deploy_has_a_run_suspended_too(drive: Driver) -> None:
    """The host compiles parts one by one with runs."""
    run = one(ev.Execute, drive.run(plan=LONG)).run
    third = PlanKey(7, 3)
    prepared = one(ev.Prepare, drive.ask_deploy(deploy(FREE, plan=third))).prepared
    assert one(ev.SuspendRun, tick(drive, TIME_SLICE_S)).run == run
    assert not of(ev.ResumeRun, drive(ev.RunSuspended(run, ROOM))), "the host compiles first"
    assert one(ev.ResumeRun, drive(ev.PartPrepared(prepared, 0.1, False))).run == run


def test_short_parts_do_not_wait_for_a_long_run_again_and_it_gets_its_half(drive: Driver) -> None:
    long, actions = suspended(drive)
    other = one(ev.Execute, actions).run
    computed_s, waited_s, short_s, most_s = 0.0, 0.0, 0.0, 0.0
    for step in range(1, 2000):  # steps of 5 ms, 1 ms apart
        assert one(ev.ResumeRun, drive(ev.PartExecuted(other, made(SMALL), 0.005), 0.005)).run == long
        short_s += 0.005
        resumed_s = drive.now
        drive.now += 0.001
        asked = drive.run(step, plan=OTHER)
        if not of(ev.SuspendRun, asked):
            due_s = drive.machine.next_deadline()
            assert due_s is not None
            most_s, waited_s = max(most_s, due_s - drive.now), waited_s + due_s - drive.now
            asked = tick(drive, due_s - drive.now)
        assert one(ev.SuspendRun, asked).run == long
        computed_s += drive.now - resumed_s
        other = one(ev.Execute, drive(ev.RunSuspended(long, ROOM))).run
    assert most_s <= TIME_SLICE_S
    assert computed_s == pytest.approx(short_s, rel=0.1)


def test_long_runs_take_turns_and_a_new_one_waits_for_a_slice_at_most() -> None:
    drive = Driver(devices=1)
    keys = [PlanKey(7, number) for number in range(1, 10)]
    for key in keys:
        drive.deployed(deploy(FREE, plan=key))
    first = one(ev.Execute, drive.run(plan=keys[0])).run
    for key in keys[1:8]:
        drive.run(plan=key)
    running, turns = first, [first]
    for _ in range(30):
        running = next_of(drive, running)
        turns.append(running)
    assert turns[8:16] == turns[16:24] and len(set(turns)) == 8, "each has its turn, in order"
    began_s, new = drive.now, None
    actions = drive.run(plan=keys[8])
    while new is None:
        if not of(ev.SuspendRun, actions):
            due_s = drive.machine.next_deadline()
            assert due_s is not None
            actions = tick(drive, due_s - drive.now)
        actions = drive(ev.RunSuspended(one(ev.SuspendRun, actions).run, ROOM))
        new = one(ev.Execute, actions) if of(ev.Execute, actions) else None
    assert drive.now - began_s <= 2 * TIME_SLICE_S


def next_of(drive: Driver, running: int) -> int:
    assert one(ev.SuspendRun, tick(drive, TIME_SLICE_S)).run == running
    actions = drive(ev.RunSuspended(running, ROOM))
    (begun,) = (*of(ev.Execute, actions), *of(ev.ResumeRun, actions))
    return int(begun.run)


def test_what_has_no_room_beside_a_suspended_run_waits_for_its_end(drive: Driver) -> None:
    third = PlanKey(7, 3)
    prepared = one(ev.Prepare, drive.ask_deploy(deploy(FREE, plan=third))).prepared
    drive(ev.PartPrepared(prepared, 0.1, False, 1000))
    run = one(ev.Execute, drive.run(plan=LONG)).run
    drive.run(plan=third)
    assert one(ev.SuspendRun, tick(drive, TIME_SLICE_S)).run == run
    assert one(ev.ResumeRun, drive(ev.RunSuspended(run, 999))).run == run
    assert not of(ev.SuspendRun, tick(drive, 100.0)), "the host said what room it has"
    assert one(ev.Execute, drive(ev.PartExecuted(run, made(SMALL), 100.0))).prepared == prepared


def test_what_cannot_be_prepared_beside_a_suspended_run_is_prepared_after_it(drive: Driver) -> None:
    run = one(ev.Execute, drive.run(plan=LONG)).run
    prepared = one(ev.Prepare, drive.ask_deploy(deploy(FREE, plan=PlanKey(7, 3)))).prepared
    request = drive.requests
    tick(drive, TIME_SLICE_S)
    drive(ev.RunSuspended(run, ROOM))
    assert one(ev.ResumeRun, drive(ev.PrepareFailed(prepared, OutOfMemory("no"), postponed=True))).run == run
    assert not of(ev.SuspendRun, tick(drive, 100.0))
    assert one(ev.Prepare, drive(ev.PartExecuted(run, made(SMALL), 100.0))).prepared == prepared
    assert one(ev.Reply, drive(ev.PartPrepared(prepared, 0.1, False))).request == request


def test_a_suspended_run_that_nobody_waits_for_any_more_ends_next(drive: Driver) -> None:
    run, actions = suspended(drive)
    other = one(ev.Execute, actions)
    cancelled = drive(ev.CancelRequested(COORD, LONG, 0))
    assert of(ev.Refuse, cancelled) and not of(ev.StopRun, cancelled), "the host does another one now"
    assert one(ev.SuspendRun, tick(drive, TIME_SLICE_S)).run == other.run
    assert one(ev.ResumeRun, drive(ev.RunSuspended(other.run, ROOM))) == ev.ResumeRun(0, run, True)
    ended = drive(ev.ExecuteFailed(run, Cancelled("the run was stopped")))
    assert one(ev.ResumeRun, ended).run == other.run


def test_one_that_was_cancelled_while_it_was_being_suspended_ends(drive: Driver) -> None:
    run = one(ev.Execute, drive.run(plan=LONG)).run
    drive.run(plan=OTHER)
    tick(drive, TIME_SLICE_S)
    assert one(ev.StopRun, drive(ev.CancelRequested(COORD, LONG, 0))).run == run
    assert one(ev.ResumeRun, drive(ev.RunSuspended(run, ROOM))) == ev.ResumeRun(0, run, True)


def test_a_dropped_plan_leaves_no_suspended_run(drive: Driver) -> None:
    run, actions = suspended(drive)
    drive(ev.DropRequested(COORD, drive.request(), LONG))
    assert one(ev.ResumeRun, drive(ev.PartExecuted(one(ev.Execute, actions).run, made(SMALL), 0.1))).stop
    assert drive(ev.ExecuteFailed(run, Cancelled("the run was stopped"))) == []
    assert drive.machine.queue_depth == 0


def test_a_lost_host_takes_its_suspended_runs_along(drive: Driver) -> None:
    suspended(drive)
    lost = drive(ev.HostLost(0, DeviceLost("no luck")))
    assert len(of(ev.Refuse, lost)) == 2
    errors = {refused.error.part for refused in of(ev.Refuse, lost)}
    assert errors == {"", "0"}, "what ran is blamed, and not what was suspended"


def test_suspended_runs_count_as_work(drive: Driver) -> None:
    """A coordinator that heard of nothing would take the call for stuck."""
    suspended(drive)
    drive.now += 3.0
    (now, before) = drive.machine.working(drive.now)
    assert (now.plan, now.seconds) == (OTHER, 3.0)
    assert (before.plan, before.seconds) == (LONG, TIME_SLICE_S)


def test_ranks_of_gangs_are_not_suspended() -> None:
    """Other ranks would wait for them."""
    gang = Gang(("dp",), (1,), 0, (Member("me", 0, 0),))
    drive = Driver(devices=1)
    message = deploy(PartSpec(0, 0, ONE_PART.graph, (), ((TO_COORD[0],),), gang=gang))
    drive.deployed(with_fields(message, ordered=True))
    drive.deployed(deploy(FREE, plan=OTHER))
    drive.run()
    drive.run(plan=OTHER)
    assert not of(ev.SuspendRun, tick(drive, 100.0))


def test_so_many_are_suspended_and_no_more() -> None:
    slices = TimeSlices()
    for number in range(SUSPENDED_MAX):
        assert not slices.full
        slices.suspend(IssuedRun(number, ()), ROOM, 0.25, 0.25)
    assert slices.full and slices.resume_first, "what is ready waits"
    assert slices.resume().number == 0 and not slices.full
