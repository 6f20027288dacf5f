"""Engine hosts that are lost: what becomes of their parts and their device, and when a host counts as hung."""

from __future__ import annotations

import math
from typing import Any

import pytest
from support.machines.worker_machine import (
    CALL_INPUT,
    COORD,
    EDGE_IN,
    GRAPH,
    ME,
    ONE_PART,
    SMALL,
    TO_COORD,
    Driver,
    big,
    deploy,
    edge,
    made,
    of,
    one,
    part,
)

from wire.errors import DeviceLost, NodeLost
from wire.protocol.messages import Deployed, PlanKey, Target
from worker.engine_host.watchdog import Watchdog
from worker.state import events as ev
from worker.state.device_recovery import LOSSES_MAX, TRANSITIONS, WITHIN_S, Change, DeviceRecovery, Effect, Phase

GONE = DeviceLost("the engine host of cpu is gone: it was ended by signal 9")


def test_a_lost_engine_host_fails_the_part_that_ran_and_is_started_again() -> None:
    drive = Driver()
    drive.deployed(deploy(ONE_PART))
    drive.run(0, (0, 0, big("x")))
    actions = drive(ev.HostLost(0, GONE))
    assert of(ev.Release, actions) == [ev.Release(big("x"))]
    error = one(ev.Refuse, actions).error
    assert isinstance(error, DeviceLost) and error.part == "0" and error.retry
    assert one(ev.StartHost, actions).device == 0
    assert not of(ev.Stop, actions)


def test_a_new_engine_host_gets_its_parts_back_before_anything_runs_there() -> None:
    drive = Driver()
    drive.deployed(deploy(ONE_PART))
    drive(ev.HostLost(0, GONE))
    assert not of(ev.Execute, drive.run(0, (0, 0, SMALL))), "there is nobody to compute it"
    prepare = one(ev.Prepare, drive(ev.HostReady(0)))
    assert (prepare.graph, prepare.encoded) == (GRAPH, b"encoded")
    execute = one(ev.Execute, drive(ev.PartPrepared(prepare.prepared, 0.1, True)))
    assert execute.prepared == prepare.prepared
    assert of(ev.ReplyRan, drive(ev.PartExecuted(execute.run, made(SMALL), 0.01)))


def test_a_deploy_waits_for_a_device_that_is_being_started() -> None:
    drive = Driver()
    drive(ev.HostLost(0, GONE))
    assert not of(ev.Prepare, drive.ask_deploy(deploy(ONE_PART)))
    prepare = one(ev.Prepare, drive(ev.HostReady(0)))
    assert isinstance(one(ev.Reply, drive(ev.PartPrepared(prepare.prepared, 0.1, True))).message, Deployed)


def test_a_step_that_waits_with_a_tensor_the_lost_host_kept_fails_and_others_go_on() -> None:
    drive = Driver()
    first = part(0, [CALL_INPUT], [[Target(ME, 1, 0)]])
    second = part(1, [edge(0, 0), EDGE_IN], [TO_COORD])
    drive.deployed(deploy(first, second))
    executes = [one(ev.Execute, drive.run(0, (0, 0, SMALL)))]
    drive.run(1)
    kept = ev.DeviceTensor("f32", (2,), 0, executes[0].outputs[0].keep)
    drive(ev.PartExecuted(executes[0].run, (ev.PartOutput(kept=kept),), 0.01))
    error = one(ev.Refuse, drive(ev.HostLost(0, GONE))).error
    assert isinstance(error, DeviceLost) and error.part == "", "no part is to blame"
    assert not of(ev.Refuse, drive.push(0, 0, SMALL, step=1))


def test_a_device_that_is_lost_again_is_started_later_each_time_and_then_given_up() -> None:
    drive = Driver()
    drive.deployed(deploy(part(0, [CALL_INPUT], [TO_COORD], device=0)))
    assert of(ev.StartHost, drive(ev.HostLost(0, GONE)))
    drive(ev.HostReady(0))
    assert not of(ev.StartHost, drive(ev.HostLost(0, GONE)))
    error = one(ev.Refuse, drive.ask_deploy(deploy(ONE_PART, plan=PlanKey(7, 9)))).error
    assert isinstance(error, DeviceLost) and error.retry, "work is better done elsewhere"
    error = one(ev.Refuse, drive.run(0, (0, 0, SMALL))).error
    assert error.retry, "its plans were dropped"
    assert drive.machine.next_deadline() == drive.now + 0.5
    assert of(ev.StartHost, drive(ev.Tick(), after_s=0.5))
    drive(ev.HostReady(0))
    given_up = one(ev.GiveUpDevice, drive(ev.HostLost(0, GONE)))
    assert (given_up.device, given_up.node) == (0, COORD) and "3 losses" in given_up.reason
    error = one(ev.Refuse, drive.ask_deploy(deploy(ONE_PART, plan=PlanKey(7, 2)))).error
    assert isinstance(error, DeviceLost)
    drive.deployed(deploy(part(0, [CALL_INPUT], [TO_COORD], device=1), plan=PlanKey(7, 3)))


def test_losses_far_apart_are_accidents() -> None:
    drive = Driver()
    for _ in range(5):
        assert of(ev.StartHost, drive(ev.HostLost(0, GONE), after_s=601))
        drive(ev.HostReady(0))


