"""Drafting: a small model on the mesh says which tokens come next in the texts of a running batch.

The drafter has a running batch of its own, with a text for each of the target's, which rests between two rounds.  It
performs what `speculation.py` decides.  Nobody depends on it: a text whose drafts do not come in time, or whose drafter
fails, goes on without, and tries again later.  So a drafter that dies, is slow, or has no memory costs no text.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from wire.errors import InputError
from wire.policy.strategies import DeviceMap
from wire.system.steady_log import steady_logger

from ..client.async_mesh import AsyncMesh
from ..models.decoder import table_of
from ..models.load import load
from ..models.model import Model
from . import kv_cache_step
from .continuous_batching import ChosenToken, Slots, TextRequest
from .generation_runner import Generating, TokenStream, pages_in, text_of
from .settings import Options
from .speculation import DRAFT, Speculation, StepTimes
from .tokenizer import FILE as TOKENIZER
from .tokenizer import tokenizer_of

log = steady_logger("graph_mesh.inference")

TEXTS_MAX = 2  # at once that are drafted: with more, those that pause take part in the slower steps of the others
PATIENCE_MIN_S, PATIENCE = 0.25, 8  # a text waits so many times as long as drafts take usually, and that long at least


class Drafter:
    """What drafts for one running batch.

    Parameters
    ----------
    mesh : AsyncMesh
        The mesh.
    model : Model
        A causal language model with the target's vocabulary, much smaller than the target.
    drafts_max : int, optional
        The most drafts of a text that a step checks.
    slots : int, optional
        Texts at once, as many as the target's batch has.
    kv_bytes : int, optional
        The most bytes of keys and values of the drafter.
    strategy : str, optional
        How a step of the drafter is placed, as for `Mesh.run`.
    mode : str, optional
        Where it is computed, as for `Mesh.run`.
    adaptive : bool, optional
        Whether a text asks for fewer drafts where they are often wrong, or cost too much.
    patience_s : float, optional
        Seconds that a text waits for drafts at least before it goes on without; inf for ever, and for the drafter to
        read its prompt, too.

    Raises
    ------
    InputError
        If the model does not generate text, or the bytes do not hold one page.

    Notes
    -----
    Speculative decoding: Leviathan et al., 2023 (arXiv 2211.17192).

    Examples
    --------
    >>> from mesh.inference import Generating
    >>> from mesh.inference.drafting import Drafter
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
    ...         generating = Generating(m, model, drafter=Drafter(m, model, 2))
    ...         print([token async for token in generating.begin([0], tokens_max=3)])
    ...         await generating.close()
    >>> asyncio.run(main())
    [1, 2, 3]
    """

    def __init__(
        self, mesh: AsyncMesh, model: Model, drafts_max: int = 4, *, slots: int = 8, chunk: int = 16,
        kv_bytes: int | None = None, strategy: str = "auto", mode: str = "auto", adaptive: bool = True,
        patience_s: float = PATIENCE_MIN_S,
    ) -> None:  # fmt: skip
        self.speculation = Speculation(drafts_max, adaptive)
        self._generating = Generating(
            mesh, model, slots=slots, chunk=chunk, strategy=strategy, mode=mode, kv_bytes=kv_bytes, few=2
        )  # a round begins with the last token, and with the last draft where all were right
        self._patience_s, self._patient = patience_s, patience_s == math.inf
        self._times = StepTimes()
        self._logged_error = ""  # the last error of the drafter that was logged
        self._texts: dict[int, _Text] = {}
        self._asked: dict[int, _Text] = {}  # those that wait for drafts
        self._news: Callable[[], None] = lambda: None

    @property
    def drafts_max(self) -> int:
        """The most drafts of a text that a step checks."""
        return self.speculation.drafts_max

    @property
    def deadline_s(self) -> float | None:
        """The time by the loop's clock at which the first text that waits for drafts gives up; None if none waits."""
        return min((text.deadline_s for text in self._asked.values()), default=None)

    # -- what the target's batch tells

    def serve(self, news: Callable[[], None]) -> None:
        """Draft for a batch, which wants to hear `news`."""
        self._news = news

    def join(self, request: TextRequest, tokens: Sequence[int]) -> None:
        """A text of the target comes, with these tokens until now."""
        self.speculation.join(request.number)
        text = self._texts[request.number] = _Text(request, list(tokens))
        self._read(text)

    def leave(self, number: int) -> None:
        """A text of the target is over."""
        self.speculation.leave(number)
        self._asked.pop(number, None)
        text = self._texts.pop(number, None)
        if text is not None and text.stream is not None:
            text.stream.cancel()

    def answered(self, slots: Slots, tokens: Sequence[ChosenToken]) -> None:
        """A step of the target was answered."""
        for checked in slots.checked:
            self.speculation.checked(checked.number, checked.drafted, checked.accepted)
        drafted = {checked.number for checked in slots.checked}
        slots.checked.clear()
        for chosen in tokens:
            text = self._texts[chosen.number]
            text.tokens.append(chosen.token)
            may = len(text.tokens) < text.room and self._few(slots)
            if chosen.number not in drafted and self.speculation.came(chosen.number, 1) and may:
                if text.stream is None:
                    self._read(text)
                slots.speculate(chosen.number, text.ready or self._patient)

    def took(self, kind: str, slots: int, seconds: float, now_s: float) -> None:
        """A step of the target took so long."""
        self._times.saw(kind, slots, seconds, now_s)

    def turn(self, slots: Slots, now_s: float) -> None:
        """Give drafts to the texts that wait for them, ask for others, or let texts go on without.

        All that were asked for are checked by one step, which takes little longer than one that checks a text's."""
        due = dict(slots.due())
        self._asked = {number: text for number, text in self._asked.items() if number in due}
        for number, most in due.items():
            text = self._texts[number]
            if number not in self._asked and (text.ready or not self._patient):
                self._ask(slots, text, most, now_s)
            elif not (number in self._asked and text.complete) and (text.stream is None or now_s >= text.deadline_s):
                self._asked.pop(number, None)
                text.wanted = 0
                self.speculation.late(number)
                slots.speculate(number, False)
        if all(text.complete for text in self._asked.values()):
            for number, text in self._asked.items():
                slots.propose(number, text.drafts)
                text.wanted = 0
            self._asked.clear()

    async def close(self) -> None:
        """Free what it holds on the workers."""
        self._texts.clear()
        self._asked.clear()
        await self._generating.close()

    # -- rounds

    def _read(self, text: _Text) -> None:
        """Have the drafter read a text; it drafts once it has read it.  One that is too long for it has no drafts."""
        known, text.ready = len(text.tokens), False
        left = text.request.tokens_max - (known - len(text.request.prompt))
        try:
            heard = partial(self._heard, text)
            text.stream, room = self._generating.draft(text.tokens, left, text.request.sampling, heard)
            text.room = known + room
        except InputError:
            text.room = 0

    def _ask(self, slots: Slots, text: _Text, most: int, now_s: float) -> None:
        """Ask for drafts, as many as are worth it."""
        number, size = text.request.number, slots.room.slots
        most = min(most, text.room - len(text.tokens))
        wanted = self.speculation.wanted(number, most, self._times.costs(size, now_s)) if text.ready else 0
        if wanted < 1 or text.stream is None or not self._few(slots):
            slots.speculate(number, False)
            return
        self._asked[number] = text
        usual_s = self._times.usual(DRAFT, size) or 0.0
        text.wanted, text.drafts, text.asked_s, text.slots = wanted, [], now_s, size
        text.deadline_s = now_s + max(self._patience_s, PATIENCE * (wanted + 1) * usual_s)
        self._generating.go_on(text.stream, text.tokens, wanted)

    def _few(self, slots: Slots) -> bool:
        """Whether the batch has so few texts that drafts are worth it."""
        return slots.active <= TEXTS_MAX or not self.speculation.adaptive

    def _heard(self, text: _Text, chosen: ChosenToken | BaseException | None) -> None:
        """The drafter chose a token of a text, or its text is over (None), or failed."""
        if not isinstance(chosen, ChosenToken):
            text.stream, text.ready = None, False
            if chosen is not None and str(chosen) != self._logged_error:
                self._logged_error = str(chosen)
                log.warning("a drafter failed, and texts go on without drafts for a while: %s", chosen)
        elif not text.ready:
            text.ready = True
        elif self._asked.get(text.request.number) is text and not text.complete:
            text.drafts.append(chosen.token)
            if text.complete:
                now_s = asyncio.get_running_loop().time()
                self._times.saw(DRAFT, text.slots, (now_s - text.asked_s) / (text.wanted + 1), now_s)
        self._news()


