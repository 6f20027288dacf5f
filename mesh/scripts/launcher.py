"""The launcher: starts a script's ranks on one machine or several, shows their lines, and ends them together.

Each machine has an agent (`agent.py`), here a child process and elsewhere the other end of ssh, whose stdin and stdout
carry all that is said.  A rank that fails ends the others: its exit code is the launcher's.  It does not know what
ranks do, nor how a command's flags are called.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wire.errors import ConfigError, ConnectFailed
from wire.limits import MIB
from wire.system.tasks import isolated
from wire.timeouts import SECONDS_MAX

from ..backends.local_workers import environment
from .hostfile import Host
from .rank_certificates import issue
from .settings import RankSettings

READ_BYTES = 1 << 16
END_S = 10.0  # for an agent to end after its ranks, or ssh
MUTTERS_S = 2.0  # for the rest of stderr after the end of stdout
LOOK_S = 0.02  # from one look whether a process has ended to the next
SILENT_S, SILENT_ASKED = 60, 4  # a machine that did not answer ssh for so long, asked so often, is lost
SAID_BYTES_MAX = 4 * MIB  # of an agent's line, which has a rank's


@dataclass(frozen=True, slots=True)
class Launch:
    """A script with its arguments, and the host of every rank; ranks that do not end are killed after `grace_s`."""

    script: str
    arguments: tuple[str, ...]
    hosts: tuple[Host, ...]
    timeout_s: float
    grace_s: float

    def ranks(self) -> dict[Host, dict[int, RankSettings]]:
        """The settings of every rank, by host."""
        names = tuple(host.name for host in self.hosts)
        several = names if len(set(names)) > 1 else ()
        size = len(names)
        by_host: dict[Host, dict[int, RankSettings]] = {}
        for rank, host in enumerate(self.hosts):
            its = by_host.setdefault(host, {})
            its[rank] = RankSettings(rank, size, len(its), names.count(host.name), "", several, self.timeout_s)
        return by_host


Show = Callable[[int | str, str, str], None]
"""Show a line of a rank, or of a host's agent: who, "out" or "err", the line."""


class Launcher:
    """One launch, from start to end."""

    def __init__(self, launch: Launch, show: Show) -> None:
        self._launch = launch
        self._show = show
        self._agents: dict[str, asyncio.subprocess.Process] = {}
        self._attending: dict[str, asyncio.Task[None]] = {}  # to agents, by host
        self._muttered: dict[str, str] = {}  # the last line on stderr, by host
        self._running: set[int] = set()
        self._ending = False
        self._given_up: set[str] = set()  # hosts whose agents do not answer
        self.failed: tuple[int, int] | None = None  # the first rank that failed, and its exit code

    async def run(self) -> int:
        """The exit code of the first rank that failed, else 0; ConnectFailed if a host's agent is lost."""
        _check(self._launch)
        try:
            by_host = self._launch.ranks()
            passports = issue((host.name for host in by_host), time.time()) if len(by_host) > 1 else {}
            for host, ranks in by_host.items():
                self._running |= ranks.keys()
                await self._start(host, ranks, passports.get(host.name, {}))
            async with asyncio.TaskGroup() as group:
                for name, agent in self._agents.items():
                    muttering = group.create_task(self._mutter(name, agent))
                    self._attending[name] = group.create_task(self._attend(name, agent, muttering))
        except ExceptionGroup as errors:  # of the agents; the first one ended the others
            raise errors.exceptions[0] from None
        finally:
            await self._end()
        return self.failed[1] if self.failed else 0

    def signal(self, number: int) -> None:
        """Forward a signal to all ranks."""
        self._begin_end()
        self._order({"signal": signal.Signals(number).name})

    # -- agents

    async def _start(self, host: Host, ranks: Mapping[int, RankSettings], passport: Mapping[str, str]) -> None:
        pipe = asyncio.subprocess.PIPE
        try:
            agent = await asyncio.create_subprocess_exec(
                *_command(host),
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                env=environment(),
                start_new_session=True,  # a terminal's Ctrl-C comes to the launcher alone
                limit=SAID_BYTES_MAX,
            )
        except FileNotFoundError as error:
            raise ConfigError(f"{host.name} needs ssh, which is not here", cause=str(error)) from None
        self._agents[host.name] = agent
        environments = {rank: {**settings.environment(), "PYTHONUNBUFFERED": "1"} for rank, settings in ranks.items()}
        python = sys.executable if host.here else host.python or "python3"
        command = [python, self._launch.script, *self._launch.arguments]
        folder = host.folder or str(Path.cwd())
        job = {"command": command, "folder": folder, "ranks": environments, "grace_s": self._launch.grace_s}
        self._say(agent, {**job, "passport": passport})

    async def _attend(self, name: str, agent: asyncio.subprocess.Process, muttering: asyncio.Task[None]) -> None:
        """Take what one agent says until it ends."""
        ranks = {rank for rank in self._running if self._launch.hosts[rank].name == name}
        try:
            await self._listen(name, agent)
            await asyncio.wait([muttering], timeout=MUTTERS_S)  # another process may hold stderr open
            if muttering.done():
                muttering.result()
        finally:
            muttering.cancel()  # where it is not waited for any longer
        if ranks & self._running and not self._ending:
            missing = ", ".join(map(str, sorted(ranks & self._running)))
            raise ConnectFailed(
                f"the agent of rank {missing} ended, on {name}", node=name, cause=self._muttered.get(name, "")
            )

    async def _listen(self, name: str, agent: asyncio.subprocess.Process) -> None:
        """Take what an agent says on stdout."""
        async for line in _lines(agent.stdout):
            event = _event(line)
            if event is None:  # a shell on the way that says more than it was asked
                self._show(name, "err", line.decode("utf-8", "replace").rstrip("\n"))
            elif "error" in event:
                raise ConfigError(f"on {name}, {event['error']}")
            elif "note" in event:
                for other in self._agents.values():
                    if other is not agent:
                        self._say(other, event)
            elif "line" in event:
                self._show(event["rank"], event["stream"], event["line"])
            else:
                self._over(event["rank"], event["exit"])

    async def _mutter(self, name: str, agent: asyncio.subprocess.Process) -> None:
        """Show what an agent, or ssh, writes on stderr, and remember the last line of it."""
        async for line in _lines(agent.stderr):
            self._muttered[name] = line.decode("utf-8", "replace").rstrip("\n")
            self._show(name, "err", self._muttered[name])

    def _over(self, rank: int, code: int) -> None:
        self._running.discard(rank)
        if code and not self._ending:  # else all have the signal to end already, and the grace to do so
            self.failed = rank, code
            self._begin_end()
            self._order({"signal": "SIGTERM"})

    def _begin_end(self) -> None:
        """Have all ranks end from now on, those of a machine that cannot be reached any more, too."""
        if not self._ending:
            self._ending = True
            asyncio.get_running_loop().call_later(self._launch.grace_s + END_S, self._give_up)

    def _give_up(self) -> None:
        """Wait no longer for agents that should have ended by now."""
        for name, task in self._attending.items():
            if not task.done():
                self._given_up.add(name)
                task.cancel()
                with isolated("showing a line"):  # the others are not waited for either
                    self._show(name, "err", "the agent of this machine does not answer, and is not waited for longer")

    def _order(self, order: dict[str, Any]) -> None:
        for agent in self._agents.values():
            self._say(agent, order)

    def _say(self, agent: asyncio.subprocess.Process, what: dict[str, Any]) -> None:
        assert agent.stdin is not None
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            agent.stdin.write(json.dumps(what).encode() + b"\n")

    async def _end(self) -> None:
        """Have all agents end their ranks, and then themselves."""
        for agent in self._agents.values():
            assert agent.stdin is not None
            agent.stdin.close()
        # Whoever attended to them may have given up: an agent whose output nobody reads would not end.
        streams = [stream for agent in self._agents.values() for stream in (agent.stdout, agent.stderr)]
        unread = [asyncio.ensure_future(_read_to_the_end(stream)) for stream in streams]
        for name, agent in self._agents.items():
            try:
                async with asyncio.timeout(0.0 if name in self._given_up else self._launch.grace_s + END_S):
                    await _ended(agent)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    agent.kill()
                await _ended(agent)
        for reading in unread:
            reading.cancel()


