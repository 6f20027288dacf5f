"""What a coordinator deployed and then fell silent about: it stays for a while, for that coordinator alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.machines.worker_machine import (
    CALL_INPUT,
    COORD,
    KEY,
    ME,
    ONE_PART,
    SMALL,
    WEIGHT_IN,
    Driver,
    deploy,
    made,
    of,
    one,
    part,
    weight,
)

from wire.errors import Busy, NodeLost, NotDurable, StaleGeneration
from wire.ir.codec import hash_array, tensor_bytes
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder
from wire.protocol.messages import BlobSpec, Carry, Deploy, PartSpec, PlanKey, Snapshotted, Target
from wire.system.shared_memory import SharedDir
from worker.cpu.engine import CpuEngine
from worker.daemon.environment import REAL
from worker.engine import host_messages as hm
from worker.engine_host.host import Host
from worker.state import events as ev
from worker.state.bounds import Bounds

SILENCE_S = 2.0
KEEP_S = 600.0
PINS = PlanKey(7, 2)
PIN = Deploy(PINS, (), {}, (BlobSpec(b"c" * 32, 400, "f32", (10, 10), (ME,)),), {ME: ()})
COUNTER = PartSpec(
    0,
    0,
    ONE_PART.graph,
    (WEIGHT_IN, CALL_INPUT),
    ((), (Target("", 0, 0),)),
    (Carry(0, 0, 0),),
)


def served(*plans: Deploy, keep_s: float = KEEP_S) -> Driver:
    drive = Driver(join=False, bounds=Bounds(keep_orphans_s=keep_s))
    drive.join(silence_s=SILENCE_S)
    for plan in plans or (deploy(ONE_PART),):
        drive.deployed(plan)
    return drive


def silent(drive: Driver) -> list[ev.Action]:
    """Its coordinator says nothing until the lease is over."""
    drive(ev.Tick(), after_s=SILENCE_S / 2)
    return drive(ev.Tick(), after_s=SILENCE_S / 2)


def back(drive: Driver, *kept: int, epoch: int = 7, earlier: tuple[PlanKey, ...] = ()) -> list[ev.Action]:
    return drive(
        ev.JoinRequested(COORD, drive.request(), COORD, epoch, 0.1, SILENCE_S, continued=kept, earlier=earlier)
    )


def test_silence_drops_nothing_and_is_answered_with_silence() -> None:
    drive = served()
    assert silent(drive) == [ev.LookForOwner()]
    assert not drive.machine.served, "it beats no more"
    assert drive(ev.Heard(COORD), after_s=58.0) == [ev.SendBeat()]
    assert drive.machine.served
    assert of(ev.Execute, drive.run(0, (0, 0, SMALL))), "the plan is there still"


def test_a_step_under_way_is_done_and_answered_whatever_the_coordinator_does() -> None:
    drive = served()
    execute = one(ev.Execute, drive.run(0, (0, 0, SMALL)))
    silent(drive)
    assert one(ev.ReplyRan, drive(ev.PartExecuted(execute.run, made(SMALL), 0.1), after_s=30.0)).step == 0


def test_while_it_is_silent_another_takes_the_worker_over_and_the_orphans_go() -> None:
    drive = served(deploy(ONE_PART), PIN)
    assert isinstance(one(ev.Refuse, drive.join("other", epoch=3)).error, Busy)
    silent(drive)
    actions = drive.join("other", epoch=3)
    assert one(ev.ReplyJoined, actions).deployed == ()
    assert of(ev.Unprepare, actions) and one(ev.UnpinBlobs, actions).blobs == {b"c" * 32}
    assert one(ev.CloseLink, actions).node == COORD, "so that it knows"
    assert isinstance(one(ev.Refuse, back(drive, 1, 2)).error, Busy)


def test_it_is_kept_for_so_long_since_it_was_last_heard_and_no_longer() -> None:
    drive = served()
    heard_s = drive.now
    silent(drive)
    assert drive.machine.next_deadline() == heard_s + KEEP_S
    assert drive(ev.Tick(), after_s=heard_s + KEEP_S - drive.now - 0.1) == []
    actions = drive(ev.Tick(), after_s=0.1)
    assert of(ev.Unprepare, actions) and of(ev.StopBeats, actions) and one(ev.CloseLink, actions).node == COORD
    assert drive.machine.owner is None and drive.machine.next_deadline() is None


def test_a_worker_that_was_stopped_too_does_not_count_that_time() -> None:
    drive = served()
    silent(drive)
    assert drive(ev.Tick(late_s=5000.0), after_s=5000.0) == []
    assert drive.machine.owner is not None


@pytest.mark.parametrize(("keep_s", "goodbye"), [(KEEP_S, True), (0.0, False)])
def test_nothing_is_kept_for_one_that_said_goodbye_nor_where_nothing_is_to_be_kept(
    keep_s: float, goodbye: bool
) -> None:
    drive = served(keep_s=keep_s)
    actions = drive(ev.NodeUnlinked(COORD, goodbye=goodbye))
    assert of(ev.Unprepare, actions) and of(ev.StopBeats, actions)
    assert drive.machine.owner is None


def test_a_worker_whose_coordinator_is_gone_is_free_for_another() -> None:
    drive = Driver()
    drive.deployed(deploy(ONE_PART))
    actions = drive(ev.NodeUnlinked(COORD, goodbye=True))
    assert of(ev.StopBeats, actions) and of(ev.Unprepare, actions)
    assert of(ev.ReplyJoined, drive.join("other", epoch=3))


def test_a_worker_that_has_nothing_to_keep_is_free_with_the_end_of_the_link() -> None:
    drive = Driver()
    drive(ev.NodeUnlinked(COORD))
    assert drive.machine.owner is None


def test_after_the_end_of_its_link_only_a_join_brings_it_back() -> None:
    drive = served()
    assert drive(ev.NodeUnlinked(COORD)) == []
    assert drive(ev.Heard(COORD)) == [] and not drive.machine.served
    back(drive, 1)
    assert drive.machine.served


def test_the_same_coordinator_finds_the_plans_it_asks_for_and_no_others() -> None:
    drive = served(deploy(ONE_PART), PIN, deploy(part(0, [CALL_INPUT], [[]]), plan=PlanKey(7, 3)))
    drive(ev.NodeUnlinked(COORD))
    actions = back(drive, 1, 2, 8)
    assert one(ev.ReplyJoined, actions).deployed == (1, 2)
    assert len(of(ev.Unprepare, actions)) == 1 and not of(ev.UnpinBlobs, actions)
    assert of(ev.Execute, drive.run(0, (0, 0, SMALL)))
    assert isinstance(one(ev.Refuse, drive.run(plan=PlanKey(7, 3))).error, StaleGeneration)
    late = ev.SharedFile("f32", (1024, 1024), "/shm", "late")
    assert one(ev.Release, drive.push(0, 0, late, plan=PlanKey(7, 3))).tensor == late


def test_another_epoch_of_it_finds_nothing() -> None:
    drive = served()
    drive(ev.NodeUnlinked(COORD))
    actions = back(drive, 1, epoch=8)
    assert one(ev.ReplyJoined, actions).deployed == () and of(ev.Unprepare, actions)


def test_a_deploy_that_was_not_done_goes_with_the_link_that_asked_for_it() -> None:
    drive = served(PIN)
    request = drive.requests + 1
    drive.ask_deploy(deploy(ONE_PART, blobs=(weight("far"),)))
    drive(ev.NodeUnlinked(COORD))
    drive(ev.RequestGone(request))
    assert one(ev.ReplyJoined, back(drive, 1, 2)).deployed == (2,)


def test_what_the_last_committed_step_carried_is_there_though_the_step_under_way_ended_with_the_link() -> None:
    drive = served(deploy(COUNTER, blobs=(weight(),)))

    def step(number: int) -> ev.Execute:
        asked = ev.RunRequested(COORD, drive.request(), KEY, number, ((0, 1, SMALL),), number)
        return one(ev.Execute, drive(asked))

    def outcome(execute: ev.Execute) -> tuple[ev.PartOutput, ...]:
        return ev.PartOutput(kept=ev.DeviceTensor("f32", (2,), 0, execute.outputs[0].keep)), ev.PartOutput(inline=SMALL)

    for number in range(3):
        last = step(number)
        drive(ev.PartExecuted(last.run, outcome(last), 0.1))
    under_way, request = step(3), drive.requests
    drive(ev.NodeUnlinked(COORD))
    drive(ev.RequestGone(request))
    back(drive, KEY.generation)
    drive(ev.PartExecuted(under_way.run, outcome(under_way), 0.1))
    blob = one(ev.MakeBlob, drive(ev.SnapshotRequested(COORD, drive.request(), KEY, 2)))
    assert blob.tensor.tensor == last.outputs[0].keep
    assert isinstance(one(ev.Reply, drive(ev.BlobMade(blob.number, b"s" * 32))).message, Snapshotted)
    assert of(ev.Refuse, drive(ev.RunRequested(COORD, drive.request(), KEY, 4, ()))), (
        "no step follows one that was not done"
    )


def test_a_coordinator_that_was_started_anew_finds_the_state_that_it_names_and_nothing_else() -> None:
    other = PlanKey(7, 3)
    drive = served(deploy(COUNTER, blobs=(weight(),)), PIN, deploy(ONE_PART, plan=other))
    asked = drive(ev.RunRequested(COORD, drive.request(), KEY, 0, ((0, 1, SMALL),), 0))
    first = one(ev.Execute, asked)
    made_now = ev.PartOutput(kept=ev.DeviceTensor("f32", (2,), 0, first.outputs[0].keep)), ev.PartOutput(inline=SMALL)
    drive(ev.PartExecuted(first.run, made_now, 0.1))
    drive(ev.RunRequested(COORD, drive.request(), KEY, 1, ((0, 1, SMALL),), 1))
    drive(ev.NodeUnlinked(COORD))
    joined = back(drive, epoch=8, earlier=(KEY, PINS, PlanKey(6, 9)))
    assert one(ev.ReplyJoined, joined).deployed == (KEY.generation, PINS.generation)
    blob = one(ev.MakeBlob, drive(ev.SnapshotRequested(COORD, drive.request(), KEY, 0)))
    assert blob.tensor.tensor == first.outputs[0].keep, "what the step before left is there"
    assert of(ev.Refuse, drive(ev.RunRequested(COORD, drive.request(), KEY, 2, ()))), "but no step is done any more"
    assert of(ev.Refuse, drive(ev.RunRequested(COORD, drive.request(), other, 0, ())))
    assert one(ev.ReplyJoined, back(drive, epoch=8, earlier=(PINS,))).deployed == (PINS.generation,)
    assert one(ev.ReplyJoined, back(drive, epoch=9)).deployed == ()


def asks(drive: Driver, epochs: tuple[int, ...], node: str = "other", *earlier: PlanKey) -> list[ev.Action]:
    epoch = max(epochs)
    return drive(ev.JoinRequested(node, drive.request(), node, epoch, 0.1, SILENCE_S, earlier=earlier, epochs=epochs))


def taken_over(drive: Driver, epochs: tuple[int, ...], node: str = "other", *earlier: PlanKey) -> list[ev.Action]:
    """All that follows, with a disk that takes what is to be kept."""
    actions = asks(drive, epochs, node, *earlier)
    kept = [drive(ev.ServedKept(keep.epoch)) for keep in of(ev.KeepServed, actions)]
    return [*actions, *(action for after in kept for action in after)]


def test_a_standby_takes_over_at_once_with_the_plans_that_it_names() -> None:
    drive = served(PIN, deploy(ONE_PART))
    assert isinstance(one(ev.Refuse, taken_over(drive, (6, 9))).error, Busy), "it goes on from another one"
    actions = taken_over(drive, (6, 7, 9), "other", PINS)
    assert one(ev.ReplyJoined, actions).deployed == (PINS.generation,)
    assert one(ev.CloseLink, actions).node == COORD
    assert one(ev.KeepServed, actions).epoch == 9
    assert drive.machine.owner is not None and drive.machine.owner.node == "other"


FULL = NotDurable("the file cannot be written", cause="no space left")


def test_a_coordinator_has_this_worker_once_the_disk_has_its_epoch() -> None:
    drive = served(PIN, deploy(ONE_PART))
    actions = asks(drive, (7, 9), "other", PINS)
    assert one(ev.KeepServed, actions).epoch == 9
    assert not of(ev.ReplyJoined, actions) and not of(ev.StartBeats, actions), "it may be forgotten yet"
    drive(ev.DropRequested("other", drive.request(), PINS, False))
    kept = drive(ev.ServedKept(9))
    assert one(ev.ReplyJoined, kept).deployed == (), "it is told what is here now"
    assert one(ev.StartBeats, kept).node == "other"
    assert not of(ev.KeepServed, asks(drive, (7, 9), "other")), "the disk has it"


def test_where_the_disk_refuses_it_the_coordinator_is_told_why_and_may_ask_again() -> None:
    drive = served()
    for _ in range(2):
        assert one(ev.KeepServed, asks(drive, (7, 9))).epoch == 9, "it is tried again"
        refused = drive(ev.ServedNotKept(9, FULL))
        assert one(ev.Refuse, refused).error is FULL and not of(ev.ReplyJoined, refused)
    assert isinstance(one(ev.Refuse, asks(drive, (7,), COORD)).error, StaleGeneration), "it was replaced all the same"
    assert of(ev.ReplyJoined, taken_over(drive, (7, 9)))


def test_whoever_took_over_while_another_waited_for_the_disk_has_this_worker() -> None:
    drive = served()
    first, second = asks(drive, (7, 9)), asks(drive, (7, 9, 12), "third")
    assert one(ev.KeepServed, first).epoch == 9 and one(ev.KeepServed, second).epoch == 12
    assert isinstance(one(ev.Refuse, drive(ev.ServedKept(9))).error, Busy)
    assert of(ev.ReplyJoined, drive(ev.ServedKept(12)))


def test_a_coordinator_that_gave_up_waiting_for_the_disk_has_no_answer() -> None:
    drive = served()
    request = one(ev.KeepServed, asks(drive, (7, 9))) and drive.machine._joining[0].request
    drive(ev.RequestGone(request))
    assert drive(ev.ServedKept(9)) == []
    assert of(ev.ReplyJoined, taken_over(drive, (7, 9)))


def test_a_coordinator_that_was_replaced_is_refused_also_after_a_restart_of_either() -> None:
    drive = served()
    taken_over(drive, (7, 9))
    for epochs in ((7,), (7, 8), (7, 8, 12)):
        assert isinstance(one(ev.Refuse, taken_over(drive, epochs, COORD)).error, StaleGeneration)
    later = Driver(join=False, bounds=Bounds(served_epoch=9))
    assert isinstance(one(ev.Refuse, taken_over(later, (7, 12), COORD)).error, StaleGeneration)
    assert of(ev.ReplyJoined, taken_over(later, (7, 9, 14), COORD)), "it follows, and has taken over in turn"


GIB = 1 << 30
PLENTY, SHORT = ev.MemoryLeft(GIB, 16 * GIB), ev.MemoryLeft(GIB // 2, 16 * GIB)


def test_where_the_machine_runs_short_of_memory_the_oldest_orphan_goes_first_and_the_log_says_why() -> None:
    drive = served(deploy(ONE_PART), PIN)
    silent(drive)
    assert drive(PLENTY) == []
    actions = drive(SHORT, after_s=1.0)
    assert of(ev.Unprepare, actions) and of(ev.Unbind, actions), "its weights are not kept for another plan"
    assert one(ev.CloseLink, actions).node == COORD and of(ev.FreeCache, actions) and not of(ev.UnpinBlobs, actions)
    left = "this machine has 512.0 MiB of 16.0 GiB of memory left"
    assert one(ev.FreeCache, actions).why == f"plan 7.1, kept for coordinator coord, gives way: {left}"
    assert drive(ev.NodeUnlinked(COORD, goodbye=True)) == [], "we ended that link, and it may come back for the rest"
    assert drive(PLENTY, after_s=1.0) == [] and drive.machine.owner is not None
    assert one(ev.ReplyJoined, back(drive, 1, 2)).deployed == (2,)
    assert isinstance(one(ev.Refuse, drive.run()).error, StaleGeneration)
    assert drive(SHORT) == [], "nothing goes of a coordinator that is heard"


def test_with_the_last_orphan_the_worker_is_free() -> None:
    drive = served(deploy(ONE_PART), PIN)
    drive(ev.NodeUnlinked(COORD))
    drive(SHORT, after_s=1.0)
    actions = drive(SHORT, after_s=1.0)
    assert one(ev.UnpinBlobs, actions).blobs == {b"c" * 32} and of(ev.StopBeats, actions)
    assert drive.machine.owner is None and drive(SHORT) == []
    assert one(ev.ReplyJoined, back(drive, 1, 2)).deployed == ()


def test_a_goodbye_over_another_link_than_the_one_that_we_ended_is_one() -> None:
    drive = served(deploy(ONE_PART), PIN)
    drive(ev.NodeUnlinked(COORD))
    drive(SHORT)
    drive(ev.NodeUnlinked(COORD, goodbye=True))
    assert drive.machine.owner is None


def test_a_step_under_way_of_an_orphan_that_gives_way_ends_and_its_device_is_free() -> None:
    drive = served(deploy(ONE_PART), PIN)
    execute = one(ev.Execute, drive.run(0, (0, 0, SMALL)))
    silent(drive)
    actions = drive(SHORT)
    assert isinstance(one(ev.Refuse, actions).error, NodeLost)
    drive(ev.PartExecuted(execute.run, made(SMALL), 0.1))
    assert drive.machine.queue_depth == 0


def test_what_is_kept_for_a_silent_coordinator_takes_no_room_from_another() -> None:
    drive = Driver(join=False, bounds=Bounds(keep_orphans_s=KEEP_S, memory_bytes=500))
    drive.join(silence_s=SILENCE_S)
    drive.deployed(PIN)
    silent(drive)
    drive.join("other", epoch=3)
    pin = Deploy(
        PlanKey(3, 1), (), {"w": ("w:1",)}, (BlobSpec(b"d" * 32, 400, "f32", (10, 10), ("w",)),), {"w": ("w:1",)}
    )
    assert not of(ev.Refuse, drive.ask_deploy(pin, "other"))


def test_what_is_left_of_this_machine_s_memory_is_read() -> None:
    assert REAL.memory is not None
    left = REAL.memory()
    assert 0 < left.free_bytes < left.total_bytes


def test_a_host_frees_what_it_keeps_for_plans_to_come_and_nothing_else(tmp_path: Path) -> None:
    host, graphs = Host(CpuEngine(), SharedDir.create(tmp_path), memoryview(bytearray(8)), 1 << 30), []
    for prepared, op in enumerate(("add", "mul")):
        builder = GraphBuilder()
        graph = builder.build([builder.add(op, builder.input("0", (2,), F32), builder.input("1", (2,), F32))])
        value = np.array([1, 2 + prepared], np.float32)
        path = tmp_path / op
        path.write_bytes(tensor_bytes(value))
        param = hm.BoundParam(0, hash_array(value), str(path))
        graphs.append(graph.hash)
        asked = hm.PreparePart(prepared, graph.hash, graph.encoded, 2, 1, (param,), {}, False)
        assert isinstance(host.handle(asked), hm.Prepared)
    host.handle(hm.Unprepare(0))
    assert list(host._executables) == graphs and host._resident_bytes == 16, "kept for the next plan"
    host.handle(hm.FreeUnused())
    assert list(host._executables) == graphs[1:] and host._resident_bytes == 8
    given = hm.Input(1, "f32", (2,), True, tensor_bytes(np.array([10, 10], np.float32)).tobytes())
    assert isinstance(host.handle(hm.ExecutePart(1, 1, (given,), (hm.OutputRequest(1, 0),))), hm.Executed)
