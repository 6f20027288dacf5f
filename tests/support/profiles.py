"""Machines for the planner, made up: random speeds, memories, links and devices."""

from __future__ import annotations

import numpy as np

from coordinator.profile import CLIENT, DeviceProfile, Link, Profiles, WorkerProfile
from wire.dtypes import DTYPES
from wire.ops import OPS

EVERYTHING = tuple(dtype.name for dtype in DTYPES)
ALL_OPS = frozenset(OPS)
MEMORY_BYTES = 1 << 34


def device(index: int, gflops: float, gbytes_per_s: float, dtypes: tuple[str, ...] = EVERYTHING) -> DeviceProfile:
    able = dict.fromkeys(OPS, dtypes)
    return DeviceProfile(index, "cpu", f"made up {index}", gflops, gbytes_per_s, 2e-5, MEMORY_BYTES, able)


def worker(number: int, *devices: DeviceProfile, memory_bytes: int = MEMORY_BYTES) -> WorkerProfile:
    return WorkerProfile(f"node-{number}", f"worker-{number}", devices, memory_bytes, ALL_OPS)


def random_profiles(rng: np.random.Generator, count: int, memory_bytes: int = MEMORY_BYTES) -> Profiles:
    """`count` workers slow enough that cutting a small graph may pay, some with a device that knows f32 only."""
    workers = []
    for number in range(count):
        devices = [device(0, 10.0 ** rng.uniform(-6, -3), 10.0 ** rng.uniform(-5, -2))]
        if rng.random() < 0.3:
            devices.insert(0, device(0, 10.0 ** rng.uniform(-5, -3), 1e-2, dtypes=("f32", "i32", "u32", "bool")))
            devices[1] = device(1, devices[1].gflops, devices[1].gbytes_per_s)
        workers.append(worker(number, *devices, memory_bytes=memory_bytes))
    nodes = [CLIENT, *(each.node_id for each in workers)]
    links = {
        (a, b): Link(10.0 ** rng.uniform(-5, -3), 10.0 ** rng.uniform(5, 9)) for a in nodes for b in nodes if a != b
    }
    return Profiles(tuple(workers), frozenset(nodes), links)
