"""Worker group: who computes the steps at present, and the state between two of them.

A formation is a session on a mesh, or this process.  A session of ranks that each have all of the state is elastic: it
goes on with as many workers as there are.  Of any other one, when workers come or go, another one is formed of the same
state, which has no trace of how many there were.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from wire.policy.batch_shares import Portions, by_speed, ranks_of
from wire.policy.strategies import Auto, DataParallel, Pipeline, Ranks, Split, Strategy

from .. import tree
from ..client.elastic_session import Elastic
from ..client.mesh import ElasticSession, Mesh, Session
from ..errors import InputError, PlacementError
from ..functions.step_trace import Stepping
from .data import Data, Rows, Shares, padded
from .gradient_exchange import memory_size
from .step import training_step
from .step_config import Recipe

RANKS_MAX = 16


class Told(Protocol):
    """A step under way."""

    def result(self, timeout_s: float | None = None) -> Any: ...


class Formed(Protocol):
    """What computes steps: a session, or this process."""

    elastic: bool

    @property
    def plan(self) -> Any:
        """What its steps go by now, None if that is not known."""
        ...

    @property
    def spans(self) -> Sequence[Any]:
        """What its steps took lately."""
        ...

    @property
    def shares(self) -> Mapping[str, int]:
        """By the names of workers, the rows of a whole step that each of them has; empty if that is not known."""
        ...

    def step(self, rows: Rows) -> Told: ...

    def state(self) -> Any: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Choice:
    """How many ranks share a batch, and the strategy of the session that computes them."""

    ranks: int
    strategy: str
    whole: bool = False
    elastic: int = 0  # how many ranks there may be, where their number may change on the way
    by_speed: bool = False  # whether faster ranks may have more rows
    asked: bool = False  # whether it is the number of ranks that was asked for


def choose(recipe: Recipe, strategy: Strategy, live: int, most: int | None, begun: bool) -> Choice:
    """What a strategy means with so many workers; ConfigError for what there is not.

    What was `begun` goes on with fewer than were asked for, else PlacementError.
    """
    workers = min(live, most or live, RANKS_MAX)
    if isinstance(strategy, Pipeline):
        return Choice(1, stages_for(strategy, workers, begun))
    apart = recipe.shards or recipe.compression
    if isinstance(strategy, DataParallel) or (apart and isinstance(strategy, Auto)):
        asked = strategy.ranks if isinstance(strategy, DataParallel) else 0
        if asked > workers and not begun:
            raise PlacementError(
                f"{strategy} needs {asked} workers, and there are {workers}", next_step="Start another mesh-worker"
            )
        ranks, most = max(1, min(asked or workers, workers)), min(asked or most or RANKS_MAX, RANKS_MAX)
        # auto: one worker goes on alone if others die
        by_speed = not (isinstance(strategy, DataParallel) and strategy.by_speed is False)
        elastic = 0 if recipe.compression else most
        return Choice(ranks, "auto" if ranks > 1 else "single", False, elastic, by_speed, asked > 0)
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
    return Choice(1, strategy.text, isinstance(strategy, Auto))


def live_workers(mesh: Mesh | None) -> int:
    """How many workers of a mesh are there."""
    return sum(node.state in ("healthy", "suspect") for node in mesh.nodes) if mesh is not None else 0


def stages_for(strategy: Pipeline, workers: int, begun: bool) -> str:
    """The text of a strategy of as many stages, and copies of them, as workers are left for."""
    asked = max(strategy.stages, 1) * strategy.data
    if asked > workers and not begun:
        raise PlacementError(
            f"{strategy} needs {asked} workers, and there are {workers}", next_step="Start another mesh-worker"
        )
    columns = max(1, min(strategy.data, workers))
    stages = min(strategy.stages, workers // columns)
    single = columns == 1 and (workers == 1 or stages == 1)
    return "single" if single else replace(strategy, stages=stages, data=columns).text


def form(
    mesh: Mesh | None, recipe: Recipe, data: Data, choice: Choice, state: Any, rows: Rows, copies: str, every: int
) -> Formed:
    """Begin with the state that `together` gave, or the first, and rows like those to come."""

    def traced(portions: Portions, strategy: str) -> Stepping:
        ranks, shares = ranks_of(portions), Shares.of(recipe, portions, data.batch_size)
        rows_apart = data.uneven or shares.pads(data.batch_size)
        unlike = None if shares.alike else shares
        step = training_step(recipe, ranks, choice.whole, rows_apart, unlike)
        return Stepping(step, apart(recipe, state, ranks), arguments(recipe, data, portions, rows), strategy)

    if mesh is None:
        return Alone(traced(choice.ranks, "single"), partial(arguments, recipe, data, choice.ranks))
    if choice.elastic and mesh.elastic:
        made = Elastic(
            lambda portions: traced(portions, Ranks().text if ranks_of(portions) > 1 else "single"),
            choice.ranks,
            choice.elastic,
            (recipe.shards or data.batch_size) if choice.by_speed else 0,
            choice.asked,
        )
        session = mesh.elastic_session(made, copies, every)
        rows_of = partial(_rows_by_rank, recipe, data.batch_size)
        begin = partial(_begun, session, recipe, data)
        return Together(session, True, begin, rows_of)
    stepping: Stepping = traced(choice.ranks, choice.strategy)
    portions: Portions = choice.ranks
    if choice.by_speed and choice.ranks > 1:
        portions = _by_speed(mesh, stepping, choice.ranks, recipe.shards or data.batch_size)
        stepping = stepping if portions == choice.ranks else traced(portions, choice.strategy)
    opened = mesh.open_session(stepping, copies, every)
    return Together(opened, False, lambda rows: opened.step(*arguments(recipe, data, portions, rows)))


def _by_speed(mesh: Mesh, even: Stepping, ranks: int, pieces: int) -> Portions:
    """By what each rank is predicted to take for an even share, for a session that keeps its shares."""
    try:
        planned = mesh.plan(even.graph)
    except PlacementError:
        return ranks
    mine = {rank["part"] for gang in planned.gangs for rank in gang["ranks"]}
    bars = [bar for bar in planned.timeline["parts"] if bar["part"] in mine]
    return by_speed([bar["computed_s"] - bar["start_s"] for bar in bars], pieces) if len(bars) == ranks else ranks


def arguments(recipe: Recipe, data: Data, portions: Portions, rows: Rows) -> tuple[Any, Any, Any]:
    """A step's arguments: what lies on the workers, rows or their places there, and weights."""
    batch, weights = padded(rows, Shares.of(recipe, portions, data.batch_size))
    return data.resident, batch, weights


