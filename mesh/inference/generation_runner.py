"""Generation runner: a causal model that goes on with texts, many at once, on a mesh or in this process.

It performs what `continuous_batching.py` decides: a session holds the keys and values on the workers
(`kv_cache_step.py`), steps are asked for ahead, and what they choose goes to the streams.  A session whose state died
with a worker is opened anew, and the texts are read again.  A pool that turns out not to fit the workers stays as large
as it was.  A batch with a drafter (`drafting.py`) tells it what comes, and asks it before each step what to check.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from wire.errors import Cancelled, InputError, MeshError, NodeLost, NoSuchDevice, OutOfMemory, PlacementError, QueueFull
from wire.policy.strategies import DeviceMap, strategy_of
from wire.system.memory import default_budget
from wire.system.tasks import as_error, isolated, to_the_end

from ..client.async_mesh import AsyncMesh
from ..client.plan_preview import PlanPreview
from ..client.session import AsyncSession
from ..core.array import handle_array
from ..functions.step_trace import Stepping
from ..models.decoder import Text, table_of
from ..models.model import Model
from ..util.units import counted, size_text
from ..util.user_code import called_in_thread
from . import kv_cache_step, logit_adjustment, sampling
from .continuous_batching import PAGES_MIN, Carried, ChosenToken, Feeds, Guide, Slots, TextRequest, bucket
from .kv_pages import PAGE, pages_for
from .layer_placement import experts_together, with_state
from .logit_adjustment import LogitAdjustment
from .replica_router import Load
from .settings import GREEDY, Room, Sampling, by_rows, count, tokens_of
from .speculation import CHECK, PLAIN
from .steady_guide import SteadyGuide

if TYPE_CHECKING:
    from .drafting import Drafter

TOKENS_MAX = 128  # new ones where nobody says how many
AHEAD = 3  # steps asked for before the first of them is answered
REBUILDS_MAX = 20  # sessions lost without a token between them
ROOMS_MAX = 8  # whose steps are kept
PAGES_MAX = 1 << 20  # of any pool: their rows are counted in 32 bits
KV_SHARE = 4  # keys and values take one part in so many of a worker's memory, unless a budget is given
KV_KEPT_BYTES = 64 << 20  # of a pool that grows before it forgets what was read: to move one so large takes no time


Heard = Callable[["ChosenToken | BaseException | None"], None]
"""What is called with each token, with None when the text is over, or with its error."""


class TokenStream:
    """The tokens of one text, one by one as they come: an async iterator of ints.

    `reason` says how it ended: "stop" at an end token, "length" with all tokens that were asked for, "cancelled",
    "failed" where its guide could not go on.

    Parameters
    ----------
    number : int
        The text's number in its batch.
    generating : Generating
        The batch.

    Examples
    --------
    >>> from mesh.inference import Generating
    >>> from pathlib import Path
    >>> import numpy as np
    >>> import mesh
    >>> from mesh.models.decoder import Decoder, Text
    >>> following = {"rows": np.roll(np.eye(5, dtype=np.float32), 1, axis=1)}  # token 1 follows 0, and so on
    >>> embed, head = lambda params, ids, at: params["rows"][ids], lambda params, x: x
    >>> decoder = Decoder(embed, print, head, (), 1, 1, None, "rows")
    >>> model = mesh.Model("count", print, [], [], following, Text(decoder, Path(), ends=(4,)))
    >>> import asyncio
    >>> async def main():
    ...     async with await mesh.Mesh.builder().build_async() as m:
    ...         generating = Generating(m, model)
    ...         stream = generating.begin([0], tokens_max=3)
    ...         print((await stream.next()).token, [token async for token in stream], stream.reason)
    ...         stream.cancel()
    ...         await generating.close()
    >>> asyncio.run(main())
    1 [2, 3] length
    """

    def __init__(self, number: int, generating: Generating) -> None:
        self.reason = ""
        self._number = number
        self._generating = generating
        self._guide: SteadyGuide | None = None
        self._ready: deque[ChosenToken] = deque()
        self._error: BaseException | None = None
        self._news = asyncio.Event()

    def __repr__(self) -> str:
        ended = self.reason or ("failed" if self._error is not None else "running")
        return f"<TokenStream: {ended}, {counted(len(self._ready), 'token')} ready>"

    def __aiter__(self) -> AsyncIterator[int]:
        return self

    async def __anext__(self) -> int:
        token = await self.next()
        if token is None:
            raise StopAsyncIteration
        return token.token

    async def next(self) -> ChosenToken | None:
        """Wait for the next token.

        Returns
        -------
        ChosenToken or None
            The token with its score, None after the last one.

        Raises
        ------
        NodeLost
            If the workers died again and again.
        Cancelled
            If the batch was closed.
        Exception
            What the text's guide raised.
        """
        while not self._ready:
            if self._error is not None:
                raise self._error
            if self.reason:
                return None
            self._news.clear()
            await self._news.wait()
        return self._ready.popleft()

    def cancel(self) -> None:
        """Stop the text; its slot is another text's from the next step on."""
        if not self.reason and self._error is None:
            self._generating.leave(self._number)
            self._end("cancelled")

    # -- what Generating tells

    def _tell(self, token: ChosenToken) -> None:
        self._ready.append(token)
        self._news.set()

    def _end(self, reason: str) -> None:
        self.reason = reason
        self._news.set()

    def _fail(self, error: BaseException) -> None:
        self._error = error
        self._news.set()

    def _go_on(self, number: int, generating: Generating) -> None:
        self._number, self._generating = number, generating