@dataclass(slots=True, eq=False)
class _Text:
    """A text of the target.  `stream` is its text in the drafter's batch, which has room for so many tokens in all, and
    is `ready` once that has read it; of the round in flight `wanted` drafts are to come, and `drafts` came."""

    request: TextRequest
    tokens: list[int]
    stream: TokenStream | None = None
    room: int = 0
    ready: bool = False
    wanted: int = 0
    drafts: list[int] = field(default_factory=list)
    asked_s: float = 0.0
    deadline_s: float = math.inf
    slots: int = 1

    @property
    def complete(self) -> bool:
        """Whether all drafts that it asked for came."""
        return 0 < self.wanted == len(self.drafts)


def check_draft(model: Model, draft: Model) -> None:
    """Check that one model can draft for the other: both go on with texts, of the same tokens; InputError if not."""
    if draft.text is None:
        raise InputError(
            f"{draft.name or 'the drafter'} does not generate text, and so cannot be a drafter",
            next_step="Choose a smaller model of the same family",
        )
    sizes = [table_of(each.weights, text_of(each).decoder)[1] for each in (model, draft)]
    names = [each.name or what for each, what in ((model, "the model"), (draft, "the drafter"))]
    if sizes[0] != sizes[1]:
        raise InputError(
            f"{names[1]} cannot draft for {names[0]}: it has {sizes[1]} tokens, and {names[0]} has {sizes[0]}",
            next_step="Choose a smaller model of the same family, whose tokenizer is the same",
        )
    texts = [text_of(each) for each in (model, draft)]
    if all(text.metadata is not None or (text.folder / TOKENIZER).is_file() for text in texts):
        words = [tokenizer_of(text).tokens() for text in texts]
        other = next((token for token in sorted(words[0]) if words[1].get(token) != words[0][token]), None)
        if other is None and words[0] != words[1]:
            other = next(token for token in sorted(words[1]) if token not in words[0])
        if other is not None:
            raise InputError(
                f"{names[1]} cannot draft for {names[0]}: their tokenizers differ, for instance in {other!r:.40}",
                next_step="Choose a smaller model of the same family, whose tokenizer is the same",
            )


