"""Programs on threads: order, stops, and threads that end."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import numpy as np
import pytest
from support.kept_kernels import folder

from worker.native.library import Library
from worker.native.llvm import I64, Loaded, index, loop, machine_code, new_module, this_processor
from worker.native.llvm import ir as ir
from worker.native.objects import Objects
from worker.native.runner import KERNEL, Helper, Job
from worker.native.threads import IDLE_S, Program, Stop, Threads, _address

MANY = 4


@cache
def library() -> Library:
    return Library(Objects(folder()))


@cache
def kernels() -> Loaded:
    """Kernels of tests.

    note: log[counter++] = arguments[2] + task, where arguments are the addresses of counter and log, and a number.
    spin: turns until the word at arguments[0] is not 0.
    fill: writes the task to all of its scratch memory, arguments[0] words, waits, and adds 1 to the word at
    arguments[1] if another number is there then.
    """
    module = new_module("kernels")

    def begin(name: str) -> tuple[ir.IRBuilder, list[ir.Value], ir.Value, ir.Value]:
        function = ir.Function(module, KERNEL, name)
        build = ir.IRBuilder(function.append_basic_block("entry"))
        arguments, task, scratch = function.args
        return build, [build.load(build.gep(arguments, [index(at)])) for at in range(3)], task, scratch

    words = I64.as_pointer()
    build, (counter, log, number), task, _ = begin("note")
    place = build.atomic_rmw("add", build.inttoptr(counter, words), index(1), "seq_cst")
    build.store(build.add(number, task), build.gep(build.inttoptr(log, words), [place]))
    build.ret_void()

    build, (flag, _, _), _, _ = begin("spin")
    look, out = build.append_basic_block("look"), build.append_basic_block("out")
    build.branch(look)
    build.position_at_end(look)
    seen = build.load_atomic(build.inttoptr(flag, words), "acquire", 8)
    build.cbranch(build.icmp_signed("!=", seen, index(0)), out, look)
    build.position_at_end(out)
    build.ret_void()

    build, (size, wrong, _), task, scratch = begin("fill")
    memory = build.bitcast(scratch, words)
    with loop(build, index(0), size, index(1)) as at:
        build.store(task, build.gep(memory, [at]))
    with loop(build, index(0), size, index(1)) as at:
        found = build.load(build.gep(memory, [at]))
        with build.if_then(build.icmp_signed("!=", found, task)):
            build.atomic_rmw("add", build.inttoptr(wrong, words), index(1), "seq_cst")
    build.ret_void()
    return Loaded(machine_code(module, this_processor()))


def program(rows: Sequence[tuple[str, Sequence[int], int, int]], scratch_bytes: int = 0) -> Program:
    """Rows of kernel, arguments, tasks, and rows to wait for."""
    arguments = [np.array((*words, 0, 0, 0)[:3], np.int64) for _, words, _, _ in rows]
    table = [
        (kernels().address(name), words.ctypes.data, tasks, after)
        for (name, _, tasks, after), words in zip(rows, arguments, strict=True)
    ]
    return Program(np.array(table, np.int64).reshape(-1, 4), scratch_bytes, arguments)


@pytest.fixture(params=[1, 2, 3, MANY])
def threads(request: pytest.FixtureRequest) -> Iterator[Threads]:
    made = Threads(library().runner(), request.param)
    yield made
    made.close()


class Log:
    """What kernels wrote, in order."""

    def __init__(self, room: int) -> None:
        self.counter, self.entries = np.zeros(1, np.int64), np.zeros(room, np.int64)

    def of(self, number: int) -> tuple[int, ...]:
        return int(self.counter.ctypes.data), int(self.entries.ctypes.data), number

    def read(self) -> list[int]:
        read = self.entries[: self.counter[0]].tolist()
        self.counter[0] = 0
        return read


def test_every_task_runs_once_and_after_what_it_waits_for(threads: Threads) -> None:
    log = Log(1000)
    # Rows 0 and 1 may mix; 2 waits for them; 3 waits for row 0 only, and so may mix with 1 and 2; 4 waits for all.
    tasks, after = (7, 30, 1, 5, 16, 0, 2), (0, 0, 2, 1, 4, 5, 6)
    made = program([("note", log.of(100 * row), *each) for row, each in enumerate(zip(tasks, after, strict=True))])
    for _ in range(50):
        assert threads.run(made, Stop())
        entries = log.read()
        assert sorted(entries) == [100 * row + task for row, count in enumerate(tasks) for task in range(count)]
        for row, waits_for in enumerate(after):
            before = [at for at, entry in enumerate(entries) if entry // 100 < waits_for]
            begun = [at for at, entry in enumerate(entries) if entry // 100 == row]
            assert not before or not begun or max(before) < min(begun)


def test_programs_of_no_rows_and_of_many_run(threads: Threads) -> None:
    log = Log(4000)
    assert threads.run(program([]), Stop())
    long = program([("note", log.of(row), 1, row) for row in range(1500)])
    for _ in range(2):
        assert threads.run(long, Stop())
        assert log.read() == list(range(1500))


@pytest.mark.parametrize(
    ("in_line", "rows"),
    [
        (True, []),
        (True, [(1, 0)]),
        (True, [(1, 0), (0, 1), (1, 2)]),
        (False, [(2, 0)]),
        (False, [(1, 0), (1, 0)]),
        (False, [(1, 0), (1, 1), (1, 1)]),
        (False, [(1, 0), (3, 1)]),
    ],
)
def test_a_program_in_line_has_no_work_for_a_second_thread(in_line: bool, rows: list[tuple[int, int]]) -> None:
    assert program([("note", (), tasks, after) for tasks, after in rows]).in_line == in_line


def test_the_runner_outlives_its_library() -> None:
    code = weakref.ref(Library(Objects(live_max=0)).runner()._code)
    assert code() is None
    made = Threads(Library(Objects(live_max=0)).runner(), 2)
    gc.collect()
    assert made.runner._code is not None
    assert made.run(program([]), Stop())
    made.close()


def test_the_caller_says_how_many_threads_run() -> None:
    made = Threads(library().runner(), MANY)
    log = Log(100)
    for count in (1, 2, 3, MANY, 9):
        assert made.run(program([("note", log.of(0), 20, 0)]), Stop(), count)
        assert sorted(log.read()) == list(range(20))
    made.close()


def test_scratch_memory_is_each_threads_own_and_grows(threads: Threads) -> None:
    wrong = np.zeros(1, np.int64)
    for words in (8, 3000, 100, 20_000):
        made = program([("fill", (words, int(wrong.ctypes.data)), 40, 0)], scratch_bytes=8 * words)
        assert threads.run(made, Stop())
        assert wrong[0] == 0
    assert all(address % 64 == 0 for address in threads._addresses)


def test_a_stop_ends_a_run_between_tasks(threads: Threads) -> None:
    log, flag, stop = Log(10), np.zeros(1, np.int64), Stop()
    held = program([
        ("spin", (int(flag.ctypes.data),), 2, 0), ("note", log.of(0), 5, 1), ("note", log.of(5), 5, 2),
    ])  # fmt: skip
    answers: list[bool] = []
    running = threading.Thread(target=lambda: answers.append(threads.run(held, stop)))
    running.start()
    time.sleep(0.02)
    assert running.is_alive()
    stop.set()
    flag[0] = 1  # the task that runs goes on to its end
    running.join(timeout=120)
    assert answers == [False]
    assert log.read() == []
    stop.clear()
    assert threads.run(held, stop)
    assert len(log.read()) == 10


def test_a_closed_pool_has_no_threads_and_says_so() -> None:
    made = Threads(library().runner(), 3)
    assert made.run(program([]), Stop())
    helpers = list(made._helpers)
    made.close()
    made.close()
    for helper in helpers:
        helper.join(timeout=120)
        assert not helper.is_alive()
    with pytest.raises(RuntimeError, match="closed"):
        made.run(program([]), Stop())


FORKED = """
import os
import numpy as np
from mesh import trace
from worker.native.engine import NativeEngine

