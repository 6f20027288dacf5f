"""What a plan's parts leave for its next step: the worker's machine, event by event, and the engine host."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from support.adapter import needs_adapter
from support.machines.worker_machine import (
    CALL_INPUT,
    COORD,
    EDGE_IN,
    KEY,
    ME,
    SMALL,
    TO_COORD,
    WEIGHT,
    WEIGHT_IN,
    Driver,
    deploy,
    edge,
    of,
    one,
    part,
    weight,
)

from wire.errors import (
    BlobMissing,
    ConnectFailed,
    DeviceLost,
    ExecuteFailed,
    InputError,
    MeshError,
    OutOfMemory,
    StaleGeneration,
)
from wire.ir.codec import hash_array, tensor_bytes
from wire.ir.dtypes import F32, I32
from wire.ir.graph import GraphBuilder
from wire.protocol.messages import (
    CarriedValue,
    Carry,
    Deploy,
    Done,
    PartSpec,
    PlanKey,
    Snapshotted,
    Target,
)
from wire.system.shared_memory import SharedDir, take
from worker.collectives.rank import RankCollectives
from worker.cpu import CpuEngine
from worker.engine import host_messages as hm
from worker.engine.protocol import held_bytes
from worker.engine_host.host import Host
from worker.state import events as ev
from worker.state.bounds import BEGAN_S

STATE = WEIGHT_IN


def with_carries(spec: PartSpec, *carries: Carry) -> PartSpec:
    return PartSpec(spec.part, spec.device, spec.graph, spec.sources, spec.targets, carries)


COUNTER = with_carries(part(0, [STATE, CALL_INPUT], [[], TO_COORD]), Carry(0, 0, 0))


def kept(number: int, device: int = 0) -> ev.DeviceTensor:
    return ev.DeviceTensor("f32", (2,), device, number)


class Counter(Driver):
    """A worker with the plan of a counter: output 0 of its one part is input 0 of the next step."""

    def __init__(self, *specs: PartSpec) -> None:
        super().__init__()
        self.seen = self.deployed(deploy(*(specs or (COUNTER,)), blobs=(weight(),)))
        self.blob_number = 0

    def step(self, number: int, committed: int = 0) -> list[ev.Action]:
        feeds = ((0, 1, SMALL),)
        return self(ev.RunRequested(COORD, self.request(), KEY, number, feeds, committed))

    def executed(self, actions: list[ev.Action]) -> tuple[ev.Execute, list[ev.Action]]:
        """The part that was started, and what follows once it is done."""
        execute = one(ev.Execute, actions)
        state = ev.PartOutput(kept=kept(execute.outputs[0].keep))
        return execute, self(ev.PartExecuted(execute.run, (state, ev.PartOutput(inline=SMALL)), 0.1))

    def done(self, number: int, committed: int = 0) -> int:
        """Run a step to its end: under which number its state is kept."""
        execute, after = self.executed(self.step(number, committed))
        assert one(ev.ReplyRan, after).step == number
        return execute.outputs[0].keep

    def snapshot(self, step: int) -> list[ev.Action]:
        return self(ev.SnapshotRequested(COORD, self.request(), KEY, step))


def freed(actions: list[ev.Action]) -> set[int]:
    return {release.tensor.tensor for release in of(ev.Release, actions) if isinstance(release.tensor, ev.DeviceTensor)}


def test_the_first_step_takes_the_blob_and_the_second_what_the_first_left() -> None:
    drive = Counter()
    first = one(ev.Execute, drive.step(0))
    assert [use.position for use in first.inputs] == [1], "input 0 is bound to the blob"
    assert first.outputs[0].keep and not first.outputs[0].copies, "the state stays on its device"
    drive(
        ev.PartExecuted(first.run, (ev.PartOutput(kept=kept(first.outputs[0].keep)), ev.PartOutput(inline=SMALL)), 0.1)
    )
    second = one(ev.Execute, drive.step(1))
    state = next(use for use in second.inputs if use.position == 0)
    assert state.tensor == kept(first.outputs[0].keep) and not state.last, "it stays for whoever has to go back"


def test_a_step_waits_for_the_one_before_in_whatever_order_they_come() -> None:
    drive = Counter()
    assert not of(ev.Execute, drive.step(1)), "nothing has left a state yet"
    execute, after = drive.executed(drive.step(0))
    assert one(ev.Execute, after).inputs[0].tensor == kept(execute.outputs[0].keep)


def test_what_is_committed_frees_what_was_before_it() -> None:
    drive = Counter()
    numbers = [drive.done(step) for step in range(3)]
    assert freed(drive.step(3, committed=3)) == set(numbers[:2]), "the last committed value stays"
    assert drive.machine._plans[KEY].carried.values_of(2)


def test_the_first_values_are_let_go_once_a_step_is_committed() -> None:
    drive = Counter()
    drive.done(0)
    actions = drive.step(1, committed=1)
    assert one(ev.Unbind, actions).positions == {0}
    assert one(ev.UnpinBlobs, actions).blobs == {WEIGHT}
    assert not of(ev.Unbind, drive.step(2, committed=1)), "once"
    dropped = drive(ev.DropRequested(COORD, drive.request(), KEY))
    assert not of(ev.UnpinBlobs, dropped), "it is not let go a second time"


def test_a_blob_that_is_also_a_weight_stays() -> None:
    drive = Counter(with_carries(part(0, [STATE, CALL_INPUT, STATE], [[], TO_COORD]), Carry(0, 0, 0)))
    drive.done(0)
    actions = drive.step(1, committed=1)
    assert one(ev.Unbind, actions).positions == {0}
    assert not any(unpin.blobs for unpin in of(ev.UnpinBlobs, actions))


def test_a_snapshot_makes_blobs_of_what_a_step_left() -> None:
    drive = Counter()
    number = drive.done(0)
    make = one(ev.MakeBlob, drive.snapshot(0))
    assert make.tensor == kept(number)
    reply = one(ev.Reply, drive(ev.BlobMade(make.number, b"s" * 32)))
    assert reply.message == Snapshotted((CarriedValue(0, 0, b"s" * 32),))
    assert not of(ev.Reply, drive(ev.BlobMade(make.number, b"s" * 32))), "answered once"


@pytest.mark.parametrize("step", [1, 7])
def test_a_snapshot_of_what_is_not_there_is_refused(step: int) -> None:
    drive = Counter()
    drive.done(0)
    assert isinstance(one(ev.Refuse, drive.snapshot(step)).error, BlobMissing)


def test_a_snapshot_of_a_plan_that_is_over_or_by_a_stranger_is_refused() -> None:
    drive = Counter()
    drive.done(0)
    stranger = drive(ev.SnapshotRequested("other", drive.request(), KEY, 0))
    assert isinstance(one(ev.Refuse, stranger).error, StaleGeneration)
    drive(ev.DropRequested(COORD, drive.request(), KEY))
    assert isinstance(one(ev.Refuse, drive.snapshot(0)).error, StaleGeneration)


def test_a_snapshot_that_fails_is_refused_once_and_one_that_nobody_waits_for_is_not_answered() -> None:
    drive = Counter()
    drive.done(0)
    make = one(ev.MakeBlob, drive.snapshot(0))
    error = BlobMissing("no room")
    assert one(ev.Refuse, drive(ev.BlobNotMade(make.number, error))).error is error
    make = one(ev.MakeBlob, drive.snapshot(0))
    drive(ev.RequestGone(drive.requests))
    late = drive(ev.BlobMade(make.number, b"s" * 32))
    assert late == [ev.DiscardBlobs(frozenset({b"s" * 32}))], "nobody will pin it"


def test_blobs_of_a_snapshot_go_with_the_plan_whenever_they_are_made() -> None:
    drive = Counter()
    drive.done(0)
    make = one(ev.MakeBlob, drive.snapshot(0))
    drive(ev.BlobMade(make.number, b"s" * 32))
    make = one(ev.MakeBlob, drive.snapshot(0))
    actions = drive(ev.DropRequested(COORD, drive.request(), KEY))
    assert one(ev.DiscardBlobs, actions).blobs == {b"s" * 32}
    late = drive(ev.BlobMade(make.number, b"t" * 32))
    assert one(ev.DiscardBlobs, late).blobs == {b"t" * 32} and isinstance(one(ev.Refuse, late).error, StaleGeneration)


def test_a_failed_step_ends_those_after_it_and_leaves_what_was_before() -> None:
    drive = Counter()
    number = drive.done(0)
    failing = one(ev.Execute, drive.step(1))
    drive.step(2)
    actions = drive(ev.ExecuteFailed(failing.run, ExecuteFailed("no")))
    assert len(of(ev.Refuse, actions)) == 2, "step 2 would wait for ever"
    assert isinstance(one(ev.Refuse, drive.step(3)).error, StaleGeneration)
    assert one(ev.MakeBlob, drive.snapshot(0)).tensor == kept(number)


def test_a_cancelled_step_ends_those_after_it() -> None:
    drive = Counter()
    drive.done(0)
    running = one(ev.Execute, drive.step(1))
    drive.step(2)
    actions = drive(ev.CancelRequested(COORD, KEY, 1))
    assert len(of(ev.Refuse, actions)) == 2 and one(ev.StopRun, actions)
    late = drive(ev.PartExecuted(running.run, (ev.PartOutput(kept=kept(99)), ev.PartOutput(inline=SMALL)), 0.1))
    assert freed(late) == {99}, "nobody waits for what it made"


def test_a_host_is_told_of_the_next_step_while_it_does_this_one() -> None:
    drive = Counter()
    drive.done(0)
    first = one(ev.Execute, drive.step(1))
    second = one(ev.Execute, drive.step(2))
    assert next(use for use in second.inputs if use.position == 0).tensor == kept(first.outputs[0].keep)
    assert one(ev.SendBegan, drive(ev.Tick(), after_s=BEGAN_S)).began.step == 1, "the other has not begun"
    assert not of(ev.Execute, drive.step(3)), "one is enough"
    drive.now += 5.0
    after = drive(
        ev.PartExecuted(first.run, (ev.PartOutput(kept=kept(first.outputs[0].keep)), ev.PartOutput(inline=SMALL)), 5.0)
    )
    assert one(ev.Execute, after).step == 3
    assert one(ev.SendBegan, drive(ev.Tick(), after_s=BEGAN_S)).began.step == 2
    state = ev.PartOutput(kept=kept(second.outputs[0].keep))
    (ran,) = one(ev.ReplyRan, drive(ev.PartExecuted(second.run, (state, ev.PartOutput(inline=SMALL)), 1.0))).parts
    assert ran.wait_s == pytest.approx(5.0 + BEGAN_S), "until the step before had left its state"


def test_a_host_is_told_of_nothing_else_meanwhile() -> None:
    drive, other = Counter(), PlanKey(KEY.epoch, KEY.generation + 1)
    drive.done(0)
    drive.deployed(deploy(part(0, [CALL_INPUT], [TO_COORD]), plan=other))
    drive.step(1)
    assert not of(ev.Execute, drive.run(0, (0, 0, SMALL), plan=other)), "who comes first may change until it is idle"


def test_what_follows_a_step_that_fails_is_stopped_when_its_turn_comes() -> None:
    drive = Counter()
    drive.done(0)
    first, second = one(ev.Execute, drive.step(1)), one(ev.Execute, drive.step(2))
    failed = drive(ev.ExecuteFailed(first.run, ExecuteFailed("no")))
    assert len(of(ev.Refuse, failed)) == 2 and {stop.run for stop in of(ev.StopRun, failed)} == {second.run}
    assert not drive(ev.ExecuteFailed(second.run, BlobMissing("of course")))
    assert drive.machine.queue_depth == 0


def test_what_a_host_was_told_of_is_stopped_when_its_turn_comes_and_what_it_does_goes_on() -> None:
    drive = Counter()
    drive.done(0)
    first, second = one(ev.Execute, drive.step(1)), one(ev.Execute, drive.step(2))
    cancelled = drive(ev.CancelRequested(COORD, KEY, 2))
    assert one(ev.Refuse, cancelled) and not of(ev.StopRun, cancelled)
    state = ev.PartOutput(kept=kept(first.outputs[0].keep))
    done = drive(ev.PartExecuted(first.run, (state, ev.PartOutput(inline=SMALL)), 0.1))
    assert one(ev.ReplyRan, done).step == 1 and one(ev.StopRun, done).run == second.run
    late = drive(ev.PartExecuted(second.run, (ev.PartOutput(kept=kept(99)), ev.PartOutput(inline=SMALL)), 0.1))
    assert freed(late) == {99} and drive.machine.queue_depth == 0


def test_a_lost_host_takes_all_it_was_told_of_with_it() -> None:
    drive = Counter()
    drive.done(0)
    drive.step(1)
    drive.step(2)
    refused = of(ev.Refuse, drive(ev.HostLost(0, DeviceLost("gone"))))
    assert [type(refusal.error) for refusal in refused] == [DeviceLost, DeviceLost]
    assert drive.machine.queue_depth == 0


def test_what_a_host_was_told_of_and_could_not_be_told_is_over_at_once() -> None:
    """The daemon says so, not the host: perhaps there is no link to another rank."""
    drive = Counter()
    drive.done(0)
    first, second = one(ev.Execute, drive.step(1)), one(ev.Execute, drive.step(2))
    assert one(ev.Refuse, drive(ev.ExecuteFailed(second.run, ConnectFailed("no link"))))
    state = ev.PartOutput(kept=kept(first.outputs[0].keep))
    done = drive(ev.PartExecuted(first.run, (state, ev.PartOutput(inline=SMALL)), 0.1))
    assert one(ev.ReplyRan, done).step == 1 and not of(ev.StopRun, done)
    assert drive.machine.queue_depth == 0 and not drive.machine.working(drive.now)


def test_a_host_that_says_that_its_device_is_gone_does_nothing_else_that_it_was_told_of() -> None:
    drive = Counter()
    drive.done(0)
    first = one(ev.Execute, drive.step(1))
    drive.step(2)
    refused = of(ev.Refuse, drive(ev.ExecuteFailed(first.run, DeviceLost("gone"))))
    assert [type(refusal.error) for refusal in refused] == [DeviceLost, DeviceLost]
    assert drive.machine.queue_depth == 0 and not of(ev.Refuse, drive(ev.HostLost(0, DeviceLost("gone"))))


def test_only_the_part_that_ran_is_named_when_its_host_dies() -> None:
    """The second part of step 1 was told after the first one of step 2, and had not begun."""
    late = part(1, [EDGE_IN], [TO_COORD])
    drive = Counter(COUNTER, late)
    for step in (0, 1):
        drive.executed(drive.step(step))
    two = one(ev.Execute, drive.step(2))
    one(ev.Execute, drive.push(1, 0, SMALL, step=1))
    blamed = {each.request: each.error.part for each in of(ev.Refuse, drive(ev.HostLost(0, DeviceLost("gone"))))}
    assert two.step == 2 and sorted(blamed.values()) == ["", "", "0"]


def test_a_part_that_waits_for_its_device_only_did_not_wait_for_its_inputs() -> None:
    drive = Counter(COUNTER, part(1, [CALL_INPUT], [[Target("", 1, 0)]]))
    actions = drive(ev.RunRequested(COORD, drive.request(), KEY, 0, ((0, 1, SMALL), (1, 0, SMALL))))
    first, second = of(ev.Execute, actions)
    drive.now += 5.0
    drive(
        ev.PartExecuted(first.run, (ev.PartOutput(kept=kept(first.outputs[0].keep)), ev.PartOutput(inline=SMALL)), 5.0)
    )
    (_, ran) = one(ev.ReplyRan, drive(ev.PartExecuted(second.run, made_small(), 1.0))).parts
    assert ran.part == 1 and ran.wait_s == 0.0


def test_a_drop_frees_what_was_carried() -> None:
    drive = Counter()
    numbers = {drive.done(step) for step in range(2)}
    actions = drive(ev.DropRequested(COORD, drive.request(), KEY))
    assert freed(actions) == numbers and one(ev.Reply, actions).message == Done()


def test_a_lost_host_takes_its_values_and_their_plan_with_it() -> None:
    drive = Counter()
    drive.done(0)
    waiting = drive.step(1)
    actions = drive(ev.HostLost(0, DeviceLost("gone")))
    assert isinstance(one(ev.Refuse, actions).error, DeviceLost) and waiting
    assert isinstance(one(ev.Refuse, drive.snapshot(0)).error, StaleGeneration)
    assert isinstance(one(ev.Refuse, drive.step(2)).error, StaleGeneration)


def test_one_output_may_be_carried_to_several_parts_and_be_read_in_its_own_step() -> None:
    """Two parts read the state, the second makes the next one of it, and a third reads that at once."""
    first = part(0, [STATE, CALL_INPUT], [[Target(ME, 1, 1)]])
    second = with_carries(part(1, [STATE, edge(0, 0)], [[Target(ME, 2, 0)]]), Carry(0, 0, 0), Carry(0, 1, 0))
    third = part(2, [edge(1, 0)], [TO_COORD])
    drive = Counter(first, second, third)
    actions = drive.step(0)
    for number in (11, 12, 13):
        execute = one(ev.Execute, actions)
        keep = execute.outputs[0].keep
        actions = drive(
            ev.PartExecuted(execute.run, (ev.PartOutput(kept=kept(number)),) if keep else made_small(), 0.1)
        )
        if number == 13:
            assert not execute.inputs[0].last, "the next step needs it"
    assert one(ev.ReplyRan, actions)
    following = one(ev.Execute, drive.step(1))
    assert next(use for use in following.inputs if use.position == 0).tensor == kept(12)


def made_small() -> tuple[ev.PartOutput, ...]:
    return (ev.PartOutput(inline=SMALL),)


@pytest.mark.parametrize(
    "carry",
    [Carry(0, 5, 0), Carry(7, 0, 0), Carry(0, 0, 1), Carry(0, 0, 9), Carry(0, 1, 0)],
    ids=["no such part", "no such output", "no param", "no such input", "another device"],
)
def test_an_impossible_carry_is_refused(carry: Carry) -> None:
    other = part(1, [STATE], [TO_COORD], device=1)
    message = deploy(with_carries(COUNTER, carry), other, blobs=(weight(),))
    assert isinstance(one(ev.Refuse, Driver().ask_deploy(message)).error, InputError)


def test_two_outputs_for_one_slot_are_refused() -> None:
    spec = with_carries(COUNTER, Carry(0, 0, 0), Carry(1, 0, 0))
    refused = one(ev.Refuse, Driver().ask_deploy(deploy(spec, blobs=(weight(),))))
    assert isinstance(refused.error, InputError)


def test_a_plan_without_parts_holds_blobs_for_others() -> None:
    """A copy of another worker's state: fetched, pinned, and let go with the plan."""
    drive = Driver()
    key = PlanKey(7, 2)
    seen = drive.deployed(Deploy(key, (), {}, (weight("peer"),), {}))
    assert one(ev.Fetch, seen).blob == WEIGHT and one(ev.PinBlobs, seen).blobs == {WEIGHT}
    assert one(ev.UnpinBlobs, drive(ev.DropRequested(COORD, drive.request(), key))).blobs == {WEIGHT}


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_kept_or_freed_twice_whatever_happens(seed: int) -> None:
    rng = random.Random(seed)
    drive = Counter()
    alive: set[int] = set()
    running: dict[int, int] = {}
    steps, committed = itertools.count(), 0

    def see(actions: list[ev.Action]) -> None:
        nonlocal committed
        for number in freed(actions):
            alive.remove(number)
        for execute in of(ev.Execute, actions):
            uses = [use.tensor.tensor for use in execute.inputs if isinstance(use.tensor, ev.DeviceTensor)]
            assert set(uses) <= alive | set(running.values()), "a step reads what was freed, or nobody makes before it"
            running[execute.run] = execute.outputs[0].keep
        committed += len(of(ev.ReplyRan, actions))

    def first_done() -> ev.PartExecuted:
        """A host does what it is told in order; what fails there is of a step that is over."""
        run = next(iter(running))
        number = running.pop(run)
        alive.add(number)
        return ev.PartExecuted(run, (ev.PartOutput(kept=kept(number)), ev.PartOutput(inline=SMALL)), 0.1)

    for _ in range(60):
        if running and rng.random() < 0.6:
            see(drive(first_done()))
        elif rng.random() < 0.97:
            see(drive.step(next(steps), rng.randint(0, committed)))
        else:
            see(drive(ev.CancelRequested(COORD, KEY, rng.randint(0, 40))))
    see(drive(ev.DropRequested(COORD, drive.request(), KEY)))
    while running:
        see(drive(first_done()))
    assert not alive, "something stays on the device"


