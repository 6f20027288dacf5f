"""Adapter cache: what is remembered of a look at this machine's graphics adapters.

A look takes a process, and a driver in it.  Where it finds an adapter, that is opened anyway; where it finds none but
software, the next worker may spare itself the look until something changes by which there could be one: the machine
started anew, a driver or a device came or went, wgpu or the environment is another.  Only "none" is remembered, and
only on Linux: elsewhere a machine without an adapter is rare, and what changed there is not known here.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from wire.system.private_folder import make_private

FORMAT = 1
FILE = "no-adapter"
VARIABLES = ("VK_", "WGPU_", "MESA_", "LIBGL_", "GALLIUM_", "DRI_", "XDG_DATA_", "XDG_CONFIG_")
DRIVERS = ("/etc", "/usr/share", "/usr/local/etc", "/usr/local/share", "/run/opengl-driver/share")
DEVICES = ("dri/*", "nvidia*", "dxg", "mali*", "kgsl*")


def machine(root: Path = Path("/"), variables: Mapping[str, str] = os.environ, system: str = sys.platform) -> str:
    """What decides about the adapters of this machine, as a short text; "" where that is not known."""
    try:
        boot = (root / "proc/sys/kernel/random/boot_id").read_text() if system == "linux" else ""
    except OSError:
        boot = ""
    if not boot:
        return ""
    given = sorted((name, value) for name, value in variables.items() if name.startswith(VARIABLES))
    facts = [FORMAT, boot, _wgpu(), given, sorted(_drivers(root, variables)), sorted(_devices(root))]
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


class AdapterCache:
    """Whether a look in this state of the machine found no adapter, by a file in a folder of this user's."""

    def __init__(self, machine: Callable[[], str] = lambda: "") -> None:
        self._machine = machine

    def found_none(self, folder: Path) -> str:
        """Why there is no adapter, where a look need not be taken; else ""."""
        now = self._machine()
        try:
            seen, _, why = (folder / FILE).read_text().partition("\n")
        except (OSError, UnicodeDecodeError):
            return ""
        return why if now and seen == now else ""

    def remember_none(self, folder: Path, why: str) -> None:
        """A look found nothing but software, or not even that.  What cannot be written costs the next worker its own
        look."""
        now = self._machine()
        if not now:
            return
        fresh = folder / f"{FILE}.{os.getpid()}"
        try:
            make_private(folder)
            fresh.write_text(f"{now}\n{why}")
            fresh.replace(folder / FILE)
        except OSError:
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)


def _wgpu() -> str:
    try:
        return version("wgpu")
    except PackageNotFoundError:
        return ""


def _drivers(root: Path, variables: Mapping[str, str]) -> Iterator[tuple[str, int, int]]:
    """The files by which Vulkan's loader finds drivers."""
    folders = [root / path.removeprefix("/") for path in DRIVERS]
    folders += [Path(path) for path in variables.get("XDG_DATA_DIRS", "").split(os.pathsep) if path]
    folders += [Path(variables[name]) for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME") if variables.get(name)]
    folders += [
        Path(variables["HOME"], *parts) for parts in ((".local", "share"), (".config",)) if variables.get("HOME")
    ]
    for folder in dict.fromkeys(folders):
        for file in folder.glob("vulkan/icd.d/*"):
            with contextlib.suppress(OSError):
                stat = file.stat()
                yield str(file), stat.st_mtime_ns, stat.st_size


def _devices(root: Path) -> Iterator[str]:
    for pattern in DEVICES:
        yield from map(str, (root / "dev").glob(pattern))