def test_a_worker_without_devices_leaves_with_an_error_code() -> None:
    drive = Driver(devices=1)
    for _ in range(4):
        drive(ev.HostLost(0, GONE))
        assert of(ev.StartHost, drive(ev.Tick(), after_s=5.0)) or drive.machine.next_deadline() is None
    actions = drive(ev.HostLost(0, GONE))
    assert one(ev.SendLeaving, actions).node == COORD
    assert one(ev.Stop, actions).code == 3
    assert isinstance(one(ev.Refuse, drive.join("other")).error, NodeLost)


def test_a_host_that_says_its_device_is_gone_gets_nothing_more_until_it_is_back() -> None:
    drive = Driver()
    drive.deployed(deploy(ONE_PART))
    execute = one(ev.Execute, drive.run(0, (0, 0, SMALL)))
    drive.run(1, (0, 0, SMALL))
    failed = drive(ev.ExecuteFailed(execute.run, DeviceLost("the GPU is gone")))
    assert not of(ev.Execute, failed)
    assert not of(ev.Refuse, drive(ev.HostLost(0, GONE))), "the next step was not running and is not to blame"
    prepare = one(ev.Prepare, drive(ev.HostReady(0)))
    assert of(ev.Execute, drive(ev.PartPrepared(prepare.prepared, 0.1, True)))


# -- losses


@pytest.mark.parametrize("hung_s", [0.0, 2 * WITHIN_S])
@pytest.mark.parametrize(("between_s", "given_up"), [(1.0, True), (WITHIN_S / 4, True), (WITHIN_S + 1, False)])
def test_losses_come_together_by_how_long_the_host_did_well_between_them(
    hung_s: float, between_s: float, given_up: bool
) -> None:
    recovery, now = DeviceRecovery(), 0.0
    for _ in range(LOSSES_MAX):
        since_s = now + between_s
        now = since_s + hung_s
        recovery.lost(now, last=False, since_s=since_s)
        recovery.due(math.inf)
        recovery.step(Change.READY)
    assert recovery.given_up is given_up


def test_every_loss_forgets_what_the_host_had_and_a_device_that_is_given_up_stays_so() -> None:
    losses = (Change.LOST, Change.LOST_AGAIN, Change.LOST_TOO_OFTEN, Change.LOST_FOR_GOOD)
    for (phase, change), (after, effects) in TRANSITIONS.items():
        assert phase is not Phase.GIVEN_UP, "nothing brings it back"
        assert (change in losses) == (Effect.FORGET_HOST in effects)
        assert (after is Phase.STARTING) == (Effect.START_HOST in effects)
        assert (Effect.DROP_PLANS in effects) == (after in (Phase.WAITING, Phase.GIVEN_UP))
    assert {phase for phase, change in TRANSITIONS if change in losses} == {*Phase} - {Phase.GIVEN_UP}


# -- the watchdog


def dog() -> Watchdog:
    return Watchdog(beat_s=0.5, silence_s=2.0, part_s_max=60.0, stop_s_max=10.0)


def test_what_passed_while_the_machine_slept_counts_for_nothing() -> None:
    each = dog()
    each.asked(0.0, run=7)
    each.stopped(1.0, run=7)
    for tenth in range(10):
        each.heard()
        assert each.check(1.0 + tenth / 2) == ""
    each.heard()
    assert each.check(8 * 3600.0) == "", "eight hours with the lid closed"
    actual = ""
    for tenth in range(1, 20):
        each.heard()
        actual = actual or each.check(8 * 3600.0 + tenth / 2)
    assert "after it was cancelled" in actual, "and then it hangs all the same"


def test_silence_is_counted_in_checks_so_that_a_sleep_of_the_daemon_is_one_check() -> None:
    host = dog()
    host.heard()
    assert [host.check(now) for now in (0.5, 1000.0, 1000.5, 1001.0)] == ["", "", "", ""]
    assert "silent" in host.check(1001.5)


@pytest.mark.parametrize(("after_s", "hung"), [(59.0, False), (61.0, True)])
def test_a_part_may_take_so_long_from_when_it_begins(after_s: float, hung: bool) -> None:
    host = dog()
    host.asked(0.0)
    host.asked(0.0)
    host.answered(50.0)  # the second begins now
    assert bool(host.check(50.0 + after_s)) is hung


def test_a_run_that_goes_on_after_it_was_cancelled_is_a_hang() -> None:
    host = dog()
    host.asked(0.0, run=7)
    host.stopped(1.0, run=7)
    host.heard()
    assert host.check(11.0) == ""
    assert "after it was cancelled" in host.check(11.1)
    host.answered(11.2)
    assert host.check(100.0) == ""


@pytest.mark.parametrize(
    ("first", "ends_s", "why", "hung_s"),
    [
        ({}, None, "a part took", 60.5),
        ({}, 40.0, "cancelled", 50.5),
        ({"run": 7}, None, "a part took", 60.5),
        ({"run": 7}, 40.0, "cancelled", 50.5),
        ({"brief": True}, None, "cancelled", 10.5),
    ],
)
def test_a_run_that_is_cancelled_behind_something_counts_against_that_only_if_it_is_brief(
    first: dict[str, Any], ends_s: float | None, why: str, hung_s: float
) -> None:
    host, now, hung = dog(), 0.0, ""
    host.asked(0.0, **first)
    host.asked(0.0, run=8)
    host.stopped(0.0, run=8)
    while not hung:
        now += host.beat_s
        host.heard()
        if now == ends_s:
            host.answered(now)
        hung = host.check(now)
    assert why in hung and now == hung_s
