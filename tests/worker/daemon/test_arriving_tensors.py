"""How much may be on its way here for steps that have not begun: all of a sender's first one, and a budget beside."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.machines.worker_machine import EDGE_IN, KEY, PEER, TO_COORD, Driver, deploy, part

from wire.bounds import EARLY_OF_ONE
from wire.errors import QueueFull
from wire.protocol.messages import Push, Value
from worker.daemon.arriving_tensors import ArrivingTensors
from worker.state import events as ev

LARGE = EARLY_OF_ONE.most * 3 // 4


def push(step: int, slot: int) -> Push:
    return Push(KEY, step, 0, slot, Value("u8", (LARGE,)))


def test_a_step_that_is_larger_than_the_budget_is_taken_and_later_ones_count() -> None:
    drive, told = Driver(), list[Any]()
    drive.deployed(deploy(part(0, [EDGE_IN, EDGE_IN], [TO_COORD])))
    shell = SimpleNamespace(machine=drive.machine, feed=told.append)
    arriving = ArrivingTensors(cast(Any, shell), lambda node, why: None)
    for step, slot in ((0, 0), (0, 1), (1, 0)):
        arriving.check(push(step, slot), PEER, LARGE)
        arriving.begin(push(step, slot), PEER, LARGE)
    with pytest.raises(QueueFull, match="there is room for 128"):
        arriving.check(push(1, 1), PEER, LARGE)
    assert [type(event) for event in told] == [ev.TensorLost]
    for slot in (0, 1):
        arriving.end(push(0, slot))
    arriving.check(push(1, 1), PEER, LARGE)  # it is the first one now
