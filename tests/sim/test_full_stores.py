"""Stores of a coordinator that are filled to their bounds (wire/bounds.py) in a simulated mesh."""

from __future__ import annotations

import asyncio
import json
from argparse import Namespace
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.simulated.remote_client import client_of
from support.simulated.simulated import Job
from support.simulated.simulated_jobs import Client, DurableCluster, simulate_durable, submission

from coordinator.sessions.runtime import Session
from coordinator.workers.event_feed import EventFeed
from mesh import Mesh
from mesh.client.async_mesh import AsyncMesh
from mesh.errors import Busy, LimitExceeded
from wire.bounds import (
    CONTENTS_SENT,
    EVENTS,
    JOBS_IN_MEMORY,
    PROFILED_SPANS,
    REPLAYED_FEEDS,
    REPORT_EVENTS,
    RESULTS_READY,
    SESSION_ANSWERS,
    SESSION_INPUTS,
    SESSION_SPANS,
    SESSIONS_OF_CLIENT,
    SESSIONS_OPEN,
)
from wire.limits import MIB, REPORT_CHARS_MAX
from wire.protocol.messages import AwaitJob, JobAccepted, JobResult, NamedValue, SessionState, SessionStep, SessionTold
from wire.system import malloc


def test_of_many_results_the_latest_are_ready_and_all_can_be_had() -> None:
    async def scenario(cluster: DurableCluster) -> None:
        client = Client(cluster, "ann")
        names = [f"job-{number}" for number in range(RESULTS_READY.most + 3)]
        for number, name in enumerate(names):
            client.jobs[name] = Job.of(number, "single")
            await client.ask(submission(name, client.jobs[name], detach=True), JobAccepted)
            await client.check(name)
        service = cluster.service
        assert [job for _, job in service._published] == names[-RESULTS_READY.most :]
        assert [job for _, job in service._recent] == names[-JOBS_IN_MEMORY.most :]
        assert (await client.ask(AwaitJob(names[0]), JobResult)).report, "read from the journal"
        for name in names:
            await client.check(name)
        assert len(service._published) == RESULTS_READY.most and len(service._recent) == JOBS_IN_MEMORY.most
        await client.endpoint.close()

    simulate_durable(1, 0, scenario, mortal=False)


def test_memory_goes_back_a_while_after_work_and_not_again_at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    returned = list[int]()
    monkeypatch.setattr(malloc, "give_back", lambda: returned.append(1))

    async def scenario(cluster: DurableCluster) -> None:
        await asyncio.sleep(60.0)  # the workers have joined
        returned.clear()
        client = Client(cluster, "ann")
        for number in range(3):
            client.jobs[name := f"job-{number}"] = Job.of(number, "single")
            await client.ask(submission(name, client.jobs[name], detach=True), JobAccepted)
            await client.check(name)
        assert not returned, "not while it is at work"
        await asyncio.sleep(60.0)
        assert len(returned) == 1, "once for all that ended until then"
        await asyncio.sleep(600.0)
        assert len(returned) == 1
        await client.endpoint.close()

    simulate_durable(1, 0, scenario, mortal=False)


@pytest.mark.parametrize("pauses", [200, pytest.param(2000, marks=pytest.mark.long)])
def test_a_job_whose_worker_is_paused_again_and_again_is_answered_over_the_link_that_there_was(pauses: int) -> None:
    async def scenario(cluster: DurableCluster) -> None:
        client = Client(cluster, "ann")
        await client.ask(submission("other", Job.of(1, "single"), detach=True), JobAccepted)
        await client.ask(AwaitJob("other"), JobResult)
        link, client.jobs["it"] = client._link, Job.of(2, "single")
        cluster.slow("sim-0", 1e9)
        await client.ask(submission("it", client.jobs["it"], detach=True), JobAccepted)
        await asyncio.sleep(1.0)  # it runs, and will not be over
        (worker,) = cluster.coordinator.nodes()
        for _ in range(pauses):
            await cluster.coordinator.pause(worker.node_id, True)
            await cluster.coordinator.pause(worker.node_id, False)
        cluster.slow("sim-0", 1.0)
        answer = await client.ask(AwaitJob("it"), JobResult)
        await client.check("it")
        report = json.loads(answer.report)
        assert len(report["events"]) == REPORT_EVENTS.most
        assert report["omitted"]["paused"] > pauses - REPORT_EVENTS.most / 2 and len(answer.report) < REPORT_CHARS_MAX
        assert client._link is link, "it is the first one"
        await client.endpoint.close()

    simulate_durable(1, 0, scenario, mortal=False)


