"""The native engine as another processor runs it: machine code for aarch64, which an emulator computes (unicorn, which
is qemu's).

The emulator sees this process's memory at this process's addresses, so kernels, the table of a program and numpy's
arrays are where they always are: everything is the engine's own but who walks a program.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from worker.native.engine import NativeEngine
from worker.native.llvm import Processor
from worker.native.threads import Threads

from .adapter import REQUIRED
from .kept_kernels import folder

HAS_EMULATOR = REQUIRED or find_spec("unicorn") is not None
needs_emulator = pytest.mark.skipif(not HAS_EMULATOR, reason="the emulator is not installed (unicorn, of `dev`)")

ARM = {  # what every one has; and one with many instructions more, and macOS's object files
    "NEON": Processor("aarch64-unknown-linux-gnu", "generic", "+neon"),
    "Apple M1": Processor("arm64-apple-darwin", "apple-m1", ""),
}
BLOCK = 1 << 24  # bytes that become visible at once
FIRST_PAGES = 1 << 16  # no system has anything there
RETURNED = 0x1000  # where a function returns to, and the emulator stops
STACK_BYTES = 1 << 20
VECTORS_ON = 3 << 20  # of CPACR_EL1


class EmulatedEngine(NativeEngine):
    """A native engine whose kernels are aarch64's; `walked` is how many programs the emulator has run."""

    def __init__(self, processor: Processor) -> None:
        super().__init__(folder=folder(), processor=processor)
        self._walker = _Walker(self._library.runner())
        self._threads = Threads(self._walker, 1)  # type: ignore[arg-type]

    @property
    def walked(self) -> int:
        return self._walker.walked


class _Walker:
    """The runner's `alone` and `bind`, emulated."""

    def __init__(self, runner: Any) -> None:
        self._code = runner._code  # it goes with its last user
        self.chain, self.walk_address = runner.chain, runner.walk_address
        self._emulator = Emulator()
        self.walked = 0

    def alone(self, rows: int, count: int, stop: int, scratch: int) -> int:
        self.walked += 1
        return self._emulator.call(self._code.address("alone"), rows, count, stop, scratch)

    def bind(self, words: int, table: int, count: int, addresses: int) -> int:
        return self._emulator.call(self._code.address("bind"), words, table, count, addresses)


class Emulator:
    """An aarch64 processor in the memory of this process."""

    def __init__(self) -> None:
        import unicorn
        from unicorn import arm64_const

        self._names = arm64_const
        self._uc = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
        self._uc.ctl_set_cpu_model(arm64_const.UC_CPU_ARM64_MAX)
        self._uc.hook_add(unicorn.UC_HOOK_MEM_UNMAPPED, self._show)
        self._uc.reg_write(arm64_const.UC_ARM64_REG_CPACR_EL1, VECTORS_ON)
        self._stack = np.zeros(STACK_BYTES, np.uint8)

    def call(self, address: int, *arguments: int) -> int:
        """What a function of at most eight integers returns."""
        uc, names = self._uc, self._names
        uc.ctl_flush_tb()  # other code may lie where earlier code did
        for place, value in enumerate(arguments):
            uc.reg_write(names.UC_ARM64_REG_X0 + place, value)
        uc.reg_write(names.UC_ARM64_REG_SP, (self._stack.ctypes.data + STACK_BYTES) & -64)
        uc.reg_write(names.UC_ARM64_REG_LR, RETURNED)
        uc.emu_start(address, RETURNED)
        return int(uc.reg_read(names.UC_ARM64_REG_X0))

    def _show(self, uc: Any, access: int, address: int, size: int, value: int, data: Any) -> bool:
        """Make the block of an address visible; False, which ends the run with an error, for the null address."""
        if address < FIRST_PAGES:
            return False
        first = address & -BLOCK
        uc.mem_map_ptr(first, BLOCK, 7, first)  # to be read, written and run
        return True
