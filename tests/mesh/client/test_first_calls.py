"""What belongs to the first call is not done at the next: nothing is traced and compiled twice, and nothing stays that
belongs to what is gone."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest

import mesh
import mesh.numpy as mnp
from mesh import Mesh
from mesh.core.inprocess import EXECUTABLES
from mesh.models.model import InputSpec, Model
from wire.ir.dtypes import F32, I32

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
W = np.arange(6, dtype=np.float32).reshape(3, 2)
BIG = np.arange(1 << 16, dtype=np.float32)  # a large constant


@dataclass
class Traced:
    """A model of any number of rows, and a function, which both note what they were traced for."""

    shapes: list[tuple[int, ...]] = field(default_factory=list)

    def function(self, w: Any, x: Any) -> Any:
        self.shapes.append(x.shape)
        return mnp.tanh(x @ w)

    def model(self) -> Model:
        def apply(params: Mapping[str, Any], inputs: Mapping[str, Any]) -> Mapping[str, Any]:
            times = int(inputs["times"][0]) if "times" in inputs else 1
            return {"y": self.function(params["w"], inputs["x"]) * times}

        inputs = [InputSpec("x", F32, ("rows", 3)), InputSpec("times", I32, (1,), static=True, optional=True)]
        return Model("counted", apply, inputs, ["y"], {"w": W})


@pytest.fixture(scope="module")
def simulated() -> Iterator[Mesh]:
    made = Mesh.builder().simulate(1).build()  # and not in use: functions are computed in this process
    yield made
    made.close()


def of_function(traced: Traced, made: Mesh) -> Callable[[Any], Any]:
    called = mesh.function(traced.function)
    return lambda x: called(W, x)


def of_compile(traced: Traced, made: Mesh) -> Callable[[Any], Any]:
    called = made.compile(traced.function, W, X, mode="off")
    return lambda x: called(W, x)


def of_compiled_model(traced: Traced, made: Mesh) -> Callable[[Any], Any]:
    return made.compile(traced.model(), X, mode="off")


def of_run(traced: Traced, made: Mesh) -> Callable[[Any], Any]:
    model = traced.model()
    return lambda x: made.run(model, x, mode="off")


def of_submit(traced: Traced, made: Mesh) -> Callable[[Any], Any]:
    model = traced.model()
    return lambda x: made.submit(model, x, mode="off").result(timeout_s=60)


def of_run_on_workers(traced: Traced, made: Mesh) -> Callable[[Any], Any]:
    model = traced.model()
    return lambda x: made.run(model, x, mode="on")


@pytest.mark.parametrize(
    "calls",
    [of_function, of_compile, of_compiled_model, of_run, of_submit, of_run_on_workers],
    ids=lambda c: c.__name__,
)
def test_the_second_call_traces_and_compiles_nothing(calls: Any, simulated: Mesh) -> None:
    traced = Traced()
    call = calls(traced, simulated)
    np.testing.assert_allclose(call(X), np.tanh(X @ W), rtol=1e-6)
    compiled = EXECUTABLES.compiled
    for turn in range(1, 4):
        np.testing.assert_allclose(call(X * turn), np.tanh(X * turn @ W), rtol=1e-6)
    assert (traced.shapes, EXECUTABLES.compiled) == ([(4, 3)], compiled)
    assert np.asarray(call(X[:2])).shape == (2, 2)
    assert traced.shapes == [(4, 3), (2, 3)], "other shapes are another graph"


def test_what_run_traces_anew_is_not_compiled_anew(simulated: Mesh) -> None:
    traced = Traced()
    simulated.run(traced.function, W, X, mode="off")
    compiled = EXECUTABLES.compiled
    simulated.run(traced.function, W, X + 1, mode="off")
    assert (traced.shapes, EXECUTABLES.compiled) == ([(4, 3)] * 2, compiled)


def test_what_is_forced_is_compiled_anew_once(simulated: Mesh) -> None:
    def program(w: Any, x: Any) -> Any:
        return mnp.tanh(x @ w)

    simulated.compile(program, W, X, mode="off")(W, X)
    compiled = EXECUTABLES.compiled
    forced = simulated.compile(program, W, X, mode="off", force=True)
    for turn in range(1, 4):
        np.testing.assert_allclose(forced(W, X * turn), np.tanh(X * turn @ W), rtol=1e-6)
    assert EXECUTABLES.compiled == compiled + 1


def test_a_function_that_refers_to_something_else_now_is_run_as_it_is_now(simulated: Mesh) -> None:
    factor = 1.0

    def scaled(x: Any) -> Any:
        return x * factor

    for factor in (2.0, 3.0):  # what `scaled` refers to
        np.testing.assert_array_equal(simulated.run(scaled, X, mode="off"), X * np.float32(factor))


def test_other_values_of_a_static_input_are_another_graph(simulated: Mesh) -> None:
    traced = Traced()
    model = traced.model()
    for times in (2, 3, 2):
        found = simulated.run(model, X, [times], mode="off")
        np.testing.assert_allclose(found, np.tanh(X @ W) * times, rtol=1e-6)
    assert len(traced.shapes) == 2


def test_a_model_with_other_weights_has_these(simulated: Mesh) -> None:
    model = Traced().model()
    simulated.run(model, X, mode="off")
    found = simulated.run(model.trained({"w": W + 1}), X, mode="off")
    np.testing.assert_allclose(found, np.tanh(X @ (W + 1)), rtol=1e-6)


def test_a_model_that_nothing_is_kept_of_is_traced_anew(simulated: Mesh) -> None:
    traced = Traced()
    call = simulated.compile(traced.model(), X, mode="off", cache=False)
    call(X)
    assert len(traced.shapes) == 2


@pytest.mark.filterwarnings("ignore:.*large constants")
def test_what_was_compiled_goes_with_its_function() -> None:
    gc.collect()
    alive = len(EXECUTABLES)
    called = mesh.function(partial(mnp.add, BIG))
    np.testing.assert_array_equal(called(BIG), BIG * 2)
    assert len(EXECUTABLES) == alive + 1
    del called
    gc.collect()
    assert len(EXECUTABLES) == alive


def test_a_model_that_is_gone_leaves_nothing(simulated: Mesh) -> None:
    model = Traced().model()
    simulated.run(model, X, mode="off")
    kept = [weakref.ref(each) for each in (model, model.handles["w"], model.graph(model.given([X])))]
    simulated.run(lambda x: x, X, mode="off")  # a report is of the last call
    del model
    gc.collect()
    assert [each() for each in kept] == [None] * 3


def test_threads_that_call_at_once_all_have_their_own() -> None:
    called, found, errors = mesh.function(lambda x: mnp.cumsum(x * 7, axis=0)), {}, []
    begin = threading.Barrier(6)

    def call(number: int) -> None:
        begin.wait()
        try:
            for rows in (1, 2, 3):
                found[number, rows] = np.asarray(called(np.full((rows, 2), number, np.float32)))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not errors
    for (number, rows), array in found.items():
        np.testing.assert_array_equal(array, 7 * number * np.arange(1, rows + 1)[:, None] * np.ones(2))
