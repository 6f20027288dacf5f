"""What a worker tells of its work before that is done, and what counts as hearing its coordinator."""

from __future__ import annotations

import pytest
from support.machines.worker_machine import (
    CALL_INPUT,
    COORD,
    EDGE_IN,
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

from wire.protocol.messages import Began, Target
from worker.state import events as ev
from worker.state.bounds import BEGAN_S


def test_began_is_told_once_per_step_that_takes_a_while() -> None:
    drive = Driver()
    drive.deployed(deploy(ONE_PART, part(1, [CALL_INPUT], [[Target("", 0, 1)]], device=1)))
    actions = drive.run(0, (0, 0, SMALL), (1, 0, SMALL))
    assert len(of(ev.Execute, actions)) == 2 and not of(ev.SendBegan, actions)
    assert not of(ev.SendBegan, drive(ev.Tick(), after_s=BEGAN_S / 2))
    assert drive.machine.next_deadline() == pytest.approx(drive.now + BEGAN_S / 2)
    assert one(ev.SendBegan, drive(ev.Tick(), after_s=BEGAN_S)).began == Began(KEY, 0, 0)
    assert not of(ev.SendBegan, drive(ev.Tick(), after_s=BEGAN_S))


def test_a_step_that_is_done_soon_tells_its_beginning_by_its_answer() -> None:
    drive = Driver()
    drive.deployed(deploy(ONE_PART))
    for step in range(2):
        execute = one(ev.Execute, drive.run(step, (0, 0, SMALL)))
        assert one(ev.ReplyRan, drive(ev.PartExecuted(execute.run, made(SMALL), 0.001), after_s=0.001))
    assert not of(ev.SendBegan, drive(ev.Tick(), after_s=BEGAN_S)), "nothing runs"


def test_the_coordinator_is_heard_by_the_runs_and_tensors_that_it_sends() -> None:
    for say in (lambda drive: drive.run(9), lambda drive: drive(ev.TensorArrived(COORD, KEY, 9, 0, 0, SMALL))):
        drive = Driver(join=False)
        drive.join(silence_s=2.0)
        drive.deployed(deploy(part(0, [EDGE_IN], [TO_COORD])))
        for _ in range(4):
            drive.now += 1.5
            say(drive)
            assert not of(ev.LookForOwner, drive(ev.Tick()))
        drive(ev.Tick(), after_s=1.5)
        assert of(ev.LookForOwner, drive(ev.Tick(), after_s=1.5)), "it is silent now"
