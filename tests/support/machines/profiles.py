"""Machines for the planner, made up: random speeds, memories, links and devices."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np

from coordinator.planning.model.profiles import CLIENT, DeviceProfile, Link, Profiles, WorkerProfile
from wire.ir.dtypes import DTYPES
from wire.ir.ops import OPS

EVERYTHING = tuple(dtype.name for dtype in DTYPES)
NARROW = ("f32", "i32", "u32", "bool")  # what every WebGPU device computes
ALL_OPS = frozenset(OPS)
MEMORY_BYTES = 1 << 34
DISPATCH_S = 2e-5


def device(
    index: int,
    gflops: float,
    gbytes_per_s: float,
    dtypes: tuple[str, ...] = EVERYTHING,
    memory_bytes: int = MEMORY_BYTES,
    engine: str = "cpu",
) -> DeviceProfile:
    figures = f"made up {index}", gflops, gbytes_per_s, DISPATCH_S, memory_bytes
    return DeviceProfile(index, engine, *figures, able_of(dtypes))


@cache
def able_of(dtypes: tuple[str, ...]) -> Mapping[str, tuple[str, ...]]:
    """What a device computes that computes everything on these: one table for all, as those that join have."""
    return dict.fromkeys(OPS, dtypes)


def worker(number: int, *devices: DeviceProfile, memory_bytes: int = MEMORY_BYTES) -> WorkerProfile:
    return WorkerProfile(f"node-{number}", f"worker-{number}", devices, memory_bytes, ALL_OPS)


def near(*workers: WorkerProfile) -> Profiles:
    """Workers on the client's machine."""
    return Profiles(workers, frozenset(each.node_id for each in workers))


def random_profiles(rng: np.random.Generator, count: int, memory_bytes: int = MEMORY_BYTES) -> Profiles:
    """`count` workers slow enough that cutting a small graph may pay, some with a device that knows f32 only."""
    workers = [worker(number, *_devices(rng), memory_bytes=memory_bytes) for number in range(count)]
    nodes = [CLIENT, *(each.node_id for each in workers)]
    links = {
        (a, b): Link(10.0 ** rng.uniform(-5, -3), 10.0 ** rng.uniform(5, 9)) for a in nodes for b in nodes if a != b
    }
    return Profiles(tuple(workers), frozenset(nodes), links)


def alike_profiles(rng: np.random.Generator, count: int, memory_bytes: int = MEMORY_BYTES) -> Profiles:
    """`count` workers that differ in name only, as `.local(count)` starts them; at times one of them is faster."""
    devices = _devices(rng)
    workers = [worker(number, *devices, memory_bytes=memory_bytes) for number in range(count)]
    if rng.random() < 0.3:
        workers[int(rng.integers(count))] = worker(count, device(0, 1e-2, 1e-2), memory_bytes=memory_bytes)
    return near(*workers)


def _devices(rng: np.random.Generator) -> list[DeviceProfile]:
    speeds = 10.0 ** rng.uniform(-6, -3), 10.0 ** rng.uniform(-5, -2)
    if rng.random() < 0.7:
        return [device(0, *speeds)]
    return [device(0, 10.0 ** rng.uniform(-5, -3), 1e-2, NARROW), device(1, *speeds)]
