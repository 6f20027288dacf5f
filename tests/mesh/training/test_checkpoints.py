"""Checkpoints: whole or not there, whatever the disk does and whenever the process dies."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.cases.training import first_state

import mesh.numpy as mnp
from mesh import DistributedTrainer, optim, tree
from mesh.errors import InputError, StorageError
from mesh.training import Checkpoints
from mesh.training.data import Cursor
from wire.system.atomic_files import Disk

STATE = {"params": [np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(3, ml_dtypes.bfloat16)], "step": np.int32(4)}
X = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
Y = np.sin(X[:, :4])


def saved(folder: Path, *steps: int, keep: int = 3) -> Checkpoints:
    store = Checkpoints(folder, keep)
    for step in steps:
        store.save(step, Cursor(1, step), STATE, {"seed": 7})
    return store


def test_a_folder_that_the_disk_does_not_read_is_not_taken_for_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def glob(folder: Path, pattern: str) -> Any:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "glob", glob)
    with pytest.raises(StorageError, match=r"the checkpoints in .* cannot be read.*Input/output error"):
        saved(tmp_path).steps()


def make_unreadable(file: Path) -> None:
    """Have the system refuse to read a file, as it does where the disk is broken or the file is another user's."""
    file.unlink()
    file.symlink_to("/proc/self/mem")  # whose first page no process has: Input/output error


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="no file here is there and cannot be read")
@pytest.mark.parametrize("kind", ["json", "safetensors"])
def test_whoever_resumes_does_not_begin_anew_beside_checkpoints_that_cannot_be_read(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = saved(tmp_path, 1, 2)
    make_unreadable(tmp_path / f"step-0000000002.{kind}")
    found = store.latest()
    assert found is not None and found.step == 1, "the one before it is whole"
    assert "step-0000000002.json cannot be read" in caplog.text
    make_unreadable(tmp_path / f"step-0000000001.{kind}")
    with pytest.raises(StorageError, match=r"the checkpoint .*step-\d{10}.json cannot be read.*Input/output error"):
        store.latest()
    trainer = DistributedTrainer(lambda w, x: (w * x) ** 2, np.float32(3), optimizer=optim.sgd(0.1))
    with pytest.raises(StorageError):
        trainer.fit(X, batch_size=8, checkpoint=tmp_path)
    assert trainer.step == 0 and sorted(store.steps()) == [1, 2]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="no file here is there and cannot be read")
@pytest.mark.parametrize("kind", ["json", "safetensors"])
def test_one_that_cannot_be_read_is_not_removed_before_it_is_known_to_be_old(tmp_path: Path, kind: str) -> None:
    store = saved(tmp_path, 1, 2, 3, keep=3)
    file = tmp_path / f"step-0000000003.{kind}"
    kept = file.read_bytes()
    make_unreadable(file)
    saved(tmp_path, 4, keep=3)
    assert 3 in store.steps() and file.is_symlink()
    if kind == "json":
        saved(tmp_path, 5, 6, 7, keep=3)
        assert store.steps() == [3, 7, 6, 5] and (tmp_path / "step-0000000003.safetensors").exists()
    file.unlink()
    file.write_bytes(kept)
    found = store.load(3)
    assert found.step == 3


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    found = saved(tmp_path, 3).latest()
    assert found is not None
    assert (found.step, found.cursor, found.about) == (3, Cursor(1, 3), {"seed": 7})
    assert sorted(found.state) == ["params/0", "params/1", "step"]
    for path, leaf in tree.flatten_with_paths(STATE)[0]:
        assert np.array_equal(found.state[path], leaf) and found.state[path].dtype == np.asarray(leaf).dtype
    manifest = json.loads((tmp_path / "step-0000000003.json").read_text())
    assert manifest["tensors"]["params/0"] == ["float32", [2, 3]]


def test_the_last_ones_are_kept_and_rubbish_is_not(tmp_path: Path) -> None:
    (tmp_path / "step-0000000001.safetensors.writing").write_bytes(b"half")
    store = saved(tmp_path, 1, 2, 3, 4, keep=2)
    assert store.steps() == [4, 3]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"step-000000000{step}.{kind}" for step in (3, 4) for kind in ("json", "safetensors")
    ]


