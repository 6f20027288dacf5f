"""mesh-worker: lend this machine's devices to a mesh."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from wire.timeouts import WORKER

from ..util.units import parse_size
from .exit_codes import OK, run_command
from .flags import add_common, add_listening, add_timeouts, command, mesh_name, node_name, timeouts, verbosity

if TYPE_CHECKING:
    from wire.security.credentials import Credentials

THROTTLE = "flops=2e9,rate=20Mbit/s,delay=5ms"


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    sys.exit(run_command("mesh-worker", lambda: work(options)))


def parser() -> argparse.ArgumentParser:
    made = command(
        "mesh-worker", "Lend this machine's devices to a mesh.  Without a join token it serves this machine only."
    )
    add_common(made)
    add_listening(made, peer="a node to connect to (repeatable)")
    verbs = "join: enter a mesh with a join token, then serve it; pause, resume: the workers of this user here"
    made.add_argument("verb", nargs="?", choices=("join", "pause", "resume"), help=verbs)
    made.add_argument(
        "--token-file", default="", metavar="FILE", help="join: where the token is, instead of MESH_TOKEN"
    )
    made.add_argument(
        "--device",
        action="append",
        default=[],
        metavar="N|name|cpu",
        help="a device to use, as --list-devices shows it (repeatable; the cpu is always one of them)",
    )
    made.add_argument("--list-devices", action="store_true", help="show this machine's devices and exit")
    made.add_argument("--max-memory", metavar="SIZE", help="budget for weights and working memory, such as 8GiB")
    made.add_argument(
        "--keep-orphans",
        metavar="DURATION",
        help="how long a coordinator that fell silent finds what it deployed here (default 10m; 0: not at all)",
    )
    add_timeouts(made)
    made.add_argument("--throttle", default="", metavar="PACE", help=f"for tests: be slower, as in {THROTTLE}")
    made.add_argument("--name", help="what people call this worker (default: the machine's name)")
    made.add_argument("--cache-dir", default="", metavar="DIR", help="where weights and kernels are kept between runs")
    made.add_argument("--kernel-dir", default="", metavar="DIR", help="where kernels are kept; workers may share it")
    made.add_argument("--state-dir", default="", metavar="DIR", help="where this worker's identity is kept")
    made.add_argument("--local", action="store_true", help=argparse.SUPPRESS)
    made.add_argument("--authority", default="", help=argparse.SUPPRESS)  # of the mesh, where it is this user's
    return made


def work(options: argparse.Namespace) -> int:
    if options.list_devices:
        return list_devices(options.json)
    if options.verb in ("pause", "resume"):
        from .pause import set_pause

        return set_pause(options, mesh_name(options), on=options.verb == "pause")
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
        memory_bytes=parse_size(options.max_memory) if options.max_memory else 0,
        timeouts=timeouts(options, WORKER),
        state_dir=options.state_dir,
        cache_dir=options.cache_dir,
        kernel_dir=options.kernel_dir,
        discoverable=not (options.no_mdns or options.local),
        announce_json=options.json or options.local,
        exit_with_stdin=options.local,
        log_json=options.log_json,
        verbosity=verbosity(options),
        **ports,
    )

    def credentials(folder: Path, name: str) -> Credentials | None:
        if options.local and not options.authority:
            return None  # it works for the process that started it, and for nobody else
        authority = Path(options.authority) if options.authority else authority_folder(mesh, options.state_dir)
        return enrolled(folder, mesh, "worker", name, authority)

    environment = replace(REAL, credentials=credentials)
    if options.throttle:
        from ..simulation.throttled_worker import throttled

        config, environment = throttled(config, environment, options.throttle)
    return asyncio.run(run_worker(config, environment))


def join(options: argparse.Namespace) -> str:
    """Enter the mesh that a token is for; its name."""
    from worker.daemon.state_folder import claim

    from ..backends.enrolment import ask_for_token, join_mesh, machine_name, state_root

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
    print(f"{name} is a member of mesh {mesh} now", file=sys.stderr)
    return mesh


def list_devices(as_json: bool) -> int:
    from worker.devices.registry import list_devices as found

    rows = found()
    if as_json:
        print(json.dumps([asdict(row) for row in rows]))
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
                row.kind + (" (software)" if row.software and row.engine != "cpu" else ""),
            )
            for row in rows
        ],
    )
    return OK


if __name__ == "__main__":
    main()
