"""Seccomp: which system calls a process can make from now on (Linux).

A filter is a small program (classic BPF) that the kernel runs at every system call.  This one lets through what it does
not name: drivers and libraries need too many calls for a list of what they may do.  What it names fails with EPERM, or
with ENOSYS where that has the C library take another call: it starts no process, opens no connection, signals nobody,
and reaches neither into other processes nor for the kernel's wider tools.

The table has each call's number on x86-64 and on ARM64.  To refuse one more: a row.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from .landlock import no_new_privileges

_SET_FILTER, _ALL_THREADS = 1, 1
_SPECULATE = 4  # else older kernels slow the whole process down, against attacks within one process
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000  # with the error number
_CLONE_THREAD = 0x00010000
_PUSH_INPUT, _OTHER_CONSOLE = 0x5412, 0x541C  # TIOCSTI and TIOCLINUX type into a terminal in its user's name
_FOREIGN_ABI = 0x40000000  # of x86-64: the same calls by other numbers


@dataclass(frozen=True, slots=True)
class Machine:
    """A processor as the kernel numbers it: its audit number, and the number of `seccomp` itself."""

    audit: int
    seccomp: int
    column: int


MACHINES = {"x86_64": Machine(0xC000003E, 317, 0), "aarch64": Machine(0xC00000B7, 277, 1)}

# call -> its number on x86-64 and on ARM64, None where there is none
FORBIDDEN: dict[str, tuple[int | None, int | None]] = {
    # connections: those that are handed in may be used, and one that listens may accept
    "socket": (41, 198),
    "connect": (42, 203),
    "bind": (49, 200),
    "listen": (50, 201),
    # processes; threads come by `clone`
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "execveat": (322, 281),
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "tkill": (200, 130),
    # files that others own or may read from now on: Landlock does not look at these
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "lchown": (94, None),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "removexattrat": (466, 466),
    # calls that are made behind this filter's back
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    # other views of the system
    "unshare": (272, 97),
    "setns": (308, 268),
    "chroot": (161, 51),
    "pivot_root": (155, 41),
    "mount": (165, 40),
    "umount2": (166, 39),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    # the kernel's wider tools, where most of its own faults were found
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "syslog": (103, 116),
    "personality": (135, 92),
    "iopl": (172, None),
    "ioperm": (173, None),
}
# Allowed with one value of an argument: call -> its numbers, the argument, and the value.  `OWN` is this process.
OWN = -1
ONLY: dict[str, tuple[tuple[int, int], int, tuple[int, ...]]] = {
    "kill": ((62, 129), 0, (OWN,)),
    "tgkill": ((234, 131), 0, (OWN,)),
    "prlimit64": ((302, 261), 0, (0, OWN)),
}
_CLONE, _CLONE3, _IOCTL = (56, 220), (435, 435), (16, 29)

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _AUDIT_AT, _ARGUMENTS_AT = 0, 4, 16

Step = tuple[int, int, int, int]  # what to do, steps to skip if so, steps to skip if not, a number


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_void_p))


def machine() -> Machine | None:
    """This processor, None where the table does not know it or the system is not Linux."""
    known = platform.system() == "Linux" and struct.calcsize("P") == 8
    return MACHINES.get(platform.machine()) if known else None


def available() -> bool:
    """Whether this kernel takes filters."""
    try:
        with open("/proc/sys/kernel/seccomp/actions_avail") as file:
            return machine() is not None and "errno" in file.read().split()
    except OSError:
        return False


def restrict() -> None:
    """Refuse the calls of the table to all threads of this process, and to whatever it starts; OSError if that cannot
    be."""
    here = machine()
    if here is None:
        raise OSError(errno.ENOSYS, f"no table of system calls for {platform.machine()}")
    no_new_privileges()
    steps = b"".join(struct.pack("HBBI", *step) for step in program(here, os.getpid()))
    memory = ctypes.create_string_buffer(steps, len(steps))
    filter_ = _Program(len(steps) // 8, ctypes.addressof(memory))
    library = ctypes.CDLL(None, use_errno=True)
    done = library.syscall(ctypes.c_long(here.seccomp), _SET_FILTER, _ALL_THREADS | _SPECULATE, ctypes.byref(filter_))
    if done:
        number = ctypes.get_errno() if done < 0 else errno.EBUSY  # a thread has a filter of its own
        raise OSError(number, os.strerror(number))


def program(here: Machine, pid: int) -> list[Step]:
    """The filter for a processor and a process."""
    steps: list[Step] = [(_LOAD, 0, 0, _AUDIT_AT), (_EQUAL, 1, 0, here.audit), _fail(errno.EPERM)]
    steps.append((_LOAD, 0, 0, _NUMBER_AT))
    if here.column == 0:
        steps += [(_AT_LEAST, 0, 1, _FOREIGN_ABI), _fail(errno.ENOSYS)]
    for numbers in FORBIDDEN.values():
        number = numbers[here.column]
        if number is not None:
            steps += [(_EQUAL, 0, 1, number), _fail(errno.EPERM)]
    steps += [(_EQUAL, 0, 1, _CLONE3[here.column]), _fail(errno.ENOSYS)]  # its flags are in memory; `clone` is tried
    threads = [(_LOAD, 0, 0, _argument(0)), (_ANY_BIT, 1, 0, _CLONE_THREAD), _fail(errno.EPERM), _allow()]
    steps += _if(_CLONE[here.column], threads)
    typing = [(_LOAD, 0, 0, _argument(1)), (_EQUAL, 1, 0, _PUSH_INPUT), (_EQUAL, 0, 1, _OTHER_CONSOLE)]
    steps += _if(_IOCTL[here.column], [*typing, _fail(errno.EPERM), _allow()])
    for numbers_, argument, values in ONLY.values():
        wanted = [pid if value == OWN else value for value in values]
        tests = [(_EQUAL, len(wanted) - place, 0, value) for place, value in enumerate(wanted)]
        only = [(_LOAD, 0, 0, _argument(argument)), *tests, _fail(errno.EPERM), _allow()]
        steps += _if(numbers_[here.column], only)
    return [*steps, _allow()]


def _if(number: int, steps: Sequence[Step]) -> list[Step]:
    """Steps for one call, of which the last ends; the number is loaded before and behind."""
    return [(_EQUAL, 0, len(steps), number), *steps]


def _argument(place: int) -> int:
    """The place of the low half of an argument."""
    return _ARGUMENTS_AT + 8 * place


def _fail(number: int) -> Step:
    return (_RETURN, 0, 0, _FAIL | number)


def _allow() -> Step:
    return (_RETURN, 0, 0, _ALLOW)
