"""The registry of devices: those that a machine has, and those of them that a worker opens.

A selection is "processor" (this machine's processor by its best engine), "native" (it by machine code) or "cpu" (it by
numpy), "wgsl" (the best adapter, software ones included), "best" (the best adapter that is not software, or none), an
adapter's number or a part of its name, or the name of an engine registered under `graph_mesh.engines`.
Looking at adapters loads the driver, which may take the process down with it; so the daemon never does that, but an
engine host or the child process behind `list_devices`.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import cast

from wire.errors import ConfigError
from wire.protocol.engine_names import CPU, NATIVE, ON_CPU
from wire.protocol.missing_gpu import LIBRARY, NONE, SOFTWARE
from wire.system.child_python import python_command
from wire.system.cores import core_count
from wire.system.steady_log import steady_logger

from ..engine.protocol import Engine

logger = steady_logger(__name__)

BEST = "best"
PROCESSOR = "processor"
ON_PROCESSOR = ON_CPU | {PROCESSOR}
ENGINES_GROUP = "graph_mesh.engines"
LIST_TIMEOUT_S = 30.0  # a cold driver takes seconds; a hung one must not hang the command


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """One line of `mesh-worker --list-devices`; `select` is what --device takes."""

    select: str
    engine: str
    adapter: str
    backend: str
    driver: str
    kind: str
    software: bool


def selections(asked: Sequence[str]) -> tuple[str, ...]:
    """What a worker opens for its --device flags: the processor is always among them, and last, by one engine."""
    chosen = [device for device in asked if device not in ON_PROCESSOR] if asked else [BEST]
    by = next((name for name in (NATIVE, CPU) if name in asked), PROCESSOR)
    return (*dict.fromkeys(chosen), by)


def choose(rows: Sequence[DeviceRow], selection: str) -> DeviceRow | None:
    """Choose the row (best first) that `selection` means; None for "best" where there is no adapter but software.

    ConfigError names what there is.
    """
    if selection in (BEST, "wgsl"):
        fitting = [row for row in rows if selection == "wgsl" or not row.software]
        if fitting:
            return fitting[0]
        if selection == BEST:
            return None
    else:
        wanted = selection.lower()
        numbered = [row for row in rows if row.select == selection]
        fitting = numbered or [row for row in rows if wanted in row.adapter.lower()]
        if fitting:
            return fitting[0]
    known = ", ".join(f"{row.select} ({row.adapter}, {row.backend})" for row in rows) or "no adapter"
    raise ConfigError(
        f"there is no device {selection!r}", next_step=f"This machine has: {', '.join(_on_cpu())}, {known}"
    )


def _on_cpu() -> dict[str, str]:
    """The devices that are this processor, and what each computes with."""
    return {**({NATIVE: "LLVM"} if find_spec("llvmlite") else {}), CPU: "numpy"}


def open_engine(selection: str, cache_dir: Path, memory_bytes: int, threads: int = 0) -> Engine | None:
    """The engine for a selection; 0 bytes or threads leave the number to the engine.  None as for `choose`."""
    if selection in ON_PROCESSOR:
        return _processor_engine(selection, cache_dir, memory_bytes, threads)
    registered = _registered(selection)
    if registered is not None:
        return registered
    row = choose(adapters(), selection)
    if row is None:
        return None
    from ..wgsl.engine import WgslEngine

    return cast(Engine, WgslEngine(int(row.select), cache_dir, memory_bytes or None))


def _processor_engine(selection: str, cache_dir: Path, memory_bytes: int, threads: int) -> Engine:
    """The native engine, or the one over numpy: where it is asked for, or PROCESSOR is and there is no native one."""
    if selection != CPU:
        try:
            return _native_engine(cache_dir, memory_bytes, threads)
        except ConfigError as error:
            if selection == NATIVE:
                raise
            logger.warning("this processor computes with numpy, which is slower: %s", error.message)
    from ..cpu import CpuEngine

    return cast(Engine, CpuEngine(memory_bytes or None))


def _native_engine(cache_dir: Path, memory_bytes: int, threads: int) -> Engine:
    try:
        from ..native.engine import NativeEngine
    except ModuleNotFoundError as error:
        if error.name != "llvmlite":
            raise
        next_step = "Take the device `cpu`; llvmlite has no wheel for this machine"
        raise ConfigError("there is no native engine here without llvmlite", next_step=next_step) from None
    return cast(Engine, NativeEngine(memory_bytes or None, threads or core_count(), cache_dir / "native"))


def without_gpu() -> str:
    """Why "best" is no adapter here, as `wire/protocol/missing_gpu.py` has it."""
    if find_spec("wgpu") is None:
        return LIBRARY
    return SOFTWARE if adapters() else NONE


def adapters() -> list[DeviceRow]:
    """The machine's WebGPU adapters, best first; none where wgpu or a driver is missing.

    Loads the driver into this process.
    """
    try:
        from ..wgsl.device import list_adapters
    except ModuleNotFoundError as error:
        if error.name != "wgpu":
            raise
        return []
    return [
        DeviceRow(
            str(adapter.index), "wgsl", adapter.name, adapter.backend, adapter.driver, adapter.type, adapter.software
        )
        for adapter in list_adapters()
    ]


def list_devices() -> list[DeviceRow]:
    """What `--device` can select on this machine, asked in a child process."""
    on_cpu = [DeviceRow(name, name, "", library, "", "cpu", True) for name, library in _on_cpu().items()]
    try:
        command, nothing = python_command("worker.devices.registry"), subprocess.DEVNULL
        done = subprocess.run(command, stdin=nothing, capture_output=True, timeout=LIST_TIMEOUT_S, check=True)
        return [*(DeviceRow(**fields) for fields in json.loads(done.stdout)), *on_cpu]
    except (subprocess.SubprocessError, OSError, ValueError, TypeError):
        return on_cpu  # the driver aborted, hung or is not there


def main() -> None:
    """Print the adapters as JSON."""
    print(json.dumps([asdict(row) for row in adapters()]))


def _registered(name: str) -> Engine | None:
    """The engine of that name from another distribution, called without arguments."""
    if name in (BEST, "wgsl") or name.isdigit():
        return None
    from importlib.metadata import entry_points

    for entry in entry_points(group=ENGINES_GROUP):
        if entry.name == name:
            return cast(Engine, entry.load()())
    return None


if __name__ == "__main__":
    main()
