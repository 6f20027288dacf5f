"""Tensors between processes of one host: files in memory that change owner (docs/protocol.md, "Shared memory").

Every node has one directory (on /dev/shm where that exists and is large enough, else the temporary folder).  A sender
writes a file and names it in a message; the receiver maps it, unlinks it and owns it from then on, so nobody frees a
file twice.  A directory that somebody removes while its maker runs is made again (`SharedDir.keep`): systemd-logind
does that to all of a user's files in /dev/shm once the user has logged out everywhere, and a service of the user goes
on.  Nothing is left when a process dies: what its directory holds goes with the next directory that any process
of this user makes (`SharedDir.sweep`), and what others had named to it they remove themselves
(`shared_memory_handoff.py`).

Names come from other processes: a directory must be of our making (its name, its owner, mode 0700), a file's name is
hexadecimal and never a link, so no peer can make us open or delete anything else.

Files are named by strings here and not by Paths: a Path interns every name in it, and the table of interned strings
doubles, by 0.5 MiB at once, when some thousand names have come and gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TypeVar

from ..errors import BlobCorrupt, BlobMissing, ConfigError, OutOfMemory, ProtocolError
from ..limits import MIB
from ..units import size_text
from . import mapped_files
from .atomic_files import WRITING
from .steady_log import steady_logger

log = steady_logger("graph_mesh.shared")

MEMORY_FOLDER = Path("/dev/shm")
MEMORY_BYTES_MIN = 512 * MIB  # containers often get 64 MiB there; files on disk are then the better choice
PIECE_BYTES = MIB
LOOK_S = 0.5  # from one look whether another process has ended to the next
NEW_S = 30.0  # a directory without a lock is being made; after this long its maker is dead

T = TypeVar("T")

_DIR_NAME = re.compile(r"graph-mesh-[0-9a-f]{32}")
_FILE_NAME = re.compile(r"[0-9a-f]{32}")
_LOCK = "lock"
_REMOVED = "where systemd-logind does so as a user logs out, RemoveIPC=no in its logind.conf says that it must not"
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)


@dataclass(frozen=True, slots=True)
class Segment:
    """A new file and its writable bytes."""

    name: str
    buffer: memoryview


class SharedDir:
    """One node's directory of shared files.  `create` makes and owns one; `attach` uses another process's."""

    def __init__(self, path: Path, locks: Sequence[int] = (), prefix: str = "") -> None:
        self.path = path
        self._prefix, self._numbers = prefix, count(1)
        self._locks = [*locks]  # none: it is another process's.  Those of directories that were removed stay held, too
        self._keeping = threading.Lock()
        self._process = os.getpid()

    @classmethod
    def create(cls, base: Path | None = None) -> SharedDir:
        """A new directory in `base` (chosen if None), which `close` removes.  Those of dead processes go first."""
        SharedDir.sweep(base)
        folder = base or _base()
        path = folder / f"graph-mesh-{secrets.token_hex(16)}"
        try:
            path.mkdir(mode=0o700)
            locks = _locked(path)
        except OSError as error:
            raise ConfigError(f"no folder can be made in {folder}", cause=str(error)) from None
        return cls(path, locks)

    @classmethod
    async def created(cls, base: Path | None = None) -> SharedDir:
        """What `create` makes, in a thread; the thread cannot be stopped, so it is closed if this is cancelled."""
        making = asyncio.get_running_loop().run_in_executor(None, cls.create, base)
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(_unwanted)
            raise

    @classmethod
    def attach(cls, path: Path, prefix: str = "") -> SharedDir:
        """Another process's directory, to write files on its behalf; `close` leaves it alone.  With a prefix
        (`new_prefix`) their names are that and a number that grows."""
        _check_dir(str(path))
        return cls(path, prefix=prefix)

    def keep(self) -> None:
        """Make the directory of this process again if somebody has removed it; what was in it is lost.  OSError where
        that cannot be."""
        if not self._locks or self._process != os.getpid() or os.path.exists(self._file(_LOCK)):
            return
        with self._keeping:
            if not self._locks or os.path.exists(self._file(_LOCK)):
                return
            self.path.mkdir(mode=0o700, exist_ok=True)
            if not _is_ours(self.path):
                raise PermissionError(f"{self.path} was removed, and is another user's now")
            self._locks += _locked(self.path)
        log.warning("%s was removed while this process uses it, and is made again; %s", self.path, _REMOVED)

    def write(self, chunks: Iterable[bytes | bytearray | memoryview], name: str = "") -> str:
        """A new file of these bytes, one after the other, named so or by chance: its name.  OutOfMemory if they do not
        fit."""
        parts = [memoryview(chunk) for chunk in chunks]
        return _with_room(lambda: self._write(parts, name))

    def _write(self, chunks: Iterable[memoryview], name: str) -> str:
        name, handle = self._new_file(os.O_WRONLY, name)
        try:
            for chunk in chunks:
                write_all(chunk.cast("B") if chunk.nbytes else memoryview(b""), handle)
        except OSError as error:
            _unlink(self._file(name))
            raise OutOfMemory("shared memory is full", cause=str(error)) from None
        finally:
            os.close(handle)
        return name

    def write_at(self, name: str, offset: int, data: bytes) -> None:
        """Write bytes into a file of this directory, from an offset on, beyond its end too.  OutOfMemory if they do not
        fit, BlobMissing where the file is gone."""
        _with_room(lambda: self._write_at(name, offset, memoryview(data)))

    def _write_at(self, name: str, offset: int, data: memoryview) -> None:
        try:
            handle = os.open(self._file(name), os.O_WRONLY | _NO_LINKS)
        except OSError as error:
            raise BlobMissing(f"shared file {name} cannot be opened", cause=str(error)) from None
        try:
            os.lseek(handle, offset, os.SEEK_SET)
            write_all(data, handle)
        except OSError as error:
            raise OutOfMemory("shared memory is full", cause=str(error)) from None
        finally:
            os.close(handle)

    def allocate(self, size_bytes: int, name: str = "") -> Segment:
        """A new file of `size_bytes` zeros to write into, named so or by chance.  OutOfMemory if it has no room."""
        return _with_room(lambda: self._allocate(size_bytes, name))

    def _allocate(self, size_bytes: int, name: str) -> Segment:
        name, handle = self._new_file(os.O_RDWR, name)
        try:
            if size_bytes:
                reserve(handle, size_bytes)
            return Segment(name, mapped_files.shared(handle, size_bytes))
        except OSError as error:
            _unlink(self._file(name))
            raise OutOfMemory(f"{size_text(size_bytes)} do not fit into shared memory", cause=str(error)) from None
        finally:
            os.close(handle)

    def open(self) -> tuple[str, int]:
        """A new file without bytes: its name, and it, open to be written and closed by the caller.  OutOfMemory."""
        return self._new_file(os.O_WRONLY)

    def write_copies(self, chunks: Iterable[bytes | bytearray | memoryview], copies: int) -> tuple[str, ...]:
        """A new file of these bytes under one name for each receiver; OutOfMemory if it does not fit, and then none."""
        names = [self.write(chunks)]
        try:
            while len(names) < copies:
                names.append(self._new_name())
                os.link(self._file(names[0]), self._file(names[-1]), follow_symlinks=False)
        except OSError as error:
            for name in names:
                _unlink(self._file(name))
            raise OutOfMemory("shared memory takes no further file", cause=str(error)) from None
        return tuple(names)

    def _new_file(self, mode: int, name: str = "") -> tuple[str, int]:
        name = name or self._new_name()
        flags = mode | os.O_CREAT | os.O_EXCL | _NO_LINKS
        try:
            try:
                return name, os.open(self._file(name), flags, 0o600)
            except FileNotFoundError:
                self.keep()
                return name, os.open(self._file(name), flags, 0o600)
        except FileNotFoundError:
            raise BlobMissing(f"{self.path} is gone, and the process whose shared memory it was") from None
        except OSError as error:
            raise OutOfMemory("shared memory takes no further file", cause=str(error)) from None

    def _new_name(self) -> str:
        return f"{self._prefix}{next(self._numbers):08x}" if self._prefix else new_name()

    def _file(self, name: str) -> str:
        return os.path.join(self.path, name)

    def close(self) -> None:
        """Remove the directory if this process made it, and not one that it was forked from.  Mappings stay valid."""
        if not self._locks or self._process != os.getpid():
            return
        with self._keeping:
            locks, self._locks = self._locks, []
        shutil.rmtree(self.path, ignore_errors=True)
        for lock in locks:  # after the removal: a process that sweeps must not find it unlocked
            os.close(lock)
        shutil.rmtree(self.path, ignore_errors=True)  # Windows keeps an open lock file

    def clear(self) -> None:
        """Remove what is in it; the directory itself shows that this process runs, until it ends and others sweep."""
        if self._process != os.getpid():
            return
        for path in list(self.path.iterdir()) if self.path.exists() else ():
            if path.name != _LOCK:
                _unlink(str(path))

    @staticmethod
    def lives(path: Path) -> bool:
        """Whether this is a directory of this user's whose maker runs, and has not closed it."""
        with contextlib.suppress(OSError):
            return SharedDir.is_one(path) and _is_ours(path) and _is_alive(path)
        return False

    @staticmethod
    def life(path: Path) -> Callable[[], bool]:
        """What tells whether the maker of a directory of this user's runs, and has not closed it.  The lock file stays
        open meanwhile: the directory may be removed while its maker runs."""
        if not hasattr(os, "O_DIRECTORY"):  # Windows, which removes nothing that is open
            return lambda: SharedDir.lives(path)
        try:
            lock = os.open(path / _LOCK, os.O_RDWR | _NO_LINKS)
        except OSError:
            return lambda: SharedDir.lives(path)

        def alive() -> bool:
            return not _is_free(lock)

        weakref.finalize(alive, os.close, lock)
        return alive

    @staticmethod
    def is_one(path: Path) -> bool:
        """Whether a path is that of such a directory by its name, whatever became of it."""
        return bool(_DIR_NAME.fullmatch(path.name))

    @staticmethod
    def wait_for_end(path: Path) -> None:
        """Wait until the maker of a directory of this user's has ended.  The lock file stays open meanwhile: programs
        that clean the temporary folder may remove it while its maker runs."""
        with contextlib.suppress(FileNotFoundError):  # its maker has ended, and others swept
            lock = os.open(path / _LOCK, os.O_RDWR | _NO_LINKS)
            try:
                while not _hold(lock):
                    time.sleep(LOOK_S)
            finally:
                os.close(lock)

    @staticmethod
    def sweep(base: Path | None = None) -> int:
        """Remove what dead processes of this user left; how many directories."""
        removed = 0
        for folder in {base} if base else {MEMORY_FOLDER, Path(tempfile.gettempdir())}:
            for path in _left_over(folder):
                shutil.rmtree(path, ignore_errors=True)
                removed += not path.exists()
        return removed


