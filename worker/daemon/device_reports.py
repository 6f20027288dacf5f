"""Reports of a worker about itself and its devices.  Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from wire.protocol import messages
from wire.protocol.messages import DeviceReport
from wire.protocol.peer import Identity

from ..engine.host_messages import Device, Explained
from ..engine.protocol import EngineInfo, Measured


def report_of(index: int, device: Device) -> DeviceReport:
    """A device as its engine host described it."""
    return DeviceReport(index=index, **_fields(device.info), **_fields(device.figures))


def explained_of(explained: Explained, report: DeviceReport) -> messages.Explained:
    """The answer to a question for the kernels of a part, with the device that they ran on."""
    measured = explained.kernels, explained.clock, explained.evaluations, explained.seconds
    figures = report.gflops, report.gbytes_per_s, report.dispatch_s
    return messages.Explained(*measured, "", report.index, report.engine, report.adapter[:4096], *figures)


def _fields(record: EngineInfo | Measured) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(record)}


def without_ops(report: DeviceReport) -> DeviceReport:
    """A device that computes nothing any more: nobody places anything there."""
    values = {name: getattr(report, name) for name in DeviceReport.__struct_fields__}
    return DeviceReport(**{**values, "dtypes_by_op": {}})


def memory_bytes_of(reports: tuple[DeviceReport, ...]) -> int:
    """The budget of all devices together: software adapters compute in the cpu's memory, which counts once."""
    own = sum(report.memory_bytes for report in reports if not report.software)
    return own + max((report.memory_bytes for report in reports if report.software), default=0)


def devices_text(reports: Sequence[DeviceReport]) -> str:
    """The devices for people."""
    return ", ".join(f"{report.engine} {report.adapter} ({report.gflops:.0f} GFLOP/s)" for report in reports)


def ready_fields(
    identity: Identity, address: str, port: int, pid: int, reports: Sequence[DeviceReport]
) -> dict[str, Any]:
    """What a program that started this worker reads of it once it is ready."""
    return {
        "event": "ready",
        "name": identity.name,
        "node_id": identity.node_id,
        "mesh": identity.mesh,
        "address": address,
        "port": port,
        "pid": pid,
        "devices": [{"index": report.index, "engine": report.engine, "adapter": report.adapter} for report in reports],
    }
