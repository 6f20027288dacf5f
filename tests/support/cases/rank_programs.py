"""Random programs in which ordinary nodes and ranks of a 2 x 2 grid take turns, by seed."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder, WireGraph
from wire.ir.types import TensorType

from .control_cases import siblings

AXES, SIZES = ("dp", "tp"), (2, 2)
SPECS = ("- -", "dp -", "- dp", "tp -", "dp tp", "tp dp", "dp+tp -", "- tp+dp", "- dp+tp")


def rank_program(seed: int) -> tuple[WireGraph, dict[str, Any], dict[str, Any]]:
    """Ordinary nodes and ranks in turn, on 4x4 tensors of whole numbers: inputs, params, constants, what was made."""
    chance = random.Random(seed)
    builder = GraphBuilder()
    kind = TensorType((4, 4), F32)
    counted = builder.const(np.arange(16, dtype=np.float32).reshape(4, 4))
    values = [builder.input("x", *kind), builder.param("w", *kind), counted]
    values.append(builder.add("iota", shape=(4, 4), dtype="f32", axis=1))
    for _ in range(chance.randint(2, 7)):
        if chance.random() < 0.5:
            values.append(builder.add(chance.choice(("add", "max")), *chance.choices(values, k=2)))
            continue
        operands = chance.sample(values, chance.randint(1, 3))
        specs, out = [chance.choice(SPECS) for _ in operands], chance.choice(SPECS)
        values += _spmd(builder, operands, specs, [out, *chance.sample(SPECS, chance.randint(0, 1))], chance)
    wanted = list(dict.fromkeys([values[-1], *chance.sample(values, 2)]))
    given, params = (np.random.default_rng(seed + k).integers(-9, 9, (4, 4)).astype(np.float32) for k in (0, 1))
    return builder.build(wanted), {"x": given}, {"w": params}


def _spmd(builder: GraphBuilder, operands: list[int], specs: list[str], outs: list[str], chance: Any) -> list[int]:
    """All results are 4x4: a rank makes a block of the size that the result's spec wants of the sum of its operands."""
    inner = GraphBuilder()
    total = None
    for place, (operand, spec) in enumerate(zip(operands, specs, strict=True)):
        value = inner.input(str(place), _local(spec), builder.types[operand].dtype)
        value = inner.add("reduce_max", value, axes=(0, 1))
        total = value if total is None else inner.add("add", total, value)
    assert total is not None
    over = chance.choice((("dp",), ("tp",), ("dp", "tp"), ("tp", "dp")))
    total = inner.add("all_reduce", total, axes=over, sizes=(2,) * len(over), reduction=chance.choice(("sum", "max")))
    number = inner.add("cast", inner.add("axis_index", axes=("tp", "dp"), sizes=(2, 2)), dtype="f32")
    mixed = inner.add("add", total, number)
    made = [inner.add("broadcast", mixed, shape=_local(out)) for out in outs]
    attrs = {
        "body": inner.build(made),
        "axes": AXES,
        "sizes": SIZES,
        "in_specs": tuple(specs),
        "out_specs": tuple(outs),
    }
    return list(siblings(builder, "spmd", *operands, count=len(outs), **attrs))


def _local(spec: str) -> tuple[int, ...]:
    return tuple(4 // (1 if dim == "-" else 2 ** len(dim.split("+"))) for dim in spec.split(" "))