# -- the engine host


def wgsl() -> Any:
    from worker.wgsl.engine import WgslEngine

    return WgslEngine(0)


@pytest.mark.parametrize("opened", [CpuEngine, pytest.param(wgsl, marks=needs_adapter)])
def test_a_host_keeps_a_state_hands_out_copies_and_lets_the_first_value_go(opened: Any, tmp_path: Path) -> None:
    builder = GraphBuilder()
    graph = builder.build([builder.add("add", builder.input("0", (2,), F32), builder.input("1", (2,), F32))])
    first = np.array([1, 2], np.float32)
    blob, path = hash_array(first), tmp_path / "blob"
    path.write_bytes(tensor_bytes(first))
    shared, engine = SharedDir.create(tmp_path), opened()
    host = Host(engine, shared, memoryview(bytearray(8)), 1 << 30)
    param = hm.BoundParam(0, blob, str(path))
    assert isinstance(host.handle(hm.PreparePart(1, graph.hash, graph.encoded, 2, 1, (param,), {}, False)), hm.Prepared)
    ten = tensor_bytes(np.array([10, 10], np.float32)).tobytes()

    def run(number: int, *inputs: hm.Input) -> hm.FromHost | None:
        given = (hm.Input(1, "f32", (2,), True, ten), *inputs)
        return host.handle(hm.ExecutePart(number, 1, given, (hm.OutputRequest(number, 0),)))

    assert isinstance(run(1), hm.Executed)
    host.handle(hm.Unbind(1, (0,)))
    assert not host._resident and not host._resident_bytes
    assert isinstance(run(2), hm.ExecuteFailed), "the first value is gone"
    missing = run(4, hm.Input(0, "f32", (2,), False, kept=2))
    assert isinstance(missing, hm.ExecuteFailed) and missing.error["code"] == BlobMissing.code, "2 failed"
    ran = run(3, hm.Input(0, "f32", (2,), False, kept=1))
    assert isinstance(ran, hm.Executed) and ran.outputs == (hm.Output("f32", (2,), None, (), 3),)
    assert (ran.uploaded_bytes, ran.readback_bytes) == ((8, 0) if engine.info.engine == "wgsl" else (0, 0))
    exported = host.handle(hm.Export(5, 3))
    assert isinstance(exported, hm.Exported) and exported.output is not None and exported.output.data is not None
    assert np.frombuffer(exported.output.data, np.float32).tolist() == [21, 22]
    host.handle(hm.Unprepare(1))
    host.handle(hm.Forget((1, 3)))
    gone = host.handle(hm.Export(6, 3))
    assert isinstance(gone, hm.Exported) and gone.output is None and gone.error
    assert not host._kept and not held_bytes(engine)
    shared.close()
    engine.close()


