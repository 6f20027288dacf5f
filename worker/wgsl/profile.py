"""What the lowering may know about a device: its limits and a few yes/no facts.

It does not know wgpu; `device.py` fills it.  To add a fact: a field here, a line in `device.profile_of`, and, if it
changes generated text, nothing else, because every field is part of the cache key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from wire.errors import ConfigError

from ..compiler.scores import MOVES
from ..compiler.target import UNPACKING, Target
from .legalise import COSTLY, LOOPING

KIB, MIB = 1 << 10, 1 << 20
SUBGROUPS = (8, 16)  # the sizes that kernels are made for


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """The limits the compiler obeys; the defaults are WebGPU's guaranteed minimum."""

    storage_buffers: int = 8  # bound in one kernel
    binding_bytes: int = 128 * MIB  # one bound buffer
    buffer_bytes: int = 256 * MIB  # one buffer
    invocations: int = 256  # in one workgroup
    workgroup_bytes: int = 16 * KIB  # workgroup memory
    groups_per_dimension: int = 65_535

    def lowered_to(self, override: Mapping[str, int]) -> DeviceLimits:
        """These limits, none above `override`; names are the fields'."""
        known = {field.name for field in fields(self)}
        unknown = set(override) - known
        if unknown:
            raise ConfigError(f"unknown limits {sorted(unknown)}", next_step=f"Known: {', '.join(sorted(known))}")
        values = asdict(self)
        return DeviceLimits(**{name: min(value, override.get(name, value)) for name, value in values.items()})


CPU_ONLY = frozenset({"real", "imag", "complex", "fft", "cholesky", "solve", "lu", "qr", "eigh", "svd"})
"""Ops without a kernel here: the planner places them on a cpu engine."""

KINDS = {"dot": "matmul", "conv": "matmul", "scatter": "scatter", "argsort": "sort"}  # families of `kernels`

WEBGPU_MINIMUM: Mapping[str, int] = asdict(DeviceLimits())


@dataclass(frozen=True, slots=True)
class Profile:
    """One device as the compiler sees it.

    `software` devices (lavapipe, WARP) pay for barriers and per-lane loads, not for occupancy.  `loop_trips` is how
    many loop iterations one invocation may make: lavapipe silently stops at 65,535, summed over all its loops.
    `subgroup` is how many neighbouring invocations can read each other's registers, where that was measured, else 0;
    only software devices are asked.
    """

    limits: DeviceLimits = DeviceLimits()
    software: bool = True
    f16: bool = False
    subgroup: int = 0
    loop_trips: int = 60_000
    wgsl_bytes: int = 256 * KIB

    @property
    def target(self) -> Target:
        """This device as the passes see it."""
        return Target(
            self.limits.storage_buffers - 1,
            KINDS,
            MOVES | {"cast", "const"},
            COSTLY,
            LOOPING,
            scores_max=self.loop_trips // 3,
            unpacking=UNPACKING,
        )

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Names of the dtypes kernels can load and store."""
        return ("f32", "i32", "u32", "bool", "f16") if self.f16 else ("f32", "i32", "u32", "bool")
