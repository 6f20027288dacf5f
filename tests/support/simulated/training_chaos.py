"""Training under mischief on simulated workers, by seed: what is drawn, what befalls it, and what must hold.

A seed draws a way to train, copies, data, workers and how fast they are; then faults come at random moments, and `fit`
is called again until all epochs are done, whatever it ended in.  `Trial.run` raises AssertionError for what must not
be.  A new way to train is a row of WAYS, a new kind of fault of the client one of DEEDS.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import random
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from support.cases.training import first_state, flat_params
from support.cases.training import loss_of_rows as loss
from support.simulated.chaos_faults import ALL_FAULTS, check_nothing_left
from support.simulated.simulated import Chaos

import mesh.numpy as mnp
from mesh import DataParallel, DistributedTrainer, FullySharded, Mesh, Pipeline, Single, TensorParallel, optim
from mesh.errors import DeviceLost, ExecuteFailed, MeshError, NodeLost, PlacementError, PoisonTask
from mesh.training import Callback, StepReport, TopK
from mesh.training.fit_loop import AHEAD

RNG = np.random.default_rng(3)
X = RNG.normal(size=(53, 8)).astype(np.float32)  # 53 rows: batches of 16 leave 5, which no number of workers divides
Y = np.sin(X[:, :4])
BAD = 7  # the row that is no number, where there is one
SETTLE_S = 600.0  # virtual seconds after which mischief ends
HANGS_S = 3000.0  # and after which a run hangs
STALL_S = 150.0  # no fault lasts so long, nor what is waited for a step that does not end
TRIES_MAX = 40


def mean_loss(params: Any, x: Any, y: Any) -> Any:
    return mnp.mean(loss(params, x, y))


@dataclass(frozen=True)
class Way:
    """How to train: at least so many workers, and how near an undisturbed run's weights are (0: the same bits)."""

    wishes: dict[str, Any]
    near: float = 1e-5
    workers: int = 1
    alone: dict[str, Any] = field(default_factory=dict)  # what an undisturbed run in this process wishes in its place


WAYS: dict[str, Way] = {
    "data": Way({}),
    "mean": Way({"own": mean_loss}),
    "two ranks": Way({"strategy": DataParallel(2)}, workers=2, alone={"strategy": "data"}),
    "accumulated": Way({"accumulate": 3}),
    "buckets": Way({"bucket_bytes": 100}),
    "clipped": Way({"clip": 0.05}),
    "deterministic": Way({"deterministic": True}, near=0),
    "five shards": Way({"deterministic": 5, "clip": 0.1}, near=0),
    "single": Way({"strategy": Single()}),
    "auto": Way({"strategy": "auto"}),
    "fully sharded": Way({"strategy": FullySharded()}),
    "tensor": Way({"strategy": TensorParallel()}),
    "sharded, accumulated": Way({"strategy": FullySharded(), "accumulate": 2}),
    "gpipe": Way({"strategy": Pipeline(2, 4, "gpipe")}, 0, 2, {"strategy": "single", "accumulate": 4}),
    "1f1b": Way({"strategy": Pipeline(3, 4), "clip": 0.5}, 0, 3, {"strategy": "single", "accumulate": 4}),
    "columns": Way({"strategy": Pipeline(2, 5, data=2)}, 1e-5, 4, {"strategy": "single", "accumulate": 5}),
    "free stages": Way({"strategy": Pipeline(micro_batches=4)}, 0, 1, {"strategy": "single", "accumulate": 4}),
    "pipedream": Way({"strategy": Pipeline(2, 4, "pipedream")}, np.inf, 2, {"strategy": Pipeline(0, 4, "pipedream")}),
    "f16 sent": Way({"compression": "f16"}, np.inf),
    "int8 sent": Way({"compression": "int8"}, np.inf),
    "few sent": Way({"compression": TopK(0.1)}, np.inf),
    "half": Way({"precision": "f16"}, 2e-2),
    "bf16": Way({"precision": "bf16", "strategy": FullySharded()}, 5e-2),
}
COPIES = ("buddy", "buddy", "checkpoint", "coded", "coded 1 of 2", "coded 2 of 4", "none")


class Stop(Exception):
    """What a callback of a user raises."""


def trainer(way: Way, own: Any = loss, **wishes: Any) -> DistributedTrainer:
    return DistributedTrainer(own, first_state()["layers"], optimizer=optim.adam(1e-2), **wishes)


def rows(bad: bool) -> tuple[Any, Any]:
    x = X.copy()
    if bad:
        x[BAD, 0] = np.nan
    return x, Y


@cache
def undisturbed(name: str, epochs: int, batch: int, bad: bool) -> tuple[list[float], Any, list[int]]:
    """Losses and weights of a run in this process, and the steps that it skipped."""
    way = WAYS[name]
    alone = trainer(way, **{**way.wishes, **way.alone})
    history = alone.fit(rows(bad), epochs=epochs, batch_size=batch)
    return history.losses, flat_params(alone), history.skipped