def new_name() -> str:
    """A name that no file has."""
    return secrets.token_hex(16)


def new_prefix() -> str:
    """What the names of several files may begin with: each is that and 8 more hexadecimal digits."""
    return secrets.token_hex(12)


def take(directory: str | Path, name: str, size_bytes: int, unlink: bool = True) -> memoryview:
    """The bytes of another process's file of exactly `size_bytes`, as memory of our own: writable, and nobody else's.
    What its writer writes later is not seen (`share`).

    With `unlink` false the file stays for the next process that takes it.  The memory is freed with the last view of
    it, and no file stays open for it.  Raises ProtocolError for names that are not of our making, BlobMissing,
    BlobCorrupt for another size, OutOfMemory where it cannot be mapped.
    """
    path = _file(directory, name)
    with _opened(path, name, size_bytes) as handle:
        try:
            view = mapped_files.copied(handle, size_bytes)
        except OSError as error:
            raise OutOfMemory(f"{size_text(size_bytes)} of shared memory cannot be mapped", cause=str(error)) from None
    if unlink:
        _unlink(path)
    return view


def copy_to(directory: str | Path, name: str, size_bytes: int, handle: int) -> None:
    """Write another process's file of exactly `size_bytes` into an open one, a piece at a time, and drop it.  Raises as
    `take` does, and OSError where the open file takes no more."""
    path = _file(directory, name)
    with _opened(path, name, size_bytes) as source:
        while piece := os.read(source, PIECE_BYTES):
            write_all(memoryview(piece), handle)
    _unlink(path)


