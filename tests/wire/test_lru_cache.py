"""The values that were asked for last, up to a number and a size."""

from __future__ import annotations

import pytest

from wire.lru_cache import Latest


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        ("abc", "abc"),
        ("abcd", "bcd"),  # three at most
        ("abcad", "cad"),  # the one asked for last stays
        ("aB", "aB"),
        ("aBc", "Bc"),  # a capital takes 20 of 28 bytes, others 5
        ("ABc", "Bc"),
        ("aX", "X"),  # too large, and the newest
        ("aXb", "b"),
        ("aaa", "a"),
    ],
)
def test_the_latest_are_kept_up_to_a_number_and_a_size(asked: str, kept: str) -> None:
    latest: Latest[str, str] = Latest(3, 28)
    for key in asked:
        if latest.get(key) is None:
            assert latest.keep(key, key.upper(), 99 if key == "X" else 20 if key.isupper() else 5) == key.upper()
    assert len(latest) == len(kept)
    assert "".join(key for key in dict.fromkeys(asked) if latest.get(key)) == "".join(sorted(kept, key=asked.index))


def test_of_two_that_made_a_value_at_once_the_first_is_kept() -> None:
    latest: Latest[str, object] = Latest(2, 10)
    first = object()
    assert latest.keep("a", first, 6) is first
    assert latest.keep("a", object(), 6) is first
    assert latest.keep("a", first, 6) is first
    assert latest.keep("b", first, 4) is first and len(latest) == 2, "its bytes count once"
