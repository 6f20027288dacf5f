"""Backward: the gradients of a batch, which stay with whoever has the params that they are of.

    with trainer.forward_backward((x, y)) as gradients:
        gradients.loss, gradients.owners        # which workers have the gradient of which param
        gradients.add((x, y))                   # those of another batch come to them
        values = gradients.fetch()              # and only now they travel
        trainer.step_with(gradients)            # a step of the optimiser

It is a session whose state are params and gradients, and whose step changes the latter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any

import numpy as np

from wire.errors import ExecuteFailed, InputError
from wire.policy.pipeline_schedules import SCHEDULES
from wire.policy.strategies import DataParallel, DeviceMap, Pipeline, Split, Strategy

from .. import numpy as mnp
from .. import tree
from ..client.mesh import Mesh
from ..core.array import Array
from ..core.backend import Work
from ..functions.step_trace import Stepping
from ..numpy.promotion import asarray
from ..tracing.trace import trace_full
from ..util.annotation_checks import checked
from ..util.units import counted
from .data import Cursor, Rows, Shares, batch_of, padded, rows_of
from .gradients import finite, in_turn, interleaved, of_rows, step_key
from .layer_placement import place_layers
from .step import updated
from .step_config import Recipe
from .worker_group import LocalGroup, SessionGroup, WorkerGroup, live_workers, stages_for

Step = Callable[..., tuple[Any, Any]]


def gradient_step(recipe: Recipe, whole: bool, rows_apart: bool) -> Step:
    """The step that adds a batch's gradients to those there are, or replaces them where `keeps` is 0."""

    def step(state: Any, batch: Any, weights: Array, keeps: Array) -> tuple[Any, Any]:
        def compute(part: Any, number: Any) -> Any:
            own, counted = part
            key = step_key(recipe, np.int32(0), number)
            return of_rows(recipe, state["params"], own, counted, key, None, rows_apart)

        accumulated = partial(interleaved) if whole else partial(in_turn, recipe)
        loss, gradients = accumulated(recipe.accumulate, compute, (batch, weights))

        def summed(new: Array, old: Array) -> Array:
            return mnp.where(keeps > 0, old + new, new)

        return {**state, "gradients": tree.map(summed, gradients, state["gradients"])}, loss

    return step


def stepped(recipe: Recipe, state: Mapping[str, Any], gradients: Any) -> dict[str, Any]:
    """Return a trainer's state after one step of the optimiser with these gradients, computed in this process.

    InputError if they are not like the params, ExecuteFailed if they hold NaN or Inf.
    """
    from ..core.inprocess import evaluate

    state, gradients = dict(state), _like_params(gradients, state["params"])

    def step(state: Any, gradients: Any) -> tuple[Any, Any]:
        flags = finite((asarray(np.float32(0)), gradients))[None]
        return updated(recipe, state, state, asarray(np.float32(0)), gradients, flags)

    traced = trace_full(step, state, gradients)
    bound = traced.bind(state, gradients)
    following, report = traced.unflatten(evaluate(Work(traced.graph, bound.params, "single"), bound.inputs))
    if not report["good"]:
        raise ExecuteFailed("the gradients hold NaN or Inf; they changed nothing", next_step="Look at the data")
    return dict(following)


def _like_params(gradients: Any, params: Any) -> Any:
    """Return gradients in the order of the params; InputError naming the first that is missing or of another shape."""
    by_path = dict(tree.flatten_with_paths(gradients)[0])
    leaves = []
    for path, param in tree.flatten_with_paths(params)[0]:
        if path not in by_path or np.shape(by_path[path]) != param.shape:
            what = f"has the shape {np.shape(by_path[path])}, not {param.shape}" if path in by_path else "is missing"
            raise InputError(
                f"the gradient of {path or 'the params'!r} {what}",
                next_step="Give what forward_backward gave, or a tree like trainer.params",
            )
        leaves.append(np.asarray(by_path[path], param.dtype))
    return tree.unflatten(tree.flatten(params)[1], leaves)


