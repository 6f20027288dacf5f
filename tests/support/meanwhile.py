"""Something played in a thread while a block of a test runs: faults, mostly."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def meanwhile(play: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run `play(over)` beside the block; it returns once `over` is set.  What it raises, the block raises at last."""
    over = threading.Event()
    raised: list[Exception] = []

    def run() -> None:
        try:
            play(over)
        except Exception as error:
            raised.append(error)

    player = threading.Thread(target=run)
    player.start()
    try:
        yield
    finally:
        over.set()
        player.join()
    if raised:
        raise raised[0]
