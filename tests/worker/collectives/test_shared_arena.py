"""ArenaHost: large tensors reduced where they lie, by ranks that are threads or processes, and what goes wrong."""

from __future__ import annotations

import gc
import mmap
import random
import time
import weakref
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.ranks import assert_same, at_once, channels_in_memory, folded, on_channels, ring_buffer, values

from wire.errors import (
    BlobCorrupt,
    BlobMissing,
    Cancelled,
    DeadlineExceeded,
    ExecuteFailed,
    MeshError,
    OutOfMemory,
    ShapeError,
)
from wire.ir.dtypes import BF16, DTYPES, F16, F32, F64, DType
from wire.ir.graph import GraphBuilder, WireGraph
from wire.ir.ops import OPS
from wire.ir.types import TensorType
from wire.system.shared_memory import Segment, SharedDir, share
from worker.collectives.channels import Channels
from worker.collectives.executor import REDUCTIONS
from worker.collectives.group import REDUCES, Group
from worker.collectives.rank import RankCollectives
from worker.collectives.ring_buffer import Envelope, RingReader, RingWriter, initialise, size_of
from worker.collectives.shared_arena import ALIGNMENT, OPERAND_BYTES_MAX, TENSOR_BYTES_MIN, SharedArena, operand_bytes
from worker.cpu import CpuEngine
from worker.cpu.elementwise import IN_PLACE
from worker.cpu.engine import KERNELS, _Call, compile_graph
from worker.cpu.shared_outputs import INTO, in_rooms
from worker.engine import host_messages as hm
from worker.engine.protocol import never
from worker.engine_host.host import Host

Array = NDArray[Any]
COUNT = TENSOR_BYTES_MIN // 4 + 3  # elements of an f32 that does not divide
GIVEN = 64 * ALIGNMENT


def with_arenas(n: int, operand_bytes: int = GIVEN, without: Sequence[int] = (), slots: int = 8) -> list[Channels]:
    """Each rank's ring buffers, large enough for offers, and its arena, unless it is `without`."""
    all_channels = channels_in_memory(n, slots)
    files = {f"{rank:032x}": memoryview(mmap.mmap(-1, operand_bytes * (1 if rank else 2))) for rank in range(n)}
    for rank, (channels, (name, memory)) in enumerate(zip(all_channels, files.items(), strict=True)):
        channels.uses_arena = True
        for channel in channels.peers.values():
            channel.reader._open_file = files.__getitem__
        if rank not in without:
            channels.arena = SharedArena(
                name, memory, operand_bytes, [channel.writer for channel in channels.peers.values()]
            )
    return all_channels


def lies_on(array: Array, arena: SharedArena | None) -> bool:
    assert arena is not None
    return np.shares_memory(array, np.frombuffer(arena.buffer, np.uint8))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_every_reduction_is_that_by_messages_to_the_bit(dtype: Any) -> None:
    count = TENSOR_BYTES_MIN // dtype.itemsize + 5
    arrays, channels = values(3, (count,), dtype), with_arenas(3, GIVEN)
    for tag, reduction in enumerate(sorted(by for by in REDUCTIONS if dtype.name in REDUCES[by]), 1):
        results = on_channels(channels, lambda group, rank, by=reduction: group.all_reduce(arrays[rank], by), tag)
        assert_same(results, folded(arrays, reduction))
        halves = dtype in (F16, BF16)
        assert [lies_on(result, channels[0].arena) for result in results] == [not halves] * 3


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_all_ranks_have_one_memory_for_a_result_and_cannot_write_to_it(n: int) -> None:
    arrays, channels = values(n, (3, COUNT)), with_arenas(n, 128 * ALIGNMENT)
    for tag in (1, 2, 3):
        results = on_channels(channels, lambda group, rank: group.all_reduce(arrays[rank]), tag)
        assert_same(results, folded(arrays, "sum"))
        assert len({result.__array_interface__["data"][0] for result in results}) == 1
        assert not any(result.flags.writeable for result in results)


