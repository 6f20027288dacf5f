"""Adverts as packets, also wrong ones, and sending them: what a stranger on the network can do."""

from __future__ import annotations

import ipaddress
import secrets
import socket
from collections.abc import Sequence

from zeroconf import DNSAddress, DNSOutgoing, DNSPointer, DNSService, DNSText

from wire.discovery.announcements import TTL_S, bucket_of, text_of
from wire.discovery.mdns import SERVICE

GROUP, PORT = "224.0.0.251", 5353
_A, _PTR, _TXT, _AAAA, _SRV = 1, 12, 16, 28, 33
_IN, _UNIQUE, _ANSWER = 1, 0x8001, 0x8400


def advert(
    key: bytes,
    wall_s: float,
    *,
    label: str = "",
    role: str = "worker",
    port: int = 7100,
    addresses: Sequence[str] = ("10.0.0.9",),
    ttl_s: int = TTL_S,
    srv_port: int | None = None,
    nonce: bytes = bytes(8),
) -> bytes:
    """The packet in which a node announces itself."""
    label = label or secrets.token_hex(8)
    name, server = f"{label}.{SERVICE}", f"{label}.local."
    fields = text_of(key, label, nonce, role, port, bucket_of(wall_s))
    text = b"".join(bytes([len(name) + 1 + len(value)]) + name + b"=" + value for name, value in fields.items())
    out = DNSOutgoing(_ANSWER)
    out.add_answer_at_time(DNSPointer(SERVICE, _PTR, _IN, ttl_s, name), 0)
    out.add_answer_at_time(DNSService(name, _SRV, _UNIQUE, ttl_s, 0, 0, srv_port or port, server), 0)
    out.add_answer_at_time(DNSText(name, _TXT, _UNIQUE, ttl_s, text), 0)
    for each in map(ipaddress.ip_address, addresses):
        kind = _A if each.version == 4 else _AAAA
        out.add_answer_at_time(DNSAddress(server, kind, _UNIQUE, ttl_s, each.packed), 0)
    (packet,) = out.packets()
    return packet


def send(packets: Sequence[bytes], interface: str = "127.0.0.1") -> None:
    """Send packets to the group of mDNS."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as says:
        says.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(interface))
        for packet in packets:
            says.sendto(packet, (GROUP, PORT))
