"""mesh-worker: lend this machine's devices to a mesh."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from wire.errors import ConfigError
from wire.limits import THREADS_MAX
from wire.protocol.engine_names import ON_CPU
from wire.system.private_folder import state_root
from wire.timeouts import WORKER

from ..util.units import parse_size
from .exit_codes import INTERRUPTED, OK, run_command
from .flags import (
    add_common,
    add_listening,
    add_timeouts,
    command,
    mesh_name,
    name_of_one,
    node_name,
    timeouts,
    verbosity,
)
from .output import say

if TYPE_CHECKING:
    from wire.joining.credentials import Credentials

OF_A_VERB = {"token_file": "join", "time_limit": "tune", "shape": "tune"}  # flags that have no effect without it
THROTTLE = "flops=2e9,rate=20Mbit/s,delay=5ms"


def main(arguments: Sequence[str] | None = None) -> None:
    sys.exit(run_command("mesh-worker", lambda: _work(parser().parse_args(arguments)), INTERRUPTED))


def _work(options: argparse.Namespace) -> int:
    try:
        return work(options)
    except KeyboardInterrupt:
        return INTERRUPTED if options.verb == "tune" else OK


def parser() -> argparse.ArgumentParser:
    root = command(
        "mesh-worker", "Lend this machine's devices to a mesh.  Without a join token it serves this machine only."
    )
    add_common(root)
    add_listening(
        root,
        peer="a coordinator to connect to, until it answers (repeatable)",
        host="all addresses for a member of a mesh, else 127.0.0.1",
    )
    verbs = (
        "join: join a mesh with a token, then serve it; pause, resume: this user's workers on this machine; "
        "tune: measure which kernels are fastest here"
    )
    root.add_argument("verb", nargs="?", choices=("join", "pause", "resume", "tune"), help=verbs)
    root.add_argument(
        "--token-file",
        default="",
        metavar="FILE",
        help="join: the file with the token (default: MESH_TOKEN, else the keyboard)",
    )
    root.add_argument(
        "--device",
        action="append",
        type=name_of_one,
        default=[],
        metavar="N|name|cpu|native",
        help="a device to lend, as --list-devices shows it (repeatable; default: the best adapter and the cpu); "
        "with `native` the processor computes by machine code instead of numpy",
    )
    root.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="threads of the native engine (default: as many as there are cores)",
    )
    root.add_argument(
        "--time-limit",
        default="",
        metavar="DURATION",
        help="tune: for how long at most, such as 90s or 5m (default: 3m)",
    )
    root.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="CLASS",
        help="tune: measure this class of shapes, as the table has it, in place of the usual ones (repeatable)",
    )
    root.add_argument("--list-devices", action="store_true", help="show this machine's devices and exit")
    root.add_argument(
        "--max-memory", metavar="SIZE", help="budget for weights and working memory, such as 8GiB (default: all)"
    )
    root.add_argument(
        "--keep-orphans",
        metavar="DURATION",
        help="how long plans of a silent coordinator are kept (default: 10m; 0: not at all)",
    )
    root.add_argument(
        "--no-sandbox",
        action="store_true",
        help="let engine hosts keep all rights of this user, if a driver does not work without them",
    )
    add_timeouts(root)
    root.add_argument(
        "--throttle", default="", metavar="PACE", help=f"for tests: make this worker slower, as in {THROTTLE}"
    )
    root.add_argument("--name", metavar="NAME", help="the name of this worker (default: the machine's name)")
    root.add_argument(
        "--cache-dir", default="", metavar="DIR", help="the folder of weights and kernels (default: the user's cache)"
    )
    root.add_argument(
        "--kernel-dir",
        default="",
        metavar="DIR",
        help="the folder of kernels, which workers may share (default: in --cache-dir)",
    )
    root.add_argument(
        "--state-dir", default="", metavar="DIR", help="the folder of its identity (default: the user's state folder)"
    )
    root.add_argument("--local", action="store_true", help=argparse.SUPPRESS)
    root.add_argument("--sharers", type=int, default=1, help=argparse.SUPPRESS)  # of --local, of one memory
    root.add_argument("--secret-on-stdin", action="store_true", help=argparse.SUPPRESS)  # of --local, as a first line
    root.add_argument("--authority", default="", help=argparse.SUPPRESS)  # of the mesh, where it is this user's
    return root


def work(options: argparse.Namespace) -> int:
    for flag, verb in OF_A_VERB.items():
        if getattr(options, flag) and options.verb != verb:
            name = "--" + flag.replace("_", "-")
            raise ConfigError(f"{name} is for mesh-worker {verb}", next_step=f"Write {verb}, or leave {name} out")
    if options.list_devices:
        return list_devices(options.json)
    if options.verb in ("pause", "resume"):
        from .pause import set_pause

        return set_pause(options, mesh_name(options), on=options.verb == "pause")
    if options.verb == "tune":
        return tune(options)
    from worker.config import WorkerConfig
    from worker.daemon.daemon import run_worker
    from worker.daemon.environment import REAL

    from ..backends.enrolment import authority_folder, enrolled

    mesh = join(options) if options.verb == "join" else mesh_name(options)
    ports = {} if options.port is None else {"port": options.port, "last_port": options.port}
    config = WorkerConfig(
        name=node_name(options),
        mesh=mesh,
        host=options.host,
        interfaces=tuple(options.interface),
        advertise=tuple(options.advertise),
        peers=tuple(options.peer),
        devices=tuple(options.device),
        threads=_threads(options.threads),
        memory_bytes=parse_size(options.max_memory) if options.max_memory else 0,
        sharers=options.sharers,
        timeouts=timeouts(options, WORKER),
        state_dir=options.state_dir,
        cache_dir=options.cache_dir,
        kernel_dir=options.kernel_dir,
        discoverable=not (options.no_mdns or options.local),
        announce_json=options.json or options.local,
        exit_with_stdin=options.local,
        parent_pid=os.getppid() if options.local else 0,  # what it has forked may keep stdin open
        log_json=options.log_json,
        verbosity=verbosity(options),
        trace=_trace(),
        sandbox=not options.no_sandbox,
        **ports,
    )

    def credentials(folder: Path, name: str) -> Credentials | None:
        if options.local and not options.authority:
            return None  # it works for the process that started it, and for nobody else
        authority = Path(options.authority) if options.authority else authority_folder(mesh, options.state_dir)
        return enrolled(folder, mesh, "worker", name, authority)

    secret = _secret_from_stdin() if options.secret_on_stdin else b""
    environment = replace(REAL, credentials=credentials, secret=secret)
    if options.throttle:
        from ..simulation.throttled_worker import throttled

        config, environment = throttled(config, environment, options.throttle)
    return asyncio.run(run_worker(config, environment))


def tune(options: argparse.Namespace) -> int:
    """Measure with what a worker with these options would have."""
    from worker.config import WorkerConfig

    from .tune import tune as measure

    config = WorkerConfig(
        mesh=mesh_name(options),
        memory_bytes=parse_size(options.max_memory) if options.max_memory else 0,
        timeouts=timeouts(options, WORKER),
        cache_dir=options.cache_dir,
        kernel_dir=options.kernel_dir,
        sandbox=not options.no_sandbox,
    )
    return measure(options, config)


def _secret_from_stdin() -> bytes:
    """The secret that whoever started this worker tells it, and nobody else: others see arguments and environments."""
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(0, 1)  # stdin stays open, and its end means that the parent is gone
        if not part:
            raise ConfigError("no secret came on stdin, as --secret-on-stdin wants it")
        line += part
    return bytes.fromhex(line.decode("ascii"))


def _trace() -> str:
    """The name of traces, where the environment asks for them."""
    return os.environ.get("MESH_TRACE", "mesh-trace.json") if os.environ.get("MESH_PROFILE") == "2" else ""


def _threads(asked: int | None) -> int:
    if asked is None:
        return 0  # as many as there are cores
    if not 1 <= asked <= THREADS_MAX:
        step = f"Give 1 to {THREADS_MAX}, or leave it out"
        raise ConfigError(f"--threads {asked} is no number of threads", next_step=step)
    return asked


def join(options: argparse.Namespace) -> str:
    """Enter the mesh that a token is for; its name."""
    from worker.daemon.state_folder import claim

    from ..backends.enrolment import ask_for_token, join_mesh, machine_name

    name = node_name(options) or machine_name()

    @contextlib.contextmanager
    def place(mesh: str) -> Iterator[Path]:
        claimed = claim(state_root(options.state_dir) / mesh, name)
        try:
            yield claimed.path
        finally:
            claimed.lock.release()

    token = ask_for_token(options.token_file)
    times = timeouts(options, WORKER)
    mesh = asyncio.run(
        join_mesh(token, "worker", name, options.peer, options.interface, options.state_dir, place, times)
    )
    say(f"{name} is a member of mesh {mesh} now", file=sys.stderr)
    return mesh


def list_devices(as_json: bool) -> int:
    from worker.devices.registry import list_devices as found

    rows = found()
    if as_json:
        say(json.dumps([asdict(row) for row in rows]))
        return OK
    from .tables import print_table

    print_table(
        ("device", "engine", "adapter", "backend", "driver", "kind"),
        [
            (
                row.select,
                row.engine,
                row.adapter or "(this processor)",
                row.backend,
                row.driver,
                row.kind + (" (software)" if row.software and row.engine not in ON_CPU else ""),
            )
            for row in rows
        ],
    )
    return OK


if __name__ == "__main__":
    main()