@contextlib.contextmanager
def _opened(path: str, name: str, size_bytes: int) -> Iterator[int]:
    """Another process's file, open; BlobMissing, or BlobCorrupt for another size."""
    try:
        handle = os.open(path, os.O_RDONLY | _NO_LINKS)
    except OSError as error:
        raise BlobMissing(f"shared file {name} cannot be opened", cause=str(error)) from None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_size != size_bytes:
            raise BlobCorrupt(f"shared file {name} has {status.st_size} bytes, expected {size_bytes}")
        yield handle
    finally:
        os.close(handle)


def share(directory: str | Path, name: str) -> memoryview:
    """Map a file that several processes write to, whole; its owner removes it.  Raises as `take` does."""
    path = _file(directory, name)
    try:
        handle = os.open(path, os.O_RDWR | _NO_LINKS)
    except OSError as error:
        raise BlobMissing(f"shared file {name} cannot be opened", cause=str(error)) from None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or not status.st_size:
            raise BlobCorrupt(f"shared file {name} is no file, or empty")
        return mapped_files.shared(handle, status.st_size)
    except OSError as error:
        raise OutOfMemory(f"shared file {name} cannot be mapped", cause=str(error)) from None
    finally:
        os.close(handle)


def path_of(directory: str | Path, name: str) -> str:
    """The path of something else than a file, under the name of one; raises as `take` does."""
    return _file(directory, name)


