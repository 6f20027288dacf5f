"""Model lifecycle: when a served model is on the workers.  Pure.

A model is loaded when somebody asks for it.  It is unloaded once nobody has asked for a stated time: the server's, or
that which the last request stated.  It is unloaded sooner where another model needs the memory, unless somebody asks
for it or the last request said that it stays.  Whoever asks while it is unloaded has it loaded again.

    | stage   | a request | loaded | failed | unloaded               | nobody for so long, or another needs the memory |
    |---------|-----------|--------|--------|------------------------|-------------------------------------------------|
    | out     | loading   |        |        |                        |                                                 |
    | loading |           | in     | out    |                        |                                                 |
    | in      |           |        |        |                        | leaving                                         |
    | leaving |           |        |        | out; loading if wanted |                                                 |
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Stage(Enum):
    """The place of a model."""

    OUT = "out"
    LOADING = "loading"
    IN = "in"
    LEAVING = "leaving"


class Do(Enum):
    """What is to be done; `loaded` or `failed`, and `unloaded`, tell what came of it."""

    NOTHING = "nothing"
    LOAD = "load"
    UNLOAD = "unload"


@dataclass(slots=True)
class ModelLifecycle:
    """The pure machine of one model, which stays for `keep_s` after the last request; None: as long as the server."""

    keep_s: float | None = None
    stage: Stage = Stage.OUT
    asked: int = 0  # requests that wait or are answered
    due_s: float | None = None  # when it is to go, if nobody asks until then
    pinned: bool = False  # whether the last request said that it stays, whatever else is asked for
    used_s: float = 0.0  # when the last request was over

    def ask(self) -> Do:
        """A request comes."""
        self.asked += 1
        self.due_s = None
        return self.want()

    def want(self) -> Do:
        """A request that has come needs the model now."""
        if self.stage is not Stage.OUT:
            return Do.NOTHING
        self.stage = Stage.LOADING
        return Do.LOAD

    def over(self, now_s: float, keep_s: float | None, pinned: bool = False) -> Do:
        """A request is over, after which the model is to stay for so long."""
        self.asked -= 1
        self.pinned, self.used_s = pinned, now_s
        if not self.asked:
            self.due_s = None if keep_s is None else now_s + keep_s
        return self.tick(now_s)

    def loaded(self, now_s: float) -> Do:
        """Note that the model is on the workers."""
        self.stage = Stage.IN
        return self.tick(now_s)

    def failed(self) -> Do:
        """Note that the model could not be loaded; the next request tries again."""
        self.stage, self.due_s = Stage.OUT, None
        return Do.NOTHING

    def unloaded(self) -> Do:
        """The workers have freed it."""
        self.stage, self.due_s = Stage.OUT, None
        if not self.asked:
            return Do.NOTHING
        self.stage = Stage.LOADING
        return Do.LOAD

    def make_way(self) -> Do:
        """Another model needs its memory."""
        if self.stage is not Stage.IN or self.asked or self.pinned:
            return Do.NOTHING
        self.stage = Stage.LEAVING
        return Do.UNLOAD

    def tick(self, now_s: float) -> Do:
        """Time has passed."""
        if self.stage is not Stage.IN or self.asked or self.due_s is None or now_s < self.due_s:
            return Do.NOTHING
        self.stage = Stage.LEAVING
        return Do.UNLOAD
