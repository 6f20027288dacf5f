"""A hostfile: which machines start how many ranks, a line each.

    # name     keys
    localhost  slots=2
    anna       slots=4  user=me  port=2222  python=/opt/venv/bin/python  folder=/srv/project

`localhost` is this machine; others are reached by ssh.  A new key is a field of Host and a row of _KEYS.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wire.errors import ConfigError, InputError
from wire.policy.strategies import RANKS_MAX

from ..util.text_file import read_text
from ..util.units import counted

HERE = ("localhost", "127.0.0.1", "::1")
_HOST = re.compile(r"[A-Za-z0-9_\[][A-Za-z0-9._:%\[\]-]*")  # ssh may hand both to a shell, as its user configured it
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@+-]*")
OF_SSH = ("user", "port", "python")


@dataclass(frozen=True, slots=True)
class Host:
    """A machine that starts up to `slots` ranks; "" and 0 are what ssh, or the launcher, takes by itself."""

    name: str
    slots: int = 1
    user: str = ""
    port: int = 0
    python: str = ""
    folder: str = ""

    @property
    def here(self) -> bool:
        return self.name in HERE


def read_hostfile(path: Path) -> tuple[Host, ...]:
    """The hosts of a file; InputError if it cannot be read, ConfigError naming the line and the key that is wrong."""
    try:
        return parse(read_text(path), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the hostfile {path} cannot be read", cause=str(error)) from None


def parse(text: str, called: str) -> tuple[Host, ...]:
    """The hosts of a file's text."""
    hosts: dict[str, Host] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if words:
            host = _host(words, f"{called} line {number}")
            if host.name in hosts or (host.here and any(other.here for other in hosts.values())):
                raise ConfigError(f"{called} line {number}: {host.name} stands there already")
            hosts[host.name] = host
    if not hosts:
        raise ConfigError(f"{called} names no host", next_step="Write one per line, such as: localhost slots=2")
    return tuple(hosts.values())


def ranks_on(hosts: Sequence[Host], count: int | None) -> tuple[Host, ...]:
    """The host of every rank, in order of hosts; ConfigError if there are fewer slots than ranks."""
    places = [host for host in hosts for _ in range(host.slots)]
    if count is None and len(places) > RANKS_MAX:
        raise ConfigError(
            f"{counted(len(places), 'slot')}, of {RANKS_MAX} ranks at most", next_step="Say -n, or lower slots="
        )
    if count is not None and count > len(places):
        raise ConfigError(
            f"{counted(count, 'rank')} on {counted(len(places), 'slot')}", next_step="Raise slots=, or add hosts"
        )
    return tuple(places[:count])


def _host(words: list[str], where: str) -> Host:
    name, *pairs = words
    if not _HOST.fullmatch(name):
        raise ConfigError(f"{where}: {name!r} is no host", next_step="A line begins with the name of a host")
    fields: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if key not in _KEYS or not equals:
            raise ConfigError(f"{where}: {key!r} is no key of a host", next_step=f"It takes {', '.join(_KEYS)}")
        if key in fields:
            raise ConfigError(f"{where}: {key} stands there twice")
        try:
            fields[key] = _KEYS[key](value)
        except ValueError as error:
            raise ConfigError(f"{where}: {key} is {value!r}, {error}") from None
    host = Host(name, **fields)
    for key in OF_SSH if host.here else ():
        if key in fields:
            raise ConfigError(f"{where}: {key}= is for ssh, and {name} starts directly", next_step=f"Leave {key}= out")
    return host


def _number(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or len(text) > len(str(most)) or not least <= int(text) <= most:
            raise ValueError(f"and not a whole number from {least} to {most}")
        return int(text)

    return read


def _user(text: str) -> str:
    if not _USER.fullmatch(text):
        raise ValueError("which is no user")
    return text


def _word(text: str) -> str:
    if not text or text.startswith("-"):
        raise ValueError("which it cannot be")
    return text


_KEYS: dict[str, Callable[[str], Any]] = {
    "slots": _number(1, 4096),
    "user": _user,
    "port": _number(1, 65535),
    "python": _word,
    "folder": _word,
}
