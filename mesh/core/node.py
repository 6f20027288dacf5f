"""Node and Device: the machines of a mesh as users see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..util.units import size_text, speed_text

if TYPE_CHECKING:
    from wire.protocol.messages import DeviceReport, NodeReport


@dataclass(frozen=True, slots=True, repr=False)
class Device:
    """One device of a worker: `gflops` (f32 matmul) and `gbytes_per_s` were measured when it started.

    `given_up` says that it was lost too often and computes nothing until its worker starts anew.
    """

    index: int
    engine: str
    adapter: str
    backend: str
    limits: Mapping[str, int]
    memory_bytes: int
    gflops: float
    gbytes_per_s: float
    software: bool
    given_up: bool = False

    def __repr__(self) -> str:
        return f"<Device {self.index}: {self._told()}>"

    def _told(self) -> str:
        adapter = f" on {self.adapter}" if self.adapter else ""
        lost = ", given up" if self.given_up else ""
        return f"{self.engine}{adapter}, {size_text(self.memory_bytes)}, {speed_text(self.gflops)} GFLOP/s{lost}"


@dataclass(frozen=True, slots=True, repr=False)
class Node:
    """One worker.  `state` is "healthy", "suspect" or "dead", "paused" where somebody wants its machine for himself,
    "stuck" where it is alive and gets nothing done, or "quarantined" where it was wrong in audits; `pid` is 0 for a
    worker on another machine.

    It may be dialled at any of `addresses`, the first of which is `address`.  `engine`, `adapter`, `backend`, `limits`,
    `memory_bytes`, `gflops` and `gbytes_per_s` are those of its first device.
    """

    name: str
    id: str
    pid: int
    addresses: tuple[str, ...]
    state: str
    version: str
    devices: tuple[Device, ...]
    silent_s: float = 0.0  # since it was last heard
    without_gpu: str = ""  # why it has no GPU: "asked", "none", "software", "library", "failed: ..."

    def __repr__(self) -> str:
        devices = "; ".join(device._told() for device in self.devices)
        return f"<Node {self.name}: {self.state}, {devices or 'no device'}>"

    @property
    def address(self) -> str:
        return self.addresses[0] if self.addresses else ""

    @property
    def engine(self) -> str:
        return self.devices[0].engine

    @property
    def adapter(self) -> str:
        return self.devices[0].adapter

    @property
    def backend(self) -> str:
        return self.devices[0].backend

    @property
    def limits(self) -> Mapping[str, int]:
        return self.devices[0].limits

    @property
    def memory_bytes(self) -> int:
        return self.devices[0].memory_bytes

    @property
    def gflops(self) -> float:
        return self.devices[0].gflops

    @property
    def gbytes_per_s(self) -> float:
        return self.devices[0].gbytes_per_s


def node_from(report: NodeReport) -> Node:
    """A Node from a worker's report."""
    return Node(
        report.name,
        report.node_id,
        report.pid,
        report.addresses,
        report.state,
        report.version,
        tuple(_device(device) for device in report.devices),
        report.silent_s,
        report.without_gpu,
    )


def _device(report: DeviceReport) -> Device:
    fields: Sequence[str] = Device.__slots__[:-1]
    return Device(**{field: getattr(report, field) for field in fields}, given_up=not report.dtypes_by_op)