class Gradients:
    """Gradients of a batch, which stay on the workers that have the params they are of.

    `DistributedTrainer.forward_backward` makes them.  Close them, or use them as a context manager, to free what the
    workers hold.  `loss` is the mean over the rows of the last batch.

    Parameters
    ----------
    recipe : Recipe
        The trainer's loss and how it is computed.
    strategy : Strategy
        How workers share the computation.
    mesh : Mesh or None
        The mesh; None for this process.
    params : pytree of array_like
        The params.
    batch : pytree of array_like
        The rows.
    copies : str
        The copies of the gradients that workers keep.

    Raises
    ------
    InputError
        If the batch is wrong, or the recipe has shards, compression or a scaled loss.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> from mesh import optim
    >>> def loss(params, x, y):
    ...     return (x @ params["w"] - y) ** 2
    >>> params = {"w": np.zeros(2, np.float32)}
    >>> x = np.array([[1, 0], [0, 1], [1, 1], [1, 2]], np.float32)
    >>> y = np.array([1, 2, 3, 5], np.float32)
    >>> trainer = mesh.DistributedTrainer(loss, params, optimizer=optim.sgd(0.1))
    >>> with trainer.forward_backward((x, y)) as gradients:
    ...     print(gradients.loss)
    ...     print(gradients.add((x, y)))
    ...     print(np.round(gradients.fetch()["w"], 2))
    9.75
    9.75
    [ -9. -15.]
    """

    @checked
    def __init__(
        self, recipe: Recipe, strategy: Strategy, mesh: Mesh | None, params: Any, batch: Any, copies: str
    ) -> None:
        if recipe.shards or recipe.compression or recipe.scales:
            raise InputError(
                "gradients that stay are sums as they are: neither of shards, nor compressed, nor of a scaled loss",
                next_step="Leave out deterministic, compression and precision='f16'",
            )
        batch = batch_of(batch)
        self._rows = rows_of(batch)
        self._shares = Shares.of(recipe, 1, self._rows)
        workers = live_workers(mesh)
        text = "single" if not workers else _text_of(strategy, workers)
        whole = isinstance(strategy, Split) and text != "single"
        state = {"params": params, "gradients": tree.map(lambda leaf: np.zeros_like(np.asarray(leaf)), params)}
        self._arguments = partial(_arguments, self._shares)
        first = self._arguments(batch, 0)
        stepping = Stepping(gradient_step(recipe, whole, self._shares.pads(self._rows)), state, first, text)
        self._paths = stepping.paths
        if isinstance(strategy, DeviceMap) and workers:
            place_layers(stepping, strategy)
        if workers:
            assert mesh is not None
            opened = mesh.open_session(stepping, copies, 10)
            self._group: WorkerGroup = SessionGroup(opened, False, lambda arguments: opened.step(*arguments))
        else:
            self._group = LocalGroup(stepping, tuple)
        self.loss = self._step(first)

    def __repr__(self) -> str:
        return f"<Gradients: of {counted(self._rows, 'row')}, loss {self.loss:.4g}>"

    @property
    def owners(self) -> Mapping[str, tuple[str, ...]]:
        """The names of the workers that have each param's gradient, by the param's path; empty if not known."""
        plan = self._group.plan
        if plan is None:
            return {}
        names = {worker.node: worker.name for worker in plan.workers}
        owners: dict[str, set[str]] = {}
        for piece, nodes in plan.owners.items():
            root, _, path = self._paths[piece.name].partition("/")
            if root == "gradients":
                owners.setdefault(path, set()).update(names[node] for node in nodes)
        return {path: tuple(sorted(mine)) for path, mine in sorted(owners.items())}

    def add(self, batch: Any) -> float:
        """Add the gradients of another batch.

        Parameters
        ----------
        batch : pytree of array_like
            At most as many rows as the first batch had.

        Returns
        -------
        float
            The mean of the batch's loss.

        Raises
        ------
        InputError
            If the batch is wrong or has more rows.
        """
        batch = batch_of(batch)
        if rows_of(batch) > self._rows:
            raise InputError(f"a batch of {rows_of(batch)} rows comes after one of {self._rows}")
        self.loss = self._step(self._arguments(batch, 1))
        return self.loss

    def fetch(self) -> Any:
        """Fetch the gradients from the workers.

        Returns
        -------
        pytree of ndarray
            The sums over all batches, like the params.

        Raises
        ------
        NodeLost
            If the workers that have them died.
        """
        return self._group.state()["gradients"]

    def close(self) -> None:
        """Free the gradients on the workers."""
        self._group.close()

    def __enter__(self) -> Gradients:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _step(self, arguments: Any) -> float:
        return float(self._group.step(arguments).result())


def _arguments(shares: Shares, batch: Any, keeps: int) -> tuple[Any, Any, Any]:
    rows, weights = padded(Rows(batch, rows_of(batch), Cursor()), shares)
    return rows, weights, np.int32(keeps)


def _text_of(strategy: Strategy, workers: int) -> str:
    """The strategy of a session on this many workers; no weights change here, so no schedule changes them."""
    if isinstance(strategy, Pipeline):
        order = "1f1b" if SCHEDULES[strategy.schedule].updates else strategy.schedule
        return stages_for(replace(strategy, schedule=order), workers, False)
    if isinstance(strategy, DataParallel) and not strategy.ranks and workers == 1:
        return "single"
    return strategy.text
