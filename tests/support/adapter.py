"""Whether this machine has a WebGPU adapter, and what tests do where it has none.

Tests that need one skip with the reason, or fail where GRAPH_MESH_REQUIRE_ADAPTER=1 says that there must be one.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from worker.devices.registry import DeviceRow, list_devices

REQUIRED = os.environ.get("GRAPH_MESH_REQUIRE_ADAPTER") == "1"


@cache
def adapters() -> tuple[DeviceRow, ...]:
    return tuple(row for row in list_devices() if row.engine == "wgsl")


needs_adapter = pytest.mark.skipif(
    not REQUIRED and not adapters(), reason="no WebGPU adapter on this machine (mesa-vulkan-drivers has a software one)"
)


def as_gpu(engine: Any) -> Any:
    """A wgsl engine that gets the kernels made for GPUs, whatever its adapter is: software computes them too."""
    from worker.wgsl.shaders import Shaders

    engine._device.profile = replace(engine._device.profile, software=False, subgroup=0)
    engine._shaders = Shaders(engine._device.profile)
    return engine
