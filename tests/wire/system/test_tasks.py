"""Tasks of a shell: whatever one raises is told as a MeshError, and what serves begins again."""

from __future__ import annotations

import asyncio
import warnings
from typing import Any

import pytest

from mesh.simulation.loop import VirtualLoop
from wire.errors import BlobMissing, MeshError, OutOfMemory
from wire.system.tasks import AGAIN_S, Tasks, together

FAULTS: list[tuple[Exception, type[MeshError]]] = [
    (BlobMissing("it is gone"), BlobMissing),
    (MemoryError(), OutOfMemory),
    (OSError(30, "Read-only file system"), MeshError),
    (ValueError("no one foresaw this"), MeshError),
]


def run(story: Any) -> None:
    with warnings.catch_warnings(), asyncio.Runner(loop_factory=VirtualLoop) as runner:
        warnings.simplefilter("error")
        runner.run(story())


@pytest.mark.parametrize(("fault", "kind"), FAULTS)
def test_what_a_task_raises_is_told_once_as_the_error_it_means(fault: Exception, kind: type[MeshError]) -> None:
    async def work() -> None:
        await asyncio.sleep(1)
        raise fault

    async def story() -> None:
        tasks, errors = Tasks(), list[MeshError]()
        task = tasks.run("working", work(), errors.append)
        with pytest.raises(kind):
            await task
        assert [type(error) for error in errors] == [kind] and not tasks
        assert str(fault) in str(errors[0])

    run(story)


class Panic(BaseException):
    """As libraries in Rust raise it."""


@pytest.mark.parametrize("fault", [SystemExit("left"), Panic("left"), KeyboardInterrupt("left")], ids=repr)
def test_what_is_no_exception_is_told_too_and_only_ctrl_c_goes_on_as_it_is(fault: BaseException) -> None:
    async def work() -> None:
        raise fault

    errors = list[MeshError]()

    async def story() -> None:
        task = Tasks().run("working", work(), errors.append)
        with pytest.raises(MeshError, match="left"):
            await task

    if isinstance(fault, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            run(story)
    else:
        run(story)
    assert [str(error) for error in errors] == [f"working failed (cause: {type(fault).__name__}: left)"]


def test_one_that_is_well_or_cancelled_tells_of_nothing() -> None:
    async def story() -> None:
        tasks, errors = Tasks(), list[MeshError]()
        assert await tasks.run("working", asyncio.sleep(1, "done"), errors.append) == "done"
        for _ in range(2):
            tasks.run("working", asyncio.sleep(100), errors.append)
            await asyncio.sleep(0)
        tasks.run("not begun", asyncio.sleep(100), errors.append)
        tasks.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert not errors and not tasks

    run(story)


def test_what_serves_begins_again_until_it_returns() -> None:
    faults: list[BaseException] = [*(fault for fault, _ in FAULTS), Panic("wrong")]
    began_s: list[float] = []

    async def serve() -> None:
        began_s.append(asyncio.get_running_loop().time())
        if len(began_s) <= len(faults):
            raise faults[len(began_s) - 1]

    async def story() -> None:
        await Tasks().keep("serving", serve)
        assert began_s == pytest.approx([began_s[0] + number * AGAIN_S for number in range(len(faults) + 1)])

    run(story)


def test_several_together_are_their_results_or_the_first_error_and_then_none_of_them_goes_on() -> None:
    ended: list[str] = []

    async def work(seconds: float, fault: Exception | None = None) -> float:
        try:
            await asyncio.sleep(seconds)
            if fault is not None:
                raise fault
            return seconds
        finally:
            ended.append(f"{seconds:g}")

    async def story() -> None:
        assert await together(work(seconds) for seconds in (3, 1, 2)) == [3, 1, 2]
        assert await together([]) == []
        ended.clear()
        with pytest.raises(BlobMissing):
            await together([work(9), work(2, BlobMissing("gone")), work(5)])
        assert sorted(ended) == ["2", "5", "9"]
        ended.clear()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await together([work(9), work(2)])
        assert sorted(ended) == ["2", "9"]

    run(story)
