"""Damaged inputs for decoders, and what comes of them.

A Decoder opens a Target: valid inputs, and `attempt`, which gives a decoder one input and says whether it was refused.
An attempt raises whatever the decoder raises outside the errors that it may, and for anything it takes that does not
come back as itself or does not hold up to a check.  Which decoders there are, `decoders.py` says.
"""

from __future__ import annotations

import itertools
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .tampering import Form, spoil, tamper

Attempt = Callable[[bytes], bool]


@dataclass(frozen=True, slots=True)
class Target:
    """`originals` are not refused; with a `form` half of the inputs are damaged in the values that it finds in them.

    `whole` is the share of inputs that are left whole: a machine gets nowhere on damage alone.
    """

    originals: Sequence[bytes]
    attempt: Attempt
    form: Form | None = None
    whole: float = 0.0

    def inputs(self, rng: random.Random) -> Iterator[bytes]:
        """Damaged inputs without end."""
        form, originals = self.form, self.originals
        trees = [form.take_apart(data) for data in originals] if form else []
        draw = rng.random
        while True:
            at = int(draw() * len(originals))
            if self.whole and draw() < self.whole:
                yield originals[at]
            elif form and draw() < 0.5:
                yield form.put_together(spoil(rng, trees[at], form.odd))
            else:
                yield tamper(rng, originals[at], originals)


@dataclass(frozen=True, slots=True)
class Decoder:
    """`of_million` inputs of a million are its; of them at least the share `refused` must be."""

    name: str
    open: Callable[[Path], Target]
    of_million: int
    refused: float


@dataclass(frozen=True, slots=True)
class Tried:
    """What came of a decoder's inputs."""

    count: int
    refused: int


def fuzz(decoder: Decoder, count: int, first: int = 0) -> Tried:
    """Try it with `count` inputs that follow from its name and `first`; what it should not raise names the input."""
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        target = decoder.open(Path(folder))
        refused = 0
        inputs = target.inputs(random.Random(f"{decoder.name} {first}"))
        for number, data in enumerate(itertools.islice(inputs, count)):
            try:
                refused += target.attempt(data)
            except BaseException as error:  # also the panics of libraries in Rust, which are no Exceptions
                error.add_note(f"{decoder.name}, inputs of {first}, number {number}: {data!r}")
                raise
    return Tried(count, refused)


def _memory() -> str | None:
    """A folder without a disk, where there is one."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def refused_with(errors: Any, read: Callable[[bytes], Any], check: Callable[[Any, bytes], None]) -> Attempt:
    """An attempt: refused with one of `errors`, or checked."""

    def attempt(data: bytes) -> bool:
        try:
            found = read(data)
        except errors:
            return True
        check(found, data)
        return False

    return attempt
