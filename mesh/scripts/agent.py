"""The agent: starts the ranks of one machine, and tells the launcher their lines and how they end.

It is a process of its own, on this machine or at the other end of ssh, and speaks JSON lines: its job on stdin first,
then orders; on stdout what happens.  When stdin closes, because the launcher died or the network did, it ends its
ranks.  However it goes, nothing of them is left: no process, no folder, no shared memory.  If the agent itself is ended
by SIGKILL, ranks that have called `mesh.init` end by themselves (`agent_watch.py`), others do not, and the next agent
removes the folders.

    <- {"command": [...], "folder": "", "ranks": {"2": {"MESH_RANK": "2", ...}}, "passport": {...}, "grace_s": 5}
    -> {"rank": 2, "stream": "out", "line": "..."}    -> {"rank": 2, "exit": 0}    -> {"error": "..."}
    <- {"signal": "SIGINT"}    <- {"signal": "SIGKILL"}
    -> {"note": "rank-2", "text": "..."}    <- {"note": "rank-0", "text": "..."}

An order is a signal for all ranks; those that still run after `grace_s` are killed.  Ranks with a
`passport` are on several machines: the agent sends the notes of its ranks, and writes those of the others beside them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, cast

from wire.bounds import AGENT_ORDERS
from wire.errors import ConfigError
from wire.limits import KIB
from wire.system.shared_memory import SharedDir
from wire.system.tasks import Tasks

from .rank_certificates import keep
from .rendezvous import NAME, place

LOOK_S = 0.02  # from one look for notes to the next
LINE_BYTES_MAX = 256 * KIB  # a longer one is sent in pieces
REST_LOOKS, REST_LOOK_S = 20, 0.05  # for what a rank has written before its end; each look reads some of it
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
Tell = Callable[[dict[str, Any]], None]


def main() -> None:
    orders = _lines()
    job = next(orders, None)
    if job is not None:
        asyncio.run(_run(job, orders))


def _lines() -> Iterator[dict[str, Any]]:
    """What the launcher says.  Not by sys.stdin, whose lock a thread that waits would hold while Python ends."""
    rest = b""
    while chunk := os.read(0, LINE_BYTES_MAX):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from map(json.loads, lines)


def _until_lost(orders: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Orders, until no more can be read: a socket that is reset is the launcher's end as well."""
    with contextlib.suppress(OSError, ValueError):
        yield from orders


async def _run(job: dict[str, Any], incoming: Iterator[dict[str, Any]]) -> None:
    orders: asyncio.Queue[dict[str, Any]] = asyncio.Queue(AGENT_ORDERS.most)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):  # orders come on stdin; what is ignored here would be in ranks too
        signal.signal(number, lambda *_: None)

    def listen() -> None:
        with contextlib.suppress(RuntimeError, CancelledError):  # the loop is closed, or about to be: all is done
            for order in chain(_until_lost(incoming), [{"signal": "SIGTERM"}]):
                asyncio.run_coroutine_threadsafe(orders.put(order), loop).result()

    threading.Thread(target=listen, daemon=True).start()
    await Ranks(job, _tell).run(orders)


def _tell(event: dict[str, Any]) -> None:
    with contextlib.suppress(ConnectionError, ValueError):  # the launcher is gone, which stdin says too
        print(json.dumps(event), flush=True)


