"""Runs that share a device: one that takes long is suspended for others, and goes on when it has its turn."""

from __future__ import annotations

import pytest
from support.machines.worker_machine import (
    CALL_INPUT,
    COORD,
    GRAPH,
    KEY,
    ONE_PART,
    SMALL,
    TO_COORD,
    WEIGHT_IN,
    Driver,
    deploy,
    made,
    of,
    one,
    part,
    weight,
)

from wire.errors import Cancelled, DeviceLost, OutOfMemory
from wire.protocol.messages import WORKING_MAX, Carry, Gang, Member, PartSpec, PlanKey, Target, with_fields
from worker.state import events as ev
from worker.state.time_slices import RESUMED_SLICE_S, SUSPENDED_MAX, TIME_SLICE_S

FREE = part(0, [], [TO_COORD])  # it is ready as soon as it is asked for
LONG, OTHER = KEY, PlanKey(7, 2)
ROOM = 1 << 30


def tick(drive: Driver, after_s: float) -> list[ev.Action]:
    return drive(ev.Tick(), after_s)


def until_suspended(drive: Driver, actions: list[ev.Action]) -> list[ev.Action]:
    """Let time pass until a run is to be suspended."""
    while not of(ev.SuspendRun, actions):
        due_s = drive.machine.next_deadline()
        assert due_s is not None, "nothing will happen"
        actions = tick(drive, max(due_s - drive.now, 0.0) + 1e-9)
    return actions


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
    computed_s, short_s, most_s = 0.0, 0.0, 0.0
    for step in range(1, 2000):  # steps of 5 ms, 1 ms apart
        assert one(ev.ResumeRun, drive(ev.PartExecuted(other, made(SMALL), 0.005), 0.005)).run == long
        short_s, resumed_s = short_s + 0.005, drive.now
        drive.now += 0.001
        asked = until_suspended(drive, drive.run(step, plan=OTHER))
        assert one(ev.SuspendRun, asked).run == long
        computed_s, most_s = computed_s + drive.now - resumed_s, max(most_s, drive.now - resumed_s)
        other = one(ev.Execute, drive(ev.RunSuspended(long, ROOM))).run
    assert most_s <= TIME_SLICE_S + 1e-6
    assert computed_s == pytest.approx(2 * short_s, rel=0.1), "which has 10 ms at a time at least"


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
        actions = until_suspended(drive, actions)
        actions = drive(ev.RunSuspended(one(ev.SuspendRun, actions).run, ROOM))
        new = one(ev.Execute, actions) if of(ev.Execute, actions) else None
    assert drive.now - began_s <= 2 * TIME_SLICE_S


def next_of(drive: Driver, running: int) -> int:
    assert one(ev.SuspendRun, tick(drive, TIME_SLICE_S)).run == running
    actions = drive(ev.RunSuspended(running, ROOM))
    (begun,) = (*of(ev.Execute, actions), *of(ev.ResumeRun, actions))
    return int(begun.run)


def prepared(drive: Driver, generation: int, working_bytes: int) -> int:
    """A plan whose part works with so much memory; the number of that."""
    number = one(ev.Prepare, drive.ask_deploy(deploy(FREE, plan=PlanKey(7, generation)))).prepared
    drive(ev.PartPrepared(number, 0.1, False, working_bytes))
    return number


def test_what_has_no_room_beside_a_suspended_run_waits_for_its_end_and_holds_nobody_up(drive: Driver) -> None:
    large, small = prepared(drive, 3, 1000), prepared(drive, 4, 10)
    run = one(ev.Execute, drive.run(plan=LONG)).run
    drive.run(plan=PlanKey(7, 3))
    assert one(ev.SuspendRun, tick(drive, TIME_SLICE_S)).run == run
    assert one(ev.ResumeRun, drive(ev.RunSuspended(run, 999))).run == run
    assert not of(ev.SuspendRun, tick(drive, 100.0)), "the host said what room it has"
    asked = drive.run(plan=PlanKey(7, 4))
    assert one(ev.SuspendRun, asked).run == run, "it came later, and has room"
    other = one(ev.Execute, drive(ev.RunSuspended(run, 999)))
    assert other.prepared == small
    drive(ev.PartExecuted(other.run, made(SMALL), 0.1))
    assert one(ev.Execute, drive(ev.PartExecuted(run, made(SMALL), 100.0))).prepared == large


