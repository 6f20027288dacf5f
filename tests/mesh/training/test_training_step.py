"""The step of training as a program: how often ranks speak, in which buckets, and which rows are in which step."""

from __future__ import annotations

import contextlib
import io
import math
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import mesh.numpy as mnp
from mesh import DataParallel, DistributedTrainer, Mesh, distributed, nn, optim, random, trace_full
from mesh.errors import InputError
from mesh.training.data import ArrayData, BatchData, Cursor, Shares, padded
from mesh.training.gradient_exchange import buckets
from mesh.training.gradients import finite
from mesh.training.progress import Lines, NotebookBar, Progress, RichBar, StepReport
from mesh.training.step import first_state, training_step
from mesh.training.step_config import Recipe
from wire.ir.graph import WireGraph

RNG = np.random.default_rng(5)


def loss(params: Any, x: Any) -> Any:
    for leaf in params:
        x = mnp.tanh(x * mnp.astype(leaf, "float32"))
    return mnp.sum(x, axis=1)


def body_of(recipe: Recipe, params: Any, ranks: int, rows: int) -> WireGraph:
    """What each rank computes."""
    state = first_state(recipe, params, ranks)
    x, weights = np.ones((rows, 5), np.float32), np.full(rows, 1 / rows, np.float32)
    step = training_step(recipe, ranks, False, False)
    graph = trace_full(lambda state, x, weights: step(state, None, (x,), weights), state, x, weights).graph
    body = next(node for node in graph.nodes if node.op == "spmd").attrs["body"]
    assert isinstance(body, WireGraph)
    return body


def sums(body: WireGraph) -> list[int]:
    """The sizes of what is reduced, without the loss."""
    return [math.prod(body.types[i].shape) for i, node in enumerate(body.nodes)
            if node.op == "all_reduce" and body.types[i].shape]  # fmt: skip


@pytest.mark.parametrize("bucket_bytes", [64, 400, 4 << 20])
def test_a_hundred_small_tensors_travel_in_as_few_buckets_as_hold_their_bytes(bucket_bytes: int) -> None:
    params = [RNG.normal(size=(1, 5)).astype(np.float32) for _ in range(100)]
    recipe = Recipe(loss, optim.sgd(0.1), bucket_bytes=bucket_bytes)
    found = sums(body_of(recipe, params, 2, 4))
    scalars = 1 + 2  # the loss, and whether each rank's gradients are numbers
    assert len(found) == math.ceil((100 * 20 + 4 * scalars) / bucket_bytes) and sum(found) == 500 + scalars


def test_every_dtype_has_buckets_of_its_own() -> None:
    leaves = [np.zeros(10, np.float32), np.zeros(7, np.float16), np.zeros((3, 5), np.float32)]
    made = buckets(leaves, 80)
    assert [(bucket.dtype, bucket.size) for bucket in made] == [("float32", 20), ("float32", 5), ("float16", 7)]
    covered = sorted(piece for bucket in made for piece in bucket.pieces)
    assert covered == [(0, 0, 5), (0, 5, 10), (1, 0, 7), (2, 0, 15)]


def test_the_first_bucket_leaves_before_the_backward_pass_has_come_to_the_first_param() -> None:
    params = [RNG.normal(size=(1, 5)).astype(np.float32) for _ in range(6)]
    body = body_of(Recipe(loss, optim.sgd(0.1), bucket_bytes=20), params, 2, 4)

    def before(index: int) -> set[int]:
        seen, stack = set[int](), [index]
        while stack:
            for source in body.nodes[stack.pop()].inputs:
                if source not in seen:
                    seen.add(source)
                    stack.append(source)
        return seen

    reductions = [i for i, node in enumerate(body.nodes) if node.op == "all_reduce" and body.types[i].shape]
    needs = sorted(len(before(index)) for index in reductions)
    assert len(needs) == 7 and needs[0] < needs[-1], "not all wait for the same"


@pytest.mark.parametrize("accumulate", [2, 4])
def test_parts_of_a_batch_are_exchanged_once(accumulate: int) -> None:
    params = [RNG.normal(size=(1, 5)).astype(np.float32) for _ in range(3)]
    body = body_of(Recipe(loss, optim.sgd(0.1), accumulate=accumulate), params, 2, 8)
    assert len(sums(body)) == 1
    assert sum(node.op == "scan" for node in body.nodes) > 0


