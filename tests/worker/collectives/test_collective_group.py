"""Groups over real ring buffers in one process, a thread per rank: every operation and dtype, and what goes wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.ranks import assert_same, channels_in_memory, folded, in_threads, on_channels, ring_buffer, values

from wire.errors import (
    BlobCorrupt,
    Cancelled,
    DeadlineExceeded,
    DTypeError,
    GraphError,
    InputError,
    NodeLost,
    OutOfMemory,
    RemoteError,
    ShapeError,
)
from wire.ir.dtypes import DTYPES, F16, F32, I32, DType
from wire.ir.types import TensorType
from worker.collectives.algorithms import ALL_REDUCE, BY_RANK
from worker.collectives.executor import REDUCTIONS
from worker.collectives.group import REDUCES, Group
from worker.collectives.ring_buffer import Envelope, RingReader, RingWriter

Array = NDArray[Any]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_every_reduction_of_every_dtype_that_has_it(dtype: DType) -> None:
    arrays = values(3, (37, 5), dtype)
    channels = channels_in_memory(3)
    for tag, reduction in enumerate(REDUCTIONS, 1):
        results = on_channels(channels, lambda group, rank, by=reduction: group.all_reduce(arrays[rank], by), tag)
        if dtype.name in REDUCES[reduction]:
            assert_same(results, folded(arrays, reduction))
        else:
            assert all(isinstance(result, DTypeError) for result in results)


@pytest.mark.parametrize("name", ALL_REDUCE)
@pytest.mark.parametrize("dtype", [F32, F16, I32], ids=lambda dtype: dtype.name)
def test_algorithms_agree_and_those_by_rank_to_the_bit(name: str, dtype: DType) -> None:
    for n, count in ((1, 5), (2, 301), (4, 0), (5, 1000)):
        arrays = values(n, (count,), dtype)
        results = in_threads(n, lambda group, rank, arrays=arrays: group.all_reduce(arrays[rank]), algorithm=name)
        expected = folded(arrays, "sum")
        if name in BY_RANK or dtype is I32:
            assert_same(results, expected)
        else:
            assert_same(results, results[0])
            np.testing.assert_allclose(
                results[0].astype(np.float64),
                expected.astype(np.float64),
                rtol=2e-3 if dtype is F16 else 1e-5,
                atol=1e-5,
            )


def test_gathering_scattering_and_exchanging() -> None:
    n = 3
    arrays = values(n, (6, 2, 9))
    for axis in (0, 2, -1):
        assert_same(
            in_threads(n, lambda group, rank, axis=axis: group.all_gather(arrays[rank], axis)),
            np.concatenate(arrays, axis),
        )
        assert_same(
            in_threads(n, lambda group, rank, axis=axis: group.reduce_scatter(arrays[rank], axis)),
            np.split(folded(arrays, "sum"), n, axis),
        )
    for split, joined in ((0, 0), (0, 2), (2, 1)):
        parts = [np.split(array, n, split) for array in arrays]
        assert_same(
            in_threads(n, lambda group, rank, s=split, j=joined: group.all_to_all(arrays[rank], s, j)),
            [np.concatenate([parts[source][rank] for source in range(n)], joined) for rank in range(n)],
        )


def test_moving_from_rank_to_rank() -> None:
    n = 4
    arrays = values(n, (50, 3))
    ring = [(rank, (rank + 1) % n) for rank in range(n)]
    assert_same(
        in_threads(n, lambda group, rank: group.permute(arrays[rank], ring)), [arrays[rank - 1] for rank in range(n)]
    )
    some = in_threads(n, lambda group, rank: group.permute(arrays[rank], [(0, 2), (3, 3)]))
    assert_same(some, [np.zeros_like(arrays[0]), np.zeros_like(arrays[0]), arrays[0], arrays[3]])
    for root in range(n):
        assert_same(
            in_threads(n, lambda group, rank, root=root: group.broadcast_from(arrays[rank], root)), arrays[root]
        )
    assert in_threads(n, lambda group, rank: group.barrier()) == [None] * n


def test_sending_and_receiving() -> None:
    array = values(1, (100,))[0]

    def both(group: Group, rank: int) -> Any:
        if rank == 0:
            group.send(array, 1)
            return group.receive(TensorType((100,), F32), 1)
        got = group.receive(TensorType((100,), F32), 0)
        group.send(got + 1, 0)
        return got

    assert_same(in_threads(2, both), [array + 1, array])


def test_what_can_be_known_at_once_is_refused_without_waiting() -> None:
    array = np.zeros((5, 2), np.float32)
    wrong: list[tuple[Callable[[Group], Any], type[Exception], str]] = [
        (lambda group: group.all_reduce(array, "mode"), InputError, "mode"),
        (lambda group: group.reduce_scatter(array), ShapeError, "5 elements"),
        (lambda group: group.all_to_all(array, 3), ShapeError, "no axis 3"),
        (lambda group: group.permute(array, [(0, 1), (1, 1)]), InputError, "twice"),
        (lambda group: group.permute(array, [(0, 2)]), InputError, "others"),
        (lambda group: group.broadcast_from(array, 2), InputError, "no rank 2"),
        (lambda group: group.send(array, group.rank), InputError, "nothing can be sent"),
    ]
    for call, kind, text in wrong:
        for result in in_threads(2, lambda group, rank, call=call: call(group)):
            assert isinstance(result, kind)
            assert text in str(result)


@pytest.mark.parametrize(
    ("body", "kind", "texts"),
    [
        (lambda g, rank: g.all_reduce(np.zeros(4 + (rank == 2), np.float32)), ShapeError, ("f32[4]", "f32[5]")),
        (lambda g, rank: g.all_gather(np.zeros((1 + (rank == 1), 2), np.int8)), ShapeError, ("i8[1,2]", "i8[2,2]")),
        (lambda g, rank: g.all_reduce(np.zeros(2, np.int32 if rank else np.float32)), DTypeError, ("i32", "f32")),
        (lambda g, rank: g.all_reduce(np.zeros(2), "max" if rank else "min"), GraphError, ("max", "min")),
        (lambda g, rank: g.barrier() if rank else g.all_reduce(np.zeros(2)), GraphError, ("barrier", "all_reduce")),
        (
            lambda g, rank: g.send(np.zeros(3), 1) if rank == 0 else g.receive(TensorType((4,), F32), 0),
            ShapeError,
            ("f64[3]", "f32[4]"),
        ),
    ],
)
def test_ranks_that_differ_all_hear_how(body: Callable[[Group, int], Any], kind: type, texts: tuple[str, str]) -> None:
    n = 2 if "f64[3]" in texts else 3
    for result in in_threads(n, body):
        assert isinstance(result, kind), result
        assert all(text in str(result) for text in texts), result


def test_who_gives_up_ends_the_wait_of_all_and_the_next_step_is_clean() -> None:
    n = 3
    arrays = values(n, (500,))
    channels = channels_in_memory(n, slots=3)

    def one_fails(group: Group, rank: int) -> Any:
        if rank == 1:
            raise OutOfMemory("no room here", node="b")
        return group.all_reduce(arrays[rank])

    for tag in (1, 3, 4):
        for result in on_channels(channels, one_fails, tag):
            assert isinstance(result, OutOfMemory)
            assert result.node == "b"
    assert_same(on_channels(channels, lambda group, rank: group.all_reduce(arrays[rank]), 5), folded(arrays, "sum"))


def test_missing_ranks_are_named_at_the_deadline() -> None:
    channels = channels_in_memory(3)
    for rank_channels in channels:
        rank_channels.begin(1, lambda: False)
    channels[0].deadline_s = 0.01
    channels[0].peers[2].name = "worker-2"
    waiting: list[Exception] = []

    def other() -> None:
        try:
            Group(channels[1], range(3), 1).barrier()
        except DeadlineExceeded as error:
            waiting.append(error)

    thread = threading.Thread(target=other, daemon=True)
    thread.start()
    while channels[0].peers[1].reader.empty:
        thread.join(0.001)
    with pytest.raises(DeadlineExceeded, match=r"waited 0.01 s for rank 2 \(worker-2\)") as caught:
        Group(channels[0], range(3), 0).barrier()
    channels[0].fail(caught.value)
    thread.join(60.0)
    assert "rank 2 (worker-2)" in str(waiting[0])


def test_a_rank_that_is_stopped_gives_up_and_so_do_those_that_wait_for_it() -> None:
    channels = channels_in_memory(2)
    stop = threading.Event()

    def body(group: Group, rank: int) -> Any:
        group.channels.stopped = stop.is_set
        if rank == 0:
            stop.set()
            return None
        return group.barrier()

    results = on_channels(channels, body)
    assert isinstance(results[1], Cancelled)


@pytest.mark.parametrize("operation", ["barrier", "all_reduce", "all_gather"])
def test_all_that_are_missing_are_named_and_nobody_else(operation: str) -> None:
    channels = channels_in_memory(5)

    def asked(rank: int) -> None:
        group = Group(channels[rank], range(5), rank)
        with pytest.raises(DeadlineExceeded, match=r"for rank 1, rank 3, rank 4\.") as caught:
            group.barrier() if operation == "barrier" else getattr(group, operation)(np.zeros(1, np.float32))
        channels[rank].fail(caught.value)

    for rank in (0, 2):
        channels[rank].begin(1, lambda: False)
    came = threading.Thread(target=asked, args=(2,), daemon=True)
    came.start()
    while channels[0].peers[2].reader.empty:
        came.join(0.001)
    channels[0].deadline_s = 0.01
    asked(0)
    came.join(60.0)
    assert not came.is_alive()


def test_a_rank_whose_process_ended_is_not_waited_for_and_what_it_sent_before_is_taken() -> None:
    channels = channels_in_memory(3)
    channels[2].begin(1, lambda: False)
    last = threading.Thread(target=Group(channels[2], range(3), 2).barrier, daemon=True)
    last.start()
    for index in (0, 1):
        while channels[index].peers[2].reader.empty:
            last.join(0.001)
        channels[index].peers[2].name, channels[index].peers[2].alive = "worker-2", lambda: False
    taken: list[int] = []

    def body(group: Group, rank: int) -> None:
        group.barrier()
        taken.append(rank)
        group.barrier()

    results = on_channels(channels[:2], body, ranks=3)
    assert sorted(taken) == [0, 1]
    assert all(isinstance(result, NodeLost) for result in results)
    assert "rank 2 (worker-2) has ended" in str(results[0])


def test_who_went_on_to_the_next_step_is_not_waited_for() -> None:
    channels = channels_in_memory(2)
    ahead = Group(channels[1], range(2), 1)
    channels[1].begin(7, lambda: False)
    thread = threading.Thread(target=ahead.barrier, daemon=True)
    thread.start()
    channels[0].begin(6, lambda: False)
    with pytest.raises(Cancelled, match="another step"):
        Group(channels[0], range(2), 0).barrier()
    channels[0].begin(7, lambda: False)
    Group(channels[0], range(2), 0).barrier()
    thread.join(60.0)
    assert not thread.is_alive()


def test_groups_within_a_mesh_run_one_after_the_other() -> None:
    """A 2 x 2 grid: rows, columns, and all."""
    channels = channels_in_memory(4)

    def body(group: Group, rank: int) -> Any:
        row = Group(channels[rank], [rank // 2 * 2, rank // 2 * 2 + 1], rank % 2, number=1)
        column = Group(channels[rank], [rank % 2, rank % 2 + 2], rank // 2, number=2)
        mine = np.asarray([float(10**rank)])
        return [float(ranks.all_reduce(mine)[0]) for ranks in (row, column, group)]

    assert on_channels(channels, body) == [[11, 101, 1111], [11, 1010, 1111], [1100, 101, 1111], [1100, 1010, 1111]]


def test_a_ring_buffer_hands_messages_over_in_order_and_no_others() -> None:
    buffer = ring_buffer(3, 64)
    writer, reader = RingWriter(buffer), RingReader(buffer)
    envelopes = [Envelope(tag, 2, 1, 0, F32, (tag, 3)) for tag in range(1, 8)]
    for round_ in range(0, 6, 3):
        assert reader.empty
        for envelope in envelopes[round_ : round_ + 3]:
            assert not writer.full
            writer.slot(F32.numpy)[:2] = envelope.tag
            writer.publish(envelope.pack(), 8)
        assert writer.full
        assert reader.written == round_ + 3
        for envelope in envelopes[round_ : round_ + 3]:
            assert Envelope.unpack(reader.envelope) == envelope
            assert reader.payload(F32.numpy)[:2].tolist() == [envelope.tag] * 2
            reader.release()
        assert writer.read == writer.written
    assert reader.failure(5) is None
    writer.fail(5, b"why")
    assert reader.failure(5) == b"why"
    assert reader.failure(6) is None


def test_what_is_no_ring_buffer_is_refused() -> None:
    with pytest.raises(BlobCorrupt, match="no ring buffer"):
        RingReader(memoryview(bytearray(8192)))
    with pytest.raises(BlobCorrupt, match="no envelope"):
        Envelope.unpack(b"\xff" * 128)


@pytest.mark.parametrize("letter", ["ж", "\U0001f600", "\udc80", "\0"])
def test_a_long_reason_in_any_script_is_heard_by_the_other_ranks(letter: str) -> None:
    channels = channels_in_memory(2)

    def body(group: Group, rank: int) -> Any:
        if rank == 1:
            raise InputError(letter * 2000, node=letter * 2000)
        return group.barrier()

    heard = on_channels(channels, body)[0]
    assert isinstance(heard, InputError) and heard.message.startswith(letter)


@pytest.mark.parametrize("reason", [b"", b"{", b"[1]", b"\xff", b"[" * 3000], ids=range(5))
def test_a_reason_that_is_none_is_an_error_of_the_rank_that_sent_it(reason: bytes) -> None:
    channels = channels_in_memory(2)
    channels[0].peers[1].name = "worker-b"
    channels[1].peers[0].writer.fail(1, reason)
    (result,) = on_channels(channels[:1], lambda group, rank: group.barrier(), ranks=2)
    assert isinstance(result, RemoteError) and result.node == "worker-b"
