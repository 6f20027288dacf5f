"""The filter of system calls, run step by step as the kernel does it, for both processors."""

from __future__ import annotations

import errno
import itertools
import subprocess
import sys

import pytest

from wire.system import seccomp
from wire.system.seccomp import FORBIDDEN, MACHINES, ONLY, Machine, program

PID = 4711
ALLOW, FAIL = 0x7FFF0000, 0x00050000
PLAIN = {"x86_64": {"read": 0, "mmap": 9, "futex": 202, "recvmsg": 47, "accept4": 288},
         "aarch64": {"read": 63, "mmap": 222, "futex": 98, "recvmsg": 212, "accept4": 242}}  # fmt: skip
CLONE, CLONE3, IOCTL = {"x86_64": 56, "aarch64": 220}, 435, {"x86_64": 16, "aarch64": 29}
NAMES = pytest.mark.parametrize("name", MACHINES)


def outcome(machine: Machine, number: int, *arguments: int, audit: int = 0) -> int:
    """What the kernel does with a call: 0 lets it through, else the error."""
    words = {0: number, 4: audit or machine.audit}
    for place, value in enumerate(arguments):
        words[16 + 8 * place], words[20 + 8 * place] = value & 0xFFFFFFFF, value >> 32
    steps, at, loaded = program(machine, PID), 0, 0
    for _ in itertools.repeat(None, len(steps)):
        what, yes, no, value = steps[at]
        at += 1
        match what:
            case 0x20:
                loaded = words.get(value, 0)
            case 0x15:
                at += yes if loaded == value else no
            case 0x35:
                at += yes if loaded >= value else no
            case 0x45:
                at += yes if loaded & value else no
            case 0x06:
                assert value == ALLOW or value & 0xFFFF0000 == FAIL
                return value & 0xFFFF if value != ALLOW else 0
    raise AssertionError("the filter has no end")


@NAMES
def test_every_call_of_the_table_is_refused_and_others_are_not(name: str) -> None:
    machine = MACHINES[name]
    for call, numbers in FORBIDDEN.items():
        number = numbers[machine.column]
        if number is not None:
            assert outcome(machine, number) == errno.EPERM, call
    for call, plain in PLAIN[name].items():
        assert outcome(machine, plain) == 0, call


@NAMES
def test_no_number_stands_twice(name: str) -> None:
    column = MACHINES[name].column
    numbers = [row[column] for row in FORBIDDEN.values() if row[column] is not None]
    numbers += [row[0][column] for row in ONLY.values()] + [CLONE[name], CLONE3, IOCTL[name]]
    assert len(numbers) == len(set(numbers))


@NAMES
def test_threads_may_begin_and_processes_may_not(name: str) -> None:
    thread = 0x003D0F00  # as the C library begins one
    assert outcome(MACHINES[name], CLONE[name], thread) == 0
    assert outcome(MACHINES[name], CLONE[name], 17) == errno.EPERM  # SIGCHLD alone: a fork
    assert outcome(MACHINES[name], CLONE[name], 0x4111) == errno.EPERM  # as vfork
    assert outcome(MACHINES[name], CLONE3, 0) == errno.ENOSYS, "so that the C library takes clone"


@NAMES
def test_a_process_may_signal_itself_alone(name: str) -> None:
    machine = MACHINES[name]
    for call in ("kill", "tgkill"):
        number = ONLY[call][0][machine.column]
        assert outcome(machine, number, PID, 6) == 0
        for other in (1, PID + 1, 0, 0xFFFFFFFF):
            assert outcome(machine, number, other, 6) == errno.EPERM, (call, other)
    limits = ONLY["prlimit64"][0][machine.column]
    assert [outcome(machine, limits, pid) for pid in (0, PID, 1)] == [0, 0, errno.EPERM]


@NAMES
def test_nothing_is_typed_into_terminals(name: str) -> None:
    for asked, came in ((0x5412, errno.EPERM), (0x541C, errno.EPERM), (0xC0106400, 0)):
        assert outcome(MACHINES[name], IOCTL[name], 1, asked) == came


def test_calls_by_the_numbers_of_other_processors_are_refused() -> None:
    here = MACHINES["x86_64"]
    assert outcome(here, 0, audit=0x40000003) == errno.EPERM  # 32 bits
    assert outcome(here, 0x40000000 | 41) == errno.ENOSYS  # the x32 names of the same calls


@pytest.mark.skipif(not seccomp.available(), reason="NOT TESTED: this kernel takes no seccomp filters")
def test_a_filter_holds_in_threads_that_ran_before_and_in_those_that_come_later() -> None:
    """In a process of its own, which cannot get out again."""
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["EPERM", "EPERM", "EPERM"], done.stderr


THREADS = """
import errno, os, socket, sys, threading
from wire.system import seccomp

def tries(found):
    try:
        socket.socket()
        found.append("out")
    except OSError as error:
        found.append(errno.errorcode[error.errno])

found, go = [], threading.Event()
before = threading.Thread(target=lambda: (go.wait(), tries(found)))
before.start()
seccomp.restrict()
go.set()
before.join()
later = threading.Thread(target=tries, args=(found,))
later.start()
later.join()
tries(found)
print(*found)
"""
