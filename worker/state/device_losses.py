"""Device losses: what the loss of an engine host means for the plans, the steps and the other devices.  Pure.

Which effects follow from what is in the table of `device_recovery.py`.  Here each effect is performed.
"""

from __future__ import annotations

from collections.abc import Callable

from wire.errors import DeviceLost, MeshError

from . import events as ev
from .deployments import Deployments
from .device_recovery import Change, Effect
from .shared_state import SharedState
from .steps import Steps

EXIT_ENGINE_LOST = 3  # the last device was given up

Leave = Callable[[str, int, float], list[ev.Action]]
"""Has the worker leave: the reason, the exit code, the time."""


class DeviceLosses:
    """The losses of a worker's devices, by the table of `device_recovery.py`.  `leave` ends the worker."""

    def __init__(self, shared: SharedState, steps: Steps, deployments: Deployments, leave: Leave) -> None:
        self._shared = shared
        self._steps = steps
        self._deployments = deployments
        self._leave = leave
        self._performers: dict[Effect, Callable[[int, MeshError, float], list[ev.Action]]] = {
            Effect.FAIL_ISSUED_RUNS: self._fail_issued_runs,
            Effect.FAIL_RUNS: self._fail_runs,
            Effect.FORGET_HOST: self._forget_host,
            Effect.DROP_PLANS: self._drop_plans,
            Effect.START_HOST: self._start_host,
            Effect.PREPARE_PARTS: self._prepare_parts,
            Effect.GIVE_UP_DEVICE: self._give_up_device,
            Effect.LEAVE: self._leave_with_error,
        }

    # -- what happens

    def reported(self, index: int, error: MeshError, now: float) -> list[ev.Action]:
        """A part failed with this error.  After DeviceLost the host ends by itself, and does nothing more."""
        if not isinstance(error, DeviceLost):
            return []
        return self._perform(self._shared.devices[index].recovery.step(Change.REPORTED), index, error, now)

    def lost(self, event: ev.HostLost, now: float) -> list[ev.Action]:
        """An engine host is gone."""
        device = self._shared.devices[event.device]
        last = all(other.recovery.given_up for other in self._shared.devices if other is not device)
        effects = device.recovery.lost(now, last, device.busy_since_s)
        text = f"device {event.device} lost, the {device.recovery.losses}. time: {event.error}"
        self._shared.log.add(now, text)
        return self._perform(effects, event.device, event.error, now)

    def ready(self, event: ev.HostReady, now: float) -> list[ev.Action]:
        """A new engine host has its device."""
        self._shared.log.add(now, f"device {event.device} is back")
        return self._perform(self._shared.devices[event.device].recovery.step(Change.READY), event.device, None, now)

    def tick(self, now: float) -> list[ev.Action]:
        """Time passed."""
        devices = enumerate(() if self._shared.availability.leaving else self._shared.devices)
        due = [(index, device.recovery.due(now)) for index, device in devices]
        return [action for index, effects in due for action in self._perform(effects, index, None, now)]

    def deadlines(self) -> list[float]:
        """The times at which hosts are to be started."""
        devices = () if self._shared.availability.leaving else self._shared.devices
        return [at_s for device in devices if (at_s := device.recovery.restart_at_s) is not None]

    def _perform(self, effects: tuple[Effect, ...], index: int, error: MeshError | None, now: float) -> list[ev.Action]:
        error = error or DeviceLost(f"device {index} was lost")
        return [action for effect in effects for action in self._performers[effect](index, error, now)]

    # -- effects

    def _fail_issued_runs(self, index: int, error: MeshError, now: float) -> list[ev.Action]:
        return self._steps.fail_runs(self._shared.devices[index], error, now)

    def _fail_runs(self, index: int, error: MeshError, now: float) -> list[ev.Action]:
        device = self._shared.devices[index]
        return self._steps.fail_runs(device, error, now, culprit=device.running)

    def _forget_host(self, index: int, error: MeshError, now: float) -> list[ev.Action]:
        """Steps that need a tensor of the host's memory fail, and parts that it had wait for the new host.  A plan ends
        if its deploy may be what caused the loss, or if its carried state is gone."""
        device = self._shared.devices[index]
        device.restoring.clear()
        device.preparing.clear()
        device.postponed.clear()
        device.exporting.clear()
        actions: list[ev.Action] = []
        for plan in list(self._shared.plans.values()):
            for number in [number for number, step in plan.steps.items() if step.needs(index)]:
                actions += self._steps.close(plan, number, error.copy())
            lost = [part for part in plan.prepared if plan.parts[part].device == index]
            unanswered = [part for part in lost if part in plan.waiting_parts]
            if unanswered and not plan.deployed:  # the host may have been lost while it compiled the first of them
                deploy_error = error.copy()
                deploy_error.part = str(unanswered[0])
                actions += self._deployments.fail(plan, deploy_error, now)
                continue
            for part in lost:
                self._deployments.forget_part(plan, part)
            if plan.carried.any_on(index):
                actions += self._deployments.drop(plan, error.copy())
        return actions

    def _drop_plans(self, index: int, error: MeshError, now: float) -> list[ev.Action]:
        plans = self._shared.plans.values()
        there = [plan for plan in plans if any(part.device == index for part in plan.parts.values())]
        return [action for plan in there for action in self._deployments.drop(plan, error.copy())]

    def _start_host(self, index: int, error: MeshError, now: float) -> list[ev.Action]:
        return [] if self._shared.availability.leaving else [ev.StartHost(index)]

    def _prepare_parts(self, index: int, error: MeshError, now: float) -> list[ev.Action]:
        """Give the new host every part that it should have.  Parts run there once it has them all."""
        actions: list[ev.Action] = []
        for plan in list(self._shared.plans.values()):
            before = set(plan.prepared.values())
            actions += self._deployments.prepare_parts(plan, now)
            if plan.deployed:
                self._shared.devices[index].restoring |= set(plan.prepared.values()) - before
        return actions

    def _give_up_device(self, index: int, error: MeshError, now: float) -> list[ev.Action]:
        owner, losses = self._shared.lease.owner, self._shared.devices[index].recovery.losses
        reason = f"given up after {losses} losses, the last: {error}"
        self._shared.log.add(now, f"device {index} {reason}")
        return [ev.GiveUpDevice(index, owner.node if owner else "", reason)]

    def _leave_with_error(self, index: int, error: MeshError, now: float) -> list[ev.Action]:
        return self._leave(f"the engine host of its last device is gone: {error}", EXIT_ENGINE_LOST, now)