class Ranks:
    """The ranks of a job on this machine."""

    def __init__(self, job: dict[str, Any], tell: Tell) -> None:
        self._job = job
        self._tell = tell
        self._living: dict[int, _Rank] = {}
        self._sent_notes: dict[str, str] = {}  # by name

    async def run(self, orders: asyncio.Queue[dict[str, Any]]) -> None:
        """Run until all ranks have ended."""
        try:
            held = SharedDir.create(Path(tempfile.gettempdir()))  # the next agent sweeps what one that was killed left
        except ConfigError as error:
            self._tell({"error": str(error)})
            return
        meeting = held.path
        keep(self._job.get("passport", {}), meeting)
        beside = Tasks()  # which begin again after a fault, such as of too many open files
        beside.keep("heeding the launcher", partial(self._obey, orders, meeting))
        if self._job.get("passport"):
            beside.keep("telling what ranks have written", partial(self._watch_notes, meeting))
        try:
            for rank, variables in self._job["ranks"].items():
                await self._start(int(rank), {**os.environ, **variables, "MESH_RENDEZVOUS": str(meeting)})
            await asyncio.gather(*(self._follow(rank, living) for rank, living in self._living.items()))
            if self._job.get("passport"):
                self._tell_notes(meeting)  # why the last one failed, say
        except OSError as error:
            self._tell({"error": f"{self._job['command'][0]} cannot be started: {error}"})
        finally:
            beside.cancel()
            self._kill()
            held.close()
            SharedDir.sweep()  # of ranks that were killed

    async def _start(self, rank: int, environment: dict[str, str]) -> None:
        pipe = asyncio.subprocess.PIPE
        loop = asyncio.get_running_loop()
        _, self._living[rank] = await loop.subprocess_exec(
            lambda: _Rank(rank, self._tell, loop),
            *self._job["command"],
            cwd=self._job["folder"] or None,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
        )

    async def _follow(self, rank: int, living: _Rank) -> None:
        await living.exited
        self._living.pop(rank)
        living.signal(KILL)  # what it started and left behind, which would keep its output open too
        code = await living.end()
        self._tell({"rank": rank, "exit": code if code >= 0 else 128 - code})

    async def _watch_notes(self, meeting: Path) -> None:
        while True:
            self._tell_notes(meeting)
            await asyncio.sleep(LOOK_S)

    def _tell_notes(self, meeting: Path) -> None:
        """What the ranks of this machine have written for the others since the last look."""
        for path in meeting.iterdir():
            named = NAME.fullmatch(path.name)
            if named is None or named["rank"] not in self._job["ranks"]:
                continue
            with contextlib.suppress(FileNotFoundError):  # a rank that left took it
                text = path.read_text(encoding="utf-8")
                if self._sent_notes.get(path.name) != text:
                    self._sent_notes[path.name] = text
                    self._tell({"note": path.name, "text": text})

    async def _obey(self, orders: asyncio.Queue[dict[str, Any]], meeting: Path) -> None:
        while True:
            order = await orders.get()
            if "note" in order:
                self._place(meeting, order["note"], order["text"])
                continue
            number = getattr(signal, order["signal"], KILL)
            for living in self._living.values():
                living.signal(number)
                living.signal(getattr(signal, "SIGCONT", number))  # one that was stopped must hear it too
            asyncio.get_running_loop().call_later(self._job["grace_s"], self._kill)

    def _place(self, meeting: Path, name: str, text: str) -> None:
        try:
            if NAME.fullmatch(name):
                place(meeting, name, text)
        except OSError as error:
            self._tell({"error": f"what ranks elsewhere say cannot be written to {meeting}: {error}"})

    def _kill(self) -> None:
        for living in self._living.values():
            living.signal(KILL)


class _Rank(asyncio.SubprocessProtocol):
    """The process of a rank.  It is over when it has ended, and not when its output is closed, as asyncio's Process has
    it: what it started in a session of its own may keep that open for ever."""

    def __init__(self, rank: int, tell: Tell, loop: asyncio.AbstractEventLoop) -> None:
        self.exited: asyncio.Future[None] = loop.create_future()
        self._closed: asyncio.Future[None] = loop.create_future()
        self._rank = rank
        self._tell = tell
        self._rest = {1: b"", 2: b""}  # of a line that is not whole, by the number of its stream

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        *lines, rest = (self._rest[fd] + data).split(b"\n")
        if len(rest) >= LINE_BYTES_MAX:
            lines, rest = [*lines, rest], b""
        self._rest[fd] = rest
        for line in lines:
            self._tell_line(fd, line)

    def process_exited(self) -> None:
        if not self.exited.done():  # nobody waits any more
            self.exited.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed.set_result(None)

    async def end(self) -> int:
        """Tell the rest of what it has written; its exit code."""
        for _ in range(REST_LOOKS):
            if not self._closed.done():
                await asyncio.wait([self._closed], timeout=REST_LOOK_S)
        for fd, rest in self._rest.items():
            if rest:
                self._tell_line(fd, rest)
        code = self._transport.get_returncode()
        self._transport.close()
        assert code is not None, "it has exited"
        return code

    def signal(self, number: int) -> None:
        """Send a signal to it and all that it started, whether it has ended or not."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(self._transport.get_pid(), number)
            elif not self.exited.done():
                os.kill(self._transport.get_pid(), number)

    def _tell_line(self, fd: int, line: bytes) -> None:
        name = "out" if fd == 1 else "err"
        self._tell({"rank": self._rank, "stream": name, "line": line.decode("utf-8", "replace")})


if __name__ == "__main__":
    main()