engine, x = NativeEngine(threads=2), np.ones((64, 64), np.float32)
executable = engine.compile(trace(lambda x: x @ x + x, x))
before = engine.run(executable, [x])
child = os.fork()
if not child:
    (after,) = engine.run(executable, [x])
    (again,) = engine.run(engine.compile(trace(lambda x: x @ x - x, x)), [x])
    engine.close()
    os._exit(0 if np.array_equal(before, [after]) and again[0, 0] == 63 else 1)
assert os.waitpid(child, 0) == (child, 0)
engine.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_computes_on_its_one_thread() -> None:
    """In a process of its own, since libraries that other tests load must not be forked."""
    assert subprocess.run([sys.executable, "-c", FORKED], timeout=60, check=False).returncode == 0


@pytest.mark.skipif(
    sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="where threads begin is chosen on Linux"
)
def test_threads_that_slept_wake_on_other_cores_and_may_leave_them() -> None:
    cores = os.sched_getaffinity(0)
    with contextlib.closing(Threads(library().runner(), MANY)) as threads:
        ids = [helper.native_id or 0 for helper in threads._helpers]

        def homes() -> list[set[int]]:
            return [os.sched_getaffinity(thread) for thread in ids]

        assert homes() == [cores] * len(ids)
        sleeps, post = threads._lines[:, Helper.SLEEPS], int(threads._job[Job.POST])
        until(sleeps.all)
        threads._job[Job.POST] = _address(ctypes.CDLL(None).getpid)  # nobody is posted, and they stay where they are
        threads.announce()
        assert not sleeps.any()
        chosen = homes()
        assert all(len(core) == 1 for core in chosen)
        assert len(set.union(*chosen)) == min(len(cores) - 1, len(ids)), "this thread's core is nobody's"
        threads.announce()
        assert homes() == chosen, "a thread that does not sleep is sent nowhere"
        threads.dismiss()
        sleeps[:], threads._job[Job.POST] = 1, post
        for _ in range(30):
            time.sleep(2 * IDLE_S)
            assert threads.run(program([]), Stop())
        until(lambda: homes() == [cores] * len(ids))


