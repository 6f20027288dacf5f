"""Steady guide: what the guide of a text raises ends that text, and no other of its batch.

Guides are a program's own, or a library's whose panics are not even an Exception: raised in the loop of a batch, that
would end all texts of it, or leave them waiting for ever.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .continuous_batching import FAILED, Guide

ANY = 0xFFFFFFFF


@dataclass(slots=True)
class SteadyGuide:
    """A guide of so many `words`; `error` is what it raised, after which its text gets no token."""

    guide: Guide
    words: int
    error: BaseException | None = None

    @property
    def mask(self) -> NDArray[np.uint32]:
        """The mask of the guide; any token where it failed, as its text ends with it."""
        mask = np.full(self.words, ANY, np.uint32)
        if self.error is None:
            try:
                mask[:] = self.guide.mask
            except BaseException as error:
                self._failed(error)
        return mask

    def accept(self, token: int) -> str:
        """What the guide says of a token; FAILED where it raises, or did before."""
        if self.error is None:
            try:
                return self.guide.accept(token)
            except BaseException as error:
                self._failed(error)
        return FAILED

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, KeyboardInterrupt):
            raise error
        if isinstance(error, Exception):
            self.error = error
        else:
            self.error = RuntimeError(f"the guide of the text raised {error!r}")
