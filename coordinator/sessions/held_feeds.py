"""Held feeds: what a session's steps are fed with, held as long as one of them may have to be done again."""

from __future__ import annotations

from .elastic import StepInputs, bytes_of


class HeldFeeds:
    """The feeds of one session by the numbers of its steps.  None below `begin` is needed any more."""

    def __init__(self) -> None:
        self.begin = 0
        self.size_bytes = 0
        self._held: dict[int, StepInputs] = {}

    def __getitem__(self, number: int) -> StepInputs:
        return self._held[number]

    def get(self, number: int) -> StepInputs | None:
        """What a step is fed with; None for one that was rejected."""
        return self._held.get(number)

    def add(self, number: int, inputs: StepInputs) -> None:
        self._held[number] = inputs
        self.size_bytes += bytes_of(inputs)

    def drop(self, number: int) -> None:
        """Forget the feed of a step that will not be done."""
        self.size_bytes -= bytes_of(self._held.pop(number, {}))

    def forget_below(self, number: int) -> None:
        """Forget the feeds of the steps before this one."""
        self.begin = number
        for each in [each for each in self._held if each < number]:
            self.drop(each)

    def clear(self) -> None:
        self._held.clear()
        self.size_bytes = 0
