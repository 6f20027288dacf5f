"""Settings: how a model is served, how a text's tokens are chosen, how large a batch of texts is.  Data only."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from numbers import Integral, Real
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wire.errors import ConfigError, InputError
from wire.ir.arithmetic import NATIVE_ARITHMETIC
from wire.policy.strategies import Strategy, strategy_of

from ..util.units import parse_size
from .speculation import DRAFTS_MAX

if TYPE_CHECKING:
    from ..models.model import Model

ROWS_MAX = 1 << 20  # of a batch, of a queue, and replicas
READERS_SHARE = 8  # one text in so many reads its prompt while the others go on by a token
CHUNK_MAX = 1 << 14  # tokens that a step reads of a prompt: a batch computes as many for each of its slots


def count(value: Any, what: str, least: int = 1, most: int | None = None) -> int:
    """A whole number of Python's or numpy's; InputError saying what it counts."""
    if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < least:
        raise InputError(f"{what} counts from {least}, got {value!r}")
    if most is not None and int(value) > most:
        raise InputError(f"{what} is {most} at most, got {value!r}")
    return int(value)


def tokens_of(prompt: Iterable[Any]) -> tuple[int, ...]:
    """The tokens of a prompt; InputError for what is no whole number."""
    try:
        return tuple([index(token) for token in prompt])
    except TypeError as error:
        raise InputError("the tokens of a prompt are whole numbers", cause=str(error)) from None


def number(value: Any, what: str) -> float:
    """A finite number, 0 or more, of Python's or numpy's; InputError for others."""
    try:
        real = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        real = math.inf
    if not 0 <= real < math.inf:
        raise InputError(f"{what} is a number, 0 or more, got {value!r}")
    return real


def choice(value: Any, what: str) -> bool:
    """True or False; InputError for other values, which Python would take for one of these."""
    if not isinstance(value, bool):
        raise InputError(f"{what} is True or False, got {value!r}")
    return value


def by_rows(strategy: str | Strategy) -> str:
    """The strategy for plans in which a row has the same bits among any others; its text."""
    asked = strategy if isinstance(strategy, Strategy) else strategy_of(strategy)
    return replace(asked, reproducible=NATIVE_ARITHMETIC).text


@dataclass(frozen=True, slots=True)
class Options:
    """How a server serves a model.

    Parameters
    ----------
    max_batch : int, optional
        Rows that are computed together at most, and texts that go on together.
    max_wait_ms : float, optional
        Milliseconds after which a batch that is not full is computed.
    queue : int, optional
        Requests that may wait beside what is computed, and as many texts.
    replicas : int, optional
        How often a language model is there, each time on workers of its own where there are enough.
    chunk : int, optional
        Tokens of a prompt that a step reads.
    batched : bool, optional
        Whether the first axis of inputs and outputs is one of rows that do not depend on each other; by default as the
        model's file says, and False on a reproducible mesh.
    strategy : str or Strategy, optional
        How a call is placed, as for `Mesh.run`.
    mode : str, optional
        Where a call is computed, as for `Mesh.run`.
    copies : str, optional
        The copies of the weights that workers keep, as for `Mesh.run`.
    kv_budget : int or str, optional
        The most memory for keys and values of a replica's texts, in bytes or as "4GiB"; by default a
        quarter of what the worker with the most memory may use.
    draft : str, Path or Model, optional
        A much smaller model with the same tokens, the drafter: it says which tokens may come next, and a step checks
        them.
    draft_tokens : int, optional
        The most drafts of a text that a step checks.
    draft_on : str, optional
        The worker that computes the drafter; by default the one that is predicted to be fastest.

    Raises
    ------
    InputError
        If a value is out of its range.

    Notes
    -----
    The arguments of `InferenceServer.load_model` have the same names.

    Examples
    --------
    >>> from mesh.inference import Options
    >>> Options(max_batch=16).max_batch
    16
    """

    max_batch: int = 8
    max_wait_ms: float = 2.0
    queue: int = 64
    replicas: int = 1
    chunk: int = 16
    batched: bool | None = None
    strategy: str | Strategy = "auto"
    mode: str = "auto"
    copies: str | None = None
    kv_budget: int | str | None = None
    draft: str | Path | Model | None = None
    draft_tokens: int = 4
    draft_on: str | None = None

    def __post_init__(self) -> None:
        for name in ("max_batch", "queue", "replicas"):
            count(getattr(self, name), name, most=ROWS_MAX)
        if not isinstance(self.strategy, Strategy):
            strategy_of(self.strategy)
        count(self.chunk, "chunk", most=CHUNK_MAX)
        number(self.max_wait_ms, "max_wait_ms")
        if self.batched is not None:
            choice(self.batched, "batched")
        _ = self.kv_bytes
        count(self.draft_tokens, "draft_tokens", most=DRAFTS_MAX)
        if self.draft is None:
            if self.draft_on is not None:
                raise InputError("draft_on is where the drafter is computed, and there is none", next_step="Give draft")
        elif self.draft_tokens >= self.chunk:
            raise InputError(
                f"a step reads chunk = {self.chunk} tokens of a text, and checks draft_tokens = {self.draft_tokens} "
                "behind one token",
                next_step="Give a larger chunk, or fewer draft_tokens",
            )

    @property
    def kv_bytes(self) -> int | None:
        """The budget of keys and values in bytes; None for the default."""
        if self.kv_budget is None:
            return None
        if isinstance(self.kv_budget, Integral):
            return count(self.kv_budget, "kv_budget, the bytes for keys and values,")
        try:
            return parse_size(str(self.kv_budget))
        except ConfigError as error:
            raise InputError(f"kv_budget is a size such as 4GiB, got {self.kv_budget!r:.60}") from error


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a text's tokens are chosen.

    Parameters
    ----------
    temperature : float, optional
        0 takes the likeliest token; else logits are divided by it, and a token is drawn.
    top_k : int, optional
        How many of the likeliest tokens are drawn from; 0 for all.
    top_p : float, optional
        The probability that the tokens which are drawn from have together; 1 for all.
    seed : int, optional
        The seed of the draws.

    Raises
    ------
    InputError
        If a value is out of its range; the seed is an int of up to 64 bits.

    Notes
    -----
    top_p: Holtzman et al., 2020 (arXiv 1904.09751).  top_k comes first, and top_p is of what it left.

    Examples
    --------
    >>> from mesh.inference import Sampling
    >>> Sampling(temperature=0.8, top_k=40, seed=7).shifted(2).seed
    9
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        number(self.temperature, "temperature")
        count(self.top_k, "top_k, the likeliest tokens to choose from (0: all),", 0, (1 << 31) - 1)
        if not isinstance(self.top_p, Real) or isinstance(self.top_p, bool) or not 0 < self.top_p <= 1:
            raise InputError(f"top_p is a probability above 0, got {self.top_p!r}")
        if not isinstance(self.seed, Integral) or isinstance(self.seed, bool) or not -(1 << 63) <= self.seed < 1 << 64:
            raise InputError(f"seed is an int of up to 64 bits, got {self.seed!r}")

    def shifted(self, place: int) -> Sampling:
        """Sampling for one prompt among several: the seed is as much larger as its place.

        Parameters
        ----------
        place : int
            The prompt's place, from 0.

        Returns
        -------
        Sampling
            The same with another seed, which begins anew after the largest.
        """
        seed = int(self.seed) + place
        return replace(self, seed=seed if seed < 1 << 64 else seed - (1 << 64))


GREEDY = Sampling()


@dataclass(frozen=True, slots=True)
class Room:
    """The size of a batch of texts.

    Parameters
    ----------
    slots : int
        Texts at once.
    pages : int
        Pages of keys and values, the first of which is nobody's.
    length : int
        The most tokens of a text.
    chunk : int
        Tokens of each text that a step reads.
    few : int, optional
        Tokens of each text that a step computes where no text has more.

    Examples
    --------
    >>> from mesh.inference.settings import Room
    >>> Room(slots=4, pages=64, length=1024, chunk=16).slots
    4
    """

    slots: int
    pages: int
    length: int
    chunk: int
    few: int = 1

    @property
    def readers(self) -> int:
        """How many texts have many tokens in a step in which the others have one.

        It is an eighth of the slots, one at least; 0 where such a step would not save half of a full one.
        """
        readers = max(1, self.slots // READERS_SHARE)
        return readers if 2 * (self.slots + readers * self.chunk) <= self.slots * self.chunk else 0
