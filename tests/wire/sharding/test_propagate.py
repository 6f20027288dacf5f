"""Layouts found for all tensors from those of some: forwards, backwards, and where wishes meet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from support.cases.layouts import PAIR, SQUARE

import mesh
import mesh.numpy as mnp
from wire.ir.grids import spec_text
from wire.sharding.annotations import asked_layouts
from wire.sharding.layout import Axes, Dims
from wire.sharding.op_cost import Prices, Rates
from wire.sharding.program import Program
from wire.sharding.propagate import propagate

FAST_LINK = Rates(flops_per_s=1e9, bytes_per_s=1e9, collective_s=1e-6)


def found(
    fn: Callable[..., Any], shapes: Mapping[str, tuple[int, ...]], specs: Mapping[str, str], axes: Axes = SQUARE
) -> dict[str, str]:
    """The layouts of inputs by name and of nodes by op, the last of each; `specs` as text."""
    graph = mesh.trace(fn, *[mesh.ShapeDtype(shape) for shape in shapes.values()])
    program = Program(graph, axes, asked_layouts(graph, axes, {name: _dims(text) for name, text in specs.items()}))
    dims = propagate(program, Prices(program, FAST_LINK))
    return {
        node.attrs["name"] if node.op == "input" else node.op: spec_text(layout)
        for node, layout in zip(graph.nodes, dims, strict=True)
    }


def _dims(text: str) -> Dims:
    return tuple([() if word == "-" else tuple(word.split("+")) for word in text.split()])


def test_a_batch_is_split_all_the_way() -> None:
    layouts = found(lambda x, w: mnp.sum(mnp.tanh(x @ w), axis=1), {"x": (8, 4), "w": (4, 6)}, {"x": "dp -"})
    assert layouts["tanh"] == "dp -" and layouts["reduce_sum"] == "dp" and layouts["w"] == "- -"


def test_what_a_result_is_to_be_comes_back_to_the_inputs() -> None:
    layouts = found(lambda x, w: mnp.tanh(x.T @ w), {"x": (4, 8), "w": (4, 6)}, {"output": "dp tp"})
    assert layouts["x"] == "- dp" and layouts["w"] == "- tp"


def test_terms_of_one_sum_are_split_alike() -> None:
    layouts = found(lambda x, w: x @ w, {"x": (8, 4), "w": (4, 6)}, {"w": "tp -"})
    assert layouts["x"] == "- tp" and layouts["dot"] == "- -"


def test_two_wishes_that_fit_are_joined() -> None:
    layouts = found(lambda x, w: x @ w, {"x": (8, 4), "w": (4, 6)}, {"x": "dp -", "w": "- tp"})
    assert layouts["dot"] == "dp tp"


@pytest.mark.parametrize(("rows", "wins"), [(4096, "tp -"), (2, "- -")], ids=["many-rows", "few-rows"])
def test_where_wishes_meet_the_cheaper_way_is_taken(rows: int, wins: str) -> None:
    """Rows over tp need all of w; the terms of a sum over tp need another layout of x, and a reduction."""
    shapes = {"x": (rows, 256), "w": (256, 512)}
    layouts = found(lambda x, w: mnp.tanh(x @ w), shapes, {"x": "tp -", "w": "tp -"}, PAIR)
    assert layouts["tanh"] == wins


def test_what_was_asked_for_is_never_changed() -> None:
    layouts = found(lambda x, w: (x + 1) @ w, {"x": (8, 4), "w": (4, 6)}, {"x": "- -", "w": "tp -"})
    assert layouts["x"] == "- -" and layouts["add"] == "- tp"


def test_one_axis_splits_one_dimension() -> None:
    layouts = found(lambda x: x @ x.T, {"x": (8, 4)}, {"x": "tp -"})
    assert layouts["dot"] in ("tp -", "- tp")


def test_longer_splits_extend_shorter_ones() -> None:
    layouts = found(lambda x, y: x + y, {"x": (8, 4), "y": (8, 4)}, {"x": "dp -", "y": "dp+tp -"})
    assert layouts["add"] == "dp+tp -"


def test_merged_dimensions_pass_on_what_divides() -> None:
    def merged(x: Any) -> Any:
        return mnp.reshape(x, (-1, 3))

    assert found(merged, {"x": (4, 2, 3)}, {"x": "dp+tp - -"})["reshape"] == "dp+tp -"
    assert found(merged, {"x": (2, 4, 3)}, {"x": "dp tp -"})["reshape"] == "dp+tp -"
    assert found(merged, {"x": (4, 4, 3)}, {"x": "dp tp -"})["reshape"] == "dp -"
    assert found(merged, {"x": (5, 4, 3)}, {"x": "dp - -"})["reshape"] == "- -"


def test_a_long_chain_settles() -> None:
    def chain(x: Any) -> Any:
        for _ in range(300):
            x = mnp.sin(x) + 1
        return x

    layouts = found(chain, {"x": (8,)}, {"output": "dp"})
    assert layouts["x"] == "dp"