def test_those_of_the_run_that_saved_last_are_kept_and_taken_whatever_their_steps(tmp_path: Path) -> None:
    assert saved(tmp_path, 40, 50, 60).steps() == [60, 50, 40]
    for path in tmp_path.glob("*40.json"):  # as versions wrote it that did not count
        path.write_text(
            json.dumps({name: each for name, each in json.loads(path.read_text()).items() if name != "saved"})
        )
    assert saved(tmp_path, 10, keep=3).steps() == [10, 60, 50]
    store = saved(tmp_path, 20, 60, 30)
    newest = store.latest()
    assert store.steps() == [30, 60, 20] and newest is not None and newest.step == 30


@pytest.mark.parametrize("steps", [30, 60])
def test_fitting_anew_in_a_used_folder_keeps_its_own(tmp_path: Path, steps: int) -> None:
    def fit(steps: int, every: int, **how: Any) -> Any:
        trainer = DistributedTrainer(linear, {"w": np.ones((8, 4), np.float32)}).distribute(None)
        trainer.fit((X, Y), batch_size=8, epochs=1000, steps=steps, checkpoint=tmp_path, every=every, **how)
        return trainer.params["w"]

    fit(60, 10)
    assert Checkpoints(tmp_path).steps() == [60, 50, 40]
    anew = fit(steps, 100, resume=False, shuffle=False)
    assert Checkpoints(tmp_path).steps()[0] == steps
    assert np.array_equal(fit(0, 100), anew), "what goes on goes on from the run that was here last"
    fit(35, 10, resume=False)
    assert Checkpoints(tmp_path).steps() == [35, 30, 20]


def linear(params: Any, x: Any, y: Any) -> Any:
    return ((x @ params["w"] - y) ** 2).mean()


@pytest.mark.parametrize("part", ["json", "safetensors"])
def test_a_damaged_one_is_passed_over_byte_by_byte(tmp_path: Path, part: str) -> None:
    store = saved(tmp_path, 1, 2)
    path = tmp_path / f"step-0000000002.{part}"
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        found = store.latest()
        assert found is not None and found.step == 1
    with pytest.raises(InputError):
        store.load(2)


class Failing(Disk):
    """Refuses its nth step."""

    def __init__(self, nth: int) -> None:
        self.left = nth

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise OSError("no space left on device")

    def write(self, *args: Any) -> None:
        self._count()
        super().write(*args)

    def sync(self, *args: Any) -> None:
        self._count()
        super().sync(*args)

    def replace(self, *args: Any) -> None:
        self._count()
        super().replace(*args)

    def sync_folder(self, *args: Any) -> None:
        self._count()
        super().sync_folder(*args)