def test_other_ranks_hear_of_the_run_that_failed_and_not_of_what_follows_it(tmp_path: Path) -> None:
    builder = GraphBuilder()
    graph = builder.build([builder.add("neg", builder.input("0", (2,), F32))])
    shared, told = SharedDir.create(tmp_path), list[MeshError]()

    class Rank:
        def begin(self, *_: Any) -> None: ...

        def fail(self, error: MeshError) -> None:
            told.append(error)

    host = Host(CpuEngine(), shared, memoryview(bytearray(8)), 1 << 30)
    host.handle(hm.PreparePart(1, graph.hash, graph.encoded, 1, 1, (), {}, False))
    host._prepared[1].gang, host._prepared[1].ranks = (
        hm.RankOf(("dp",), (1,), 0, ()),
        ((), cast(RankCollectives, Rank())),
    )
    wrong = hm.Input(0, "f32", (3,), True, bytes(12))
    for run, given in ((1, wrong), (2, hm.Input(0, "f32", (2,), False, kept=1))):
        said = host.handle(hm.ExecutePart(run, 1, (given,), (hm.OutputRequest(run, 0),)))
        assert isinstance(said, hm.ExecuteFailed)
    assert [type(error) for error in told] == [InputError], "or those who still wait in the first never hear of it"
    shared.close()


