"""Which idle models make way for another one: a table of cases on the pure function, and what performs it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mesh.errors import PlacementError
from mesh.serving.model_memory import Holder, ModelMemory, Share, held_by, leaving
from mesh.serving.residence import Residence
from mesh.serving.served_text import ServedText

GIB = 1 << 30


def share(need: float, budget: float = 8.0, worker: str = "anna") -> Share:
    return Share(worker, int(need * GIB), int(budget * GIB))


def holder(name: str, used_s: float, stays: str = "", **held: float) -> Holder:
    return Holder(name, {node: int(size * GIB) for node, size in held.items()}, used_s, stays)


A, B, C = holder("a", 1.0, x=3), holder("b", 2.0, x=3), holder("c", 3.0, x=1)
BUSY, PINNED = holder("busy", 0.0, "answers a request", x=3), holder("pinned", 0.0, "was asked to stay", x=3)
ELSEWHERE = holder("elsewhere", 0.0, y=3)


@pytest.mark.parametrize(
    ("need", "holders", "going"),
    [
        (8, (), []),
        (2, (A, B), []),
        (3, (A, B), [0]),  # that which was used longest ago
        (3, (B, A), [1]),
        (6, (A, B), [0, 1]),
        (5, (A, B, C), [0, 1]),  # as many as are needed, and no more
        (4, (A, B, C), [0]),
        (3, (BUSY, A, B), [1, 2]),
        (3, (PINNED, B, A), [2, 1]),
        (6, (ELSEWHERE, B), [1]),  # on another worker
    ],
)  # fmt: skip
def test_those_that_were_used_longest_ago_go(need: float, holders: tuple[Holder, ...], going: list[int]) -> None:
    assert leaving("new", {"x": share(need)}, holders) == going


def test_a_model_on_two_workers_has_room_on_both() -> None:
    shares = {"x": share(6), "y": share(6, worker="berta")}
    assert leaving("new", shares, (ELSEWHERE, B, C)) == [1, 0]
    both = holder("both", 0.0, x=3, y=3)
    assert leaving("new", shares, (ELSEWHERE, B, C, both)) == [3, 1, 0]


def test_where_nothing_helps_the_error_says_what_holds_the_memory() -> None:
    with pytest.raises(PlacementError) as caught:
        leaving("new", {"x": share(4)}, (A, BUSY, B, PINNED))
    assert str(caught.value).startswith(
        "there is no room for 'new' beside other models: anna needs 4.0 GiB for it and has 8.0 GiB, of which "
        "'busy' (answers a request) holds 3.0 GiB, 'pinned' (was asked to stay) holds 3.0 GiB."
    )


def test_what_a_model_holds_is_divided_as_its_needs_are() -> None:
    assert held_by({"x": share(1), "y": share(3)}, 1000) == {"x": 250, "y": 750}
    assert held_by({}, 1000) == {}


async def nothing() -> None: ...


async def test_a_model_goes_before_the_other_is_loaded_and_what_fails_is_counted_no_more() -> None:
    memory, done = ModelMemory(), list[str]()

    async def load(name: str) -> None:
        async with memory.room_for(models[name], {"x": share(5)}, lambda: 5 * GIB):
            done.append(f"load {name}")
            if len(done) == 3:
                raise PlacementError("it fails")

    async def unload(name: str) -> None:
        await asyncio.sleep(0)
        done.append(f"unload {name}")
        memory.release(models[name])

    models = {
        name: Residence(name, lambda name=name: load(name), lambda name=name: unload(name))  # type: ignore[misc]
        for name in "abc"
    }
    first = models["a"].enter()
    await first.ready()
    with pytest.raises(PlacementError, match=r"'a' \(answers a request\) holds 5.0 GiB"):
        await models["b"].enter().ready()
    first.end()
    with pytest.raises(PlacementError, match="it fails"):
        await models["b"].enter().ready()
    assert done == ["load a", "unload a", "load b"]
    third = models["c"].enter(None)
    await third.ready()
    third.end()
    assert models["c"].pinned and done[-1] == "load c", "b holds nothing"
    with pytest.raises(PlacementError, match=r"'c' \(was asked to stay\)"):
        await models["a"].enter().ready()
    for model in models.values():
        await model.close()


async def test_a_model_that_could_not_be_unloaded_makes_way_all_the_same() -> None:
    """It is on no worker, as far as anybody knows; counted still, it was asked to go again and again, on the loop."""
    memory = ModelMemory()

    class Failing:
        async def close(self) -> None:
            raise OSError("the test's device fails")

    async def load(name: str) -> None:
        async with memory.room_for(models[name], {"x": share(5)}, lambda: 5 * GIB):
            pass

    served: Any = ServedText.__new__(ServedText)
    served._batches, served._gone = Failing(), memory.release
    models = {"a": Residence("a", lambda: load("a"), served._unload), "b": Residence("b", lambda: load("b"), nothing)}
    served.residence = models["a"]
    for model in models.values():
        stay = model.enter()
        await stay.ready()
        stay.end()
    assert not models["a"].there
    await models["b"].close()


async def test_a_model_that_is_being_closed_is_waited_for_and_not_asked_again_and_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    memory, closes = ModelMemory(), asyncio.Event()

    async def load(name: str) -> None:
        async with memory.room_for(models[name], {"x": share(5)}, lambda: 5 * GIB):
            pass

    async def unload() -> None:
        await closes.wait()  # for a worker that is slow to say that it has freed the model, say
        memory.release(models["a"])

    models = {"a": Residence("a", lambda: load("a"), unload), "b": Residence("b", lambda: load("b"), nothing)}
    stay = models["a"].enter()
    await stay.ready()
    stay.end()
    closing, wanted = asyncio.ensure_future(models["a"].close()), models["b"].enter()
    with caplog.at_level("INFO", "graph_mesh.serving"):
        for _ in range(100):
            await asyncio.sleep(0)
    assert sum("a makes way for b" in record.message for record in caplog.records) <= 2, "the loop is busy with it"
    closes.set()
    await asyncio.gather(closing, wanted.ready())
    await models["b"].close()


class Panic(BaseException):
    """As libraries in Rust raise it."""


async def test_a_load_that_panics_is_told_to_whoever_waits_and_tried_again() -> None:
    faults: list[BaseException] = [Panic("wrong")]

    async def load() -> None:
        if faults:
            raise faults.pop()

    model = Residence("a", load, nothing)
    with pytest.raises(RuntimeError, match="Panic"):
        await model.enter().ready()
    await model.enter().ready()
    await model.close()
