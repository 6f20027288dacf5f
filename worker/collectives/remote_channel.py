"""A remote channel: how messages go to a rank on another machine.

At first they go through ring buffers, which the daemons carry between the machines.  Once there is a connection between
the two engine hosts, they go over that.  Each end switches its own direction, at the beginning of a step: it puts a
switch marker into its ring buffer, and sends the messages after it over the connection.  So the messages of a direction
have one order, and the other end needs no other notice than the marker.

A connection that ended is not repaired.  A step of which it carried a message fails.  The next steps use the ring
buffers, and the daemons are asked for a new connection.  Connections are made in other threads (`connector.py`), so
nothing here waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from .connection import Connection
from .ring_buffer import RingWriter, switch_marker


class RemoteChannel:
    """The way to one other rank's host, for all gangs of a plan.  `on_disconnected` is called when a connection has
    ended."""

    def __init__(self, on_disconnected: Callable[[], None] = lambda: None) -> None:
        self.outgoing: Connection | None = None  # messages of this end go over it
        self.incoming: Connection | None = None  # messages of the other end come over it
        self._newest: Connection | None = None
        self._connecting = False
        self._closed = False
        self._on_disconnected = on_disconnected
        self._tag = 0  # of the step
        self._sent_tag = self._received_tag = 0  # of the last steps in which it carried a message
        self._changing = threading.Lock()

    @staticmethod
    def over_connection(connection: Connection) -> RemoteChannel:
        """A channel that is a connection from the start, without daemons."""
        remote = RemoteChannel()
        remote._newest = remote.outgoing = remote.incoming = connection
        return remote

    # -- called by the step

    def begin(self, tag: int, writer: RingWriter) -> bool:
        """Begin a step.  Returns whether a switch marker is in the ring buffer now."""
        self._tag = tag
        newest = self._newest
        if newest is not None and not newest.ended:
            newest.drop_before(tag)
        if newest is None or newest.ended:
            self.disconnect()
            return False
        if newest is self.outgoing or writer.full:
            return False
        writer.publish(switch_marker(tag, newest.number), 0)
        self.outgoing = newest
        return True

    def post(self, envelope: bytes, payload: memoryview) -> None:
        """Send a message over the outgoing connection."""
        assert self.outgoing is not None
        self._sent_tag = self._tag
        self.outgoing.post(envelope, payload)

    def mark_received(self) -> None:
        """A message of this step came over the incoming connection."""
        self._received_tag = self._tag

    def may_have_lost(self, tag: int) -> bool:
        """Whether a message of this step may be lost with a connection that ended."""
        return tag in (self._sent_tag, self._received_tag)

    def is_decided(self, number: int) -> bool:
        """Whether it is known if this end has, or will have, the connection of this number."""
        newest = self._newest
        return (newest is not None and newest.number == number) or not self._connecting

    def switch_incoming(self, number: int) -> bool:
        """Receive over the connection of this number from now on.  False if there is none."""
        newest = self._newest
        if newest is None or newest.number != number:
            return False
        self.incoming = newest
        return True

    def disconnect(self) -> None:
        """End the connection, if there is one: what it still carries belongs to a step that failed."""
        with self._changing:
            newest, self._newest = self._newest, None
        self.outgoing = self.incoming = None
        if newest is not None:
            newest.close()
            self._on_disconnected()

    # -- called by `connector.py`, in other threads

    def start_connecting(self) -> bool:
        """Begin to make a connection.  False if there is one, or if one is being made."""
        with self._changing:
            connected = self._newest is not None and not self._newest.ended
            if self._connecting or self._closed or connected:
                return False
            self._connecting = True
            return True

    def finish_connecting(self, connection: Connection | None) -> None:
        """Use a connection that was made; None if the attempt failed."""
        with self._changing:
            self._connecting = False
            if not self._closed:
                self._newest, connection = connection, None
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """The plan is over: end the connection, and make no more."""
        with self._changing:
            self._closed = True
            newest, self._newest = self._newest, None
        self.outgoing = self.incoming = None
        if newest is not None:
            newest.close()