def test_a_disk_that_refuses_any_step_leaves_the_one_before(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    nth = 0
    while True:
        nth += 1
        try:
            Checkpoints(tmp_path, disk=Failing(nth)).save(2, Cursor(2, 0), STATE, {})
            break
        except StorageError:
            found = Checkpoints(tmp_path).latest()
            assert found is not None
            if found.step == 2:  # only the folder was not synchronised
                assert nth > 6
            for path in tmp_path.glob("step-0000000002*"):
                path.unlink()
    assert nth > 6
    assert Checkpoints(tmp_path).steps() == [2, 1]


WRITER = """
import sys, numpy as np
from mesh.training import Checkpoints
from mesh.training.data import Cursor
store, step = Checkpoints(sys.argv[1]), 0
while True:
    step += 1
    store.save(step, Cursor(0, step), {"w": np.full((300, 300), step, np.float32)}, {})
    print(step, flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no kill -9")
def test_kill_9_while_writing_leaves_a_whole_one(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        steps = [int(writer.stdout.readline()) for _ in range(20)]
        os.kill(writer.pid, signal.SIGKILL)
        steps += [int(line) for line in writer.stdout if line.endswith("\n")]
    found = Checkpoints(tmp_path).latest()
    assert found is not None and found.step >= steps[-1]
    assert np.array_equal(found.state["w"], np.full((300, 300), found.step, np.float32))


def loss(params: Any, x: Any, y: Any) -> Any:
    for layer in params[:-1]:
        x = mnp.tanh(x @ layer["w"] + layer["b"])
    return mnp.mean((x @ params[-1]["w"] + params[-1]["b"] - y) ** 2, axis=1)


def trainer(**wishes: Any) -> DistributedTrainer:
    return DistributedTrainer(loss, first_state()["layers"], optimizer=optim.adam(1e-2), **wishes)


def test_a_run_goes_on_from_its_checkpoint_to_the_same_bits(tmp_path: Path) -> None:
    whole = trainer()
    expected = whole.fit((X, Y), epochs=3, batch_size=16).losses
    first = trainer().fit((X, Y), epochs=3, batch_size=16, steps=5, checkpoint=tmp_path, every=2, keep=2)
    assert Checkpoints(tmp_path).steps() == [5, 4]
    again = trainer()
    rest = again.fit((X, Y), epochs=3, batch_size=16, checkpoint=tmp_path, every=2)
    assert first.losses + rest.losses == expected and again.step == 9
    assert all(map(np.array_equal, tree.leaves(again.params), tree.leaves(whole.params)))
    assert again.fit((X, Y), epochs=3, batch_size=16, checkpoint=tmp_path).losses == [], "all is done"


def test_a_trainer_goes_back_to_an_earlier_checkpoint_where_it_is_told_to(tmp_path: Path) -> None:
    own = trainer()
    own.fit((X, Y), epochs=2, batch_size=16, steps=2)
    own.save(tmp_path)
    rest = own.fit((X, Y), batch_size=16, steps=1).losses
    assert own.load(tmp_path) and own.step == 2
    assert own.fit((X, Y), batch_size=16, steps=1).losses == rest


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    trainer().save(tmp_path)
    other = DistributedTrainer(loss, first_state()["layers"], optimizer=optim.sgd(0.1, momentum=0.9))
    with pytest.raises(InputError, match="optimiser/0"):
        other.load(tmp_path)
    assert not trainer().load(tmp_path / "nowhere")


@pytest.mark.parametrize("compression", ["f16", "int8"])
def test_a_trainer_that_compresses_goes_on_from_what_one_worker_saved(tmp_path: Path, compression: str) -> None:
    """It has nothing unsent, and an own checkpoint was refused for that."""

    def trainer() -> DistributedTrainer:
        return DistributedTrainer(linear, {"w": np.ones((8, 4), np.float32)}, compression=compression, seed=3)

    whole, first, second = trainer(), trainer(), trainer()
    whole.fit((X, Y), batch_size=8, epochs=4)
    first.fit((X, Y), batch_size=8, epochs=2)
    first.save(tmp_path)
    assert second.load(tmp_path) and second.step == 10
    second.fit((X, Y), batch_size=8, epochs=2)
    assert np.array_equal(whole.params["w"], second.params["w"])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tensors", 5), ("tensors", None), ("about", 5), ("cursor", {"epoch": "x", "batch": None}), ("cursor", []),
        ("cursor", {"epoch": -1, "batch": 0}), ("sha256", 5), ("format", "x"), ("saved", math.inf),
    ],
)  # fmt: skip
def test_a_manifest_that_says_something_else_is_passed_over(name: str, said: Any, tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    store.save(1, Cursor(0, 1), {"w": np.ones(2)}, {})
    path = store.save(2, Cursor(0, 2), {"w": np.ones(2)}, {})
    path.write_text(json.dumps({**json.loads(path.read_text()), name: said}))
    latest = store.latest()
    assert latest is not None and latest.step == 1
    if name != "saved":
        with pytest.raises(InputError, match="step-0000000002"):
            store.load(2)


def test_what_is_no_manifest_is_passed_over(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    store.save(1, Cursor(0, 1), {"w": np.ones(2)}, {})
    (tmp_path / "step-\N{SUPERSCRIPT TWO}.json").write_text("{}")
    (tmp_path / "step-0000000002.json").write_text("[" * 100_000)
    assert (store.steps(), store.latest().step) == ([1, 2], 1)  # type: ignore[union-attr]


@pytest.mark.parametrize("folder", ["x" * 300, "a\0b"])
def test_a_folder_that_cannot_be_holds_nothing_and_takes_nothing(folder: str) -> None:
    store = Checkpoints(folder)
    assert store.latest() is None
    with pytest.raises(StorageError, match="could not be written"):
        store.save(1, Cursor(0, 1), {"w": np.ones(2)}, {})


def test_notes_that_json_does_not_have_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="JSON's kinds"):
        Checkpoints(tmp_path).save(1, Cursor(0, 1), {"w": np.ones(2)}, {"seed": object()})
    assert list(tmp_path.iterdir()) == []
