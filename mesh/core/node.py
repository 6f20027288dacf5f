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
    """One device of a worker.

    Parameters
    ----------
    index : int
        Its number on the worker.
    engine : str
        The engine that computes on it: "cpu" or "wgsl".
    adapter : str
        The name of the graphics adapter, "" for a CPU.
    backend : str
        The adapter's driver interface, such as "Vulkan".
    limits : mapping of str to int
        The adapter's limits.
    memory_bytes : int
        Bytes that it may use.
    gflops : float
        The speed of a float32 matmul in GFLOP/s, measured when the worker started.
    gbytes_per_s : float
        The speed of memory in GB/s, measured when the worker started.
    software : bool
        Whether it is a graphics adapter that computes on the CPU.
    given_up : bool, optional
        Whether it was lost too often, and computes nothing until its worker starts anew.

    Examples
    --------
    >>> import mesh
    >>> with mesh.Mesh.builder().simulate(1, gflops=20.0).build() as m:
    ...     m.nodes[0].devices
    (<Device 0: cpu on simulated, 8.0 GiB, 20 GFLOP/s>,)
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
        return f"<Device {self.index}: {self._summary()}>"

    def _summary(self) -> str:
        adapter = f" on {self.adapter}" if self.adapter else ""
        lost = ", given up" if self.given_up else ""
        return f"{self.engine}{adapter}, {size_text(self.memory_bytes)}, {speed_text(self.gflops)} GFLOP/s{lost}"


@dataclass(frozen=True, slots=True, repr=False)
class Node:
    """One worker; `Mesh.nodes` has them all.

    Parameters
    ----------
    name : str
        Its name.
    id : str
        The identity that its certificate or its machine gives it.
    pid : int
        Its process, 0 for a worker on another machine.
    addresses : tuple of str
        Where it may be dialled, as "host:port".
    state : {"healthy", "suspect", "dead", "left", "paused", "stuck", "quarantined"}
        "left" if it has gone in good order, as where it was stopped or its machine sleeps, "paused" if somebody wants
        its machine for himself, "stuck" if it is alive and completes nothing, and "quarantined" if its results were
        wrong in audits.
    version : str
        The version of graph-mesh that it runs.
    devices : tuple of Device
        Its devices; the properties below are those of the first.
    silent_s : float, optional
        Seconds since it was last heard.
    without_gpu : str, optional
        Why it has no GPU: "asked", "none", "software", "library" or "failed: ...".
    loop_lag_s : float, optional
        Seconds for which its event loop stood still at most in the last half minute to minute. If it
        computed for a second of it, its log has a warning that says what ran; with `-v` it says so from 0.05 s on.
    sandbox : str, optional
        The sandbox of the processes that compute: which access to its machine they have given up ("files, network,
        processes, rights, limits"), and why not the rest; "" if its version is older.

    Examples
    --------
    >>> import mesh
    >>> with mesh.Mesh.builder().simulate(2, gflops=20.0).build() as m:
    ...     m.simulation.kill("sim-1")
    ...     m.simulation.wait(5.0)
    ...     [(node.name, node.state, node.gflops) for node in m.nodes]
    [('sim-0', 'healthy', 20.0), ('sim-1', 'dead', 20.0)]
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
    loop_lag_s: float = 0.0
    sandbox: str = ""

    def __repr__(self) -> str:
        devices = "; ".join(device._summary() for device in self.devices)
        return f"<Node {self.name}: {self.state}, {devices or 'no device'}>"

    @property
    def address(self) -> str:
        """The first of its addresses, "" if it has none."""
        return self.addresses[0] if self.addresses else ""

    @property
    def engine(self) -> str:
        """The engine of its first device."""
        return self.devices[0].engine

    @property
    def adapter(self) -> str:
        """The name of its first device's adapter."""
        return self.devices[0].adapter

    @property
    def backend(self) -> str:
        """The driver interface of its first device's adapter."""
        return self.devices[0].backend

    @property
    def limits(self) -> Mapping[str, int]:
        """The limits of its first device's adapter."""
        return self.devices[0].limits

    @property
    def memory_bytes(self) -> int:
        """Bytes that its first device may use."""
        return self.devices[0].memory_bytes

    @property
    def gflops(self) -> float:
        """The speed of its first device in GFLOP/s."""
        return self.devices[0].gflops

    @property
    def gbytes_per_s(self) -> float:
        """The memory speed of its first device in GB/s."""
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
        report.loop_lag_s,
        report.sandbox,
    )


def _device(report: DeviceReport) -> Device:
    fields: Sequence[str] = Device.__slots__[:-1]
    return Device(**{field: getattr(report, field) for field in fields}, given_up=not report.dtypes_by_op)
