"""Settings: how a text's tokens are chosen, and how large a batch of texts is.  Data only."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real

from wire.errors import InputError


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
        if not isinstance(self.temperature, Real) or not 0 <= self.temperature < float("inf"):
            raise InputError(f"temperature is 0 or more, got {self.temperature!r}")
        if not isinstance(self.top_k, int) or not 0 <= self.top_k < 1 << 31:
            raise InputError(f"top_k counts tokens, 0 for all, got {self.top_k!r}")
        if not isinstance(self.top_p, Real) or not 0 < self.top_p <= 1:
            raise InputError(f"top_p is a probability above 0, got {self.top_p!r}")
        if not isinstance(self.seed, int) or not -(1 << 63) <= self.seed < 1 << 64:
            raise InputError(f"a seed has up to 64 bits, got {self.seed!r}")


GREEDY = Sampling()


@dataclass(frozen=True, slots=True)
class Room:
    """How large a batch is: `slots` texts of up to `length` tokens, of which a step reads up to `chunk` each."""

    slots: int
    length: int
    chunk: int
