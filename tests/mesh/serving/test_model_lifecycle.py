"""When a served model is on the workers: event scripts on the pure machine, and what waits for it."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable

import pytest

from mesh.errors import Cancelled, PlacementError
from mesh.serving.api_error import ApiError
from mesh.serving.model_lifecycle import ModelLifecycle
from mesh.serving.residence import Keep, Residence


@pytest.mark.parametrize(
    ("keep_s", "script", "done"),
    [
        (10.0, "ask loaded@1 over@2 tick@11 tick@12", "load - - - unload"),
        (None, "ask loaded@1 over@2 tick@99", "load - - -"),  # for ever
        (10.0, "ask loaded@1 over@2 ask over@5 tick@12 tick@15", "load - - - - - unload"),  # the last one counts
        (10.0, "ask ask loaded@1 over@2 tick@99 over@100 tick@110", "load - - - - - unload"),  # somebody is left
        (10.0, "ask loaded@1 over@2 tick@12 ask unloaded loaded@13", "load - - unload - load -"),  # wanted meanwhile
        (10.0, "ask loaded@1 over@2 tick@12 unloaded ask", "load - - unload - load"),
        (10.0, "ask failed over@2 tick@99 ask", "load - - - load"),  # the next one tries again
        (10.0, "ask over@1 tick@99 loaded@99", "load - - unload"),  # it came when nobody wanted it any more
        (0.0, "ask loaded@1 over@2", "load - unload"),
        (10.0, "ask loaded@1 over@2:0", "load - unload"),  # as the request says
        (0.0, "ask loaded@1 over@2:inf tick@99", "load - - -"),
    ],
)  # fmt: skip
def test_the_machine(keep_s: float | None, script: str, done: str) -> None:
    machine, found = ModelLifecycle(keep_s), []
    events: dict[str, Callable[[float, float | None], object]] = {
        "ask": lambda now_s, keep: machine.ask(), "over": machine.over, "failed": lambda now_s, keep: machine.failed(),
        "loaded": lambda now_s, keep: machine.loaded(now_s), "tick": lambda now_s, keep: machine.tick(now_s),
        "unloaded": lambda now_s, keep: machine.unloaded(),
    }  # fmt: skip
    for word in script.split():
        name, _, rest = word.partition("@")
        now, _, keep = rest.partition(":")
        stays = keep_s if not keep else None if keep == "inf" else float(keep)
        found.append(events[name](float(now or 0), stays))
    assert [each.value if each.value != "nothing" else "-" for each in found] == done.split()  # type: ignore[attr-defined]


class Loads:
    """What is loaded and unloaded; `go` lets a load go on."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.go = asyncio.Event()
        self.error: Exception | None = None

    async def load(self) -> None:
        await self.go.wait()
        if self.error is not None:
            raise self.error
        self.done.append("load")

    async def unload(self) -> None:
        self.done.append("unload")


async def test_requests_wait_for_one_load_and_the_model_goes_after_them() -> None:
    loads = Loads()
    residence = Residence("llama", loads.load, loads.unload, keep_s=0.0)
    stays = [residence.enter() for _ in range(3)]
    waiting = [asyncio.ensure_future(stay.ready()) for stay in stays]
    await asyncio.sleep(0)
    assert not any(each.done() for each in waiting)
    loads.go.set()
    await asyncio.gather(*waiting)
    assert residence.there
    for stay in (*stays, *stays):  # the second end is none
        stay.end()
    await residence.drained()
    stay = residence.enter()  # while it leaves
    await stay.ready()
    assert loads.done == ["load", "unload", "load"]
    stay.end()
    await residence.close()


async def test_a_load_that_fails_is_told_to_all_and_tried_again() -> None:
    loads = Loads()
    loads.error = PlacementError("no room")
    loads.go.set()
    residence = Residence("llama", loads.load, loads.unload)
    stays = [residence.enter() for _ in range(2)]
    found = await asyncio.gather(*(stay.ready() for stay in stays), return_exceptions=True)
    assert found == [loads.error] * 2
    loads.error = None
    await residence.enter(Keep.AS_EVER).ready()
    await residence.close()


async def test_a_model_is_unloaded_to_the_end_though_whoever_asked_for_it_is_cancelled() -> None:
    loads, going = Loads(), asyncio.Event()
    loads.go.set()

    async def unload() -> None:
        await going.wait()
        await loads.unload()

    residence = Residence("llama", loads.load, unload)
    await residence.enter().ready()
    closing = asyncio.ensure_future(residence.close())
    await asyncio.sleep(0.01)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    going.set()
    await asyncio.sleep(0.01)
    assert loads.done == ["load", "unload"]


@pytest.mark.parametrize("while_it", ["loads", "leaves", "is there"])
async def test_what_was_loaded_is_free_once_it_is_closed(while_it: str) -> None:
    class Owner(Loads):
        def __init__(self) -> None:
            super().__init__()
            self.left = asyncio.Event()
            self.residence = Residence("llama", self.load, self.unload, keep_s=0.0 if while_it == "leaves" else None)

        async def unload(self) -> None:
            if while_it == "leaves" and not self.done.count("unload"):
                self.done.append("unload")
                await self.left.wait()

    owner = Owner()
    held = weakref.ref(owner)
    gc.disable()
    try:
        stay = owner.residence.enter()
        if while_it != "loads":
            owner.go.set()
            await stay.ready()
        stay.end()
        await asyncio.sleep(0.01)
        assert owner.done == {"loads": [], "leaves": ["load", "unload"], "is there": ["load"]}[while_it]
        await owner.residence.close()
        del owner, stay
        await asyncio.sleep(0.01)
        assert held() is None
    finally:
        gc.enable()


async def test_nobody_waits_without_an_end() -> None:
    loads = Loads()
    residence = Residence("llama", loads.load, loads.unload, wait_s=0.01)
    with pytest.raises(ApiError, match="being loaded for more than") as caught:
        await residence.enter().ready()
    assert (caught.value.status, caught.value.code, caught.value.retry_after_s > 0) == (503, "model_loading", True)
    loads.go.set()
    await residence.enter().ready()  # it went on being loaded
    assert loads.done == ["load"]
    await residence.close()


async def test_requests_for_a_model_that_is_unloaded_for_good_end_and_load_it_no_more() -> None:
    loads = Loads()
    residence = Residence("llama", loads.load, loads.unload, wait_s=60.0)
    stay, late = residence.enter(), residence.enter()
    waiting = asyncio.ensure_future(stay.ready())
    await asyncio.sleep(0)
    await residence.close()
    loads.go.set()
    async with asyncio.timeout(120):
        for ready in (waiting, late.ready(), residence.enter().ready()):
            with pytest.raises(Cancelled, match="'llama' was unloaded"):
                await ready
    stay.end()
    await asyncio.sleep(0)
    assert loads.done == ["unload"]
