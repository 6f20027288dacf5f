"""Request runner: one model's requests, batched, several batches in flight.

It performs what `request_batcher.py` decides.  A batch is padded to a power of two with rows of its own, so that few
graphs serve all; rows must not depend on each other.  What befalls the workers is the mesh's matter: a call goes on
elsewhere.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.errors import Cancelled, InputError, MeshError, QueueFull

from .. import tree
from ..client.async_mesh import AsyncMesh
from ..core.backend import Started, Work
from ..core.call_arguments import split_arguments
from ..models.model import GRAPHS_COUNT, Model
from ..util.units import counted
from ..util.user_code import called_in_thread
from .continuous_batching import bucket
from .request_batcher import Batcher, Waiting
from .settings import Options

UNDER_WAY = 4  # batches, so that every stage has one
WORKS_MAX = GRAPHS_COUNT  # for whose shapes workers keep what they made; those of a graph that comes again, it again
Rows = dict[str, NDArray[Any]]


@dataclass(slots=True)
class _Request:
    inputs: Any
    rows: int
    result: asyncio.Future[Any]


class RequestRunner:
    """One model's queue, on the mesh's loop.  `batched` False computes every request as it is."""

    def __init__(self, mesh: AsyncMesh, model: Model | Callable[..., Any], options: Options, batched: bool) -> None:
        self._mesh = mesh
        self._model = model
        self._batched = batched
        self._function = mesh.function(model, mesh.options(options.strategy, options.mode, options.copies))
        wait_s = options.max_wait_ms / 1e3
        self._batcher = Batcher(int(options.max_batch), wait_s, int(options.queue), UNDER_WAY)
        self._numbers = itertools.count()
        self._requests: dict[int, _Request] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._works: OrderedDict[bytes, Work] = OrderedDict()  # what was asked of the workers last, by graph
        self._works_max = WORKS_MAX
        self._closed = False
        self.batches = 0

    def ask(self, args: Sequence[Any]) -> asyncio.Future[Any]:
        """Begin a request: a future of what the model makes of it; cancel it to want it no more.

        QueueFull at once if too many wait, InputError for arguments that do not fit.
        """
        if self._closed:
            raise Cancelled("the model was unloaded")
        if self._batcher.full:
            waiting = len(self._batcher.waiting)
            raise QueueFull(f"{waiting} requests wait already", next_step="Try again when some of them are done")
        inputs, rows, kind = self._taken(args)
        number = next(self._numbers)
        result: asyncio.Future[Any] = self._loop.create_future()
        result.add_done_callback(lambda _: self._over(number))
        self._requests[number] = _Request(inputs, rows, result)
        self._batcher.add(Waiting(number, kind if self._batched else number, rows, self._loop.time()))
        self._go()
        return result

    @property
    def waiting(self) -> int:
        """Requests that are in no batch yet."""
        return len(self._batcher.waiting)

    async def close(self) -> None:
        """Cancel what waits and what runs, and free what the workers keep."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for request in list(self._requests.values()):
            if not request.result.done():
                request.result.set_exception(Cancelled("the model was unloaded"))
                request.result.exception()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        while self._works:
            self._forget_oldest()

    # -- helpers

    def _taken(self, args: Sequence[Any]) -> tuple[Any, int, Any]:
        """A copy of the arguments, the number of their rows, and what others must share to go with them."""
        if isinstance(self._model, Model):
            inputs: Any = {name: np.array(value) for name, value in self._model.given(*split_arguments(args)).items()}
        else:
            self._check_fits(args)
            inputs = tree.map(np.array, tuple(args))
        leaves, structure = tree.flatten_with_paths(inputs)
        for path, leaf in leaves:
            if not isinstance(self._model, Model) and leaf.dtype.kind in "OSUMm":
                raise InputError(f"the input {path or 'given'!r} is no tensor: numpy makes {leaf.dtype} of it")
        if not self._batched:
            return inputs, self._batcher.rows_max, None  # a batch by itself, which nothing is waited for
        shared = (
            [spec.name for spec in self._model.defaults if spec.name in inputs]
            if isinstance(self._model, Model)
            else ()
        )
        if shared:
            raise InputError(
                f"{shared[0]!r} is no row of a batch: all rows share what is in the model's file",
                next_step="Load the model with batched=False",
            )
        flat = next((path for path, leaf in leaves if not np.ndim(leaf)), None)
        sizes = {np.shape(leaf)[0] for _, leaf in leaves if np.ndim(leaf)}
        if flat is not None or len(sizes) != 1 or min(sizes) < 1:
            have = "there is none" if not leaves else f"they have {sorted(sizes)} rows"
            raise InputError(
                "the first axis of every input is the batch, and "
                + (have if flat is None else f"{flat or 'what was given'!r} is a scalar"),
                next_step="Load the model with batched=False if it has no batch",
            )
        return inputs, sizes.pop(), (structure, tuple([(leaf.dtype, leaf.shape[1:]) for _, leaf in leaves]))

    def _check_fits(self, args: Sequence[Any]) -> None:
        """Raise InputError if these are more or fewer arguments than the function takes."""
        try:
            signature = inspect.signature(self._model)
        except (TypeError, ValueError):  # a builtin without one
            return
        try:
            places, named = split_arguments(args)
            signature.bind(*places, **named)
        except TypeError as error:
            raise InputError(
                f"the function takes {signature}, got {counted(len(args), 'input')}", cause=str(error),
                next_step="Give infer one input for each",
            ) from None  # fmt: skip

    def _over(self, number: int) -> None:
        """A request is answered, or nobody waits for it any more."""
        self._requests.pop(number, None)
        if self._batcher.leave(number):
            self._go()

    def _go(self) -> None:
        """Begin what is due, and see when the next batch is."""
        while batch := self._batcher.take(self._loop.time()):
            task = self._loop.create_task(self._compute([self._requests[waiting.number] for waiting in batch]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if self._timer is not None:
            self._timer.cancel()
        due = self._batcher.next_deadline()
        self._timer = None if due is None or self._closed else self._loop.call_at(due, self._go)

    async def _compute(self, batch: list[_Request]) -> None:
        started: Started | None = None
        wanted = len(batch)

        def unwanted(_: object) -> None:
            nonlocal wanted
            wanted -= 1
            if not wanted and started is not None:
                started.cancel()

        for request in batch:
            request.result.add_done_callback(unwanted)
        try:
            self.batches += 1
            args = self._together(batch)
            form, inputs, work = await called_in_thread(self._function.bind, args)
            if wanted:
                self._asks(work)
                started = self._mesh.start(form, inputs, work)
                self._share(batch, form.unbind(await started.outputs))
        except asyncio.CancelledError:
            if started is not None:
                started.cancel()
            if self._closed:
                raise
            _fail(batch, Cancelled("the mesh was closed"))  # the call was cancelled by whoever closed it
        except GeneratorExit:
            raise
        except BaseException as error:  # it belongs to those who wait, also where a function exits its thread
            _fail(batch, error)
        finally:
            self._batcher.done()
            if not self._closed:
                self._go()

    def _asks(self, work: Work) -> None:
        """Note what is asked of the workers, who need not keep what was not asked of them for long."""
        self._works[work.graph.hash] = work
        self._works.move_to_end(work.graph.hash)
        if len(self._works) > self._works_max:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        """A call of it that is in flight ends first."""
        self._mesh.forget(self._works.popitem(last=False)[1])

    def _together(self, batch: list[_Request]) -> tuple[Any, ...]:
        """The arguments of all, padded with the last row."""
        if self._batched:
            rows = sum(request.rows for request in batch)
            missing = bucket(rows) - rows
            inputs = tree.map(lambda *leaves: _joined(leaves, missing), *(request.inputs for request in batch))
        else:
            inputs = batch[0].inputs
        return (inputs,) if isinstance(self._model, Model) else tuple(inputs)

    def _share(self, batch: list[_Request], outputs: Any) -> None:
        """Give everybody their rows."""
        if not self._batched:
            _give(batch[0], outputs)
            return
        rows = bucket(sum(request.rows for request in batch))
        if any(np.ndim(leaf) == 0 or np.shape(leaf)[0] != rows for leaf in tree.leaves(outputs)):
            raise InputError(
                "an output has no row per row of the inputs", next_step="Load the model with batched=False"
            )
        first = 0
        for request in batch:
            mine = slice(first, first + request.rows)
            _give(request, tree.map(lambda leaf, mine=mine: np.array(leaf[mine]), outputs))
            first += request.rows


def is_batched(model: Model) -> bool:
    """Whether the first axis of all inputs is one free dimension: rows that may be any number."""
    if any(spec.static or not spec.shape for spec in model.inputs):
        return False
    first = {spec.shape[0] for spec in model.inputs}
    return len(first) == 1 and isinstance(first.pop(), str)


def _joined(leaves: Sequence[NDArray[Any]], missing: int) -> NDArray[Any]:
    last = leaves[-1][-1:]
    return np.concatenate([*leaves, *([last] * missing)]) if missing or len(leaves) > 1 else leaves[0]


def _give(request: _Request, value: Any) -> None:
    if not request.result.done():
        request.result.set_result(value)


def _fail(batch: list[_Request], error: BaseException) -> None:
    for request in batch:
        if not request.result.done():
            request.result.set_exception(error.copy() if isinstance(error, MeshError) else error)
            request.result.exception()  # a request that nobody waits for may fail without a word