def remove(directory: str | Path, name: str) -> None:
    """Drop a file that will not be taken; one that is gone, alone or with its process, is fine."""
    with contextlib.suppress(BlobMissing):
        _unlink(_file(directory, name))


def remove_all(directory: str | Path, prefix: str) -> None:
    """Drop all files whose names begin so (`new_prefix`)."""
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(directory):
            if prefix and name.startswith(prefix):
                remove(directory, name)


def exists(directory: str | Path, name: str) -> bool:
    """Whether a file has that name now."""
    return os.path.exists(os.path.join(directory, name))


def readable(directory: str) -> bool:
    """Whether files in this directory can be taken by this process."""
    try:
        _check_dir(directory)
    except (ProtocolError, BlobMissing):
        return False
    return os.access(directory, os.R_OK | os.W_OK | os.X_OK)


# -- checks ------------------------------------------------------------------------------------------------


def _file(directory: str | Path, name: str) -> str:
    _check_dir(str(directory))
    check_name(name)
    return os.path.join(directory, name)


def check_name(name: str) -> None:
    """Check that a SharedDir could have made this name; ProtocolError if not."""
    if not _FILE_NAME.fullmatch(name):
        raise ProtocolError(f"{name[:64]!r} is not the name of a shared file")


def _check_dir(directory: str) -> None:
    try:
        named = _DIR_NAME.fullmatch(os.path.basename(directory))
        good = named is not None and os.path.isabs(directory) and _is_ours(directory)
    except FileNotFoundError:
        raise BlobMissing(f"{directory} is gone, and the process whose shared memory it was") from None
    except (OSError, ValueError):
        good = False
    if not good:
        raise ProtocolError(f"{directory[:256]!r} is not a shared-memory directory of this user")


def _is_ours(path: str | Path) -> bool:
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        return False
    if not hasattr(os, "getuid"):  # Windows: the temporary folder is the user's own
        return True
    return status.st_uid == os.getuid() and stat.S_IMODE(status.st_mode) == 0o700


# -- the platform ------------------------------------------------------------------------------------------


