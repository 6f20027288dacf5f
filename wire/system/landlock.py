"""Landlock: which files a thread, and all that it starts, may use from now on (Linux 5.13 and later).

A thread gives rights away and gets none back.  The rules are a list of places with the rights that stay there and
below; everywhere else nothing stays.  Where the kernel has more of it, the thread can also neither bind nor connect TCP
(6.7), nor signal processes that are not restricted as it is (6.12).  The kernel's page is userspace-api/landlock.rst.
The C library has no functions for the three system calls, so they are made by number, which is the same on every
processor.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntFlag
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION = 1
_PATH_BENEATH = 1
_PR_SET_NO_NEW_PRIVS = 38
_BIND_TCP, _CONNECT_TCP = 1, 2
_SCOPE_ABSTRACT_SOCKETS, _SCOPE_SIGNALS = 1, 2


class Right(IntFlag):
    """What may be done with a place and what is below it.  Looking up names, and their status, is never forbidden."""

    EXECUTE = 1 << 0
    WRITE = 1 << 1
    READ = 1 << 2
    LIST = 1 << 3
    REMOVE_FOLDER = 1 << 4
    REMOVE = 1 << 5
    MAKE_CHARACTER_DEVICE = 1 << 6
    MAKE_FOLDER = 1 << 7
    MAKE = 1 << 8
    MAKE_SOCKET = 1 << 9
    MAKE_PIPE = 1 << 10
    MAKE_BLOCK_DEVICE = 1 << 11
    MAKE_LINK = 1 << 12
    MOVE = 1 << 13  # from one folder to another; version 2
    TRUNCATE = 1 << 14  # version 3
    CONTROL_DEVICE = 1 << 15  # ioctl; version 5


READING = Right.READ | Right.LIST
WRITING = Right.READ | Right.WRITE | Right.TRUNCATE | Right.MAKE | Right.REMOVE
DEVICE = Right.READ | Right.WRITE | Right.LIST | Right.CONTROL_DEVICE
_OF_FILES = Right.EXECUTE | Right.READ | Right.WRITE | Right.TRUNCATE | Right.CONTROL_DEVICE
_HANDLED = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}  # later versions: all
_ALL = (1 << 16) - 1


@dataclass(frozen=True, slots=True)
class Place:
    """The rights that stay at a path and below.  One that is not there is left out."""

    path: Path
    rights: Right


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scope", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("rights", ctypes.c_uint64), ("parent", ctypes.c_int32))


def version() -> int:
    """The version of Landlock that this kernel has; 0 for none, or where it may not be used."""
    try:
        return _call(_CREATE_RULESET, None, 0, _ASK_VERSION)
    except OSError:
        return 0


def restrict(places: Iterable[Place]) -> None:
    """Keep this thread, and all that it starts, to these places; OSError if that cannot be.

    On a kernel that has it, the thread can make no TCP connection, and signals none that is not restricted as it is.
    """
    has = version()
    files = _HANDLED.get(has, _ALL)
    ruleset = _Ruleset(files, _BIND_TCP | _CONNECT_TCP, _SCOPE_ABSTRACT_SOCKETS | _SCOPE_SIGNALS)
    size = 8 if has < 4 else 16 if has < 6 else 24
    handle = _call(_CREATE_RULESET, ctypes.byref(ruleset), size, 0)
    try:
        for place in places:
            _add(handle, place, files)
        no_new_privileges()
        _call(_RESTRICT_SELF, handle, 0)
    finally:
        os.close(handle)


def no_new_privileges() -> None:
    """Nothing that this thread executes gets rights that it has not; OSError if that cannot be."""
    if _library().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _add(ruleset: int, place: Place, handled: int) -> None:
    try:
        parent = os.open(place.path, getattr(os, "O_PATH", 0) | getattr(os, "O_CLOEXEC", 0))
    except OSError:
        return
    try:
        rights = place.rights if place.path.is_dir() else place.rights & _OF_FILES
        rule = _PathBeneath(rights & handled, parent)
        if rule.rights:
            _call(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(parent)


def _call(number: int, *arguments: object) -> int:
    done: int = _library().syscall(ctypes.c_long(number), *arguments)
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return done


def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
