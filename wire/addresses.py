"""Addresses and names as people write them."""

from __future__ import annotations

from .errors import ConfigError

NAME_BYTES_MAX = 64
# To listen on all IPv4 addresses of a machine, or on all there are; and where the machine itself reaches who does.
EVERY = {"0.0.0.0": "127.0.0.1", "::": "::1"}
PORT, LAST_PORT = 7100, 7131  # a taken port makes way for the next: 32 nodes on a machine


def parse_address(text: str, default_port: int = PORT) -> tuple[str, int]:
    """Host and port of "host:port" or "[v6]:port"; without a port, 7100.  ConfigError otherwise."""
    if not isinstance(text, str):
        raise ConfigError(f"{text!r} is not an address", next_step="Write HOST:PORT, for example 127.0.0.1:7100")
    host, colon, port = text.rpartition(":")
    if not colon or (":" in host and not host.startswith("[")) or port.endswith("]"):
        host, port = text, str(default_port)
    number = int(port) if port.isascii() and port.isdigit() and len(port) <= 5 else 0
    if not host.strip("[]") or not 0 < number < 1 << 16:
        raise ConfigError(f"{text!r} is not an address", next_step="Write HOST:PORT, for example 127.0.0.1:7100")
    return host.strip("[]"), number


def shown(host: str) -> str:
    """A host as it stands before a port: IPv6 in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def check_name(what: str, name: str) -> str:
    """The name of a mesh or a node, if it can be one: names stand in announcements, logs and folders' paths."""
    if not isinstance(name, str):
        raise ConfigError(f"a {what}'s name is a text, not {name!r}")
    if not 0 < len(name.encode("utf-8", "replace")) <= NAME_BYTES_MAX or not name.isprintable():
        raise ConfigError(f"a {what}'s name has 1 to {NAME_BYTES_MAX} bytes of printable text, got {name[:80]!r}")
    if name.startswith(".") or set(name) & set("/\\:"):
        raise ConfigError(f"a {what}'s name does not begin with a dot and has no slash or colon, got {name!r}")
    return name
