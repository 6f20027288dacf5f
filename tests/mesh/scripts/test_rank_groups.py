"""Groups of ranks of scripts: what they exchange, in groups of groups, by name, and what goes wrong."""

from __future__ import annotations

import gc
import shutil
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16
from support.processes.commands import wait_for
from support.rank_groups import as_ranks

import mesh
from mesh.scripts.group import Group
from mesh.scripts.listening_ports import Door
from mesh.scripts.rank_certificates import issue, keep, passport
from mesh.scripts.rendezvous import ALIVE_S, Meeting, Note, life_of
from wire.errors import (
    ConfigError,
    ConnectFailed,
    DeadlineExceeded,
    DTypeError,
    GraphError,
    InputError,
    LimitExceeded,
    MeshError,
    NodeLost,
    ShapeError,
)
from wire.system.shared_memory import SharedDir

N = 4
SITES = pytest.mark.parametrize("hosts", [(), ("a", "a", "b", "b"), ("a", "b", "c", "d")], ids=["one", "two", "four"])


@SITES
def test_every_operation_gives_what_numpy_gives(tmp_path: Path, hosts: tuple[str, ...]) -> None:
    given = [np.arange(8.0).reshape(4, 2) + 10 * rank for rank in range(N)]

    def body(world: Group) -> Any:
        mine = given[world.rank]
        pairs = [(rank, (rank + 1) % N) for rank in range(N - 1)]
        return [
            world.all_reduce(mine),
            world.all_reduce(mine, "mean"),
            world.all_reduce(mine, "max"),
            world.all_reduce(mine, "mean", weight=world.rank),
            world.all_reduce(np.int32(world.rank), "mean"),
            world.all_gather(mine, -1),
            world.all_gather(mine, 1, tiled=False),
            world.reduce_scatter(mine),
            world.reduce_scatter(mine, op="mean"),
            world.all_to_all(mine, 0, 1),
            world.all_to_all(mine, 0, 1, tiled=False),
            world.broadcast(mine, 2),
            world.permute(mine, pairs),
            world.barrier(),
        ]

    total, whole = np.sum(given, axis=0), np.stack(given)
    results = as_ranks(N, tmp_path, body, hosts=hosts)
    for rank, found in enumerate(results):
        assert not isinstance(found, Exception), found
        expected = [
            total,
            total / N,
            given[3],
            np.average(whole, axis=0, weights=range(N)),
            np.float64(1.5),
            np.concatenate(given, axis=-1),
            np.stack(given, axis=1),
            total[rank : rank + 1],
            total[rank : rank + 1] / N,
            np.concatenate([each[rank : rank + 1] for each in given], axis=1),
            np.stack([each[rank] for each in given], axis=1),
            given[2],
            given[rank - 1] if rank in (1, 2, 3) else np.zeros((4, 2)),
        ]
        for got, wanted in zip(found[:-1], expected, strict=True):
            assert got.dtype == wanted.dtype
            np.testing.assert_allclose(got, wanted)


@SITES
def test_any_rank_sends_to_any_other_while_others_do_something_else(tmp_path: Path, hosts: tuple[str, ...]) -> None:
    def body(world: Group) -> Any:
        got = {}
        for source in range(N):
            for to in range(N):
                if source != to and world.rank == source:
                    world.send(np.full((2, 3), 10 * source + to, np.int16), to)
                elif source != to and world.rank == to:
                    got[source] = world.recv((2, 3), np.int16, source)
        return {source: (each.shape, each.dtype.name, int(each[1, 2])) for source, each in got.items()}

    for rank, found in enumerate(as_ranks(N, tmp_path, body, hosts=hosts)):
        assert found == {source: ((2, 3), "int16", 10 * source + rank) for source in range(N) if source != rank}