def test_whoever_gave_up_waiting_for_a_result_is_not_remembered() -> None:
    async def scenario(cluster: DurableCluster) -> None:
        client = Client(cluster, "ann")
        client.jobs["one"] = Job.of(1, "single")
        cluster.network.block(["coordinator"], cluster.names)  # so that it takes long
        await client.ask(submission("one", client.jobs["one"], detach=True), JobAccepted)
        for _ in range(100):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await client.ask(AwaitJob("one"), JobResult)
        await asyncio.sleep(0.1)
        assert sum(map(len, cluster.service._waiting.values())) == 0
        cluster.network.heal("coordinator")
        await client.check("one")
        await client.endpoint.close()

    simulate_durable(1, 0, scenario, mortal=False)


def test_a_session_too_many_is_refused() -> None:
    x = np.ones(2, np.float32)

    async def scenario(cluster: DurableCluster) -> None:
        assert cluster.sessions._sessions_max == SESSIONS_OPEN.most
        cluster.sessions._sessions_max = 2
        async with AsyncMesh(await client_of(cluster)) as mesh:
            opened = [await mesh.session(lambda s, x: (s + x, s), x, x) for _ in range(2)]
            for session in opened:
                await session.step(x)
            third = await mesh.session(lambda s, x: (s + x, s), x, x)
            with pytest.raises(Busy, match="2 sessions are open, and no more than 2"):
                await third.step(x)
            await opened.pop().close()
            opened.append(await mesh.session(lambda s, x: (s + x, s), x, x))
            assert (await opened[-1].step(x) == x).all()

    simulate_durable(1, 0, scenario, mortal=False)


def test_a_session_too_many_of_one_client_is_refused_to_that_one() -> None:
    x = np.ones(2, np.float32)

    async def scenario(cluster: DurableCluster) -> None:
        assert cluster.sessions._sessions_of_client_max == SESSIONS_OF_CLIENT.most
        cluster.sessions._sessions_of_client_max = 1
        async with (
            AsyncMesh(await client_of(cluster)) as mine,
            AsyncMesh(await client_of(cluster, "b", "e" * 32)) as his,
        ):
            for mesh in (mine, his):
                await (await mesh.session(lambda s, x: (s + x, s), x, x)).step(x)
            with pytest.raises(Busy, match="1 sessions of this client are open, and no more than 1"):
                await (await mine.session(lambda s, x: (s + x, s), x, x)).step(x)

    simulate_durable(1, 0, scenario, mortal=False)


def added(s: Any, x: Any) -> tuple[Any, Any]:
    return s + x[0], s


def test_a_step_whose_arguments_have_no_room_is_refused_to_that_client_and_room_is_made() -> None:
    x = np.ones(10_000, np.float32)

    async def scenario(cluster: DurableCluster) -> None:
        assert cluster.sessions._inputs_bytes_max == SESSION_INPUTS.most
        cluster.sessions._inputs_bytes_max = 3 * x.nbytes
        async with (
            AsyncMesh(await client_of(cluster)) as mine,
            AsyncMesh(await client_of(cluster, "b", "e" * 32)) as his,
        ):
            sessions = [await mesh.session(added, x[0], x, copies="checkpoint", every=1000) for mesh in (mine, his)]
            for number in range(3):
                assert await sessions[0].step(x) == number + 1
            with pytest.raises(LimitExceeded, match=r"have 117\.2 KiB of arguments here.*39\.1 KiB more"):
                await sessions[0].step(x)
            assert await sessions[1].step(x) == 1, "nobody else notices"
            await asyncio.sleep(60)
            for number in range(3, 5):
                assert await sessions[0].step(x) == number + 1, "a copy was made"

    simulate_durable(1, 0, scenario, mortal=False)


def test_steps_that_wait_for_an_earlier_one_count_and_leave_room_for_that() -> None:
    """A client that never sends the first step has the coordinator hold no more than its share."""
    x = np.ones(10_000, np.float32)

    async def scenario(cluster: DurableCluster) -> None:
        async with AsyncMesh(await client_of(cluster)) as mesh:
            session = await mesh.session(added, x[0], x, copies="checkpoint", every=1000)
            assert await session.step(x) == 1
            cluster.sessions._inputs_bytes_max = 4 * x.nbytes
            (opened,) = cluster.sessions._sessions.values()
            link = cluster.coordinator.endpoint.links[opened.client]

            async def ask(number: int) -> SessionTold:
                values = (NamedValue("x", "f32", x.shape, x.tobytes()),)
                told = await cluster.sessions._step(link, SessionStep(opened.token, number, values))
                assert isinstance(told, SessionTold)
                return told

            early = []
            for number in range(2, 12):
                early.append(asyncio.create_task(ask(number)))
                await asyncio.sleep(1)
            assert (await ask(1)).step == 1, "there is room for the one that all wait for"
            done, others = await asyncio.wait(early, timeout=60.0)
            refused = [each for each in early if each in done and isinstance(each.exception(), LimitExceeded)]
            for each in others:
                each.cancel()
            assert len(early) - len(refused) == 4, "they are all that there was room for"

    simulate_durable(1, 0, scenario, mortal=False)