def _base() -> Path:
    with contextlib.suppress(OSError, AttributeError):
        space = os.statvfs(MEMORY_FOLDER)
        if space.f_frsize * space.f_blocks >= MEMORY_BYTES_MIN and os.access(MEMORY_FOLDER, os.W_OK):
            return MEMORY_FOLDER
    return Path(tempfile.gettempdir())


def _unwanted(making: asyncio.Future[SharedDir]) -> None:
    if not making.cancelled() and making.exception() is None:
        making.result().close()


def _with_room(make: Callable[[], T]) -> T:
    """What `make` makes; if there is no room, once more when the memory of what is over is free, for which an event
    loop waits a moment only."""
    try:
        return make()
    except OutOfMemory:
        if not mapped_files.settle():
            raise
    return make()


def reserve(handle: int, size_bytes: int) -> None:
    """Give an open file its size, of zeros behind what is written, and its memory: a full file system must fail here,
    with an OSError, not at a later write (SIGBUS)."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, 0, size_bytes)
    else:
        os.ftruncate(handle, size_bytes)


def write_all(data: memoryview, handle: int) -> None:
    """Write all of it into an open file.  OSError where the file takes no more."""
    while data:
        data = data[os.write(handle, data) :]


def _unlink(path: str) -> None:
    # Windows cannot unlink a mapped file: it goes with its directory.
    with contextlib.suppress(FileNotFoundError, PermissionError):
        mapped_files.unlink(path)


def _left_over(folder: Path) -> Iterator[Path]:
    """Directories whose maker is dead: its lock is free, or was never taken."""
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return
    for path in entries:
        with contextlib.suppress(OSError):
            if _DIR_NAME.fullmatch(path.name) and _is_ours(path) and not _is_alive(path):
                yield path


def _is_alive(path: Path) -> bool:
    """Whether a directory's maker runs.  Its lock file may have been removed, by a program that cleans folders of
    temporary files: the directory is locked, too."""
    try:
        lock = os.open(path / _LOCK, os.O_RDWR | _NO_LINKS)
    except FileNotFoundError:
        return _is_held(path) or time.time() - path.stat().st_mtime < NEW_S
    try:
        return not _hold(lock)
    finally:
        os.close(lock)


def _is_held(path: Path) -> bool:
    folder = _opened_folder(path)
    try:
        return any(not _is_free(handle) for handle in folder)
    finally:
        for handle in folder:
            os.close(handle)


def _locked(path: Path) -> list[int]:
    """A directory's new lock file and the directory itself, held.  The file gets its name once it is held: one that is
    free is a dead process's, and a process that sweeps at that moment would remove the directory.  What is in a
    directory that is held, systemd-tmpfiles leaves alone."""
    folder = _opened_folder(path)
    for handle in folder:
        _hold(handle)
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _NO_LINKS
    if sys.platform == "win32":  # which does not rename an open file
        lock = os.open(path / _LOCK, flags, 0o600)
        _hold(lock)
        return [lock]
    lock = os.open(path / (_LOCK + WRITING), flags, 0o600)
    _hold(lock)
    os.rename(path / (_LOCK + WRITING), path / _LOCK)
    return [lock, *folder]


def _opened_folder(path: Path) -> list[int]:
    """The open directory, where the system opens one."""
    if not hasattr(os, "O_DIRECTORY"):
        return []
    return [os.open(path, os.O_RDONLY | os.O_DIRECTORY | _NO_LINKS)]


def _is_free(lock: int) -> bool:
    """Whether nobody holds an open lock; any number of processes may ask at once."""
    import fcntl

    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    fcntl.flock(lock, fcntl.LOCK_UN)
    return True


def _hold(lock: int) -> bool:
    """Lock a file for as long as it is open (the kernel lets go when the process dies); False if another holds it."""
    try:
        import fcntl
    except ImportError:
        return _hold_on_windows(lock)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _hold_on_windows(lock: int) -> bool:
    import msvcrt

    try:
        msvcrt.locking(lock, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined, unused-ignore]
    except OSError:
        return False
    return True
