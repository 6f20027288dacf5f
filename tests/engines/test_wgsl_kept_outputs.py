"""Outputs that stay on an adapter until a later run reads them: the bytes moved, the memory they take and share."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.adapter import needs_adapter
from support.cases.updating import written

import mesh
import mesh.numpy as mnp
from wire.errors import Cancelled, InputError
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder, WireGraph
from worker.cpu import evaluate
from worker.engine.protocol import never

pytestmark = needs_adapter
MIB = 1 << 20
X = np.arange(12, dtype=np.float32).reshape(4, 3)


def opened(**options: Any) -> Any:
    from worker.wgsl.engine import WgslEngine

    return WgslEngine(0, **options)


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    made = opened()
    yield made
    made.close()


def kept(engine: Any, executable: Any, inputs: list[Any], *places: int) -> list[Any]:
    return list(engine.run(executable, inputs, never, None, places))


def add_one(size: int) -> WireGraph:
    """Of x: x + 1, and its sum."""
    return mesh.trace(lambda x: (x + 1, mnp.sum(x)), np.zeros(size, np.float32))


def held(engine: Any) -> int:
    """Bytes of the device that somebody holds."""
    gc.collect()
    engine._device.trim()
    return int(engine._device.allocated_bytes)


def test_a_state_that_stays_moves_no_byte_and_has_the_bits_of_one_that_is_read_each_time(engine: Any) -> None:
    executable = engine.compile(add_one(MIB // 4))
    value = np.linspace(0, 1, MIB // 4, dtype=np.float32)
    handle: Any = engine.load(value)
    for _ in range(5):
        before = engine.moved_bytes
        handle, total = kept(engine, executable, [handle], 0)
        assert [now - then for now, then in zip(engine.moved_bytes, before, strict=True)] == [0, 4]
        value, right = engine.run(executable, [value])
        assert total == right
    before = engine.moved_bytes
    assert engine.read(handle).tobytes() == value.tobytes()
    assert [now - then for now, then in zip(engine.moved_bytes, before, strict=True)] == [0, MIB]
    assert engine.held_bytes == MIB
    del handle
    assert engine.held_bytes == 0


def turning(x: Any) -> Any:
    """A part in several steps."""
    return mesh.scan(lambda c, row: (c + row, c * 2), mnp.zeros(3), x)


def sharing() -> WireGraph:
    """An output that is an input, one twice, one that is a constant, and one without elements."""
    builder = GraphBuilder()
    x = builder.input("x", X.shape, F32)
    none = builder.add("slice", x, start=(0, 0), stop=(0, 3), step=(1, 1))
    more = builder.add("add", x, x)
    return builder.build([x, more, builder.add("neg", more), builder.const(X * 3), none])


def reshaped(x: Any) -> Any:
    """Outputs that are an input, each other, a constant and a bool, all in other shapes."""
    more = x * 2
    flat = mnp.reshape(more, (12,))
    return mnp.reshape(x, (12,)), more, flat, mnp.reshape(flat, (6, 2)), mnp.reshape(mnp.ones((4, 3)), (2, 6)), flat > 3


GRAPHS = {"sharing": sharing(), "turning": mesh.trace(turning, X), "reshaped": mesh.trace(reshaped, X)}


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_every_output_can_be_kept_whatever_it_shares(graph: WireGraph) -> None:
    engine = opened()
    executable = engine.compile(graph)
    right = evaluate(graph, {"x": X} if "x" in graph.input_types else dict.fromkeys(graph.input_types, X))
    places = range(len(graph.outputs))
    for given in (X, engine.load(X)):
        for chosen in itertools.chain.from_iterable(itertools.combinations(places, n) for n in (1, len(right))):
            made = kept(engine, executable, [given], *chosen)
            again = kept(engine, executable, [given], *places)
            for place, (handle, other, wanted) in enumerate(zip(made, again, right, strict=True)):
                assert isinstance(handle, np.ndarray) == (place not in chosen or not wanted.size)
                assert np.array_equal(engine.read(handle), wanted) and np.array_equal(engine.read(other), wanted)
    engine.unload(given)
    assert np.array_equal(engine.read(made[0]), right[0]), "an output lives on without the input that it is"
    with pytest.raises(InputError, match="unloaded"):
        engine.read(given)
    del executable, given, made, again, handle, other
    assert held(engine) == 0
    engine.close()


def attended(old: Any, new: Any, positions: Any) -> Any:
    """Two caches share the places that are written, which are made in another shape."""
    keys, values = (written(cache, new, positions, positions >= 0) for cache in (old, old * 2))
    return keys, values, mesh.nn.scaled_dot_product_attention(new, keys, values)


def test_an_output_in_another_shape_is_not_copied(engine: Any) -> None:
    """As a step of a text writes keys: over the rows of a flat cache, which leaves in the cache's shape."""
    old = np.arange(2 * 3 * 512 * 16, dtype=np.float32).reshape(2, 3, 512, 16)
    new, positions = -np.ones((2, 3, 1, 16), np.float32), np.array([[7], [511]], np.int32)
    graph = mesh.trace(written, old, new, positions, np.ones((2, 1), bool))
    executable = engine.compile(graph)
    assert [row.name for row in engine.explain(executable).rows] == ["scatter"]
    (made,) = kept(engine, executable, [old, new, positions, np.ones((2, 1), bool)], 0)
    assert engine.explain(engine.compile(mesh.trace(attended, old, new, positions))).rows
    old[0, :, 7], old[1, :, 511] = -1, -1
    assert np.array_equal(engine.read(made), old)