class Witness(Callback):
    """Writes down every step, and does now and then what users do."""

    def __init__(self, trial: Trial, deeds: bool) -> None:
        self.trial, self.deeds = trial, deeds
        self.steps: dict[int, StepReport] = {}
        self.again = 0  # steps that were told more than once, since `fit` was called again
        self.untold: set[int] = set()  # that were under way when a callback raised: they count, and nobody hears of it

    def on_step(self, report: StepReport) -> None:
        before = self.steps.get(report.step)
        self.again += before is not None
        self.steps[report.step] = report
        if before is not None:
            assert (before.rows, before.epoch, before.skipped) == (report.rows, report.epoch, report.skipped)
        if self.deeds and self.trial.random.random() < 0.02:
            self.untold |= set(range(report.step + 1, report.step + AHEAD))
            raise self.trial.random.choice((Stop, KeyboardInterrupt))


@dataclass
class Trial:
    """One seed."""

    seed: int
    only: str = ""  # one way instead of one that is drawn
    random: random.Random = field(init=False)
    scenario: dict[str, Any] = field(init=False)
    ends: Counter[str] = field(init=False, default_factory=Counter)

    def __post_init__(self) -> None:
        rng = self.random = random.Random(self.seed)
        name = self.only or rng.choice(list(WAYS))
        way = WAYS[name]
        self.scenario = {
            "way": name,
            "workers": rng.randint(max(way.workers, 1), max(way.workers + 2, 5)),
            "copies": rng.choice(COPIES),
            "epochs": rng.randint(1, 4),
            "batch": rng.choice((8, 16, 53)),
            "gflops": 10 ** rng.uniform(-4, 0),
            "held": rng.random() < 0.3,
            "kept": rng.random() < 0.4,
            "every": rng.randint(1, 6),
            "min_nodes": rng.choice((1, 1, 2)),
            "max_nodes": rng.choice((None, None, 2)) if way.workers < 3 else None,
            "faults": rng.randint(0, 12),
            "rest_s": rng.choice(((0.01, 0.6), (0.05, 2.0), (0.001, 0.05))),
            "deeds": rng.random() < 0.3,
            "calls": rng.random() < 0.3,
            "another": rng.random() < 0.2,
        }
        self.scenario["bad"] = self.scenario["batch"] < len(X) and rng.random() < 0.25  # else all steps had that row

    def run(self) -> str:
        """The transcript of a run to its end."""
        scenario = self.scenario
        builder = Mesh.builder().mesh("sim").simulate(scenario["workers"], self.seed, scenario["gflops"])
        with (
            tempfile.TemporaryDirectory() as folder,
            builder.build() as m,
        ):
            cluster = m.simulation._cluster
            chaos = Chaos(cluster, self.random, rest_s=scenario["rest_s"])
            watch = _Watch(m, chaos, scenario["faults"])
            try:
                found = trainer(WAYS[scenario["way"]], **WAYS[scenario["way"]].wishes).distribute(m)
                data = m.put(rows(scenario["bad"])) if scenario["held"] else rows(scenario["bad"])
                with watch:
                    self._train(m, found, data, watch, Path(folder))
                self._check_no_stall(m)
                self._check_nothing_left(m)
                cluster.checker.verdict()
            except BaseException as error:
                error.add_note(f"{scenario}\n{dict(self.ends)}\n{m.simulation.transcript()}")
                raise
            return m.simulation.transcript()

    def _train(self, m: Mesh, found: DistributedTrainer, data: Any, watch: _Watch, folder: Path) -> None:
        scenario = self.scenario
        witness = Witness(self, scenario["deeds"])
        beside = [_Beside(m, watch, self._another)] if scenario["another"] else []
        for each in beside:
            each.start()
        for tries in range(TRIES_MAX):
            if found._cursor.epoch >= scenario["epochs"]:
                break
            if tries >= TRIES_MAX // 2:
                watch.settle()
                witness.deeds = False
            self._fit(found, data, witness, m, folder)
            watch.check()
        assert found._cursor.epoch == scenario["epochs"], f"it never ends: {dict(self.ends)}"
        watch.settle()
        for each in beside:
            each.join()
            each.check()
        self._compare(found, witness)

    def _fit(self, found: DistributedTrainer, data: Any, witness: Witness, m: Mesh, folder: Path) -> None:
        scenario = self.scenario
        left = scenario["epochs"] if scenario["kept"] else scenario["epochs"] - found._cursor.epoch
        calls = m.submit(lambda x: mnp.tanh(x @ x), np.eye(4, dtype=np.float32)) if scenario["calls"] else None
        try:
            found.fit(
                data, epochs=left, batch_size=scenario["batch"], callbacks=[witness], copies=scenario["copies"],
                every=scenario["every"], checkpoint=folder if scenario["kept"] else None,
                min_nodes=min(scenario["min_nodes"], scenario["workers"]), max_nodes=scenario["max_nodes"],
            )  # fmt: skip
        except (Stop, KeyboardInterrupt) as stop:
            self.ends[type(stop).__name__] += 1
        except MeshError as error:
            self._judge(error)
            m.simulation.wait(1.0)
        if calls is not None:
            with contextlib.suppress(NodeLost, DeviceLost, PoisonTask, PlacementError):
                np.testing.assert_allclose(calls.result(), np.tanh(np.eye(4)), atol=1e-6)

    def _judge(self, error: MeshError) -> None:
        self.ends[f"{type(error).__name__}: {error}"[:300]] += 1
        assert isinstance(error, NodeLost | DeviceLost | PlacementError | PoisonTask | ExecuteFailed), error
        if isinstance(error, ExecuteFailed):
            raise error
        assert error.next_step or error.cause, f"what now? {error!r}"

    def _compare(self, found: DistributedTrainer, witness: Witness) -> None:
        scenario, way = self.scenario, WAYS[self.scenario["way"]]
        losses, weights, skipped = undisturbed(scenario["way"], scenario["epochs"], scenario["batch"], scenario["bad"])
        steps = [witness.steps[number] for number in sorted(witness.steps)]
        missing = set(range(1, len(losses) + 1)) - witness.steps.keys()
        assert missing <= witness.untold and len(steps) + len(missing) == len(losses), f"steps: {missing}"
        losses = [losses[each.step - 1] for each in steps]
        skipped = [number for number in skipped if number not in missing]
        assert missing or sum(each.rows for each in steps) == scenario["epochs"] * len(X), (
            "rows are missing, or come twice"
        )
        if way.near <= 1e-5:
            assert [each.step for each in steps if each.skipped] == skipped
        if way.near == 0:
            same = np.array_equal([each.loss for each in steps], losses, equal_nan=True)
            assert same and np.array_equal(flat_params(found), weights), "other bits"
        elif way.near < np.inf:
            np.testing.assert_allclose([each.loss for each in steps], losses, rtol=0, atol=way.near)
            np.testing.assert_allclose(flat_params(found), weights, rtol=0, atol=way.near)
        else:
            assert np.isfinite(flat_params(found)).all()

    def _another(self, m: Mesh) -> None:
        """Somebody else trains on the same mesh at the same time."""
        other = trainer(WAYS["data"], deterministic=3).distribute(m)
        for _ in range(TRIES_MAX):
            if other._cursor.epoch >= 2:
                break
            with contextlib.suppress(NodeLost, DeviceLost, PoisonTask, PlacementError):
                other.fit(rows(False), epochs=2 - other._cursor.epoch, batch_size=16)
                continue
            m.simulation.wait(1.0)
        alone = _shards_of_three()
        assert np.array_equal(flat_params(other), alone), "other bits, beside another"

    def _check_no_stall(self, m: Mesh) -> None:
        times = [float(line[:12]) for line in m.simulation._cluster.trace]
        longest = max((after - before for before, after in itertools.pairwise(times)), default=0.0)
        assert longest < STALL_S, f"nothing happened for {longest:.0f} s"

    def _check_nothing_left(self, m: Mesh) -> None:
        cluster = m.simulation._cluster
        gc.collect()
        m.simulation.wait(40.0)
        check_nothing_left(cluster)