def test_what_was_made_on_an_arena_is_not_copied() -> None:
    arrays, channels = values(2, (COUNT,)), with_arenas(2, 2 * ALIGNMENT * (1 + TENSOR_BYTES_MIN // ALIGNMENT))

    def body(group: Group, rank: int) -> Any:
        arena = channels[rank].arena
        assert arena is not None
        given = arena.allocate(TensorType((COUNT,), F32))
        assert given is not None
        given[...] = arrays[rank]
        summed = group.all_reduce(given)
        assert arena.allocate(TensorType((COUNT,), F32)) is not None, "nothing was copied"
        assert arena.allocate(TensorType((COUNT,), F32)) is None, "and that was the last room"
        return summed

    for tag in (1, 2):
        assert_same(on_channels(channels, body, tag), folded(arrays, "sum"))


@pytest.mark.parametrize("without", [(0,), (2,), (0, 1, 2)])
def test_where_a_rank_has_no_arena_all_go_on_with_messages(without: tuple[int, ...]) -> None:
    arrays, channels = values(3, (COUNT,)), with_arenas(3, without=without)
    results = on_channels(channels, lambda group, rank: group.all_reduce(arrays[rank]))
    assert_same(results, folded(arrays, "sum"))
    assert all(result.flags.writeable for result in results)


@pytest.mark.parametrize("error", [BlobMissing("too many open files"), OutOfMemory("it cannot be mapped")])
@pytest.mark.parametrize("fails", [(0,), (2,), (0, 1, 2)])
def test_where_a_rank_cannot_map_an_arena_all_go_on_with_messages(fails: tuple[int, ...], error: MeshError) -> None:
    arrays, channels = values(3, (COUNT,)), with_arenas(3)

    def refuse(name: str) -> memoryview:
        raise error

    opens = {rank: [channel.reader._open_file for channel in channels[rank].peers.values()] for rank in fails}
    for rank in fails:
        for channel in channels[rank].peers.values():
            channel.reader._open_file = refuse
    for tag in (1, 2):
        results = on_channels(channels, lambda group, rank: [group.all_reduce(arrays[rank]) for _ in range(2)], tag)
        for actual in zip(*results, strict=True):
            assert_same(list(actual), folded(arrays, "sum"))
            assert all(result.flags.writeable for result in actual)
    for rank in fails:
        for channel, each in zip(channels[rank].peers.values(), opens[rank], strict=True):
            channel.reader._open_file = each
    again = on_channels(channels, lambda group, rank: np.array(group.all_reduce(arrays[rank])), 3)
    assert_same(again, folded(arrays, "sum"))


def summing(count: int = COUNT) -> WireGraph:
    builder = GraphBuilder()
    given = builder.input("x", (count,), F32)
    return builder.build([builder.add("all_reduce", given, axes=("dp",), sizes=(2,), reduction="sum")])


class ArenaHost:
    """Plans of a host, of which every other one is of rank 0 and has an arena of twice the size."""

    def __init__(self, folder: Path, memory_bytes: int, **most: int) -> None:
        self.shared = SharedDir.create(folder)
        self.host = Host(CpuEngine(), self.shared, memoryview(bytearray(8)), memory_bytes, **most)

    def prepare(
        self,
        number: int,
        graph: WireGraph,
        peers: tuple[hm.RankPeer | None, ...] = (None, None),
        kept_bytes: int = 0,
    ) -> None:
        gang = hm.RankOf(("dp",), (2,), number % 2, peers, timeout_s=0.01, arena_prefix=f"{number:024x}")
        part = hm.PreparePart(number, graph.hash, graph.encoded, 1, 1, (), {}, False, gang, kept_bytes)
        assert isinstance(self.host.handle(part), hm.Prepared)

    def begin(self, number: int) -> bool:
        """Open what reaches the other rank, as a step does first; whether the plan has an arena now."""
        self.host._ranks(hm.ExecutePart(1, number, (), (), 1, ("here", "here")), self.host._prepared[number], never)
        return self.host._prepared[number].arena is not None

    @property
    def files(self) -> list[int]:
        """The plans that have one in shared memory."""
        return sorted(int(path.name[:24], 16) for path in self.shared.path.iterdir() if path.name != "lock")


def test_the_arena_that_was_used_longest_ago_is_freed_for_a_new_one(tmp_path: Path) -> None:
    graph = summing()
    size_bytes = operand_bytes(graph, 2)
    made = ArenaHost(tmp_path, 1 << 30, arenas_bytes_max=5 * size_bytes)
    for number in range(5):
        made.prepare(number, graph)
    assert all(map(made.begin, (0, 1, 2, 0)))
    assert made.files == [0, 1, 2], "two, one and two"
    before = {path.name for path in made.shared.path.iterdir()}
    assert made.begin(3)
    assert made.files == [0, 2, 3], "plan 0 ran after plan 1"
    assert made.begin(1)
    assert made.files == [0, 1, 3], "who ran longest ago is another one now"
    assert made.host._arenas_bytes == 4 * size_bytes
    assert not {path.name for path in made.shared.path.iterdir() if path.name.startswith(f"{1:024x}")} & before, (
        "others may map the file of the first one, so the second one has another name"
    )
    made.host.handle(hm.Unprepare(0))
    assert made.files == [1, 3], "who is dropped gives his up"
    made.shared.close()


def test_arenas_are_counted_and_give_way_to_what_plans_need(tmp_path: Path) -> None:
    graph = summing()
    size_bytes, memory_bytes = operand_bytes(graph, 2), 1 << 30
    made = ArenaHost(tmp_path, memory_bytes)
    for number in range(3):
        made.prepare(number, graph)
        assert made.begin(number)
    made.host._make_room(memory_bytes - 5 * size_bytes, 0, 0)
    assert made.files == [0, 1, 2]
    made.host._make_room(memory_bytes - 5 * size_bytes + 1, 0, 0)
    assert made.files == [1, 2]
    with pytest.raises(OutOfMemory, match="the part needs"):
        made.host._make_room(memory_bytes + 1, 0, 0)
    assert not made.files, "all that is free was freed before it said no"
    made.shared.close()


@pytest.mark.parametrize(("missing_bytes", "fits"), [(0, True), (1, False)])
def test_arenas_leave_room_for_what_the_daemon_keeps(
    tmp_path: Path, missing_bytes: int, fits: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """With --max-memory, weights, arenas, what is computed with and what is kept for other workers have it together."""
    graph = summing()
    kept_bytes, size_bytes = 1 << 20, 2 * operand_bytes(graph, 2)
    working_bytes = CpuEngine().compile(graph, False).memory_bytes
    made = ArenaHost(tmp_path, working_bytes + kept_bytes + size_bytes - missing_bytes)
    made.prepare(0, graph, kept_bytes=kept_bytes)
    assert made.begin(0) is fits
    assert made.files == [0] * fits
    assert ("collectives copy more than they would" in capfd.readouterr().err) is not fits
    made.shared.close()


def test_an_arena_that_can_not_be_had_costs_no_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    small, large = summing(), summing(3 * COUNT)
    made = ArenaHost(tmp_path, 1 << 30, arenas_bytes_max=3 * operand_bytes(small, 2))
    made.prepare(0, small)
    made.prepare(2, large)
    assert made.begin(0)
    assert not made.begin(2)
    assert "above the" in capfd.readouterr().err
    assert made.files == [0]
    made.shared.close()


def test_arenas_are_freed_where_shared_memory_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, made = summing(), ArenaHost(tmp_path, 1 << 30)
    allocate = made.shared.allocate

    def full(size_bytes: int, name: str = "") -> Segment:
        if made.files:
            raise OutOfMemory("shared memory is full")
        return allocate(size_bytes, name)

    monkeypatch.setattr(made.shared, "allocate", full)
    for number in range(3):
        made.prepare(number, graph)
        assert made.begin(number)
        assert made.files == [number]
    made.shared.close()


def test_what_finds_no_room_travels_in_messages() -> None:
    """Four tensors where there is room for two, in every step."""
    channels = with_arenas(2, 2 * ALIGNMENT * (1 + TENSOR_BYTES_MIN // ALIGNMENT))
    given = [values(2, (COUNT,), seed=seed) for seed in range(4)]
    for tag in (1, 2, 3):
        results = on_channels(channels, lambda group, rank: [group.all_reduce(tensors[rank]) for tensors in given], tag)
        for each, actual in zip(given, zip(*results, strict=True), strict=True):
            assert_same([np.array(one) for one in actual], folded(each, "sum"))
        assert [[one.flags.writeable for one in rank] for rank in results] == [[False, False, True, True]] * 2


def test_small_tensors_and_parts_of_a_gang_are_left_to_messages() -> None:
    channels, small, large = with_arenas(3), values(3, (100,)), values(3, (COUNT,))
    assert_same(on_channels(channels, lambda group, rank: group.all_reduce(small[rank])), folded(small, "sum"))

    def pair(group: Group, rank: int) -> Any:
        return Group(channels[rank], range(2), rank).all_reduce(large[rank]) if rank < 2 else None

    results = on_channels(channels, pair, 2)[:2]
    assert_same(results, folded(large[:2], "sum"))
    assert all(result.flags.writeable for result in results)


def test_nothing_is_put_where_somebody_may_read() -> None:
    """Rank 1 gave a step up before it read what rank 0 lends."""
    channels = with_arenas(2)
    arrays = values(2, (COUNT,))
    channels[0].begin(1, lambda: True)  # it tells, and is stopped
    with pytest.raises(Cancelled):
        Group(channels[0], range(2), 0).all_reduce(arrays[0])
    channels[0].begin(2, never)
    arena = channels[0].arena
    assert arena is not None
    assert arena.allocate(TensorType((COUNT,), F32)) is None, "rank 1 has not released it"
    for tag in (3, 4):
        results = on_channels(channels, lambda group, rank: group.all_reduce(arrays[rank]), tag)
        assert_same(results, folded(arrays, "sum"))
    assert not results[0].flags.writeable, "in the end it has"


def test_ranks_that_differ_raise_on_all() -> None:
    channels = with_arenas(2)
    results = on_channels(channels, lambda group, rank: group.all_reduce(np.zeros(COUNT + rank, np.float32)))
    assert [type(result) for result in results] == [ShapeError, ShapeError]
    results = on_channels(channels, lambda group, rank: group.all_reduce(np.zeros(COUNT if rank else 5, np.float32)), 2)
    assert [type(result) for result in results] == [ShapeError, ShapeError]
    arrays = values(2, (COUNT,))
    assert_same(on_channels(channels, lambda group, rank: group.all_reduce(arrays[rank]), 3), folded(arrays, "sum"))


def test_a_rank_that_does_not_come_is_named() -> None:
    channels = with_arenas(3)
    for rank_channels in channels:
        rank_channels.deadline_s = 0.05
    arrays = values(3, (COUNT,))
    results = on_channels(channels, lambda group, rank: None if rank == 2 else group.all_reduce(arrays[rank]))
    assert results[2] is None
    for each in results[:2]:
        assert isinstance(each, DeadlineExceeded)
        assert "rank 2" in str(each)
        assert "rank 1" not in str(each)


def test_offers_of_what_is_not_there_are_refused() -> None:
    channels = with_arenas(2)
    channels[0].peers[1].reader._open_file = lambda name: memoryview(bytearray(ALIGNMENT))  # of rank 1, and too small
    arrays = values(2, (COUNT,))
    results = on_channels(channels, lambda group, rank: group.all_reduce(arrays[rank]))
    assert all(isinstance(result, BlobCorrupt) for result in results), results
    reader = RingReader(ring_buffer(3, 64))
    with pytest.raises(BlobMissing, match="there are none"):
        reader.file(f"{7:032x}")


def test_steps_that_fail_at_any_point_leave_the_next_ones_right() -> None:
    """A rank fails or is slow somewhere, in many steps; a step in which none fails is right on all."""
    chance = random.Random(0)
    n, sizes = 3, (COUNT, 2 * COUNT, 50, COUNT)
    channels = with_arenas(n, 4 * ALIGNMENT * (1 + 2 * TENSOR_BYTES_MIN // ALIGNMENT))
    laid = 0
    for tag in range(1, 150):
        given = [values(n, (size,), seed=tag * 10 + each) for each, size in enumerate(sizes)]
        failing = (chance.randrange(n), chance.randrange(len(sizes))) if chance.random() < 0.2 else None
        naps = [[chance.random() * 1e-3 * (chance.random() < 0.2) for _ in sizes] for _ in range(n)]
        results = on_channels(channels, partial(one_step, channels, given, naps, failing), tag)
        if failing is None:
            for result, count in results:
                assert_same(result, [folded(tensors, "sum") for tensors in given])
                laid += count
        else:
            assert all(isinstance(result, ExecuteFailed) for result in results), "a collective is everybody's"
    assert laid > 400, "arenas were used"


def one_step(
    channels: list[Channels],
    given: list[list[Array]],
    naps: list[list[float]],
    failing: tuple[int, int] | None,
    group: Group,
    rank: int,
) -> tuple[list[Array], int]:
    """Copies of the sums, and how many of them lay on arenas; every other operand is made there."""
    made = []
    for place, tensors in enumerate(given):
        arena, mine = channels[rank].arena, tensors[rank]
        room = arena.allocate(TensorType(mine.shape, F32)) if arena and place % 2 else None
        if room is not None:
            room[...] = mine
        time.sleep(naps[rank][place])
        if failing == (rank, place):
            raise ExecuteFailed("here")
        made.append(group.all_reduce(mine if room is None else room))
    return [np.array(result) for result in made], sum(not each.flags.writeable for each in made)


def test_ranks_of_an_arena_may_be_far_apart_in_time() -> None:
    """The first one is done with a step, and fills its arena for the next one, while others still use the result."""
    channels = with_arenas(3)

    def body(group: Group, rank: int) -> Any:
        actual = []
        for tag in range(2, 12):
            made = group.all_reduce(np.full(COUNT, tag + rank, np.float32))
            if rank == 2:
                time.sleep(0.002)
            actual.append(bool(np.all(made == 3 * tag + 3)))
            del made
            channels[rank].begin(tag, never)
            arena = channels[rank].arena
            room = arena.allocate(TensorType((COUNT,), F32)) if arena else None
            if room is not None:
                room[...] = -1  # what the next one gives
        return actual

    assert on_channels(channels, body) == [[True] * 10] * 3


# -- what is made there ----------------------------------------------------------------------------------------


def gradient_like() -> WireGraph:
    """Two products that are summed over ranks; one of them is an output as well."""
    builder = GraphBuilder()
    x, y = (builder.input(name, (256, 256), F32) for name in "xy")
    how = {"lhs_batch": (), "lhs_contract": (0,), "rhs_batch": (), "rhs_contract": (0,)}
    first, second = builder.add("dot", x, y, **how), builder.add("dot", y, y, **how)
    axes = {"axes": ("dp",), "sizes": (2,), "reduction": "sum"}
    sums = [
        builder.add("all_reduce", builder.add("reshape", operand, shape=(65536,)), **axes)
        for operand in (first, second)
    ]
    return builder.build([builder.add("neg", sums[0]), builder.add("neg", sums[1]), second])


def test_what_collectives_take_is_made_where_others_read_it_but_no_output() -> None:
    graph = gradient_like()
    actual = in_rooms(graph)
    assert [graph.nodes[index].op for index in actual] == ["dot"]
    assert graph.nodes[min(actual)].inputs == (0, 1)
    assert operand_bytes(graph, 2) == 2 * 65536 * 4
    calls = [call for call in compile_graph(graph).calls if isinstance(call, _Call)]
    assert [call.room for call in calls if call.node.op == "dot"] == [True, False]


@pytest.mark.parametrize("n", [2, 3])
def test_an_engine_gives_the_same_with_and_without_arenas(n: int) -> None:
    graph, engine = gradient_like(), CpuEngine()
    chance = np.random.default_rng(0)
    given = [[chance.standard_normal((256, 256)).astype(np.float32) for _ in range(2)] for _ in range(n)]
    made: dict[str, list[Any]] = {}
    for name, channels in {"messages": channels_in_memory(n, 8, 1 << 16), "arenas": with_arenas(n, 2 << 20)}.items():
        results: list[Any] = [None] * n

        def work(rank: int, channels: list[Channels] = channels, results: list[Any] = results) -> None:
            ranks = RankCollectives(channels[rank], ("dp",), (n,), rank)
            executable = engine.compile(graph)
            for tag in (1, 2, 3):
                ranks.begin(tag, never)
                results[rank] = engine.run(executable, given[rank], never, ranks)
                ranks.end()

        at_once(work, n)
        made[name] = results
    for messages, arenas in zip(made["messages"], made["arenas"], strict=True):
        assert_same(arenas, messages)


def test_a_sum_that_is_an_output_is_no_memory_of_others() -> None:
    builder = GraphBuilder()
    x = builder.input("x", (COUNT,), F32)
    total = builder.add("all_reduce", x, axes=("dp",), sizes=(2,), reduction="sum")
    half = builder.add("slice", total, start=(0,), stop=(COUNT // 2,), step=(1,))
    executable, channels = CpuEngine().compile(builder.build([total, half])), with_arenas(2)
    results: list[Any] = [None, None]

    def work(rank: int) -> None:
        ranks = RankCollectives(channels[rank], ("dp",), (2,), rank)
        ranks.begin(1, never)
        results[rank] = CpuEngine().run(executable, [np.full(COUNT, rank + 1, np.float32)], never, ranks)
        ranks.end()

    at_once(work, 2)
    for result in results:
        assert [np.all(result == 3) for result in result] == [True, True]
        assert not any(lies_on(result, channels[0].arena) for result in result)


def test_kernels_put_the_same_bits_into_given_memory() -> None:
    chance = np.random.default_rng(0)
    shapes: dict[str, list[tuple[Any, list[tuple[int, ...]], tuple[int, ...]]]] = {
        "dot": [
            (attrs(lhs=(0,), rhs=(0,)), [(300, 70), (300, 90)], (70, 90)),
            (attrs(lhs=(1,), rhs=(0,)), [(40, 400), (400, 512)], (40, 512)),
            (attrs(lhs=(1,), rhs=(1,)), [(40, 600), (512, 600)], (40, 512)),
            (attrs(lhs=(2,), rhs=(1,), batch=(0,)), [(3, 20, 31), (3, 31, 9)], (3, 20, 9)),
            (attrs(lhs=(0, 1), rhs=(0, 1)), [(8, 16, 30), (8, 16, 40)], (30, 40)),
        ],
        "concat": [({"axis": 0}, [(50, 4), (30, 4)], (80, 4)), ({"axis": 1}, [(5, 40), (5, 60)], (5, 100))],
        **{op: [({}, [(64, 65)] * OPS[op].inputs, (64, 65))] for op in IN_PLACE},
    }
    assert set(shapes) == set(INTO)
    for op, cases in shapes.items():
        for given, operands, shape in cases:
            for dtype in (F32, F64):
                arrays = [chance.standard_normal(operand).astype(dtype.numpy) for operand in operands]
                kind = TensorType(shape, dtype)
                room = np.full(shape, np.nan, dtype.numpy)
                with np.errstate(all="ignore"):
                    actual = INTO[op](given, list(arrays), kind, room)
                    wanted = KERNELS[op](given, list(arrays), kind)
                assert np.ascontiguousarray(actual).tobytes() == np.ascontiguousarray(wanted).tobytes()
                assert np.shares_memory(actual, room)


def attrs(lhs: tuple[int, ...], rhs: tuple[int, ...], batch: tuple[int, ...] = ()) -> Any:
    return {"lhs_batch": batch, "lhs_contract": lhs, "rhs_batch": batch, "rhs_contract": rhs}


def test_an_arena_goes_with_its_rank() -> None:
    """It is freed at once, as memory is short: no cycle of references waits for the collector."""
    gc.disable()
    try:
        channels = with_arenas(2)
        ranks = RankCollectives(channels[0], ("dp",), (2,), 0)
        left = weakref.ref(channels[0].arena or channels[1])
        for tag in (1, 2):
            ranks.begin(tag, never)
            ranks.end() if tag == 1 else ranks.fail(ExecuteFailed("here"))
        del channels, ranks
        assert left() is None
    finally:
        gc.enable()


def test_an_arena_goes_with_its_plan_after_a_step_that_failed(tmp_path: Path) -> None:
    """It is freed at once, too: an error refers to the frames that raised it, and these may not refer to the error."""
    made = ArenaHost(tmp_path, 1 << 30)
    names = [made.shared.allocate(size_of(), "").name for _ in range(2)]
    for name in names:
        initialise(share(made.shared.path, name))
    made.prepare(0, summing(), (None, hm.RankPeer(*names, "absent")))
    given = made.shared.write([bytes(4 * COUNT)])
    inputs = (hm.Input(0, "f32", (COUNT,), directory=str(made.shared.path), name=given, last=True),)
    gc.disable()
    try:
        part = hm.ExecutePart(1, 0, inputs, (hm.OutputRequest(0, 1),), 1, (str(made.shared.path),) * 2)
        failed = made.host.handle(part)
        assert isinstance(failed, hm.ExecuteFailed) and "absent" in str(failed)
        ranks = made.host._prepared[0].ranks
        assert ranks is not None and made.host._prepared[0].arena is not None
        left = weakref.ref(ranks[1])
        del ranks
        made.host.handle(hm.Unprepare(0))
        assert left() is None
    finally:
        gc.enable()
        made.shared.close()


def test_what_is_never_laid_takes_no_room() -> None:
    def summed(dtype: DType, sizes: tuple[int, ...]) -> WireGraph:
        builder = GraphBuilder()
        axes = ("dp", "tp")[: len(sizes)]
        given = builder.input("x", (COUNT,), dtype)
        return builder.build([builder.add("all_reduce", given, axes=axes, sizes=sizes, reduction="sum")])

    assert operand_bytes(summed(F32, (2, 2)), 4) == operand_bytes(summed(F32, (4,)), 4) > TENSOR_BYTES_MIN
    assert operand_bytes(summed(F32, (2,)), 4) == 0, "of some axes of a grid"
    assert operand_bytes(summed(BF16, (4,)), 4) == 0


def test_a_value_that_is_given_in_another_order_is_not_made_there() -> None:
    builder = GraphBuilder()
    x, y = (builder.input(name, (256, 256), F32) for name in "xy")
    sums = [
        builder.add("all_reduce", each, axes=("dp",), sizes=(2,), reduction="sum")
        for each in (
            builder.add("transpose", builder.add("mul", x, y), perm=(1, 0)),
            builder.add("select", builder.add("lt", x, y), builder.add("add", x, y), builder.add("add", y, y)),
        )
    ]
    assert not in_rooms(builder.build(sums)), "it would be copied, and have taken the room of the copy"


def test_an_arena_is_as_large_as_what_lies_there_and_no_larger() -> None:
    def summed(*shapes: tuple[int, ...]) -> WireGraph:
        builder = GraphBuilder()
        given = [builder.input(f"x{at}", shape, F32) for at, shape in enumerate(shapes)]
        how = {"axes": ("dp",), "sizes": (2,), "reduction": "sum"}
        return builder.build([builder.add("all_reduce", tensors, **how) for tensors in given])

    assert operand_bytes(summed((100,), (TENSOR_BYTES_MIN // 4 - 1,)), 2) == 0
    assert operand_bytes(summed((COUNT,), (100,), (COUNT,)), 2) == 2 * ALIGNMENT * (1 + TENSOR_BYTES_MIN // ALIGNMENT)
    assert operand_bytes(summed((OPERAND_BYTES_MAX,), (COUNT,)), 2) == OPERAND_BYTES_MAX


def test_messages_that_lend_do_so_until_they_are_released() -> None:
    buffer = ring_buffer(3, 64)
    writer, reader = RingWriter(buffer), RingReader(buffer)
    envelope = Envelope(1, 0, 0, 1, F32, (4,)).pack()
    writer.write(envelope, b"first", lends=True)
    writer.write(envelope, b"second")
    assert writer.lent
    assert reader.data(5) == b"first"
    reader.release()
    assert not writer.lent
    assert reader.data(6) == b"second"
