"""Connections whose other machine vanished without a word: what the system sends over those that are idle ends them."""

from __future__ import annotations

import contextlib
import socket

IDLE_S_MAX = 32767  # which systems take
PROBES = 4  # to an idle connection without an acknowledgement, after which it is lost


def end_when_idle_and_lost(connection: socket.socket, within_s: float) -> None:
    """Have the system end a connection when nothing is sent over it, and the other machine is silent for so long.

    What the system sends meanwhile keeps routers on the way from forgetting the connection.
    """
    idle_s = min(within_s / 2, IDLE_S_MAX)
    _set(connection, socket.SOL_SOCKET, "SO_KEEPALIVE", 1)
    _set(connection, socket.IPPROTO_TCP, "TCP_KEEPIDLE", idle_s)
    _set(connection, socket.IPPROTO_TCP, "TCP_KEEPALIVE", idle_s)  # as macOS calls it
    _set(connection, socket.IPPROTO_TCP, "TCP_KEEPINTVL", idle_s / PROBES)
    _set(connection, socket.IPPROTO_TCP, "TCP_KEEPCNT", PROBES)


def end_when_lost(connection: socket.socket, within_s: float) -> None:
    """Have the system end a connection also where the other machine acknowledges nothing that was sent, or reads
    nothing, for so long."""
    end_when_idle_and_lost(connection, within_s)
    _set(connection, socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", within_s * 1000)


def _set(connection: socket.socket, level: int, name: str, value: float) -> None:
    with contextlib.suppress(OSError):  # it has ended already, or is no TCP connection
        if hasattr(socket, name):
            connection.setsockopt(level, getattr(socket, name), max(1, int(value)))
