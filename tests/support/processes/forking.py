"""A process that has imported what commands and daemons need, and forks one for each that is asked for.

These imports take 0.6 s of a processor, most of what a short command takes, and a run of the tests starts hundreds of
commands.  Each is a process of its own all the same: with its arguments, its environment, its current folder, and its
end by `sys.exit`.  tests/project/test_command_imports.py tests what a command imports, and in which environments a
new interpreter is needed says `may_fork` (commands.py).

    python -P forking.py FOLDER MODULE...

The socket is in FOLDER, which this process removes at its end.

A caller connects and sends one line of JSON, {"module", "arguments", "environment", "folder", "session", "daemon"}, and
its standard input, output and error as open files.  The answer is a line with the process id, and at the end of that
process one with its exit code, negative for a signal.  This process ends with its standard input.

An engine host has a daemon, {"pid", "limits", "files"}: the daemon's process id and limits, and the numbers by which
the host knows more open files, which are sent after the three.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import os
import resource
import select
import shutil
import signal
import socket
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

HOSTS = "PYTEST_FORKING_HOSTS"
FILES_MAX = 8
APART = 200  # open files get numbers from here on before they get those that are asked for


def main(folder: str, *modules: str) -> None:
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    for module in modules:
        import_module(module)
    sys.path.pop()
    gc.freeze()  # so that a collection in a child writes to no page of these
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that wait for commands
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.join(folder, "socket"))
        listening.listen(64)
        print("ready", flush=True)
        while True:
            ready, _, _ = select.select([listening, sys.stdin], [], [])
            if sys.stdin in ready:
                shutil.rmtree(folder)
                return
            connection, _ = listening.accept()
            if not os.fork():
                listening.close()
                watched(connection, folder)
                return
            connection.close()


def watched(connection: socket.socket, folder: str) -> None:
    """Have a child be the command, and say when it ended; returns in the child's child, after it was the command."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    data, files, *_ = socket.recv_fds(connection, 1 << 16, FILES_MAX)
    while not data.endswith(b"\n"):
        data += connection.recv(1 << 16)
    asked = json.loads(data)
    child = os.fork()
    if not child:
        connection.close()
        become(asked, files)
        return
    for number in files:
        os.close(number)
    known = Path(folder, f"{asked['daemon']['pid'] if asked['daemon'] else 0}-{child}")
    known.touch()
    connection.sendall(f"{child}\n".encode())
    _, status = os.waitpid(child, 0)
    known.unlink(missing_ok=True)
    with contextlib.suppress(BrokenPipeError):  # a daemon that was killed hears nothing of its host
        connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def become(asked: dict[str, Any], files: list[int]) -> None:
    if asked["session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    daemon = asked["daemon"]
    numbers = [0, 1, 2, *(daemon["files"] if daemon else ())]
    apart = [fcntl.fcntl(opened, fcntl.F_DUPFD, APART) for opened in files]
    for opened in files:
        os.close(opened)
    for opened, number in zip(apart, numbers, strict=True):
        os.dup2(opened, number)
        os.close(opened)
    if daemon:
        be_host_of(daemon)
    elif HOSTS in os.environ:
        import_module("support.processes.forked_hosts").install()
    module = import_module(asked["module"])
    sys.argv = [str(module.__file__), *asked["arguments"]]
    sys.exit(module.main())


def be_host_of(daemon: dict[str, Any]) -> None:
    """Have the limits of the daemon, ignore a terminal's Ctrl-C, and take the daemon for the parent."""
    for name, limits in daemon["limits"].items():
        resource.setrlimit(getattr(resource, name), limits)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ended = os.pidfd_open(daemon["pid"])
    os.getppid = lambda: 1 if select.select([ended], [], [], 0)[0] else daemon["pid"]


if __name__ == "__main__":
    main(*sys.argv[1:])
