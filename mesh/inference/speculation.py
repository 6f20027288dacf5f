"""Speculation: how many drafts a text asks for next, by how often they were right and by what they cost.  Pure.

A small model, the drafter, says which tokens come next; one step of the target checks them all, and takes them up to
the first that is not what it chose itself (Leviathan et al., 2023, arXiv 2211.17192; Chen et al., 2023, arXiv
2302.01318).  Both draw with the same noise at the same position (`sampling.py`), so drafts are often right where tokens
are drawn, too, and every token is the one that the target alone would have chosen (Daliri et al., 2024, arXiv
2408.07978; decision 52).

The number is the one that promises the most tokens per second.  Where none promises more than a step without drafts, a
text goes on without them for a while, and tries again later, less and less often.  The same happens where drafts do not
come in time.  This file knows no clock: times are arguments.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

DRAFTS_MAX = 64  # of a step
GAIN_MIN = 1.05  # tokens per second with drafts over those without, below which drafts are not worth it
MEMORY = 0.95  # how much of what was seen counts after one draft more: some 20 drafts of a text are remembered
FIRST = 0.8, 4.0  # of drafts that nothing is known of, so many are right, and that is worth so many that were checked
TRIALS, TRY_AGAIN = 3, 2.0  # rounds of a draft after a pause, and what was seen before it is worth so many drafts then
PAUSE_MIN, PAUSE_MAX = 16, 512  # tokens that a text goes on without drafts; each pause in a row is twice as long
MEASURED = 12  # tokens without drafts, by which a step without them is measured
KEPT, SEEN_MIN = 12, 3  # measurements of one kind, and how many say something
STALE_S = 60.0  # so long a step without drafts counts as measured
PLAIN, CHECK, DRAFT = "plain", "check", "draft"


@dataclass(frozen=True, slots=True)
class Costs:
    """What a step that checks drafts takes, and a draft, over what a step without drafts takes.  To ask for drafts and
    to be told takes as long as one more."""

    check: float = 1.25
    draft: float = 0.12


def best(agreement: float, costs: Costs, most: int) -> int:
    """The number of drafts, up to `most`, that promises the most tokens per second, where each draft is right with this
    probability once those before it are; 0 where that is not worth it."""
    speeds = [
        sum(agreement**place for place in range(drafts + 1)) / (costs.check + costs.draft * (drafts + 1))
        for drafts in range(1, most + 1)
    ]
    fastest = max(speeds, default=0.0)
    return 1 + speeds.index(fastest) if fastest > GAIN_MIN else 0


@dataclass(slots=True)
class Agreement:
    """How often drafts are right, of late."""

    right: float = FIRST[0] * FIRST[1]
    checked: float = FIRST[1]

    @property
    def share(self) -> float:
        return self.right / self.checked

    def saw(self, drafted: int, accepted: int) -> None:
        """Count how many of these drafts were right; those behind the first wrong one were not judged."""
        for place in range(min(drafted, accepted + 1)):
            self.right = MEMORY * self.right + (place < accepted)
            self.checked = MEMORY * self.checked + 1

    def worth(self, checked: float) -> Agreement:
        """The same share, of fewer drafts."""
        checked = min(checked, self.checked)
        return Agreement(self.share * checked, checked)


class StepTimes:
    """Seconds of steps, by their kind and the slots of the batch: the lower quartile of the last ones, since what
    disturbs a step makes it slower, and never faster."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], deque[float]] = {}
        self._plain_s: dict[int, float] = {}  # when a step without drafts was measured last

    def saw(self, what: str, slots: int, seconds: float, now_s: float) -> None:
        """A step of a batch with so many slots, or a draft for it, took so long."""
        self._seen.setdefault((what, slots), deque(maxlen=KEPT)).append(seconds)
        if what == PLAIN:
            self._plain_s[slots] = now_s

    def usual(self, what: str, slots: int) -> float | None:
        """What it takes usually; None if that was not seen often enough."""
        seen = self._seen.get((what, slots), ())
        return sorted(seen)[len(seen) // 4] if len(seen) >= SEEN_MIN else None

    def costs(self, slots: int, now_s: float) -> Costs | None:
        """The costs now; None where a step without drafts has to be measured first."""
        plain, at_s = self.usual(PLAIN, slots), self._plain_s.get(slots)
        if not plain or at_s is None or now_s - at_s > STALE_S:
            return None
        check, draft = self.usual(CHECK, slots), self.usual(DRAFT, slots)
        usual = Costs()
        return Costs(
            usual.check if check is None else max(1.0, check / plain), usual.draft if draft is None else draft / plain
        )


@dataclass(slots=True)
class _Text:
    agreement: Agreement
    rest: int = 0  # tokens before it tries again
    pause: int = PAUSE_MIN  # the next rest
    trials: int = 0  # rounds that ask for a draft though none is worth it, since a rest is over


@dataclass(slots=True)
class Speculation:
    """The pure machine of a batch whose texts ask for up to `drafts_max` drafts, or always for as many where it is not
    adaptive."""

    drafts_max: int
    adaptive: bool = True
    drafted: int = 0  # drafts that were checked
    accepted: int = 0  # those of them that were right
    missed: int = 0  # rounds whose drafts did not come in time, or failed
    agreement: Agreement = field(default_factory=Agreement)  # of all texts
    _rest: int = 0  # of the pause in which the last text ended
    _pause_next: int = PAUSE_MIN
    _texts: dict[int, _Text] = field(default_factory=dict)

    def join(self, number: int) -> None:
        """A text comes: what others saw counts a little, and a pause of the last one that is over is its own."""
        trials = TRIALS if self._rest else 0
        self._texts[number] = _Text(self.agreement.worth(FIRST[1]), self._rest, self._pause_next, trials)

    def leave(self, number: int) -> None:
        """A text is over."""
        text = self._texts.pop(number, None)
        if text is not None:
            self._rest, self._pause_next = max(1, text.rest) if text.trials else 0, text.pause

    def came(self, number: int, tokens: int) -> bool:
        """Tell whether a text, for which so many tokens came without drafts, asks for some again."""
        text = self._texts.get(number)
        if text is None:
            return False
        text.rest -= tokens
        return text.rest <= 0

    def wanted(self, number: int, most: int, costs: Costs | None) -> int:
        """How many drafts a text asks for, `most` at most; 0: it goes on without.  `costs` None: these are to be
        measured first."""
        text = self._texts[number]
        most = min(most, self.drafts_max)
        if not self.adaptive or most < 1:
            return most
        if costs is None:
            text.rest = MEASURED
            return 0
        drafts = best(text.agreement.share, costs, most)
        if not drafts and text.trials:
            drafts = 1
        text.trials = max(0, text.trials - 1)
        if not drafts:
            self._pause(text)
        return drafts

    def checked(self, number: int, drafted: int, accepted: int) -> None:
        """A step checked so many drafts of a text."""
        self.drafted += drafted
        self.accepted += accepted
        self.agreement.saw(drafted, accepted)
        text = self._texts.get(number)
        if text is not None:
            text.agreement.saw(drafted, accepted)
            if accepted == drafted:
                text.pause = PAUSE_MIN

    def late(self, number: int) -> None:
        """Drafts did not come in time, or the drafter failed."""
        self.missed += 1
        text = self._texts.get(number)
        if text is not None:
            self._pause(text)

    def _pause(self, text: _Text) -> None:
        text.rest, text.pause = text.pause, min(2 * text.pause, PAUSE_MAX)
        text.agreement, text.trials = text.agreement.worth(TRY_AGAIN), TRIALS
