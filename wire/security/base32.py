"""Base32 in lower case and without padding (RFC 4648, section 6), as tokens, node ids and host names have it."""

from __future__ import annotations

import base64


def encode(data: bytes) -> str:
    return base64.b32encode(data).decode().rstrip("=").lower()


def decode(text: str) -> bytes:
    """The bytes of a text in either case.  ValueError if it has another character than letters and 2 to 7."""
    return base64.b32decode(text.upper() + "=" * (-len(text) % 8))
