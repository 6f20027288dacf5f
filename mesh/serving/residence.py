"""Residence: a served model on the workers, while it is asked for.

It performs what `model_lifecycle.py` decides: it loads the model when a request comes, has requests wait for that, and
unloads the model when its time is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum

from wire.deadlines import MODEL_LOADING
from wire.errors import Cancelled
from wire.system.steady_log import steady_logger
from wire.system.tasks import to_the_end
from wire.units import time_text

from .api_error import ApiError
from .model_lifecycle import Do, ModelLifecycle, Stage

log = steady_logger("graph_mesh.serving")

RETRY_S = 10  # what a client is asked to wait where a model takes long to be loaded


async def _nothing() -> None:
    return


class Keep(Enum):
    """How long a model stays after a request that does not say so."""

    AS_EVER = "as ever"


class Stay:
    """A request's share in a model being there; `end` gives it up, once."""

    def __init__(self, residence: Residence, keep_s: float | Keep | None) -> None:
        self._residence = residence
        self._keep_s = residence.keep_s if isinstance(keep_s, Keep) else keep_s
        self._pinned = keep_s is None
        self._over = False

    async def ready(self) -> None:
        """Wait until the model is there; ApiError 503 where that takes too long, else the error of loading it."""
        await self._residence.ready()

    def end(self) -> None:
        if not self._over:
            self._over = True
            self._residence.over(self._keep_s, self._pinned)


class Residence:
    """One model, on a loop.  `load` and `unload` are awaited one after the other, never both."""

    def __init__(
        self, name: str, load: Callable[[], Awaitable[None]], unload: Callable[[], Awaitable[None]],
        keep_s: float | None = None, wait_s: float = MODEL_LOADING.seconds,
    ) -> None:  # fmt: skip
        self.name, self._load, self._unload, self._wait_s = name, load, unload, wait_s
        self._lifecycle = ModelLifecycle(keep_s)
        self._loop = asyncio.get_running_loop()
        self._waiting: set[asyncio.Future[None]] = set()
        self._work: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False
        self._ended = asyncio.Event()

    @property
    def keep_s(self) -> float | None:
        """How long the model stays after a request that does not say so."""
        return self._lifecycle.keep_s

    @property
    def there(self) -> bool:
        """Whether the model is on the workers."""
        return self._lifecycle.stage is Stage.IN

    @property
    def left_s(self) -> float | None:
        """Seconds until it goes if nobody asks; None if it does not."""
        due_s = self._lifecycle.due_s
        if due_s is None:
            return self.keep_s if self._lifecycle.asked else None
        return max(due_s - self._loop.time(), 0.0)

    def enter(self, keep_s: float | Keep | None = Keep.AS_EVER) -> Stay:
        """A request comes, after which the model is to stay for `keep_s`; None: as long as the server."""
        self._idle.clear()
        self._do(self._lifecycle.ask())
        return Stay(self, keep_s)

    async def ready(self) -> None:
        """Wait until the model is there; see `Stay`."""
        if self._closed:
            raise self._unloaded_error()
        if self.there:
            return
        self._do(self._lifecycle.want())  # a load that others waited for may have failed
        future = self._loop.create_future()
        self._waiting.add(future)
        try:
            async with asyncio.timeout(self._wait_s):
                await future
        except TimeoutError:
            reason = f"the model {self.name!r} is being loaded for more than {time_text(self._wait_s)}"
            raise ApiError(
                503, f"{reason}: try again in a while", code="model_loading", param="model", retry_after_s=RETRY_S
            ) from None
        finally:
            self._waiting.discard(future)

    def over(self, keep_s: float | None, pinned: bool = False) -> None:
        """A request is over; a model that is `pinned` makes way for no other."""
        self._do(self._lifecycle.over(self._loop.time(), keep_s, pinned))
        if not self._lifecycle.asked:
            self._idle.set()

    @property
    def used_s(self) -> float:
        """The time at which the last request was over, on the loop's clock."""
        return self._lifecycle.used_s

    @property
    def pinned(self) -> bool:
        """Whether the last request said that the model stays, whatever else is asked for."""
        return self._lifecycle.pinned

    @property
    def stays(self) -> str:
        """The reason that the model cannot make way for another one, "" if it can."""
        if self._lifecycle.stage is Stage.LOADING:
            return "is being loaded"
        if self._lifecycle.asked:
            return "answers a request"
        return "was asked to stay" if self.pinned else ""

    async def make_way(self) -> None:
        """Unload the model if nobody asks for it and it may go, and wait until that is done; one that is being closed
        goes anyhow."""
        if self._closed:
            await self._ended.wait()
            return
        self._do(self._lifecycle.make_way())
        if self._lifecycle.stage is Stage.LEAVING and self._work is not None:
            await asyncio.wait([self._work])

    async def drained(self) -> None:
        """Wait until no request is left."""
        await self._idle.wait()

    async def close(self) -> None:
        """Unload the model for good, whoever is cancelled meanwhile; who waits for it gets Cancelled."""
        await to_the_end(self._end())

    async def _end(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._tell(self._unloaded_error())
        try:
            if self._work is not None:
                self._work.cancel()
                await asyncio.gather(self._work, return_exceptions=True)
                self._work = None  # the traceback of a cancelled task refers to this
            await self._unload()
        finally:
            self._load = self._unload = _nothing  # their owner refers to this: it would be a reference cycle
            self._ended.set()

    def _do(self, what: Do) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._closed:
            return
        if what is not Do.NOTHING:
            self._work = self._loop.create_task(self._loading() if what is Do.LOAD else self._unloading())
        elif self._lifecycle.due_s is not None and self.there:
            self._timer = self._loop.call_at(self._lifecycle.due_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._do(self._lifecycle.tick(self._loop.time()))

    async def _loading(self) -> None:
        try:
            await self._load()
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as fault:  # it belongs to whoever waits; a panic of a library is no Exception
            error = fault if isinstance(fault, Exception) else RuntimeError(repr(fault))
            log.info("%s could not be loaded: %s", self.name, error)
            self._tell(error)
            self._do(self._lifecycle.failed())
        else:
            log.info("%s is loaded", self.name)
            self._tell(None)
            self._do(self._lifecycle.loaded(self._loop.time()))

    async def _unloading(self) -> None:
        try:
            await self._unload()
        except Exception:  # whoever asks next has it loaded anew
            log.exception("%s could not be unloaded", self.name)
        log.info("%s is unloaded", self.name)
        self._do(self._lifecycle.unloaded())

    def _unloaded_error(self) -> Cancelled:
        return Cancelled(f"the model {self.name!r} was unloaded")

    def _tell(self, error: Exception | None) -> None:
        for future in self._waiting:
            if future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)
