"""Continuous batching: which text of a running batch does what in the next step, and what the answers mean.  Pure.

Texts wait, take a free slot, are read from their prompt, go on token by token, and leave; others go on meanwhile.
Steps are asked for before the ones ahead of them were answered: what a step chooses, the next one takes over on the
workers.  Whoever ends leaves steps behind that are under way; their answers are nobody's.

A batch that is too small asks for another `room`, and so does one that has been too large for a while; one whose state
was lost reads every text again, with the tokens that were chosen.  A text with a guide is asked for one token at a
time: the guide has to see it before it says which ones may follow.  This file knows no session and no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .settings import GREEDY, Room, Sampling

LENGTH_MIN = 64
SPARE = 128  # tokens that a text is given room for when it comes, if it wants as many
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

    `guide` limits its tokens; `scored` asks for the logarithms of their probabilities.
    """

    number: int
    prompt: tuple[int, ...]
    tokens_max: int
    ends: frozenset[int] = frozenset()
    sampling: Sampling = GREEDY
    guide: Guide | None = None
    scored: bool = False


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


@dataclass(frozen=True, slots=True)
class Feeds:
    """What a step takes, by slots: see `kv_cache_step.feeds`."""

    ids: NDArray[np.int32]
    start: NDArray[np.int32]
    count: NDArray[np.int32]
    follow: NDArray[np.bool_]
    settings: tuple[Sampling, ...]
    texts: tuple[TextRequest | None, ...] = ()


@dataclass(slots=True, eq=False)
class _Text:
    request: TextRequest
    tokens: list[int]  # the prompt, and what was chosen
    fed: int = 0  # how many positions the steps asked for fill
    coming: int = 0  # tokens that steps under way will choose

    @property
    def produced(self) -> int:
        return len(self.tokens) - len(self.request.prompt)

    @property
    def satisfied(self) -> bool:
        return self.produced + self.coming >= self.request.tokens_max

    def reason(self, token: int) -> str:
        """Why this token is the last one, "" if it is not."""
        if token in self.request.ends:
            return STOP
        ended = self.request.guide.accept(token) if self.request.guide is not None else ""
        return ended or (FULL if self.produced >= self.request.tokens_max else "")

    @property
    def awaited(self) -> bool:
        """Whether its guide has to see a token first."""
        return self.request.guide is not None and self.coming > 0

    @property
    def room(self) -> int:
        """How long a slot has to be for now."""
        known = len(self.tokens) + self.coming
        return max(self.fed + 1, known + min(SPARE, self.request.tokens_max - self.produced - self.coming) - 1)


