"""Semaphores that machine code waits on: a thread is woken there without Python, so it does not wait for the GIL."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np

BYTES = 64  # of a sem_t, at least
COUNT_MAX = 1 << 30


class Semaphore:
    """A semaphore that begins at 0.  `address` is what `WAIT` takes, beside -1, and `POST`, beside 1 and 0."""

    def __init__(self) -> None:
        self.address, self._memory = _made()


def _function(library: Any, name: str, *arguments: Any, result: Any = ctypes.c_int) -> Any:
    function = getattr(library, name)
    function.argtypes, function.restype = arguments, result
    return function


if sys.platform == "win32":
    _kernel: Any = ctypes.PyDLL("kernel32")
    _create = _function(_kernel, "CreateSemaphoreW", *[ctypes.c_void_p, ctypes.c_long, ctypes.c_long, ctypes.c_void_p],
                        result=ctypes.c_void_p)  # fmt: skip
    _wait, _post = _kernel.WaitForSingleObject, _kernel.ReleaseSemaphore

    def _made() -> tuple[int, object]:
        return _create(None, 0, COUNT_MAX, None), None

elif sys.platform == "darwin":  # which has no semaphores without a name
    _system: Any = ctypes.PyDLL(None)
    _create = _function(_system, "dispatch_semaphore_create", ctypes.c_long, result=ctypes.c_void_p)
    _wait, _post = _system.dispatch_semaphore_wait, _system.dispatch_semaphore_signal

    def _made() -> tuple[int, object]:
        return _create(0), None

else:
    _library: Any = ctypes.PyDLL(None)
    _begin = _function(_library, "sem_init", ctypes.c_void_p, ctypes.c_int, ctypes.c_uint)
    _wait, _post = _library.sem_wait, _library.sem_post

    def _made() -> tuple[int, object]:
        memory = np.zeros(BYTES, np.uint8)
        address = int(memory.ctypes.data)
        _begin(address, 0, 0)
        return address, memory


WAIT = ctypes.cast(_wait, ctypes.c_void_p).value or 0  # int (semaphore, int64): -1, which is without an end
POST = ctypes.cast(_post, ctypes.c_void_p).value or 0  # int (semaphore, int64, int64): 1, 0; lets one thread go on
