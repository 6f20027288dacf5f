"""What holds for all tests."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# The same examples every time, however long one takes; the long runs ask for others by their seeds.
settings.register_profile(
    "steady", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    result = yield
    if nextitem is None or nextitem.path != item.path:
        pytest_collection_finish()
    return result


def pytest_collection_finish() -> None:
    """What is there stays out of later collections of garbage: the tests themselves, and what those of a file leave
    behind, which are gigabytes in the end.  Tests that collect after every step took twenty times as long in a whole
    run as alone."""
    gc.collect()
    gc.freeze()
