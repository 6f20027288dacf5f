"""The user secret: 32 random bytes by which the nodes of one user know each other where no mesh was joined.

It is in this user's state folder, and is made when it is first needed.  It never leaves the machine, and never crosses
a connection (`user_proof.py`).  The workers that a program starts for itself alone have one of their own, which they
get over stdin.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from ..errors import ConfigError
from ..system.atomic_files import Disk
from ..system.file_lock import FileLock
from ..system.private_folder import private_folder, state_root

SECRET_BYTES = 32
SECRET_FOLDER = "@user"  # beside the folders of meshes, none of which begins with @
SECRET_FILE = "secret"
ELSE = "Set XDG_STATE_HOME to a folder that you may write in"  # one folder for a user: no --state-dir moves it
_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def new_secret() -> bytes:
    return secrets.token_bytes(SECRET_BYTES)


def user_secret() -> bytes:
    """This user's secret, made now if there is none; ConfigError if it cannot be kept from others.  It reads files."""
    folder = private_folder(state_root() / SECRET_FOLDER, ELSE)
    path = folder / SECRET_FILE
    if not path.exists():
        with FileLock(folder / "lock"):
            if not path.exists():
                _write(path)
    return _read(path)


def _write(path: Path) -> None:
    try:
        Disk().write_whole(path, [new_secret()])
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}, by which your nodes know each other",
            cause=str(error),
            next_step=ELSE,
        ) from None


def _read(path: Path) -> bytes:
    try:
        handle = os.open(path, _FLAGS)
        try:
            status, secret = os.fstat(handle), os.read(handle, SECRET_BYTES + 1)
        finally:
            os.close(handle)
    except OSError as error:
        raise ConfigError(f"cannot read {path}, by which your nodes know each other", cause=str(error)) from None
    private = not hasattr(os, "geteuid") or (status.st_uid == os.geteuid() and not status.st_mode & 0o077)
    if not private or not stat.S_ISREG(status.st_mode) or len(secret) != SECRET_BYTES:
        what = "is damaged" if private else "is not this user's alone"
        raise ConfigError(
            f"{path}, by which your nodes know each other, {what}",
            next_step="Remove it and start your nodes again: a new one is made",
        )
    return secret
