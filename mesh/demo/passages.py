"""What the demo searches: the project's own documents, in passages.

The documents travel inside the package (`docs/`, beside this file in a wheel, at the root of a checkout).  A passage is
a paragraph or a list item.  Tables are looked up and not searched; what is for who works on the project is left out, so
that a demo is over in moments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from wire.errors import ConfigError

CHARACTERS_MIN = 30  # shorter blocks say nothing that one could search for
LEFT_OUT = ("protocol.md", "decisions")
_BLOCK_STARTS = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*] |\d+\. ))")
_MARKS = re.compile(r"`|\*\*|^\s*(?:[-*]|\d+\.) |\[(?=[^\]]*\]\()|\]\([^)]*\)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Passage:
    """`text` of one paragraph of the document `source`."""

    source: str
    text: str


def passages(names: Sequence[str] = ()) -> list[Passage]:
    """Every passage of these documents, () all, in order of file name; ConfigError if there is none of that name, or
    the documents are not installed."""
    by_text: dict[str, Passage] = {}  # a sentence that stands twice is searched once
    folder = documents()
    known = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*.md"))}
    for name in names:
        if name not in known:
            raise ConfigError(f"there is no document {name!r}", next_step=f"Choose of {', '.join(known)}")
    for name, path in known.items():
        if name in names or not (names or name.startswith(LEFT_OUT)):
            for text in blocks(path.read_text(encoding="utf-8")):
                by_text.setdefault(text, Passage(name, text))
    return list(by_text.values())


def documents() -> Path:
    """The folder with the documents."""
    here = Path(__file__).resolve().parent
    for folder in (here / "docs", here.parent.parent / "docs"):
        if folder.is_dir():
            return folder
    raise ConfigError("the documents that the demo searches are not installed", next_step="Install graph-mesh again")


def blocks(markdown: str) -> Iterator[str]:
    """The paragraphs and list items of a document as plain sentences; headings, tables and code are left out."""
    prose = re.sub(r"```.*?```|^ *[#|][^\n]*$", "\n", markdown, flags=re.DOTALL | re.MULTILINE)
    for block in _BLOCK_STARTS.split(prose):
        text = " ".join(_MARKS.sub("", block).split())
        if len(text) >= CHARACTERS_MIN and any(character.isalpha() for character in text):
            yield text
