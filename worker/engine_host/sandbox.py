"""The sandbox of an engine host: what its process can no longer do, whatever a graph or a driver has it do.

Graphs are data, but a compiler or a driver that one of them breaks runs inside this process.  So it gives up what it
does not need, each layer as early as can be: files before the driver is loaded, since threads that are there already
would not be restricted, and calls once it is.  A system that lacks a layer goes without it, and says so: `layers` goes
to the daemon, and to clients that list the nodes.

    files      to read what runs (interpreter, libraries, drivers, tables of the system) and the content that the daemon
               keeps, to write kernels, measurements and shared memory; no keys, and nothing else that the user has
    network    no new sockets: a connection is made by the daemon and handed over (`worker/engine/descriptors.py`)
    processes  nothing is started, signalled, traced or read
    rights     nothing that is executed gets more rights
    limits     no core dumps, which have weights in them; with a budget (--max-memory, or a share of the
               machine's memory) a limit on memory
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from wire.limits import GIB
from wire.system import landlock, seccomp
from wire.system.landlock import DEVICE, READING, WRITING, Place, Right
from wire.system.private_folder import make_private
from wire.system.shared_memory import MEMORY_FOLDER

from ..engine.host_messages import Layer, Open

FILES, NETWORK, PROCESSES, RIGHTS, LIMITS = "files", "network", "processes", "rights", "limits"
LAYERS = (FILES, NETWORK, PROCESSES, RIGHTS, LIMITS)
BESIDE_BUDGET_BYTES = 4 * GIB  # that no budget counts: the interpreter, libraries, threads, what a driver maps

# What runs, and what it looks up.  A user's own folders are not among them.
_SYSTEM = (
    "/usr", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix/store", "/gnu/store", "/snap",
    "/run/opengl-driver", "/sys", "/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/version",
    "/proc/modules", "/proc/devices", "/proc/filesystems", "/proc/sys", "/proc/driver", "/proc/bus", "/proc/vmstat",
)  # fmt: skip
_DEVICES = (
    "/dev/dri", "/dev/kfd", "/dev/dxg", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools",
    "/dev/nvidia-modeset", "/dev/nvidia-caps", *(f"/dev/nvidia{number}" for number in range(16)), "/dev/mali0",
    "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/udmabuf", "/dev/dma_heap", "/dev/accel",
)  # fmt: skip
# Where a user may name drivers to the Vulkan loader and the linker: files (then their folders are read) and folders.
_DRIVER_FILES = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES")
_DRIVER_FOLDERS = ("VK_LAYER_PATH", "LD_LIBRARY_PATH", "LIBGL_DRIVERS_PATH")
_VULKAN_IN = ("XDG_DATA_DIRS", "XDG_CONFIG_DIRS", "XDG_DATA_HOME", "XDG_CONFIG_HOME")
_MODULES = (".py", ".so", ".pyd", ".dist-info", ".egg-info", ".libs")


class Sandbox:
    """What is closed so far: `close_files`, then `close_calls`."""

    def __init__(self, opening: Open) -> None:
        self._opening = opening
        self._missing: dict[str, str] = {}

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Each layer, and why it does not hold; "" where it does."""
        return tuple(Layer(name, self._missing.get(name, "")) for name in LAYERS)

    def close_files(self) -> None:
        """Close files, rights and limits.  No other thread may have begun."""
        if not self._opening.sandboxed:
            self._missing = dict.fromkeys(LAYERS, "--no-sandbox was asked for")
        elif platform.system() != "Linux":
            self._missing = dict.fromkeys(LAYERS, f"there is none on {platform.system()}")
        else:
            self._close(RIGHTS, landlock.no_new_privileges)
            self._close(LIMITS, self._limit)
            self._close(FILES, self._restrict_files)

    def close_calls(self) -> None:
        """Close network and processes, of all threads."""
        if NETWORK in self._missing:
            return
        self._close(NETWORK, seccomp.restrict)
        if NETWORK in self._missing:
            self._missing[PROCESSES] = self._missing[NETWORK]

    def _close(self, layer: str, close: Callable[[], None]) -> None:
        try:
            close()
        except OSError as error:
            self._missing[layer] = error.strerror or str(error)

    def _limit(self) -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        most, hard = 2 * self._opening.memory_bytes + BESIDE_BUDGET_BYTES, resource.getrlimit(resource.RLIMIT_DATA)[1]
        if self._opening.memory_bytes and (hard == resource.RLIM_INFINITY or most < hard):
            resource.setrlimit(resource.RLIMIT_DATA, (most, most))

    def _restrict_files(self) -> None:
        if not landlock.version():
            raise OSError("this kernel has no Landlock, or keeps it from this container")
        if len(os.listdir("/proc/self/task")) > 1:
            raise OSError("another thread runs already")
        landlock.restrict(places(self._opening))
        base = Path(self._opening.shared_dir).parent
        if base != MEMORY_FOLDER:
            self._missing[FILES] = (
                f"shared memory is in {base}, so files there are open to every process that knows their names"
            )