def test_a_client_that_confirms_no_answer_is_refused_more_of_them() -> None:
    x = np.ones(10_000, np.float32)

    async def scenario(cluster: DurableCluster) -> None:
        assert cluster.sessions._answers_bytes_max == SESSION_ANSWERS.most
        cluster.sessions._answers_bytes_max = 4 * x.nbytes
        async with AsyncMesh(await client_of(cluster)) as mesh:
            session = await mesh.session(lambda s, x: (s + x, x[0]), x, x, copies="checkpoint")
            assert await session.step(x) == 1
            (opened,) = cluster.sessions._sessions.values()
            link = cluster.coordinator.endpoint.links[opened.client]
            numbers, refused = iter(range(1, 100)), list[int]()

            async def ask(heard: int) -> int:
                number = next(numbers)
                try:
                    await cluster.sessions._state(link, SessionState(opened.token, number, heard))
                except LimitExceeded:
                    refused.append(number)
                return number

            for _ in range(10):
                last = await ask(heard=1)
            assert refused == [*range(5, last + 1)]
            assert await ask(heard=last) not in refused, "what it has is not kept any more"

    simulate_durable(1, 0, scenario, mortal=False)


@pytest.mark.parametrize("state_bytes", [4, 40 * MIB])
def test_large_arguments_have_the_state_copied_before_its_turn(state_bytes: int) -> None:
    x, state = np.ones(5 * MIB, np.float32), np.zeros(state_bytes // 4, np.float32)

    async def scenario(cluster: DurableCluster) -> None:
        async with AsyncMesh(await client_of(cluster)) as mesh:
            session = await mesh.session(lambda s, x: (s + x[0], s[0]), state, x, copies="checkpoint", every=1000)
            held = []
            for number in range(12):
                assert await session.step(x) == number
                (opened,) = cluster.sessions._sessions.values()
                held.append(opened.held_bytes)
            assert 3 * x.nbytes == REPLAYED_FEEDS.most - 4 * MIB <= max(held) <= REPLAYED_FEEDS.most + x.nbytes
            assert min(held[5:]) <= 2 * x.nbytes, "a copy lets them go"

    simulate_durable(1, 0, scenario, mortal=False)


def test_content_that_was_sent_long_ago_is_sent_again() -> None:
    async def scenario(cluster: DurableCluster) -> None:
        contents = cluster.service.contents
        assert contents._sent_max == CONTENTS_SENT.most
        contents._sent_max = 2
        link: Any = Namespace(peer=Namespace(role="client", node_id="ann/1"))

        async def find(address: bytes, size_bytes: int) -> memoryview:
            return memoryview(address)

        contents.keep(find)
        kept = cluster.coordinator.blobs.kept
        assert kept is not None
        addresses = [bytes([number]) * 32 for number in range(3)]
        contents.sent("ann", addresses)
        contents.sent("bob", [])
        assert [await kept(link, address, 32) is not None for address in addresses] == [False, True, True]
        link.peer.node_id = "bob/1"
        assert await kept(link, addresses[2], 32) is None, "another has sent it"

    simulate_durable(1, 0, scenario, mortal=False)


def test_spans_of_the_latest_steps_are_kept() -> None:
    x = np.ones(2, np.float32)
    with Mesh.builder().simulate(1).build() as mesh, mesh.session(lambda s, x: (s + x, s), x, x) as session:
        session.step(x).result()
        running = session.running
        assert isinstance(running, Session)
        running.spans += [replace(running.spans[0], step=step) for step in range(1 - SESSION_SPANS.most, 0)]
        assert len(running.spans) == SESSION_SPANS.most and running.spans[0].step == 0
        session.step(x).result()
        assert len(running.spans) == SESSION_SPANS.most
        assert [running.spans[0].step, running.spans[-1].step] == [1 - SESSION_SPANS.most, 1]
        running.profile()  # for a profiler there is room for more
        session.step(x).result()
        assert len(running.spans) == SESSION_SPANS.most + 1
        running.spans += [running.spans[-1]] * PROFILED_SPANS.most
        session.step(x).result()
        assert (len(running.spans), running.spans[-1].step) == (PROFILED_SPANS.most, 3)


def test_the_latest_events_are_kept() -> None:
    async def scenario() -> None:
        feed = EventFeed({}, {})
        for number in range(EVENTS.most + 4):
            feed.publish("joined", "", str(number))
        assert len(feed.events) == EVENTS.most and feed.events[0].text == "4"

    asyncio.run(scenario())
