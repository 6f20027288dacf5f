"""Runs by seed from a command line: how far they are, what came of them, and which failed."""

from __future__ import annotations

import faulthandler
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

import pytest

TOLD_EVERY_S = 60.0
HANGS_S = 240.0  # of real time: no seed takes so long


def run_seeds(count: int, first: int, run: Callable[[int], Counter[str]], hangs_s: float) -> int:
    """The exit code: 1 if a seed failed.  `run` gives in words how often what happened; one seed that takes longer than
    `hangs_s` ends the process with all its stacks."""
    began_s, failed, ends = time.monotonic(), list[int](), Counter[str]()
    told_s = began_s
    for seed in range(first, first + count):
        faulthandler.dump_traceback_later(hangs_s, exit=True)
        try:
            ends += run(seed)
        except BaseException as error:
            failed.append(seed)
            print(f"--- seed {seed}", flush=True)
            traceback.print_exception(error)
        now_s = time.monotonic()
        if now_s - told_s >= TOLD_EVERY_S:
            told_s = now_s
            print(f"... {seed + 1 - first} seeds, {now_s - began_s:.0f} s, {len(failed)} failed", flush=True)
    faulthandler.cancel_dump_traceback_later()
    for words, often in ends.most_common():
        print(f"{often:6} {words}")
    print(f"{count} seeds from {first}, {time.monotonic() - began_s:.0f} s; failed: {failed}", flush=True)
    return 1 if failed else 0


def ranges(default: int, last: int, count: int = 32) -> list[Any]:
    """Ranges of seeds from 0 on for a test: `default` of them for every run, and for the long one those to `last`,
    `count` at a time, which take minutes on a busy machine too."""
    starts = range(default, last, count)
    long = [pytest.param(range(start, min(start + count, last)), marks=pytest.mark.long) for start in starts]
    return [range(default), *long]


def seeds(default: int, last: int) -> list[Any]:
    """Seeds from 0 on for a test, each a test of its own: `default` of them for every run, and all for the long one."""
    return [*range(default), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(default, last))]


class Trial(Protocol):
    """What a seed draws; `run` raises for what must not be, and `ends` counts in words what came of it."""

    ends: Counter[str]

    def run(self) -> str: ...


def run_trials(make: Callable[[int, str], Trial], hangs_s: float = HANGS_S) -> int:
    """As `run_seeds`, of the trials that the command line asks for: `make` gives that of a seed, in one way or any."""
    count, first, way = asked()

    def ends_of(seed: int) -> Counter[str]:
        trial = make(seed, way)
        trial.run()
        return trial.ends

    return run_seeds(count, first, ends_of, hangs_s)


def asked() -> tuple[int, int, str]:
    """COUNT [FIRST] [WAY] of the command line."""
    return int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0, " ".join(sys.argv[3:])
