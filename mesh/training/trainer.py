"""DistributedTrainer: fit params to data on a mesh, or without one in this process.

    trainer = mesh.DistributedTrainer(loss, params, optimizer=optim.adam(1e-3), strategy=mesh.DataParallel())
    history = trainer.distribute(m).fit((x, y), epochs=10, batch_size=64)

This is the public face; a run itself is `fit_loop.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wire.errors import InputError
from wire.ir.graph import WireGraph
from wire.policy.pipeline_schedules import SCHEDULES
from wire.policy.strategies import Pipeline, Strategy, strategy_of

from .. import tree
from ..client.async_mesh import AsyncMesh
from ..client.mesh import Mesh, for_threads
from ..client.session import check_copies
from ..optim import Optimiser, adam
from ..util.annotation_checks import truth
from ..util.argument_checks import integer, items, said
from ..util.did_you_mean import spelt
from ..util.units import counted
from .backward import Gradients, stepped
from .checkpoint import Checkpoints, filled
from .data import Cursor, data_of
from .fit_loop import FitOptions, Run
from .graph_loss import graph_loss
from .progress import Callback, History, Progress
from .step import first_state
from .step_config import Compression, Recipe
from .worker_group import Feed

SHARDS = 8


class DistributedTrainer:
    """`loss(params, *batch)` with a batch that is a tuple, `loss(params, batch)` with any other pytree.

    It gives one loss per row, or the mean over rows, which costs more where rows do not come out even.  A loss with an
    argument `key` gets a key of its own for every step and part.  `deterministic` is True, or the number of shards that
    every batch has: the weights are then the same to the bit for any number of workers of one type of processor.

    The loss may be a graph of (params, *batch), for any number of rows (`graph_loss.py`): what it gives is the loss of
    each row, or where the batch has targets after what it takes, the model's answer, and the loss their squared error.
    """

    @spelt
    def __init__(
        self,
        loss: Callable[..., Any] | WireGraph,
        params: Any,
        *,
        optimizer: Optimiser | None = None,
        strategy: str | Strategy = "data",
        accumulate: int = 1,
        precision: str = "f32",
        clip: float | None = None,
        compression: Compression = None,
        deterministic: bool | int = False,
        bucket_bytes: int = 4 << 20,
        seed: int = 0,
    ) -> None:
        if isinstance(loss, int | float | np.number):
            raise InputError(
                f"a loss is a function of params and a batch, not {loss!r}",
                next_step=f"A learning rate is the optimiser's: DistributedTrainer(loss, params, optimizer="
                f"optim.sgd({loss!r}))",
            )
        if isinstance(loss, WireGraph):
            loss = graph_loss(loss, params)
        shards = _shards(deterministic)
        integer(seed, "the seed", -(2**63), 2**63)
        self._strategy = strategy if isinstance(strategy, Strategy) else strategy_of(strategy)
        stages = self._strategy if isinstance(self._strategy, Pipeline) else None
        if stages is not None and accumulate != 1:
            raise InputError(
                "a pipeline accumulates over its micro-batches", next_step="Choose Pipeline(micro_batches=...) alone"
            )
        self.recipe = Recipe(
            loss, adam(1e-3) if optimizer is None else optimizer,
            stages.micro_batches if stages else accumulate, precision, clip, compression,
            shards, bucket_bytes, seed, stages is not None, stages is not None and SCHEDULES[stages.schedule].updates,
        )  # fmt: skip
        self._state = initial_state(self.recipe, params)
        self._cursor, self._step = Cursor(), 0
        self._mesh: Mesh | None = None

    def __repr__(self) -> str:
        numbers = counted(sum(leaf.size for leaf in tree.leaves(self.params)), "param")
        where = "this process" if self._mesh is None else repr(self._mesh)
        loss = getattr(self.recipe.loss, "__name__", "a loss")
        return f"<DistributedTrainer: {numbers}, {loss}, {self._strategy.text}, step {self._step}, on {where}>"

    @property
    def params(self) -> Any:
        """The params as they are now, numpy arrays."""
        return self._state["params"]

    @property
    def step(self) -> int:
        """How many steps were made."""
        return self._step

    @spelt
    def distribute(self, mesh: Mesh | AsyncMesh | None) -> DistributedTrainer:
        """Use the workers of a mesh; None: this process.  Returns the trainer.

        With an AsyncMesh use the trainer in another thread than its loop's: await asyncio.to_thread(trainer.fit, x).
        InputError if the mesh is reproducible, and the weights would follow how many workers there are.
        """
        if isinstance(mesh, AsyncMesh):
            mesh = for_threads(mesh)
        if mesh is not None and not isinstance(mesh, Mesh):
            raise InputError(f"a trainer uses a Mesh, not a {type(mesh).__name__}", next_step="Build it with build()")
        if mesh is not None and mesh.reproducible:
            self.recipe.check_reproducible(self._strategy)
        self._mesh = mesh
        return self

    @spelt
    def fit(
        self,
        data: Any,
        *,
        epochs: int = 1,
        batch_size: int = 32,
        steps: int | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        checkpoint: str | Path | None = None,
        every: int = 100,
        keep: int = 3,
        resume: bool = True,
        callbacks: Sequence[Callback] = (),
        progress: bool = False,
        min_nodes: int = 1,
        max_nodes: int | None = None,
        copies: str = "",
    ) -> History:
        """Train for so many epochs more, or `steps` at most; what happened.

        `data` are arrays of rows, or handles of them (`Mesh.put`: then only places are sent), in any pytree but a list.
        A list, or what else can be iterated again and again, such as torch's DataLoader, is of batches: each a tuple or
        list of arrays, another pytree of them, or one array.  Arrays are those of any library.  A step takes
        `batch_size` rows, whoever is there.

        With a folder `checkpoint` it goes on from the newest one there up to `epochs` in all, and writes one after
        `every` steps, at the end, and when there are fewer than `min_nodes` workers, for which it waits.  `copies` are
        those of the state on workers, as `session` has them.

        ExecuteFailed names the worker if three steps in a row hold NaN or Inf.
        """
        _check_counts(1, batch_size=batch_size, every=every, keep=keep, min_nodes=min_nodes)
        _check_counts(0, epochs=epochs, steps=0 if steps is None else steps)
        _check_counts(1, max_nodes=min_nodes if max_nodes is None else max_nodes)
        if max_nodes is not None and max_nodes < min_nodes:
            raise InputError(f"max_nodes={max_nodes} is less than min_nodes={min_nodes}")
        check_copies(copies)
        for name, wanted in (
            ("shuffle", shuffle),
            ("drop_last", drop_last),
            ("progress", progress),
            ("resume", resume),
        ):
            truth(wanted, f"{name} of fit")
        for callback in items(callbacks, "of callbacks"):
            if not isinstance(callback, Callback):
                raise InputError(f"{callback!r} is no callback", next_step="Derive a class from mesh.training.Callback")
        data = data_of(data, batch_size, shuffle, self.recipe.seed, drop_last)
        store = Checkpoints(checkpoint, keep) if checkpoint is not None else None
        if store is not None and resume:
            self._resume(store, self._step)
        if data.steps is not None and self._cursor.batch >= data.steps:  # data before these had more batches
            self._cursor = Cursor(self._cursor.epoch + 1)
        until = epochs if store is not None else self._cursor.epoch + epochs
        total = steps
        if steps is None and data.steps is not None:
            total = max(0, (until - self._cursor.epoch) * data.steps - self._cursor.batch)
        shown = [Progress(total)] if progress else []
        options = FitOptions(
            self._strategy, until, steps, min_nodes, max_nodes, copies, store, every, (*callbacks, *shown)
        )  # fmt: skip
        run = Run(Feed(self.recipe, data), self._mesh, options, self._state, self._cursor, self._step)
        try:
            return run.go()
        finally:
            self._state, self._cursor, self._step = run.state, run.cursor, run.number
            for bar in shown:
                bar.close()

    @spelt
    def forward_backward(self, batch: Any, *, copies: str = "none") -> Gradients:
        """The gradients of the mean loss of a batch, which stay with the workers that have the params that they are of,
        stages of a pipeline for example; the params stay as they are.  Close it, or use it as a context manager."""
        check_copies(copies)
        return Gradients(self.recipe, self._strategy, self._mesh, self.params, batch, copies)

    @spelt
    def step_with(self, gradients: Any) -> None:
        """Change the params by one step of the optimiser.

        The gradients are fetched, since the trainer holds the params and the optimiser's state in this process.

        Parameters
        ----------
        gradients : Gradients or pytree of array
            What `forward_backward` returned, or gradients with the structure of the params.

        Raises
        ------
        InputError
            If a gradient is missing, or has another shape than its param.
        ExecuteFailed
            If the gradients hold NaN or Inf, which changes nothing.

        Examples
        --------
        >>> import numpy as np
        >>> import mesh
        >>> trainer = mesh.DistributedTrainer(lambda w, x: (w * x) ** 2, np.float32(3), optimizer=mesh.optim.sgd(0.1))
        >>> with trainer.forward_backward((np.ones(4, np.float32),)) as gradients:
        ...     trainer.step_with(gradients)
        >>> trainer.params, trainer.step
        (array(2.4, dtype=float32), 1)
        """
        given = gradients.fetch() if isinstance(gradients, Gradients) else gradients
        self._state = stepped(self.recipe, self._state, given)
        self._step += 1

    @spelt
    def fit_distributed(self, data: Any, targets: Any, **options: Any) -> History:
        """Train on data and targets: another name of `fit((data, targets), ...)`.

        Parameters
        ----------
        data : array
            The rows.
        targets : array
            A target for each row.
        **options
            Those of `fit`.

        Returns
        -------
        History
            What happened.

        Raises
        ------
        InputError
            If a graph is given, which is an argument of the trainer, or as `fit` raises it.

        Examples
        --------
        >>> import numpy as np
        >>> import mesh
        >>> x = np.ones((4, 1), np.float32)
        >>> graph = mesh.trace(lambda w, x: x @ w, np.zeros((1, 1), np.float32), x)
        >>> trainer = mesh.DistributedTrainer(graph, np.zeros((1, 1), np.float32), optimizer=mesh.optim.sgd(0.25))
        >>> trainer.fit_distributed(x, x, epochs=2).losses
        [1.0, 0.25]
        """
        if isinstance(data, WireGraph):
            raise InputError(
                "the graph is the trainer's", next_step="Write DistributedTrainer(graph, params).fit((data, targets))"
            )
        return self.fit((data, targets), **options)

    def save(self, folder: str | Path, keep: int = 3) -> Path:
        """Write a checkpoint now."""
        return Checkpoints(folder, keep).save(self._step, self._cursor, self._state, {"seed": self.recipe.seed})

    def load(self, folder: str | Path) -> bool:
        """Go on from the newest checkpoint of a folder, also where it is of an earlier step; whether there was one."""
        return self._resume(Checkpoints(folder), 0)

    def _resume(self, store: Checkpoints, least: int) -> bool:
        checkpoint = store.latest()
        if checkpoint is None or checkpoint.step < least:
            return False
        self._state = filled(self._state, checkpoint.state)
        self._cursor, self._step = checkpoint.cursor, checkpoint.step
        return True


def _shards(deterministic: Any) -> int:
    """How many every batch has; 0 where it does not matter."""
    if deterministic is None or isinstance(deterministic, bool):
        return SHARDS if deterministic else 0
    return integer(deterministic, "deterministic is True, or", 0)


def _check_counts(least: int, **counts: int) -> None:
    for name, count in counts.items():
        if not (isinstance(count, (int, np.integer)) and count >= least):
            raise InputError(f"{name} is an int of at least {least}, not {count!r}")


def initial_state(recipe: Recipe, params: Any) -> dict[str, Any]:
    """The first state without ranks, as arrays of this process."""
    named = tree.flatten_with_paths(params)[0]
    if not named:
        raise InputError(f"there is nothing to train in {said(params)}", next_step="Give a pytree of arrays")
    for path, leaf in named:
        if np.asarray(leaf).dtype.kind not in "fcV":  # V: bf16
            raise InputError(
                f"param {path!r} is {np.asarray(leaf).dtype}: only floats can be trained",
                next_step="Convert it with astype('float32'), or let the loss have it without being a param",
            )
    state = first_state(recipe, tree.map(np.array, params), 1)
    size = sum(leaf.size for leaf in tree.leaves(state["params"])) if recipe.compression else 0
    return {**state, "unsent": np.zeros(size, np.float32) if size else None}


__all__ = ["DistributedTrainer"]
