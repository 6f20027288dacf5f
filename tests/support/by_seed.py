"""Runs by seed from a command line: how far they are, what came of them, and which failed."""

from __future__ import annotations

import faulthandler
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable

TOLD_EVERY_S = 60.0


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


def asked() -> tuple[int, int, str]:
    """COUNT [FIRST] [WAY] of the command line."""
    return int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0, " ".join(sys.argv[3:])
