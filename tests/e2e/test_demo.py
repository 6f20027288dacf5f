"""The demo as people run it, twice: the second start sends no weights and compiles no kernels."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.processes.commands import environment, run

from mesh.demo.passages import LEFT_OUT, blocks, passages
from wire.errors import ConfigError

DOCUMENTS = ["--document", "journey.md"]
STARTS = 3  # until a plan is one that was deployed before


def demo(folder: Path, *question: str) -> str:
    done = run("coord", "demo", *DOCUMENTS, *question, env=environment(folder), cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_demo_kills_a_worker_finishes_and_answers(tmp_path: Path) -> None:
    first = demo(tmp_path)
    assert "3 of 3 workers" in first
    # A call's report has what was sent for that call: a plan that was deployed ahead of it has its weights already.
    assert re.search(
        r"weights and kernels at the start: [\d.]+ (B|KiB|MiB) sent to workers, 0 B from their disks", first
    )
    assert re.search(r"kill -9 \d+: local-\d is gone", first)
    assert re.search(r"dead local-\d", first)
    # A slow adapter may get nothing; on a busy machine it may be stuck, and not be planned for.
    assert re.search(r"planned: (?:[12] of 2|1 of 1) workers", first)
    assert re.search(r"\d+ passages in [\d.]+ (s|min), none lost", first)
    question, best = first.split("Search: ")[1].splitlines()[:2]
    assert question == "What happens when a worker dies?"
    assert float(best.split()[0]) > 0.5, best

    # Links are measured anew, and another plan may be better by a hair: then there are parts that nobody has had yet.
    for _ in range(STARTS):
        second = demo(tmp_path, "Where are kernels cached?")
        start = re.search(r"weights and kernels at the start: (.*)", second)
        assert start is not None
        kept = re.match(r"(?:0 B|\d+(?:\.\d)? KiB) sent to workers, (\d+\.\d) MiB from their disks", start[1])
        compiled, cached = re.findall(r"(\d+) kernels compiled, (\d+) from a cache", start[1])[0]
        if kept is not None and compiled == cached:
            break
    assert kept is not None and compiled == cached, start[1]
    # The model's weights once, and what a plan holds at two workers twice.  A stuck adapter's share is in no report.
    adapters = sum(map(float, re.findall(r"^\d+ +local-0 .* (\d+\.\d) MiB", second, re.MULTILINE)))
    assert float(kept[1]) > 80 - adapters, second
    assert "Search: Where are kernels cached?" in second


def test_documents_become_passages() -> None:
    found = passages()
    assert len(found) >= 200
    assert len({passage.text for passage in found}) == len(found)
    sources = {passage.source for passage in found}
    assert sources >= {"architecture.md", "journey.md"}
    assert not any(source.startswith(LEFT_OUT) for source in sources)


def test_some_documents_only() -> None:
    assert {passage.source for passage in passages(["journey.md", "nn.md"])} == {"journey.md", "nn.md"}
    with pytest.raises(ConfigError, match=r"no document 'nobody\.md'"):
        passages(["nobody.md"])


def test_headings_tables_code_and_marks_are_not_searched() -> None:
    text = (
        "# Title of it all\n\nA paragraph of *some* length with `code` in\ntwo lines.\n\n"
        "```sh\nrun this command\n```\n\n"
        "* an item that is long enough to be found [here](x.md)\n* short\n\n| a cell of a table | and another one |\n"
    )
    assert list(blocks(text)) == [
        "A paragraph of *some* length with code in two lines.",
        "an item that is long enough to be found here",
    ]
