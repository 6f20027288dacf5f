"""Updates of tensors on the device in their own memory, against the cpu engine: bits, what is copied, old values."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.adapter import needs_adapter
from support.cases.op_cases import cases
from support.cases.updating import KIND, arguments, stepping, written

import mesh
import mesh.numpy as mnp
from mesh.core.array import apply
from wire.errors import Cancelled, OutOfMemory
from wire.ir.graph import WireGraph
from worker.cpu import evaluate
from worker.engine.protocol import never
from worker.wgsl.updates import in_place

pytestmark = needs_adapter
SEEDS = range(12)


def opened(folder: Path | None = None, **options: Any) -> Any:
    """An engine that updates tensors of any size in place."""
    from worker.wgsl.engine import WgslEngine

    return WgslEngine(0, folder, updated_bytes_min=1, **options)


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    made = opened()
    yield made
    made.close()


def supports(engine: Any, graph: WireGraph) -> bool:
    return {kind.dtype.name for kind in graph.types} <= set(engine.info.dtypes_by_op["scatter"])


def run(engine: Any, executable: Any, inputs: list[Any], *keep: int) -> list[Any]:
    return list(engine.run(executable, inputs, never, None, keep))


def expected(graph: WireGraph, given: list[Any]) -> list[Any]:
    return evaluate(graph, dict(zip((*graph.input_types, *graph.param_types), given, strict=True)))


@pytest.mark.parametrize("seed", SEEDS)
def test_every_value_is_what_it_was_whoever_is_held_and_read(engine: Any, seed: int) -> None:
    """Steps go on from the latest states and from earlier ones; values are dropped and read at any time."""
    graph, rng = stepping(seed), np.random.default_rng(seed)
    executable = engine.compile(graph)
    first = [rng.standard_normal(KIND.shape).astype(np.float32) for _ in range(3)]
    held = [([engine.load(array) for array in first], first)]
    for _ in range(8):
        states, right = held[-1 if rng.random() < 0.7 else int(rng.integers(len(held)))]
        given = arguments(rng)
        made, wanted = run(engine, executable, [*states, *given], 0, 1, 2), expected(graph, [*right, *given])
        np.testing.assert_array_equal(made[3], wanted[3])
        held.append((made[:3], wanted[:3]))
        if rng.random() < 0.4:
            del held[int(rng.integers(len(held)))]
        states, right = held[int(rng.integers(len(held)))]
        which = int(rng.integers(3))
        np.testing.assert_array_equal(engine.read(states[which]), right[which])
    for states, right in held:
        for handle, wanted_state in zip(states, right, strict=True):
            np.testing.assert_array_equal(engine.read(handle), wanted_state)


@pytest.mark.parametrize("op", ["scatter", "dynamic_update_slice"])
def test_every_case_of_an_update_in_place_has_the_bits_of_the_cpu_engine(engine: Any, op: str) -> None:
    from worker.wgsl.control_runtime import ControlExecutable

    chosen = [case for case in cases(op) if in_place(case.graph, 1) and supports(engine, case.graph)]
    assert len(chosen) >= 8
    for case in chosen[:: max(1, len(chosen) // 12)]:
        executable = engine.compile(case.graph)
        assert isinstance(executable, ControlExecutable), case.id
        given = [engine.load(array) for array in case.arguments]
        for _ in range(2):  # what was given is as it was
            for actual, wanted in zip(
                run(engine, executable, given), expected(case.graph, case.arguments), strict=True
            ):
                assert actual.tobytes() == wanted.tobytes(), case.id


def cache_step(old: Any, new: Any, positions: Any) -> Any:
    """As a step of a text: keys are written, and all are read."""
    kept = written(old, new, positions, positions >= 0)
    return kept, mnp.sum(kept, axis=(2, 3))


OLD = np.arange(2 * 3 * 64 * 16, dtype=np.float32).reshape(2, 3, 64, 16)
NEW, AT = np.ones((2, 3, 1, 16), np.float32), np.array([[3], [5]], np.int32)


def test_a_cache_that_is_carried_is_neither_copied_nor_moved(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from worker.wgsl.device import Copy

    executable = engine.compile(mesh.trace(cache_step, OLD, NEW, AT))
    recorded, record = list[Any](), engine._device.record
    monkeypatch.setattr(engine._device, "record", lambda commands: record(recorded.extend(commands) or commands))
    state, right = run(engine, executable, [OLD, NEW, AT], 0)[0], OLD.copy()
    right[0, :, 3], right[1, :, 5] = 1, 1
    memory, allocated = state.value.memory, 0
    for step in range(1, 30):
        before, (state, total) = state, run(engine, executable, [state, (1 + step) * NEW, AT + step], 0)
        earlier, right = right, right.copy()
        right[0, :, 3 + step], right[1, :, 5 + step] = 1 + step, 1 + step
        assert state.value.memory is memory
        allocated = allocated if step > 9 else engine._device.allocated_bytes
    assert engine._device.allocated_bytes == allocated, "rows of steps that nobody can take back"
    np.testing.assert_array_equal(engine.read(state), right)
    np.testing.assert_allclose(total, right.sum((2, 3)), rtol=1e-5)
    del state
    np.testing.assert_array_equal(engine.read(before), earlier)
    assert not any(isinstance(command, Copy) for command in recorded)


def failing(device: Any, perform: Any, calls: Iterator[int], at: int, late: bool, *what: Any) -> Any:
    """The device submits, but fails at one of its calls: before, when it has forgotten what was recorded, or after."""
    now = next(calls) == at
    if now and not late:
        device.forget_recorded()
        raise Cancelled("now")
    done = perform(*what)
    if now:
        raise Cancelled("now")
    return done


def test_a_tensor_in_pieces_is_updated_in_place_and_programs_are_cached(tmp_path: Path) -> None:
    graph = mesh.trace(cache_step, OLD, NEW, AT)
    for cached in (False, True):
        engine = opened(tmp_path, limits_override={"binding_bytes": 8192})  # a third of the cache
        executable = engine.compile(graph)
        assert executable.from_cache == cached
        old = engine.load(OLD)
        made, _ = run(engine, executable, [old, NEW, AT + 50], 0)
        right = expected(graph, [OLD, NEW, AT + 50])[0]
        assert old.value.outgrown and not made.value.outgrown
        np.testing.assert_array_equal(engine.read(made), right)
        np.testing.assert_array_equal(engine.read(old), OLD)
        engine.close()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("late", [False, True])
def test_a_run_that_fails_anywhere_leaves_the_tensors_that_it_was_given(
    engine: Any, late: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, rng = stepping(seed), np.random.default_rng(seed)
    executable = engine.compile(graph)
    first, given = [rng.standard_normal(KIND.shape).astype(np.float32) for _ in range(3)], arguments(rng)
    handles = run(engine, executable, [*first, *given], 0, 1, 2)[:3]
    states = expected(graph, [*first, *given])[:3]
    wanted, perform, failures = expected(graph, [*states, *given]), engine._device._perform, 0
    made: list[Any] = []
    while not made:
        engine._device.trim()  # what was never written is zeros
        fails = partial(failing, engine._device, perform, itertools.count(), failures, late)
        monkeypatch.setattr(engine._device, "_perform", fails)
        try:
            made = run(engine, executable, [*handles, *given], 0, 1, 2)
        except Cancelled:
            failures += 1
        monkeypatch.setattr(engine._device, "_perform", perform)
        for handle, state in zip(handles, states, strict=True):
            np.testing.assert_array_equal(engine.read(handle), state)
    assert failures
    for handle, state in zip(made[:3], wanted[:3], strict=True):
        np.testing.assert_array_equal(engine.read(handle), state)


def test_a_run_that_is_stopped_while_it_is_watched_leaves_the_old_value(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kernel is a submission there: those before the stop were done."""
    executable = engine.compile(mesh.trace(cache_step, OLD, NEW, AT))
    old, stopped_at, made = engine.load(OLD), 0, list[Any]()
    monkeypatch.setattr(engine._device, "_stamp_s", 0.0)
    monkeypatch.setattr(engine._device, "spans", lambda span: None)
    while not made:
        try:
            made = engine.run(executable, [old, NEW, AT], partial(reached, itertools.count(), stopped_at), None, (0,))
        except Cancelled:
            stopped_at += 1
        np.testing.assert_array_equal(engine.read(old), OLD)
    assert stopped_at >= 3


