"""Invariants: what always holds of a worker's plans, steps and devices.  Tests have it checked after every event.
Pure.

To say more of them, add an assertion; what one noun must keep of itself stands in that noun's own `validate`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from wire.protocol.messages import PlanKey

from .deployments import Plan
from .device_queue import Lane

Plans = Mapping[PlanKey, Plan]


def validate_plans(plans: Plans, dropped: Collection[PlanKey], epoch: int | None, devices: Sequence[Lane]) -> None:
    """AssertionError if a plan is here that should not be, or is not prepared; `epoch` is the owner's."""
    for key, plan in plans.items():
        assert key.epoch == epoch, "a plan without an owner, or of another epoch"
        assert key not in dropped, "a dropped plan lives"
        assert plan.deployed or not plan.steps, "a step runs on a plan that is not deployed"
        absent = [part for part in plan.parts.values() if part.part not in plan.prepared]
        if not plan.waiting_blobs:
            assert all(not devices[part.device].repair.up for part in absent), "a part is not prepared"


def validate_lanes(
    plans: Plans,
    devices: Sequence[Lane],
    runs: Mapping[int, tuple[PlanKey, int, int]],
    requests: Mapping[int, tuple[PlanKey, int | None]],
) -> None:
    """AssertionError if steps and what devices run do not agree."""
    for key, plan in plans.items():
        for number, step in plan.steps.items():
            assert number not in plan.closed, "a closed step lives"
            assert requests.get(step.request) == (key, number), "a step without its request"
            step.validate()
    queued = [entry for device in devices for entry in device.queue]
    assert len(queued) == len(set(queued)), "a part is queued twice"
    for key, number, part in queued:
        assert not plans[key].steps[number].waiting[part], "a part is queued before its inputs are there"
        assert (key, number, part) not in runs.values(), "a part is queued and runs"
    for device in devices:
        device.validate()
        assert all(run in runs for run, _ in device.told)