def test_the_room_is_asked_for_again_when_weights_came_or_went(drive: Driver) -> None:
    large = prepared(drive, 3, 1000)
    run = one(ev.Execute, drive.run(plan=LONG)).run
    drive.run(plan=PlanKey(7, 3))
    tick(drive, TIME_SLICE_S)
    drive(ev.RunSuspended(run, 999))
    dropped = drive(ev.DropRequested(COORD, drive.request(), OTHER), TIME_SLICE_S)
    assert one(ev.SuspendRun, dropped).run == run
    assert one(ev.Execute, drive(ev.RunSuspended(run, 1000))).prepared == large


def test_a_lost_host_has_all_its_room_again(drive: Driver) -> None:
    large = prepared(drive, 3, 1000)
    run = one(ev.Execute, drive.run(plan=LONG)).run
    drive.ask_deploy(deploy(FREE, plan=PlanKey(7, 5)))
    tick(drive, TIME_SLICE_S)
    drive(ev.RunSuspended(run, 999))
    lost = drive(ev.HostLost(0, DeviceLost("no luck")))
    assert one(ev.StartHost, lost)
    for action in of(ev.Prepare, drive(ev.HostReady(0))):
        drive(ev.PartPrepared(action.prepared, 0.1, False, 1000))
    run = one(ev.Execute, drive.run(1, plan=LONG)).run
    drive.run(plan=PlanKey(7, 3))
    assert one(ev.SuspendRun, tick(drive, TIME_SLICE_S)).run == run
    assert one(ev.Execute, drive(ev.RunSuspended(run, 1000))).prepared != large, "it was prepared anew"


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


def test_so_many_are_suspended_and_the_device_computes() -> None:
    """24 calls of ten seconds: each has whole slices."""
    drive, count, each_s = Driver(devices=1), SUSPENDED_MAX + 8, 10.0
    keys = [PlanKey(7, number) for number in range(1, count + 1)]
    for key in keys:
        drive.deployed(deploy(FREE, plan=key))
    left: dict[int, float] = {}
    active, asked, changes, most, done = 0, False, 0, 0, 0

    def perform(actions: list[ev.Action]) -> None:
        nonlocal active, asked
        for action in actions:
            match action:
                case ev.Execute(_, run) | ev.ResumeRun(_, run):
                    assert not active, "two parts on one device"
                    active = run
                    left.setdefault(run, each_s)
                case ev.SuspendRun(_, run):
                    assert run == active
                    asked = True

    began_s = drive.now
    for key in keys:
        perform(drive.run(plan=key))
    while done < count:
        due_s = drive.machine.next_deadline()
        over_s = drive.now + left[active]
        if asked:
            run, active, asked, changes = active, 0, False, changes + 1
            perform(drive(ev.RunSuspended(run, ROOM)))
            most = max(most, len(drive.machine._devices[0].slices.suspended) + 1)
        elif due_s is not None and due_s < over_s:
            left[active] -= max(due_s - drive.now, 0.0)
            perform(drive(ev.Tick(), max(due_s - drive.now, 0.0) + 1e-9))
        else:
            run, active, done = active, 0, done + 1
            perform(drive(ev.PartExecuted(run, made(SMALL), each_s), over_s - drive.now))
    assert most == SUSPENDED_MAX
    assert drive.now - began_s == pytest.approx(each_s * count)
    assert changes <= 1.1 * each_s * count / TIME_SLICE_S


def test_parts_of_one_step_do_not_make_way_for_each_other() -> None:
    drive = Driver(devices=1)
    drive.deployed(deploy(part(0, [], [TO_COORD]), part(1, [], [[Target("", 0, 1)]])))
    one(ev.Execute, drive.run())
    assert not of(ev.SuspendRun, tick(drive, 100.0))