def test_parts_of_a_batch_equal_the_whole() -> None:
    x = RNG.normal(size=(24, 5)).astype(np.float32)
    params = [RNG.normal(size=(1, 5)).astype(np.float32) for _ in range(3)]
    found = []
    for accumulate in (1, 2, 3, 6):
        trainer = DistributedTrainer(loss, params, optimizer=optim.adam(1e-2), accumulate=accumulate)
        trainer.fit((x,), epochs=3, batch_size=12)
        found.append(np.concatenate([np.ravel(leaf) for leaf in trainer.params]))
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=0, atol=1e-5)


def test_clipping_bounds_the_global_norm() -> None:
    params = [np.ones((1, 5), np.float32)]
    trainer = DistributedTrainer(lambda p, x: mnp.sum(p[0] * x, axis=1), params, optimizer=optim.sgd(1.0), clip=0.5)
    trainer.fit((np.full((4, 5), 100, np.float32),), batch_size=4)
    assert np.linalg.norm(trainer.params[0] - 1) == pytest.approx(0.5, rel=1e-5)


def test_steps_of_the_optimiser_are_those_of_a_loop_by_hand() -> None:
    x, y = RNG.normal(size=(20, 3)).astype(np.float32), RNG.integers(0, 4, 20).astype(np.int32)
    params = {"w": RNG.normal(size=(3, 4)).astype(np.float32)}
    own = DistributedTrainer(
        lambda p, batch: nn.cross_entropy(batch["x"] @ p["w"], batch["y"]), params, optimizer=optim.sgd(0.5)
    )
    own.fit({"x": x, "y": y}, epochs=3, batch_size=20, shuffle=False)
    w = params["w"].astype(np.float64)
    for _ in range(3):
        scores = np.exp(x @ w)
        share = scores / scores.sum(1, keepdims=True)
        w -= 0.5 * x.T @ (share - np.eye(4)[y]) / 20
    np.testing.assert_allclose(own.params["w"], w, rtol=0, atol=1e-5)


def test_a_loss_that_wants_a_key_gets_another_one_every_step() -> None:
    def drawn(params: Any, x: Any, key: Any) -> Any:
        return params * 0 + random.uniform(key, (x.shape[0],))

    trainer = DistributedTrainer(drawn, np.float32(1), optimizer=optim.sgd(0.1))
    losses = trainer.fit((np.zeros((8, 1), np.float32),), epochs=4, batch_size=8).losses
    again = DistributedTrainer(drawn, np.float32(1), optimizer=optim.sgd(0.1))
    assert len(set(losses)) == 4
    assert again.fit((np.zeros((8, 1), np.float32),), epochs=4, batch_size=8).losses == losses


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"clip": -1.0}, "clip bounds"),
        ({"clip": 0}, "clip bounds"),
        ({"clip": float("nan")}, "clip bounds"),
        ({"optimizer": "adam"}, "'adam' is no optimiser"),
        ({"params": {"w": np.arange(3)}}, "param 'w' is int64"),
        ({"loss": 3}, "a loss is a function"),
        ({"loss": lambda params, x: (loss(params, x), 3)}, "gives a tuple"),
        ({"loss": lambda params, x: None}, "gives a NoneType"),
        ({"batch_size": 1.5}, "batch_size is an int of at least 1, not 1.5"),
        ({"epochs": 0.5}, "epochs is an int"),
        ({"steps": -1}, "steps is an int"),
        ({"callbacks": [print]}, "is no callback"),
    ],
)
def test_wrong_arguments_are_named(wrong: dict[str, Any], said: str) -> None:
    own = {name: wrong[name] for name in ("clip", "optimizer") if name in wrong}
    rest = {name: value for name, value in wrong.items() if name not in {*own, "params", "loss"}}

    def train() -> None:
        found = DistributedTrainer(wrong.get("loss", loss), wrong.get("params", [np.ones((1, 5), np.float32)]), **own)
        found.fit((np.ones((4, 5), np.float32),), **rest)

    with pytest.raises(InputError, match=said):
        train()


def test_a_pipeline_s_micro_batches_are_not_called_accumulation() -> None:
    with pytest.raises(InputError, match="stages of a pipeline exchange no shards"):
        Recipe(loss, optim.sgd(0.1), shards=8, accumulate=2, staged=True)


# -- data


