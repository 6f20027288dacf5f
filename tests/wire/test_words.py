"""Sizes, times and addresses as people type them."""

from __future__ import annotations

import pytest

from mesh.util.units import parse_duration, parse_size
from wire.addresses import parse_address
from wire.errors import ConfigError

SIZES = [("8GiB", 8 << 30), ("1.5G", 3 << 29), ("500MB", 500_000_000), (" 7 ", 7)]


@pytest.mark.parametrize(("text", "size_bytes"), SIZES)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["9" * 400, "9" * 400 + "T", "0.0000001", "0", "1023P", "", "GiB", "-1", "nan", "inf"])
def test_what_is_no_size_is_told(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize("text", ["9" * 400 + "d", "0", "-1", "", "1y", "nan"])
def test_what_is_no_time_is_told(text: str) -> None:
    assert parse_duration("1.5h") == 5400.0
    with pytest.raises(ConfigError, match="is not a time"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["desk:0", "desk:65536", "desk:" + "9" * 5000, ":7100", "[]:1", ""])
def test_what_is_no_address_is_told(text: str) -> None:
    assert parse_address("[fe80::1]:7101") == ("fe80::1", 7101) and parse_address("desk") == ("desk", 7100)
    with pytest.raises(ConfigError, match="is not an address"):
        parse_address(text)
