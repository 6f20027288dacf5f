"""The table of deadlines: code reads each row, each wait for another process has a limit, and the page is right."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.source import source_files

from docs.tools.deadlines_page import markdown
from mesh.simulation.loop import VirtualLoop
from wire.deadlines import BYTES_PER_S_MIN, DEADLINES, DEPLOY, FETCH, PHASES, STORE_COPY, WORK_LONGEST
from wire.errors import DeadlineExceeded
from wire.system.bounded_wait import within

ROOT = Path(__file__).parents[2]
SOURCES = {file.path: (ROOT / file.path).read_text(encoding="utf-8") for file in source_files()}


def test_the_page_is_up_to_date() -> None:
    stored = (ROOT / "docs" / "deadlines.md").read_text()
    assert stored == markdown(), "run: python -m docs.tools.deadlines_page > docs/deadlines.md"


@pytest.mark.parametrize("name", DEADLINES)
def test_each_row_is_read_where_something_waits(name: str) -> None:
    row = DEADLINES[name]
    wanted = re.compile(rf"\.{row.timeout}\b" if row.timeout else rf"\b{name}\b")
    readers = [
        path
        for path, text in SOURCES.items()
        if path.startswith(("wire/", "worker/", "coordinator/", "mesh/commands/", "mesh/models/", "mesh/serving/"))
        and path not in ("wire/deadlines.py", "wire/timeouts.py")
        and any(wanted.search(line) for line in text.splitlines() if not line.startswith(("from ", "import ")))
    ]
    assert readers and row.what.endswith(".") and row.then.endswith(".")


def test_each_phase_has_a_row() -> None:
    assert {row.phase for row in DEADLINES.values()} == PHASES.keys()


def unlimited(path: str) -> Iterator[str]:
    """Requests over links that wait without a limit."""
    tree = ast.parse(SOURCES[path])
    held = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "within"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncWith) and any("timeout" in ast.unparse(item.context_expr) for item in node.items):
            held |= {id(inner) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "request"):
            continue
        asks = isinstance(node.func.value, ast.Attribute | ast.Name) and ast.unparse(node.func.value).endswith(
            ("link", "prober", "peer")
        )
        if asks and len(node.args) < 2 and not node.keywords and id(node) not in held:
            yield f"{path}:{node.lineno}: {ast.unparse(node)}"


def test_no_request_of_a_coordinator_or_a_worker_waits_without_a_limit() -> None:
    mine = [path for path in SOURCES if path.startswith(("coordinator/", "worker/", "wire/transfer/"))]
    found = [each for path in mine for each in unlimited(path)]
    # BlobExchange.fetch has the limit of the whole exchange around this one.
    assert [each.partition(": ")[2] for each in found] == ["link.request(request)"], "\n".join(found)


# -- waiting


def waited(*args: Any, **kwargs: Any) -> tuple[str, float]:
    """What a wait for an answer that never comes ends with, and when."""

    async def scenario() -> tuple[str, float]:
        with pytest.raises(DeadlineExceeded) as ended:
            await within(*args, **kwargs)
        return str(ended.value), asyncio.get_running_loop().time()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(scenario())


async def nothing() -> None:
    await asyncio.Event().wait()


def test_a_wait_ends_at_its_limit_and_says_which_phase_it_was() -> None:
    text, ended_s = waited(STORE_COPY, nothing(), "anna")
    assert ended_s == pytest.approx(STORE_COPY.seconds)
    assert "gather took too long" in text and "anna" in text


def test_more_bytes_may_take_longer() -> None:
    assert FETCH.of(BYTES_PER_S_MIN) == FETCH.seconds + 1
    assert waited(STORE_COPY, nothing(), "", 10 * BYTES_PER_S_MIN)[1] == pytest.approx(STORE_COPY.seconds + 10)


def test_work_puts_a_limit_off_but_not_for_ever() -> None:
    def until_500() -> float:
        return min(500.0, asyncio.get_running_loop().time())

    assert waited(DEPLOY, nothing(), worked_s=until_500)[1] == pytest.approx(500 + DEPLOY.seconds)
    endless = waited(DEPLOY, nothing(), worked_s=lambda: asyncio.get_running_loop().time(), most=WORK_LONGEST)
    assert endless[1] == pytest.approx(WORK_LONGEST.seconds)


def test_a_process_that_stood_still_waits_anew() -> None:
    async def scenario() -> float:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.call_later(1.0, loop.stop_process, "", 10 * DEPLOY.seconds)
        with pytest.raises(DeadlineExceeded):
            await within(DEPLOY, nothing())
        return loop.time()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(scenario()) >= 11 * DEPLOY.seconds


def test_an_answer_and_a_cancellation_pass_through() -> None:
    async def answer() -> int:
        await asyncio.sleep(1)
        return 7

    async def scenario() -> None:
        assert await within(DEPLOY, answer()) == 7
        task = asyncio.ensure_future(within(DEPLOY, nothing()))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(scenario())