def test_a_run_that_fails_or_is_stopped_leaves_what_it_read_and_keeps_nothing() -> None:
    engine = opened()
    straight, turns = engine.compile(add_one(64)), lambda c, _: (mnp.sin(c), ())
    endless = engine.compile(
        mesh.trace(lambda x: mesh.scan(turns, x, None, length=100_000)[0], np.zeros(64, np.float32))
    )
    handle, _ = kept(engine, straight, [np.arange(64, dtype=np.float32)], 0)
    before, asked = held(engine), itertools.count()
    with pytest.raises(Cancelled):
        engine.run(endless, [handle], lambda: next(asked) >= 3, None, (0,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine._device, "_read", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            kept(engine, straight, [handle], 0)
    assert held(engine) == before and engine._device.recorded == 0
    assert engine.read(handle).tolist() == list(range(1, 65))
    engine.close()


def counted(engine: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The bind groups that are made from now on."""
    made: list[Any] = []
    bind_group = engine._device.bind_group
    monkeypatch.setattr(engine._device, "bind_group", lambda *what: made.append(what) or bind_group(*what))
    return made


@pytest.mark.parametrize("values", [2, 3, 9])
def test_values_take_turns_in_the_same_buffers(values: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a session holds them: so many of the latest, and they go one by one."""

    def step(a: Any, b: Any, c: Any) -> Any:
        both = mnp.tanh(a @ b)
        return a * 0.5 + both, b + mnp.transpose(both), c + a[0, 0], mnp.sum(both)

    engine = opened()
    square = np.eye(64, dtype=np.float32)
    executable = engine.compile(mesh.trace(step, square, square, square))
    latest = [[engine.load(square) for _ in range(3)]]
    expected = [square] * 3
    made = counted(engine, monkeypatch)
    for number in range(60):
        if number == 30:
            made.clear()
            allocated = engine._device.allocated_bytes
        latest.append(kept(engine, executable, latest[-1], 0, 1, 2)[:3])
        *expected, _ = engine.run(executable, expected)
        del latest[:-values]
    assert not made, "bind groups were made anew"
    assert engine._device.allocated_bytes == allocated
    assert [engine.read(each).tobytes() for each in latest[-1]] == [each.tobytes() for each in expected]
    engine.close()


def test_values_beyond_the_budget_move_to_the_hosts_memory_the_oldest_first() -> None:
    tight = opened(memory_bytes=16 * MIB)
    executable = tight.compile(add_one(MIB // 2))
    values = [kept(tight, executable, [np.full(MIB // 2, -1, np.float32)], 0)[0]]
    for _ in range(19):  # 40 MiB
        values.append(kept(tight, executable, [values[-1]], 0)[0])
        assert tight._device.allocated_bytes <= 16 * MIB + MIB
    assert 4 * MIB <= tight.held_bytes <= 16 * MIB
    assert [value.value is None for value in values] == sorted((value.value is None for value in values), reverse=True)
    assert values[0].value is None
    for number, value in enumerate(values):
        assert (tight.read(value) == number).all()
    again, total = kept(tight, executable, [values[2]], 0)
    assert (tight.read(again) == 3).all() and total == 2 * (MIB // 2)
    tight.close()
