"""`mesh-coord launch`: a rank script's processes, on this machine or the hosts of a file."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from wire.errors import ConfigError
from wire.policy.strategies import RANKS_MAX
from wire.timeouts import COLLECTIVE_TIMEOUT_S, check_collective_timeout

from .exit_codes import INTERRUPTED

if TYPE_CHECKING:
    from ..scripts.hostfile import Host

GRACE_S = 5.0


def launch_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", type=int, metavar="N", help="the number of ranks (default: the slots of the hostfile)")
    parser.add_argument("--hostfile", metavar="FILE", help="the machines to start them on by ssh, and how many on each")
    waits = f"seconds that ranks wait for each other (default: {COLLECTIVE_TIMEOUT_S:g})"
    parser.add_argument("--collective-timeout", type=float, default=COLLECTIVE_TIMEOUT_S, metavar="S", help=waits)
    grace = f"seconds after which ranks that do not end are killed (default: {GRACE_S:g})"
    parser.add_argument("--grace", type=float, default=GRACE_S, metavar="S", help=grace)
    parser.add_argument("script", metavar="SCRIPT", help="a Python file")
    parser.add_argument("arguments", metavar="ARGUMENT", nargs=argparse.REMAINDER, help="arguments of the script")


def launch(options: argparse.Namespace) -> int:
    """Start the ranks, and wait for them."""
    return asyncio.run(_launch(options))


async def _launch(options: argparse.Namespace) -> int:
    from ..scripts.launcher import Launch, Launcher, merged

    show = _as_json if options.json else merged(sys.stdout, sys.stderr)
    timeout_s = check_collective_timeout(options.collective_timeout)
    wanted = Launch(options.script, tuple(options.arguments), _hosts(options), timeout_s, options.grace)
    launcher = Launcher(wanted, show)
    came: list[int] = []

    def forward(number: int) -> None:
        launcher.signal(signal.SIGKILL if came else number)
        came.append(number)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(number, forward, number)
        except NotImplementedError:  # Windows: Ctrl-C arrives as KeyboardInterrupt, and ends the agents' stdin
            break
    code = await launcher.run()
    if came:
        return INTERRUPTED
    if launcher.failed and not options.quiet:
        rank, code = launcher.failed
        on = f" on {wanted.hosts[rank].name}" if options.hostfile else ""
        print(f"mesh-coord: rank {rank}{on} ended with exit code {code}, and with it the others", file=sys.stderr)
    return code


def _hosts(options: argparse.Namespace) -> tuple[Host, ...]:
    from ..scripts.hostfile import Host, ranks_on, read_hostfile

    count: int | None = options.n
    if count is not None and not 1 <= count <= RANKS_MAX:
        raise ConfigError(f"-n {count}: a script has at least one rank, and at most {RANKS_MAX}")
    if options.hostfile:
        return ranks_on(read_hostfile(Path(options.hostfile)), count)
    if count is None:
        raise ConfigError("how many ranks?", next_step="Say -n N, or name a --hostfile")
    return (Host("localhost", count),) * count


def _as_json(who: int | str, stream: str, line: str) -> None:
    print(json.dumps({"host" if isinstance(who, str) else "rank": who, "stream": stream, "line": line}), flush=True)
