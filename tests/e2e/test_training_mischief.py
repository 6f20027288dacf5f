"""Training on real worker processes under real signals, by seed: the weights of an undisturbed run, and nothing left.

`PYTHONHASHSEED=0 python tests/e2e/test_training_mischief.py COUNT [FIRST]` does that many rounds and reports.  In a
round workers and their engine hosts are killed, stopped for a while or asked to leave, Ctrl-C is pressed, callbacks
raise, and somebody else trains on the same mesh; `fit` is called until all epochs are done.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.by_seed import asked, run_seeds
from support.cases.training import flat_params
from support.cases.training import loss_of_rows as loss
from support.processes.footprint import MEMORY_FOLDER, open_files
from support.processes.worker_process import children

from mesh import DataParallel, DistributedTrainer, FullySharded, Mesh, Pipeline, TensorParallel, optim
from mesh.errors import DeviceLost, MeshError, NodeLost, PlacementError
from mesh.training import Callback, StepReport, TopK

RNG = np.random.default_rng(3)
X = RNG.normal(size=(53, 8)).astype(np.float32)
Y = np.sin(X[:, :4])
BATCH, TRIES_MAX = 16, 40
HANGS_S = 400.0  # no round takes so long, however busy the machine
WAYS: dict[str, tuple[dict[str, Any], dict[str, Any], float]] = {  # on the mesh, alone instead, how near; 0: the bits
    "data": ({}, {}, 1e-5),
    "deterministic": ({"deterministic": 6}, {}, 0),
    "accumulated": ({"accumulate": 3}, {}, 1e-5),
    "fully sharded": ({"strategy": FullySharded()}, {"strategy": "single"}, 1e-5),
    "tensor": ({"strategy": TensorParallel()}, {"strategy": "single"}, 1e-5),
    "stages": ({"strategy": Pipeline(2, 4)}, {"strategy": "single", "accumulate": 4}, 0),
    "gpipe": ({"strategy": Pipeline(3, 4, "gpipe")}, {"strategy": "single", "accumulate": 4}, 0),
    "few sent": ({"compression": TopK(0.1)}, {}, np.inf),
    "two ranks": ({"strategy": DataParallel(2)}, {"strategy": "data"}, 1e-5),
}


def trainer(**wishes: Any) -> DistributedTrainer:
    rng = np.random.default_rng(0)
    params = [
        {"w": rng.normal(0, 0.3, (n, m)).astype(np.float32), "b": np.zeros(m, np.float32)}
        for n, m in ((8, 32), (32, 32), (32, 4))
    ]
    return DistributedTrainer(loss, params, optimizer=optim.adam(1e-2), **wishes)


@cache
def undisturbed(way: str, epochs: int) -> Any:
    wishes, instead, _ = WAYS[way]
    alone = trainer(**{**wishes, **instead})
    alone.fit((X, Y), epochs=epochs, batch_size=BATCH)
    return flat_params(alone)


class Mischief(threading.Thread):
    """Signals at random moments, until `over`; at least one worker stays alive."""

    def __init__(self, rng: random.Random, pids: list[int], deeds: int, rest_s: float) -> None:
        super().__init__(daemon=True)
        self.rng, self.alive, self.deeds, self.rest_s = rng, pids, deeds, rest_s
        self.may_interrupt, self.done = threading.Event(), Counter[str]()
        self.over = threading.Event()

    def run(self) -> None:
        for _ in range(self.deeds):
            if self.over.wait(self.rng.uniform(0, self.rest_s)):
                return
            name = self.rng.choice(("kill", "stop", "leave", "kill host", "stop host", "ctrl-c"))
            with contextlib.suppress(ProcessLookupError, IndexError):
                self.do(name)
                self.done[name] += 1

    def do(self, name: str) -> None:
        pid = self.rng.choice(self.alive)
        target = self.rng.choice(children(pid)) if name.endswith("host") else pid
        if name == "ctrl-c":
            if self.may_interrupt.is_set():
                os.kill(os.getpid(), signal.SIGINT)
        elif name.startswith("stop"):
            os.kill(target, signal.SIGSTOP)
            self.over.wait(self.rng.choice((0.1, 1.0, 2.5, 5.0)))
            os.kill(target, signal.SIGCONT)
        elif name == "kill host":
            os.kill(target, signal.SIGKILL)
        elif len(self.alive) > 1:
            self.alive.remove(pid)
            os.kill(pid, signal.SIGKILL if name == "kill" else signal.SIGTERM)


class Raising(Callback):
    """Raises now and then, and writes down what it heard."""

    def __init__(self, rng: random.Random, often: float) -> None:
        self.rng, self.often, self.steps = rng, often, dict[int, StepReport]()

    def on_step(self, report: StepReport) -> None:
        self.steps[report.step] = report
        if self.rng.random() < self.often:
            raise ZeroDivisionError("of a callback")


class Another(threading.Thread):
    """Trains on the same mesh."""

    def __init__(self, mesh: Mesh) -> None:
        super().__init__(daemon=True)
        self.trainer = trainer(deterministic=6).distribute(mesh)
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            for _ in range(TRIES_MAX):
                if self.trainer._cursor.epoch < 6:
                    with contextlib.suppress(NodeLost, DeviceLost, PlacementError):
                        self.trainer.fit((X, Y), epochs=6 - self.trainer._cursor.epoch, batch_size=BATCH)
        except BaseException as error:
            self.error = error


def round_of(seed: int) -> Counter[str]:
    """What was done to it, and in what `fit` ended."""
    rng = random.Random(seed)
    way, epochs, workers = rng.choice(list(WAYS)), rng.randint(4, 40), rng.randint(3, 4)
    wishes, _, near = WAYS[way]
    least = max(getattr(wishes.get("strategy"), "stages", 0), getattr(wishes.get("strategy"), "ranks", 0))
    copies, another = rng.choice(("buddy", "checkpoint", "coded", "none")), rng.random() < 0.3
    before, ends = footing(), Counter[str]()
    told = f"seed {seed}: {way}, {workers} workers, {epochs} epochs, copies {copies}, another {another}"
    try:
        with contextlib.closing(Mesh.builder().local(workers, engine="cpu").build()) as mesh:
            found = trainer(**wishes).distribute(mesh)
            heard = Raising(rng, rng.choice((0.0, 0.0, 0.02)))
            mischief = Mischief(random.Random(seed), [node.pid for node in mesh.nodes], rng.randint(0, 8), 1.0)
            beside = Another(mesh) if another else None
            if beside is not None:
                beside.start()
            mischief.start()
            for tries in range(TRIES_MAX):
                if found._cursor.epoch >= epochs or len(mischief.alive) < least:
                    break
                if tries > TRIES_MAX // 2:
                    mischief.over.set()
                try:
                    mischief.may_interrupt.set()
                    found.fit((X, Y), epochs=epochs - found._cursor.epoch, batch_size=BATCH, copies=copies,
                              callbacks=[heard], checkpoint=None)  # fmt: skip
                    mischief.may_interrupt.clear()
                except (KeyboardInterrupt, ZeroDivisionError) as stop:
                    ends[type(stop).__name__] += 1
                except MeshError as error:
                    ends[f"{type(error).__name__}: {error}"[:200]] += 1
                    if not isinstance(error, NodeLost | DeviceLost | PlacementError) or not error.next_step:
                        raise
                    time.sleep(0.5)
                finally:
                    mischief.may_interrupt.clear()
            mischief.over.set()
            mischief.join()
            shared = shared_folders([os.getpid(), *mischief.alive])  # those of who was killed the next worker removes
            assert found.step == found._cursor.epoch * 4 + found._cursor.batch, found.step
            assert found._cursor.epoch == epochs or len(mischief.alive) < least, dict(ends)
            epochs = found._cursor.epoch if not found._cursor.batch else 0  # what was asked for has too few workers
            if beside is not None:
                beside.join()
                assert beside.error is None, beside.error
                assert np.array_equal(flat_params(beside.trainer), undisturbed("deterministic", 6)), "beside another"
        if near < np.inf and epochs:
            np.testing.assert_allclose(flat_params(found), undisturbed(way, epochs), rtol=0, atol=near)
        del found, beside, mesh
        check_nothing_left(before, shared)
    except BaseException as error:
        error.add_note(f"{told}\n{dict(ends)}\n{dict(mischief.done)}")
        raise
    return ends + Counter({f"did {name}": often for name, often in mischief.done.items()})


def footing() -> tuple[int, int, int]:
    """Sockets, pipes and children of this process."""
    gc.collect()
    files = open_files(os.getpid())
    return files["socket"], files["pipe"], len(children(os.getpid()))


def shared_folders(pids: list[int]) -> set[Path]:
    """Those whose locks these processes hold."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            paths = [Path(os.readlink(each)) for each in Path(f"/proc/{pid}/fd").iterdir()]
            found |= {path.parent for path in paths if path.is_relative_to(MEMORY_FOLDER)}
    return found


def check_nothing_left(before: tuple[int, int, int], shared: set[Path]) -> None:
    """Of sockets, pipes, processes, threads and shared memory."""
    until_s = time.monotonic() + 60
    while footing() > before and time.monotonic() < until_s:
        time.sleep(0.2)
    assert footing() <= before, (before, footing())
    names = [thread.name for thread in threading.enumerate() if thread.name == "mesh"]
    assert not names, names
    left = [path for path in shared if path.exists()]
    assert not left, left


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
@pytest.mark.parametrize("seed", range(20))
def test_training_under_signals_comes_to_the_same(seed: int) -> None:
    round_of(seed)


if __name__ == "__main__":
    rounds, first, _ = asked()
    sys.exit(run_seeds(rounds, first, round_of, HANGS_S))