def until(condition: Callable[[], object]) -> None:
    ends_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < ends_s, "it takes longer than a minute"
        time.sleep(0.001)


def test_threads_wake_and_compute_run_after_run_while_somebody_has_the_gil() -> None:
    counters, before = np.zeros(64, np.int64), sys.getswitchinterval()
    with contextlib.closing(Threads(library().runner(), 2)) as threads:
        sleeps = threads._lines[0, Helper.SLEEPS :]
        until(lambda: sleeps[0])  # it has begun, for which it needs the GIL
        for pause_s in (0.0, 0.02, 0.0, 0.0, 0.02):
            log, stop = Log(100), Stop()
            made = program([("note", log.of(0), 20, 0)])
            sys.setswitchinterval(1000)  # from here on this thread gives the GIL away by itself only, and it does not
            try:
                ends_s = time.monotonic() + pause_s
                while time.monotonic() < ends_s:
                    pass
                threads.announce()
                rows = int(made.rows.ctypes.data)
                threads.runner.open(threads._address, rows, 1, int(counters.ctypes.data), stop.address, 2)
                holds_s = time.monotonic() + 60
                while log.counter[0] < 20 and time.monotonic() < holds_s:
                    pass
                computed = log.read()
            finally:
                sys.setswitchinterval(before)
                threads.runner.close(threads._address)
            assert sorted(computed) == list(range(20))


def test_threads_look_for_the_next_run_for_a_while_and_then_sleep() -> None:
    with contextlib.closing(Threads(library().runner(), MANY)) as threads:
        log = Log(100)
        made = program([("note", log.of(0), 20, 0)])
        for _ in range(3):
            for _ in range(50):
                assert threads.run(made, Stop())
                assert sorted(log.read()) == list(range(20))
            until(threads._lines[:, Helper.SLEEPS].all)


def test_threads_that_were_woken_for_a_run_that_does_not_come_are_there_for_the_next(threads: Threads) -> None:
    log = Log(100)
    made = program([("note", log.of(0), 20, 0)])
    for _ in range(100):
        threads.announce()
        threads.dismiss()
        threads.announce()
        assert threads.run(made, Stop())
        assert sorted(log.read()) == list(range(20))
    threads.announce()  # and a pool is closed while they wait
    helpers = list(threads._helpers)
    threads.close()
    threads.dismiss()
    for helper in helpers:
        helper.join(timeout=120)
        assert not helper.is_alive()