@pytest.mark.parametrize(
    ("shape", "dtype", "kind", "texts"),
    [((3,), np.float32, ShapeError, ("f32[4]", "f32[3]")), ((4,), np.int32, DTypeError, ("f32[4]", "i32[4]"))],
)
def test_what_is_sent_is_never_taken_for_another_shape_or_dtype(
    tmp_path: Path, shape: tuple[int, ...], dtype: Any, kind: type[MeshError], texts: tuple[str, ...]
) -> None:
    def body(world: Group) -> Any:
        return world.recv(shape, dtype, 0) if world.rank else world.send(np.zeros(4, np.float32), 1)

    for error in as_ranks(2, tmp_path, body):
        assert isinstance(error, kind)
        assert all(text in str(error) for text in texts)


def test_what_is_never_sent_is_waited_for_until_the_deadline(tmp_path: Path) -> None:
    over = threading.Event()

    def body(world: Group) -> Any:
        if world.rank == 1:
            try:
                with pytest.raises(DeadlineExceeded, match=r"waited 0.01 s for rank 0 \(rank 0 of the world\)"):
                    world.recv((2,), np.float32, 0, timeout_s=0.01)
            finally:
                over.set()
        over.wait(60.0)

    assert as_ranks(2, tmp_path, body) == [None, None]


