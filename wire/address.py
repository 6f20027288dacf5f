"""Addresses as people write them: host:port."""

from __future__ import annotations

from .errors import ConfigError


def parse_address(text: str, port_default: int | None = None) -> tuple[str, int]:
    """Host and port of "host:port" or "[v6]:port"; without a port, `port_default`.  ConfigError otherwise."""
    host, colon, port = text.rpartition(":")
    if not colon or (":" in host and not host.startswith("[")) or port.endswith("]"):
        host, port = text, "" if port_default is None else str(port_default)
    number = int(port) if port.isascii() and port.isdigit() else 0
    if not host.strip("[]") or not 0 < number < 1 << 16:
        raise ConfigError(f"{text!r} is not an address", next_step="Write HOST:PORT, for example 127.0.0.1:7100")
    return host.strip("[]"), number
