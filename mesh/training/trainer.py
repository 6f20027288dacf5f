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
from ..util.argument_checks import integer, items, value_text
from ..util.did_you_mean import names_checked
from ..util.missing_names import TRAIN
from ..util.units import counted
from .backward import Gradients, stepped
from .checkpoint import Checkpoints, filled
from .data import Cursor, data_of
from .fit_loop import FitOptions, Run
from .gradient_exchange import memory_size
from .graph_loss import graph_loss
from .progress import Callback, History, Progress
from .step import first_state
from .step_config import Compression, Recipe
from .worker_group import Feed

SHARDS = 8


class DistributedTrainer:
    """Train params on the workers of a mesh, or in this process.

    Parameters
    ----------
    loss : callable or WireGraph
        `loss(params, *batch)` with a batch that is a tuple, else `loss(params, batch)`.  It gives one loss per row, or
        the mean over rows, which costs more where rows do not come out even.  With an argument `key`, it gets a key of
        its own for every step and part.  A graph of (params, *batch), for any number of rows, is a loss as well: it
        gives the loss of each row, or where the batch has targets after what it takes, the model's answer, and the loss
        is their squared error.
    params : pytree of array_like
        What is trained: floats.
    optimizer : Optimiser, optional
        One of `mesh.optim`; Adam with a rate of 1e-3 by default.
    strategy : str or Strategy, optional
        How workers share a step, such as `DataParallel()` or `Pipeline()`.
    accumulate : int, optional
        The number of parts of a batch that are computed one after the other.
    precision : {"f32", "f16", "bf16"}, optional
        The dtype of computations and of what ranks exchange; the params keep theirs.
    clip : float, optional
        The largest global norm of gradients; no limit by default.
    compression : {"f16", "int8"} or TopK, optional
        How gradients are made smaller before ranks exchange them.
    deterministic : bool or int, optional
        True, or the number of shards that every batch has: the weights are then the same to the bit for any number of
        workers of one type of processor.
    bucket_bytes : int, optional
        Bytes of gradients that travel at once.
    seed : int, optional
        The seed of the order of rows, and of the keys that the loss gets.

    Raises
    ------
    InputError
        If an argument is wrong, or two of them exclude each other.

    Notes
    -----
    Mixed precision: Micikevicius et al., 2018 (arXiv 1710.03740).  docs/training.md is the guide.

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
    >>> trainer.fit((x, y), epochs=50, batch_size=4)
    <History: ...>
    >>> trainer.step
    50
    >>> np.round(trainer.params["w"], 1)
    array([1., 2.], dtype=float32)
    """

    @names_checked
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
        """The params as they are now, a pytree of numpy arrays."""
        return self._state["params"]

    @property
    def step(self) -> int:
        """The number of steps that were made."""
        return self._step

    @names_checked
    def distribute(self, mesh: Mesh | AsyncMesh | None) -> DistributedTrainer:
        """Use the workers of a mesh from now on.

        Parameters
        ----------
        mesh : Mesh, AsyncMesh or None
            The mesh; None for this process.  With an AsyncMesh, use the trainer in another thread than its loop's:
            `await asyncio.to_thread(trainer.fit, x)`.

        Returns
        -------
        DistributedTrainer
            This trainer.

        Raises
        ------
        InputError
            If it is no mesh, or the mesh is reproducible and the weights would depend on the number of workers.

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
        >>> with mesh.Mesh.builder().simulate(2).build() as m:
        ...     history = trainer.distribute(m).fit((x, y), epochs=1, batch_size=4)
        >>> len(history.losses)
        1
        """
        if isinstance(mesh, AsyncMesh):
            mesh = for_threads(mesh)
        if mesh is not None and not isinstance(mesh, Mesh):
            raise InputError(f"a trainer uses a Mesh, not a {type(mesh).__name__}", next_step="Build it with build()")
        if mesh is not None and mesh.reproducible:
            self.recipe.check_reproducible(self._strategy)
        self._mesh = mesh
        return self

    @names_checked
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
        """Train for some epochs more, or for some steps.

        Parameters
        ----------
        data : pytree of array_like, or iterable of batches
            Arrays of rows, or handles of them (`Mesh.put`: then only the places of rows are sent), in any pytree but a
            list.  A list, or anything that can be iterated again and again, such as torch's DataLoader, is of batches:
            each a tuple or list of arrays, another pytree of them, or one array.  Arrays may be of any library.
        epochs : int, optional
            How many epochs more; with a checkpoint, how many in all.
        batch_size : int, optional
            Rows of a step, however many workers there are; batches that are given keep their own.
        steps : int, optional
            The largest number of steps.
        shuffle : bool, optional
            Whether every epoch has an order of its own, by the seed.
        drop_last : bool, optional
            Whether to leave out a last batch that is not full.
        checkpoint : str or Path, optional
            A folder of checkpoints.  Training goes on from the newest one there, and writes one after `every` steps, at
            the end, and when there are too few workers.
        every : int, optional
            Steps between two checkpoints.
        keep : int, optional
            How many checkpoints stay in the folder.
        resume : bool, optional
            Whether to go on from the newest checkpoint.
        callbacks : sequence of Callback, optional
            What hears of steps, epochs, checkpoints and workers.
        progress : bool, optional
            Whether to show progress.
        min_nodes : int, optional
            With fewer workers, training waits.
        max_nodes : int, optional
            The largest number of workers that are used.
        copies : str, optional
            The copies of the state that workers keep, as for `Mesh.session`.

        Returns
        -------
        History
            What happened: losses, skipped steps, rows and seconds.

        Raises
        ------
        InputError
            If an argument or the data are wrong, or the state in the folder does not fit.
        StorageError
            If a checkpoint cannot be written, or those that are there cannot be read.
        PlacementError
            If a strategy asks for more workers than there are.
        NodeLost
            If workers die again and again and no step is done.
        ExecuteFailed
            If three steps in a row hold NaN or Inf; it names the worker.

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
        >>> history = trainer.fit((x, y), epochs=2, batch_size=2)
        >>> len(history.losses), history.rows
        (4, 8)
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

    @names_checked
    def forward_backward(self, batch: Any, *, copies: str = "none") -> Gradients:
        """Compute the gradients of the mean loss of a batch, which stay on the workers.

        Parameters
        ----------
        batch : pytree of array_like
            The rows; a list is taken for a tuple.
        copies : str, optional
            The copies of the gradients that workers keep, as for `Mesh.session`.

        Returns
        -------
        Gradients
            The gradients, with the workers that have the params they are of.  Close them, or use them as a context
            manager.

        Raises
        ------
        InputError
            If the batch is wrong, or the trainer is deterministic, compresses gradients or scales the loss.

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
        ...     print(gradients.loss, np.round(gradients.fetch()["w"], 2))
        9.75 [-4.5 -7.5]
        """
        check_copies(copies)
        return Gradients(self.recipe, self._strategy, self._mesh, self.params, batch, copies)

    @names_checked
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

    @names_checked
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
        """Write a checkpoint now.

        Parameters
        ----------
        folder : str or Path
            Where checkpoints are.
        keep : int, optional
            How many checkpoints stay in the folder.

        Returns
        -------
        Path
            The checkpoint's manifest.

        Raises
        ------
        InputError
            If `keep` or the folder is wrong.
        StorageError
            If the disk refuses.

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
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     print(trainer.save(folder).name, trainer.load(folder))
        step-0000000000.json True
        """
        return Checkpoints(folder, keep).save(self._step, self._cursor, self._state, {"seed": self.recipe.seed})

    def load(self, folder: str | Path) -> bool:
        """Go on from the newest checkpoint of a folder, also if it is of an earlier step.

        Parameters
        ----------
        folder : str or Path
            Where checkpoints are.

        Returns
        -------
        bool
            Whether there was one.

        Raises
        ------
        InputError
            If the checkpoint is of other params, another optimiser or precision.
        StorageError
            If the checkpoints that are there cannot be read.

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
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     print(trainer.load(folder))
        False
        """
        return self._resume(Checkpoints(folder), 0)

    def _resume(self, store: Checkpoints, least: int) -> bool:
        checkpoint = store.latest()
        if checkpoint is None or checkpoint.step < least:
            return False
        # one worker exchanges nothing, so what it saved has nothing unsent
        size = memory_size(self.params, self.recipe.compression) if "unsent" in checkpoint.state else 0
        own = {**self._state, "unsent": np.zeros(size, np.float32) if size else None}
        self._state = filled(own, checkpoint.state)
        self._cursor, self._step = checkpoint.cursor, checkpoint.step
        return True


def _shards(deterministic: Any) -> int:
    """The number of shards of every batch; 0 where it does not matter."""
    if deterministic is None or isinstance(deterministic, bool):
        return SHARDS if deterministic else 0
    return integer(deterministic, "deterministic is True, or", 0)


def _check_counts(least: int, **counts: int) -> None:
    for name, count in counts.items():
        if not (isinstance(count, (int, np.integer)) and count >= least):
            raise InputError(f"{name} is an int of at least {least}, not {count!r}")


def _param(path: str, leaf: Any) -> np.ndarray[Any, Any]:
    """A leaf of the params as an array; InputError for what is none, such as a module of torch, or its parameters."""
    what = f"param {path!r} is" if path else "the params are"
    try:
        array = np.asarray(leaf)
    except (TypeError, ValueError, RuntimeError) as error:  # one of torch that requires a gradient, or is on a device
        kind = f"a {type(leaf).__name__} that does not become a numpy array"
        raise InputError(f"{what} {kind}", cause=str(error), next_step=f"Detach it, or: {TRAIN}") from error
    if array.dtype == object:
        raise InputError(f"{what} a {type(leaf).__name__}, not an array", next_step=f"Give a pytree of arrays. {TRAIN}")
    return array


def initial_state(recipe: Recipe, params: Any) -> dict[str, Any]:
    """The first state without ranks, as arrays of this process; InputError if there is nothing that can be trained."""
    named = tree.flatten_with_paths(params)[0]
    if not named:
        raise InputError(
            f"there is nothing to train in {value_text(params)}", next_step=f"Give a pytree of arrays. {TRAIN}"
        )
    for path, leaf in named:
        dtype = _param(path, leaf).dtype
        if dtype.kind not in "fcV":  # V: bf16
            raise InputError(
                f"param {path!r} is {dtype}: only floats can be trained",
                next_step="Convert it with astype('float32'), or let the loss have it without being a param",
            )
        if dtype.kind == "c" and (recipe.shards or recipe.compression or recipe.narrow):
            raise InputError(
                f"param {path!r} is {dtype}: complex gradients are neither narrowed, nor compressed, "
                "nor exchanged by shards",
                next_step="Leave out precision, compression and deterministic, or train both parts as floats",
            )
    state = first_state(recipe, tree.map(np.array, params), 1)
    size = sum(leaf.size for leaf in tree.leaves(state["params"])) if recipe.compression else 0
    return {**state, "unsent": np.zeros(size, np.float32) if size else None}


__all__ = ["DistributedTrainer"]
