"""The settings of a rank, which it reads from its environment (docs/scripts.md has the table).

To give ranks another setting, add a field, and a row of VARIABLES; the launcher sets it, and `mesh.init` reads it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from wire.errors import ConfigError
from wire.policy.strategies import RANKS_MAX
from wire.timeouts import COLLECTIVE_TIMEOUT_S, check_collective_timeout

from ..util.units import counted


@dataclass(frozen=True, slots=True)
class RankSettings:
    """One rank of a world of `size`, and how many of these are on this machine; alone by default.

    `meeting` is the folder where the ranks of this machine find each other, `hosts` the host of every rank, or empty if
    all are here, and `timeout_s` how long ranks wait for each other.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    meeting: str = ""
    hosts: tuple[str, ...] = ()
    timeout_s: float = COLLECTIVE_TIMEOUT_S

    def environment(self) -> dict[str, str]:
        """The environment variables for these settings."""
        return {variable: str(self._text(field)) for variable, field in VARIABLES.items()}

    def changed(self, **changes: Any) -> RankSettings:
        """The settings with those of these that are not None, checked; all ranks are on this machine unless said."""
        wanted = {name: value for name, value in changes.items() if value is not None}
        settings = replace(self, **wanted)
        if not settings.hosts and ("rank" in wanted or "size" in wanted):
            settings = replace(settings, local_rank=settings.rank, local_size=settings.size)
        return _checked(settings)

    def _text(self, field: str) -> Any:
        value = getattr(self, field)
        return ",".join(value) if isinstance(value, tuple) else f"{value:g}" if isinstance(value, float) else value


VARIABLES = {
    "MESH_RANK": "rank",
    "MESH_WORLD_SIZE": "size",
    "MESH_LOCAL_RANK": "local_rank",
    "MESH_LOCAL_SIZE": "local_size",
    "MESH_RENDEZVOUS": "meeting",
    "MESH_HOSTS": "hosts",
    "MESH_COLLECTIVE_TIMEOUT": "timeout_s",
}


def rank_settings(environment: Mapping[str, str] = os.environ) -> RankSettings:
    """The settings in the environment; ConfigError naming the variable that makes no sense."""
    values = {field: _read(name, environment[name]) for name, field in VARIABLES.items() if environment.get(name)}
    alone = {"rank", "size"} - values.keys()
    if len(alone) == 1:
        missing = next(name for name, field in VARIABLES.items() if field in alone)
        raise ConfigError(f"{missing} is not set, but its partner is: a rank needs both", next_step=_HOW)
    local = {name: values.pop(name) for name in ("local_rank", "local_size") if name in values}
    return replace(RankSettings().changed(**values), **local)


_HOW = "Start ranks with: mesh-coord launch -n 4 script.py"


def _read(name: str, text: str) -> Any:
    field = VARIABLES[name]
    if field == "meeting":
        return text
    if field == "hosts":
        return tuple(text.split(","))
    try:
        return float(text) if field == "timeout_s" else int(text)
    except ValueError:
        raise ConfigError(f"{name} is {text!r}, which is no number", next_step=_HOW) from None


def _checked(settings: RankSettings) -> RankSettings:
    for what, value in (("the number of ranks", settings.size), ("a rank", settings.rank)):
        if type(value) is not int:
            raise ConfigError(f"{what} is an int, not {value!r}", next_step=_HOW)
    if not 1 <= settings.size <= RANKS_MAX:
        raise ConfigError(f"there is no world of {settings.size} ranks, but of 1 to {RANKS_MAX}", next_step=_HOW)
    if not 0 <= settings.rank < settings.size:
        raise ConfigError(f"rank {settings.rank} of {settings.size}: ranks are 0 to {settings.size - 1}")
    check_collective_timeout(settings.timeout_s)
    if settings.hosts and len(settings.hosts) != settings.size:
        raise ConfigError(
            f"MESH_HOSTS names {counted(len(settings.hosts), 'host')}, one for each of {settings.size} ranks wanted"
        )
    if settings.size > 1 and not settings.meeting:
        raise ConfigError(
            f"rank {settings.rank} of {settings.size} does not know where to find the others",
            next_step="Set MESH_RENDEZVOUS to a folder that all of them share, or start them with mesh-coord launch",
        )
    return settings
