"""FlippingEngine: an engine whose results are wrong at times, by a flipped bit of the mantissa."""

from __future__ import annotations

import random
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from worker.engine.protocol import Engine


class FlipRate(Protocol):
    """The present probability of a flipped bit in a result."""

    wrong: float


class FlippingEngine:
    """Behaves as `engine`, but flips bits in results of `run`, in the same places for the same runs."""

    def __init__(self, engine: Engine, device: FlipRate) -> None:
        self._engine = engine
        self._device = device
        self._random = random.Random(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def run(self, *arguments: Any) -> list[NDArray[Any]]:
        """Run the part, and flip bits of its results at times."""
        results = list(self._engine.run(*arguments))
        return [self._flipped(result) for result in results] if self._device.wrong else results

    def _flipped(self, result: NDArray[Any]) -> NDArray[Any]:
        if not result.size or self._random.random() >= self._device.wrong:
            return result
        changed = np.array(result)
        low_bytes = max(result.dtype.itemsize - 2, 1)  # sign and exponent are in the two others
        place = self._random.randrange(changed.size) * result.dtype.itemsize + self._random.randrange(low_bytes)
        bit = 1 if result.dtype == np.bool_ else 1 << self._random.randrange(8)
        changed.reshape(-1).view(np.uint8)[place] ^= np.uint8(bit)
        return changed
