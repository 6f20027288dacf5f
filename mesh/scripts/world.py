"""The world: all ranks of a script, and which of them this process is.

A program that nobody launched, such as one that has a Mesh or a coordinator, is rank 0 of 1: everything here works and
asks nobody.
"""

from __future__ import annotations

import atexit
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wire.errors import ConfigError
from wire.system.shared_memory import SharedDir

from ..util.did_you_mean import names_checked
from .agent_watch import watch
from .rendezvous import Meeting, Note
from .settings import RankSettings, rank_settings

if TYPE_CHECKING:
    from .group import Group
    from .listening_ports import Door


@dataclass(slots=True)
class World:
    """This process's place, while it takes part."""

    settings: RankSettings
    own: SharedDir
    meeting: Meeting | None
    group: Group
    door: Door | None = None

    def close(self, ending: bool = False) -> None:
        """Free everything.  A process that is `ending` seems alive to others until it is over: they would fail before
        it, and be taken for the first that did."""
        self.group.close()
        if self.door is not None:
            self.door.close()
        if ending and self.meeting is not None:
            self.own.clear()
            return
        if self.meeting is not None:
            self.meeting.leave(self.own)
        self.own.close()


_world: World | None = None
_lock = threading.Lock()


@names_checked
def init(
    rank: int | None = None,
    world_size: int | None = None,
    rendezvous: str | Path | None = None,
    timeout_s: float | None = None,
    *,
    strict: bool = False,
) -> Group:
    """Join the world: wait for all ranks of this program, and return the group of them.

    Called again, it returns the same group.  What is not given comes from the environment, which `mesh-coord launch`
    sets; without either, this is rank 0 of 1.

    Parameters
    ----------
    rank : int, optional
        This process's number.
    world_size : int, optional
        The number of processes.
    rendezvous : str or Path, optional
        A folder of this machine, the same for all ranks and for no other program.
    timeout_s : float, optional
        Seconds to wait for the other ranks, here and in each operation of the group.
    strict : bool, optional
        Whether a process that nobody launched is an error.

    Returns
    -------
    Group
        All ranks.

    Raises
    ------
    ConfigError
        If an argument is not possible, ranks cannot meet in the folder, this process has joined as another rank or in
        another folder, or with `strict` nobody launched it.
    DeadlineExceeded
        If ranks did not come in time; it names them.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> world = mesh.init()
    >>> world.all_reduce(np.arange(3.0))
    array([0., 1., 2.])
    >>> mesh.shutdown()
    """
    global _world
    if not isinstance(strict, bool):
        raise ConfigError(f"strict is True or False, not {strict!r}")
    with _lock:
        if not isinstance(rendezvous, str | Path | None):
            raise ConfigError(f"rendezvous is the path of a folder, not {rendezvous!r}")
        meeting = None if rendezvous is None else str(rendezvous)
        settings = rank_settings().changed(rank=rank, size=world_size, meeting=meeting, timeout_s=timeout_s)
        if strict and settings.size == 1 and not settings.meeting:
            raise ConfigError("nobody launched this process", next_step="Start it: mesh-coord launch -n 4 script.py")
        if _world is None:
            _world = _begin(settings)
            atexit.register(_at_exit)
        elif _is_other(_world.settings, rank, world_size, meeting):
            there = f" in {_world.settings.meeting}" if _world.settings.meeting else ""
            raise ConfigError(f"this process takes part already, as rank {_world.settings.rank}{there}")
        return _world.group


def _is_other(settings: RankSettings, rank: int | None, size: int | None, meeting: str | None) -> bool:
    """Whether something was asked for that a process which takes part with these settings does not have."""
    asked = (rank, settings.rank), (size, settings.size), (meeting, settings.meeting)
    return any(wanted is not None and wanted != there for wanted, there in asked)


def rank() -> int:
    """Return this process's number in the world; 0 if no launcher started it.

    Returns
    -------
    int
        From 0 to `world_size() - 1`.

    Examples
    --------
    >>> import mesh
    >>> mesh.rank()
    0
    """
    return _settings().rank


def world_size() -> int:
    """Return the number of ranks; 1 if no launcher started this process.

    Returns
    -------
    int
        The number of ranks.

    Examples
    --------
    >>> import mesh
    >>> mesh.world_size()
    1
    """
    return _settings().size


def local_rank() -> int:
    """Return this process's number among the ranks of its machine.

    Returns
    -------
    int
        The number, from 0.

    Examples
    --------
    >>> import mesh
    >>> mesh.local_rank()
    0
    """
    return _settings().local_rank


def barrier(timeout_s: float | None = None) -> None:
    """Wait until all ranks of the world have called this.

    Parameters
    ----------
    timeout_s : float, optional
        Seconds to wait; by default those of `init`.

    Raises
    ------
    DeadlineExceeded
        If ranks did not come in time; it names them.

    Examples
    --------
    >>> import mesh
    >>> mesh.barrier()  # of one rank
    >>> mesh.shutdown()
    """
    init().barrier(timeout_s)


def shutdown() -> None:
    """Leave the world, and free what ranks exchange arrays by.  The end of the process does so, too.

    Examples
    --------
    >>> import mesh
    >>> world = mesh.init()
    >>> mesh.shutdown()
    """
    global _world
    with _lock:
        if _world is not None:
            _world.close()
        _world = None


def _at_exit() -> None:
    if _world is not None:
        _world.close(ending=True)


def _settings() -> RankSettings:
    return rank_settings() if _world is None else _world.settings


def _begin(settings: RankSettings) -> World:
    from .group import Group, Neighbours  # reaches the runtime, which programs without ranks do not need
    from .listening_ports import Door
    from .rank_certificates import passport

    host = settings.hosts[settings.rank] if settings.hosts else ""
    watch(Path(settings.meeting).absolute())
    meeting = Meeting(Path(settings.meeting).absolute(), settings.rank, host)
    several = len({*settings.hosts}) > 1
    door = Door(passport(meeting.path), settings.hosts, settings.rank) if several else None
    own = SharedDir.create()
    notes: dict[int, Note] = {}

    def meet() -> None:
        """All ranks have made their ring buffers when they come."""
        if settings.size > 1:
            where = (door.addresses, door.port) if door is not None else ()
            others = set(range(settings.size)) - {settings.rank}
            notes.update(meeting.meet(Note(str(own.path), host, *where), others, settings.timeout_s))

    try:
        neighbours = Neighbours(own, meeting, notes, settings.hosts, door)
        group = Group("world", range(settings.size), settings.rank, neighbours, settings.timeout_s, meet)
    except BaseException:
        if settings.size > 1:
            meeting.leave(own)
        if door is not None:
            door.close()
        own.close()
        raise
    return World(settings, own, meeting if settings.size > 1 else None, group, door)
