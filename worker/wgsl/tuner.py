"""The tuner: which form of a kernel is fastest on this device, by measuring them all.

Every form computes the same problem.  One whose result is not that of the first guess may not win, however fast it is.
Forms take turns, so that what slows the device down slows all of them; one that is clearly slower leaves.  A form has
to be faster than the first guess by `MARGIN`, by the median over the turns of the ratio of their times and by its best
time, and once more when it takes turns with the first guess alone: chance favours the best of many.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.errors import Cancelled, CompileFailed, ConfigError, ExecuteFailed, OutOfMemory
from wire.ir.graph import WireGraph
from wire.system.file_lock import FileLock
from wire.system.private_folder import make_private
from wire.system.steady_log import steady_logger

from ..engine.kernel_rows import Span
from ..engine.protocol import Stopped, Tuned, never
from .choices import Choice, Choices, ShapeClass
from .device import Device, Memory
from .execute import WgslExecutable, resident
from .lower import grouped, lower, prepared
from .problems import Problem, problem_of
from .profile import Profile
from .shaders import Shaders
from .tuned_file import TRIES_MAX, TunedFile
from .values import Value

logger = steady_logger(__name__)

MARGIN = 0.9  # of the first guess's time, that a form may take at most to be chosen
TURNS_MIN, TURNS_MAX = 5, 15
LEADER_FACTOR = 1.5  # of the best time so far: what takes longer leaves
SAMPLE_S, REPEATS_MAX = 2e-3, 64  # a shorter run is done several times for one sample
LEAST_S = 1e-9  # of a sample: a coarse clock may see no time pass
GUESS_SHARE = 1 / 20  # of the time allowed, that one run of the first guess may take
COMPILING_SHARE = 0.6  # of the time allowed, after which no further form joins
MEASURING = "tuning.lock"
LOOK_S = 0.05  # between two looks at whether another process still measures, or this one was stopped


@dataclass(slots=True)
class _Trial:
    """A form that takes part: its executable, and the seconds of its runs."""

    form: str
    executable: WgslExecutable
    repeats: int = 1
    seconds: list[float] = field(default_factory=list)

    @property
    def best_s(self) -> float:
        return min(self.seconds)

    def ratio_to(self, other: _Trial) -> float:
        """The median ratio of its times to those of another one in the same turns."""
        return statistics.median(own / theirs for own, theirs in zip(self.seconds, other.seconds, strict=False))


class Tuner:
    """Measures on one device, and keeps what it found in `file`.  `folder` is where processes that measure wait for
    each other.

    A form stays in the race up to `leader_factor` times the best time so far, and a run is done at most `repeats_max`
    times for one sample, which takes about `sample_s`.
    """

    def __init__(
        self,
        device: Device,
        profile: Profile,
        file: TunedFile,
        folder: Path | None,
        leader_factor: float = LEADER_FACTOR,
        repeats_max: int = REPEATS_MAX,
        sample_s: float = SAMPLE_S,
    ) -> None:
        self._device = device
        self._profile = replace(profile, choices=Choices())
        self._file = file
        self._folder = folder
        self._leader_factor, self._repeats_max, self._sample_s = leader_factor, repeats_max, sample_s
        self._stopped: Stopped = never

    def tune(self, shape_class: ShapeClass, seconds: float, stopped: Stopped = never) -> Tuned:
        """Measure a class for at most about `seconds`, and keep which form is fastest.

        It is not `finished` where that was too short, it was stopped, or another process measures; then nothing
        is kept but which forms are refused.  InputError for a class that nobody measures.
        """
        deadline_s = time.perf_counter() + seconds
        name, problem = str(shape_class), problem_of(shape_class, self._profile.software)
        spans, make_room = self._device.spans, self._device.make_room
        self._stopped = stopped

        def over() -> bool:
            return stopped() or time.perf_counter() > deadline_s

        with self._alone(over) as alone:
            if not alone:
                return Tuned(name, why="another process measures")
            self._device.make_room = lambda: False  # nobody's tensors leave the device for this
            try:
                return self._measured(name, problem, over, seconds)
            except Cancelled:
                return Tuned(name, why="the time was too short")
            except OutOfMemory as error:
                return Tuned(name, why=error.message)
            finally:
                self._device.spans, self._device.make_room = spans, make_room
                self._device.forget_recorded()

    @contextmanager
    def _alone(self, over: Stopped) -> Iterator[bool]:
        """Wait until no other process measures, and let none until this is over; False if the time was over before.
        True where there is no folder to see it."""
        with ExitStack() as stack:
            alone = True
            with suppress(OSError, ConfigError):
                if self._folder is not None:
                    make_private(self._folder)
                    lock = FileLock(self._folder / MEASURING)
                    stack.callback(lock.release)
                    while not (alone := lock.try_acquire()) and not over():
                        time.sleep(LOOK_S)
            yield alone

    def _measured(self, shape_class: str, problem: Problem, over: Stopped, seconds: float) -> Tuned:
        choice = self._choice(problem)
        if choice is None:
            self._file.choose(shape_class, "", 0.0, 0.0)
            return Tuned(shape_class, finished=True, why="it is no kernel of its own on this device")
        values = [resident(self._device, array) for array in problem.inputs]
        guess, right = self._first_run(problem, choice, choice.form, values, over)
        self._sample(guess, values, over)
        result = Tuned(shape_class, choice.form, choice.form, guess.best_s, guess.best_s, 1)
        if not problem.agree(right, right):
            return replace(result, why="the first guess gives results that are no numbers")
        if guess.best_s > seconds * GUESS_SHARE:
            return replace(result, why="one run takes too long")
        known = (
            shape_class if choice.shape_class == problem.shape_class else str(choice.shape_class)
        )  # a long sum is cut
        share = self._share(over, seconds * COMPILING_SHARE)
        trials = [guess, *self._others(known, problem, choice, right, values, over, share)]
        result = replace(result, tried=len(trials), refused=dict(self._file.row(known).refused))
        best = self._winner(trials, values, over)
        if best is not None and best is not guess:
            best = self._winner([guess, best], values, over)
        if best is None:
            return replace(result, why="the time was too short")
        if best is not guess and not problem.agree(self._run(best, values, never), right):
            self._file.end(known, best.form, "its results change from run to run")
            best = guess
        if known != shape_class:
            self._file.choose(shape_class, "", guess.best_s, best.best_s)
        self._file.choose(known, "" if best is guess else best.form, guess.best_s, best.best_s)
        return replace(result, form=best.form, guess_s=guess.best_s, form_s=best.best_s, finished=True)

    @staticmethod
    def _share(over: Stopped, seconds: float) -> Stopped:
        """Whether it is over, or `seconds` seconds have passed from now on."""
        until_s = time.perf_counter() + seconds
        return lambda: over() or time.perf_counter() > until_s

    def _choice(self, problem: Problem) -> Choice | None:
        """What there is to choose of the kernel that the problem is about, or of those that it is cut into."""
        graph = prepared(problem.graph, self._profile)
        shaders = [shader for _, made in grouped(graph, Shaders(self._profile)) for shader in made]
        choices = [shader.choice for shader in shaders if shader.choice is not None]
        return next((choice for choice in choices if choice.shape_class.kind == problem.shape_class.kind), None)

    def _others(
        self,
        known: str,
        problem: Problem,
        choice: Choice,
        right: NDArray[Any],
        values: Sequence[Value],
        stopped: Stopped,
        enough: Stopped,
    ) -> list[_Trial]:
        """The other forms that are not refused, and compute the right result."""
        trials: list[_Trial] = []
        for form in choice.forms:
            row = self._file.row(known)
            if form == choice.form or form in row.refused or enough():
                continue
            if row.tries.get(form, 0) >= TRIES_MAX:
                self._refuse(known, form, "it never came back")
                continue
            try:
                with self._written_down(known, form):
                    trial, result = self._first_run(problem, choice, form, values, stopped)
            except (CompileFailed, ExecuteFailed) as error:
                self._refuse(known, form, error.message)
            except (Cancelled, OutOfMemory):
                self._file.end(known, form)
                raise
            else:
                if problem.agree(result, right):
                    self._file.end(known, form)
                    trials.append(trial)
                else:
                    self._refuse(known, form, "its results are wrong")
        return trials

    @contextmanager
    def _written_down(self, known: str, form: str) -> Iterator[None]:
        """The file says that a form began.  If it is stopped, the file no longer does: this process may be ended
        while the driver compiles, which is no fault of the form."""
        self._file.begin(known, form)
        over = threading.Event()

        def forgive() -> None:
            while not over.wait(LOOK_S):
                if self._stopped():
                    self._file.end(known, form)
                    return

        watching = threading.Thread(target=forgive, name="forgive", daemon=True)
        watching.start()
        try:
            yield
        finally:
            over.set()
            watching.join()

    def _refuse(self, known: str, form: str, why: str) -> None:
        logger.warning("%s is refused for %s: %s", form, known, why)
        self._file.end(known, form, why)

    # -- runs

    def _first_run(
        self, problem: Problem, choice: Choice, form: str, values: Sequence[Value], stopped: Stopped
    ) -> tuple[_Trial, NDArray[Any]]:
        """A form, compiled, and its result."""
        profile = replace(self._profile, choices=Choices({str(choice.shape_class): form}))
        trial = _Trial(form, self._compiled(problem.graph, profile))
        self._spoil(trial.executable)
        return trial, self._run(trial, values, stopped)

    def _spoil(self, executable: WgslExecutable) -> None:
        """Fill the buffers that it will take with NaN: they may have the right result, from another form."""
        slots = [buffer for buffer in executable.program.buffers if buffer.kind == "slot"]
        taken: list[Memory] = []
        try:
            for slot in slots:
                taken.append(self._device.take(slot.size_bytes))
                self._device.write(taken[-1], np.full(slot.size_bytes, 0xFF, np.uint8))
        finally:
            for memory in taken:
                self._device.give(memory)

    def _compiled(self, graph: WireGraph, profile: Profile) -> WgslExecutable:
        program = lower(graph, Shaders(profile))
        outputs = list(graph.output_types.values())
        return WgslExecutable(self._device, graph, program, graph.input_types, outputs, {}, False, profile.choices)

    @staticmethod
    def _run(trial: _Trial, values: Sequence[Value], stopped: Stopped) -> NDArray[Any]:
        (result,) = trial.executable.run(values, stopped)
        assert isinstance(result, np.ndarray), "an output that nobody keeps"
        return result

    def _race(self, trials: list[_Trial], values: Sequence[Value], over: Stopped) -> list[_Trial]:
        """Let all take turns until it is over or enough is known; those that stayed to the end.  The first one, the
        guess, is last in each turn and always stays."""
        for trial in trials:
            trial.seconds.clear()
        left = trials[1:] + trials[:1]
        for _ in range(TURNS_MAX):
            for trial in left:
                try:
                    self._sample(trial, values, over)
                except Cancelled:
                    return left
            leader_s = min(trial.best_s for trial in left)
            left = [trial for trial in left if trial is trials[0] or trial.best_s <= self._leader_factor * leader_s]
        return left

    def _sample(self, trial: _Trial, values: Sequence[Value], stopped: Stopped) -> None:
        """Measure a run once more, in seconds: by the device's clock where it has one."""
        took: list[float] = []
        self._device.spans = _adding(took)
        try:
            for _ in range(trial.repeats):
                trial.executable.record(values)
            self._device.run((), (), stopped)
        finally:
            self._device.spans = None
        trial.seconds.append(max(sum(took) / trial.repeats, LEAST_S))
        trial.repeats = min(self._repeats_max, max(1, int(self._sample_s / trial.best_s)))

    def _winner(self, trials: list[_Trial], values: Sequence[Value], over: Stopped) -> _Trial | None:
        """The fastest that is clearly faster than the first one, the guess, or that; None if the time is too short."""
        left, guess = self._race(trials, values, over), trials[0]
        if len(guess.seconds) < TURNS_MIN:
            return None
        faster = [trial for trial in left if trial.ratio_to(guess) <= MARGIN and trial.best_s <= MARGIN * guess.best_s]
        return min(faster, key=lambda trial: trial.ratio_to(guess), default=guess)


def _adding(took: list[float]) -> Callable[[Span], None]:
    def add(span: Span) -> None:
        took.append(span.ended_s - span.began_s)

    return add
