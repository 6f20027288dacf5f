"""Worker group: who computes the steps at present, and the state between two of them.

A group is a session on a mesh, or this process.  A session of ranks that each have all of the state is elastic: it goes
on with as many workers as there are.  When workers come or go, any other group ends, and another one is formed with its
state, which does not depend on the number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from wire.policy.batch_shares import Portions, by_speed, ranks_of
from wire.policy.strategies import Auto, DataParallel, DeviceMap, Pipeline, Ranks, Split, Strategy, strategy_of

from .. import tree
from ..client.elastic_session import Elastic
from ..client.mesh import ElasticSession, Mesh, Session
from ..errors import InputError, PlacementError
from ..functions.step_trace import Stepping
from .data import Data, Rows, Shares, padded
from .gradient_exchange import memory_size
from .layer_placement import place_layers
from .step import training_step
from .step_config import Recipe

RANKS_MAX = 16


class StepResult(Protocol):
    """A step in flight."""

    def result(self, timeout_s: float | None = None) -> Any: ...


class WorkerGroup(Protocol):
    """What computes steps: a session, or this process."""

    elastic: bool

    @property
    def plan(self) -> Any:
        """The plan of its steps, None if that is not known."""
        ...

    @property
    def spans(self) -> Sequence[Any]:
        """The spans of its latest steps: when they began and ended, and what took the time."""
        ...

    def profile(self) -> None:
        """Keep the spans of many more steps from now on."""
        ...

    @property
    def shares(self) -> Mapping[str, int]:
        """Rows of a whole step, with padding, by worker; empty if that is not known."""
        ...

    def step(self, rows: Rows) -> StepResult: ...

    def state(self) -> Any: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Choice:
    """How many ranks share a batch, and the strategy of the session that computes them."""

    ranks: int
    strategy: str
    whole: bool = False  # whether the strategy splits the step's tensors
    elastic: int = 0  # how many ranks there may be, where their number may change on the way
    by_speed: bool = False  # whether faster ranks may have more rows
    asked: bool = False  # whether it is the number of ranks that was asked for


@dataclass(frozen=True, slots=True)
class _Request:
    """What a choice is made for.  Training that has `begun` goes on with fewer workers than were asked for."""

    recipe: Recipe
    workers: int
    most: int | None
    begun: bool


def choose(recipe: Recipe, strategy: Strategy, live: int, most: int | None, begun: bool) -> Choice:
    """What a strategy means with this many live workers, by the rows of `_CHOICES`.

    PlacementError if there are fewer than it asks for and training has not `begun`.
    """
    request = _Request(recipe, min(live, most or live, RANKS_MAX), most, begun)
    kind = next(kind for kind in _CHOICES if isinstance(strategy, kind))
    if (recipe.shards or recipe.compression) and kind in (Split, Strategy):
        raise InputError(
            "deterministic training and compression of gradients are of data parallelism",
            next_step="Choose DataParallel()",
        )
    return _CHOICES[kind](strategy, request)


def _pipeline(strategy: Any, request: _Request) -> Choice:
    return Choice(1, stages_for(strategy, request.workers, request.begun))


def _data_parallel(strategy: Any, request: _Request) -> Choice:
    _check_enough(strategy, strategy.ranks, request.workers, request.begun)
    return _ranks(request, strategy.ranks, strategy.by_speed is not False)


def _auto(strategy: Any, request: _Request) -> Choice:
    if request.recipe.shards or request.recipe.compression:
        return _ranks(request, 0, True)
    return Choice(1, strategy.text, whole=True)


def _split(strategy: Any, request: _Request) -> Choice:
    if request.workers == 1 and (request.begun or not strategy.ranks):
        return Choice(1, "single", whole=True)
    ranks = strategy.ranks or (request.workers if request.most else 0)
    return Choice(1, replace(strategy, ranks=ranks).text, whole=True)


def _as_given(strategy: Any, request: _Request) -> Choice:
    return Choice(1, strategy.text)


_CHOICES: dict[type[Strategy], Callable[[Any, _Request], Choice]] = {  # the first class that fits
    Pipeline: _pipeline,
    DataParallel: _data_parallel,
    Split: _split,
    Auto: _auto,
    Strategy: _as_given,
}


def _ranks(request: _Request, asked: int, by_speed: bool) -> Choice:
    """Ranks that each have all params: as many as were `asked` for, 0 for one on every worker."""
    ranks = max(1, min(asked or request.workers, request.workers))
    ranks_max = min(asked or request.most or RANKS_MAX, RANKS_MAX)
    elastic = 0 if request.recipe.compression else ranks_max
    strategy = "auto" if ranks > 1 else "single"  # auto: one worker goes on alone if others die
    return Choice(ranks, strategy, elastic=elastic, by_speed=by_speed, asked=asked > 0)


def live_workers(mesh: Mesh | None) -> int:
    """How many workers of a mesh are there."""
    return sum(node.state in ("healthy", "suspect") for node in mesh.nodes) if mesh is not None else 0


def stages_for(strategy: Pipeline, workers: int, begun: bool) -> str:
    """The text of a strategy of as many stages, and copies of them, as there are workers for."""
    _check_enough(strategy, max(strategy.stages, 1) * strategy.data, workers, begun)
    columns = max(1, min(strategy.data, workers))
    stages = min(strategy.stages, workers // columns)
    single = columns == 1 and (workers == 1 or stages == 1)
    return "single" if single else replace(strategy, stages=stages, data=columns).text


def _check_enough(strategy: Strategy, asked: int, workers: int, begun: bool) -> None:
    if asked > workers and not begun:
        raise PlacementError(
            f"{strategy} needs {asked} workers, and there are {workers}", next_step="Start another mesh-worker"
        )


@dataclass(frozen=True, slots=True)
class Feed:
    """How steps are fed: rows of the data, as the ranks of a recipe's step share them out."""

    recipe: Recipe
    data: Data

    def shares(self, portions: Portions) -> Shares:
        return Shares.of(self.recipe, portions, self.data.batch_size)

    def rows_by_rank(self, portions: Portions) -> Sequence[int]:
        return self.shares(portions or 1).rows

    def arguments(self, portions: Portions, rows: Rows) -> tuple[Any, Any, Any]:
        """A step's arguments: resident data, rows or their places in it, and the rows' weights."""
        batch, weights = padded(rows, self.shares(portions))
        return self.data.resident, batch, weights

    def begin(self, session: ElasticSession, rows: Rows) -> StepResult:
        return session.begin(lambda portions: self.arguments(portions, rows), bytes_of(rows))

    def pieces(self) -> int:
        """How many pieces a batch is shared out in: rows, or virtual shards."""
        return self.recipe.shards or self.data.batch_size


