"""Object files of compiled kernels: on disk between processes, and loaded while a program uses them.

An object's name is a digest of what it was made from: the content that the caller names, the processor, the sources of
what generates code, and llvmlite.  So nothing here is ever out of date; what is not used for long is removed.

A process that can write an object can run code as this user.  Files are this user's alone, a folder that others can
write is not used, and an object is never taken from another machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from weakref import WeakValueDictionary

from wire.limits import MIB
from wire.system.atomic_files import WRITING, Disk
from wire.system.private_folder import make_private, weakness
from wire.system.steady_log import steady_logger

from ..compiler.sources import sources_version
from .llvm import LLVMLITE, Loaded, Processor, ir, machine_code, this_processor

logger = steady_logger(__name__)

BYTES_MAX = 256 * MIB  # of a folder
LIVE_MAX = 64  # objects that stay loaded though nobody uses them: the next one to ask need not wait
ENDING = ".object"
DIGEST_BYTES = 32


class Objects:
    """Machine code for a processor, loaded, from a folder or made anew.  It is used from one thread.

    Without a folder, or with one that is not safe to use, every process compiles for itself.
    """

    def __init__(
        self, folder: Path | None = None, bytes_max: int = BYTES_MAX, live_max: int = LIVE_MAX,
        disk: Disk | None = None, processor: Processor | None = None,
    ) -> None:  # fmt: skip
        self.processor = processor or this_processor()
        self.compiled = 0  # how often code was made anew
        self._made_by = sources_version(Path(__file__).parent), LLVMLITE
        self._folder = _Folder(folder, bytes_max, disk or Disk()) if folder is not None else None
        self._live_max = live_max
        self._in_use: WeakValueDictionary[str, Loaded] = WeakValueDictionary()
        self._recent: OrderedDict[str, Loaded] = OrderedDict()

    def loaded(self, content: str, make: Callable[[], ir.Module]) -> Loaded:
        """The functions of a module.  `content` names everything that decides what `make` writes, but for the processor
        and the version of the generator."""
        name = object_name(content, self.processor, *self._made_by)
        module = self._in_use.get(name)
        if module is None:
            module = Loaded(self._code(name, make), self.processor)
            self._in_use[name] = module
        self._recent[name] = module
        self._recent.move_to_end(name)
        while len(self._recent) > self._live_max:
            self._recent.popitem(last=False)
        return module

    def _code(self, name: str, make: Callable[[], ir.Module]) -> bytes:
        code = self._folder.read(name) if self._folder else None
        if code is None:
            self.compiled += 1
            code = machine_code(make(), self.processor)
            if self._folder:
                self._folder.write(name, code)
        return code


def object_name(content: str, processor: Processor, generator: str, llvmlite: str) -> str:
    """What an object is known by: nothing that was made otherwise has the same name."""
    return _digest("\0".join((content, processor.key, generator, llvmlite)).encode()).hex()


class _Folder:
    """A folder of objects, up to a number of bytes.  What a disk refuses costs time, and nothing else."""

    def __init__(self, path: Path, bytes_max: int, disk: Disk) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._disk = disk
        self._writer = f".{secrets.token_hex(8)}"  # workers of one machine compile the same kernel at the same time
        self._usable = self._prepare()

    def _prepare(self) -> bool:
        try:
            make_private(self._path)
            why = unsafe(self._path)
        except OSError as error:
            why = str(error)
        if why:
            logger.warning("compiled kernels are not kept in %s: %s", self._path, why)
        return not why

    def read(self, name: str) -> bytes | None:
        """An object, or None if there is none that is whole and this user's."""
        if not self._usable:
            return None
        path = self._path / f"{name}{ENDING}"
        try:
            with open(path, "rb", opener=_not_a_link) as file:
                why = _unsafe(os.fstat(file.fileno()))
                data = file.read()
        except OSError:
            return None
        digest, code = data[:DIGEST_BYTES], data[DIGEST_BYTES:]
        if why or digest != _digest(name.encode() + code):
            logger.warning("%s is made anew: %s", path, why or "it is damaged")
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # the oldest are those that nobody asked for
        return code

    def write(self, name: str, code: bytes) -> None:
        if not self._usable:
            return
        try:
            path = self._path / f"{name}{ENDING}"
            parts = [_digest(name.encode() + code), code]  # by which `read` knows one that a loss of power damaged
            self._disk.write_whole(path, parts, writer=self._writer, lasting=False)
            self._trim()
        except OSError as error:
            logger.warning("a compiled kernel is not kept in %s: %s", self._path, error)

    def _trim(self) -> None:
        """Remove the oldest objects until the rest are not too many bytes, and what crashes left behind."""
        files = sorted(self._files(), reverse=True)
        size_bytes = 0
        for _, size, path in files:
            size_bytes += size
            if size_bytes > self._bytes_max:
                self._disk.remove(path)

    def _files(self) -> Iterator[tuple[int, int, str]]:
        """The time of last use, the bytes and the path of every file."""
        with os.scandir(self._path) as entries:
            for entry in entries:
                if entry.name.endswith((ENDING, WRITING)):
                    with contextlib.suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        yield status.st_mtime_ns, status.st_size, entry.path


def unsafe(folder: Path) -> str:
    """Why others could put code into a folder, or ""."""
    if why := _unsafe(folder.lstat(), folders=True):
        return why
    return weakness(folder)


def _unsafe(status: os.stat_result, folders: bool = False) -> str:
    if not (stat.S_ISDIR if folders else stat.S_ISREG)(status.st_mode):
        return "it is no folder" if folders else "it is no file"
    if os.name != "posix":
        return ""  # a profile's folder is the user's own there
    if status.st_uid != os.geteuid():
        return "it is another user's"
    return "others can write it" if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else ""


def _not_a_link(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0))


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()