COUNTER = PartSpec(0, 0, GRAPH, (WEIGHT_IN, CALL_INPUT), ((), tuple(TO_COORD)), (Carry(0, 0, 0),))
SESSION = PlanKey(7, 9)


class Ahead:
    """A session with a step ahead, and its parts in the order in which the host has them."""

    def __init__(self, drive: Driver) -> None:
        self.drive, self.steps = drive, 0
        self.given: list[ev.Execute] = []
        drive.deployed(deploy(COUNTER, plan=SESSION, blobs=(weight(),)))
        self.step()
        self.done()

    def take(self, actions: list[ev.Action]) -> list[ev.Action]:
        self.given += of(ev.Execute, actions)
        return actions

    def step(self) -> list[ev.Action]:
        number, self.steps = self.steps, self.steps + 1
        event = ev.RunRequested(COORD, self.drive.request(), SESSION, number, ((0, 1, SMALL),), max(0, number - 4))
        return self.take(self.drive(event))

    def done(self) -> list[ev.Action]:
        run = self.given.pop(0)
        state = ev.PartOutput(kept=ev.DeviceTensor("f32", (2,), 0, run.outputs[0].keep))
        return self.take(self.drive(ev.PartExecuted(run.run, (state, ev.PartOutput(inline=SMALL)), 0.02), 0.02))


def test_a_session_with_steps_ahead_leaves_a_suspended_run_its_half(drive: Driver) -> None:
    session, computed_s = Ahead(drive), 0.0
    run = one(ev.Execute, drive.run(plan=LONG)).run
    session.step()
    session.step()
    tick(drive, TIME_SLICE_S)
    session.take(drive(ev.RunSuspended(run, ROOM)))
    began_s = drive.now
    for _ in range(500):
        actions = [*session.step(), *session.done()]
        if not session.given:
            assert one(ev.ResumeRun, actions).run == run
            resumed_s = drive.now
            until_suspended(drive, actions)
            computed_s += drive.now - resumed_s
            session.take(drive(ev.RunSuspended(run, ROOM)))
    assert computed_s == pytest.approx((drive.now - began_s) / 2, rel=0.1)


def test_a_snapshot_of_a_session_does_not_wait_for_a_long_run(drive: Driver) -> None:
    Ahead(drive)
    run = one(ev.Execute, drive.run(plan=LONG)).run
    blob = one(ev.MakeBlob, drive(ev.SnapshotRequested(COORD, drive.request(), SESSION, 0)))
    assert one(ev.SuspendRun, tick(drive, TIME_SLICE_S)).run == run
    assert one(ev.ResumeRun, drive(ev.RunSuspended(run, ROOM))).run == run, "the host was asked for the blob before"
    assert not of(ev.SuspendRun, tick(drive, 10.0))
    assert of(ev.Reply, drive(ev.BlobMade(blob.number, b"b" * 32)))


def test_a_resumed_run_has_a_moment_at_least(drive: Driver) -> None:
    run, actions = suspended(drive)
    drive(ev.PartExecuted(one(ev.Execute, actions).run, made(SMALL), 0.001), 0.001)
    drive.now += TIME_SLICE_S  # it gets more than its half
    assert one(ev.SuspendRun, drive.run(1, plan=OTHER)).run == run
    other = one(ev.Execute, drive(ev.RunSuspended(run, ROOM)))
    drive(ev.PartExecuted(other.run, made(SMALL), 0.001), 0.001)
    assert not of(ev.SuspendRun, drive.run(2, plan=OTHER)), "it has just been resumed"
    assert one(ev.SuspendRun, tick(drive, RESUMED_SLICE_S)).run == run


def test_heartbeats_name_as_much_as_they_may() -> None:
    drive = Driver(devices=WORKING_MAX + 1)
    for device in range(WORKING_MAX + 1):
        key = PlanKey(7, device + 1)
        drive.deployed(deploy(part(0, [], [TO_COORD], device), plan=key))
        drive.run(plan=key)
    assert len(drive.machine.working(drive.now)) == WORKING_MAX