def form_group(
    mesh: Mesh | None, feed: Feed, choice: Choice, state: Any, rows: Rows, copies: str, every: int
) -> WorkerGroup:
    """Begin with a state that `without_ranks` gave, or the first, and rows like those to come."""

    def traced(portions: Portions, strategy: str) -> Stepping:
        ranks, shares = ranks_of(portions), feed.shares(portions)
        rows_apart = feed.data.uneven or shares.pads(feed.data.batch_size)
        step = training_step(feed.recipe, ranks, choice.whole, rows_apart, None if shares.even else shares)
        return Stepping(step, for_ranks(feed.recipe, state, ranks), feed.arguments(portions, rows), strategy)

    if mesh is None:
        return LocalGroup(traced(choice.ranks, "single"), partial(feed.arguments, choice.ranks))
    if choice.elastic and mesh.elastic:
        elastic = Elastic(
            lambda portions: traced(portions, Ranks().text if ranks_of(portions) > 1 else "single"),
            choice.ranks,
            choice.elastic,
            feed.pieces() if choice.by_speed else 0,
            choice.asked,
        )
        session = mesh.elastic_session(elastic, copies, every)
        return SessionGroup(session, True, partial(feed.begin, session), feed.rows_by_rank)
    stepping: Stepping = traced(choice.ranks, choice.strategy)
    if isinstance(layers := strategy_of(choice.strategy), DeviceMap):
        place_layers(stepping, layers)
    portions: Portions = choice.ranks
    if choice.by_speed and choice.ranks > 1:
        portions = _portions_by_speed(mesh, stepping, choice.ranks, feed.pieces())
        stepping = stepping if portions == choice.ranks else traced(portions, choice.strategy)
    opened = mesh.open_session(stepping, copies, every)
    return SessionGroup(opened, False, lambda rows: opened.step(*feed.arguments(portions, rows)))