@cache
def _shards_of_three() -> Any:
    alone = trainer(WAYS["data"], deterministic=3)
    alone.fit(rows(False), epochs=2, batch_size=16)
    return flat_params(alone)


class _Watch:
    """Plays mischief on the mesh's loop, and ends what hangs."""

    def __init__(self, m: Mesh, chaos: Chaos, faults: int) -> None:
        self.mesh, self.chaos, self.faults, self.hung = m, chaos, faults, False

    def __enter__(self) -> _Watch:
        async def begin() -> None:
            self._tasks = [asyncio.ensure_future(self._play()), asyncio.ensure_future(self._limit())]

        self.mesh._loop.wait(begin())
        return self

    def __exit__(self, *_: object) -> None:
        async def end() -> None:
            for task in self._tasks:
                task.cancel()

        if not self.mesh._loop.stopped:
            self.mesh._loop.wait(end())

    def settle(self) -> None:
        """No more mischief."""

        async def settle() -> None:
            self.chaos.end()

        if not self.mesh._loop.stopped:
            self.mesh._loop.wait(settle())

    def check(self) -> None:
        assert not self.hung, "it hangs"

    async def _play(self) -> None:
        await self.chaos.play(ALL_FAULTS, self.faults)
        await asyncio.sleep(self.chaos.random.choice((0.5, 5.0, 30.0)))
        self.chaos.end()

    async def _limit(self) -> None:
        await asyncio.sleep(SETTLE_S)
        self.chaos.end()
        await asyncio.sleep(HANGS_S - SETTLE_S)
        self.hung = True
        self.chaos.cluster.tell("IT HANGS")
        for task in asyncio.all_tasks():
            self.chaos.cluster.tell(f"task {task.get_coro()}")
        await asyncio.shield(asyncio.ensure_future(self.mesh._async.close()))


class _Beside(threading.Thread):
    """Work in another thread, whose error `check` raises."""

    def __init__(self, m: Mesh, watch: _Watch, work: Callable[[Mesh], None]) -> None:
        super().__init__(daemon=True)
        self._work, self._mesh, self._error = work, m, None

    def run(self) -> None:
        try:
            self._work(self._mesh)
        except BaseException as error:
            self._error = error

    def check(self) -> None:
        if self._error is not None:
            raise self._error