@SITES
def test_rows_and_columns_of_four_ranks_work_at_the_same_time(tmp_path: Path, hosts: tuple[str, ...]) -> None:
    def body(world: Group) -> Any:
        row, column = world.split(world.rank // 2), world.split(world.rank % 2)
        assert row is not None
        assert column is not None
        found: dict[str, Any] = {}
        rest = threading.Barrier(2)

        def use(name: str, group: Group) -> None:
            rest.wait(60.0)  # both have begun
            found[name] = [int(group.all_reduce(np.int64(10**world.rank * turn))) for turn in range(20)][1::18]

        other = threading.Thread(target=use, args=("column", column), daemon=True)
        other.start()
        use("row", row)
        other.join(60.0)
        return found["row"], found["column"], row.ranks, column.ranks

    rows, columns = {0: 11, 1: 11, 2: 1100, 3: 1100}, {0: 101, 1: 1010, 2: 101, 3: 1010}
    for rank, found in enumerate(as_ranks(N, tmp_path, body, hosts=hosts)):
        assert not isinstance(found, Exception), found
        row, column, in_row, in_column = found
        assert row == [rows[rank], 19 * rows[rank]]
        assert column == [columns[rank], 19 * columns[rank]]
        assert in_row == ((0, 1) if rank < 2 else (2, 3))
        assert in_column == ((0, 2) if rank % 2 == 0 else (1, 3))


@SITES
def test_the_key_orders_a_split_and_no_colour_leaves_it(tmp_path: Path, hosts: tuple[str, ...]) -> None:
    def body(world: Group) -> Any:
        group = world.split(None if world.rank == 1 else 7, key=-world.rank)
        if group is None:
            return None
        inner = group.split(0, key=group.rank)  # a group of a group
        assert inner is not None
        return group.rank, group.ranks, group.all_gather([world.rank]).tolist(), inner.all_gather([world.rank]).tolist()

    gathered = [3, 2, 0]
    expected = [(2, (3, 2, 0), gathered, gathered), None, (1, (3, 2, 0), gathered, gathered)]
    assert as_ranks(N, tmp_path, body, hosts=hosts) == [*expected, (0, (3, 2, 0), gathered, gathered)]


def test_trees_are_reduced_by_name_in_whatever_order_a_rank_has_them(tmp_path: Path) -> None:
    names = ["w", "b", "scale", "steps"]

    def body(world: Group) -> Any:
        value = world.rank + 1
        leaves = {"w": np.full((2, 2), value, np.float32), "b": [np.full(3, 10.0 * value, np.float32)]}
        leaves |= {"scale": np.float64(100 * value), "steps": np.int64(1000 * value)}  # type: ignore[dict-item]
        order = names[world.rank :] + names[: world.rank]
        return world.all_reduce({name: leaves[name] for name in order})

    for rank, found in enumerate(as_ranks(3, tmp_path, body)):
        assert not isinstance(found, Exception), found
        assert list(found) == names[rank:] + names[:rank]
        assert found["w"].tolist() == [[6.0, 6.0], [6.0, 6.0]]
        assert found["b"][0].tolist() == [60.0] * 3
        assert (float(found["scale"]), int(found["steps"])) == (600.0, 6000)
        assert found["w"].dtype == np.float32


@pytest.mark.parametrize(
    ("odd", "kind", "text"),
    [
        ({"w": np.zeros(2)}, InputError, "rank 1 lacks 'b'"),
        ({"w": np.zeros(2), "b": np.zeros(1), "c": np.zeros(1)}, InputError, "rank 0 lacks 'c'; rank 2 lacks 'c'"),
        ({"w": np.zeros(3), "b": np.zeros(1)}, ShapeError, "'w' is f64[2] on rank 0 and f64[3] on rank 1"),
        ({"w": np.zeros(2, int), "b": np.zeros(1)}, DTypeError, "'w' is f64[2] on rank 0 and i64[2] on rank 1"),
    ],
)
def test_a_name_that_a_rank_lacks_raises_on_every_rank_and_the_group_goes_on(
    tmp_path: Path, odd: dict[str, Any], kind: type[MeshError], text: str
) -> None:
    def body(world: Group) -> Any:
        with pytest.raises(kind) as caught:
            world.all_reduce(odd if world.rank == 1 else {"b": np.zeros(1), "w": np.zeros(2)})
        return str(caught.value), int(world.all_reduce(1))

    for found in as_ranks(3, tmp_path, body):
        assert not isinstance(found, Exception), found
        assert text in found[0]
        assert found[1] == 3


@pytest.mark.parametrize("hosts", [(), ("a", "b", "a")], ids=["one", "two"])
def test_a_mismatch_raises_on_every_rank_with_both_shapes_and_ends_the_group(
    tmp_path: Path, hosts: tuple[str, ...]
) -> None:
    def body(world: Group) -> Any:
        spare = world.split(0)
        assert spare is not None
        with pytest.raises(ShapeError) as caught:
            world.all_reduce(np.zeros(3 + (world.rank == 1), np.float32))
        with pytest.raises(ShapeError, match="is over since"):
            world.barrier()
        return str(caught.value), int(spare.all_reduce(1))

    for found in as_ranks(3, tmp_path, body, hosts=hosts):
        assert not isinstance(found, Exception), found
        assert "f32[3]" in found[0]
        assert "f32[4]" in found[0]
        assert found[1] == 3


def test_another_operation_raises_on_every_rank(tmp_path: Path) -> None:
    results = as_ranks(2, tmp_path, lambda world: world.all_reduce(1.0) if world.rank else world.barrier())
    assert all(isinstance(each, GraphError) and "barrier" in str(each) for each in results)


def test_a_barrier_names_the_missing(tmp_path: Path) -> None:
    over = threading.Event()

    def body(world: Group) -> Any:
        if world.rank == 2:
            over.wait(60.0)
            return None
        while world.rank == 0 and world._channels.peers[1].reader.empty:
            over.wait(0.001)  # rank 1 has come
        try:
            with pytest.raises(DeadlineExceeded, match="rank 2") as caught:
                world.barrier(timeout_s=0.05 if world.rank == 0 else None)
            return str(caught.value)
        finally:
            over.set() if world.rank == 1 else None

    results = as_ranks(3, tmp_path, body)
    assert all("rank 2" in str(each) and "rank 1" not in str(each) for each in results[:2]), results


def test_a_rank_of_another_machine_that_ended_is_named(tmp_path: Path) -> None:
    def body(world: Group) -> Any:
        return world.all_reduce(1.0) if world.rank != 2 else None

    results = as_ranks(3, tmp_path, body, hosts=("a", "a", "b"))
    assert results[2] is None
    assert all(isinstance(each, ConnectFailed) for each in results[:2])
    assert all("the connection to rank 2 (rank 2 of the world on b) broke off" in str(each) for each in results[:2])


def test_a_door_lets_in_only_ranks_of_the_machine_they_say(tmp_path: Path) -> None:
    texts = {**issue(("a", "b"), time.time()), "c": issue(("c",), time.time())["c"]}
    for host, its in texts.items():
        (tmp_path / host).mkdir()
        keep(its, tmp_path / host)
    hosts = ("a", "b", "c", "b")
    doors = [Door(passport(tmp_path / host), hosts, rank) for rank, host in enumerate(hosts)]
    note = {0: Note("", "a", ("127.0.0.1",), doors[0].port)}
    calls: list[Any] = []

    def call(rank: int, said: int) -> None:
        doors[rank].rank = said
        try:
            calls.append(doors[rank].connect("world", note, 1 << 16, 60.0))
        except (MeshError, KeyError) as error:
            calls.append(error)

    with socket.create_connection(("127.0.0.1", doors[0].port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        for rank, said in ((2, 2), (1, 2), (3, 3)):  # of another launch, of another machine, and who it says
            thread = threading.Thread(target=call, args=(rank, said), daemon=True)
            thread.start()
        found = doors[0].connect("world", {3: Note("", "b")}, 1 << 16, 60.0)
    assert found.keys() == {3}
    with pytest.raises(DeadlineExceeded, match="rank 1 on b"):
        doors[0].connect("world", {1: Note("", "b")}, 1 << 16, 0.0)
    for door in doors:
        door.close()


def test_whoever_waits_for_a_rank_that_ended_hears_so(tmp_path: Path) -> None:
    results = as_ranks(3, tmp_path, lambda world: world.all_reduce(1.0) if world.rank != 1 else None)
    assert results[1] is None
    assert all(isinstance(results[each], NodeLost) and "rank 1" in str(results[each]) for each in (0, 2))


def test_arrays_in_another_order_of_bytes_are_what_numpy_takes_them_for(tmp_path: Path) -> None:
    def body(world: Group) -> Any:
        x = np.arange(1, 4, dtype=">f8" if world.rank == 0 else "<f8")
        found = [world.all_reduce(x), world.all_gather(x)[:3], world.broadcast(x), world.all_to_all(np.tile(x, 2))[:3]]
        if world.rank == 0:
            world.send(x, 1)
        else:
            found.append(world.recv((3,), ">f8", 0))
        return [each.tolist() for each in found]

    one, other = as_ranks(2, tmp_path, body)
    assert one == [[2, 4, 6], [1, 2, 3], [1, 2, 3], [1, 2, 3]] and other == [*one, [1, 2, 3]]


@SITES
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.float16, bfloat16])
def test_a_mean_is_right_where_the_sum_of_all_ranks_has_no_room_in_the_dtype(
    tmp_path: Path, hosts: tuple[str, ...], dtype: type[np.generic]
) -> None:
    large = {np.int8: 120, np.uint8: 250, np.int64: 2**62, np.float16: 40000}.get(dtype, 1e30)

    def body(world: Group) -> Any:
        mine = np.full(2 * N, large).astype(dtype)
        means = [
            world.all_reduce(mine, "mean"),
            world.all_reduce({"a": mine, "b": mine[:3]}, "mean")["b"],
            world.reduce_scatter(mine, op="mean"),
        ]
        return mine, means, world.all_reduce(mine[:2], "mean", weight=1e5)

    for mine, means, weighed in as_ranks(N, tmp_path, body, hosts=hosts):
        for mean in (*means, weighed):
            assert mean.dtype == (np.float64 if mine.dtype.kind in "iu" else mine.dtype)
            np.testing.assert_allclose(mean.astype(np.float64), mine[: mean.size].astype(np.float64), rtol=1e-6)


def test_ranks_that_take_the_mean_of_unlike_integers_hear_so(tmp_path: Path) -> None:
    results = as_ranks(2, tmp_path, lambda world: world.all_reduce(np.ones(2, f"int{8 << world.rank}"), "mean"))
    assert all(isinstance(result, MeshError) and "i8" in str(result) for result in results)


def test_mistakes_raise_before_anything_is_sent(tmp_path: Path) -> None:
    def body(world: Group) -> Any:
        for wrong, text in (
            (lambda: world.all_reduce(1.0, "median"), "no op 'median'"),
            (lambda: world.all_reduce(1.0, "sum", weight=2.0), "weight"),
            (lambda: world.broadcast(1.0, 2), "no rank 2"),
            (lambda: world.send(1.0, world.rank), "sent to oneself"),
            (lambda: world.recv((), np.float32, 9), "no rank 9"),
            (lambda: world.send(1.0, "1"), "no rank '1'"),
            (lambda: world.recv((3,), "nope", 1 - world.rank), "a dtype"),
            (lambda: world.recv("x", "float32", 1 - world.rank), "a tuple of ints"),
            (lambda: world.recv((-3,), "float32", 1 - world.rank), "shape"),
            (lambda: world.split("left"), "colour"),
            (lambda: world.split(0.5), "colour"),
            (lambda: world.reduce_scatter(np.zeros(2), op="first"), "no op 'first'"),
        ):
            with pytest.raises(InputError, match=text):
                wrong()
        with pytest.raises(ShapeError, match="axis 3"):
            world.all_gather(np.zeros(2), 3)
        return int(world.all_reduce(1))

    assert as_ranks(2, tmp_path, body) == [2, 2]


def test_arrays_that_a_method_does_not_take_leave_the_group_as_it_was(tmp_path: Path) -> None:
    deep, odd, truths = np.zeros((1,) * 9), np.zeros(3), np.array([True])
    dims = "8 dimensions at most, not 9"

    def body(world: Group) -> Any:
        other = 1 - world.rank
        for wrong, kind, text in (
            (lambda: world.all_reduce(deep), LimitExceeded, dims),
            (lambda: world.broadcast(deep), LimitExceeded, dims),
            (lambda: world.all_gather(deep[0], tiled=False), LimitExceeded, dims),
            (lambda: world.send(deep, other), LimitExceeded, dims),
            (lambda: world.recv(deep.shape, "float32", other), LimitExceeded, dims),
            (lambda: world.all_reduce(truths), DTypeError, "sum does not combine bool"),
            (lambda: world.all_reduce({"a": 1.0, "b": truths}, "mean"), DTypeError, "sum does not combine bool"),
            (lambda: world.reduce_scatter(truths), DTypeError, "sum does not combine bool"),
            (lambda: world.reduce_scatter(odd), ShapeError, "2 ranks cannot share axis 0"),
            (lambda: world.all_to_all(odd), ShapeError, "2 ranks cannot share axis 0"),
        ):
            with pytest.raises(kind, match=text):
                wrong()
        return int(world.all_reduce(1))

    assert as_ranks(2, tmp_path, body) == [2, 2]


def test_ranks_go_on_where_somebody_removed_their_shared_memory(tmp_path: Path) -> None:
    def body(world: Group) -> tuple[int, int]:
        world.barrier()
        if world.rank == 0:
            for folder in tmp_path.glob("graph-mesh-*"):
                shutil.rmtree(folder)
        world.barrier()
        if world.rank == 1:
            time.sleep(3 * ALIVE_S)  # meanwhile rank 0 looks whether this one lives
        total = int(world.all_reduce(1))
        both = world.split(0)
        assert both is not None
        return total, int(both.all_reduce(2))

    assert as_ranks(2, tmp_path, body) == [(2, 4), (2, 4)]


def test_groups_that_nobody_has_any_more_leave_no_ring_buffers(tmp_path: Path) -> None:
    def files(world: Group) -> int:
        gc.collect()
        world.barrier()
        found = len([*tmp_path.glob("graph-mesh-*/*")])
        world.barrier()
        return found

    def body(world: Group) -> bool:
        before = files(world)
        for _ in range(3):
            half = world.split(0)
            assert half is not None
            half.barrier()
        del half
        world.barrier()
        return files(world) == before

    assert as_ranks(2, tmp_path, body) == [True, True]


def test_two_processes_cannot_be_the_same_rank_but_a_note_of_a_dead_one_is_not_believed(tmp_path: Path) -> None:
    one, other, third = (SharedDir.create(tmp_path) for _ in range(3))
    with pytest.raises(DeadlineExceeded, match="rank 1 to come"):
        Meeting(tmp_path, 0).meet(Note(str(one.path)), {1}, 0.0)
    with pytest.raises(ConfigError, match="rank 0 already"):
        Meeting(tmp_path, 0).meet(Note(str(other.path)), {1}, 0.0)
    Meeting(tmp_path, 0).leave(other)
    assert (tmp_path / "rank-0").exists(), "it is not of that process"
    assert life_of(one.path)()
    one.close()
    assert not life_of(one.path)()
    with pytest.raises(DeadlineExceeded, match="rank 0 to come"):
        Meeting(tmp_path, 1).meet(Note(str(third.path)), {0}, 0.0)
    Meeting(tmp_path, 1).leave(third)
    assert met(tmp_path, other, third) == [str(third.path), str(other.path)]
    Meeting(tmp_path, 0).leave(other)
    Meeting(tmp_path, 1).leave(third)
    assert not list(tmp_path.glob("rank-*"))
    other.close()
    third.close()


def met(folder: Path, *own: SharedDir) -> list[str]:
    """The directory of the other one, as each of two ranks finds it."""
    notes = [partial(Meeting(folder, rank).meet, Note(str(own[rank].path)), {1 - rank}, 60.0) for rank in (0, 1)]
    with ThreadPoolExecutor(2) as ranks:
        return [found[1 - rank].directory for rank, found in enumerate(ranks.map(lambda meet: meet(), notes))]


def test_a_rank_that_comes_again_waits_for_those_that_are_still_of_the_meeting_before(tmp_path: Path) -> None:
    before, after = ([SharedDir.create(tmp_path) for _ in range(2)] for _ in range(2))
    assert met(tmp_path, *before) == [str(before[1].path), str(before[0].path)]
    Meeting(tmp_path, 0).leave(before[0])

    def again(rank: int) -> str:
        meeting = Meeting(tmp_path, rank)
        if rank == 1:
            note = tmp_path / "rank-0"
            wait_for(lambda: note.exists() and str(after[0].path) in note.read_text())
            time.sleep(0.05)  # the other one finds the note that goes now
            meeting.leave(before[1])
        return meeting.meet(Note(str(after[rank].path)), {1 - rank}, 60.0)[1 - rank].directory

    with ThreadPoolExecutor(2) as ranks:
        assert [*ranks.map(again, (0, 1))] == [str(after[1].path), str(after[0].path)]
    for own in (*before, *after):
        own.close()


def test_several_machines_without_certificates_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "RENDEZVOUS": str(tmp_path), "HOSTS": "a,b"}.items():
        monkeypatch.setenv(f"MESH_{name}", value)
    with pytest.raises(ConfigError, match="need certificates"):
        mesh.init()
    assert (mesh.rank(), mesh.world_size()) == (0, 2)


