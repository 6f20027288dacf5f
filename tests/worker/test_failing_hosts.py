"""An engine host whose Nth call fails, for every N: a named error, nothing left behind, and the next run is right."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from support.hostile.failing_calls import NO_ROOM, Refusing, each_call, system_refuses
from support.hostile.faulty_disk import Fuse

from wire.errors import BlobMissing, DeviceLost, OutOfMemory, from_fields
from wire.ir.codec import hash_array
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder
from wire.ir.types import TensorType
from wire.protocol.messages import INLINE_BYTES_MAX
from wire.system.shared_memory import SharedDir, take
from worker.cpu import CpuEngine
from worker.daemon.tensor_refs import host_inputs_of
from worker.engine import host_messages as hm
from worker.engine.host_messages import INLINE_TOTAL_BYTES_MAX
from worker.engine.protocol import Engine
from worker.engine_host.host import Host
from worker.state import events as ev

SIDE = 512  # a tensor is over the megabyte from which files are mapped, and over what travels in a message
WEIGHT = np.arange(SIDE * SIDE, dtype=np.float32).reshape(SIDE, SIDE)
GIVEN = np.ones((SIDE, SIDE), np.float32)


class Story:
    """One host and its daemon's side: a part with a weight, run on a file, twice, and taken back."""

    def __init__(self, folder: Path, wrap: Callable[[Engine], Any] = lambda engine: engine) -> None:
        builder = GraphBuilder()
        x = builder.input("x", (SIDE, SIDE), F32)
        weight = builder.param("weight", (SIDE, SIDE), F32)
        total = builder.add("add", x, weight)
        self.graph = builder.build([total, builder.add("mul", x, weight)])
        self.blob = folder / "weight"
        self.blob.write_bytes(WEIGHT.tobytes())
        self.shared = SharedDir.create(folder)
        engine = CpuEngine()
        self.host = Host(cast(Engine, wrap(engine)), self.shared, memoryview(bytearray(8)), 1 << 30)
        self.errors: list[Any] = []

    def tell(self) -> bool:
        """Whether nothing failed; the answers are right then."""
        prepare = hm.PreparePart(
            1, self.graph.hash, self.graph.encoded, 2, 2,
            (hm.BoundParam(1, hash_array(WEIGHT), str(self.blob)),), {}, False,
        )  # fmt: skip
        try:
            if not self.said(self.host.handle(prepare)):
                return False
            return self.run(1) and self.run(2)
        finally:
            self.host.handle(hm.Unprepare(1))

    def run(self, number: int) -> bool:
        try:
            name = self.shared.write([GIVEN])
        except OutOfMemory as error:
            self.errors.append(error)
            return False
        given = hm.Input(0, F32.name, (SIDE, SIDE), True, None, str(self.shared.path), name)
        wanted = (hm.OutputRequest(2 * number, 2), hm.OutputRequest(2 * number + 1, 2))
        answer = self.host.handle(hm.ExecutePart(number, 1, (given,), wanted))
        if not self.said(answer):
            return False
        assert isinstance(answer, hm.Executed)
        for output, right in zip(answer.outputs, (GIVEN + WEIGHT, GIVEN * WEIGHT), strict=True):
            for file in output.files:
                self.check(file, right)
            self.host.handle(hm.Forget((output.kept,)))
        return True

    def check(self, file: str, right: Any) -> None:
        try:
            view = take(self.shared.path, file, right.nbytes)
        except (BlobMissing, OutOfMemory) as error:  # the daemon's own trouble, which removes what it cannot take
            self.errors.append(error)
            (self.shared.path / file).unlink(missing_ok=True)
            return
        assert bytes(view) == right.tobytes(), "a wrong answer"

    def said(self, answer: Any) -> bool:
        if isinstance(answer, hm.ExecuteFailed | hm.PrepareFailed):
            self.errors.append(from_fields(answer.error))
            return False
        return True

    def left(self) -> tuple[list[str], list[int]]:
        return sorted(path.name for path in self.shared.path.iterdir()), sorted(self.host._kept)


