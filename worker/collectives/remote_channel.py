"""How letters go to a rank on another machine: a line, which begins with mailboxes that the daemons carry, and crosses
to a connection between the two engine hosts once there is one.

Either end crosses by itself, at the beginning of a step: it puts a marker into its mailbox, the last letter there, and
the next ones go over the connection.  So letters have one order all the time, and the other end needs to know nothing
but what it reads.  A connection that ended is not mended: a step of which it carried something fails, the next ones
take the mailboxes, and the daemons are asked for another one.

Connections are made in threads of their own (`connector.py`), so nothing here waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from .connection import Connection
from .ring_buffer import Outbox, marker


class Line:
    """To one other rank's host, for all gangs of a plan.  `parted` is called when a connection has ended."""

    def __init__(self, parted: Callable[[], None] = lambda: None) -> None:
        self.out: Connection | None = None  # ours go over it
        self.into: Connection | None = None  # theirs come over it
        self._newest: Connection | None = None
        self._calling = False  # somebody is making one
        self._closed = False
        self._parted = parted
        self._tag = self._posted = self._taken = (
            0  # the step, and the last ones of which something was posted, or taken
        )
        self._changing = threading.Lock()

    @staticmethod
    def standing(connection: Connection) -> Line:
        """A line that is a connection from the start, with no daemons beside it."""
        line = Line()
        line._newest = line.out = line.into = connection
        return line

    # -- what a step does

    def begin(self, tag: int, outbox: Outbox) -> bool:
        """A new step; whether there is a marker in the mailbox now."""
        self._tag = tag
        newest = self._newest
        if newest is not None and not newest.ended:
            newest.drop_before(tag)
        if newest is None or newest.ended:
            self.hang_up()
            return False
        if newest is self.out or outbox.full:
            return False
        outbox.publish(marker(tag, newest.number), 0)
        self.out = newest
        return True

    def post(self, envelope: bytes, payload: memoryview) -> None:
        """Send a letter over the connection that ours go over."""
        assert self.out is not None
        self._posted = self._tag
        self.out.post(envelope, payload)

    def took(self) -> None:
        """A letter of this step came over the connection."""
        self._taken = self._tag

    def used(self, tag: int) -> bool:
        """Whether something of this step may be lost with a connection that ended."""
        return tag in (self._posted, self._taken)

    def knows(self, number: int) -> bool:
        """Whether it is decided if there will be a connection of this number."""
        newest = self._newest
        return (newest is not None and newest.number == number) or not self._calling

    def cross(self, number: int) -> bool:
        """Have letters come over the connection of this number; False if there is none."""
        newest = self._newest
        if newest is None or newest.number != number:
            return False
        self.into = newest
        return True

    def hang_up(self) -> None:
        """Use the connection no more: what of it is under way belongs to a step that was given up."""
        with self._changing:
            newest, self._newest = self._newest, None
        self.out = self.into = None
        if newest is not None:
            newest.close()
            self._parted()

    # -- what whoever makes connections does, in other threads

    def calling(self) -> bool:
        """Begin to make a connection; False if there is one, or somebody makes one."""
        with self._changing:
            standing = self._newest is not None and not self._newest.ended
            if self._calling or self._closed or standing:
                return False
            self._calling = True
            return True

    def called(self, connection: Connection | None) -> None:
        """What came of it."""
        with self._changing:
            self._calling = False
            if not self._closed:
                self._newest, connection = connection, None
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """The plan is over."""
        with self._changing:
            self._closed = True
            newest, self._newest = self._newest, None
        self.out = self.into = None
        if newest is not None:
            newest.close()
