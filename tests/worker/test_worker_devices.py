"""The devices that a worker opens for its flags, and what it says if there is no such device."""

from __future__ import annotations

import pytest

from wire.errors import ConfigError
from worker.devices.registry import DeviceRow, choose, selections


def row(select: str, adapter: str, software: bool = False) -> DeviceRow:
    return DeviceRow(select, "wgsl", adapter, "Vulkan", "", "CPU" if software else "DiscreteGPU", software)


GPU, SMALL = row("0", "GeForce RTX 4090"), row("1", "Intel Iris")
LAVAPIPE = row("2", "llvmpipe (LLVM 15)", software=True)
ALL = (GPU, SMALL, LAVAPIPE)


@pytest.mark.parametrize(
    ("asked", "opened"),
    [
        ((), ("best", "processor")),
        (("cpu",), ("cpu",)),
        (("wgsl",), ("wgsl", "processor")),
        (("cpu", "1", "0", "1"), ("1", "0", "cpu")),
        (("native",), ("native",)),
        (("1", "native", "cpu"), ("1", "native")),
    ],
)
def test_the_cpu_is_always_opened_and_always_last(asked: tuple[str, ...], opened: tuple[str, ...]) -> None:
    assert selections(asked) == opened


@pytest.mark.parametrize(
    ("rows", "selection", "chosen"),
    [
        (ALL, "best", GPU),
        (ALL, "wgsl", GPU),
        (ALL, "1", SMALL),
        (ALL, "iris", SMALL),
        (ALL, "llvmpipe", LAVAPIPE),
        ((LAVAPIPE,), "best", None),
        ((LAVAPIPE,), "wgsl", LAVAPIPE),
        ((), "best", None),
    ],
)
def test_software_adapters_are_used_only_when_asked_for(
    rows: tuple[DeviceRow, ...], selection: str, chosen: DeviceRow | None
) -> None:
    assert choose(rows, selection) is chosen


@pytest.mark.parametrize("selection", ["3", "radeon", "unobtainium"])
def test_a_device_that_is_not_there_is_an_error_that_lists_what_is(selection: str) -> None:
    with pytest.raises(ConfigError, match="GeForce RTX 4090"):
        choose(ALL, selection)


def test_no_adapter_at_all_is_said() -> None:
    with pytest.raises(ConfigError, match="cpu, no adapter"):
        choose((), "wgsl")