@pytest.mark.parametrize("shuffle", [True, False])
def test_every_row_is_in_one_step_of_every_epoch(shuffle: bool) -> None:
    data = ArrayData((np.arange(53),), 16, shuffle, 0, False)
    epochs = [[step.batch[0] for step in data.epoch(Cursor(epoch))] for epoch in range(3)]
    for steps in epochs:
        assert [len(step) for step in steps] == [16, 16, 16, 5]
        assert sorted(np.concatenate(steps)) == list(range(53))
    assert np.array_equal(np.concatenate(epochs[0]), np.concatenate(epochs[1])) is not shuffle


def test_a_cursor_goes_on_where_it_was() -> None:
    data = ArrayData((np.arange(53),), 16, True, 0, False)
    whole = list(data.epoch(Cursor(2)))
    assert [step.after for step in whole] == [Cursor(2, 1), Cursor(2, 2), Cursor(2, 3), Cursor(3)]
    rest = list(data.epoch(Cursor(2, 2)))
    assert all(np.array_equal(one.batch[0], other.batch[0]) for one, other in zip(rest, whole[2:], strict=True))
    batches = BatchData([np.arange(4), np.arange(4), np.arange(2)])
    assert [step.counted for step in batches.epoch(Cursor(0, 1))] == [4, 2]


@pytest.mark.parametrize(("shards", "ranks"), [(8, 1), (8, 2), (8, 3), (8, 5), (0, 1), (0, 3)])
def test_padding_weighs_nothing_and_shards_have_the_same_rows_whoever_computes_them(shards: int, ranks: int) -> None:
    recipe = Recipe(loss, optim.sgd(0.1), shards=shards)
    data = ArrayData((np.arange(100, 121),), 16, False, 0, False)
    for rows in data.epoch(Cursor()):
        shares = Shares.of(recipe, ranks, 16)
        (found,), weights = padded(rows, shares)
        assert len(found) == len(weights) == shares.slots and len(found) % ranks == 0
        assert np.array_equal(found[weights > 0], rows.batch[0])
        assert weights.sum() == pytest.approx(1) and set(found[weights == 0]) <= {rows.batch[0][0]}
        if shards:
            assert np.array_equal(found[:16], padded(rows, Shares.of(recipe, 1, 16))[0][0])


def test_data_that_are_none_are_refused() -> None:
    for wrong in (iter([np.zeros(3)]), [], 3):
        with pytest.raises(InputError):
            DistributedTrainer(loss, [np.ones((1, 5), np.float32)]).fit(wrong)


def test_data_with_fewer_batches_than_were_done_of_the_epoch_begin_the_next_one() -> None:
    trainer = DistributedTrainer(loss, [np.ones((1, 5), np.float32)])
    trainer.fit((RNG.normal(size=(40, 5)).astype(np.float32),), batch_size=4, steps=7)
    fewer = RNG.normal(size=(12, 5)).astype(np.float32)
    assert len(trainer.fit((fewer,), batch_size=4).losses) == 3
    assert len(trainer.fit((fewer,), batch_size=4, steps=2).losses) == 2
    assert len(trainer.fit([(fewer,)], epochs=2).losses) == 1  # the rest of one epoch, of which nothing is left


def test_batches_that_can_be_iterated_once_are_named() -> None:
    class Once:
        def __init__(self) -> None:
            self.turns = 0

        def __iter__(self) -> Any:
            self.turns += 1
            return iter([(np.ones((2, 5), np.float32),)] * (self.turns < 3))  # one look, and one epoch

    with pytest.raises(InputError, match="no batch in epoch 1"):
        DistributedTrainer(loss, [np.ones((1, 5), np.float32)]).fit(Once(), epochs=2)


def test_a_run_that_waits_for_workers_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    shown = Progress(None)
    shown.on_workers(2)
    assert not capsys.readouterr().err
    shown.on_workers(0)
    assert "waiting for more" in capsys.readouterr().err


