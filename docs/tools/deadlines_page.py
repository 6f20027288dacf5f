"""The deadlines as markdown: `python -m docs.tools.deadlines_page > docs/deadlines.md`.

Every number and sentence comes from the rows of `wire/deadlines.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from wire.deadlines import BYTES_PER_S_MIN, DEADLINES, PHASES, Deadline
from wire.timeouts import DEFAULT_TIMEOUTS

HEAD = f"""\
# Deadlines

How long each phase of a call or a session waits for another process, and what happens then. Generated from
`wire/deadlines.py` by `python -m docs.tools.deadlines_page > docs/deadlines.md`.

* A limit with a name is one of the [times](configuration.md) that you may change, with its value in the preset `lan`.
  The others are fixed.
* "+ size" adds what the bytes in question take at {BYTES_PER_S_MIN // 1_000_000} MB/s.
* "From the last sign of work" means that a worker that computes, or bytes that come, begin the wait anew.
* A wait that is checked more than a second too late begins anew: this process was held up, and so were the answers.
* An error of a deadline is DeadlineExceeded or NodeLost, and its message names the phase.
"""


def markdown() -> str:
    """The whole of docs/deadlines.md."""
    return HEAD + "\n".join(_sections()) + "\n"


def _sections() -> Iterator[str]:
    for phase, about in PHASES.items():
        yield f"\n## {phase.capitalize()}\n\n{about}\n"
        yield "| Limit | Wait | What happens then |"
        yield "|---|---|---|"
        for row in DEADLINES.values():
            if row.phase == phase:
                yield f"| {_limit(row)} | {row.what} | {row.then} |"


def _limit(row: Deadline) -> str:
    if row.timeout:
        return f"`{row.timeout}`: {getattr(DEFAULT_TIMEOUTS, row.timeout):g} s"
    return f"{row.seconds:g} s{' + size' if row.by_size else ''}{', ' + row.more if row.more else ''}"


if __name__ == "__main__":
    sys.stdout.write(markdown())
