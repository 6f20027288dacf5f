"""The tuner on a real device: the fastest form wins if it is right, and what is compiled from then on has it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.adapter import needs_adapter

import mesh
from wire.errors import CompileFailed, InputError, OutOfMemory
from wire.system.file_lock import FileLock
from worker.engine import protocol
from worker.wgsl import tuner
from worker.wgsl.choices import ShapeClass
from worker.wgsl.execute import WgslExecutable
from worker.wgsl.lower import lower
from worker.wgsl.problems import problem_of
from worker.wgsl.shaders import Shaders
from worker.wgsl.tuned_file import TunedFile

pytestmark = needs_adapter

SUM = "sum f32 512x64"
SECONDS = 300.0  # far more than it takes: a busy machine measures as many turns as a quiet one
LONGER = 30  # times the work: more than any noise


@pytest.fixture(scope="module")
def opened() -> Iterator[Any]:
    from worker.wgsl.engine import WgslEngine

    made = WgslEngine(0)
    yield made
    made.close()


@pytest.fixture
def engine(opened: Any, tmp_path: Path) -> Any:
    """An engine that has measured nothing, with a file of its own."""
    opened._tuned = TunedFile(tmp_path, "this device")
    tuning(opened, tmp_path)
    opened._executables.clear()
    return opened


def tuning(engine: Any, folder: Path, **how: Any) -> None:
    engine._tuner = tuner.Tuner(engine._device, engine._device.profile, engine._tuned, folder, **how)


def prepared(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Let the programs of forms be changed; "" is the first guess, and "others" are all that are not named."""

    def changed(graph: Any, known: Shaders) -> Any:
        program = lower(graph, known)
        form = next(iter(known.profile.choices.names.values()), "")
        own = form if form in changes else "others"
        change = changes.get("guess" if form.startswith("128 ") else own, lambda program: program)
        return change(program)

    monkeypatch.setattr(tuner, "lower", changed)


def longer(program: Any) -> Any:
    """The same result, later."""
    return replace(program, dispatches=program.dispatches * LONGER)


def wrong(program: Any) -> Any:
    """Less work, and most of the result is missing."""
    return replace(program, dispatches=tuple(replace(each, grid=(1, 1, 1)) for each in program.dispatches))


def compiled(engine: Any) -> WgslExecutable:
    made = engine.compile(problem_of(ShapeClass.parse(SUM), True).graph, force=True)
    assert isinstance(made, WgslExecutable)
    return made


def guess_of(engine: Any) -> str:
    """The first guess of the class on this device."""
    return str(engine._tuner._choice(problem_of(ShapeClass.parse(SUM), True)).form)


