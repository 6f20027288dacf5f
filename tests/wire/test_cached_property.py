"""cached_property: computed once, and no thread waits for another."""

from __future__ import annotations

import threading
from collections.abc import Callable

from wire.cached_property import cached_property


class Halves:
    """Two properties of which each needs the other one of another object."""

    def __init__(self, needs: Halves | None = None, begun: Callable[[], object] = lambda: None) -> None:
        self.needs, self.begun, self.computed = needs, begun, 0

    @cached_property
    def left(self) -> str:
        """The left half."""
        self.begun()
        self.computed += 1
        return "left" if self.needs is None else f"left after {self.needs.right}"

    @cached_property
    def right(self) -> str:
        self.begun()
        return "right" if self.needs is None else f"right after {self.needs.left}"


def test_it_is_computed_once_and_has_its_docstring() -> None:
    halves = Halves()
    assert (halves.left, halves.left, halves.computed) == ("left", "left", 1)
    assert Halves.left.__doc__ == "The left half."


def test_threads_in_the_middle_of_two_properties_that_need_one_another_both_go_on() -> None:
    both = threading.Barrier(2)
    one, other = Halves(Halves(), lambda: both.wait(120)), Halves(Halves(), lambda: both.wait(120))
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(one.left), daemon=True),
        threading.Thread(target=lambda: found.append(other.right), daemon=True),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(found) == ["left after right", "right after left"]
