"""What a worker says of its devices: no plan can be made by some of it, and the worker is turned away with that."""

from __future__ import annotations

import math

import msgspec
import pytest

from coordinator.planning.model.profiles import worker_profile
from wire.errors import ProtocolError
from wire.protocol.messages import DeviceReport, Joined

OPS = frozenset({"add"})
CPU = DeviceReport(0, "cpu", "", "numpy", "", True, 1 << 30, {}, {"add": ("f32",)}, 5.0, 10.0, 1e-4)


def numbered(*indices: int) -> tuple[DeviceReport, ...]:
    return tuple(msgspec.structs.replace(CPU, index=index) for index in indices)


@pytest.mark.parametrize("indices", [(), (1,), (0, 0), (1, 0), (0, 2)])
def test_devices_that_are_not_numbered_in_order_are_refused(indices: tuple[int, ...]) -> None:
    with pytest.raises(ProtocolError, match="does not number them"):
        worker_profile("n", "desk", Joined(numbered(*indices), 1 << 30, ()), OPS)


@pytest.mark.parametrize("value", [math.inf, 1e308])
@pytest.mark.parametrize("figure", ["gflops", "gbytes_per_s", "dispatch_s"])
def test_a_device_of_endless_speed_is_refused(figure: str, value: float) -> None:
    report = msgspec.structs.replace(CPU, **{figure: value})
    with pytest.raises(ProtocolError, match="endless speed"):
        worker_profile("n", "desk", Joined((report,), 1 << 30, ()), OPS)


def test_a_report_becomes_a_profile() -> None:
    profile = worker_profile("n", "desk", Joined(numbered(0, 1), 1 << 30, ()), OPS)
    assert [device.index for device in profile.devices] == [0, 1] and profile.memory_bytes == 1 << 30
    assert profile.devices[0].supports("add", ["f32"]) and not profile.devices[0].supports("add", ["f64"])