def test_a_program_that_nobody_launched_is_a_world_of_its_own() -> None:
    assert (mesh.rank(), mesh.world_size(), mesh.local_rank()) == (0, 1, 0)
    world = mesh.init()
    assert mesh.init() is world
    mesh.barrier()
    assert world.all_reduce({"a": 1.5, "b": [2]}, "mean") == {"a": 1.5, "b": [2.0]}
    assert world.all_gather([1, 2]).tolist() == [1, 2]
    mesh.shutdown()
    with pytest.raises(ConfigError, match="closed"):
        world.barrier()


def test_ranks_of_a_machine_hear_of_one_that_gave_up_and_cannot_write_it_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(meeting: Meeting, group: str, error: MeshError) -> None:
        raise ConfigError("ranks cannot meet here", cause="no space left on the test's device")

    def body(world: Group) -> None:
        world.barrier()
        monkeypatch.setattr(Meeting, "give_up", full)
        if world.rank == 0:
            world._do("a step", lambda group: next(iter(())), None)
        world.barrier()

    first, near, far = as_ranks(3, tmp_path, body, hosts=("a", "a", "b"))
    assert isinstance(first, StopIteration)
    assert isinstance(near, MeshError) and not isinstance(near, DeadlineExceeded), near
    assert isinstance(far, MeshError) and not isinstance(far, DeadlineExceeded), far
