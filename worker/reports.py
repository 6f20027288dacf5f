"""What a worker tells of its devices.  Pure."""

from __future__ import annotations

from wire.messages import DeviceReport

from .host_messages import Device


def report_of(index: int, device: Device) -> DeviceReport:
    """A device as its engine host described it."""
    return DeviceReport(
        index=index,
        engine=device.engine,
        adapter=device.adapter,
        backend=device.backend,
        driver=device.driver,
        software=device.software,
        memory_bytes=device.memory_bytes,
        limits=device.limits,
        dtypes_by_op=device.dtypes_by_op,
        gflops=device.gflops,
        gbytes_per_s=device.gbytes_per_s,
        dispatch_s=device.dispatch_s,
    )


def without_ops(report: DeviceReport) -> DeviceReport:
    """A device that computes nothing any more: nobody places anything there."""
    fields = {name: getattr(report, name) for name in DeviceReport.__struct_fields__}
    return DeviceReport(**{**fields, "dtypes_by_op": {}})


def memory_bytes_of(reports: tuple[DeviceReport, ...]) -> int:
    """The budget of all devices together: software adapters compute in the cpu's memory, which counts once."""
    own = sum(report.memory_bytes for report in reports if not report.software)
    return own + max((report.memory_bytes for report in reports if report.software), default=0)
