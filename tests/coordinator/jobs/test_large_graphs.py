"""The graphs of clients: one of 50,000 nodes takes seconds to decode, and no event loop is to stand still for it."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.machines.profiles import device, near, worker

from coordinator.jobs.job_service import JobService
from coordinator.jobs.session_service import SessionService
from coordinator.jobs.stored_program import load_program
from coordinator.plan_service.plan_service import planned_in_thread
from coordinator.planning.planner import Question
from wire.ir.codec import decode_graph
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder, WireGraph
from wire.system.tasks import Tasks
from wire.transfer import content_exchange

STORE = SimpleNamespace(receive=None)
LINK = cast(Any, SimpleNamespace(peer=SimpleNamespace(node_id="client", name="client")))


def graph(nodes: int) -> WireGraph:
    builder = GraphBuilder()
    last = builder.input("x", (8,), F32)
    for number in range(nodes):
        last = builder.add("tanh" if number % 2 else "exp", last)
    return builder.build([last])


class Known(Exception):
    """The test has seen enough."""


async def ends(*args: Any, **named: Any) -> Any:
    raise Known


def plans(service: Any, encoded: bytes) -> Awaitable[Any]:
    service._coordinator.preview = ends
    return service._plan(LINK, SimpleNamespace(graph=encoded, copies="checkpoint", strategy="auto", dies=""))


def explains(service: Any, encoded: bytes) -> Awaitable[Any]:
    service._coordinator.explain = ends
    return service._explain(LINK, SimpleNamespace(graph=encoded))


def submits(service: Any, encoded: bytes) -> Awaitable[Any]:
    def seen(client: str) -> None:
        raise Known

    service._table = SimpleNamespace(client_linked=seen)
    return service._submit(LINK, SimpleNamespace(graph=encoded, job="", inputs=(), params=()))


def opens(service: Any, encoded: bytes) -> Awaitable[Any]:
    service = cast(Any, SessionService.__new__(SessionService))
    service._known, service._check_room, service._open_with = lambda *args: None, lambda owner: None, ends
    service._coordinator, service._store, service._ending = coordinator(), STORE, Tasks()
    return service._open(
        LINK, SimpleNamespace(graph=encoded, session="t", name="", strategy="auto", copies="", params=())
    )


def goes_on(service: Any, encoded: bytes) -> Awaitable[Any]:
    async def load(leaf: Any) -> memoryview:
        if leaf != "graph":
            raise Known
        return memoryview(encoded)

    return load_program({"graph": "graph", "params": {"w": None}, "consts": {}}, load)


def coordinator() -> Any:
    async def fetch_all(link: Any, values: Any) -> list[Any]:
        return []

    config, blobs = SimpleNamespace(strategy_of=lambda strategy: strategy), SimpleNamespace(fetch_all=fetch_all)
    return SimpleNamespace(config=config, blobs=blobs)


@pytest.mark.parametrize("nodes", [3, 1000])
@pytest.mark.parametrize("ask", [plans, explains, submits, opens, goes_on])
async def test_a_large_one_is_decoded_by_a_thread(
    ask: Callable[[Any, bytes], Awaitable[Any]], nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoders: list[threading.Thread] = []

    def decode(encoded: bytes) -> WireGraph:
        decoders.append(threading.current_thread())
        return decode_graph(encoded)

    for module in (content_exchange, *(__import__(name, fromlist=[""]) for name in DECODING)):
        monkeypatch.setattr(module, "decode_graph", decode, raising=False)
    service = cast(Any, JobService.__new__(JobService))
    service._coordinator, service._store, service._saving = coordinator(), STORE, Tasks()
    with pytest.raises(Known):
        await ask(service, graph(nodes).encoded)
    assert [thread is threading.main_thread() for thread in decoders] == [nodes == 3]


DECODING = ("coordinator.jobs.job_service", "coordinator.jobs.session_service", "coordinator.jobs.stored_program")


async def test_the_graphs_of_a_plan_are_encoded_by_the_thread_that_made_it() -> None:
    profiles = near(*(worker(number, device(0, 10.0, 10.0)) for number in range(2)))
    plan = await planned_in_thread(Question(graph(40), "pipeline", profiles).answer)
    assert plan.parts and all("hash" in vars(part.graph) for part in plan.parts)