@dataclass(slots=True)
class Slots:
    """The pure machine of a batch.  `slots_max` bounds the batch, `length_max` a text (None: nothing does)."""

    slots_max: int
    chunk: int
    length_max: int | None = None
    room: Room = field(init=False)
    waiting: deque[_Text] = field(default_factory=deque)
    _texts: list[_Text | None] = field(default_factory=list)
    _under_way: deque[list[_Text | None]] = field(default_factory=deque)
    _roomy: int = 0  # steps since the room was needed

    def __post_init__(self) -> None:
        self.room = Room(1, self._length(1), self.chunk)
        self._texts = [None]

    @property
    def under_way(self) -> int:
        """Steps that were asked for and not answered."""
        return len(self._under_way)

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

    def join(self, request: TextRequest) -> None:
        """A text comes."""
        self.waiting.append(_Text(request, list(request.prompt)))

    def leave(self, number: int) -> None:
        """A text is not wanted any more."""
        self.waiting = deque(text for text in self.waiting if text.request.number != number)
        self._texts = [None if text is not None and text.request.number == number else text for text in self._texts]

    def wanted(self) -> Room:
        """The room that the texts need: the present one, if they fit and do not lie in it loosely for long."""
        slots = min(bucket(self.active + len(self.waiting)), bucket(self.slots_max))
        lengths = [text.fed + 1 for text in self._texts if text is not None and not text.satisfied]
        free = max(slots, self.room.slots) - self.active
        lengths += [text.room for text in list(self.waiting)[:free]]
        length = max((self._length(tokens) for tokens in lengths), default=0)
        if slots > self.room.slots or length > self.room.length:
            return Room(max(slots, self.room.slots), max(length, self.room.length), self.chunk)
        more = max((text.request.tokens_max - text.produced for text in self._texts if text is not None), default=0)
        return self._needed() if self._roomy >= ROOMY_STEPS and more >= ROOMY_TOKENS else self.room

    def order(self, room: Room) -> tuple[int, ...]:
        """The slots whose texts go into another room, in the order in which they lie there."""
        slots = range(self.room.slots)
        if room.slots >= self.room.slots:
            return tuple(slots)
        return tuple([slot for slot in slots if self._texts[slot] is not None])

    def moved(self, room: Room, order: tuple[int, ...] | None = None) -> None:
        """The batch has another room now, with what was in these slots (None: in all); no step is under way."""
        assert not self._under_way
        texts = [self._texts[slot] for slot in (self.order(room) if order is None else order)]
        self._texts = texts + [None] * (room.slots - len(texts))
        self.room = room
        self._roomy = 0

    def lost(self) -> None:
        """Nothing is left of the state, and no step will be answered: all texts are read again."""
        self._under_way.clear()
        for text in self._texts:
            if text is not None:
                text.fed = text.coming = 0

    def ask(self) -> Feeds | None:
        """The next step, None if no text has anything to do in one."""
        for slot, text in enumerate(self._texts):
            if text is None and self.waiting:
                self._texts[slot] = self.waiting.popleft()
        slots = self.room.slots
        feeds = Feeds(
            np.zeros((slots, self.chunk), np.int32), np.zeros(slots, np.int32), np.zeros(slots, np.int32),
            np.zeros(slots, np.bool_), tuple([text.request.sampling if text else GREEDY for text in self._texts]),
            tuple([text.request if text else None for text in self._texts]),
        )  # fmt: skip
        choosing: list[_Text | None] = [None] * slots
        for slot, text in enumerate(self._texts):
            if text is not None and not text.satisfied and not text.awaited and text.fed < self.room.length:
                choosing[slot] = self._give(feeds, slot, text)
        if not feeds.count.any():
            return None
        self._under_way.append(choosing)
        self._roomy = 0 if self._needed() == self.room else self._roomy + 1
        return feeds

    def answer(self, chosen: Iterable[int], scores: Sequence[Score | None] | None = None) -> list[ChosenToken]:
        """The oldest step under way chose these tokens, by slots; `scores` if it has any."""
        tokens = []
        for slot, (text, token) in enumerate(zip(self._under_way.popleft(), chosen, strict=True)):
            if text is None or text not in self._texts:
                continue
            text.coming -= 1
            text.tokens.append(int(token))
            reason = text.reason(int(token))
            score = scores[slot] if scores is not None and text.request.scored else None
            tokens.append(ChosenToken(text.request.number, int(token), reason, score))
            if reason:
                self._texts[self._texts.index(text)] = None
        return tokens

    # -- helpers

    def _needed(self) -> Room:
        """What would do for the texts that there are, to their ends."""
        there = [*self.waiting, *(text for text in self._texts if text is not None)]
        slots = min(bucket(len(there)), self.room.slots)
        length = max((self._length(len(text.request.prompt) + text.request.tokens_max) for text in there), default=0)
        return Room(slots, min(max(length, self._length(1)), self.room.length), self.chunk)

    def _give(self, feeds: Feeds, slot: int, text: _Text) -> _Text | None:
        """Put a text's next tokens into the feeds; the text, if this step chooses one for it."""
        known = text.tokens[text.fed : min(text.fed + self.chunk, self.room.length)]
        feeds.ids[slot, : len(known)] = known
        feeds.start[slot], feeds.count[slot] = text.fed, max(len(known), 1)
        feeds.follow[slot] = not known
        text.fed += max(len(known), 1)
        if text.fed < len(text.tokens) + text.coming:
            return None
        text.coming += 1
        return text

    def _length(self, tokens: int) -> int:
        """64, 96, 128, 192, 256, ...: a step looks at all that a slot has room for, so that is not twice too much."""
        length = bucket(tokens, LENGTH_MIN)
        length = length * 3 // 4 if length > LENGTH_MIN and tokens <= length * 3 // 4 else length
        return length if self.length_max is None else min(length, self.length_max)
