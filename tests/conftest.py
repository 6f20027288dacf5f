"""What holds for all tests."""

import gc


def pytest_collection_finish() -> None:
    """Half a million objects are the tests themselves: no collection of garbage looks at them again."""
    gc.collect()
    gc.freeze()
