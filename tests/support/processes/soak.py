"""A mesh that works for hours while something breaks every few seconds: its processes, what befalls them, and what they
hold meanwhile.

Coordinator daemon, workers and programs are processes, each started again as soon as it is gone; links between them
pass through proxies.  Calls, jobs and texts are checked by the programs, losses of training here.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

from support.cases.training import batch, first_state, train
from support.processes import site as sites
from support.processes.commands import ROOT, command, environment
from support.processes.durable import free_port
from support.processes.fault_proxy import FaultProxy
from support.processes.footprint import MEMORY_FOLDER
from support.processes.small_disk import fill, small_disk
from support.processes.soak_growth import HELD, MEMORY

from mesh import Mesh
from mesh.commands.exit_codes import ENGINE_LOST
from wire.addresses import parse_address

WORKERS = ("one", "two", "three")
PROGRAMS = ("calls", "jobs", "training", "texts")
COORDINATOR = "coordinator"
LASTING = frozenset((COORDINATOR, "one", "calls", "jobs", "texts"))  # not killed once a run is judged
LOAD = Path(__file__).with_name("soak_load.py")
DISK = "512m"
AGAIN_S = 0.5  # until a process that is gone is started again
STOP_S = (0.3, 8.0)
SILENT_S = (0.3, 6.0)
REFUSED_S = (0.3, 4.0)
KEPT = ("--keep-results", "3m")
KIB = 1 << 10


class Part:
    """A process that is always there, and what it said."""

    def __init__(self, name: str, words: list[str], env: Mapping[str, str], folder: Path, heard: bool) -> None:
        self.name, self._words, self._env, self._heard = name, words, env, heard
        self._log = (folder / f"{name}.log").open("ab")
        self._said = 0  # bytes of the log before it was started
        self.killed = False  # by a fault
        self.away_until_s = 0.0  # it is not started again before
        self.began_s = 0.0
        self.starts = 0
        self.process: subprocess.Popen[bytes]
        self.start()

    def start(self) -> None:
        pipe = subprocess.PIPE if self._heard else None
        self._said = Path(self._log.name).stat().st_size
        self.killed, self.began_s, self.starts = False, time.monotonic(), self.starts + 1
        self.process = subprocess.Popen(
            self._words, env=self._env, stdin=pipe or subprocess.DEVNULL, stdout=pipe or self._log, stderr=self._log
        )

    def kill(self) -> None:
        self.killed = True
        self.process.kill()

    def has_said(self, text: bytes) -> bool:
        """Whether its log has a text since it was started."""
        with Path(self._log.name).open("rb") as log:
            log.seek(self._said)
            return text in log.read()

    def tree(self) -> list[int]:
        """Its process and those that it started."""
        found = [self.process.pid]
        for pid in found:
            found += children(pid)
        return found


def children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


class Answers:
    """What programs say: how many answers of each kind, and the longest time without one."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()
        self.longest_s: Counter[str] = Counter()
        self.last_s = dict.fromkeys(PROGRAMS, time.monotonic())
        self.wrong: list[str] = []
        self.full = 0
        self._losses: list[float] = []
        self._mesh = Mesh.builder().build()
        self._alone = self._mesh.session(train, first_state(), *batch(0), mode="off")
        self._lock = threading.Lock()

    def read(self, part: Part, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with self._lock:
                self._hear(part.name, line.decode().split())

    def _hear(self, name: str, words: list[str]) -> None:
        if words == ["full"]:
            self.full += 1
            self.last_s[name] = time.monotonic()
            return
        if words[0] != name:
            self.wrong.append(f"{name} said {words}")
            return
        now_s = time.monotonic()
        self.longest_s[name] = max(self.longest_s[name], round(now_s - self.last_s[name], 2))
        self.last_s[name] = now_s
        self.count[name] += 1
        if name == "training":
            step, loss = int(words[1]), float.fromhex(words[2])
            while len(self._losses) <= step:
                self._losses.append(float(self._alone.step(*batch(len(self._losses))).result()))
            if self._losses[step] != loss:
                self.wrong.append(f"step {step} of training has a loss of {loss!r} and not {self._losses[step]!r}")

    def close(self) -> None:
        self._alone.close()
        self._mesh.close()


class Heard(Protocol):
    """What programs said."""

    last_s: dict[str, float]  # when each of them was last heard

    def read(self, part: Part, process: subprocess.Popen[bytes]) -> None: ...

    def close(self) -> None: ...


H = TypeVar("H", bound=Heard)


class Site(Generic[H]):
    """All of it; a context manager.  `folder` holds logs; what is written to disk has a small one of its own."""

    workers: tuple[str, ...] = WORKERS
    programs: tuple[str, ...] = PROGRAMS
    lasting: frozenset[str] = LASTING
    disk_size = DISK

    def __init__(self, folder: Path, seed: int, answers: H) -> None:
        self.folder, self.chance = folder, random.Random(seed)
        self.answers = answers
        self.parts: dict[str, Part] = {}
        self.proxies: dict[str, FaultProxy] = {}
        self.ended: list[str] = []  # what ended by itself
        self.judged = False
        self._stack = ExitStack()
        self._over = threading.Event()
        self._readers: list[threading.Thread] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.disk = stack.enter_context(small_disk(self.folder / "disk", self.disk_size))
            stack.callback(self._end)
            self._start(stack)
            threading.Thread(target=self._keep, daemon=True).start()
            self._stack = stack.pop_all()
        return self

    def _start(self, stack: ExitStack) -> None:
        """Have a coordinator, workers and programs, each on a link of its own."""
        env = environment(self.disk, MESH_NAME="soak")
        env["PYTHONPATH"] = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
        self.serve(stack, env, (*self.workers, *self.programs), *KEPT)
        for name in self.workers:
            words = command(*sites.WORKER, "--host", "127.0.0.1", "--name", name)
            self.add(name, [*words, "--peer", self.proxies[name].address], env)
        time.sleep(10.0)  # a program that finds no coordinator as it begins ends
        for name in self.programs:
            more = {"training": ("soak",), "texts": (str(self.folder / "model"),)}.get(name, ())
            self.add(name, [sys.executable, str(LOAD), name, self.proxies[name].address, *more], env)

    def serve(self, stack: ExitStack, env: Mapping[str, str], linked: Sequence[str], *more: str) -> None:
        """Start the coordinator, and a proxy on the link of each of those who will dial it."""
        address = f"127.0.0.1:{free_port()}"
        port = address.rpartition(":")[2]
        self.add(COORDINATOR, command("coord", "serve", "--no-mdns", "--host", "127.0.0.1", "--port", port, *more), env)
        for name in linked:
            self.proxies[name] = stack.enter_context(FaultProxy(parse_address(address), self.chance.randrange(99)))

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add(self, name: str, words: list[str], env: Mapping[str, str]) -> None:
        self.parts[name] = Part(name, words, env, self.folder, name in self.programs)
        self._listen(self.parts[name])

    def _listen(self, part: Part) -> None:
        if part.process.stdout is not None:
            reader = threading.Thread(target=self.answers.read, args=(part, part.process), daemon=True)
            reader.start()
            self._readers.append(reader)

    def _keep(self) -> None:
        """Start again what is gone."""
        while not self._over.wait(AGAIN_S):
            for part in self.parts.values():
                code = part.process.poll()
                if code is None or self._over.is_set() or time.monotonic() < part.away_until_s:
                    continue
                if not (part.killed or (part.name in self.workers and code == ENGINE_LOST)):
                    self.ended.append(f"{part.name} ended by itself with {code}")
                part.start()
                self._listen(part)

    def _end(self) -> None:
        self._over.set()
        for part in self.parts.values():
            with contextlib.suppress(ProcessLookupError):
                part.process.kill()
                part.process.wait()
        self.answers.close()

    def finish(self, within_s: float) -> list[str]:
        """Have the programs end in good order; who did not."""
        self._over.set()
        until_s, failed = time.monotonic() + within_s, []
        for name in self.programs:
            process = self.parts[name].process
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        for name in self.programs:
            try:
                code = self.parts[name].process.wait(max(1.0, until_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                failed.append(f"{name} does not end")
            else:
                if code != 0:
                    failed.append(f"{name} ended with {code}")
        for reader in self._readers:
            reader.join(10.0)
        return failed

    # -- faults

    def fault(self) -> str:
        """One that its time allows; what was done."""
        names = [name for name in self.faults() if not (self.full and name in NEED_ROOM)]
        name = self.chance.choice(names)
        return f"{name} {self.faults()[name]()}"

    def faults(self) -> dict[str, Callable[[], str]]:
        """What may befall it, by name."""
        return {
            "kill worker": self.kill_worker,
            "kill engine host": self.kill_engine_host,
            "kill coordinator": self.kill_coordinator,
            "kill program": self.kill_program,
            "stop worker": self.stop_worker,
            "stop engine host": self.stop_engine_host,
            "stop coordinator": self.stop_coordinator,
            "stop program": self.stop_program,
            "break link": self.break_link,
            "silence link": self.silence_link,
            "refuse link": self.refuse_link,
        }

    full = False

    def _one_of(self, names: tuple[str, ...], killed: bool = True) -> Part:
        lasting = self.lasting if self.judged and killed else frozenset()
        return self.parts[self.chance.choice([name for name in names if name not in lasting])]

    def kill_worker(self) -> str:
        part = self._one_of(self.workers)
        part.kill()
        return part.name

    def kill_engine_host(self) -> str:
        part = self._one_of(self.workers)
        if not part.has_said(b" ready on "):  # one whose engine host ends before it has a device ends with an error
            return f"{part.name} is just starting"
        for pid in children(part.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return part.name

    def kill_coordinator(self) -> str:
        if self.judged:
            return self.kill_worker()
        if min(self.answers.last_s.values()) < self.parts[COORDINATOR].began_s:
            return "that somebody waits for"  # clients dial for 30 s, and a busy machine needs some to start it
        self.parts[COORDINATOR].kill()
        return "that all had found"

    def kill_program(self) -> str:
        part = self._one_of(self.programs)
        part.kill()
        return part.name

    def stop_worker(self) -> str:
        part = self._one_of(self.workers, killed=False)
        return f"{part.name} {self._stop(part.process.pid)}"

    def stop_engine_host(self) -> str:
        part = self._one_of(self.workers)  # one that is silent for 3 s is ended
        pids = children(part.process.pid)
        return f"{part.name} {self._stop(self.chance.choice(pids)) if pids else 'has none'}"

    def stop_coordinator(self) -> str:
        return self._stop(self.parts[COORDINATOR].process.pid)

    def stop_program(self) -> str:
        part = self._one_of(self.programs, killed=False)
        return f"{part.name} {self._stop(part.process.pid)}"

    def _stop(self, pid: int) -> str:
        seconds = self.chance.uniform(*STOP_S)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(seconds)
            os.kill(pid, signal.SIGCONT)
        return f"for {seconds:.1f} s"

    def break_link(self) -> str:
        name, how = self.chance.choice(list(self.proxies)), self.chance.choice(("rst", "fin"))
        self.proxies[name].end(how)
        return f"{name} by {how}"

    def silence_link(self) -> str:
        return self._meanwhile(SILENT_S, {"stalled": True}, {"stalled": False}, "")

    def refuse_link(self) -> str:
        return self._meanwhile(REFUSED_S, {"refused": True}, {"refused": False}, "rst")

    def _meanwhile(self, within_s: tuple[float, float], does: Any, undoes: Any, ends: str) -> str:
        name, seconds = self.chance.choice(list(self.proxies)), self.chance.uniform(*within_s)
        self.proxies[name].change(**does)
        if ends:
            self.proxies[name].end(ends)
        time.sleep(seconds)
        self.proxies[name].change(**undoes)
        return f"{name} for {seconds:.1f} s"

    def fill_disk(self) -> None:
        self.full = True
        fill(self.disk / "filler")

    def free_disk(self) -> None:
        (self.disk / "filler").unlink()
        self.full = False

    # -- what they hold

    def sample(self) -> dict[str, float]:
        """By name: memory and open files of each part with its children, the children's own share of the memory, and
        what all together have in /dev/shm and on the disk."""
        found: dict[str, float] = {}
        for name, part in self.parts.items():
            held = [_held(pid) for pid in part.tree()]
            found |= {f"{name} {what}": sum(each.get(what, 0.0) for each in held) for what in HELD}
            found[f"{name} KiB of children"] = sum(each.get("KiB", 0.0) for each in held[1:])
        found["all of /dev/shm, KiB"] = _used_kib(MEMORY_FOLDER)
        found["all of the disk, KiB"] = _used_kib(self.disk)
        return found


NEED_ROOM = frozenset(("kill coordinator", "kill worker", "kill program"))  # none starts on a disk that is full


def _held(pid: int) -> dict[str, float]:
    """The rows of HELD for a process; nothing of one that is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        rows = {line.split(":")[0]: line.split(":")[1] for line in lines}
        kib = {what: float(rows[row].split()[0]) for what, row in MEMORY.items()}
        return {**kib, "files": len(os.listdir(f"/proc/{pid}/fd"))}
    except (OSError, KeyError):
        return {}


def _used_kib(folder: Path) -> float:
    room = os.statvfs(folder)
    return (room.f_blocks - room.f_bfree) * room.f_frsize / KIB