def _portions_by_speed(mesh: Mesh, even: Stepping, ranks: int, pieces: int) -> Portions:
    """Portions by the time that each rank is predicted to take for an even one, for a session that keeps them."""
    try:
        plan = mesh.plan(even.graph)
    except PlacementError:
        return ranks
    parts = {rank["part"] for gang in plan.gangs for rank in gang["ranks"]}
    bars = [bar for bar in plan.timeline["parts"] if bar["part"] in parts]
    return by_speed([bar["computed_s"] - bar["start_s"] for bar in bars], pieces) if len(bars) == ranks else ranks


def bytes_of(rows: Rows) -> int:
    return sum(np.asarray(leaf).nbytes for leaf in tree.leaves(rows.batch))


def for_ranks(recipe: Recipe, state: Mapping[str, Any], ranks: int) -> dict[str, Any]:
    """The state as this many ranks hold it: what was not sent yet is the first one's."""
    size = memory_size(state["params"], recipe.compression) if ranks > 1 else 0
    unsent = np.zeros((ranks, size), np.float32)
    if size and state["unsent"] is not None:
        unsent[0] = state["unsent"]
    return {**state, "unsent": unsent if size else None}


def without_ranks(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state as it is kept between groups: what was not sent yet, added up over ranks."""
    unsent = state["unsent"]
    return {**state, "unsent": None if unsent is None else unsent.sum(axis=0)}


class SessionGroup:
    """A session whose steps train."""

    def __init__(
        self,
        session: Session,
        elastic: bool,
        begin: Callable[[Any], StepResult],
        rows_of: Callable[[Portions], Sequence[int]] | None = None,
    ) -> None:
        self.elastic = elastic
        self._session = session
        self._begin = begin
        self._rows_of = rows_of
        self._shares: tuple[Any, Mapping[str, int]] = None, {}

    @property
    def plan(self) -> Any:
        """The session's plan, if its coordinator is in this process."""
        return getattr(self._session.running, "plan", None)

    @property
    def spans(self) -> Sequence[Any]:
        """The spans of the session's latest steps."""
        return tuple(getattr(self._session.running, "spans", ()))

    def profile(self) -> None:
        """Keep the spans of many more steps from now on, if the session's coordinator is in this process."""
        getattr(self._session.running, "profile", lambda: None)()

    @property
    def shares(self) -> Mapping[str, int]:
        """Rows of a step by worker, if the session shares out a batch by itself."""
        plan, running = self.plan, cast(Any, self._session.running)
        if self._rows_of is None or plan is None:
            return {}
        if self._shares[0] is not plan:
            names = {worker.node: worker.name for worker in plan.workers}
            ranks = plan.gangs[0].parts if plan.gangs else (0,)
            rows = self._rows_of(running.portions(plan))
            self._shares = plan, dict(zip((names[plan.parts[rank].node] for rank in ranks), rows, strict=True))
        return self._shares[1]

    def step(self, rows: Rows) -> StepResult:
        return self._begin(rows)

    def state(self) -> Any:
        return self._session.state()

    def close(self) -> None:
        self._session.close()


class LocalGroup:
    """Steps in this process, one after the other."""

    elastic = False
    plan = None
    spans: Sequence[Any] = ()
    shares: Mapping[str, int] = {}

    def __init__(self, stepping: Stepping, bind: Callable[[Any], Sequence[Any]]) -> None:
        from ..core.inprocess import Evaluating

        self._bind = bind
        self._stepping = stepping
        self._evaluating = Evaluating(stepping.work)
        self._values = {name: self._evaluating.params[name] for name, _ in stepping.carries}
        self._remembered: dict[int, NDArray[Any]] = {}

    def profile(self) -> None:
        """Nothing: steps in this process have no spans."""

    def step(self, rows: Rows) -> StepResult:
        outputs = self._evaluating.run(self._stepping.bind(self._bind(rows)), self._values)
        self._values = {name: outputs[at] for name, at in self._stepping.carries}
        self._remembered |= self._stepping.remembered(outputs)
        return _DoneStep(self._stepping.outputs(outputs))

    def state(self) -> Any:
        return tree.map(np.array, self._stepping.state(self._values, self._remembered))

    def close(self) -> None:
        self._values.clear()


@dataclass(frozen=True, slots=True)
class _DoneStep:
    value: Any

    def result(self, timeout_s: float | None = None) -> Any:
        return self.value
