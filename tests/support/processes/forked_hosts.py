"""Engine hosts that are forked from a process that has imported what they need.

The imports take a third of a second of a processor, which is most of what a short-lived engine host takes, and a run of
the tests starts thousands.  Each is a process of its own all the same: with its pipes, its environment, its limits, and
its sandbox.  Its parent is not the daemon, but a process that waits for it: `os.getppid` of a host returns the daemon
while the daemon lives, and `children` (worker_process.py) finds it.

`installed` has daemons of this process fork their hosts; a daemon that is forked does so where its environment has
HOSTS, the folder of what forks.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from asyncio import base_events, base_subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from wire.system.child_python import python_command

from .commands import READ_LATE, ROOT, Forked, inherited, process_that_forks
from .forking import HOSTS

ENGINE_HOST = "worker.engine_host.host"
IMPORTED = (ENGINE_HOST, "worker.cpu", "worker.native.engine", "worker.wgsl.engine", "llvmlite.binding", "wgpu")
# What the drivers of adapters read when one is opened.
READ_LATER = (*READ_LATE, "MESA_", "__GL_")
ITS_OWN = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}  # as daemons start hosts
_anew = base_events.BaseEventLoop.subprocess_exec
_START = python_command(ENGINE_HOST)


@cache
def _forking_hosts() -> Path:
    """The folder of a process that forks engine hosts, which lives as long as this one."""
    env = {**os.environ, **ITS_OWN, "PYTHONPATH": str(ROOT)}
    folder: Path = process_that_forks(env, IMPORTED)
    facts = {"environment": env, "inherited": _without_limits(inherited()), "path": os.environ.get("PYTHONPATH", "")}
    (folder / "facts").write_text(json.dumps(facts))
    return folder


def install() -> None:
    """Engine hosts that event loops of this process start are forked by the process whose folder HOSTS names."""
    _replaced().start()


@contextmanager
def installed() -> Iterator[None]:
    """As `install`, for a while, here and in daemons that are forked meanwhile."""
    with mock.patch.dict(os.environ, {HOSTS: str(_forking_hosts())}), _replaced():
        yield


def _replaced() -> Any:
    return mock.patch.object(base_events.BaseEventLoop, "subprocess_exec", _subprocess_exec)


def hosts_of(pid: int) -> list[int]:
    """The forked engine hosts of a daemon that live."""
    folder = os.environ.get(HOSTS)
    found = [path.name.split("-") for path in Path(folder).glob(f"{pid}-*")] if folder else []
    return [int(host) for _, host in found]


async def _subprocess_exec(
    loop: Any, protocol_factory: Any, program: str, *args: str, env: Mapping[str, str] | None = None, **more: Any
) -> Any:
    """Stands for `subprocess_exec` of event loops."""
    env = os.environ if env is None else env
    if [program, *args] != _START or not _may_fork(env):
        return await _anew(loop, protocol_factory, program, *args, env=env, **more)
    protocol, waiter = protocol_factory(), loop.create_future()
    pipe = subprocess.PIPE
    transport = _ForkedTransport(
        loop, protocol, (program, *args), False, pipe, pipe, pipe, 0, waiter=waiter, env=dict(env), **more
    )
    await waiter
    return transport, protocol


def _may_fork(env: Mapping[str, str]) -> bool:
    """As `may_fork` of commands.py; a host reads no module of its own from PYTHONPATH."""
    facts = json.loads((Path(os.environ[HOSTS]) / "facts").read_text())
    asked, its = (
        {name: value for name, value in each.items() if name != "PYTHONPATH" and not name.startswith(READ_LATER)}
        for each in (env, facts["environment"])
    )
    alike = asked == its and _without_limits(inherited()) == facts["inherited"]
    return alike and env.get("PYTHONPATH", "") in ("", str(ROOT), facts["path"])


def _without_limits(facts: dict[str, Any]) -> dict[str, Any]:
    """A host is given the limits of its daemon."""
    return {name: fact for name, fact in facts.items() if not name.startswith("RLIMIT_")}


class _ForkedTransport(base_subprocess.BaseSubprocessTransport):
    """The transport of a child that is forked."""

    def _start(self, args: Any, shell: bool, stdin: Any, stdout: Any, stderr: Any, bufsize: int, **more: Any) -> None:
        ours, theirs = socket.socketpair()
        (output, writing), (errors, reporting) = os.pipe(), os.pipe()
        limits = {name: value for name, value in inherited().items() if name.startswith("RLIMIT_")}
        daemon = {"pid": os.getpid(), "limits": limits, "files": more.get("pass_fds", ())}
        with open(theirs.detach(), "rb") as input, open(writing, "wb") as said, open(reporting, "wb") as reported:
            self._forked: Any = Forked(
                ENGINE_HOST, (), more["env"], Path.cwd(), said, reported, input, forking=Path(os.environ[HOSTS]),
                daemon=daemon,
            )  # fmt: skip
        self._forked.stdin = os.fdopen(ours.detach(), "wb", 0)
        self._forked.stdout, self._forked.stderr = (os.fdopen(reading, "rb", 0) for reading in (output, errors))
        self._proc = self._forked
        self._loop.add_reader(self._forked, self._ended)

    def _ended(self) -> None:
        self._loop.remove_reader(self._forked)
        self._process_exited(self._forked.wait())
