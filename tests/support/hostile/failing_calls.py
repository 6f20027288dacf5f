"""The Nth call of something fails: of the system, of an engine, of a device's driver.

    for fuse in each_call():
        with system_refuses(fuse, errno.EMFILE, folder):
            story()

`each_call` gives fuses for N = 1, 2, ... until a story ends before its Nth call.  To make another thing fail, wrap it
in a Refusing with the names of its methods.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import mmap
import os
import socket
import ssl
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from wire.system import mapped_files

from .faulty_disk import Fuse

SYSTEM = (  # (module, name, the arguments that may be paths)
    (os, "open", (0,)),
    (os, "link", (0, 1)),
    (os, "replace", (0, 1)),
    (os, "rename", (0, 1)),
    (builtins, "open", (0,)),
    (io, "open", (0,)),
)
MEMORY = ((os, "write"), (os, "posix_fallocate"), (mmap, "mmap"), (mapped_files, "_mapped"))
SOCKETS = ("bind", "listen", "connect", "accept", "recv", "recv_into", "send", "sendmsg")
TLS = ("do_handshake", "read", "write", "unwrap")
SOCKET_ERRORS = (errno.ECONNRESET, errno.EPIPE, errno.EMFILE, errno.ENETUNREACH, errno.ETIMEDOUT)
CALLS_MAX = 500
NO_ROOM = (errno.ENOSPC, errno.EMFILE, errno.ENOMEM)


def each_call(every: int = 1) -> Iterator[Fuse]:
    """A fuse for every N at which something still fails, or for `every` third one of them, say."""
    for number in range(1, CALLS_MAX, every):
        fuse = Fuse(fails_at=number, heals_at=number + 1)
        yield fuse
        if fuse.steps < number:
            return
    raise AssertionError(f"there is no end of calls after {CALLS_MAX}")


@contextlib.contextmanager
def system_refuses(fuse: Fuse, number: int, folder: Path) -> Iterator[None]:
    """Calls of the system on files below `folder`, and those that take memory, fail by the fuse, with this errno."""
    with contextlib.ExitStack() as stack:
        for module, name, places in SYSTEM:
            _replace(stack, module, name, _on_paths(getattr(module, name), places, fuse, number, str(folder)))
        for module, name in MEMORY:
            _replace(stack, module, name, _always(getattr(module, name), fuse, number))
        yield


@contextlib.contextmanager
def sockets_refuse(fuse: Fuse, number: int) -> Iterator[None]:
    """Calls on IP sockets, making one and asking for addresses fail by the fuse, with this errno."""

    def refuse(found: Any, counts: Callable[..., bool]) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if counts(*args, **kwargs) and fuse.step():
                raise OSError(number, os.strerror(number))
            return found(*args, **kwargs)

        return call

    def is_ip(each: Any, *_: Any, **__: Any) -> bool:
        return each.family in (socket.AF_INET, socket.AF_INET6)  # the loop's own are not

    def makes_ip(_: Any, family: int = socket.AF_INET, *__: Any, fileno: Any = None, **___: Any) -> bool:
        return family in (socket.AF_INET, socket.AF_INET6) and fileno is None

    with contextlib.ExitStack() as stack:
        for name in SOCKETS:
            _replace(stack, socket.socket, name, refuse(getattr(socket.socket, name), is_ip))
        _replace(stack, socket, "getaddrinfo", refuse(socket.getaddrinfo, lambda *_, **__: True))
        _replace(stack, socket.socket, "__init__", refuse(socket.socket.__init__, makes_ip))
        yield


@contextlib.contextmanager
def tls_refuses(fuse: Fuse) -> Iterator[None]:
    """TLS's handshakes, reads, writes and ends fail by the fuse, as OpenSSL does where it runs out of something."""
    with contextlib.ExitStack() as stack:
        for name in TLS:
            _replace(stack, ssl.SSLObject, name, _by(fuse, getattr(ssl.SSLObject, name), no_memory_for_tls))
        yield


def no_memory_for_tls() -> OSError:
    return ssl.SSLError(1, "[SSL] malloc failure")


@contextlib.contextmanager
def names_refuse(fuse: Fuse, number: int, known: Mapping[str, str]) -> Iterator[None]:
    """Asking for the addresses of a name fails by the fuse, with this EAI number; the `known` names have these."""
    real = socket.getaddrinfo

    def found(host: Any, *args: Any, **kwargs: Any) -> Any:
        return real(known.get(host, host), *args, **kwargs)

    with contextlib.ExitStack() as stack:
        _replace(stack, socket, "getaddrinfo", _by(fuse, found, lambda: socket.gaierror(number, "no answer")))
        yield


class Refusing:
    """As `inner`, but calls of the methods `names` fail by the fuse, with what `error` makes, if it makes anything."""

    def __init__(self, inner: Any, names: Collection[str], fuse: Fuse, error: Callable[[], Exception | None]) -> None:
        self._inner = inner
        self._names = names
        self._fuse = fuse
        self._error = error

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in self._names:
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._fuse.step() and (error := self._error()) is not None:
                raise error
            return found(*args, **kwargs)

        return call


def _on_paths(found: Any, places: tuple[int, ...], fuse: Fuse, number: int, folder: str) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        paths = (args[place] for place in places if place < len(args))
        if any(str(path).startswith(folder) for path in paths) and fuse.step():
            raise OSError(number, os.strerror(number))
        return found(*args, **kwargs)

    return call


def _always(found: Any, fuse: Fuse, number: int) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        if fuse.step():
            raise OSError(number, os.strerror(number))
        return found(*args, **kwargs)

    return call


def _by(fuse: Fuse, found: Any, error: Callable[[], OSError]) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        if fuse.step():
            raise error()
        return found(*args, **kwargs)

    return call


def _replace(stack: contextlib.ExitStack, module: Any, name: str, with_what: Any) -> None:
    stack.callback(setattr, module, name, getattr(module, name))
    setattr(module, name, with_what)
