"""Real worker processes, driven by messages from the test: what a coordinator relies on."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from numpy.typing import NDArray
from support.processes.worker_process import HANGS_S, Coordinator, Fleet, gone, worker
from support.waiting import latest

from wire.errors import (
    BlobMissing,
    Busy,
    Cancelled,
    DeviceLost,
    GraphDecodeError,
    InputError,
    MeshError,
    StaleGeneration,
    WrongMesh,
)
from wire.ir.codec import tensor_bytes
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder, WireGraph
from wire.protocol.messages import (
    Beat,
    Began,
    CancelStep,
    Deploy,
    Drop,
    Leaving,
    LogLines,
    MissingGraphs,
    PartSpec,
    PlanKey,
    Push,
    Run,
    Source,
    SourceKind,
    Suspected,
    TailLog,
    Target,
)
from wire.timeouts import DEFAULT_TIMEOUTS

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc and sends POSIX signals"),
]
PLAN = PlanKey(1, 1)
TRIES = 10  # of what goes by the clock, on a machine that does other things
LARGE = (512, 512)  # 1 MiB: larger than what travels inline


def add_graph(shape: tuple[int, ...] = (4,)) -> WireGraph:
    """x + w, w a param."""
    builder = GraphBuilder()
    x, w = builder.input("x", shape, F32), builder.param("w", shape, F32)
    return builder.build([builder.add("add", x, w)], names=["y"])


def double_graph(shape: tuple[int, ...] = (4,)) -> WireGraph:
    builder = GraphBuilder()
    x = builder.input("x", shape, F32)
    return builder.build([builder.add("add", x, x)], names=["y"])


def long_graph(seconds_about: float = 0.5) -> WireGraph:
    """A chain of matmuls that keeps a core busy for a while."""
    builder = GraphBuilder()
    x = y = builder.input("x", (768, 768), F32)
    for _ in range(int(seconds_about * 60)):
        y = builder.add("dot", y, x, lhs_batch=(), rhs_batch=(), lhs_contract=(1,), rhs_contract=(0,))
    return builder.build([y], names=["y"])


def spec(graph: WireGraph, sources: list[Source], targets: list[Target], part: int = 0) -> PartSpec:
    return PartSpec(part, 0, graph.hash, tuple(sources), (tuple(targets),))


def random_array(shape: tuple[int, ...] = (4,)) -> NDArray[Any]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


OUT = [Target("", 0, 0)]
IN = [Source(SourceKind.INPUT)]


@pytest_asyncio.fixture
async def coordinator() -> AsyncIterator[Coordinator]:
    made = Coordinator()
    yield made
    await made.close()


@pytest_asyncio.fixture
async def fleet(tmp_path: Path, coordinator: Coordinator) -> AsyncIterator[Fleet]:
    """Two workers that joined."""
    async with AsyncExitStack() as stack:
        made = Fleet(coordinator)
        starting = [stack.enter_async_context(worker(tmp_path, name)) for name in ("one", "two")]
        made.workers = list(await asyncio.gather(*starting))
        for each in made.workers:
            made.links.append((await coordinator.join(each))[0])
        yield made


async def with_double(coordinator: Coordinator, link: Any, shape: tuple[int, ...] = (4,), plan: PlanKey = PLAN) -> None:
    graph = double_graph(shape)
    await coordinator.deploy(link, [(spec(graph, IN, OUT), graph)], plan)


# -- join


async def test_a_worker_says_when_it_is_ready_and_reports_its_devices_at_join(
    tmp_path: Path, coordinator: Coordinator
) -> None:
    began_s = time.monotonic()
    async with worker(tmp_path, "solo") as solo:
        print(f"ready after {time.monotonic() - began_s:.2f} s")
        assert solo.ready["name"] == "solo" and solo.ready["pid"] == solo.process.pid
        link, joined = await coordinator.join(solo)
        assert link.peer.name == "solo" and link.peer.role == "worker" and link.same_host
        assert [device.engine for device in joined.devices] == ["cpu"]
        device = joined.devices[0]
        assert "f32" in device.dtypes_by_op["add"] and device.gflops > 0 and device.gbytes_per_s > 0
        assert joined.memory_bytes == device.memory_bytes > 0


async def test_beats_come_at_the_interval_asked_for_and_a_suspicion_is_refuted(
    tmp_path: Path, coordinator: Coordinator
) -> None:
    async with worker(tmp_path) as each:
        link, _ = await coordinator.join(each, beat_s=0.02)
        await coordinator.until(lambda: len(coordinator.of(Beat)) >= 5)
        beats = coordinator.of(Beat)
        assert [beat.counter for beat in beats] == list(range(1, len(beats) + 1))
        link.notify(Suspected(link.peer.incarnation))
        await coordinator.until(lambda: coordinator.of(Beat)[-1].incarnation == link.peer.incarnation + 1)


async def test_a_second_coordinator_hears_busy_until_the_first_is_gone(
    tmp_path: Path, coordinator: Coordinator
) -> None:
    second = Coordinator("second")
    async with worker(tmp_path) as each:
        await coordinator.join(each)
        with pytest.raises(Busy, match="tester"):
            await second.join(each)
        await coordinator.endpoint.close()
        async with asyncio.timeout(HANGS_S):
            while True:
                try:
                    await second.join(each)
                    break
                except Busy:
                    await asyncio.sleep(0.01)
        await second.close()


async def test_a_quiet_coordinator_keeps_its_worker_and_a_frozen_one_loses_it(
    tmp_path: Path, coordinator: Coordinator
) -> None:
    async with worker(tmp_path) as each:
        for _ in range(TRIES):
            link, _ = await coordinator.join(each, beat_s=0.05, silence_s=1.0)
            late_s = await latest(over_s=2.5)
            if not link.closed:
                break
            assert late_s > 0.3, "it is asked before it is given up"  # this process was frozen itself
        await with_double(coordinator, link)
        _, outputs = await coordinator.run(link, PLAN, 0, coordinator.feed(0, 0, random_array()))
        assert np.array_equal(outputs[0], 2 * random_array())


async def test_a_worker_of_another_mesh_is_refused_at_hello(tmp_path: Path) -> None:
    other = Coordinator("other", mesh="elsewhere")
    async with worker(tmp_path) as each:
        with pytest.raises(WrongMesh):
            await other.endpoint.dial("127.0.0.1", each.port)
    await other.close()


async def test_a_second_worker_of_a_name_takes_the_next_free_one_and_keeps_its_identity(tmp_path: Path) -> None:
    async with worker(tmp_path, "twin") as first, worker(tmp_path, "twin") as second:
        assert (first.ready["name"], second.ready["name"]) == ("twin", "twin-2")
        assert first.node_id != second.node_id
        first_id = first.node_id
    async with worker(tmp_path, "twin") as again:
        assert again.node_id == first_id


async def test_a_worker_dials_the_peers_it_is_given_again_and_again(tmp_path: Path, coordinator: Coordinator) -> None:
    port = await coordinator.endpoint.listen(port=0)
    address = f"127.0.0.1:{port}"
    async with worker(tmp_path, "caller", peers=(address,)) as caller:
        await coordinator.until(lambda: caller.node_id in coordinator.endpoint.links)
        coordinator.endpoint.links[caller.node_id].close("try again")
        await coordinator.until(lambda: len(coordinator.unlinked) == 1)
        await coordinator.until(lambda: caller.node_id in coordinator.endpoint.links)


# -- deploy and run


@pytest.mark.parametrize("how", ["inline", "shared", "stream"])
async def test_a_part_is_deployed_and_run_with_inputs_that_travel_any_way(
    tmp_path: Path, coordinator: Coordinator, how: str
) -> None:
    shape = (4,) if how == "inline" else LARGE
    x, w = random_array(shape), random_array(shape) * 3
    async with worker(tmp_path) as each:
        link, _ = await coordinator.join(each)
        graph = add_graph(shape)
        part = spec(graph, [*IN, Source(SourceKind.PARAM, blob=coordinator.blob_spec(w).blob)], OUT)
        deployed = await coordinator.deploy(link, [(part, graph)], PLAN, [(w, [""])])
        assert deployed.compiled == 1
        assert deployed.bytes_socket + deployed.bytes_shared == w.nbytes
        for step in range(2):
            running = asyncio.create_task(coordinator.run(link, PLAN, step, coordinator.feed(0, 0, x, how)))
            if how == "stream":
                feed = coordinator.feed(0, 0, x, how)
                await send_stream(link, step, feed, x)
            ran, outputs = await running
            assert np.array_equal(outputs[0], x + w)
            assert ran.bytes_in == x.nbytes and ran.bytes_out == x.nbytes
        told = [began.step for began in coordinator.of(Began)]
        assert told in ([], [0], [1], [0, 1]), "a step that is done at once is told by its answer, any other once"


async def send_stream(link: Any, step: int, feed: Any, array: NDArray[Any]) -> None:
    await link.send_stream(Push(PLAN, step, feed.part, feed.slot, feed.value), tensor_bytes(array))


async def test_weights_are_kept_between_runs_of_the_worker_and_graphs_are_asked_for(
    tmp_path: Path, coordinator: Coordinator
) -> None:
    w = random_array(LARGE)
    graph = add_graph(LARGE)
    part = spec(graph, [*IN, Source(SourceKind.PARAM, blob=coordinator.blob_spec(w).blob)], OUT)
    seen = []
    for _ in range(2):
        async with worker(tmp_path) as each:
            link, joined = await coordinator.join(each)
            bare = Deploy(PLAN, (part,), {}, (coordinator.blob_spec(w),), {})
            assert await link.request(bare, timeout_s=HANGS_S) == MissingGraphs((graph.hash,))
            seen.append((len(joined.blobs), await coordinator.deploy(link, [(part, graph)], PLAN, [(w, [""])])))
            await link.request(Drop(PLAN), timeout_s=HANGS_S)
            again = await coordinator.deploy(link, [(part, graph)], PlanKey(1, 2), [(w, [""])])
            assert again.bytes_resident == w.nbytes and again.from_cache == 1
    (held_first, first), (held_second, second) = seen
    assert (held_first, first.bytes_shared, first.bytes_disk) == (0, w.nbytes, 0)
    assert (held_second, second.bytes_shared, second.bytes_disk) == (1, 0, w.nbytes)


async def test_a_damaged_file_in_the_cache_is_fetched_again(tmp_path: Path, coordinator: Coordinator) -> None:
    w = random_array(LARGE)
    graph = add_graph(LARGE)
    blob = coordinator.blob_spec(w).blob
    part = spec(graph, [*IN, Source(SourceKind.PARAM, blob=blob)], OUT)
    for _ in range(2):
        async with worker(tmp_path) as each:
            link, _ = await coordinator.join(each)
            deployed = await coordinator.deploy(link, [(part, graph)], PLAN, [(w, [""])])
            assert deployed.bytes_shared == w.nbytes
        file = next((tmp_path / "cache").rglob(blob.hex()))
        file.write_bytes(file.read_bytes()[:-4] + b"oops")


@pytest.mark.parametrize("shape", [(4,), LARGE], ids=["inline", "shared"])
async def test_parts_on_two_workers_push_straight_to_each_other(fleet: Fleet, shape: tuple[int, ...]) -> None:
    coordinator, (one, two) = fleet.coordinator, fleet.workers
    first, second = double_graph(shape), add_graph(shape)
    w, x = random_array(shape), random_array(shape) + 1
    blob = coordinator.blob_spec(w).blob
    sender = spec(first, IN, [Target(two.node_id, 1, 0)])
    receiver = spec(
        second, [Source(SourceKind.EDGE, 0, 0, node=one.node_id), Source(SourceKind.PARAM, blob=blob)], OUT, part=1
    )
    await coordinator.deploy(fleet.links[0], [(sender, first)], PLAN, peers=fleet.peers)
    await coordinator.deploy(fleet.links[1], [(receiver, second)], PLAN, [(w, [""])], peers=fleet.peers)
    for step in range(5):
        (ran_one, none), (ran_two, outputs) = await asyncio.gather(
            coordinator.run(
                fleet.links[0], PLAN, step, coordinator.feed(0, 0, x + step, "shared" if x.nbytes > 99 else "inline")
            ),
            coordinator.run(fleet.links[1], PLAN, step),
        )
        assert none == {} and np.array_equal(outputs[0], 2 * (x + step) + w)
        assert ran_one.bytes_out == ran_two.bytes_in == x.nbytes
    assert one.node_id != two.node_id


async def test_weights_come_from_a_peer_that_has_them(fleet: Fleet) -> None:
    coordinator, (one, _) = fleet.coordinator, fleet.workers
    w = random_array(LARGE)
    graph = add_graph(LARGE)
    part = spec(graph, [*IN, Source(SourceKind.PARAM, blob=coordinator.blob_spec(w).blob)], OUT)
    await coordinator.deploy(fleet.links[0], [(part, graph)], PLAN, [(w, [""])], fleet.peers)
    coordinator.content.clear()
    relay = double_graph()
    hold = spec(relay, IN, [Target(one.node_id, 9, 0)], part=5)
    await coordinator.deploy(fleet.links[1], [(hold, relay)], PlanKey(1, 2), peers=fleet.peers)  # makes the link
    specs = (coordinator.blob_spec(w, [one.node_id]),)
    coordinator.content.clear()
    answer = await fleet.links[1].request(
        Deploy(PLAN, (part,), {graph.hash: graph.encoded}, specs, fleet.peers), HANGS_S
    )
    assert answer.bytes_shared == w.nbytes  # type: ignore[attr-defined]


async def test_weights_that_nobody_has_are_a_typed_error_and_the_worker_goes_on(fleet: Fleet) -> None:
    coordinator = fleet.coordinator
    w = random_array()
    graph = add_graph()
    missing = coordinator.blob_spec(w)
    coordinator.content.clear()
    part = spec(graph, [*IN, Source(SourceKind.PARAM, blob=missing.blob)], OUT)
    with pytest.raises(BlobMissing, match="holders"):
        await fleet.links[0].request(Deploy(PLAN, (part,), {graph.hash: graph.encoded}, (missing,), {}), HANGS_S)
    await with_double(coordinator, fleet.links[0], plan=PlanKey(1, 2))


async def test_several_steps_in_flight_each_get_their_own_answer(fleet: Fleet) -> None:
    coordinator, link = fleet.coordinator, fleet.links[0]
    await with_double(coordinator, link)
    xs = [random_array() + step for step in range(32)]
    answers = await asyncio.gather(
        *(coordinator.run(link, PLAN, step, coordinator.feed(0, 0, x)) for step, x in enumerate(xs))
    )
    for x, (_, outputs) in zip(xs, answers, strict=True):
        assert np.array_equal(outputs[0], 2 * x)


@pytest.mark.parametrize("damage", ["hash", "bytes"])
async def test_a_graph_that_is_not_what_it_says_is_refused_with_a_typed_error(fleet: Fleet, damage: str) -> None:
    graph = double_graph()
    address = secrets.token_bytes(32) if damage == "hash" else graph.hash
    encoded = graph.encoded if damage == "hash" else graph.encoded[:-3]
    part = PartSpec(0, 0, address, tuple(IN), (tuple(OUT),))
    with pytest.raises(GraphDecodeError):
        await fleet.links[0].request(Deploy(PLAN, (part,), {address: encoded}, (), {}), HANGS_S)
    await with_double(fleet.coordinator, fleet.links[0], plan=PlanKey(1, 2))


async def test_an_input_of_the_wrong_shape_or_dtype_names_what_was_expected(fleet: Fleet) -> None:
    coordinator, link = fleet.coordinator, fleet.links[0]
    await with_double(coordinator, link)
    for step, wrong in enumerate([random_array((5,)), random_array().astype(np.float64)]):
        with pytest.raises(InputError, match=r"f32\[4\]"):
            await coordinator.run(link, PLAN, step, coordinator.feed(0, 0, wrong))
    _, outputs = await coordinator.run(link, PLAN, 9, coordinator.feed(0, 0, random_array()))
    assert np.array_equal(outputs[0], 2 * random_array())


async def test_a_cancelled_step_and_a_dropped_plan_are_stale(fleet: Fleet) -> None:
    coordinator, link = fleet.coordinator, fleet.links[0]
    graph = double_graph()
    waits = spec(graph, [Source(SourceKind.EDGE, 9, 0)], OUT)
    await coordinator.deploy(link, [(waits, graph)], PLAN)
    running = asyncio.create_task(coordinator.run(link, PLAN, 0))
    await asyncio.sleep(0.05)
    link.notify(CancelStep(PLAN, 0))
    with pytest.raises(Cancelled):
        await running
    running = asyncio.create_task(coordinator.run(link, PLAN, 1))
    await asyncio.sleep(0.05)
    await link.request(Drop(PLAN), timeout_s=HANGS_S)
    with pytest.raises(StaleGeneration):
        await running
    with pytest.raises(StaleGeneration):
        await link.request(Run(PLAN, 2, ()), timeout_s=HANGS_S)


async def test_a_cancelled_step_frees_its_device_at_once(fleet: Fleet) -> None:
    coordinator, link = fleet.coordinator, fleet.links[0]
    graph = long_graph(60.0)
    await coordinator.deploy(link, [(spec(graph, IN, OUT), graph)], PLAN)
    long_run = asyncio.create_task(
        coordinator.run(link, PLAN, 0, coordinator.feed(0, 0, np.eye(768, dtype=np.float32), "shared"))
    )
    await coordinator.until(lambda: bool(coordinator.of(Began)))
    link.notify(CancelStep(PLAN, 0))
    with pytest.raises(Cancelled):
        await long_run
    await with_double(coordinator, link, plan=PlanKey(1, 2))
    async with asyncio.timeout(HANGS_S):
        await coordinator.run(link, PlanKey(1, 2), 0, coordinator.feed(0, 0, random_array()))


async def test_beats_stay_on_time_while_the_device_is_busy(fleet: Fleet) -> None:
    coordinator, link = fleet.coordinator, fleet.links[0]
    graph = long_graph(60.0)
    await coordinator.deploy(link, [(spec(graph, IN, OUT), graph)], PLAN)
    eye = np.eye(768, dtype=np.float32)
    running = asyncio.create_task(coordinator.run(link, PLAN, 0, coordinator.feed(0, 0, eye, "shared")))

    def told_busy() -> int:
        mine = [note for source, note in coordinator.notes if source is link and isinstance(note, Beat)]
        return sum(beat.queue_depth >= 1 for beat in mine)

    await coordinator.until(lambda: told_busy() >= 3)
    link.notify(CancelStep(PLAN, 0))
    with pytest.raises(Cancelled):
        await running


async def test_nothing_stays_in_shared_memory_after_a_step(fleet: Fleet) -> None:
    coordinator, link = fleet.coordinator, fleet.links[0]
    await with_double(coordinator, link, LARGE)
    for step in range(3):
        await coordinator.run(link, PLAN, step, coordinator.feed(0, 0, random_array(LARGE), "shared"))
    for folder in (link.peer.shared_memory, str(coordinator.shared.path)):
        assert set(os.listdir(folder)) <= {"lock", "blobs"}


async def test_the_log_can_be_asked_for(fleet: Fleet) -> None:
    answer = await fleet.links[0].request(TailLog(50), timeout_s=HANGS_S)
    assert isinstance(answer, LogLines) and any("ready on" in line for line in answer.lines)


# -- the end


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_terminated_worker_hands_its_work_back_and_exits_with_0(
    tmp_path: Path, coordinator: Coordinator, number: int
) -> None:
    async with worker(tmp_path) as each:
        link, _ = await coordinator.join(each)
        graph = long_graph(60.0)
        await coordinator.deploy(link, [(spec(graph, IN, OUT), graph)], PLAN)
        running = asyncio.create_task(
            coordinator.run(link, PLAN, 0, coordinator.feed(0, 0, np.eye(768, dtype=np.float32), "shared"))
        )
        await coordinator.until(lambda: bool(coordinator.of(Began)))
        hosts = each.host_pids()
        each.signal(number)
        assert await each.exit_code() == 0
        with pytest.raises(MeshError) as caught:  # it did not wait for the run, which takes much longer
            await running
        assert caught.value.retry
        await coordinator.until(lambda: bool(coordinator.of(Leaving)))
        (leaving,) = coordinator.of(Leaving)
        assert signal.Signals(number).name in leaving.reason and not leaving.log
        assert all([await gone(pid) for pid in hosts])
        assert not Path(link.peer.shared_memory).exists()


async def test_an_engine_host_leaves_the_ctrl_c_of_a_terminal_to_its_worker(
    tmp_path: Path, coordinator: Coordinator
) -> None:
    """A terminal sends it to the whole process group, so hosts get it, too."""
    async with worker(tmp_path) as each:
        link, _ = await coordinator.join(each)
        await with_double(coordinator, link)
        (host,) = each.host_pids()
        os.kill(host, signal.SIGINT)
        _, outputs = await coordinator.run(link, PLAN, 1, coordinator.feed(0, 0, random_array()))
        assert np.array_equal(outputs[0], 2 * random_array())
        assert each.host_pids() == [host]
        each.signal(signal.SIGINT)
        assert await each.exit_code() == 0
        assert "Traceback" not in each.log.read_text()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_an_engine_host_that_dies_or_hangs_is_replaced_by_one_with_the_same_parts(
    tmp_path: Path, coordinator: Coordinator, number: int
) -> None:
    async with worker(tmp_path, timeouts=replace(DEFAULT_TIMEOUTS, host_silence_s=2.0)) as each:
        link, _ = await coordinator.join(each)
        await with_double(coordinator, link)
        (host,) = each.host_pids()
        os.kill(host, number)
        assert await gone(host)
        outputs: dict[int, Any] = {}
        async with asyncio.timeout(HANGS_S):
            for step in itertools.count(1):
                try:
                    _, outputs = await coordinator.run(link, PLAN, step, coordinator.feed(0, 0, random_array()))
                    break
                except DeviceLost:  # it was given to the host that hung, or there is none yet
                    await asyncio.sleep(0.05)
        assert np.array_equal(outputs[0], 2 * random_array())
        assert not link.closed and each.host_pids() != [host]
        says = "signal 9" if number == signal.SIGKILL else "silent"
        async with asyncio.timeout(HANGS_S):  # the daemon may write its log later than it answers
            while not (says in (told := each.log.read_text()) and "is back" in told):
                await asyncio.sleep(0.05)


async def test_a_worker_whose_last_device_is_lost_again_and_again_leaves(
    tmp_path: Path, coordinator: Coordinator
) -> None:
    async with worker(tmp_path, devices=("cpu",)) as each:
        link, _ = await coordinator.join(each)
        await with_double(coordinator, link)
        while each.process.returncode is None:
            for host in each.host_pids():
                with contextlib.suppress(ProcessLookupError):  # it has ended by itself
                    os.kill(host, signal.SIGKILL)
            await asyncio.sleep(0.02)
        assert each.process.returncode == 3
        await coordinator.until(lambda: bool(coordinator.of(Leaving)))
        (leaving,) = coordinator.of(Leaving)
        assert "last device" in leaving.reason and "signal 9" in leaving.reason
        assert any("engine host" in line for line in leaving.log)


async def test_a_killed_daemon_takes_its_engine_hosts_with_it(tmp_path: Path, coordinator: Coordinator) -> None:
    async with worker(tmp_path) as each:
        link, _ = await coordinator.join(each)
        hosts = each.host_pids()
        each.signal(signal.SIGKILL)
        await coordinator.until(lambda: link.closed)
        assert all([await gone(pid) for pid in hosts])


async def test_a_worker_exits_when_its_parent_closes_stdin(tmp_path: Path) -> None:
    async with worker(tmp_path) as each:
        assert each.process.stdin is not None
        each.process.stdin.close()
        assert await each.exit_code() == 0
        assert "its parent closed stdin" in each.log.read_text()


async def test_100_malformed_connections_leave_it_serving(tmp_path: Path, coordinator: Coordinator) -> None:
    async with worker(tmp_path) as each:
        link, _ = await coordinator.join(each)
        await with_double(coordinator, link)
        junk = np.random.default_rng(1)
        openings = [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"\xff" * 64]
        for number in range(100):
            reader, writer = await asyncio.open_connection("127.0.0.1", each.port)
            writer.write(openings[number % 4] + junk.bytes(int(junk.integers(0, 400))))
            await asyncio.wait([asyncio.ensure_future(writer.drain())], timeout=1)
            writer.close()
            del reader
        _, outputs = await coordinator.run(link, PLAN, 0, coordinator.feed(0, 0, random_array()))
        assert np.array_equal(outputs[0], 2 * random_array())
        assert not link.closed


async def test_a_worker_that_cannot_start_says_why_and_exits_with_1(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="no device 'unobtainium'"):
        async with worker(tmp_path, devices=("unobtainium",)):
            pass


async def test_a_frozen_worker_wakes_up_free_and_can_be_joined_again(tmp_path: Path, coordinator: Coordinator) -> None:
    async with worker(tmp_path) as each:
        link, _ = await coordinator.join(each, silence_s=0.5)
        await with_double(coordinator, link)
        each.signal(signal.SIGSTOP)
        link.close("it is dead to us")
        await asyncio.sleep(0.8)
        each.signal(signal.SIGCONT)
        again, _ = await coordinator.join(each)
        with pytest.raises(StaleGeneration):
            await again.request(Run(PLAN, 0, ()), timeout_s=HANGS_S)
        await with_double(coordinator, again, plan=PlanKey(1, 2))