@pytest.mark.parametrize(("shares", "said"), [({"a": 48, "b": 16}, "2 workers (a 48, b 16 rows)"), ({}, "2 workers")])
def test_progress_says_who_has_how_many_rows(shares: Any, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    Progress(1).on_step(StepReport(1, 0, 0.5, 1.0, False, 64, 2, 100, shares))
    assert capsys.readouterr().err.strip().endswith(said)


REPORT = StepReport(1, 0, 0.5, 1.0, False, 64, 2, 100, {"a[b]": 48, "b": 16})


def test_a_terminal_gets_a_bar_with_the_latest_step(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "150")
    shown = Progress(1)
    assert isinstance(shown._display, RichBar)
    shown.on_workers(0)
    shown.on_step(REPORT)
    shown.close()
    text = terminal.getvalue()
    assert "waiting for more" in text and "loss 0.5" in text and "(a[b] 48, b 16 rows)" in text and "\x1b" in text


@pytest.mark.parametrize("display", [Lines, RichBar, NotebookBar])
def test_a_run_goes_on_where_the_terminal_of_its_progress_is_gone(
    display: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pty = pytest.importorskip("pty")
    terminal, writer = pty.openpty()
    gone = os.fdopen(writer, "w", buffering=1)
    monkeypatch.setattr(sys, "stderr", gone)
    shown = Progress(1, display() if display is Lines else display(1))
    os.close(terminal)
    shown.on_workers(0)
    shown.on_step(REPORT)
    shown.close()
    monkeypatch.undo()
    assert [record.message for record in caplog.records if "shown no longer" in record.message]
    with contextlib.suppress(OSError):
        gone.close()


class OnlyWritten:
    """What a program that logs all it prints may put in the place of stderr."""

    def write(self, text: str) -> None: ...


def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stderr", [None, OnlyWritten(), closed()], ids=["none", "no file", "closed"])
def test_a_run_without_a_stderr_to_show_its_progress_on_is_made_all_the_same(
    stderr: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = DistributedTrainer(lambda w, x: (w * x) ** 2, np.float32(3), optimizer=optim.sgd(0.1))
    monkeypatch.setattr(sys, "stderr", stderr)
    history = trainer.fit(np.ones(4, np.float32), progress=True)
    monkeypatch.undo()
    assert len(history.losses) == 1 and not capsys.readouterr().out, "what is for stderr is not printed elsewhere"


def test_what_a_library_raises_that_draws_progress_costs_the_progress_alone(caplog: pytest.LogCaptureFixture) -> None:
    class Refused(Exception):
        """As rich.errors.LiveError: before rich 14.1 a program could have one bar at a time."""

    class Display(Lines):
        pause_s = 0.0

        def show(self, done: int, line: str) -> None:
            raise Refused("Only one live display may be active at once")

    shown = Progress(1, Display())
    shown.on_step(REPORT)
    shown.on_step(REPORT)
    shown.close()
    assert [record.message for record in caplog.records if "shown no longer" in record.message], "and is told once"


def test_a_notebook_gets_the_bar_of_tqdm_where_it_is_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tqdm")
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    shown = Progress(1)
    assert isinstance(shown._display, NotebookBar)
    shown.on_step(REPORT)
    shown.on_workers(0)
    shown.close()
    text = capsys.readouterr().err
    assert "loss 0.5" in text and "1/1" in text and "waiting for more" in text
    monkeypatch.setattr("mesh.training.progress.find_spec", lambda name: None)
    assert isinstance(Progress(1)._display, Lines)


# -- the decorator


def test_a_function_with_a_strategy_runs_here_and_on_workers() -> None:
    @distributed(strategy=DataParallel(inputs=("x",)))
    def predict(w: Any, x: Any) -> Any:
        return mnp.tanh(x @ w)

    w, x = RNG.normal(size=(4, 3)).astype(np.float32), RNG.normal(size=(6, 4)).astype(np.float32)
    alone = np.asarray(predict(w, x))
    with Mesh.builder().mesh("sim").simulate(2).build() as mesh:
        there = np.asarray(predict(w, x))
        assert len(mesh.report().workers) == 2
    np.testing.assert_allclose(there, alone, rtol=0, atol=1e-6)
    np.testing.assert_allclose(alone, np.tanh(x @ w), rtol=0, atol=1e-6)
    with pytest.raises(InputError, match="not known"):
        distributed(strategy="nonsense")


@pytest.mark.parametrize(
    ("leaves", "finite_expected"),
    [
        ([np.ones((3, 4), np.float32), np.float32(7)], True),
        ([np.full(9, 60_000, np.float16), np.full(9, -1e30, np.float32)], True),
        ([np.ones(5, np.float32), np.array([1, np.nan, 2], np.float32)], False),
        ([np.array([np.inf, -np.inf], np.float32)], False),
        ([np.array([np.inf], np.float32), np.array([-np.inf], np.float64)], False),
        ([np.array([1, -np.inf], np.float16), np.full((2, 2), 1e200)], False),
    ],
)
def test_one_number_that_is_none_is_found_in_the_sum_of_all(leaves: list[Any], finite_expected: bool) -> None:
    assert bool(finite(leaves)) is finite_expected
