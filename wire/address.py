"""Addresses as people write them: host:port."""

from __future__ import annotations

from .errors import ConfigError

PORT, LAST_PORT = 7100, 7131  # a taken port makes way for the next: 32 nodes on a machine


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of "host:port" or "[v6]:port"; without a port, 7100.  ConfigError otherwise."""
    host, colon, port = text.rpartition(":")
    if not colon or (":" in host and not host.startswith("[")) or port.endswith("]"):
        host, port = text, str(PORT)
    number = int(port) if port.isascii() and port.isdigit() else 0
    if not host.strip("[]") or not 0 < number < 1 << 16:
        raise ConfigError(f"{text!r} is not an address", next_step="Write HOST:PORT, for example 127.0.0.1:7100")
    return host.strip("[]"), number
