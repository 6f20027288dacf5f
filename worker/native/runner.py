"""The runner: native code that walks a program, so there is no Python between kernels.

A program is a table of int64, `WORDS` to a row.  A row is a kernel: its address, the address of its arguments, the
number of its tasks, and `AFTER`, the number of rows from the first on that must be done before a task of it begins.  A
kernel has the type `KERNEL`: arguments, number of the task, and scratch memory of the thread.

A runner that is made with a clock also writes down when each thread began its first task of each row, and ended its
last one, where a job has room for that.

`chain` is a kernel that is made of others: its arguments are the table of a region (`steps.py`), and each of its tasks
runs theirs for one slice.  The table has how many kernels there are, the bytes of scratch memory before theirs, and for
each: its address, its tasks in a slice, the address of its arguments, how many they are, and for each of these the
bytes of a slice if it is a place in scratch memory, else 0.

`alone` walks a program on the calling thread.  To walk it on several, one thread opens the job and walks; others come
and go through a gate: a thread that is too late finds it closed, and one inside is waited for, so that nobody looks at
the job of a run that is over.  They are woken while a run is COMING: then they wait at the gate until it opens, or no
run comes.  Between runs they look for the next one for a while, since runs often follow each other, and then sleep at a
semaphore, which is posted for those alone that say so.  They need no GIL until the job is CLOSED.  All walk the same
rows in order and take tasks by a counter.  Where a row has to wait, a thread spins for a while, then yields, then
sleeps for short times.

`bind` writes addresses into the arguments of a program: its table has a row for each, of the argument, the number of a
tensor, and how many bytes on in it.

A thread computes with IEEE 754's rounding and subnormal numbers, whatever the process has set it to.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

from .llvm import ADDRESS, I32, I64, VOID, Loaded, Processor, index, ir, loop, new_module

KERNEL = ir.FunctionType(VOID, [I64.as_pointer(), I64, ADDRESS])
WORDS = 4
LINE_WORDS = 8  # of a cache line, so that counters of two rows do not share one
SPINS, YIELDS = 2000, 200  # turns, about 20 us to 100 us; then the processor is given away; then this thread sleeps
STOPPED = 1


class Row(IntEnum):
    """Words of a program's row."""

    FUNCTION = 0
    ARGUMENTS = 1
    TASKS = 2
    AFTER = 3


class Job(IntEnum):
    """Words of a job, which lives as long as its threads; those of two lines, since all threads write the first."""

    OPEN = 0
    INSIDE = 1
    COMING = 2  # not 0: a run is about to open
    ROWS = 8
    COUNT = 9
    COUNTERS = 10  # a line for every row: tasks taken, tasks done
    STOP = 11  # the address of a word: not 0 asks all to leave
    THREADS = 12
    SCRATCH = 13  # the address of an address for every thread
    YIELD = 14  # int ()
    SLEEP = 15  # int (int): SLEEP_FOR
    SLEEP_FOR = 16
    TIMES = 17  # the address of two readings of the clock for every row of every thread, or 0
    CLOCK = 18  # int (int, int64*), which reads CLOCK_OF; on Windows int (int64*)
    CLOCK_OF = 19
    WALK = 20  # the address of `walk`, with a clock or without
    WAIT = 21  # int (semaphore, int64): -1
    ROAM = 22  # int (int, int64, int64): a thread or 0, ROAM_BYTES, the address of a set of cores
    ROAM_BYTES = 23
    POST = 24  # int (semaphore, int64, int64): 1, 0
    HELPERS = 25  # the address of a line for every thread but the first
    RUN = 26  # the number of the run that was opened last
    CLOSED = 27  # not 0: the threads end
    HERE = 28  # int (): the core of this thread
    CORES = 29  # how many cores there are to wake threads on
    PLACES = 30  # for each core, which of these it is; negative for others
    ALONE = 31  # the address of a set for each of these cores, with this one
    EVERY = 32  # the address of the set of all of them


class Helper(IntEnum):
    """Words of a helper's line."""

    SEMAPHORE = 0
    SLEEPS = 1  # 1: it waits for its semaphore, or is about to, and the thread that makes it 0 posts
    ROAMS = 2  # the address of the cores that it may go to once it is awake, or 0
    THREAD = 3  # its number for the system


JOB_WORDS = 33
BEGAN, ENDED, READINGS = 0, 1, 2
TAKEN, DONE = 0, 1
WALKERS = ir.FunctionType(I64, [I64.as_pointer(), I64])
ROAM = ir.FunctionType(I32, [I32, I64, I64])