def _begun(session: ElasticSession, recipe: Recipe, data: Data, rows: Rows) -> Told:
    return session.begin(partial(_for, recipe, data, rows), bytes_of(rows))


def _rows_by_rank(recipe: Recipe, batch_size: int, portions: Portions) -> Sequence[int]:
    return Shares.of(recipe, portions or 1, batch_size).rows


def _for(recipe: Recipe, data: Data, rows: Rows, portions: Portions) -> tuple[Any, Any, Any]:
    return arguments(recipe, data, portions, rows)


def bytes_of(rows: Rows) -> int:
    return sum(np.asarray(leaf).nbytes for leaf in tree.leaves(rows.batch))


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


class Together:
    """Steps of a session."""

    def __init__(
        self,
        session: Session,
        elastic: bool,
        begin: Callable[[Rows], Told],
        rows_of: Callable[[Portions], Sequence[int]] | None = None,
    ) -> None:
        self.elastic = elastic
        self._session = session
        self._begin = begin
        self._rows_of = rows_of
        self._shares: tuple[Any, Mapping[str, int]] = None, {}

    @property
    def plan(self) -> Any:
        """As Formed has it: of a session whose coordinator is in this process."""
        return getattr(self._session.running, "plan", None)

    @property
    def spans(self) -> Sequence[Any]:
        """As Formed has it."""
        return tuple(getattr(self._session.running, "spans", ()))

    @property
    def shares(self) -> Mapping[str, int]:
        """As Formed has it: of a session that shares out a batch by itself."""
        plan, running = self.plan, cast(Any, self._session.running)
        if self._rows_of is None or plan is None:
            return {}
        if self._shares[0] is not plan:
            names = {worker.node: worker.name for worker in plan.workers}
            ranks = plan.gangs[0].parts if plan.gangs else (0,)
            rows = self._rows_of(running.portions(plan))
            self._shares = plan, dict(zip((names[plan.parts[rank].node] for rank in ranks), rows, strict=True))
        return self._shares[1]

    def step(self, rows: Rows) -> Told:
        return self._begin(rows)

    def state(self) -> Any:
        return self._session.state()

    def close(self) -> None:
        self._session.close()


class Alone:
    """Steps in this process, one after the other."""

    elastic = False
    plan = None
    spans: Sequence[Any] = ()
    shares: Mapping[str, int] = {}

    def __init__(self, stepping: Stepping, bind: Callable[[Rows], Sequence[Any]]) -> None:
        from ..core.inprocess import Evaluating

        self._bind = bind
        self._stepping = stepping
        self._evaluating = Evaluating(stepping.work)
        self._values = {name: self._evaluating.params[name] for name, _ in stepping.carries}
        self._remembered: dict[int, NDArray[Any]] = {}

    def step(self, rows: Rows) -> Told:
        outputs = self._evaluating.run(self._stepping.bind(self._bind(rows)), self._values)
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