def test_many_small_tensors_fit_into_a_message_or_go_by_files(tmp_path: Path) -> None:
    count, kind = 1100, TensorType((INLINE_BYTES_MAX // 4,), F32)  # 72 MB each way, and a message holds 64 MiB
    builder = GraphBuilder()
    inputs = [builder.input(f"x{number}", kind.shape, F32) for number in range(count)]
    graph = builder.build([builder.add("neg", x) for x in inputs])
    shared = SharedDir.create(tmp_path)
    host = Host(CpuEngine(), shared, memoryview(bytearray(8)), 1 << 30)
    host.handle(hm.PreparePart(1, graph.hash, graph.encoded, count, count, (), {}, False))
    data = [np.full(kind.shape, number, np.float32).tobytes() for number in range(count)]
    uses = [ev.RunInput(number, ev.Inline("f32", kind.shape, each), True) for number, each in enumerate(data)]
    given, files = host_inputs_of(uses, shared)
    asked = hm.pack(hm.ExecutePart(1, 1, given, (hm.OutputRequest(0, 2),) * count))
    answer = host.handle(hm.unpack_to_host(asked[4:]))
    assert isinstance(answer, hm.Executed)
    assert max(len(asked), len(hm.pack(answer))) < INLINE_TOTAL_BYTES_MAX + 200 * count < hm.MESSAGE_BYTES_MAX
    assert not any((shared.path / name).exists() for name in files), "they are taken"
    for number, output in enumerate(answer.outputs):
        copies = [take(shared.path, name, kind.size_bytes) for name in output.files] or [output.data]
        assert all((np.frombuffer(copy, np.float32) == -number).all() for copy in copies)
    assert [path.name for path in shared.path.iterdir()] == ["lock"]
    shared.close()


def test_a_rank_that_cannot_meet_the_others_leaves_no_input(tmp_path: Path) -> None:
    builder = GraphBuilder()
    graph = builder.build([builder.add("neg", builder.input("x", (SIDE, SIDE), F32))])
    shared = SharedDir.create(tmp_path)
    host = Host(CpuEngine(), shared, memoryview(bytearray(8)), 1 << 30)
    gang = hm.RankOf(("dp",), (2,), 0, (None, hm.RankPeer("1" * 32, "2" * 32, "w")), arena_prefix="0" * 24)
    prepared = host.handle(hm.PreparePart(1, graph.hash, graph.encoded, 1, 1, (), {}, False, gang))
    assert isinstance(prepared, hm.Prepared)
    given = hm.Input(0, F32.name, (SIDE, SIDE), True, None, str(shared.path), shared.write([GIVEN]))
    nowhere = (str(shared.path), str(tmp_path / "gone"))
    answer = host.handle(hm.ExecutePart(1, 1, (given,), (hm.OutputRequest(0, 1),), 1, nowhere))
    assert isinstance(answer, hm.ExecuteFailed) and isinstance(from_fields(answer.error), BlobMissing)
    assert [path.name for path in shared.path.iterdir()] == ["lock"]
    shared.close()


def test_inputs_for_which_there_is_no_room_leave_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = SharedDir.create(tmp_path)
    use = ev.RunInput(0, ev.Inline("u8", (INLINE_BYTES_MAX,), bytes(INLINE_BYTES_MAX)), True)
    write, wrote = SharedDir.write, list[str]()

    def full(directory: SharedDir, *given: Any) -> str:
        if len(wrote) == 3:
            raise OutOfMemory("shared memory is full")
        wrote.append(write(directory, *given))
        return wrote[-1]

    monkeypatch.setattr(SharedDir, "write", full)
    with pytest.raises(OutOfMemory):
        host_inputs_of([use] * (INLINE_TOTAL_BYTES_MAX // INLINE_BYTES_MAX + 4), shared)
    assert len(wrote) == 3 and [path.name for path in shared.path.iterdir()] == ["lock"]
    shared.close()


def descriptors() -> int:
    """The files this process has open; 0 where the system does not say."""
    gc.collect()
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


def check_story(story: Story, fuse: Fuse) -> None:
    """What holds after a story that may have failed."""
    assert story.left() == (["lock"], []), f"left after call {fuse.fails_at} failed"
    fuse.fails_at, before = 0, len(story.errors)
    assert story.tell() and len(story.errors) == before, story.errors
    assert story.left() == (["lock"], [])
    story.shared.close()


@pytest.mark.parametrize("number", NO_ROOM, ids=lambda number: os.strerror(number).replace(" ", "-"))
def test_whatever_the_system_refuses_a_part_fails_by_name_and_leaves_nothing(tmp_path: Path, number: int) -> None:
    failed = 0
    open_before = descriptors()
    for fuse in each_call():
        story = Story(tmp_path)
        with system_refuses(fuse, number, tmp_path):
            well = story.tell()
        assert all(isinstance(error, OutOfMemory | BlobMissing) for error in story.errors), story.errors
        assert well or story.errors
        failed += bool(story.errors)
        check_story(story, fuse)
    assert failed >= 12
    del story
    assert descriptors() <= open_before


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (lambda: OutOfMemory("the test's device is full"), OutOfMemory),
        (lambda: MemoryError(), OutOfMemory),
        (lambda: DeviceLost("the test's device is gone"), DeviceLost),
    ],
)
def test_whatever_the_engine_refuses_a_part_fails_by_name_and_leaves_nothing(
    tmp_path: Path, error: Callable[[], Exception], kind: type[Exception]
) -> None:
    failed = 0
    for fuse in each_call():
        story = Story(tmp_path, lambda engine, fuse=fuse: Refusing(engine, ("compile", "load", "run"), fuse, error))  # type: ignore[misc]
        well = story.tell()
        assert well == (not story.errors) and all(type(raised) is kind for raised in story.errors)
        assert story.host.lost == (kind is DeviceLost and not well), "a host without a device ends"
        failed += not well
        check_story(story, fuse)
    assert failed == 4, "compile, load, and two runs"