class Runner:
    """The runner's functions.  All arguments are int64: addresses and numbers.  Those that are over at once keep the
    GIL, the others are called without it.

    alone(rows, count, stop, scratch) -> STOPPED or 0
    bind(words, table, count, addresses), at once
    open(job, rows, count, counters, stop, threads), at once
    wake(job, helpers, spread), at once: a run is about to open; if `spread`, each wakes on another core than this one
    walk(job, thread) -> STOPPED or 0, for thread 0 when all rows are done
    attend(job, thread), for the other threads: walk in every run until the job is closed
    close(job)

    `chain` and `walk_address` are the addresses of the kernel and of `walk`.
    """

    def __init__(self, code: Loaded) -> None:
        self._code = code  # it goes with its last user

        def function(name: str, arguments: int, result: Any = None, kind: Any = ctypes.CFUNCTYPE) -> Callable[..., int]:
            made: Callable[..., int] = kind(result, *[ctypes.c_int64] * arguments)(code.address(name))
            return made

        self.alone = function("alone", 4, ctypes.c_int64)
        self.open = function("open", 6, kind=ctypes.PYFUNCTYPE)
        self.bind = function("bind", 4, kind=ctypes.PYFUNCTYPE)
        self.walk = function("walk", 2, ctypes.c_int64)
        self.wake = function("wake", 3, kind=ctypes.PYFUNCTYPE)
        self.attend = function("attend", 2)
        self.close = function("close", 1)
        self.chain, self.walk_address = code.address("chain"), code.address("walk")


def runner_module(processor: Processor, clock: bool = False) -> ir.Module:
    """A module of the functions of `Runner`, `alone` without a clock in any case."""
    return _Runner(processor, clock).module


