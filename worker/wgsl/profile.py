"""What the lowering may know about a device: its limits and a few yes/no facts.

It does not know wgpu; `device.py` fills it.  To add a fact: a field here, a line in `device.profile_of`, and, if it
changes generated text, nothing else, because every field is part of the cache key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields

from wire.errors import ConfigError
from wire.ir.types import TensorType

from ..compiler.scores import MOVES
from ..compiler.target import UNPACKING, Target
from .choices import Choices
from .legalise import COSTLY, LOOPING
from .program import padded, stored_size

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
OFFSETS = 256  # bytes: bindings begin at multiples of it, on every adapter
TENSORS_MAX = 4  # of one op's kernel: three operands and the result
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
    texture_side: int = 8192  # texels of a texture of two dimensions, along either

    @property
    def piece_bytes(self) -> int:
        """What one binding has of a tensor that several of them have."""
        return self.binding_bytes - self.binding_bytes % OFFSETS

    @property
    def tensor_bytes(self) -> int:
        """The most that a tensor may take for there to be a kernel of every op.  Elements have numbers below 2^31."""
        bindings = max(1, self.storage_buffers // TENSORS_MAX)
        return min(self.buffer_bytes, self.piece_bytes * bindings, 4 * GIB - OFFSETS)

    def bindings(self, type_: TensorType) -> int:
        """How many a tensor takes."""
        return -(-padded(stored_size(type_)) // self.piece_bytes)

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
    only software devices are asked.  `choices` are what was measured on it to be faster than the first guesses.
    """

    limits: DeviceLimits = DeviceLimits()
    software: bool = True
    f16: bool = False
    subgroup: int = 0
    loop_trips: int = 60_000
    wgsl_bytes: int = 256 * KIB
    choices: Choices = field(default_factory=Choices)

    @property
    def target(self) -> Target:
        """This device as the passes see it."""
        return Target(
            self.limits.storage_buffers,
            KINDS,
            MOVES | {"cast", "const"},
            COSTLY,
            LOOPING,
            scores_max=self.loop_trips // 3,
            unpacking=UNPACKING,
            bindings=self.limits.bindings,
        )

    @property
    def usual_invocations(self) -> int:
        """The invocations of a workgroup where they have nothing to do with each other."""
        return min(self.limits.invocations, 128 if self.software else 64)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Names of the dtypes kernels can load and store."""
        return ("f32", "i32", "u32", "bool", "f16") if self.f16 else ("f32", "i32", "u32", "bool")
