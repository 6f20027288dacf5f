"""Invariants: what always holds of a worker's plans, steps and devices.  Tests check it after every event.  Pure.

To state another one, add an assertion here, or to the class's own `validate` if it concerns one class alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from wire.protocol.messages import PlanKey

from .device_queue import DeviceQueue, Entry
from .plan import Plan

Plans = Mapping[PlanKey, Plan]


def validate_plans(
    plans: Plans,
    dropped: Collection[PlanKey],
    epoch: int | None,
    earlier: Collection[PlanKey],
    devices: Sequence[DeviceQueue],
) -> None:
    """Assert that the plans here should be here, and are prepared.  `epoch` is the owner's, `earlier` are the plans of
    its epochs before that it goes on with."""
    for key, plan in plans.items():
        assert key.epoch == epoch or key in earlier, "a plan without an owner, or of another epoch"
        assert key not in dropped, "a dropped plan lives"
        assert plan.deployed or not plan.steps, "a step runs on a plan that is not deployed"
        absent = [part for part in plan.parts.values() if part.part not in plan.prepared]
        if not plan.waiting_blobs:
            assert all(not devices[part.device].recovery.up for part in absent), "a part is not prepared"


def validate_devices(
    plans: Plans,
    devices: Sequence[DeviceQueue],
    runs: Mapping[int, Entry],
    requests: Mapping[int, tuple[PlanKey, int]],
) -> None:
    """Assert that the steps and the devices' runs do not contradict each other."""
    for key, plan in plans.items():
        for number, step in plan.steps.items():
            assert number not in plan.closed, "a closed step lives"
            assert requests.get(step.request) == (key, number), "a step without its request"
            step.validate()
    queued = [entry for device in devices for entry in device.ready]
    assert len(queued) == len(set(queued)), "a part is queued twice"
    for key, number, part in queued:
        assert not plans[key].steps[number].waiting[part], "a part is queued before its inputs are there"
        assert (key, number, part) not in runs.values(), "a part is queued and runs"
    for device in devices:
        device.validate()
        assert all(run.number in runs for run in device.given)
