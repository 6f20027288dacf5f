"""Formation: who computes the steps at present, and the state between two of them.

A formation is a session of a number of ranks on a mesh, or this process.  When workers come or go another one is formed
of the same state, which has no trace of how many there were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from wire.strategies import Auto, DataParallel, Pipeline, Split, Strategy

from .. import tree
from ..client import Mesh
from ..errors import ConfigError, InputError, PlacementError
from ..stepping import Stepping
from .exchange import memory_size
from .recipe import Recipe
from .step import training_step

RANKS_MAX = 16


class Told(Protocol):
    """A step under way."""

    def result(self, timeout_s: float | None = None) -> Any: ...


class Formed(Protocol):
    """What computes steps: a session, or this process."""

    def step(self, *args: Any) -> Told: ...

    def state(self) -> Any: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Choice:
    """How many ranks share a batch, and the strategy of the session that computes them."""

    ranks: int
    strategy: str
    whole: bool = False


def choose(recipe: Recipe, strategy: Strategy, live: int, most: int | None, begun: bool) -> Choice:
    """What a strategy means with so many workers; ConfigError for what there is not.

    What was `begun` goes on with fewer than were asked for, else PlacementError.
    """
    workers = min(live, most or live, RANKS_MAX)
    if isinstance(strategy, Pipeline):
        raise ConfigError(
            "training by stages is not a strategy of the trainer", next_step="Choose DataParallel() or FullySharded()"
        )
    apart = recipe.shards or recipe.compression
    if isinstance(strategy, DataParallel) or (apart and isinstance(strategy, Auto)):
        asked = strategy.ranks if isinstance(strategy, DataParallel) else 0
        if asked > workers and not begun:
            raise PlacementError(
                f"{strategy} needs {asked} workers, and there are {workers}", next_step="Start another mesh-worker"
            )
        ranks = max(1, min(asked or workers, workers))
        return Choice(ranks, "auto" if ranks > 1 else "single")  # auto: one worker goes on alone if others die
    if apart:
        raise InputError(
            "deterministic training and compression of gradients are of data parallelism",
            next_step="Choose DataParallel()",
        )
    if isinstance(strategy, Split):
        if workers == 1 and (begun or not strategy.ranks):
            return Choice(1, "single", True)
        ranks = strategy.ranks or (workers if most else 0)
        return Choice(1, replace(strategy, ranks=ranks).text, True)
    return Choice(1, strategy.text)


def form(
    mesh: Mesh | None, recipe: Recipe, choice: Choice, state: Any, examples: Sequence[Any], rows_apart: bool,
    copies: str, every: int,
) -> Formed:  # fmt: skip
    """Begin with the state that `together` gave, or the first."""
    step = training_step(recipe, choice.ranks, choice.whole, rows_apart)
    first = apart(recipe, state, choice.ranks)
    if mesh is None:
        return Alone(Stepping(step, first, examples, "single"))
    return mesh.session(step, first, *examples, copies=copies, every=every, strategy=choice.strategy)


def apart(recipe: Recipe, state: Mapping[str, Any], ranks: int) -> dict[str, Any]:
    """The state as so many ranks have it: what was not sent yet is the first one's."""
    size = memory_size(state["params"], recipe.compression) if ranks > 1 else 0
    unsent = np.zeros((ranks, size), np.float32)
    if size and state["unsent"] is not None:
        unsent[0] = state["unsent"]
    return {**state, "unsent": unsent if size else None}


def together(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state without ranks."""
    unsent = state["unsent"]
    return {**state, "unsent": None if unsent is None else unsent.sum(axis=0)}


class Alone:
    """Steps in this process, one after the other."""

    def __init__(self, stepping: Stepping) -> None:
        from ..inprocess import Evaluating

        self._stepping = stepping
        self._evaluating = Evaluating(stepping.work)
        self._values = {name: self._evaluating.params[name] for name, _ in stepping.carries}
        self._remembered: dict[int, NDArray[Any]] = {}

    def step(self, *args: Any) -> Told:
        outputs = self._evaluating.run(self._stepping.bind(args), self._values)
        self._values = {name: outputs[at] for name, at in self._stepping.carries}
        self._remembered |= self._stepping.remembered(outputs)
        return _Done(self._stepping.outputs(outputs))

    def state(self) -> Any:
        return tree.map(np.array, self._stepping.state(self._values, self._remembered))

    def close(self) -> None:
        self._values.clear()


@dataclass(frozen=True, slots=True)
class _Done:
    value: Any

    def result(self, timeout_s: float | None = None) -> Any:
        return self.value