def reached(calls: Iterator[int], at: int) -> bool:
    return next(calls) >= at


def test_a_loop_over_updates_remembers_no_more_than_a_copy_takes(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tensor that it begins with is held, so every turn's rows could be put back."""
    x, turns = np.zeros((256, 64), np.float32), 60

    def turn(_: Any, carry: Any) -> Any:
        return apply("dynamic_update_slice", carry, carry[:128] + 1, mnp.zeros(2, dtype="int32"))

    executable = engine.compile(mesh.trace(lambda x: mesh.fori_loop(0, turns, turn, x), x))
    held, taken, allocate = engine.load(x), list[int](), engine._device._allocate
    engine._device.trim()
    before = engine._device.allocated_bytes
    monkeypatch.setattr(
        engine._device, "_allocate", lambda *what: (allocate(*what), taken.append(engine._device.allocated_bytes))[0]
    )
    for _ in range(2):
        (made,) = run(engine, executable, [held])
        np.testing.assert_array_equal(made, [[turns] * 64] * 128 + [[0] * 64] * 128)
        np.testing.assert_array_equal(engine.read(held), x)
    assert max(taken) - before < 8 * x.nbytes


def test_a_run_without_room_for_the_old_value_gives_back_what_it_took(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.zeros((256, 64), np.float32)
    at = np.zeros(2, np.int32)
    updated = engine.compile(mesh.trace(lambda x, at: apply("dynamic_update_slice", x, x[:1] + 1, at), x, at))
    reading = engine.compile(mesh.trace(lambda x: mnp.sum(mnp.tanh(x) @ x.T), x))
    old = engine.load(x)
    (made,) = run(engine, updated, [old, at], 0)
    engine._device.trim()
    before = engine._device.allocated_bytes
    with monkeypatch.context() as patch:
        patch.setattr(engine._device, "memory_bytes", before + reading.memory_bytes + x.nbytes // 2)
        patch.setattr(engine._device, "make_room", lambda: False)
        with pytest.raises(OutOfMemory):
            run(engine, reading, [old])
    engine._device.trim()
    assert engine._device.allocated_bytes == before
    np.testing.assert_array_equal(engine.read(old), x)
    np.testing.assert_array_equal(engine.read(made)[:2, 0], [1, 0])


def test_the_last_value_comes_back_where_it_lies_though_an_earlier_one_is_held(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device without room moves it to the host's memory, and has no room for a copy on the way."""
    x, at = np.zeros((64, 64), np.float32), np.zeros(2, np.int32)
    step = engine.compile(mesh.trace(lambda x, at: apply("dynamic_update_slice", x, x[:1] + 1, at), x, at))
    first = engine.load(x)
    (second,) = run(engine, step, [first, at], 0)
    run(engine, step, [second, at], 0)  # and the third is dropped
    assert second.value.outgrown
    engine._device.trim()
    monkeypatch.setattr(engine._device, "memory_bytes", engine._device.allocated_bytes)
    with pytest.raises(OutOfMemory):  # its buffer is the first one's, too
        engine._device.take(x.nbytes)
    assert second.value is None, "it was moved"
    np.testing.assert_array_equal(engine.read(second)[:2, 0], [1, 0])
    np.testing.assert_array_equal(engine.read(first), x)
