"""Flags of both commands, and functions that parse their values."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, NoReturn

from wire.addresses import check_name
from wire.errors import ConfigError
from wire.text import well_formed
from wire.timeouts import (
    DEFAULT_PRESET,
    DEFAULT_TIMEOUTS,
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
from .exit_codes import USAGE, epilog
from .output import say

NAME_CHARS_MAX = 256  # as messages have it


def command(name: str, description: str) -> argparse.ArgumentParser:
    """A command's parser, with --version and the exit codes."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = _Parser(prog=name, description=description, epilog=epilog(), formatter_class=formatter)
    parser.add_argument("--version", action=_Version, nargs=0, help="show program's version number and exit")
    return parser


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong with a command line: argparse's usage of a verb with many flags fills a screen."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: {message}. See {self.prog} --help\n")


class _Version(argparse.Action):
    """Looks the version up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from wire.package import package_version

        say(f"{parser.prog} {package_version()}")
        parser.exit()


def add_common(parser: argparse.ArgumentParser, keep: bool = False) -> None:
    """--mesh, --json, -q, -v and --log-json; with `keep`, a flag that is not given leaves the value as it is."""
    unset = argparse.SUPPRESS if keep else False
    name = argparse.SUPPRESS if keep else ""
    parser.add_argument(
        "--mesh", default=name, metavar="NAME", help="the mesh (default: MESH_NAME, else default-<user>)"
    )
    parser.add_argument("--json", action="store_true", default=unset, help="print JSON instead of tables and sentences")
    parser.add_argument("-q", "--quiet", action="store_true", default=unset, help="print errors only")
    parser.add_argument("-v", "--verbose", action="store_true", default=unset, help="print more")
    parser.add_argument("--log-json", action="store_true", default=unset, help="print log lines as JSON objects")


def add_action(
    actions: Any, name: str, described: Callable[..., object], run: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    """An action of a verb, such as `keys create`; its help is the docstring of `described`, as argparse writes help."""
    text = (described.__doc__ or "").rstrip(".")
    help_text = text[:1].lower() + text[1:]
    parser: argparse.ArgumentParser = actions.add_parser(name, help=help_text, description=help_text)
    parser.set_defaults(run=run)
    add_common(parser, keep=True)
    return parser


def add_listening(parser: argparse.ArgumentParser, peer: str, host: str) -> None:
    """--host, --port, --interface, --advertise, --peer and --no-mdns, for daemons; `host` is the default of --host."""
    parser.add_argument("--host", default="", metavar="ADDRESS", help=f"the address to listen on (default: {host})")
    parser.add_argument(
        "--port", type=port, metavar="N", help="the port (default: 7100, or the next free one up to 7131; 0: any)"
    )
    parser.add_argument(
        "--interface",
        action="append",
        default=[],
        metavar="NAME",
        help="announce only addresses of this network interface (repeatable; default: all that others can reach)",
    )
    parser.add_argument(
        "--advertise",
        action="append",
        default=[],
        metavar="HOST[:PORT]",
        help="another address of this node, such as a forwarded port (repeatable)",
    )
    parser.add_argument("--peer", action="append", default=[], metavar="HOST:PORT", help=peer)
    parser.add_argument("--no-mdns", action="store_true", help="neither announce this node nor look for others")


def add_timeouts(parser: argparse.ArgumentParser) -> None:
    """--preset and --timeout."""
    suits = "times for this kind of network (default: %(default)s; see docs/configuration.md)"
    parser.add_argument("--preset", choices=PRESETS, default=DEFAULT_PRESET, help=suits)
    one = "one of these times, in place of the preset's (repeatable)"
    parser.add_argument("--timeout", action="append", default=[], metavar="NAME=SECONDS", help=one)


def add_health(parser: argparse.ArgumentParser) -> None:
    """--node-timeout, --heartbeat, --preset and --timeout, for what judges workers."""
    add_timeouts(parser)
    one = parser.add_mutually_exclusive_group()
    silence = (
        f"seconds of silence until a worker is dead (default: {DEFAULT_TIMEOUTS.node_timeout_s:g}, or the preset's)"
    )
    one.add_argument("--node-timeout", type=float, metavar="S", help=silence)
    one.add_argument(
        "--heartbeat", type=float, metavar="S", help="seconds between heartbeats, 1/15 of the node time-out"
    )


# Flags for single times: how each is called by argparse -> the field it fills, and what makes seconds of it.
SINGLE_TIMES: Mapping[str, tuple[str, Callable[[Any], float]]] = {
    "node_timeout": ("node_timeout_s", check_node_timeout),
    "heartbeat": ("node_timeout_s", node_timeout_of_beat),
    "collective_timeout": ("collective_timeout_s", check_collective_timeout),
    "keep_orphans": ("keep_orphans_s", partial(parse_duration, none="0")),
    "keep_results": ("keep_results_s", parse_duration),
    "keep_sessions": ("keep_sessions_s", parse_duration),
    "keep_named_sessions": ("keep_named_sessions_s", parse_duration),
}


def timeouts(options: argparse.Namespace, process: str = "") -> Timeouts:
    """All times of this process, by the flags that were given; ConfigError for one that cannot be, is given twice, or
    that only processes other than `process` read."""
    known = names_read_by(process) if process else tuple(ROWS)
    values: dict[str, float] = {}
    named = [_named_time(text, known) for text in options.timeout]
    for flag, (name, seconds_of) in SINGLE_TIMES.items():
        if (value := getattr(options, flag, None)) is not None:
            named.append((name, seconds_of(value)))
    for name, seconds in named:
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


def name_of_one(text: str) -> str:
    """The name or the id of something that a coordinator has."""
    if not 0 < len(text) <= NAME_CHARS_MAX or well_formed(text) != text:
        raise argparse.ArgumentTypeError(f"{text!r:.80} is no name: one has 1 to {NAME_CHARS_MAX} characters")
    return text


def port(text: str) -> int:
    """A port number, 0 to 65535."""
    if not (text.isascii() and text.isdigit() and int(text) < 1 << 16):
        raise argparse.ArgumentTypeError(f"{text!r:.80} is no port. Write a number from 0 to 65535")
    return int(text)


def mesh_name(options: argparse.Namespace) -> str:
    """The mesh of --mesh, else of the environment."""
    if options.mesh:
        return check_name("mesh", options.mesh)
    from ..backends.config import default_mesh_name

    return default_mesh_name()


def node_name(options: argparse.Namespace) -> str:
    """The name of --name, "" without one."""
    return "" if options.name is None else check_name("node", options.name)


def verbosity(options: argparse.Namespace) -> int:
    """-1, 0 or 1, as wire.system.log_ring counts."""
    return int(options.verbose) - int(options.quiet)
