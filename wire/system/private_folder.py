"""Folders for this user's eyes: where they are, how they are made, and who else could change what is in them.

Keys and secrets are files of mode 0600 in folders of mode 0700.  That protects their content, and not their place: who
may write in a folder above can put another file there.  So every folder from the root down is looked at, as ssh does.

On Windows nothing is looked at.  There these folders are in the user's profile, whose access list, which they inherit,
lets in the user, the administrators and the system alone.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from ..errors import ConfigError

APP = "graph-mesh"
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def state_root(state_dir: str = "") -> Path:
    """The folder with one folder for each mesh, by default the one that the platform has for a user's state."""
    import platformdirs  # commands are shown their flags without

    return Path(state_dir) if state_dir else platformdirs.user_state_path(APP, appauthor=False)


def data_root() -> Path:
    """The folder that the platform has for data of a user's programs."""
    import platformdirs

    return platformdirs.user_data_path(APP, appauthor=False)


def private_folder(path: Path, else_do: str = "Name another one: --state-dir DIR") -> Path:
    """Make a folder, and those above it that are missing, for this user alone; `else_do` is what to do if not.

    Raises
    ------
    ConfigError
        If it cannot be made, or if another user could put something else in its place.
    """
    try:
        make_private(path)
    except OSError as error:
        raise ConfigError(f"cannot make the folder {path}", cause=str(error), next_step=else_do) from None
    check_private(path)
    return path


def make_private(path: Path) -> None:
    """Make a folder, and those above it that are missing, for this user alone, and look at nothing; OSError.  For what
    others may not read, and where it does no harm if another user replaces it."""
    for folder in reversed([path, *path.parents]):
        folder.mkdir(mode=0o700, exist_ok=True)


def check_private(path: Path) -> None:
    """Check that only this user and the administrator can change a folder or anything above it; ConfigError."""
    why = weakness(path)
    if why:
        raise ConfigError(
            f"{why}, so another user of this machine could replace what is in {path}",
            next_step="Take that right away (chmod go-w), or use another folder: --state-dir DIR, or XDG_STATE_HOME",
        )


def weakness(path: Path) -> str:
    """What lets other users change a folder or anything above it; "" if nothing does."""
    if not hasattr(os, "geteuid"):
        return ""
    return next((f"{folder} {why}" for folder in _chain(path) if (why := _weakness(folder))), "")


def _chain(path: Path) -> Iterator[Path]:
    """A folder and all above it, by the names that were given and by those that links lead to."""
    given, real = Path(os.path.abspath(path)), path.resolve()
    yield from dict.fromkeys((given, *given.parents, real, *real.parents))


def _weakness(folder: Path) -> str:
    """What lets others change the entries of a folder; "" if nothing does."""
    status, own = folder.stat(), os.geteuid()
    if status.st_uid not in (own, 0, os.stat("/").st_uid):  # the owner of the root can do everything
        return f"belongs to user {user_name(status.st_uid)}"
    if not status.st_mode & _OTHERS_WRITE or status.st_mode & stat.S_ISVTX:  # sticky: all keep to their own entries
        return ""
    if status.st_mode & stat.S_IWOTH:
        return "can be written to by every user"
    return "" if _is_own_group(status.st_gid) else f"can be written to by group {status.st_gid}"


def _is_own_group(number: int) -> bool:
    """Whether a group is the private one of this user, which many systems make with the user."""
    import grp
    import pwd

    with contextlib.suppress(KeyError):
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(number)
        return user.pw_gid == number and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
    return False


def login_name() -> str:
    """The name by which this process's user is logged in; the number of one that has no name, as in containers."""
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):  # by the version of Python
        return user_name()


def user_name(number: int | None = None) -> str:
    """The name of a user of this machine, by default of this process's."""
    if not hasattr(os, "geteuid"):
        return getpass.getuser()
    import pwd

    number = os.geteuid() if number is None else number
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:  # a container's, which has no name
        return str(number)