Moving = tuple[Carried, TokenStream]  # a text between two batches
Elsewhere = Callable[[], Awaitable[bool]]


class _HeardStream(TokenStream):
    """A stream that hands each token on at once, None when it is over, and the error if it fails.

    Whoever hears it and raises ends this text, and is not called again; other texts go on.
    """

    def __init__(self, number: int, generating: Generating, heard: Heard) -> None:
        super().__init__(number, generating)
        self._heard: Heard | None = heard

    def _tell(self, token: ChosenToken) -> None:
        self._hear(token)
        if self._heard is None:
            self.cancel()

    def _end(self, reason: str) -> None:
        super()._end(reason)
        self._hear(None)

    def _fail(self, error: BaseException) -> None:
        super()._fail(error)
        self._hear(error)

    def _hear(self, news: ChosenToken | BaseException | None) -> None:
        if self._heard is None:
            return
        with isolated("whoever hears of a text"):
            try:
                self._heard(news)
            except BaseException as fault:
                self._heard = None
                if isinstance(fault, Exception | KeyboardInterrupt):
                    raise
                raise RuntimeError(f"it raised {fault!r}") from fault  # as a panic of a library, or an exit


class Generating:
    """One model's running batch of texts, on the loop of an AsyncMesh.

    Steps go on while there are texts.  Close it to free what it holds on the workers.

    Parameters
    ----------
    mesh : AsyncMesh
        The mesh.
    model : Model
        A causal language model.
    slots : int, optional
        Texts at once, rounded up to a power of two.
    queue : int, optional
        Texts that may wait while all slots are taken.
    chunk : int, optional
        Tokens of a prompt that a step reads.
    strategy : str, optional
        How a step is placed, as for `Mesh.run`.
    mode : str, optional
        Where a step is computed, as for `Mesh.run`.
    copies : str, optional
        The copies of the weights that workers keep.
    detailed : bool, optional
        Whether texts may have guides, and tokens scores; a step of such a batch takes and gives more.
    kv_bytes : int, optional
        The most bytes of keys and values, on all workers together; by default a quarter of what a worker of this
        machine would use.
    adjusted : bool, optional
        Whether texts may change their logits, too, in a detailed batch; a step of such a batch takes still more.
    elsewhere : callable, optional
        What is awaited when the state was lost.  If it says True, the texts went on elsewhere.
    drafter : Drafter, optional
        What says which tokens may come next, so that a step gives several; it is this batch's own, and closed with it.
    few : int, optional
        Tokens of a text that steps have more often than `chunk`: they are computed without those behind them.

    Raises
    ------
    InputError
        If the model does not generate text, or the bytes do not hold one page; or if the batch is adjusted and not
        detailed; or has a drafter and is detailed, or its steps read fewer tokens than it drafts.

    Notes
    -----
    Prompts are read in pieces while other texts go on: Agrawal et al., 2024 (arXiv 2403.02310).

    Examples
    --------
    >>> from mesh.inference import Generating
    >>> from pathlib import Path
    >>> import numpy as np
    >>> import mesh
    >>> from mesh.models.decoder import Decoder, Text
    >>> following = {"rows": np.roll(np.eye(5, dtype=np.float32), 1, axis=1)}  # token 1 follows 0, and so on
    >>> embed, head = lambda params, ids, at: params["rows"][ids], lambda params, x: x
    >>> decoder = Decoder(embed, print, head, (), 1, 1, None, "rows")
    >>> model = mesh.Model("count", print, [], [], following, Text(decoder, Path(), ends=(4,)))
    >>> import asyncio
    >>> async def main():
    ...     async with await mesh.Mesh.builder().build_async() as m:
    ...         generating = Generating(m, model, slots=2)
    ...         print([token async for token in generating.begin([0], tokens_max=3)])
    ...         generating.leave(0)
    ...         stream, other = generating.begin([1], tokens_max=2), Generating(m, model)
    ...         for text in generating.carry():
    ...             other.adopt(text)
    ...         other.place("single")
    ...         print(generating.load([]).texts, other.load([]).texts, [token async for token in stream])
    ...         await generating.close()
    ...         await other.close()
    >>> asyncio.run(main())
    [1, 2, 3]
    0 1 [2, 3]
    """

    def __init__(
        self, mesh: AsyncMesh, model: Model, *, slots: int = 8, queue: int = 64, chunk: int = 16,
        strategy: str = "auto", mode: str = "auto", copies: str | None = None, detailed: bool = False,
        kv_bytes: int | None = None, adjusted: bool = False, elsewhere: Elsewhere | None = None,
        drafter: Drafter | None = None, few: int = 1,
    ) -> None:  # fmt: skip
        self._text = text_of(model)
        self._elsewhere = elsewhere
        if drafter is not None and detailed:
            raise InputError("a detailed batch has no drafter", next_step="Make it without detailed=True")
        if drafter is not None and chunk <= drafter.drafts_max:
            raise InputError(
                f"a step reads {chunk} tokens of a text, and checks {drafter.drafts_max} drafts behind one token",
                next_step=f"Give chunk={drafter.drafts_max + 1} at least, or fewer drafts",
            )
        self._drafter, self._drafts_max = drafter, 0 if drafter is None else drafter.drafts_max
        if adjusted and not detailed:
            raise InputError("an adjusted batch is a detailed one", next_step="Make it with detailed=True, too")
        self._detailed, self._adjusted = detailed, adjusted
        self._mesh = mesh
        strategy = by_rows(strategy) if mesh.reproducible else strategy
        mode = mode if mode != "auto" else "off" if mesh.stays_here(strategy) else "on"
        self._options = mesh.options(strategy, mode, copies)
        self._queue = queue
        self._params = {name: handle_array(handle) for name, handle in model.handles.items()}
        self._dtype, self.vocabulary = table_of(model.weights, self._text.decoder)
        self._page_bytes = kv_cache_step.page_bytes(self._text.decoder, self._dtype)
        self._pages_max = pages_max = pages_in(model, default_budget() // KV_SHARE if kv_bytes is None else kv_bytes)
        kept = KV_KEPT_BYTES // max(self._page_bytes, 1)
        few = max(few, 1 + self._drafts_max)
        self._slots = Slots(slots, chunk, self._text.decoder.positions_max, pages_max, min(kept, pages_max), few)
        self._streams: dict[int, TokenStream] = {}
        self._numbers = itertools.count()
        self._session: AsyncSession | None = None
        self._answers: deque[asyncio.Future[Any]] = deque()
        self._news = asyncio.Event()
        self._steppings: OrderedDict[tuple[Room, str], Stepping] = OrderedDict()  # by room and strategy, last used last
        self._closed = False
        self._steps = self._rebuilt = 0
        self._fruitless = 0  # sessions that were lost since the last answer
        self._fitting: Room | None = None  # the last one that a step was answered in
        self._too_large: MeshError | None = None  # what was said of the last pool that did not fit the workers
        self._asked: deque[tuple[float, str]] = deque()  # when each step in flight was asked for, and its kind
        self._answered_s = 0.0  # when the last answer came
        if drafter is not None:
            drafter.serve(self._news.set)
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def ends(self) -> tuple[int, ...]:
        """The tokens that end a text."""
        return self._text.ends

    @property
    def waiting(self) -> int:
        """How many texts have no slot yet."""
        return len(self._slots.waiting)

    @property
    def active(self) -> int:
        """How many texts have a slot."""
        return self._slots.active

    @property
    def room(self) -> Room:
        """The size of the batch now."""
        return self._slots.room

    @property
    def kv_bytes(self) -> int:
        """The bytes of keys and values that texts have now."""
        return self._slots.pages.held * self._page_bytes

    @property
    def pages(self) -> tuple[int, int]:
        """Pages of keys and values that texts hold, and that can be had."""
        return self._slots.pages.held, self._slots.pages.free

    @property
    def state_bytes(self) -> int:
        """The bytes that the session carries from step to step on the workers, mostly keys and values."""
        return self._session.stepping.state_bytes if self._session is not None else 0

    @property
    def tokens_read(self) -> int:
        """How many tokens of prompts were read, and of texts that were read again."""
        return self._slots.read

    @property
    def tokens_found(self) -> int:
        """How many tokens needed no reading, since a text before began with them."""
        return self._slots.spared

    @property
    def put_back(self) -> int:
        """How often a text had to wait in its middle, and was read again, since there was no page left."""
        return self._slots.put_back

    @property
    def drafted(self) -> int:
        """How many drafts were checked."""
        return 0 if self._drafter is None else self._drafter.speculation.drafted

    @property
    def accepted(self) -> int:
        """How many of the drafts that were checked became tokens of texts."""
        return 0 if self._drafter is None else self._drafter.speculation.accepted

    @property
    def steps(self) -> int:
        """How many steps were answered."""
        return self._steps

    @property
    def rebuilt(self) -> int:
        """How often the state was lost, and made again from the texts."""
        return self._rebuilt

    def begin(
        self,
        prompt: Iterable[int],
        tokens_max: int | None,
        how: Sampling = GREEDY,
        ends: Iterable[int] | None = None,
        guide: Guide | None = None,
        scored: bool = False,
        adjustment: LogitAdjustment | None = None,
    ) -> TokenStream:
        """Go on with a text.

        Parameters
        ----------
        prompt : iterable of int
            Its tokens.
        tokens_max : int or None
            How many tokens follow at most; None for 128, or as many as there are positions for.
        how : Sampling, optional
            How tokens are chosen; the likeliest by default.
        ends : iterable of int, optional
            The tokens that end the text; by default the model's own.
        guide : Guide, optional
            What says which tokens may come next.
        scored : bool, optional
            Whether tokens come with the logarithms of their probabilities, which no adjustment changes.
        adjustment : LogitAdjustment, optional
            What the text changes of its logits.

        Returns
        -------
        TokenStream
            The tokens, as they come.

        Raises
        ------
        InputError
            If the model does not have a token, or has fewer positions than are asked for, or none are asked for; or
            for a guide or scores in a batch that is not a detailed one, and an adjustment in one that is not an
            adjusted one.
        QueueFull
            At once, if too many wait already.
        Cancelled
            If it is closed.
        """
        if self._closed:
            raise Cancelled("the model was unloaded")
        if self._slots.free <= -self._queue:
            raise QueueFull(f"{self.waiting} texts wait already", next_step="Try again when some of them are done")
        if (guide is not None or scored) and not self._detailed:
            raise InputError("only a detailed batch has guides and scores", next_step="Make it with detailed=True")
        if adjustment is not None and not self._adjusted:
            raise InputError("only an adjusted batch changes logits", next_step="Make it with adjusted=True")
        tokens = tokens_of(prompt)
        asked = None if tokens_max is None else count(tokens_max, "tokens_max")
        self._check(tokens)
        self._known([token for token, _ in adjustment.biases] if adjustment is not None else ())
        steady = None if guide is None else SteadyGuide(guide, -(-self.vocabulary // 32))
        request = TextRequest(
            next(self._numbers),
            tokens,
            self._room_for(tokens, asked),
            frozenset(self.ends if ends is None else ends),
            how,
            steady,
            scored,
            adjustment,
        )
        stream = self._streams[request.number] = TokenStream(request.number, self)
        stream._guide = steady
        self._slots.join(request)
        if self._drafter is not None:
            self._drafter.join(request, tokens)
        self._news.set()
        return stream

    def load(self, keys: Sequence[bytes]) -> Load:
        """Tell what this batch has to do.

        Parameters
        ----------
        keys : sequence of bytes
            Those of the pages of a text that may come (`kv_pages.prefix_keys`).

        Returns
        -------
        Load
            What a router chooses by.
        """
        slots = self._slots
        texts = slots.active + self.waiting
        full = self._closed or slots.free <= -self._queue
        held = PAGE * (self._pages_max - 1)
        return Load(texts, bucket(slots.slots_max), slots.tokens_asked, slots.found(keys), held, full)

    def carry(self, waiting: bool = False) -> list[Moving]:
        """Take texts out, to go on in another batch of the same model.

        Parameters
        ----------
        waiting : bool, optional
            Whether to take those alone that wait for a slot.

        Returns
        -------
        list of Moving
            The texts and their streams, the first ones first; `adopt` takes them.
        """
        taken = [(carried, self._streams.pop(carried.request.number)) for carried in self._slots.carried(waiting)]
        for carried, _ in taken:
            self._left(carried.request.number)
        self._news.set()
        return taken

    def adopt(self, moving: Moving) -> None:
        """Go on with a text of another batch, however many wait already.

        Parameters
        ----------
        moving : Moving
            What `carry` of that batch gave.
        """
        carried, stream = moving
        number = next(self._numbers)
        self._streams[number] = stream
        stream._go_on(number, self)
        request = replace(carried.request, number=number)
        self._slots.resume(replace(carried, request=request))
        if self._drafter is not None:
            self._drafter.join(request, carried.tokens)
        self._news.set()

    def place(self, strategy: str) -> None:
        """Place the next session otherwise.

        Parameters
        ----------
        strategy : str
            How a step is placed, as for `Mesh.run`.
        """
        strategy = by_rows(strategy) if self._mesh.reproducible else strategy
        self._options = self._mesh.options(strategy, self._options.mode, self._options.copies)

    def draft(self, prompt: Sequence[int], tokens_max: int, how: Sampling, heard: Heard) -> tuple[TokenStream, int]:
        """Read a text that rests behind its first token, until it is to go on.

        Parameters
        ----------
        prompt : sequence of int
            Its tokens.
        tokens_max : int
            How many tokens it may have behind these, as far as there is room.
        how : Sampling
            How tokens are chosen.
        heard : callable
            It is called with each token, with None when the text is over, or with its error.  If it raises, that is
            logged, and the text is cancelled.

        Returns
        -------
        tuple of (TokenStream, int)
            The text, which can be cancelled, and how many tokens there is room for behind the prompt.

        Raises
        ------
        InputError
            If the model has fewer positions than the prompt needs.

        Examples
        --------
        >>> from mesh.inference import Generating, Sampling
        >>> from pathlib import Path
        >>> import numpy as np
        >>> import mesh
        >>> from mesh.models.decoder import Decoder, Text
        >>> following = {"rows": np.roll(np.eye(5, dtype=np.float32), 1, axis=1)}  # token 1 follows 0, and so on
        >>> embed, head = lambda params, ids, at: params["rows"][ids], lambda params, x: x
        >>> decoder = Decoder(embed, print, head, (), 1, 1, None, "rows")
        >>> model = mesh.Model("count", print, [], [], following, Text(decoder, Path(), ends=(4,)))
        >>> import asyncio
        >>> async def main():
        ...     async with await mesh.Mesh.builder().build_async() as m:
        ...         generating, heard = Generating(m, model), asyncio.Queue()
        ...         stream, room = generating.draft([0], 9, Sampling(), heard.put_nowait)
        ...         first = (await heard.get()).token
        ...         generating.go_on(stream, [0, 3], 2)
        ...         print(room, first, [(await heard.get()).token for _ in range(2)])
        ...         await generating.close()
        >>> asyncio.run(main())
        9 1 [4, 0]
        """
        tokens = tuple(prompt)
        self._check(tokens)
        most = self._room_for(tokens, None, tokens_max)
        request = TextRequest(next(self._numbers), tokens, most, sampling=how)
        stream = self._streams[request.number] = _HeardStream(request.number, self, heard)
        self._slots.join(request, drafts=True)
        self._news.set()
        return stream, most

    def go_on(self, stream: TokenStream, tokens: Sequence[int], more: int) -> None:
        """Let a text that rests go on.

        Parameters
        ----------
        stream : TokenStream
            The text.
        tokens : sequence of int
            All of its tokens, as they turned out to be.
        more : int
            How many tokens may follow before it rests again.

        Examples
        --------
        >>> from mesh.inference import Generating, Sampling
        >>> from pathlib import Path
        >>> import numpy as np
        >>> import mesh
        >>> from mesh.models.decoder import Decoder, Text
        >>> following = {"rows": np.roll(np.eye(5, dtype=np.float32), 1, axis=1)}  # token 1 follows 0, and so on
        >>> embed, head = lambda params, ids, at: params["rows"][ids], lambda params, x: x
        >>> decoder = Decoder(embed, print, head, (), 1, 1, None, "rows")
        >>> model = mesh.Model("count", print, [], [], following, Text(decoder, Path(), ends=(4,)))
        >>> import asyncio
        >>> async def main():
        ...     async with await mesh.Mesh.builder().build_async() as m:
        ...         generating, heard = Generating(m, model), asyncio.Queue()
        ...         stream, room = generating.draft([0], 9, Sampling(), heard.put_nowait)
        ...         first = (await heard.get()).token
        ...         generating.go_on(stream, [0, 3], 2)
        ...         print(room, first, [(await heard.get()).token for _ in range(2)])
        ...         await generating.close()
        >>> asyncio.run(main())
        9 1 [4, 0]
        """
        self._slots.go_on(stream._number, tokens, more)
        self._news.set()

    async def plan(self) -> PlanPreview:
        """Plan a step without opening a session.

        Returns
        -------
        PlanPreview
            Which worker would compute what, and what it needs.

        Raises
        ------
        PlacementError
            If no plan fits the workers.

        Examples
        --------
        >>> from mesh.inference import Generating
        >>> from pathlib import Path
        >>> import numpy as np
        >>> import mesh
        >>> from mesh.models.decoder import Decoder, Text
        >>> following = {"rows": np.roll(np.eye(5, dtype=np.float32), 1, axis=1)}  # token 1 follows 0, and so on
        >>> embed, head = lambda params, ids, at: params["rows"][ids], lambda params, x: x
        >>> decoder = Decoder(embed, print, head, (), 1, 1, None, "rows")
        >>> model = mesh.Model("count", print, [], [], following, Text(decoder, Path(), ends=(4,)))
        >>> import asyncio
        >>> from mesh.simulation.loop import VirtualLoop
        >>> async def main():
        ...     async with await mesh.AsyncMesh.builder().simulate(2).build_async() as m:
        ...         generating = Generating(m, model, strategy="single")
        ...         plan = await generating.plan()
        ...         await generating.close()
        ...         return plan
        >>> with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        ...     runner.run(main()).workers
        ('sim-0',)
        """
        stepping = await self._stepping(self._slots.room)
        return await self._mesh.plan(stepping.work.graph, strategy=stepping.work.strategy, copies=self._options.copies)

    def leave(self, number: int) -> None:
        """Want no more of a text.

        Parameters
        ----------
        number : int
            The text's number.
        """
        self._streams.pop(number, None)
        self._slots.leave(number)
        self._left(number)
        self._news.set()

    async def close(self) -> None:
        """Cancel what runs, and free what the workers hold; whoever is cancelled meanwhile, it is done to the end."""
        await to_the_end(self._end())

    async def _end(self) -> None:
        self._closed = True
        self._task.cancel()
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            await self._close_session(for_good=True)
        finally:  # nobody waits for what does not go on, whatever failed
            self._fail_all(Cancelled("the model was unloaded"))
            self._steppings.clear()  # megabytes of graphs
            self._elsewhere = None  # it refers to the owner of this: it would be a reference cycle
            if self._drafter is not None:
                await self._drafter.close()

    # -- the loop

    async def _run(self) -> None:
        while True:
            try:
                await self._turn()
            except (asyncio.CancelledError, GeneratorExit):
                raise
            except BaseException as error:  # nobody else would tell those who wait
                try:
                    await self._recover(error)
                except Exception as fault:  # nor of this
                    self._slots.lost()
                    self._fail_all(as_error("a batch of texts could not go on after a failure", fault))

    async def _recover(self, error: BaseException) -> None:
        """Go on without the state: elsewhere, in a smaller pool, or in a new session; or end all texts with the
        error, after which the workers hold nothing."""
        goes_on = False
        try:
            goes_on = await self._goes_on(error)
        finally:
            await self._close_session(for_good=not goes_on)
        if not goes_on:
            self._fail_all(error)  # it belongs to those whose texts it ends

    async def _goes_on(self, error: BaseException) -> bool:
        """Whether texts go on after a failure."""
        if self._elsewhere is not None and await self._elsewhere():
            self._slots.lost()
            return True
        if self._is_too_large(error):
            return True
        self._slots.lost()
        self._slots.pages_max = self._pages_max  # other workers may have the memory
        self._fruitless += 1
        self._rebuilt += 1
        alone = self._fruitless > 1 and not self._mesh.live()  # the second session has waited for somebody
        # a replica stays where its workers were gone and are back: the session failed in between
        gone = isinstance(error, NodeLost) or (self._elsewhere is not None and isinstance(error, NoSuchDevice))
        return gone and not alone and self._fruitless <= REBUILDS_MAX

    def _is_too_large(self, error: BaseException) -> bool:
        """Whether the workers have no memory for the pool, and may have some for a smaller one, in which texts go on.

        That is the one before, if this one was to be larger, and the next one to be asked for lies between the two;
        else, as after the death of a worker, one of half the size.
        """
        slots, fitting = self._slots, self._fitting
        if not isinstance(error, PlacementError | OutOfMemory) or isinstance(error, NoSuchDevice):
            return False
        if fitting is not None and slots.room.pages > fitting.pages:
            between = (slots.room.pages + fitting.pages) // 2
            slots.pages_max = between if between >= fitting.pages + PAGES_MIN else fitting.pages
        elif slots.room.pages > PAGES_MIN:
            fitting = replace(slots.room, pages=max(slots.room.pages // 2, PAGES_MIN))
            slots.pages_max, self._fitting = fitting.pages, None
        else:
            return False
        slots.lost(fitting)
        self._too_large = error
        return True

    async def _turn(self) -> None:
        """Ask for a step, or wait for an answer, or for a text."""
        slots = self._slots
        if self._drafter is not None:
            self._drafter.turn(slots, self._now_s())
        room = slots.wanted()
        if slots.idle:
            await self._settle()
            self._news.clear()
            if slots.idle:
                await self._news.wait()
        elif self._session is None or room != slots.room:
            await self._settle()
            await self._open(slots.wanted())
        elif slots.in_flight < AHEAD and (feeds := slots.ask()) is not None:
            self._answers.append(self._session.step(*self._arguments(feeds)))
            self._asked.append((self._now_s(), kind_of(feeds)))
        elif self._answers:
            await self._answer()
        elif self._too_large is not None and (refused := slots.refused()):
            for number in refused:
                self._fail(number, self._too_large)
        else:
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(None if self._drafter is None else self._drafter.deadline_s):
                    await self._news.wait()

    async def _settle(self) -> None:
        """Wait for all that was asked."""
        while self._answers:
            await self._answer()

    async def _answer(self) -> None:
        chosen = await self._answers[0]
        self._answers.popleft()
        self._steps += 1
        self._fruitless = 0
        self._fitting = self._slots.room
        answer = np.asarray(chosen)
        tokens, scores = (answer[:, 0], sampling.read_scores(answer)) if self._detailed else (answer, None)
        chosen = self._slots.answer(tokens.tolist(), scores)
        self._measure()
        if self._drafter is not None:
            self._drafter.answered(self._slots, chosen)
        for token in chosen:
            self._tell(token)

    def _measure(self) -> None:
        """Tell the drafter how long the step took that was answered now: since the answer before, or since it was asked
        for if that was later."""
        (at_s, kind), now_s = self._asked.popleft(), self._now_s()
        since_s, self._answered_s = max(at_s, self._answered_s), now_s
        if self._drafter is not None and kind:
            self._drafter.took(kind, self._slots.room.slots, now_s - since_s, now_s)

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()

    def _tell(self, chosen: ChosenToken) -> None:
        stream = self._streams.get(chosen.number)
        if stream is None:
            return
        error = None if stream._guide is None else stream._guide.error
        if error is None:  # else the guide has not limited this token, or not accepted it
            stream._tell(chosen)
        if chosen.reason and self._streams.pop(chosen.number, None) is not None:  # nobody left as they heard of it
            self._left(chosen.number)
            if error is None:
                stream._end(chosen.reason)
            else:
                stream._fail(error)

    def _arguments(self, feeds: Feeds) -> tuple[Any, ...]:
        room = self._slots.room
        how = self._how(room, feeds.settings, feeds.texts, feeds.changes)
        given = feeds.ids, feeds.start, feeds.count, feeds.follow, feeds.table, how
        return kv_cache_step.feeds(room, *given, feeds.drafts if self._drafts_max else None)

    async def _open(self, room: Room) -> None:
        """A session with this much room, of the state that there is."""
        if self._session is not None and room == self._slots.room:
            return  # texts ended meanwhile
        order = self._slots.order(room)
        stepping = await self._stepping(room)
        if self._session is not None:
            state = await self._session.state()
            await self._close_session()
            stepping = await asyncio.to_thread(lambda: stepping.starting(kv_cache_step.moved(state, room, order)))
        self._session = self._mesh.open_session(stepping, "none", 1, None, self._options.mode, 0)
        self._slots.moved(room, order)

    async def _stepping(self, room: Room) -> Stepping:
        """The step of a room, from an empty state; traced once."""
        options = self._options
        key = room, options.strategy
        if key not in self._steppings:
            decoder = self._text.decoder
            layers = strategy_of(options.strategy)
            together: kv_cache_step.Together = kv_cache_step.with_the_layer
            if isinstance(layers, DeviceMap):
                together = partial(experts_together, layers, sorted(self._params))
            step = kv_cache_step.stepper(decoder, room, self._params, self._detailed, self._drafts_max, together)
            empty = kv_cache_step.empty(decoder, room, self._dtype)
            stepping = await called_in_thread(self._mesh.stepping, step, empty, self._example(room), options)
            if isinstance(layers, DeviceMap):
                stepping.place(with_state(layers, stepping.graph).text)
            self._steppings[key] = stepping
            if len(self._steppings) > ROOMS_MAX:
                self._steppings.popitem(last=False)
        self._steppings.move_to_end(key)
        return self._steppings[key]

    def _example(self, room: Room) -> tuple[Any, ...]:
        zeros = np.zeros(room.slots, np.int32)
        how = self._how(room, [GREEDY] * room.slots, [None] * room.slots, [{}] * room.slots)
        ids = np.zeros((room.slots, room.chunk), np.int32)
        table = np.zeros((room.slots, pages_for(room.length)), np.int32)
        nobody = np.zeros(room.slots, np.bool_)
        return kv_cache_step.feeds(room, ids, zeros, zeros, nobody, table, how, zeros if self._drafts_max else None)

    def _how(
        self, room: Room, settings: Sequence[Sampling], texts: Sequence[TextRequest | None],
        changes: Sequence[dict[int, tuple[float, float]]],
    ) -> dict[str, Any]:  # fmt: skip
        """How a step chooses tokens: more in a detailed batch, and most in an adjusted one."""
        how = sampling.fed(settings)
        if self._detailed:
            how |= sampling.limits(texts, self.vocabulary)
        if self._adjusted:
            most = logit_adjustment.changed_max(room.length, self.vocabulary)
            how |= logit_adjustment.fed(changes, most)
        return how

    async def _close_session(self, for_good: bool = False) -> None:
        """End the session, if there is one; `for_good` frees the weights on the workers, too."""
        self._answers.clear()
        self._asked.clear()
        session, self._session = self._session, None
        if session is not None:
            if for_good:
                self._mesh.forget(session.stepping.work)
            await session.close()

    def _fail_all(self, error: BaseException) -> None:
        for number in list(self._streams):
            if number in self._streams:  # whoever hears of one may cancel another
                self._fail(number, error)

    def _fail(self, number: int, error: BaseException) -> None:
        self._slots.leave(number)
        self._left(number)
        self._streams.pop(number)._fail(error)

    def _left(self, number: int) -> None:
        """A text is over."""
        if self._drafter is not None:
            self._drafter.leave(number)

    def _room_for(self, tokens: tuple[int, ...], asked: int | None, most_asked: int = TOKENS_MAX) -> int:
        """How many tokens may follow, up to `most_asked` where none are asked for; the last needs no position."""
        most, held = self._text.decoder.positions_max, PAGE * (self._slots.pages_max - 1)
        what = f"the model has {most} positions"
        if most is None or held < most:
            size = size_text(self._slots.pages_max * self._page_bytes)
            most, what = held, f"{size} of keys and values hold {held} tokens"
        room = most - len(tokens) + 1
        if asked is not None and asked > room:
            raise InputError(
                f"{what}: after a prompt of {counted(len(tokens), 'token')} there is room for "
                f"{max(room, 0)} new ones, and max_new_tokens = {asked}",
                next_step=f"Ask for max_new_tokens={room} at most, or shorten the prompt"
                if room > 0
                else "Shorten the prompt",
            )
        return min(asked or most_asked, room)

    def _check(self, tokens: tuple[int, ...]) -> None:
        if not tokens:
            raise InputError("a text to go on with has at least one token")
        self._known(tokens)
        most, held = self._text.decoder.positions_max, PAGE * (self._slots.pages_max - 1)
        if most is not None and len(tokens) > most:
            raise InputError(f"the model has {most} positions, got {counted(len(tokens), 'token')}")
        if len(tokens) > held:
            size = size_text(self._slots.pages_max * self._page_bytes)
            raise InputError(
                f"{size} of keys and values hold {held} tokens, got {counted(len(tokens), 'token')}",
                next_step="Give more bytes for keys and values, or shorten the prompt",
            )

    def _known(self, tokens: Iterable[int]) -> None:
        wrong = next((token for token in tokens if not 0 <= token < self.vocabulary), None)
        if wrong is not None:
            raise InputError(f"the model has {self.vocabulary} tokens, and no token {wrong}")


def kind_of(feeds: Feeds) -> str:
    """What a step is measured as: one that checks drafts, one of a token for each text, or another one, ""."""
    if feeds.drafts is not None and feeds.drafts.any():
        return CHECK
    return PLAIN if feeds.count.max() == 1 else ""


async def budget_of(mesh: AsyncMesh, asked: int | None, batches: int = 1) -> int:
    """The bytes of keys and values for each of some running batches: `asked` for all of them, by default a quarter of
    what the worker with the most memory may use, or this process where there is none."""
    if asked is None:
        most = max((node.memory_bytes for node in await mesh.nodes() if node.devices), default=0)
        asked = (most or default_budget()) // KV_SHARE
    return asked // batches


def pages_in(model: Model, kv_bytes: int) -> int:
    """How many pages of a model's keys and values so many bytes hold; InputError if a text cannot have one of them."""
    text = text_of(model)
    page_bytes = kv_cache_step.page_bytes(text.decoder, table_of(model.weights, text.decoder)[0])
    pages = min(kv_bytes // max(page_bytes, 1), PAGES_MAX)
    if pages < 2:
        raise InputError(
            f"{size_text(kv_bytes)} for keys and values of each batch is too little: {PAGE} tokens of "
            f"{model.name or 'the model'} take {size_text(page_bytes)}, and there is one page more",
            next_step=f"Give {size_text(2 * page_bytes)} at least, and as much again for every {PAGE} tokens more",
        )
    return pages


def text_of(model: Model) -> Text:
    """The model's side of text; InputError if it does not go on with texts."""
    if model.text is None:
        raise InputError(
            f"{model.name or 'the model'} does not generate text",
            next_step="Load a causal language model: GPT-2, Llama, Mistral or Qwen",
        )
    return model.text
