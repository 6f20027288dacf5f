"""The bounds as markdown: `python -m docs.tools.bounds_page > docs/bounds.md`.

Every number and sentence comes from the rows of `wire/bounds.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from wire.bounds import BOUNDS, FULL, PLACES, Bound
from wire.limits import DEFAULT
from wire.units import size_text

HEAD = """\
# Bounds

How much each queue and store of each process holds at most, and what happens then. Generated from `wire/bounds.py` by
`python -m docs.tools.bounds_page > docs/bounds.md`. [Deadlines](deadlines.md) says how long each process waits.

"""


def markdown() -> str:
    """The whole of docs/bounds.md."""
    return HEAD + "\n".join(_sections()) + "\n"


def _sections() -> Iterator[str]:
    for name, about in FULL.items():
        yield f"* {name.capitalize()}: {about}"
    for place, about in PLACES.items():
        yield f"\n## {place.capitalize()}\n\n{about}\n"
        yield "| Holds | At most | When full | In words |"
        yield "|---|---|---|---|"
        for row in BOUNDS.values():
            if row.place == place:
                yield f"| {row.what} | {_most(row)} | {row.full} | {row.then} |"


def _most(row: Bound) -> str:
    if row.setting:
        return row.setting
    most = getattr(DEFAULT, row.limit) if row.limit else row.most
    if row.unit != "bytes":
        return f"{most:,} {row.unit}"
    whole = most % (1 << 20) == 0
    return size_text(most).replace(".0 ", " ") if whole else size_text(most)


if __name__ == "__main__":
    sys.stdout.write(markdown())