def test_a_form_that_is_clearly_faster_is_taken_for_what_is_compiled_from_then_on(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = compiled(engine)
    prepared(monkeypatch, guess=longer)
    tuned = engine.tune(SUM, SECONDS)
    assert tuned.finished and tuned.guess == guess_of(engine) != tuned.form and not tuned.refused
    assert tuned.form_s < tuned.guess_s * tuner.MARGIN and tuned.tried >= 6
    assert engine._tuned.choices.names == {SUM: tuned.form}
    after = compiled(engine)
    assert after.program.modules != before.program.modules, "the other form"
    x = problem_of(ShapeClass.parse(SUM), True).inputs
    for executable in (before, after):
        (result,) = engine.run(executable, x)
        np.testing.assert_allclose(result, x[0].astype(np.float64).sum(1), atol=1e-4)
    texts = [engine.explain(executable, True).rows[0].text for executable in (before, after)]
    assert texts == [executable.program.modules[0].text for executable in (before, after)]


def test_choices_are_part_of_the_keys_of_programs_on_disk(engine: Any) -> None:
    graph = problem_of(ShapeClass.parse(SUM), True).graph
    compiled(engine)
    first = engine._key(graph)
    engine._tuned.choose(SUM, "64 rows", 2e-3, 1e-3)
    compiled(engine)
    assert engine._key(graph) != first
    engine._tuned.choose(SUM, "", 1e-3, 1e-3)
    compiled(engine)
    assert engine._key(graph) == first, "what was compiled before is found again"


def test_the_first_guess_stays_where_others_are_not_clearly_faster(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(monkeypatch, others=longer)
    tuned = engine.tune(SUM, SECONDS)
    assert tuned.finished and tuned.form == tuned.guess and engine._tuned.choices.names == {}
    assert engine._tuned.row(SUM).form == ""


def test_a_form_with_wrong_results_may_not_win(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared(monkeypatch, guess=longer, others=wrong, **{"64 rows": lambda program: program})
    tuned = engine.tune(SUM, SECONDS)
    assert tuned.form == "64 rows" and set(tuned.refused.values()) == {"its results are wrong"}
    assert len(tuned.refused) >= 4 and dict(engine._tuned.row(SUM).refused) == tuned.refused
    monkeypatch.undo()
    assert engine.tune(SUM, SECONDS).tried == 2, "what was refused is not run again"


def test_a_form_that_the_driver_does_not_compile_may_not_win(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(program: Any) -> Any:
        raise CompileFailed("no registers are left")

    prepared(monkeypatch, **{"64 rows": refuse})
    tuned = engine.tune(SUM, SECONDS)
    assert tuned.finished and tuned.refused == {"64 rows": "no registers are left"}


def test_a_form_whose_results_change_may_not_win(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared(monkeypatch, guess=longer)
    asked: list[str] = []
    agree = tuner.Problem.agree

    def only_at_first(problem: Any, result: Any, other: Any) -> bool:
        asked.append("")
        return len(asked) <= told_at_first and agree(problem, result, other)

    told_at_first = len(engine._tuner._choice(problem_of(ShapeClass.parse(SUM), True)).forms)
    monkeypatch.setattr(tuner.Problem, "agree", only_at_first)
    tuned = engine.tune(SUM, SECONDS)
    assert tuned.form == tuned.guess and "change from run to run" in str(dict(engine._tuned.row(SUM).refused))


def test_too_little_time_keeps_nothing(engine: Any) -> None:
    tuned = engine.tune(SUM, 1e-6)
    assert not tuned.finished and tuned.why and engine._tuned.row(SUM).form is None


def test_who_is_stopped_keeps_nothing_and_says_so(engine: Any) -> None:
    tuned = engine.tune(SUM, SECONDS, lambda: True)
    assert not tuned.finished and tuned.why and engine._tuned.row(SUM).form is None
    assert engine.tune(SUM, SECONDS).finished


def test_two_processes_do_not_measure_each_other_but_wait(engine: Any, tmp_path: Path) -> None:
    with FileLock(tmp_path / tuner.MEASURING):
        assert engine.tune(SUM, 0.1).why == "another process measures"
    other = FileLock(tmp_path / tuner.MEASURING)
    assert other.try_acquire()
    assert engine.tune(SUM, SECONDS, lambda: bool(other.release())).finished, "the other one is done meanwhile"


@pytest.mark.parametrize("within", [0, 1])
def test_what_was_measured_counts_wherever_the_time_ends(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, within: int
) -> None:
    """It may end between two runs, or in the middle of one."""
    samples, asked = [0], [0]
    sample = tuner.Tuner._sample

    def counted(own: tuner.Tuner, *others: Any) -> None:
        samples[0], asked[0] = samples[0] + 1, 0
        sample(own, *others)

    def over() -> bool:
        """Only the thread that measures counts: another one looks as often as there is time for."""
        if threading.current_thread() is not threading.main_thread() or samples[0] < every:
            return False
        asked[0] += 1
        return asked[0] > within

    monkeypatch.setattr(tuner.Tuner, "_sample", counted)
    monkeypatch.setattr(type(engine._device), "has_stamps", False)  # so that it looks before each run
    prepared(monkeypatch, others=longer)
    # whatever the noise, the others are measured once each, and a sample has two runs with a look before each
    tuning(engine, tmp_path, leader_factor=0.0, repeats_max=2, sample_s=SECONDS)
    every = sys.maxsize
    assert engine.tune(SUM, SECONDS, over).finished
    every, samples[0] = samples[0], 0
    assert engine.tune(SUM, SECONDS, over).finished and asked[0] > within, "the last sample was stopped"


def test_a_device_without_room_is_not_emptied_for_it(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine._device.trim()
    monkeypatch.setattr(engine._device, "memory_bytes", engine._device.allocated_bytes + 4096)
    monkeypatch.setattr(engine._device, "make_room", lambda: pytest.fail("what others need was moved"))
    tuned = engine.tune(SUM, SECONDS)
    assert not tuned.finished and "are left" in tuned.why


def test_what_was_never_measured_is_known_of_parts_and_of_what_they_repeat(engine: Any) -> None:
    executable = compiled(engine)
    assert protocol.untuned_classes(engine, executable) == (SUM,)
    engine.tune(SUM, SECONDS)
    assert protocol.untuned_classes(engine, executable) == ()
    x, y = np.ones((40, 64), np.float32), np.ones((64, 64), np.float32)
    looped = engine.compile(mesh.trace(lambda x, y: mesh.fori_loop(0, 3, lambda _, z: z @ y, x), x, y))
    assert protocol.untuned_classes(engine, looped) == ("product f32 1x32x64x64",)
    whole = engine.compile(mesh.trace(lambda x: x @ x, np.ones((64, 64), np.int32)))
    assert protocol.untuned_classes(engine, whole) == (), "nobody measures integers"


def test_what_is_no_class_is_an_error(engine: Any) -> None:
    for text in ("sum", "sum i32 4x4"):
        with pytest.raises(InputError, match="shape class"):
            engine.tune(text, 1.0)


def test_tuning_gives_its_memory_back(engine: Any) -> None:
    engine._device.trim()
    before = engine._device.allocated_bytes
    assert engine.tune(SUM, SECONDS).finished
    engine._device.trim()
    assert engine._device.allocated_bytes == before


def test_what_is_spoilt_is_given_back_where_there_is_no_room_for_all_of_it(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that leaked here had no room for the classes that follow."""
    twice = engine.compile(mesh.trace(lambda x: x @ x @ x, np.ones((64, 64), np.float32)))
    assert [buffer.kind for buffer in twice.program.buffers].count("slot") == 2
    engine._device.trim()
    before = engine._device.allocated_bytes
    monkeypatch.setattr(engine._device, "memory_bytes", before + 5 * 64 * 64)
    monkeypatch.setattr(engine._device, "make_room", lambda: False)
    with pytest.raises(OutOfMemory):
        engine._tuner._spoil(twice)
    engine._device.trim()
    assert engine._device.allocated_bytes == before


def test_a_clock_that_is_too_coarse_keeps_the_first_guess(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not engine._device.has_stamps:
        pytest.skip("this adapter does not tell the time")
    monkeypatch.setattr(engine._device, "_stamp_s", 1e-30)  # every kernel seems to take no time
    tuning(engine, tmp_path, repeats_max=3)  # or each is run 64 times for a sample
    tuned = engine.tune(SUM, SECONDS)
    assert tuned.finished and tuned.form == tuned.guess and tuned.form_s > 0
