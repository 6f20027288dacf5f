"""`mesh-coord launch`: a rank script's processes, on this machine or the hosts of a file."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from wire.errors import ConfigError
from wire.policy.strategies import RANKS_MAX
from wire.timeouts import COLLECTIVE_TIMEOUT_S, check_collective_timeout

from .exit_codes import INTERRUPTED
from .flags import port
from .output import say, written_to

if TYPE_CHECKING:
    from ..scripts.hostfile import Host

GRACE_S = 5.0


def launch_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", type=int, metavar="N", help="the number of ranks (default: the slots of the hostfile)")
    parser.add_argument("--hostfile", metavar="FILE", help="the machines to start them on by ssh, and how many on each")
    parser.add_argument("--nodes", type=int, metavar="N", help="the number of machines of the hostfile (default: all)")
    parser.add_argument(
        "--gpus-per-node", type=int, metavar="N", help="the number of ranks on each (default: its slots)"
    )
    master = "for command lines of other launchers: ranks meet through this command, so it names this machine"
    parser.add_argument("--master-addr", metavar="HOST", help=master)
    parser.add_argument("--master-port", type=port, metavar="PORT", help="likewise; no port is opened")
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
    from ..scripts.launcher import Launch, Launcher

    _check_master(options)
    show = _as_json if options.json else _as_lines
    timeout_s = check_collective_timeout(options.collective_timeout)
    wanted = Launch(options.script, tuple(options.arguments), hosts_of(options), timeout_s, options.grace)
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
        say(f"mesh-coord: rank {rank}{on} ended with exit code {code}, and with it the others", file=sys.stderr)
    return code


def hosts_of(options: argparse.Namespace) -> tuple[Host, ...]:
    """The host of every rank; ConfigError if the flags do not say so."""
    from ..scripts.hostfile import Host, ranks_on, read_hostfile

    count: int | None = options.n
    nodes: int | None = options.nodes
    per_node: int | None = options.gpus_per_node
    for flag, number in (("-n", count), ("--nodes", nodes), ("--gpus-per-node", per_node)):
        if number is not None and not 1 <= number <= RANKS_MAX:
            raise ConfigError(f"{flag} {number}: a script has at least one rank, and at most {RANKS_MAX}")
    if count is not None and (nodes, per_node) != (None, None):
        raise ConfigError(
            "-n is how many ranks there are in all, and --nodes and --gpus-per-node say so in another way",
            next_step="Leave out -n, or these",
        )
    if options.hostfile:
        hosts = read_hostfile(Path(options.hostfile))
        if nodes is not None and nodes > len(hosts):
            raise ConfigError(f"--nodes {nodes}: {options.hostfile} names {len(hosts)}", next_step="Add hosts to it")
        return ranks_on([replace(host, slots=per_node or host.slots) for host in hosts[:nodes]], count)
    if nodes is not None and nodes > 1:
        raise ConfigError(f"--nodes {nodes}: which machines?", next_step="Name them in a --hostfile, one per line")
    if (count := count or per_node) is None:
        raise ConfigError("nothing says how many ranks there are", next_step="Say -n N, or name a --hostfile")
    return (Host("localhost", count),) * count


def _check_master(options: argparse.Namespace) -> None:
    """Warn of a rendezvous that nobody needs; ConfigError if it is to be on a rank of another machine."""
    host: str | None = options.master_addr
    if host is not None and not _is_here(host):
        raise ConfigError(
            f"--master-addr {host} is not this machine, and ranks meet through the command that starts them",
            next_step=f"Type it on {host}, or leave out --master-addr and --master-port",
        )
    if (host, options.master_port) != (None, None) and not options.quiet:
        say("mesh-coord: --master-addr and --master-port are not needed, ranks meet through this command",
              file=sys.stderr)  # fmt: skip


def _is_here(host: str) -> bool:
    """Whether an address of this machine has that name."""
    try:
        addresses = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
        for family, kind, protocol, _, address in addresses:
            with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as bound:
                bound.bind(address)  # others' addresses cannot be
                return True
    except (OSError, UnicodeError):
        return False
    return False


def _as_lines(who: int | str, stream: str, line: str) -> None:
    from ..scripts.launcher import merged

    with written_to(sys.stdout if stream == "out" else sys.stderr):
        merged(sys.stdout, sys.stderr)(who, stream, line)


def _as_json(who: int | str, stream: str, line: str) -> None:
    say(json.dumps({"host" if isinstance(who, str) else "rank": who, "stream": stream, "line": line}), flush=True)
