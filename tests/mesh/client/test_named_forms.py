"""What is written down of a step, so that another program can go on with its session; and who may have a name."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest

import mesh.numpy as mnp
from mesh import Mesh
from mesh.functions.step_trace import Stepping
from wire.errors import ConfigError, InputError


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Layer:
    w: Any
    activation: Any = field(default=mnp.tanh, metadata={"static": True})


STATE = {
    "layer": Layer(np.ones((3, 3), np.float32)),
    "pair": Pair(np.zeros(2, np.float32), None),
    "more": OrderedDict(count=np.int32(0)),
    "fixed": [np.full(3, 2.0, np.float32)],
}


def step(state: Any, x: Any, rate: float = 0.5, *, shift: Any) -> Any:
    layer = Layer(state["layer"].w + rate, state["layer"].activation)
    y = layer.activation(x @ state["layer"].w + state["fixed"][0]) + shift
    pair = Pair(state["pair"].left + y[:2], None)
    more = OrderedDict(count=state["more"]["count"] + 1)
    return {"layer": layer, "pair": pair, "more": more, "fixed": state["fixed"]}, {"y": y, "n": (more["count"],)}


def other(state: Any, x: Any, rate: float = 0.5, *, shift: Any) -> Any:
    following, outputs = step(state, x, rate, shift=shift)
    return following, {**outputs, "y": outputs["y"] + 1}


def traced() -> Stepping:
    with Mesh.builder().build() as m:
        opened = m.session(step, STATE, np.ones(3, np.float32), 0.25, shift=np.float32(1), mode="off")
        return opened._async.stepping


def test_another_program_takes_arguments_and_gives_outputs_as_the_first_one_did() -> None:
    first = traced()
    again = Stepping.of_form(first.form, first.graph, "auto")
    (fixed,) = again.fixed
    again.fix({fixed: STATE["fixed"][0]})
    args = again.merge_arguments((np.full(3, 4, np.float32),), {"shift": np.float32(2), "rate": 0.5})
    inputs, wanted = again.bind(args), first.bind(args)
    assert inputs.keys() == wanted.keys() and all(np.array_equal(inputs[name], wanted[name]) for name in wanted)
    assert (again.carries, again.returned_count, again.paths) == (first.carries, first.returned_count, first.paths)
    carried = {name: np.zeros(first.graph.param_types[name].shape) for name, _ in first.carries}
    state = again.state(carried, {})
    assert isinstance(state["layer"], Layer) and state["layer"].activation is mnp.tanh
    assert isinstance(state["pair"], Pair) and type(state["more"]) is OrderedDict and state["fixed"][0][0] == 2.0
    outputs = again.outputs([np.zeros(1), np.zeros(2)])
    assert outputs.keys() == {"y", "n"} and isinstance(outputs["n"], tuple)
    with pytest.raises(InputError, match="the argument 'x'"):
        again.bind(again.merge_arguments((np.zeros(4, np.float32), 0.5), {"shift": np.float32(2)}))
    with pytest.raises(InputError, match="of step is missing"):
        again.bind(again.merge_arguments((), {}))


def test_a_function_that_is_given_has_to_give_the_same_graph() -> None:
    first = traced()
    again = Stepping.of_form(first.form, first.graph, "auto")
    again.check_same(step)
    with pytest.raises(InputError, match="opened with another step function than other"):
        again.check_same(other)


def test_what_the_other_program_has_not_imported_is_named() -> None:
    first = traced()
    form = first.form.replace(b"test_named_forms:Pair", b"their_program:Pair")
    with pytest.raises(InputError, match=r"Import \S*their_program before you attach"):
        Stepping.of_form(form, first.graph, "auto")


@pytest.mark.parametrize("spoil", [lambda data: b"{", lambda data: b"[]", lambda data: b"{}", lambda data: data[:-9]])
def test_what_is_no_form_is_refused(spoil: Any) -> None:
    first = traced()
    with pytest.raises(InputError, match="written down"):
        Stepping.of_form(spoil(first.form), first.graph, "auto")


@pytest.mark.parametrize("name", ["fn", "leaves", "arguments", "structure", "in", "out", "examples"])
def test_a_form_without_a_field_is_refused(name: str) -> None:
    first = traced()
    fields = json.loads(first.form)
    del fields[name]
    with pytest.raises(InputError, match="cannot be read"):
        Stepping.of_form(json.dumps(fields).encode(), first.graph, "auto")


def test_a_tensor_that_no_worker_has_cannot_be_in_the_state() -> None:
    def forgets(state: Any, x: Any) -> Any:
        return {"sum": state["sum"] + x, "last": x * 2}, None

    with Mesh.builder().build() as m:
        state = {"sum": np.float32(0), "last": np.float32(0)}
        session = m.session(forgets, state, np.float32(1), mode="off")
        with pytest.raises(InputError, match="no step reads 'last' of the state"):
            _ = session._async.stepping.form


def test_a_class_of_a_function_cannot_be_looked_up() -> None:
    @dataclass
    class Inner:
        x: Any

    with Mesh.builder().build() as m:
        session = m.session(lambda s, x: (Inner(s.x + x), s.x), Inner(np.float32(0)), np.float32(1), mode="off")
        with pytest.raises(InputError, match="another program cannot look up"):
            _ = session._async.stepping.form


def test_a_name_needs_a_coordinator_that_stays() -> None:
    def count(state: Any, x: Any) -> Any:
        return state + x, state

    one = np.float32(1)
    with Mesh.builder().simulate(1).build() as m:
        for mode in ("auto", "off"):
            with pytest.raises(ConfigError, match="outlasts this program"):
                m.session(count, one, one, name="run7", mode=mode)
        with pytest.raises(ConfigError, match="Start mesh-coord serve"):
            m.attach("run7")
        for name in ("", "a b", "-x", "x" * 101, 7):
            with pytest.raises(InputError, match="is no name of a session"):
                m.attach(name)  # type: ignore[arg-type]
        with m.session(count, one, one) as session:
            with pytest.raises(InputError, match="cannot be left"):
                session.detach()
            session.step(one).result()
            assert (session.steps_done, session.name) == (1, "")