def test_a_host_writes_over_a_table_and_still_has_the_values_before(tmp_path: Path) -> None:
    rows, width = 512, 128
    builder = GraphBuilder()
    table, at = builder.input("0", (rows, width), F32), builder.input("1", (1,), I32)
    row = builder.add("add", builder.input("2", (1, width), F32), builder.const(np.float32(1)))
    graph = builder.build([builder.add("scatter", table, at, row, axis=0, mode="set")])
    shared = SharedDir.create(tmp_path)
    host = Host(CpuEngine(), shared, memoryview(bytearray(8)), 1 << 30)
    first = tensor_bytes(np.zeros((rows, width), np.float32)).tobytes()
    assert isinstance(host.handle(hm.PreparePart(1, graph.hash, graph.encoded, 3, 1, (), {}, False)), hm.Prepared)
    right = [np.zeros((rows, width), np.float32)]

    def run(number: int, table: hm.Input, copies: int = 0) -> hm.FromHost | None:
        at = tensor_bytes(np.array([number], np.int32)).tobytes()
        row = tensor_bytes(np.full((1, width), number, np.float32)).tobytes()
        given = (table, hm.Input(1, "i32", (1,), True, at), hm.Input(2, "f32", (1, width), True, row))
        return host.handle(hm.ExecutePart(number, 1, given, (hm.OutputRequest(number, copies),)))

    def of(kept: int) -> Any:
        said = host.handle(hm.Export(99, kept))
        assert isinstance(said, hm.Exported) and said.output is not None
        data = said.output.data or bytes(take(shared.path, said.output.files[0], rows * width * 4))
        return np.frombuffer(data, np.float32).reshape(rows, width)

    assert isinstance(run(1, hm.Input(0, "f32", (rows, width), True, first)), hm.Executed)
    for number in range(1, 6):
        right.append(right[-1].copy())
        right[-1][number] = number + 1
        if number > 1:
            assert isinstance(run(number, hm.Input(0, "f32", (rows, width), False, kept=number - 1)), hm.Executed)
    assert all((of(number) == right[number]).all() for number in range(1, 6))
    wrong = (hm.Input(0, "f32", (rows, width), False, kept=5), hm.Input(1, "i32", (1,), True, b"\0\0\0\0"))
    failed = host.handle(hm.ExecutePart(6, 1, wrong, (hm.OutputRequest(6, 0),)))
    assert isinstance(failed, hm.ExecuteFailed) and (of(5) == right[5]).all()
    refused = SharedDir.write_copies
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SharedDir, "write_copies", refuse)
        assert isinstance(run(6, hm.Input(0, "f32", (rows, width), False, kept=5), copies=1), hm.ExecuteFailed)
    assert SharedDir.write_copies is refused and (of(5) == right[5]).all(), "what was written was taken back"
    host.handle(hm.Forget((5, 1, 4)))
    assert (of(2) == right[2]).all() and (of(3) == right[3]).all()
    assert isinstance(run(4, hm.Input(0, "f32", (rows, width), False, kept=3)), hm.Executed)
    assert (of(4) == right[4]).all() and (of(2) == right[2]).all()
    host.handle(hm.Forget((2, 3, 4)))
    assert not host._kept
    shared.close()


def refuse(*_: Any) -> Any:
    raise OutOfMemory("no room")
