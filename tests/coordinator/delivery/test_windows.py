"""Windows of inputs and params: only they travel, and what is nowhere whole is put together again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.machines.profiles import device, near, worker

from coordinator.delivery.input_sender import RUN_BYTES_MAX, inline_feeds, input_array, run_step
from coordinator.delivery.param_slices import ParamSlices
from coordinator.delivery.tensor_store import TensorStore
from coordinator.planning import plan_messages
from coordinator.planning.model.plan import FromInput, FromParam, FromPart, Part, Pieces, Plan, Window
from coordinator.planning.model.profiles import CLIENT
from coordinator.planning.model.program import Program
from coordinator.planning.plan_codec import plan_bytes, plan_from
from coordinator.planning.plan_messages import Inventory
from coordinator.planning.planner import make_plan
from coordinator.workers.records import Deployment
from wire.errors import BlobMissing, NodeLost
from wire.ir.codec import hash_array
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder, WireGraph
from wire.ir.types import TensorType
from wire.link.link import Link
from wire.protocol.messages import INLINE_BYTES_MAX, Blob, FetchBlob, Message, PlanKey, Push, Ran, Run, Value
from wire.system.outcome import Outcome
from wire.system.shared_memory import SharedDir, take
from wire.system.tasks import Tasks
from wire.transfer.content_exchange import OFF_LOOP_BYTES

X = np.arange(24, dtype=np.float32).reshape(4, 6)
LEFT, RIGHT = Window((0, 0), (4, 3)), Window((0, 3), (4, 3))
TOP = Window((0, 0), (2, 6))


def doubled(*shape: int) -> WireGraph:
    """x + w, under the names that a part has."""
    builder = GraphBuilder()
    x, w = builder.input("0", shape, F32), builder.input("1", shape, F32)
    return builder.build([builder.add("add", x, w)])


def halved() -> Plan:
    """x + w, each half of the columns on a worker of its own."""
    builder = GraphBuilder()
    whole = builder.build([builder.add("add", builder.input("x", (4, 6), F32), builder.param("w", (4, 6), F32))])
    parts = tuple(
        Part(index, node, 0, "cpu", doubled(4, 3), (FromInput("x", window), FromParam("w", window)))
        for index, (node, window) in enumerate((("node-0", LEFT), ("node-1", RIGHT)))
    )
    pieces = Pieces(((FromPart(0, 0), LEFT), (FromPart(1, 0), RIGHT)))
    plan = make_plan(whole, near(*(worker(number, device(0, 1.0, 1.0)) for number in range(2))), "single")
    return Plan(plan.strategy, whole, parts, (), (pieces,), plan.params, plan.workers, 0.0, 0, (), ordered=True)


def test_a_window_is_a_box_of_an_array() -> None:
    assert np.array_equal(RIGHT.of(X), X[:, 3:])
    assert np.shares_memory(RIGHT.of(X), X)


def test_a_worker_is_fed_its_window_only() -> None:
    feeds = plan_messages.feeds(halved())
    assert feeds == {"node-0": ((0, 0, FromInput("x", LEFT)),), "node-1": ((1, 0, FromInput("x", RIGHT)),)}
    (feed,), apart = inline_feeds(feeds["node-1"], {"x": X})
    assert feed.value.data == X[:, 3:].tobytes() and feed.value.shape == (4, 3) and not apart


def test_large_feeds_and_those_beyond_a_short_message_are_sent_apart() -> None:
    small, large = np.zeros(INLINE_BYTES_MAX // 4, np.float32), np.zeros(INLINE_BYTES_MAX, np.float32)
    wanted = [(0, slot, FromInput(name)) for slot, name in enumerate(["large"] + ["small"] * 10)]
    feeds, apart = inline_feeds(wanted, {"small": small, "large": large})
    assert len(feeds) == RUN_BYTES_MAX // INLINE_BYTES_MAX and len(feeds) + len(apart) == len(wanted)
    assert apart[0] == wanted[0], "the large one"
    narrow = FromInput("large", Window((4,), (8,)))
    assert input_array(narrow, {"large": large}).shape == (8,)
    assert not inline_feeds([(0, 0, narrow)], {"large": large})[1]


def test_what_a_plan_says_of_windows_is_what_workers_hear() -> None:
    plan, w = halved(), TensorType((4, 3), F32)
    params = {FromParam("w", LEFT): (b"l" * 32, w), FromParam("w", RIGHT): (b"r" * 32, w)}
    assert list(plan_messages.params_of(plan)) == list(params)
    told = plan_messages.deploy(plan, "node-1", PlanKey(1, 1), params, Inventory({}, {"node-0": (), "node-1": ()}))
    assert told.ordered
    (part,), (blob,) = told.parts, told.blobs
    assert part.sources[1].blob == blob.blob == b"r" * 32
    assert (blob.size_bytes, blob.shape) == (48, (4, 3))
    assert plan.describe()["parts"][0]["weight_bytes"] == 48


def test_workers_that_have_content_are_asked_for_it_before_the_coordinator_unless_they_are_slower() -> None:
    plan, blob = halved(), b"r" * 32
    params = {FromParam("w", side): (blob, TensorType((4, 3), F32)) for side in (LEFT, RIGHT)}
    holders = {"near": {blob}, "slow": {blob}, "without": set[bytes](), "far": {blob}}
    inventory = Inventory(holders, {}, slower=lambda node: node == "slow")
    (told,) = plan_messages.deploy(plan, "node-1", PlanKey(1, 1), params, inventory).blobs
    assert told.holders == ("near", "far", CLIENT, "slow")


def test_an_output_in_pieces_is_put_together() -> None:
    plan = halved()
    assert plan.arrivals == {0: FromPart(0, 0), 1: FromPart(1, 0)} and plan_messages.output_count(plan) == 2
    params = dict.fromkeys(plan_messages.params_of(plan), (b"r" * 32, TensorType((4, 3), F32)))
    told = plan_messages.deploy(plan, "node-1", PlanKey(1, 1), params, Inventory({}, {}))
    ((target,),) = told.parts[0].targets
    assert (target.node, target.slot) == ("", 1)
    (whole,) = plan_messages.outputs(plan, {1: X[:, 3:], 0: X[:, :3]}, {}, {})
    assert np.array_equal(whole, X)


def test_an_output_that_is_a_window_of_an_input_is_cut_here() -> None:
    plan = halved()
    plan = Plan("single", plan.graph, (), (), (FromInput("x", TOP),), (), (), 0.0, 0, ())
    (found,) = plan_messages.outputs(plan, {}, {"x": X}, {})
    assert np.array_equal(found, X[:2])


def test_a_plan_with_windows_survives_as_bytes() -> None:
    plan = halved()
    assert plan_from(plan_bytes(plan), plan.graph) == plan


def test_a_slice_is_content_of_its_own_hashed_once_and_cut_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[Any] = []
    monkeypatch.setattr(
        "coordinator.delivery.param_slices.hash_array", lambda array: (hashed.append(array), hash_array(array))[1]
    )
    held = TensorStore()
    slices, address, kind = ParamSlices(held), hash_array(X), TensorType((4, 6), F32)
    held.hold(address, X)
    wanted = [FromParam("w", LEFT), FromParam("w", RIGHT), FromParam("w")]

    async def ask() -> None:
        for _ in range(2):
            params = await slices.params(wanted, {"w": (address, kind)})
        assert [found[0] for found in params.values()] == [hash_array(X[:, :3]), hash_array(X[:, 3:]), address]
        assert len(hashed) == 2
        right = params[wanted[1]][0]
        assert slices.find(right) is None, "nothing is held twice"

        async def serve(_link: Link, asked: FetchBlob) -> Blob:
            data = slices.find(asked.blob)
            assert data is not None
            return Blob(data.nbytes, bytes(data))

        link: Any = None
        answer = await slices.before(serve)(link, FetchBlob(right, 1))
        assert answer.data == X[:, 3:].tobytes() and slices.find(right) is None
        assert (await slices.before(serve)(link, FetchBlob(address, 1))).data == X.tobytes()
        held.release(address)
        with pytest.raises(BlobMissing):
            await slices.params([FromParam("w", TOP)], {"w": (address, kind)})

    asyncio.run(ask())


def test_a_slice_of_two_params_is_there_as_long_as_one_of_them_is() -> None:
    """Zeros of moments and biases are the same bytes, in whichever program."""
    held, small, large = TensorStore(), np.zeros((4, 6), np.float32), np.zeros((8, 6), np.float32)
    slices, of_small, of_large = ParamSlices(held), hash_array(small), hash_array(large)

    async def serve(_link: Link, asked: FetchBlob) -> Blob:
        data = slices.find(asked.blob)
        if data is None:
            raise BlobMissing("it is not held here")
        return Blob(data.nbytes, bytes(data))

    async def ask() -> None:
        link: Any = None
        for address, array in ((of_small, small), (of_large, large)):
            held.hold(address, array)
            kind = TensorType((len(array), 6), F32)
            ((blob, _),) = (await slices.params([FromParam("w", TOP)], {"w": (address, kind)})).values()
        held.release(of_large)
        assert (await slices.before(serve)(link, FetchBlob(blob, 1))).data == bytes(48)
        held.hold(of_large, large)
        held.release(of_small)
        assert (await slices.before(serve)(link, FetchBlob(blob, 2))).data == bytes(48)

    asyncio.run(ask())


class Recorded:
    """A link that notes the Runs it is given, answers them once their inputs are there, and takes its time for
    streams."""

    same_host = False
    closed = False
    peer = SimpleNamespace(name="there", node_id="node")

    def __init__(self, answers: bool = True) -> None:
        self.runs: list[tuple[int, int]] = []
        self.streams: list[int] = []
        self.asked: list[Outcome[Message]] = []
        self.withdrawn = 0
        self._answers = answers
        self.wants = 1  # inputs of each run
        self._lacking: list[Outcome[Message]] = []

    def outcome_of(self, run: Run) -> Outcome[Message]:
        self.runs.append((run.plan.generation, run.step))
        answer: Outcome[Message] = Outcome(self._withdraw)
        self.asked.append(answer)
        self._lacking += [answer] * (self.wants - len(run.feeds))
        if answer not in self._lacking:
            asyncio.get_running_loop().call_soon(self._answer, answer)
        return answer

    def _came(self) -> None:
        answer = self._lacking.pop(0)
        if answer not in self._lacking:
            self._answer(answer)

    def _answer(self, answer: Outcome[Message]) -> None:
        if self._answers:
            answer.set_result(Ran((), (), 0, 0))

    def _withdraw(self) -> None:
        self.withdrawn += 1

    async def send_stream(self, header: Push, data: memoryview) -> None:
        await asyncio.sleep(0)
        self.streams.append(data.nbytes)
        self._came()


async def came_of(link: Any, number: int, step: int, wanted: Any, inputs: Any, shared: SharedDir | None = None) -> Ran:
    """What comes of a run that is begun now."""
    tasks, came = Tasks(), asyncio.get_running_loop().create_future()
    ran = run_step(link, Run(PlanKey(1, number), step), wanted, inputs, shared, tasks.run)
    ran.then(lambda answer, error: came.set_result(answer) if error is None else came.set_exception(error))
    try:
        answer: Ran = await came
    finally:
        await asyncio.sleep(0)
        assert not len(tasks), "nothing is sent any more"
    return answer


def test_runs_leave_every_node_in_the_order_in_which_they_were_begun_whatever_their_inputs() -> None:
    large, small = np.zeros(2**19, np.float32), np.zeros(4, np.float32)  # one is copied in a thread

    async def steps() -> None:
        links: list[Any] = [Recorded() for _ in range(3)]
        order = [(generation, step) for step in range(4) for generation in (1, 2)]
        waiting = []
        for turn, (generation, step) in enumerate(order):
            for place, link in enumerate(links):
                inputs = {"x": large if (turn + place) % 2 else small}
                waiting.append(asyncio.create_task(came_of(link, generation, step, [(0, 0, FromInput("x"))], inputs)))
            await asyncio.sleep(0)
        await asyncio.gather(*waiting)
        assert all(link.runs == order for link in links)
        assert sorted(len(link.streams) for link in links) == [4, 4, 4]

    asyncio.run(steps())


class Near(Recorded):
    """A link to a process of this machine."""

    same_host = True

    def __init__(self) -> None:
        super().__init__()
        self.feeds: dict[int, Value] = {}  # by slot, those that came with the run
        self.pushed: list[int] = []  # the slots of those that came after it

    def outcome_of(self, run: Run) -> Outcome[Message]:
        self.feeds |= {feed.slot: feed.value for feed in run.feeds}
        return super().outcome_of(run)

    def hand(self, directory: str, name: str, size_bytes: int) -> None:
        pass

    def notify(self, push: Push) -> None:
        self.pushed.append(push.slot)
        self._came()


def test_a_run_names_the_files_of_inputs_that_need_no_thread(tmp_path: Path) -> None:
    sizes = {"small": 4, "large": INLINE_BYTES_MAX, "too large": OFF_LOOP_BYTES}
    inputs = {name: np.full(size, 7, np.float32) for name, size in sizes.items()}
    wanted = [(0, slot, FromInput(name)) for slot, name in enumerate(sizes)]
    link: Any = Near()
    link.wants = len(wanted)
    shared = SharedDir.create(tmp_path)
    asyncio.run(came_of(link, 1, 0, wanted, inputs, shared))
    assert link.feeds[0].data == inputs["small"].tobytes()
    data = take(shared.path, link.feeds[1].shared, inputs["large"].nbytes)
    assert link.feeds[1].data is None and data.tobytes() == inputs["large"].tobytes()
    assert link.pushed == [2], "it is copied in a thread, and the run does not wait for that"
    shared.close()


def test_no_file_is_left_of_a_run_that_could_not_leave(tmp_path: Path) -> None:
    class Ending(Near):
        def hand(self, directory: str, name: str, size_bytes: int) -> None:
            assert (Path(directory) / name).exists()
            self.closed = True

    shared, link = SharedDir.create(tmp_path), Ending()
    inputs, before = {"x": np.zeros(INLINE_BYTES_MAX, np.float32)}, set(Path(shared.path).iterdir())
    wanted = [(0, slot, FromInput("x")) for slot in range(2)]
    with pytest.raises(NodeLost):
        asyncio.run(came_of(link, 1, 0, wanted, inputs, shared))
    assert link.closed and not link.runs and set(Path(shared.path).iterdir()) == before
    shared.close()


def test_a_step_that_could_not_be_fed_is_not_waited_for() -> None:
    class Broken(Recorded):
        async def send_stream(self, header: Push, data: memoryview) -> None:
            raise NodeLost("the link ended")

    link = Broken(answers=False)
    with pytest.raises(NodeLost):
        asyncio.run(came_of(link, 1, 0, [(0, 0, FromInput("x"))], {"x": np.zeros(2**16, np.float32)}))
    assert link.withdrawn == 1, "the request was given up"


def test_inputs_are_sent_no_longer_than_somebody_needs_them() -> None:
    """A worker that refuses a run at once was sent all of its inputs before anybody looked at the answer."""

    class Slow(Recorded):
        async def send_stream(self, header: Push, data: memoryview) -> None:
            await asyncio.sleep(3600)

    async def refused() -> None:
        link, inputs = Slow(answers=False), {"x": np.zeros(2**16, np.float32)}
        step = asyncio.create_task(came_of(link, 1, 0, [(0, 0, FromInput("x"))], inputs))
        await asyncio.sleep(0.01)
        link.asked[0].set_exception(NodeLost("the plan is over"))
        with pytest.raises(NodeLost, match="the plan is over"):
            await asyncio.wait_for(step, 120)

    asyncio.run(refused())


def test_a_plan_that_is_given_up_stops_sending_inputs() -> None:
    async def given_up() -> bool:
        deployment: Any = Deployment(Program(doubled(4, 3), {}, "auto"))
        task = deployment.sends(asyncio.create_task(asyncio.sleep(3600)))
        deployment.stop_sending()
        await asyncio.wait([task], timeout=120)
        assert not deployment.sending
        return bool(task.cancelled())

    assert asyncio.run(given_up())
