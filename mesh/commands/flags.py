"""Flags that both commands have, and what turns their text into values."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from wire.addresses import check_name
from wire.errors import ConfigError
from wire.timeouts import (
    DEFAULT_PRESET,
    PRESETS,
    ROWS,
    Timeouts,
    check_collective_timeout,
    check_name_of_time,
    check_node_timeout,
    names_read_by,
    node_timeout_of_beat,
    timeouts_of,
)

from ..util.units import parse_duration
from .exit_codes import epilog


def command(name: str, description: str) -> argparse.ArgumentParser:
    """A command's parser, with --version and the exit codes."""
    formatter = argparse.RawDescriptionHelpFormatter
    made = argparse.ArgumentParser(prog=name, description=description, epilog=epilog(), formatter_class=formatter)
    made.add_argument("--version", action=_Version, nargs=0, help="show program's version number and exit")
    return made


class _Version(argparse.Action):
    """Looks the version up when it is asked for: most commands are asked for something else."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from wire.package import package_version

        print(f"{parser.prog} {package_version()}")
        parser.exit()


def add_common(made: argparse.ArgumentParser, keep: bool = False) -> None:
    """--mesh, --json, -q, -v and --log-json; with `keep`, a flag that is not given leaves the value as it is."""
    given = argparse.SUPPRESS if keep else False
    name = argparse.SUPPRESS if keep else ""
    made.add_argument("--mesh", default=name, metavar="NAME", help="the mesh (default MESH_NAME or default-<user>)")
    made.add_argument("--json", action="store_true", default=given, help="print JSON instead of tables and sentences")
    made.add_argument("-q", "--quiet", action="store_true", default=given, help="say errors only")
    made.add_argument("-v", "--verbose", action="store_true", default=given, help="say more")
    made.add_argument("--log-json", action="store_true", default=given, help="log lines as JSON objects")


def add_listening(made: argparse.ArgumentParser, peer: str) -> None:
    """--host, --port, --interface, --advertise, --peer and --no-mdns, for daemons."""
    made.add_argument("--host", default="", help="address to listen on (default: all; loopback if no mesh was joined)")
    made.add_argument("--port", type=port, help="port (default 7100, or the next free one up to 7131; 0: any)")
    made.add_argument(
        "--interface",
        action="append",
        default=[],
        metavar="NAME",
        help="a network interface to use, and no other (repeatable; default: all that others can reach)",
    )
    made.add_argument(
        "--advertise",
        action="append",
        default=[],
        metavar="HOST[:PORT]",
        help="where others can dial this node too, such as a forwarded port (repeatable)",
    )
    made.add_argument("--peer", action="append", default=[], metavar="HOST:PORT", help=peer)
    made.add_argument("--no-mdns", action="store_true", help="neither announce this node nor look for others")


def add_timeouts(made: argparse.ArgumentParser) -> None:
    """--preset and --timeout."""
    suits = "the times that suit such a network (default %(default)s; docs/configuration.md)"
    made.add_argument("--preset", choices=PRESETS, default=DEFAULT_PRESET, help=suits)
    one = "one of these times, whatever the preset (repeatable)"
    made.add_argument("--timeout", action="append", default=[], metavar="NAME=SECONDS", help=one)


def add_health(made: argparse.ArgumentParser) -> None:
    """--node-timeout, --heartbeat, --preset and --timeout, for what judges workers."""
    add_timeouts(made)
    one = made.add_mutually_exclusive_group()
    one.add_argument("--node-timeout", type=float, metavar="S", help="seconds of silence until a worker is dead")
    one.add_argument("--heartbeat", type=float, metavar="S", help="seconds between heartbeats, 15 to a node time-out")


# Flags for single times: how each is called by argparse -> the field it fills, and what makes seconds of it.
SINGLE_TIMES: Mapping[str, tuple[str, Callable[[Any], float]]] = {
    "node_timeout": ("node_timeout_s", check_node_timeout),
    "heartbeat": ("node_timeout_s", node_timeout_of_beat),
    "collective_timeout": ("collective_timeout_s", check_collective_timeout),
    "keep_orphans": ("keep_orphans_s", partial(parse_duration, none="0")),
    "keep_results": ("keep_results_s", parse_duration),
    "keep_sessions": ("keep_sessions_s", parse_duration),
}


def timeouts(options: argparse.Namespace, process: str = "") -> Timeouts:
    """All times of this process, by the flags that were given; ConfigError for one that cannot be, is given twice, or
    that only processes other than `process` read."""
    known = names_read_by(process) if process else tuple(ROWS)
    values: dict[str, float] = {}
    given = [_named_time(text, known) for text in options.timeout]
    for flag, (name, seconds_of) in SINGLE_TIMES.items():
        if (value := getattr(options, flag, None)) is not None:
            given.append((name, seconds_of(value)))
    for name, seconds in given:
        if name in values:
            raise ConfigError(f"{name} is given twice", next_step="Give it once")
        values[name] = seconds
    return timeouts_of(options.preset, values)


def _named_time(text: str, known: Collection[str]) -> tuple[str, float]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--timeout {text!r} names no time", next_step="Write NAME=SECONDS, such as dial_s=20")
    check_name_of_time(name, known)
    try:
        return name, float(value)
    except ValueError:
        return name, parse_duration(value)


def port(text: str) -> int:
    """A port number, 0 to 65535."""
    number = int(text)
    if not 0 <= number < 1 << 16:
        raise ValueError(text)
    return number


def mesh_name(options: argparse.Namespace) -> str:
    """What --mesh says, or else the environment."""
    if options.mesh:
        return check_name("mesh", options.mesh)
    from ..backends.config import default_mesh_name

    return default_mesh_name()


def node_name(options: argparse.Namespace) -> str:
    """What --name says, "" where it says nothing."""
    return "" if options.name is None else check_name("node", options.name)


def verbosity(options: argparse.Namespace) -> int:
    """-1, 0 or 1, as wire.system.log_ring counts."""
    return int(options.verbose) - int(options.quiet)
