"""Pages that a newcomer reads first are in plain words: those of the field, and none that only this project uses."""

from __future__ import annotations

import re

import pytest
from support.documents import Document, document

# One row per page.  To add a page, rewrite it and put its path here.
PAGES = (
    "README.md",
    "docs/architecture.md",
    "docs/array-api.md",
    "docs/journey.md",
    "docs/training.md",
    "docs/training-details.md",
    "docs/sessions.md",
    "docs/inference.md",
    "docs/serving.md",
    "docs/sharding.md",
    "docs/planning.md",
    "docs/redundancy.md",
    "docs/commands.md",
    "docs/glossary.md",
    "docs/importers.md",
    "docs/trust.md",
    "docs/threat-model.md",
    "SECURITY.md",
    "docs/features.md",
    "docs/benchmarks.md",
    "docs/bounds.md",
    "docs/coding.md",
    "docs/collectives.md",
    "docs/configuration.md",
    "docs/control-flow.md",
    "docs/deadlines.md",
    "docs/native.md",
    "docs/nn.md",
    "docs/ops.md",
    "docs/originals.md",
    "docs/protocol.md",
    "docs/scripts.md",
    "docs/simulation.md",
    "docs/standby.md",
    "docs/testing.md",
    "docs/transforms.md",
    "docs/wgsl.md",
)
# By what they match: the words that a reader knows instead.
PLAIN = {
    r"tell|tells|telling|told": "report, return, say, send",
    r"(?:take|takes|taking|taken|took) in": "join",
    r"(?:go|goes|going|gone|went) back to": "restore",
    r"kept": "stored, held",
    r"comes|goes|(?:come|comes|came) (?:and|or) (?:go|goes|went)": "joins, leaves, arrives, travels",
    r"unlike": "unequal, different",
    r"under way": "in flight, running",
    r"spelt|meant": "unknown argument, did you mean",
    r"(?:ask|asks|asked|asking) of": "need",
    r"(?:share|shares|sharing|shared) out": "split",
    r"(?:go|goes|going|gone|went) on": "continue, continuation",
    r"letters?": "message buffer",
    r"shelf|shelves": "shared region",
    r"doors?": "listener, interface",
    r"notes?": "message",
    r"whoever|somebody|anybody": "the process, the worker, the program, the user",
    r"tellers?|referees?|judges?|judged|judging": "reporter, failure detector",
}
MESH_AS_AN_OBJECT = re.compile(r"\bas mesh\b|\bmesh_\w*|^ *mesh = ", re.MULTILINE)


def plain_text(page: Document) -> str:
    """What is read as sentences, in one line: no code, and of links their words alone."""
    without_code = re.sub(r"`[^`\n]*`", "", page.prose)
    return " ".join(re.sub(r"\]\([^)\s]*\)", "]", without_code).split())


def house_words(text: str) -> list[tuple[str, str]]:
    """Every word that is not plain, with what is around it and what to write."""
    found = [
        (match, instead)
        for words, instead in PLAIN.items()
        for match in re.finditer(rf"\b(?:{words})\b", text, re.IGNORECASE)
    ]
    return [
        (match[0], f"...{text[max(0, match.start() - 40) : match.end() + 40]}...: write {instead}")
        for match, instead in sorted(found, key=lambda each: each[0].start())
    ]


@pytest.mark.parametrize("path", PAGES)
def test_pages_are_in_plain_words(path: str) -> None:
    found = house_words(plain_text(document(path)))
    assert not found, f"{path} has\n" + "\n".join(f"{word}: {where}" for word, where in found)


@pytest.mark.parametrize("path", PAGES)
def test_examples_call_a_mesh_m(path: str) -> None:
    """`mesh` is the package: an object of that name would hide it from whoever puts two examples together."""
    examples = "\n".join(document(path).code_blocks("python"))
    found = [match[0].strip() for match in MESH_AS_AN_OBJECT.finditer(examples)]
    assert not found, f"{path} has {found}"


def test_words_are_found_in_sentences_and_not_in_code_or_addresses() -> None:
    text = (
        "# Doors\n\nA step TELLS it, `told` or not; see [notes](doors.md#told-letters), kept\n"
        "and goes\non. The doorway is no hit.\n\n```python\nkept = 1\n```\n"
    )
    found = [word for word, _ in house_words(plain_text(Document("x", text)))]
    assert found == ["Doors", "TELLS", "notes", "kept", "goes", "goes on"]