def layers_here() -> tuple[Layer, ...]:
    """The layers that this machine has, as far as that can be seen from outside a host."""
    if platform.system() != "Linux":
        return tuple(Layer(name, f"there is none on {platform.system()}") for name in LAYERS)
    calls = "" if seccomp.available() else f"this kernel takes no filters, or not on {platform.machine()}"
    files = "" if landlock.version() else "this kernel has no Landlock, or keeps it from this container"
    return (Layer(FILES, files), Layer(NETWORK, calls), Layer(PROCESSES, calls), Layer(RIGHTS), Layer(LIMITS))


def sandbox_text(layers: tuple[Layer, ...]) -> str:
    """The layers in words: those that hold, and why others do not; "" for none at all, as in a simulation."""
    if not layers:
        return ""
    holding = ", ".join(layer.name for layer in layers if not layer.missing) or "none"
    missing: dict[str, list[str]] = {}
    for layer in layers:
        if layer.missing:
            missing.setdefault(layer.missing, []).append(layer.name)
    without = "; ".join(f"without {', '.join(names)}: {why}" for why, names in missing.items())
    return f"{holding}; {without}" if without else holding


# -- files -------------------------------------------------------------------------------------------------


def places(opening: Open) -> Iterator[Place]:
    """What an engine host needs, and what it may do there."""
    for path in (*map(Path, _SYSTEM), *_interpreter(), *_drivers(), *map(Path, opening.readable)):
        yield Place(path, READING)
    for path in map(Path, _DEVICES):
        yield Place(path, DEVICE)
    for path in map(Path, filter(None, (opening.cache_dir, opening.measured_dir, opening.shared_dir))):
        with contextlib.suppress(OSError):
            make_private(path)
        yield Place(path, WRITING | Right.LIST | Right.MAKE_FOLDER | Right.REMOVE_FOLDER)
    if opening.shared_dir:  # what other ranks of this machine share is beside it, by names that nobody can list
        yield Place(Path(opening.shared_dir).parent, WRITING)
    if opening.trace:
        folder = Path(opening.trace).absolute().parent
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
        yield Place(folder, Right.WRITE | Right.TRUNCATE | Right.MAKE)


def _interpreter() -> Iterator[Path]:
    """Find what may be imported later: installations, and of other folders only the modules."""
    installed = [Path(path) for path in dict.fromkeys((sys.prefix, sys.base_prefix, sys.exec_prefix))]
    yield from installed
    for folder in map(Path, filter(os.path.isabs, sys.path)):
        if any(folder.is_relative_to(path) for path in installed):
            continue
        if folder.name in ("site-packages", "dist-packages") or folder.is_file():
            yield folder
        elif folder.is_dir():
            with contextlib.suppress(OSError):  # nothing can be imported from where nothing can be listed
                yield from filter(_is_module, folder.iterdir())


def _is_module(path: Path) -> bool:
    """Whether a file or folder is what may be imported.  One that is another user's is not, and costs no sandbox."""
    return path.suffix in _MODULES or os.path.isfile(path / "__init__.py")


def _drivers() -> Iterator[Path]:
    for variable in _DRIVER_FILES:
        yield from (path.parent for path in _paths(variable))
    for variable in _DRIVER_FOLDERS:
        yield from _paths(variable)
    for variable in _VULKAN_IN:
        yield from (path / "vulkan" for path in _paths(variable))
    home = os.path.expanduser("~")  # "~" itself for a user without one
    yield from (Path(home, folder, "vulkan") for folder in (".local/share", ".config"))


def _paths(variable: str) -> Iterator[Path]:
    return map(Path, filter(os.path.isabs, os.environ.get(variable, "").split(os.pathsep)))
