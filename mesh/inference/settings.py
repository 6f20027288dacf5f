"""Settings: how a model is served, how a text's tokens are chosen, how large a batch of texts is.  Data only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite
from numbers import Integral, Real
from typing import Any

from wire.errors import InputError

CHUNK_MAX = 1 << 14  # tokens that a step reads of a prompt: a batch computes as many for each of its slots


def count(value: Any, what: str, least: int = 1, most: int | None = None) -> int:
    """A whole number of Python's or numpy's; InputError saying what it counts."""
    if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < least:
        raise InputError(f"{what} counts from {least}, got {value!r}")
    if most is not None and int(value) > most:
        raise InputError(f"{what} is {most} at most, got {value!r}")
    return int(value)


def number(value: Any, what: str) -> float:
    """A finite number, 0 or more, of Python's or numpy's; InputError for others."""
    if not isinstance(value, Real) or isinstance(value, bool) or not isfinite(value) or value < 0:
        raise InputError(f"{what} is a number, 0 or more, got {value!r}")
    return float(value)


def choice(value: Any, what: str) -> bool:
    """Yes or no; InputError for others, which Python would take for one of these."""
    if not isinstance(value, bool):
        raise InputError(f"{what} is True or False, got {value!r}")
    return value


@dataclass(frozen=True, slots=True)
class Options:
    """How a model is served: batches of up to `max_batch` rows, begun after `max_wait_ms` at the latest; beside what is
    computed `queue` requests may wait, and as many texts.

    A language model has `replicas` running batches of `max_batch` texts, which fill the stages of a pipeline, and reads
    prompts in pieces of `chunk` tokens.  `batched` says whether the first axis of inputs and outputs is one of rows
    that do not depend on each other; None: as the model's file says, and False on a mesh that is reproducible.
    `copies` of the weights are kept by workers as for `Mesh.run`.
    """

    max_batch: int = 8
    max_wait_ms: float = 2.0
    queue: int = 64
    replicas: int = 1
    chunk: int = 16
    batched: bool | None = None
    strategy: str = "auto"
    mode: str = "auto"
    copies: str | None = None

    def __post_init__(self) -> None:
        for name in ("max_batch", "queue", "replicas"):
            count(getattr(self, name), name)
        count(self.chunk, "chunk", most=CHUNK_MAX)
        number(self.max_wait_ms, "max_wait_ms")
        if self.batched is not None:
            choice(self.batched, "batched")


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a text's tokens are chosen.

    `temperature` 0 takes the likeliest; else logits are divided by it.  `top_k` leaves the k likeliest (0: all), then
    `top_p` the fewest that have this probability together (1: all).  `seed` is any int of up to 64 bits.
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
        """The same for the prompt in this place among several: its seed is so much more, and begins anew at the end."""
        seed = int(self.seed) + place
        return replace(self, seed=seed if seed < 1 << 64 else seed - (1 << 64))


GREEDY = Sampling()


@dataclass(frozen=True, slots=True)
class Room:
    """How large a batch is: `slots` texts of up to `length` tokens, of which a step reads up to `chunk` each."""

    slots: int
    length: int
    chunk: int