async def _ended(process: asyncio.subprocess.Process) -> None:
    """Wait until a process has ended.  Python's `wait` may wait for the end of its pipes, too, which others may hold
    open, as ssh's master of several connections does; they are closed here."""
    while process.returncode is None:
        await asyncio.sleep(LOOK_S)
    process._transport.close()  # type: ignore[attr-defined]  # asyncio closes them at their end alone


async def _read_to_the_end(stream: asyncio.StreamReader | None) -> None:
    assert stream is not None
    while await stream.read(READ_BYTES):
        pass


async def _lines(stream: asyncio.StreamReader | None) -> AsyncIterator[bytes]:
    """The lines of a stream, without the beginnings of those that are longer than an agent's are."""
    assert stream is not None
    while True:
        try:
            line = await stream.readline()
        except ValueError:
            continue
        if not line:
            return
        yield line


def _event(line: bytes) -> dict[str, Any] | None:
    """What an agent says; None for what no agent does."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and event.keys() & {"error", "note", "line", "exit"} else None


def _command(host: Host) -> list[str]:
    agent = ["-P", "-m", "mesh.scripts.agent"]
    if host.here:
        return [sys.executable, *agent]
    port = ["-p", str(host.port)] if host.port else []
    who = f"{host.user}@{host.name}" if host.user else host.name
    # The user's own ssh says whether a host's key is known.  With BatchMode it asks nobody, and ends where it is not.
    # With ServerAliveInterval it ends where the machine is silent, as one that lost its power is.
    options = ["-o", "BatchMode=yes", "-o", f"ServerAliveInterval={SILENT_S // SILENT_ASKED}"]
    options += ["-o", f"ServerAliveCountMax={SILENT_ASKED}"]
    return ["ssh", "-T", *options, *port, who, shlex.join([host.python or "python3", *agent])]


def _check(launch: Launch) -> None:
    if not 0 <= launch.grace_s < SECONDS_MAX:
        raise ConfigError(f"a grace of {launch.grace_s:g} s: 0 or more")
    if any(host.here for host in launch.hosts) and not Path(launch.script).is_file():
        raise ConfigError(f"there is no script {launch.script}", next_step="Name a Python file")


def merged(out: Any, err: Any) -> Show:
    """Lines with who wrote them before each, whole, on the two streams."""

    def show(who: int | str, stream: str, line: str) -> None:
        to = out if stream == "out" else err
        to.write(f"[{who}] {line}\n")
        to.flush()

    return show
