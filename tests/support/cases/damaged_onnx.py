"""ONNX models with one thing wrong, made of the backend tests of the package `onnx`."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from support.cases.onnx_cases import Case, array, cases, listed


def damaged(seed: int) -> tuple[str, Any, dict[str, NDArray[Any]]]:
    """What was done to which case, the model, and inputs by name."""
    chance = random.Random(seed)
    known = [case for case in cases("node") if case.name not in listed()]
    case = chance.choice(known)
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    done = []
    if model.graph.node:
        damage = chance.choice(DAMAGES)
        damage(chance, model, chance.choice(model.graph.node), known)
        done.append(damage.__name__)
    inputs = zip(case.model.graph.input, case.rounds[0][0], strict=False)
    named = {declared.name: array(value) for declared, value in inputs}
    if named and chance.random() < 0.3:
        name = chance.choice(sorted(named))
        if named[name].dtype.kind in "iu":
            number = chance.choice([0, 1, 3, 17] if named[name].dtype.kind == "u" else [-5, 0, 1, 3, 17])
            named[name] = np.full_like(named[name], number)
            done.append(f"{name} = {number}")
    return f"seed {seed}, {case.name}: {', '.join(done)}", model, named


def _inputs_cut(chance: random.Random, model: Any, node: Any, known: Sequence[Case]) -> None:
    if node.input:
        del node.input[chance.randrange(len(node.input)) :]


def _input_exchanged(chance: random.Random, model: Any, node: Any, known: Sequence[Case]) -> None:
    if node.input:
        names = [each.name for each in model.graph.input] or [""]
        node.input[chance.randrange(len(node.input))] = chance.choice(names)


def _attribute_lost(chance: random.Random, model: Any, node: Any, known: Sequence[Case]) -> None:
    if node.attribute:
        del node.attribute[chance.randrange(len(node.attribute))]


def _attribute_changed(chance: random.Random, model: Any, node: Any, known: Sequence[Case]) -> None:
    if node.attribute:
        attribute = chance.choice(node.attribute)
        attribute.i = chance.choice([-100, -1, 0, 1, 2, 7, 100])
        attribute.ints[:] = [chance.choice([-1, 0, 1, 2, 5, 9]) for _ in range(chance.randrange(5))]
        attribute.s = b"nonsense"
        attribute.f = float("nan")


def _other_op(chance: random.Random, model: Any, node: Any, known: Sequence[Case]) -> None:
    node.op_type = chance.choice(known).model.graph.node[0].op_type


def _other_version(chance: random.Random, model: Any, node: Any, known: Sequence[Case]) -> None:
    model.opset_import[0].version = chance.randrange(1, 29)


def _output_added(chance: random.Random, model: Any, node: Any, known: Sequence[Case]) -> None:
    node.output.append("extra")
    model.graph.output.add(name="extra")


DAMAGES: tuple[Callable[[random.Random, Any, Any, Sequence[Case]], None], ...] = (
    _inputs_cut,
    _input_exchanged,
    _attribute_lost,
    _attribute_changed,
    _other_op,
    _other_version,
    _output_added,
)
