"""Shared state: the plans, devices and log that every part of the worker's machine works on.  Pure data."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from .availability import Availability
from .bounds import Bounds
from .device_queue import DeviceQueue
from .events import Log
from .lease import Lease
from .plan import DroppedPlans, Plans


@dataclass(frozen=True, slots=True)
class SharedState:
    """The worker `node`.  Run numbers, prepare numbers and the like come from one counter, `next_number`."""

    node: str
    devices: tuple[DeviceQueue, ...]
    bounds: Bounds
    lease: Lease
    availability: Availability = field(default_factory=Availability)
    plans: Plans = field(default_factory=Plans)
    dropped: DroppedPlans = field(default_factory=DroppedPlans)
    log: Log = field(default_factory=Log)
    next_number: Callable[[], int] = field(default_factory=lambda: itertools.count(1).__next__)
