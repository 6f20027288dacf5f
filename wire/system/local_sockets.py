"""Unix sockets between two processes of one user: one listens in its directory of shared memory, the other connects.

Only the user can open that directory, so nobody else can connect.  Systems without such sockets, and directories whose
names are too long for one, have none of them.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from .shared_memory import SharedDir, new_name, path_of, remove

POSSIBLE = hasattr(socket, "AF_UNIX")


@contextlib.contextmanager
def listening(shared: SharedDir) -> Iterator[tuple[str, socket.socket]]:
    """A socket that listens, and its name in the directory, until the block ends.  Its `accept` never waits.  OSError
    where there can be none."""
    name = new_name()
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            listener.bind(path_of(shared.path, name))
            listener.listen(1)
            listener.setblocking(False)
            yield name, listener
        finally:
            remove(shared.path, name)


def connected(directory: str, name: str) -> socket.socket:
    """A connection to the socket of this name in another process's directory.  OSError if nobody listens there, and
    what `take` raises for names that are not of our making."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.setblocking(False)
        connection.connect(path_of(directory, name))
    except BaseException:
        connection.close()
        raise
    return connection
