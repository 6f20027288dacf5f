"""Whether this machine can do mDNS on its loopback interface; tests that need it skip with the reason where not."""

from __future__ import annotations

import socket
import struct

import pytest

GROUP = "239.255.91.7"


def multicast_works() -> bool:
    """Whether a datagram sent to a group on the loopback interface comes back; asked of the system, not of our code."""
    membership = struct.pack("4s4s", socket.inet_aton(GROUP), socket.inet_aton("127.0.0.1"))
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as hears,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as says,
    ):
        try:
            hears.bind(("", 0))
            hears.settimeout(1.0)
            hears.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
            says.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
            says.sendto(b"hello", (GROUP, hears.getsockname()[1]))
            return hears.recv(16) == b"hello"
        except OSError:
            return False


needs_multicast = pytest.mark.skipif(not multicast_works(), reason="this machine's loopback interface has no multicast")
