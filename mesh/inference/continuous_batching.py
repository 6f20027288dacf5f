"""Continuous batching: which text of a running batch does what in the next step, and what the answers mean.  Pure.

Texts wait, take a free slot, are read from their prompt, go on token by token, and leave; others go on meanwhile.
Steps are asked for before the ones ahead of them were answered: what a step chooses, the next one takes over on the
workers.  Whoever ends leaves steps behind that are in flight; their answers are nobody's.

Keys and values lie in pages (`kv_pages.py`).  A text begins with the pages that are found for it, and takes others as
it grows.  Where none is left, the text that came last gives its pages back and waits: it is read again, with the tokens
that were chosen, once there are enough.  So are all texts after the state was lost.

A batch that is too small asks for another `room`, and so does one that has been too large for a while.  A text with a
guide is asked for one token at a time: the guide has to see it before it says which ones may follow.  So is a text
whose logits change with the tokens that came.  This file knows no session and no clock.

A text that speculates waits for drafts before each step, which then checks them: drafts are taken up to the first one
that is not what the step itself chose, and that stands in its place.  The others' keys and values are overwritten.  A
text that drafts rests between its rounds, and goes on from what turned out to be true (`speculation.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .kv_pages import PAGE, KvPages, pages_for, prefix_keys
from .logit_adjustment import LogitAdjustment
from .settings import GREEDY, Room, Sampling

PAGES_MIN = 8
LENGTH_MIN, LENGTH_STEP = 1024, 4  # tokens of a text: a step's program grows with the logarithm of this
SPARE = 128  # tokens that there is room for when a text comes, if it wants as many
ROOMY_STEPS, ROOMY_TOKENS = 16, 64  # a smaller room is asked for after so many steps, if a text wants as much more
STOP, FULL, FAILED = "stop", "length", "failed"


def bucket(count: int, least: int = 1) -> int:
    """The power of two that holds `count`."""
    return max(least, 1 << max(count - 1, 0).bit_length())


class Guide(Protocol):
    """What says which tokens may come next in a text, such as those that lead to JSON of a schema."""

    @property
    def mask(self) -> NDArray[np.uint32]:
        """A bit for every token that may come next, 32 in a word, the first one in the lowest bit; one at least."""

    def accept(self, token: int) -> str:
        """Take the token that was chosen: "" if others may follow, else STOP or FAILED."""


@dataclass(frozen=True, slots=True)
class TextRequest:
    """A text to go on with: after `prompt`, up to `tokens_max` tokens or to one of `ends`, which is given too.

    `guide` limits its tokens; `scored` asks for the logarithms of their probabilities; `adjustment` changes its logits.
    """

    number: int
    prompt: tuple[int, ...]
    tokens_max: int
    ends: frozenset[int] = frozenset()
    sampling: Sampling = GREEDY
    guide: Guide | None = None
    scored: bool = False
    adjustment: LogitAdjustment | None = None


@dataclass(frozen=True, slots=True)
class Score:
    """The natural logarithm of a token's probability, and those of the likeliest tokens.

    Parameters
    ----------
    logprob : float
        The token's own.
    likeliest : tuple of (int, float), optional
        Tokens and theirs, the likeliest first.

    Examples
    --------
    >>> from mesh.inference.continuous_batching import Score
    >>> Score(-0.7, ((5, -0.7), (2, -1.1))).likeliest[0]
    (5, -0.7)
    """

    logprob: float
    likeliest: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class ChosenToken:
    """A token of a text.

    Parameters
    ----------
    number : int
        The text's number in its batch.
    token : int
        The token.
    reason : str, optional
        Why it is the last one, "" if it is not.
    score : Score, optional
        The logarithm of its probability, if the text wants it.
    cached : int, optional
        How many tokens of the text's prompt needed no reading, since a text before began with them.

    Examples
    --------
    >>> from mesh.inference.continuous_batching import ChosenToken
    >>> ChosenToken(0, 17, "stop").reason
    'stop'
    """

    number: int
    token: int
    reason: str = ""
    score: Score | None = None
    cached: int = 0


@dataclass(frozen=True, slots=True)
class Checked:
    """How many drafts a step checked for a text, and how many of the first ones it chose itself."""

    number: int
    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True)
class Feeds:
    """What a step takes, by slots: see `kv_cache_step.feeds`."""

    ids: NDArray[np.int32]
    start: NDArray[np.int32]
    count: NDArray[np.int32]
    follow: NDArray[np.bool_]
    table: NDArray[np.int32]
    settings: tuple[Sampling, ...]
    texts: tuple[TextRequest | None, ...] = ()
    changes: tuple[dict[int, tuple[float, float]], ...] = ()  # of logits: `LogitAdjustment.changes`
    drafts: NDArray[np.int32] | None = None  # how many of the tokens are drafts


@dataclass(frozen=True, slots=True)
class Carried:
    """A text that goes on in another batch: what was asked, its tokens until now, and how many of them were found when
    it began (None: it has not begun)."""

    request: TextRequest
    tokens: tuple[int, ...]
    cached: int | None = None


@dataclass(slots=True, eq=False)
class _Text:
    request: TextRequest
    tokens: list[int]  # the prompt, and what was chosen
    fed: int = 0  # how many positions the steps asked for fill
    coming: int = 0  # tokens that steps in flight will choose
    pages: list[int] = field(default_factory=list)
    published: int = 0  # how many of the pages others may find
    keys: list[bytes] = field(default_factory=list)  # of the pages that the tokens fill
    cached: int | None = None  # how many tokens were found when it began; None before that
    speculates: bool = False  # waits for drafts before each step
    drafts: tuple[int, ...] | None = None  # None: a drafter has said nothing yet
    checking: tuple[int, ...] = ()  # the drafts of the step in flight
    sure: int | None = None  # of a text that drafts: so many of its tokens are known to be true
    goal: int | None = None  # of a text that drafts: it rests with so many tokens

    @property
    def produced(self) -> int:
        return len(self.tokens) - len(self.request.prompt)

    @property
    def satisfied(self) -> bool:
        known = len(self.tokens) + self.coming
        return self.produced + self.coming >= self.request.tokens_max or (self.goal is not None and known >= self.goal)

    def reason(self, token: int) -> str:
        """Why this token is the last one, "" if it is not."""
        if token in self.request.ends:
            return STOP
        ended = self.request.guide.accept(token) if self.request.guide is not None else ""
        return ended or (FULL if self.produced >= self.request.tokens_max else "")

    @property
    def awaited(self) -> bool:
        """Whether its guide, what counts its tokens, or its drafter has to see a token first, or drafts are to come."""
        counts = self.request.adjustment is not None and self.request.adjustment.counts
        alone = self.request.guide is not None or counts or self.speculates or bool(self.checking)
        return (alone and self.coming > 0) or (self.due and self.drafts is None)

    @property
    def due(self) -> bool:
        """Whether it speculates, and all of its tokens are known and read but the last one, which is not the prompt's:
        then its next step checks drafts."""
        return self.speculates and not self.coming and self.produced > 0 and self.fed == len(self.tokens) - 1

    @property
    def checkable(self) -> tuple[int, ...]:
        """The drafts that its next step checks: a token more is chosen behind them."""
        if not self.due or not self.drafts:
            return ()
        return self.drafts[: self.request.tokens_max - self.produced - 1]

    @property
    def changes(self) -> dict[int, tuple[float, float]]:
        """What its next logits become, by token."""
        adjustment = self.request.adjustment
        return {} if adjustment is None else adjustment.changes(self.tokens, len(self.request.prompt))

    @property
    def room(self) -> int:
        """How many positions it wants for now."""
        known = len(self.tokens) + self.coming
        return max(self.fed + 1, known + min(SPARE, self.request.tokens_max - self.produced - self.coming) - 1)

    @property
    def most(self) -> int:
        """How many positions it takes at most."""
        return len(self.request.prompt) + self.request.tokens_max - 1

    def more(self, tokens: int) -> int:
        """How many pages more so many positions take."""
        return max(0, pages_for(tokens) - len(self.pages))

    @property
    def pages_least(self) -> int:
        """The pages without which it does not begin: those of its tokens, and one to go on in."""
        return min(pages_for(len(self.tokens)) + 1, pages_for(self.most))

    def all_keys(self) -> list[bytes]:
        """The keys of the pages that its tokens fill."""
        self.keys += prefix_keys(self.tokens[len(self.keys) * PAGE :], self.keys[-1] if self.keys else b"")
        return self.keys

    def keys_before(self) -> list[bytes]:
        """The keys without the last token, which is always read: what follows it is computed then.  Pages with tokens
        that may turn out not to be true are not among them: nobody writes to a page that others have found."""
        return self.all_keys()[: (self.lasting - 1) // PAGE]

    @property
    def lasting(self) -> int:
        """How many of its tokens stay as they are."""
        return len(self.tokens) if self.sure is None else min(self.sure, len(self.tokens))

    def again(self) -> _Text:
        """The same text, of which nothing is read."""
        return _Text(self.request, self.tokens, keys=self.keys, cached=self.cached, sure=self.sure, goal=self.goal)

    def going_on(self, tokens: Sequence[int], more: int) -> _Text:
        """A text that drafts, with the tokens that turned out to be true, up to so many more: it goes on from where
        they differ from its own."""
        both = zip(self.tokens, tokens, strict=False)
        same = next(
            (place for place, (own, true) in enumerate(both) if own != true), min(len(self.tokens), len(tokens))
        )
        assert self.published * PAGE <= same
        return _Text(
            self.request, list(tokens), min(self.fed, same, len(tokens) - 1), 0, self.pages, self.published,
            self.keys[: same // PAGE], self.cached, sure=len(tokens), goal=len(tokens) + more,
        )  # fmt: skip


@dataclass(slots=True)
class Slots:
    """The pure machine of a batch.

    `slots_max` bounds the batch, `pages_max` its pages, `length_max` a text (None: nothing does).  A pool of up to
    `pages_kept` pages grows before it forgets what was read, and for whole texts; a larger one as texts need it.  Steps
    often have `few` tokens of each text, and seldom more.
    """

    slots_max: int
    chunk: int
    length_max: int | None = None
    pages_max: int = 1 << 30
    pages_kept: int = 0
    few: int = 1
    room: Room = field(init=False)
    pages: KvPages = field(init=False)
    waiting: deque[_Text] = field(default_factory=deque)
    read: int = 0  # tokens that steps were asked to read, beside those that the steps before chose
    spared: int = 0  # tokens that were found
    put_back: int = 0  # how often a text gave its pages back
    checked: list[Checked] = field(default_factory=list)  # what steps said of drafts; whoever wants to know clears it
    _texts: list[_Text | None] = field(default_factory=list)
    _in_flight: deque[list[_Text | None]] = field(default_factory=deque)
    _roomy: int = 0  # steps since the room was needed

    def __post_init__(self) -> None:
        self.room = Room(1, min(PAGES_MIN, self.pages_max), self._length(1), self.chunk, self.few)
        self.pages = KvPages(self.room.pages)
        self._texts = [None]

    @property
    def in_flight(self) -> int:
        """Steps that were asked for and not answered."""
        return len(self._in_flight)

    @property
    def active(self) -> int:
        return sum(text is not None for text in self._texts)

    @property
    def free(self) -> int:
        """How many more texts there are slots for, those that wait counted."""
        return bucket(self.slots_max) - self.active - len(self.waiting)

    @property
    def idle(self) -> bool:
        return not self.active and not self.waiting

    def join(self, request: TextRequest, drafts: bool = False) -> None:
        """A text comes.  One that `drafts` rests behind its first token."""
        text = _Text(request, list(request.prompt))
        if drafts:
            text.sure, text.goal = len(request.prompt), len(request.prompt) + 1
        self.waiting.append(text)

    def go_on(self, number: int, tokens: Sequence[int], more: int) -> None:
        """A text that drafts goes on behind these tokens, which are true, up to so many more."""
        for slot, text in enumerate(self._texts):
            if text is not None and text.request.number == number:
                self._texts[slot] = text.going_on(tokens, more)
        changed = [each.going_on(tokens, more) if each.request.number == number else each for each in self.waiting]
        self.waiting = deque(changed)

    def speculate(self, number: int, wanted: bool) -> None:
        """Whether a text waits for drafts before its steps from now on."""
        for text in self._texts:
            if text is not None and text.request.number == number:
                text.speculates, text.drafts = wanted, None

    def due(self) -> list[tuple[int, int]]:
        """The numbers of the texts that wait for drafts, and how many are of use to them."""
        there = [text for text in self._texts if text is not None and text.due and text.drafts is None]
        return [(text.request.number, text.request.tokens_max - text.produced - 1) for text in there]

    def propose(self, number: int, drafts: Sequence[int]) -> None:
        """Drafts come for a text, which checks them if it still waits for some."""
        for text in self._texts:
            if text is not None and text.request.number == number and text.due:
                text.drafts = tuple(drafts)

    def leave(self, number: int) -> None:
        """A text is not wanted any more."""
        self.waiting = deque(text for text in self.waiting if text.request.number != number)
        for slot, text in enumerate(self._texts):
            if text is not None and text.request.number == number:
                self._end(slot, text)

    def carried(self, waiting: bool = False) -> list[Carried]:
        """Take all texts out, or those that are waiting alone, the first ones first; answers in flight are nobody's."""
        there = [] if waiting else sorted([text for text in self._texts if text is not None], key=_number)
        for text in there:
            self._end(self._texts.index(text), text)
        taken = [*there, *self.waiting]
        self.waiting.clear()
        return [Carried(text.request, tuple(text.tokens), text.cached) for text in taken]

    def resume(self, carried: Carried) -> None:
        """A text comes that has begun elsewhere."""
        self.waiting.append(_Text(carried.request, list(carried.tokens), cached=carried.cached))

    @property
    def tokens_asked(self) -> int:
        """The tokens that all texts have memory for, and those without which the ones that wait do not begin."""
        return PAGE * (self.pages.held + sum(text.pages_least for text in self.waiting))

    def found(self, keys: Sequence[bytes]) -> int:
        """How many tokens of a text with these keys (`prefix_keys`) need no reading."""
        return PAGE * len(self.pages.found(keys))

    def wanted(self) -> Room:
        """The room that the texts need: the present one, if they fit and do not lie in it loosely for long."""
        slots = min(bucket(self.active + len(self.waiting)), bucket(self.slots_max))
        there = [text for text in self._texts if text is not None]
        coming = list(self.waiting)[: max(slots, self.room.slots) - self.active]
        length = max((self._length(text.room) for text in [*there, *coming]), default=0)
        moves = slots > self.room.slots or length > self.room.length
        pages = self._pages_wanted(there, coming, coming if moves else coming[:1])
        if coming and there and self._missing(coming[0]) > self.pages.free + pages - self.room.pages:
            slots = self.room.slots  # no text can come before another one ends
        if slots > self.room.slots or length > self.room.length or pages > self.room.pages:
            room = self.room
            most = max(slots, room.slots), max(pages, room.pages), max(length, room.length)
            return Room(*most, self.chunk, self.few)
        more = max((text.request.tokens_max - text.produced for text in there), default=0)
        return self._needed() if self._roomy >= ROOMY_STEPS and more >= ROOMY_TOKENS else self.room

    def order(self, room: Room) -> tuple[int, ...]:
        """The slots whose texts go into another room, in the order in which they lie there."""
        slots = range(self.room.slots)
        if room.slots >= self.room.slots:
            return tuple(slots)
        return tuple([slot for slot in slots if self._texts[slot] is not None])

    def moved(self, room: Room, order: tuple[int, ...] | None = None) -> None:
        """The batch has another room now, with what was in these slots (None: in all); no step is in flight."""
        assert not self._in_flight
        texts = [self._texts[slot] for slot in (self.order(room) if order is None else order)]
        self._texts = texts + [None] * (room.slots - len(texts))
        self.pages.grow(room.pages)
        self.room = room
        self._roomy = 0

    def lost(self, room: Room | None = None) -> None:
        """Nothing is left of the state, and no step will be answered: all texts are read again, in `room`."""
        self._in_flight.clear()
        self.room = room or self.room
        again = [text.again() for text in self._texts if text is not None]
        self.waiting.extendleft(sorted(again, key=_number, reverse=True))
        self._texts = [None] * self.room.slots
        self.pages = KvPages(self.room.pages)

    def refused(self) -> tuple[int, ...]:
        """The numbers of texts that wait for more pages than there will ever be."""
        return tuple([text.request.number for text in self.waiting if text.pages_least >= self.pages_max])

    def ask(self) -> Feeds | None:
        """The next step, None if no text has anything to do in one."""
        self._admit()
        slots = self.room.slots
        there = [text for text in self._texts if text is not None and self._has_work(text)]
        provided = [text for text in sorted(there, key=_number) if text in self._texts and self._provide(text)]
        feeds = Feeds(
            np.zeros((slots, self.chunk), np.int32), np.zeros(slots, np.int32), np.zeros(slots, np.int32),
            np.zeros(slots, np.bool_), np.zeros((slots, pages_for(self.room.length)), np.int32),
            tuple([text.request.sampling if text else GREEDY for text in self._texts]),
            tuple([text.request if text else None for text in self._texts]),
            tuple([text.changes if text else {} for text in self._texts]), np.zeros(slots, np.int32),
        )  # fmt: skip
        choosing: list[_Text | None] = [None] * slots
        shares = self._shares(provided)
        for slot, text in enumerate(self._texts):
            if text is not None and shares.get(text):
                choosing[slot] = self._give(feeds, slot, text, shares[text])
        if not feeds.count.any():
            return None
        self._in_flight.append(choosing)
        self._roomy = 0 if self._needed() == self.room else self._roomy + 1
        return feeds

    def answer(
        self, chosen: Sequence[int] | Sequence[Sequence[int]], scores: Sequence[Score | None] | None = None
    ) -> list[ChosenToken]:
        """The oldest step in flight chose these tokens, by slots, where it checked drafts those behind each of them,
        too; `scores` if it has any."""
        tokens: list[ChosenToken] = []
        rows = np.asarray(chosen).reshape(len(chosen), -1).tolist()
        for slot, (text, row) in enumerate(zip(self._in_flight.popleft(), rows, strict=True)):
            if text is None or text not in self._texts:
                continue
            text.coming -= 1
            score = scores[slot] if scores is not None and text.request.scored else None
            for token in row[: 1 + self._accepted(text, row)]:
                text.tokens.append(token)
                reason = text.reason(token)
                tokens.append(ChosenToken(text.request.number, token, reason, score, text.cached or 0))
                if reason:
                    break
            self._publish(text)
            if tokens[-1].reason:
                self._end(self._texts.index(text), text)
        return tokens

    def _accepted(self, text: _Text, chosen: Sequence[int]) -> int:
        """How many of the drafts in flight are what the step chose; nothing was read behind these."""
        drafts, text.checking = text.checking, ()
        if not drafts:
            return 0
        pairs = zip(drafts, chosen, strict=False)
        accepted = next((place for place, (draft, token) in enumerate(pairs) if draft != token), len(drafts))
        text.fed -= len(drafts) - accepted
        self.checked.append(Checked(text.request.number, len(drafts), accepted))
        return accepted

    # -- rooms

    def _pages_wanted(self, there: Sequence[_Text], coming: Sequence[_Text], first: Sequence[_Text]) -> int:
        """The pages that the pool should have: more than now if the next step lacks some, or the `first` texts that
        wait.  These are all of them where the batch moves anyway: it would move again, and another step be made."""
        lacking = sum(text.more(self._until(text)) for text in there if self._has_work(text))
        lacking += sum(self._missing(text) for text in first)
        kept = self.pages.idle if self.room.pages < self.pages_kept else 0
        if lacking <= self.pages.free - kept:
            return self.room.pages
        texts, taken = [*there, *coming], 1 + self.pages.held + kept
        to_the_end = bucket(taken + sum(text.more(text.most) for text in texts), PAGES_MIN)
        for_now = bucket(taken + sum(text.more(text.room) for text in texts), PAGES_MIN)
        pages = to_the_end if to_the_end <= self.pages_kept else max(for_now, self.pages_kept)
        return max(min(pages, self.pages_max), self.room.pages)

    def _missing(self, text: _Text) -> int:
        """How many pages a text takes from those that can be had when it begins."""
        found = self.pages.found(text.keys_before())
        return text.pages_least - len(found) + self.pages.cost(found)

    def _needed(self) -> Room:
        """What would do for the texts that there are, to their ends; a large pool is not moved for that."""
        count = len(self.waiting) + self.active
        slots = min(bucket(count), self.room.slots) if self.room.pages <= self.pages_kept else self.room.slots
        return replace(self.room, slots=slots)

    def _length(self, tokens: int) -> int:
        """1024, 4096, 16384, ..."""
        length = LENGTH_MIN
        while length < tokens:
            length *= LENGTH_STEP
        return length if self.length_max is None else min(length, self.length_max)

    # -- pages

    def _admit(self) -> None:
        """Waiting texts take free slots in their order, as long as there are pages for what is known of them."""
        for slot, there in enumerate(self._texts):
            if there is not None or not self.waiting:
                continue
            text = self.waiting[0]
            if self._missing(text) > self.pages.free:
                return
            self._texts[slot] = self.waiting.popleft()
            text.pages = self.pages.found(text.keys_before())
            self.pages.hold(text.pages)
            text.published = len(text.pages)
            text.fed = text.published * PAGE
            self.spared += text.fed
            text.cached = text.fed if text.cached is None else text.cached
            self._take(text, PAGE * text.pages_least)

    def _provide(self, text: _Text) -> bool:
        """Give a text pages for its next tokens; where there are none, drafts that have no place are dropped, and then
        the text that came last is put back.

        False if it has to wait: a step in flight may end a text, and its own token would be lost."""
        while not self._take(text, self._until(text)):
            if text.drafts:
                text.drafts = text.drafts[: max(0, len(text.pages) * PAGE - text.fed - 1)]
                continue
            there = [one for one in self._texts if one is not None]
            last = max(there, key=_number)
            if any(one.satisfied for one in there) or (last is text and text.coming):
                return False
            self._end(self._texts.index(last), last)
            self.waiting.appendleft(last.again())
            self.put_back += 1
            if last is text:
                return False
        return True

    def _take(self, text: _Text, tokens: int) -> bool:
        """Take pages for so many tokens; False if there are too few."""
        while len(text.pages) < pages_for(tokens):
            page = self.pages.take()
            if page is None:
                return False
            text.pages.append(page)
        return True

    def _publish(self, text: _Text) -> None:
        """Let others find the pages whose tokens are known and that the steps asked for fill."""
        whole = min(text.fed, text.lasting) // PAGE
        if whole > text.published:
            keys = text.all_keys()
            for place in range(text.published, whole):
                self.pages.publish(text.pages[place], keys[place])
            text.published = whole

    def _end(self, slot: int, text: _Text) -> None:
        self.pages.release(text.pages)
        self._texts[slot] = None

    # -- steps

    def _has_work(self, text: _Text) -> bool:
        return not text.satisfied and not text.awaited and text.fed < self.room.length

    def _known(self, text: _Text) -> list[int]:
        """The tokens that its next step reads; none if that takes what the step before chooses."""
        return text.tokens[text.fed : min(text.fed + self.chunk, self.room.length)]

    def _until(self, text: _Text) -> int:
        """The positions that its next step fills, and all before them."""
        return text.fed + max(len(self._known(text)), 1) + len(self._drafts(text))

    def _drafts(self, text: _Text) -> tuple[int, ...]:
        """The drafts that its next step has a column and a position for."""
        return text.checkable[: max(0, min(self.chunk, self.room.length - text.fed) - 1)]

    def _shares(self, texts: Sequence[_Text]) -> dict[_Text, int]:
        """How many tokens of each text the next step takes.

        A step that takes all tokens of many texts computes as many for each.  So where it would be less than half full,
        as many texts as may read while the others go on do so, the first ones first, and the others read one token.
        """
        shares = {text: self._until(text) - text.fed for text in texts}
        readers = [text for text, share in shares.items() if share > 1]
        few = max(shares.values(), default=0) <= self.few
        if not few and 2 * sum(shares.values()) < self.room.slots * self.chunk and self.room.readers:
            for text in readers[self.room.readers :]:
                shares[text] = 1
        return shares

    def _give(self, feeds: Feeds, slot: int, text: _Text, share: int) -> _Text | None:
        """Put so many of a text's next tokens into the feeds; the text, if this step chooses one for it."""
        known, drafts = self._known(text)[:share], self._drafts(text)[: share - 1]
        count = max(len(known), 1) + len(drafts)
        feeds.ids[slot, : len(known) + len(drafts)] = [*known, *drafts]
        feeds.start[slot], feeds.count[slot] = text.fed, count
        feeds.follow[slot] = not known
        if drafts and feeds.drafts is not None:
            feeds.drafts[slot] = len(drafts)
        text.checking, text.drafts = drafts, None
        text.fed += count
        self.read += len(known)
        feeds.table[slot, : len(text.pages)] = text.pages
        self._publish(text)
        if text.fed < len(text.tokens) + text.coming:
            return None
        text.coming += 1
        return text


def _number(text: _Text) -> int:
    return text.request.number
