"""The project's documents as data: their links, tables, code blocks and the names they mention."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from wire.cached_property import cached_property

from .source import ROOT

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^(#+) (.+)$", re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")
_CELL = re.compile(r"(?<!\\)\|")


@dataclass(frozen=True)
class Document:
    """A Markdown file; `path` is relative to the repository's root."""

    path: str
    text: str

    @cached_property
    def prose(self) -> str:
        """The text without its code blocks."""
        return _FENCE.sub("", self.text)

    def code_blocks(self, language: str) -> list[str]:
        return [body for name, body in _FENCE.findall(self.text) if name == language]

    @property
    def links(self) -> list[str]:
        return _LINK.findall(self.prose)

    @property
    def names(self) -> list[str]:
        """Everything in `code` within the prose."""
        return _CODE.findall(self.prose)

    @cached_property
    def anchors(self) -> set[str]:
        """The headings as links spell them."""
        kept = (re.sub(r"[^\w\- ]", "", title.lower()) for _, title in _HEADING.findall(self.prose))
        return {title.strip().replace(" ", "-") for title in kept}

    def section(self, title: str) -> str:
        """The text below a heading, up to the next heading of whatever level."""
        for match in _HEADING.finditer(self.text):
            if match[2] == title:
                rest = self.text[match.end() :]
                following = _HEADING.search(rest)
                return rest[: following.start()] if following else rest
        raise AssertionError(f"{self.path} has no heading {title!r}")

    def headings(self) -> list[str]:
        return [title for _, title in _HEADING.findall(self.prose)]


def table(text: str) -> Iterator[list[str]]:
    """The rows of the tables in `text`, without headers; a cell may hold an escaped bar."""
    header = True
    for line in text.splitlines():
        if not line.startswith("|"):
            header = True
        elif re.fullmatch(r"[|\-: ]+", line):
            header = False
        elif not header:
            yield [cell.strip().replace("\\|", "|") for cell in _CELL.split(line)[1:-1]]


def document(path: str) -> Document:
    return Document(path, (ROOT / path).read_text(encoding="utf-8"))


def documents() -> list[Document]:
    """README, CHANGELOG and everything in docs, by path."""
    paths = [Path("README.md"), Path("CHANGELOG.md")]
    paths += sorted(path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*.md"))
    return [document(path.as_posix()) for path in paths]