class _Runner:
    def __init__(self, processor: Processor, clock: bool) -> None:
        self.processor = processor
        self.clock = clock
        self.module = new_module("runner")
        self._chain()
        self._alone()
        self._open()
        self._bind()
        self._close()
        self._walk()
        self._wake()
        self._attend()

    def _function(self, name: str, kind: ir.FunctionType) -> tuple[ir.Function, ir.IRBuilder]:
        function = ir.Function(self.module, kind, name)
        function.attributes.add("nounwind")
        return function, ir.IRBuilder(function.append_basic_block("entry"))

    def _chain(self) -> None:
        words = I64.as_pointer()
        function, build = self._function("chain", KERNEL)
        table, task, scratch = function.args
        copied, base = build.bitcast(scratch, words), build.ptrtoint(scratch, I64)
        ahead = build.gep(scratch, [build.load(build.gep(table, [index(1)]))])
        part, place = build.gep(table, [index(2)]), build.alloca(words)
        build.store(part, place)
        with loop(build, index(0), build.load(table), index(1), "kernel"):
            part = build.load(place)
            kernel, tasks, start, count = (build.load(build.gep(part, [index(at)])) for at in range(4))
            arguments, slices = build.inttoptr(start, words), build.gep(part, [index(4)])
            with loop(build, index(0), count, index(1), "argument") as at:
                size = build.load(build.gep(slices, [at]))
                lies = build.sub(base, build.mul(task, size))  # as if the slices before it were there
                of_thread = build.select(build.icmp_signed("==", size, index(0)), index(0), lies)
                build.store(build.add(build.load(build.gep(arguments, [at])), of_thread), build.gep(copied, [at]))
            first = build.mul(task, tasks)
            with loop(build, first, build.add(first, tasks), index(1), "task") as at:
                build.call(build.inttoptr(kernel, KERNEL.as_pointer()), [copied, at, ahead])
            build.store(build.gep(slices, [count]), place)
        build.ret_void()

    def _alone(self) -> None:
        words = I64.as_pointer()
        function, build = self._function("alone", ir.FunctionType(I64, [words, I64, words, ADDRESS]))
        rows, count, stop, scratch = function.args
        with self._floats(build) as restore:
            with loop(build, index(0), count, index(1), "row") as at:
                row = build.gep(rows, [build.mul(at, index(WORDS))])
                kernel, arguments, tasks = self._kernel(build, row)
                with loop(build, index(0), tasks, index(1), "task") as task:
                    with build.if_then(_is_set(build, stop), likely=False):
                        restore()
                        build.ret(index(STOPPED))
                    build.call(kernel, [arguments, task, scratch])
            restore()
        build.ret(index(0))

    def _open(self) -> None:
        words = I64.as_pointer()
        function, build = self._function("open", ir.FunctionType(VOID, [words, I64, I64, I64, I64, I64]))
        job, *values = function.args
        for word, value in zip((Job.ROWS, Job.COUNT, Job.COUNTERS, Job.STOP, Job.THREADS), values, strict=True):
            build.store(value, _word(build, job, word))
        counters = build.inttoptr(values[2], words)
        with loop(build, index(0), values[1], index(1), "row") as at:
            for which in (TAKEN, DONE):
                build.store(index(0), build.gep(counters, [build.add(build.mul(at, index(LINE_WORDS)), index(which))]))
        build.store_atomic(index(1), _word(build, job, Job.OPEN), "seq_cst", 8)
        build.atomic_rmw("add", _word(build, job, Job.RUN), index(1), "seq_cst")
        build.store_atomic(index(0), _word(build, job, Job.COMING), "seq_cst", 8)
        build.ret_void()

    def _bind(self) -> None:
        words = I64.as_pointer()
        function, build = self._function("bind", ir.FunctionType(VOID, [words, words, I64, words]))
        arguments, table, count, addresses = function.args
        with loop(build, index(0), count, index(1), "place") as at:
            row = build.gep(table, [build.mul(at, index(3))])
            place, source, further = (build.load(build.gep(row, [index(word)])) for word in range(3))
            address = build.load(build.gep(addresses, [source]))
            build.store(build.add(address, further), build.gep(arguments, [place]))
        build.ret_void()

    def _close(self) -> None:
        function, build = self._function("close", ir.FunctionType(VOID, [I64.as_pointer()]))
        (job,) = function.args
        build.store_atomic(index(0), _word(build, job, Job.OPEN), "seq_cst", 8)
        with self._waiting(build, job) as leave:
            inside = build.load_atomic(_word(build, job, Job.INSIDE), "seq_cst", 8)
            leave(build.icmp_signed("==", inside, index(0)))
        build.ret_void()

    def _walk(self) -> None:
        function, build = self._function("walk", WALKERS)
        job, thread = function.args
        inside = _word(build, job, Job.INSIDE)
        build.atomic_rmw("add", inside, index(1), "seq_cst")
        opened = build.load_atomic(_word(build, job, Job.OPEN), "seq_cst", 8)
        wanted = build.icmp_signed("<", thread, build.load(_word(build, job, Job.THREADS)))
        result = build.alloca(I64)
        build.store(index(0), result)
        rows = self._rows()
        here = build.and_(build.icmp_signed("!=", opened, index(0)), wanted)
        with build.if_then(here), self._floats(build) as restore:
            build.store(build.call(rows, [job, thread]), result)
            restore()
        build.atomic_rmw("sub", inside, index(1), "seq_cst")
        build.ret(build.load(result))

    def _wake(self) -> None:
        function, build = self._function("wake", ir.FunctionType(VOID, [I64.as_pointer(), I64, I64]))
        job, helpers, spread = function.args
        build.store_atomic(index(1), _word(build, job, Job.COMING), "seq_cst", 8)
        post = self._from_job(build, job, Job.POST, ir.FunctionType(I32, [I64, I64, I64]))
        here = build.alloca(I64)  # which of the cores this thread is on; negative: nobody is sent to another one
        build.store(index(-1), here)
        with build.if_then(build.icmp_signed("!=", spread, index(0))):
            build.store(self._place(build, job), here)
        place = build.load(here)
        spreads = build.icmp_signed(">=", place, index(0))
        with loop(build, index(0), helpers, index(1), "helper") as at:
            line = self._helper(build, job, at)
            slept = build.atomic_rmw("xchg", _word(build, line, Helper.SLEEPS), index(0), "seq_cst")
            with build.if_then(build.icmp_signed("!=", slept, index(0))):  # it is asleep until it is posted
                with build.if_then(spreads):
                    self._send(build, job, line, at, place)
                build.call(post, [build.load(_word(build, line, Helper.SEMAPHORE)), index(1), index(0)])
        build.ret_void()

    def _place(self, build: ir.IRBuilder, job: ir.Value) -> ir.Value:
        """The number of the core that this thread is on, negative if it is unknown."""
        core = build.sext(build.call(self._from_job(build, job, Job.HERE, ir.FunctionType(I32, [])), []), I64)
        places = build.inttoptr(build.load(_word(build, job, Job.PLACES)), I64.as_pointer())
        bytes_of_set = build.load(_word(build, job, Job.ROAM_BYTES))
        is_known = build.icmp_unsigned("<", core, build.mul(bytes_of_set, index(8)))  # not -1 either
        place = build.load(build.gep(places, [build.select(is_known, core, index(0))]))
        return build.select(is_known, place, index(-1))

    def _send(self, build: ir.IRBuilder, job: ir.Value, line: ir.Value, helper: ir.Value, place: ir.Value) -> None:
        """Send a helper that is asleep to a core of its own, as far as there are enough, and not to this one."""
        cores, alone, every = (build.load(_word(build, job, word)) for word in (Job.CORES, Job.ALONE, Job.EVERY))
        bytes_of_set = build.load(_word(build, job, Job.ROAM_BYTES))
        further = build.add(build.urem(helper, build.sub(cores, index(1))), index(1))
        target = build.urem(build.add(place, further), cores)
        thread = build.trunc(build.load(_word(build, line, Helper.THREAD)), I32)
        roam = self._from_job(build, job, Job.ROAM, ROAM)
        build.call(roam, [thread, bytes_of_set, build.add(alone, build.mul(target, bytes_of_set))])
        build.store_atomic(every, _word(build, line, Helper.ROAMS), "seq_cst", 8)

    def _attend(self) -> None:
        function, build = self._function("attend", ir.FunctionType(VOID, [I64.as_pointer(), I64]))
        job, thread = function.args
        line = self._helper(build, job, build.sub(thread, index(1)))
        sleeps = _word(build, line, Helper.SLEEPS)
        walked, mine = build.alloca(I64), build.alloca(I64)  # the run that it was in last; whether nobody posts
        build.store(index(0), walked)

        def word(which: Job) -> ir.Value:
            return build.load_atomic(_word(build, job, which), "seq_cst", 8)

        def is_open() -> ir.Value:
            """A run that it was not in."""
            number = build.icmp_signed("!=", word(Job.RUN), build.load(walked))
            return build.and_(number, build.icmp_signed("!=", word(Job.OPEN), index(0)))

        def is_wanted() -> ir.Value:
            others = build.or_(word(Job.COMING), word(Job.CLOSED))
            return build.or_(is_open(), build.icmp_signed("!=", others, index(0)))

        again, sleep, awake, over = (function.append_basic_block(name) for name in ("again", "sleep", "awake", "over"))
        build.branch(again)

        build.position_at_end(again)
        look, tired = function.append_basic_block("look_out"), function.append_basic_block("tired")
        build.branch(look)
        build.position_at_end(look)
        turns = build.phi(I64, "turns")
        turns.add_incoming(index(0), again)
        wanted = is_wanted()
        self._pause(build)
        turns.add_incoming(build.add(turns, index(1)), build.block)
        build.cbranch(build.or_(wanted, build.icmp_signed(">=", turns, index(SPINS))), tired, look)
        build.position_at_end(tired)
        build.cbranch(wanted, awake, sleep)

        build.position_at_end(sleep)
        build.store_atomic(index(1), sleeps, "seq_cst", 8)
        build.store(index(0), mine)
        with build.if_then(is_wanted()):  # it may have been set just before: then no thread posts, or one does
            build.store(build.atomic_rmw("xchg", sleeps, index(0), "seq_cst"), mine)
        with build.if_then(build.icmp_signed("==", build.load(mine), index(0))):
            wait = self._from_job(build, job, Job.WAIT, ir.FunctionType(I32, [I64, I64]))
            build.call(wait, [build.load(_word(build, line, Helper.SEMAPHORE)), index(-1)])
        build.branch(awake)

        build.position_at_end(awake)
        cores = build.load_atomic(_word(build, line, Helper.ROAMS), "seq_cst", 8)
        with build.if_then(build.icmp_signed("!=", cores, index(0)), likely=False):
            build.store(index(0), _word(build, line, Helper.ROAMS))
            roam = self._from_job(build, job, Job.ROAM, ROAM)
            build.call(roam, [ir.Constant(I32, 0), build.load(_word(build, job, Job.ROAM_BYTES)), cores])
        with self._waiting(build, job) as leave:
            nothing = build.icmp_signed("==", word(Job.COMING), index(0))
            leave(build.or_(build.or_(is_open(), nothing), build.icmp_signed("!=", word(Job.CLOSED), index(0))))
        build.store(word(Job.RUN), walked)
        build.call(self._from_job(build, job, Job.WALK, WALKERS), [job, thread])
        build.cbranch(build.icmp_signed("!=", word(Job.CLOSED), index(0)), over, again)
        build.position_at_end(over)
        build.ret_void()

    def _rows(self) -> ir.Function:
        """What a thread does inside."""
        words = I64.as_pointer()
        function, build = self._function("rows", WALKERS)
        function.linkage = "internal"
        job, thread = function.args
        rows, counters, stop = (
            build.inttoptr(build.load(_word(build, job, word)), words) for word in (Job.ROWS, Job.COUNTERS, Job.STOP)
        )
        count = build.load(_word(build, job, Job.COUNT))
        addresses = build.inttoptr(build.load(_word(build, job, Job.SCRATCH)), words)
        scratch = build.inttoptr(build.load(build.gep(addresses, [thread])), ADDRESS)
        done = build.alloca(I64)  # rows from the first on that are known to be done
        build.store(index(0), done)
        reading = build.alloca(I64, READINGS) if self.clock else None
        times = build.load(_word(build, job, Job.TIMES)) if self.clock else None

        def wait_for(rows_done: ir.Value) -> None:
            with loop(build, build.load(done), rows_done, index(1), "wait") as at:
                tasks = build.load(build.gep(rows, [build.add(build.mul(at, index(WORDS)), index(Row.TASKS))]))
                counter = build.gep(counters, [build.add(build.mul(at, index(LINE_WORDS)), index(DONE))])
                with self._waiting(build, job) as leave:
                    leave(build.icmp_signed(">=", build.load_atomic(counter, "acquire", 8), tasks))
                    with build.if_then(_is_set(build, stop), likely=False):
                        build.ret(index(STOPPED))
                build.store(build.add(at, index(1)), done)

        with loop(build, index(0), count, index(1), "row") as at:
            row = build.gep(rows, [build.mul(at, index(WORDS))])
            wait_for(build.load(_word(build, row, Row.AFTER)))
            kernel, arguments, tasks = self._kernel(build, row)
            line = build.gep(counters, [build.mul(at, index(LINE_WORDS))])
            take, compute, out = (function.append_basic_block(name) for name in ("take", "compute", "out"))
            build.branch(take)
            build.position_at_end(take)
            with build.if_then(_is_set(build, stop), likely=False):
                build.ret(index(STOPPED))
            task = build.atomic_rmw("add", _word(build, line, TAKEN), index(1), "monotonic")
            build.cbranch(build.icmp_signed("<", task, tasks), compute, out)
            build.position_at_end(compute)
            if self.clock:
                mine = build.add(build.mul(thread, count), at)
                span = build.gep(build.inttoptr(times, words), [build.mul(mine, index(READINGS))])
                with build.if_then(build.icmp_signed("!=", times, index(0))):
                    first = build.icmp_signed("==", build.load(_word(build, span, BEGAN)), index(0))
                    with build.if_then(first):
                        build.store(self._now(build, job, reading), _word(build, span, BEGAN))
            build.call(kernel, [arguments, task, scratch])
            if self.clock:
                with build.if_then(build.icmp_signed("!=", times, index(0))):
                    build.store(self._now(build, job, reading), _word(build, span, ENDED))
            build.atomic_rmw("add", _word(build, line, DONE), index(1), "release")
            build.branch(take)
            build.position_at_end(out)
        with build.if_then(build.icmp_signed("==", thread, index(0))):
            wait_for(count)
        build.ret(index(0))
        return function

    # -- parts ----------------------------------------------------------------------------------------------

    def _helper(self, build: ir.IRBuilder, job: ir.Value, which: ir.Value) -> ir.Value:
        """The line of a helper."""
        lines = build.inttoptr(build.load(_word(build, job, Job.HELPERS)), I64.as_pointer())
        return build.gep(lines, [build.mul(which, index(LINE_WORDS))])

    def _kernel(self, build: ir.IRBuilder, row: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
        """A row's function, arguments and number of tasks."""
        function, arguments, tasks = (
            build.load(_word(build, row, word)) for word in (Row.FUNCTION, Row.ARGUMENTS, Row.TASKS)
        )
        return build.inttoptr(function, KERNEL.as_pointer()), build.inttoptr(arguments, I64.as_pointer()), tasks

    @contextmanager
    def _waiting(self, build: ir.IRBuilder, job: ir.Value) -> Iterator[Callable[..., None]]:
        """A loop until `leave` gets a true value; between two looks the thread waits."""
        function = build.function
        before = build.block
        look, leave_block = (function.append_basic_block(name) for name in ("look", "leave"))
        build.branch(look)
        build.position_at_end(look)
        turns = build.phi(I64, "turns")
        turns.add_incoming(index(0), before)

        def leave(condition: ir.Value) -> None:
            stay = function.append_basic_block("stay")
            build.cbranch(condition, leave_block, stay)
            build.position_at_end(stay)

        yield leave
        with build.if_else(build.icmp_signed("<", turns, index(SPINS))) as (spin, yielding):
            with spin:
                self._pause(build)
            with yielding, build.if_else(build.icmp_signed("<", turns, index(SPINS + YIELDS))) as (give_way, sleep):
                with give_way:
                    build.call(self._from_job(build, job, Job.YIELD, ir.FunctionType(I32, [])), [])
                with sleep:
                    length = build.trunc(build.load(_word(build, job, Job.SLEEP_FOR)), I32)
                    build.call(self._from_job(build, job, Job.SLEEP, ir.FunctionType(I32, [I32])), [length])
        turns.add_incoming(build.add(turns, index(1)), build.block)
        build.branch(look)
        build.position_at_end(leave_block)

    def _now(self, build: ir.IRBuilder, job: ir.Value, reading: ir.Value) -> ir.Value:
        """The clock: nanoseconds, or on Windows its own counts."""
        if sys.platform == "win32":
            clock = self._from_job(build, job, Job.CLOCK, ir.FunctionType(I32, [I64.as_pointer()]))
            build.call(clock, [reading])
            return build.load(reading)
        which = build.trunc(build.load(_word(build, job, Job.CLOCK_OF)), I32)
        clock = self._from_job(build, job, Job.CLOCK, ir.FunctionType(I32, [I32, I64.as_pointer()]))
        build.call(clock, [which, reading])
        seconds, nanoseconds = (build.load(_word(build, reading, word)) for word in (0, 1))
        return build.add(build.mul(seconds, index(10**9)), nanoseconds)

    def _from_job(self, build: ir.IRBuilder, job: ir.Value, word: Job, kind: ir.FunctionType) -> ir.Value:
        return build.inttoptr(build.load(_word(build, job, word)), kind.as_pointer())

    def _pause(self, build: ir.IRBuilder) -> None:
        if self.processor.is_arm:
            build.call(self._intrinsic("llvm.aarch64.hint", VOID, I32), [ir.Constant(I32, 1)])
        else:
            build.call(self._intrinsic("llvm.x86.sse2.pause", VOID), [])

    @contextmanager
    def _floats(self, build: ir.IRBuilder) -> Iterator[Callable[..., None]]:
        """The processor's word of rounding at IEEE 754's defaults, and a call that writes back what there was."""
        if self.processor.is_arm:
            read, write = (
                self._intrinsic(f"llvm.aarch64.{name}.fpcr", *kinds)
                for name, *kinds in (("get", I64), ("set", VOID, I64))
            )
            before = build.call(read, [])
            build.call(write, [index(0)])
            yield lambda: build.call(write, [before])
            return
        read, write = (self._intrinsic(f"llvm.x86.sse.{name}mxcsr", VOID, ADDRESS) for name in ("st", "ld"))
        before, default = build.alloca(I32), build.alloca(I32)
        build.store(ir.Constant(I32, MXCSR), default)
        build.call(read, [build.bitcast(before, ADDRESS)])
        build.call(write, [build.bitcast(default, ADDRESS)])
        yield lambda: build.call(write, [build.bitcast(before, ADDRESS)])

    def _intrinsic(self, name: str, result: ir.Type, *kinds: ir.Type) -> ir.Function:
        return self.module.globals.get(name) or ir.Function(self.module, ir.FunctionType(result, kinds), name)


MXCSR = 0x1F80  # all exceptions masked, round to nearest, subnormal numbers kept: its value when a thread begins


def _word(build: ir.IRBuilder, words: ir.Value, which: int) -> ir.Value:
    return build.gep(words, [index(which)])


def _is_set(build: ir.IRBuilder, word: ir.Value) -> ir.Value:
    return build.icmp_signed("!=", build.load_atomic(word, "monotonic", 8), index(0))