async def drafter_model(mesh: AsyncMesh, model: Model, options: Options) -> Model | None:
    """The drafter of a model that is to be served, checked; None without one.  InputError if it cannot draft for it."""
    if options.draft is None:
        return None
    draft = await asyncio.to_thread(load, options.draft) if isinstance(options.draft, str | Path) else options.draft
    if not isinstance(draft, Model):
        raise InputError(f"the drafter {draft!r:.60} is no model", next_step="Give a path or a mesh.Model")
    await asyncio.to_thread(check_draft, model, draft)
    await asyncio.to_thread(getattr, draft, "handles")  # hashed now, and not while somebody waits
    names = [node.name for node in await mesh.nodes() if node.devices]
    if options.draft_on is not None and options.draft_on not in names:
        known = ", ".join(names) or "none"
        raise InputError(f"no worker is called {options.draft_on!r}", next_step=f"Workers now: {known}")
    return draft


def drafter_of(
    mesh: AsyncMesh, model: Model, draft: Model | None, options: Options, kv_bytes: int
) -> tuple[int, Drafter | None]:
    """The bytes of keys and values that are left to a running batch, and its drafter."""
    if draft is None:
        return kv_bytes, None
    left, own = divided(model, draft, kv_bytes)
    strategy = "auto" if options.draft_on is None else DeviceMap().layer("", options.draft_on).text
    drafter = Drafter(
        mesh, draft, int(options.draft_tokens), slots=int(options.max_batch), chunk=int(options.chunk), kv_bytes=own,
        strategy=strategy, mode=options.mode,
    )  # fmt: skip
    return left, drafter


def divided(model: Model, draft: Model, kv_bytes: int) -> tuple[int, int]:
    """Bytes of keys and values, divided so that both models have room for the same number of tokens; InputError if they
    are too few for both."""
    sizes = [kv_cache_step.page_bytes(text_of(each).decoder, table_of(each.weights, text_of(each).decoder)[0])
             for each in (model, draft)]  # fmt: skip
    own = kv_bytes * sizes[0] // max(sum(sizes), 1)
    shares = own, kv_bytes - own
    for each, share in zip((model, draft), shares, strict=True):
        pages_in(each, share)
    return shares
