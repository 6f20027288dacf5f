"""An engine host in which somebody has taken over: it tries to get out, from two threads, before it serves.

    python escaping_host.py '{"file": "...", "folder": "...", "port": 7100, "pid": 1, "unix": "...", "report": "..."}'

It is the real host with a real engine.  What each attempt came to is written to the file `report`, in the cache folder.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from worker.engine.host_messages import Device
from worker.engine.protocol import Engine, Measured
from worker.engine_host import host

PTRACE_ATTACH, CLONE_NEWUSER = 16, 0x10000000


def main() -> None:
    asked = json.loads(sys.argv[1])

    def taken_over(engine: Engine, figures: Measured) -> tuple[Engine, Device]:
        found = {"main": attempts(asked)}
        thread = threading.Thread(target=lambda: found.update(thread=attempts(asked)))
        thread.start()
        thread.join()
        Path(asked["report"]).write_text(json.dumps(found))
        return engine, Device(engine.info, figures)

    host.main(taken_over)


def attempts(asked: dict[str, Any]) -> dict[str, str]:
    file, folder, shared = asked["file"], Path(asked["folder"]), Path(asked["report"]).parent
    pid, port = asked["pid"], asked["port"]
    tried: dict[str, Callable[[], object]] = {
        # network
        "connect by TCP": lambda: socket.create_connection(("127.0.0.1", port), 5.0),
        "listen": lambda: socket.create_server(("127.0.0.1", 0)),
        "send by UDP": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", port)),
        "a socket of raw packets": lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1),
        "a Unix socket": lambda: socket.socket(socket.AF_UNIX).connect(asked["unix"]),
        "a pair of sockets, connected elsewhere": lambda: socket.socketpair()[0].connect(asked["unix"]),
        # files
        "read the key": lambda: Path(file).read_bytes(),
        "read it by its link": lambda: Path(asked["link"]).read_bytes(),
        "write to it": lambda: Path(file).write_bytes(b""),
        "cut it": lambda: os.truncate(file, 0),
        "remove it": lambda: os.unlink(file),
        "move it here": lambda: os.rename(file, shared / "moved"),
        "link it here": lambda: os.link(file, shared / "linked"),
        "name it here": lambda: os.symlink(file, shared / "named"),
        "give it to everybody": lambda: os.chmod(file, 0o666),
        "give it to somebody": lambda: os.chown(file, 65534, 65534),
        "list the folder": lambda: os.listdir(folder),
        "write into the folder": lambda: (folder / "planted").write_text(""),
        "list the root": lambda: os.listdir("/"),
        "list shared memory": lambda: os.listdir("/dev/shm"),
        "read the start of the daemon": lambda: Path(f"/proc/{pid}/cmdline").read_bytes(),
        "read its memory": lambda: Path(f"/proc/{pid}/mem").read_bytes(),
        "read its environment": lambda: Path(f"/proc/{pid}/environ").read_bytes(),
        "read its files": lambda: os.listdir(f"/proc/{pid}/fd"),
        # processes
        "fork": lambda: os.fork() or os._exit(0),
        "start a program": lambda: subprocess.run(["/bin/true"], check=True),
        "spawn a program": lambda: os.posix_spawn("/bin/true", ["true"], {}),
        "become a program": lambda: os.execv("/bin/false", ["false"]),
        "run from memory": in_memory,
        "end the daemon": lambda: os.kill(pid, signal.SIGTERM),
        "look whether it is there": lambda: os.kill(pid, 0),
        "end all": lambda: os.killpg(os.getpgid(pid), signal.SIGTERM),
        "hold it by a descriptor": lambda: os.pidfd_open(pid),
        "trace it": lambda: called("ptrace", PTRACE_ATTACH, pid, 0, 0),
        "read it": lambda: called("process_vm_readv", pid, 0, 0, 0, 0, 0),
        "another user namespace": lambda: called("unshare", CLONE_NEWUSER),
        "mount": lambda: called("mount", b"none", str(shared).encode(), b"tmpfs", 0, None),
    }
    harmless = ("connect by TCP", "listen", "read the key", "list the folder", "fork", "start a program")
    wanted = harmless if asked.get("only") else tuple(tried)  # what does no harm where it succeeds
    return {what: outcome(tried[what]) for what in wanted}


def outcome(attempt: Callable[[], object]) -> str:
    try:
        return f"done: {attempt()!r}"[:200]
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, repr(error))


def in_memory() -> None:
    handle = os.memfd_create("program")
    os.write(handle, Path("/usr/bin/true").read_bytes())
    os.execve(handle, ["true"], {})


def called(name: str, *arguments: Any) -> int:
    done: int = getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments)
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return done


if __name__ == "__main__":
    main()
