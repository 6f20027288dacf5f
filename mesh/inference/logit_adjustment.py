"""Logit adjustment: what a text changes of its logits before a token is chosen.

Biases are added to the logits of some tokens.  Penalties make tokens that came before less likely: `presence` and
`frequency` as OpenAI's API has them, `repeat` as llama.cpp has it.  A step takes the tokens whose logits change, and by
how much; all others keep their logits, to the bit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.errors import InputError

BIASES_MAX = 300  # of a text
BIAS_MAX = 100.0
PENALTY_MAX = 2.0  # of presence and frequency
REPEAT_MIN, REPEAT_MAX = 0.01, 100.0


@dataclass(frozen=True, slots=True)
class LogitAdjustment:
    """What a text changes of its logits.

    The logit of a token that came c times, c above 0, is divided by `repeat` if it is positive, else multiplied by it;
    then c * `frequency` + `presence` is taken from it.  Its bias, if it has one, is added.

    Parameters
    ----------
    biases : tuple of (int, float), optional
        Tokens, and what is added to their logits, from -100 to 100; up to 300 tokens, each once.
    presence : float, optional
        From -2 to 2, taken from the logits of tokens that came.
    frequency : float, optional
        From -2 to 2, taken as often as a token came.
    repeat : float, optional
        From 0.01 to 100; 1 changes nothing.
    window : int or None, optional
        How many of the last tokens count, those of the prompt too; None for all tokens behind the prompt.

    Raises
    ------
    InputError
        If a value is out of its range.

    Notes
    -----
    OpenAI's API reference and llama.cpp's sampler of penalties have these formulas.

    Examples
    --------
    >>> from mesh.inference import LogitAdjustment
    >>> penalties = LogitAdjustment(presence=0.5, frequency=0.25)
    >>> penalties.changes([7, 8, 8], 1)
    {8: (1.0, -1.0)}
    """

    biases: tuple[tuple[int, float], ...] = ()
    presence: float = 0.0
    frequency: float = 0.0
    repeat: float = 1.0
    window: int | None = None

    def __post_init__(self) -> None:
        _between(self.presence, "presence", -PENALTY_MAX, PENALTY_MAX)
        _between(self.frequency, "frequency", -PENALTY_MAX, PENALTY_MAX)
        _between(self.repeat, "repeat", REPEAT_MIN, REPEAT_MAX)
        try:
            pairs = tuple([(token, bias) for token, bias in self.biases])
        except (TypeError, ValueError):
            raise InputError(
                f"biases are pairs of a token and a number, got {self.biases!r:.60}",
                next_step="Of a mapping, give tuple(biases.items())",
            ) from None
        object.__setattr__(self, "biases", pairs)
        if len(self.biases) > BIASES_MAX:
            raise InputError(f"a text has {BIASES_MAX} biases at most, got {len(self.biases)}")
        for token, bias in self.biases:
            if not isinstance(token, Integral) or isinstance(token, bool) or token < 0:
                raise InputError(f"a bias is for a token, counted from 0, got {token!r}")
            _between(bias, f"the bias of token {token}", -BIAS_MAX, BIAS_MAX)
        if len({token for token, _ in self.biases}) < len(self.biases):
            raise InputError("a token has one bias, and one of these has several")
        if self.window is not None and (
            not isinstance(self.window, Integral) or isinstance(self.window, bool) or self.window < 0
        ):
            raise InputError(f"window, the last tokens that count, counts from 0, got {self.window!r}")

    @property
    def counts(self) -> bool:
        """Whether it depends on the tokens that came: then each has to be known before the next one is chosen."""
        return self.window != 0 and (self.presence, self.frequency, self.repeat) != (0, 0, 1)

    @property
    def neutral(self) -> bool:
        """Whether it changes nothing."""
        return not self.counts and not any(bias for _, bias in self.biases)

    def changes(self, tokens: Sequence[int], prompt: int) -> dict[int, tuple[float, float]]:
        """Tell what the logits of the next token become.

        Parameters
        ----------
        tokens : sequence of int
            The text until now.
        prompt : int
            How many of them are the prompt.

        Returns
        -------
        dict of int to (float, float)
            By token: what its logit is divided by, or multiplied if it is not positive, and what is added then.
        """
        first = prompt if self.window is None else max(0, len(tokens) - self.window)
        counted = Counter(tokens[first:]) if self.counts else {}
        changes = {
            token: (float(self.repeat), -float(count * self.frequency + self.presence))
            for token, count in counted.items()
        }
        for token, bias in self.biases:
            repeat, added = changes.get(token, (1.0, 0.0))
            changes[token] = (repeat, added + bias)
        return changes


def changed_max(length: int, vocabulary: int) -> int:
    """The most tokens whose logits a text of so many tokens changes."""
    return min(vocabulary, length + BIASES_MAX)


def fed(texts: Sequence[dict[int, tuple[float, float]]], most: int) -> dict[str, NDArray[Any]]:
    """What a step takes of the changes of each text: tokens i32 (n, most), -1 for none, and what `repeat`
    and `added` are for each, f32 (n, most)."""
    tokens = np.full((len(texts), most), -1, np.int32)
    repeat, added = np.ones((len(texts), most), np.float32), np.zeros((len(texts), most), np.float32)
    for slot, changes in enumerate(texts):
        if changes:
            tokens[slot, : len(changes)] = list(changes)
            repeat[slot, : len(changes)], added[slot, : len(changes)] = zip(*changes.values(), strict=True)
    return {"changed": tokens, "repeat": repeat, "added": added}


def _between(value: Any, what: str, least: float, most: float) -> None:
    if not isinstance(value, Real) or isinstance(value, bool) or not value <= most or value < least:
        raise InputError(f"{what} is a number from {least:g} to {most:g}, got {value!r}")
