"""What a worker keeps for others is within its budget, beside what it computes with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.machines.worker_machine import KEY, ONE_PART, TO_COORD, Driver, deploy, of, one, part

from wire.errors import OutOfMemory, from_fields
from wire.ir.codec import hash_array, tensor_bytes
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder
from wire.protocol.messages import BlobSpec, Deploy, PlanKey, Source, SourceKind
from wire.system.shared_memory import SharedDir
from worker.cpu.engine import CpuEngine
from worker.engine import host_messages as hm
from worker.engine_host.host import Host
from worker.state import events as ev
from worker.state.bounds import Bounds

KEEPS = PlanKey(7, 2)


def blob(name: str, size_bytes: int) -> BlobSpec:
    return BlobSpec(name.encode() * 32, size_bytes, "u8", (size_bytes,), ())


def keep(*blobs: BlobSpec, plan: PlanKey = KEEPS) -> Deploy:
    return Deploy(plan, (), {}, blobs, {})


def computes(*blobs: BlobSpec, plan: PlanKey = KEY) -> Deploy:
    return deploy(
        part(0, [Source(SourceKind.PARAM, blob=blob.blob) for blob in blobs], [TO_COORD]), blobs=blobs, plan=plan
    )


def working(drive: Driver, message: Deploy, working_bytes: int) -> None:
    """Deploy where runs of a part need so much."""
    actions = drive.ask_deploy(message)
    for fetch in of(ev.Fetch, actions):
        actions = drive(ev.BlobFound(fetch.attempt, "disk"))
    drive(ev.PartPrepared(one(ev.Prepare, actions).prepared, 0.0, False, working_bytes))


@pytest.mark.parametrize(
    ("budget", "held", "fits"),
    [
        (1000, [blob("a", 300)], True),  # beside 600 of weights and 100 of what runs make
        (1000, [blob("a", 200), blob("b", 100)], True),
        (1000, [blob("a", 301)], False),
        (1000, [blob("w", 600), blob("a", 300)], True),  # the weight is there in any case
        (0, [blob("a", 1 << 40)], True),  # nobody said how much
    ],
)
def test_so_much_is_kept_as_there_is_room_for(budget: int, held: list[BlobSpec], fits: bool) -> None:
    drive = Driver(bounds=Bounds(memory_bytes=budget))
    working(drive, computes(blob("w", 600)), 100)
    refused = of(ev.Refuse, drive.ask_deploy(keep(*held)))
    assert not refused if fits else isinstance(refused[0].error, OutOfMemory)
    assert fits or "301 B are to be kept for other workers, beside 700 B" in str(refused[0].error)


def test_what_is_kept_already_counts_and_counts_once() -> None:
    drive = Driver(bounds=Bounds(memory_bytes=1000))
    drive.deployed(keep(blob("a", 600)))
    assert not of(ev.Refuse, drive.ask_deploy(keep(blob("a", 600), blob("b", 400), plan=PlanKey(7, 3))))
    assert of(ev.Refuse, drive.ask_deploy(keep(blob("c", 1), plan=PlanKey(7, 4))))
    drive(ev.DropRequested(drive.machine.owner.node if drive.machine.owner else "", drive.request(), PlanKey(7, 3)))
    assert not of(ev.Refuse, drive.ask_deploy(keep(blob("c", 1), plan=PlanKey(7, 5)))), "that was given back"


def test_what_comes_for_a_plan_that_was_dropped_meanwhile_takes_no_room() -> None:
    """As a copy of a session's state that was given up while it was under way: nobody would pin it."""
    drive = Driver()
    (fetch,) = of(ev.Fetch, drive.ask_deploy(keep(blob("a", 600))))
    owner = drive.machine.owner.node if drive.machine.owner else ""
    drive(ev.DropRequested(owner, drive.request(), KEEPS))
    assert drive(ev.BlobFound(fetch.attempt, "socket")) == [ev.DiscardBlobs(frozenset((b"a" * 32,)))]
    (fetch,) = of(ev.Fetch, drive.ask_deploy(keep(blob("a", 600), plan=PlanKey(7, 3))))
    drive(ev.DropRequested(owner, drive.request(), PlanKey(7, 3)))
    assert not of(ev.Fetch, drive.ask_deploy(keep(blob("a", 600), plan=PlanKey(7, 4)))), "it waits for the same"
    assert not of(ev.DiscardBlobs, drive(ev.BlobFound(fetch.attempt, "socket")))


def test_parts_are_prepared_in_what_is_left() -> None:
    drive = Driver(bounds=Bounds(memory_bytes=1000))
    drive.deployed(keep(blob("a", 600), blob("w", 100)))
    prepares = of(ev.Prepare, drive.deployed(computes(blob("w", 100))))
    assert [prepare.kept_bytes for prepare in prepares] == [600], "what it computes with is not kept besides"
    assert one(ev.Prepare, Driver().ask_deploy(deploy(ONE_PART))).kept_bytes == 0


@pytest.mark.parametrize(("kept", "fits"), [(0, True), (984, True), (985, False)])
def test_an_engine_host_has_what_is_left_of_the_budget(kept: int, fits: bool, tmp_path: Path) -> None:
    builder = GraphBuilder()
    graph = builder.build([builder.add("reverse", builder.input("0", (4,), F32), axes=(0,))])
    weight = np.zeros(4, np.float32)
    path = tmp_path / "blob"
    path.write_bytes(tensor_bytes(weight))
    host = Host(CpuEngine(), SharedDir.create(tmp_path), memoryview(bytearray(8)), 1000)
    param = hm.BoundParam(0, hash_array(weight), str(path))
    needs = CpuEngine().compile(graph).memory_bytes
    prepare = hm.PreparePart(1, graph.hash, graph.encoded, 1, 1, (param,), {}, False, None, kept - needs * (kept > 0))
    answer = host.handle(prepare)
    assert isinstance(answer, hm.Prepared if fits else hm.PrepareFailed)
    if isinstance(answer, hm.PrepareFailed):
        error = from_fields(answer.error)
        assert isinstance(error, OutOfMemory) and "kept for other workers" in error.message
