"""The cpu engine gives the same bits however a graph is cut, however often it runs, and on however many threads."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.cases.cuts import cut_in_two, same_bits
from support.cases.op_cases import PROGRAMS, cases
from support.cases.random_graphs import random_graph
from support.cases.values import ordinary

import mesh.numpy as mnp
from mesh import nn, remat, trace_full, value_and_grad, vjp
from wire.ir.dtypes import C64, F16, F32, F64
from wire.ir.graph import GraphBuilder, WireGraph
from worker.cpu import evaluate

Tensors = Mapping[str, NDArray[Any]]


def check_cuts(graph: WireGraph, inputs: Tensors, positions: Any) -> None:
    whole = evaluate(graph, inputs)
    assert same_bits(evaluate(graph, inputs), whole), f"{graph.name}: a second run gives other bits"
    for position in positions:
        assert same_bits(cut_in_two(graph, position, inputs), whole), (
            f"{graph.name}, cut before node {position}:\n{graph}"
        )


@pytest.mark.parametrize("seed", range(60))
def test_a_random_graph_cut_anywhere_gives_the_same_bits(seed: int) -> None:
    random = random_graph(seed)
    positions = np.random.default_rng(seed).integers(1, len(random.graph), 6)
    check_cuts(random.graph, {**random.inputs, **random.params}, positions.tolist())


@pytest.mark.long
@pytest.mark.parametrize("first", range(1000, 2000, 50))
def test_many_random_graphs_cut_everywhere_give_the_same_bits(first: int) -> None:
    for seed in range(first, first + 50):
        random = random_graph(seed)
        check_cuts(random.graph, {**random.inputs, **random.params}, range(1, len(random.graph)))


@pytest.mark.parametrize("dtype", [F32, F64, C64], ids=str)
@pytest.mark.parametrize("shape", [(3, 4), (17, 9), (64, 33)], ids=str)
def test_a_matrix_by_its_own_transpose_is_a_product_as_any_other(shape: tuple[int, int], dtype: Any) -> None:
    """Numpy takes another function for it (syrk), which rounds in another way than that for two matrices."""
    made = GraphBuilder()
    x, also_x = made.input("x", shape, dtype), made.input("also_x", shape, dtype)
    products = [
        made.add("dot", left, x, lhs_batch=(), rhs_batch=(), lhs_contract=(0,), rhs_contract=(0,))
        for left in (x, also_x)
    ]
    value = ordinary(dtype, *shape)
    by_itself, by_another = evaluate(made.build(products), {"x": value, "also_x": value.copy()})
    assert same_bits([by_itself], [by_another])


@pytest.mark.parametrize("case", [case for op in PROGRAMS for case in cases(op)], ids=lambda case: case.id)
def test_a_program_cut_anywhere_gives_the_same_bits(case: Any) -> None:
    check_cuts(case.graph, case.inputs, range(1, len(case.graph)))


def _odd_layouts(x: Any, w: Any) -> Any:
    """Views whose axes of one element have other strides than a fresh array, into a dot and sums."""
    row = mnp.flip(x[:, :1, :], axis=1)
    wide = mnp.broadcast_to(x[0], (1, *x.shape[1:]))
    column = x[:, ::40, :]
    return (
        row @ w,
        wide @ w,
        column @ w,
        mnp.flip(x.sum(axis=0, keepdims=True), axis=0) @ w,
        (wide * wide).sum(axis=(0, 2)),
    )


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("shape", [(1, 37, 300), (4, 1, 300), (1, 1, 300)])
def test_axes_of_one_element_do_not_choose_other_kernels(shape: tuple[int, ...], dtype: Any) -> None:
    x, w = ordinary(dtype, *shape), ordinary(dtype, 300, 41)
    traced = trace_full(_odd_layouts, x, w)
    check_cuts(traced.graph, traced.bind(x, w).inputs, range(1, len(traced.graph)))


def _convolved_views(x: Any, w: Any) -> Any:
    """Views of other strides than fresh arrays have, into convolutions of every kind."""
    turned, wide = mnp.flip(mnp.swapaxes(x, 2, 3), 3), mnp.broadcast_to(x[:1], x.shape)
    return (
        nn.conv(turned, mnp.flip(w, (2, 3)), padding=2),
        nn.conv(wide[:, ::2], w[:, ::2], stride=2, dilation=2, padding="same"),
        nn.conv(turned, mnp.swapaxes(w, 0, 1)[:, :1], groups=x.shape[1], padding=1),
        nn.conv_transpose(wide[:, :, 1::2], w[:6], stride=3),
    )


@pytest.mark.parametrize("dtype", [F16, F32, F64])
def test_a_convolution_of_views_sums_in_one_order(dtype: Any) -> None:
    x, w = ordinary(dtype, 2, 6, 19, 23), ordinary(dtype, 12, 6, 3, 3)
    traced = trace_full(_convolved_views, x, w)
    check_cuts(traced.graph, traced.bind(x, w).inputs, range(1, len(traced.graph)))


def test_one_element_read_backwards_is_read_by_the_same_loop() -> None:
    """numpy has another arctan2 for a stride of -4 than for one of 4, though a single element has no second."""
    builder = GraphBuilder()
    x, y = builder.input("x", (1,), F32), builder.input("y", (1,), F32)
    backwards = builder.build([builder.add("atan2", builder.add("reverse", x, axes=(0,)), y)])
    forwards = builder.build([builder.add("atan2", x, y)])
    for place in range(64):
        inputs = {"x": ordinary(F32, 64)[place : place + 1], "y": ordinary(F32, 65)[place + 1 : place + 2]}
        assert same_bits(evaluate(backwards, inputs), evaluate(forwards, inputs))


def test_the_layout_of_the_inputs_does_not_matter() -> None:
    builder = GraphBuilder()
    x = builder.input("x", (130, 70), F32)
    contract = {"lhs_batch": (), "rhs_batch": (), "lhs_contract": (0,), "rhs_contract": (0,)}
    graph = builder.build([builder.add("reduce_sum", x, axes=(0, 1)), builder.add("dot", x, x, **contract)])
    array = ordinary(F32, 130, 70)
    room = np.zeros(array.nbytes + 1, np.uint8)
    unaligned = room[1:].view(np.float32).reshape(array.shape)
    unaligned[...] = array
    spread = np.zeros((130, 140), np.float32)
    spread[:, ::2] = array
    expected = evaluate(graph, {"x": array})
    for other in (np.asfortranarray(array), unaligned, spread[:, ::2], array[::-1].copy()[::-1]):
        assert same_bits(evaluate(graph, {"x": other}), expected)


_HASH = """
import hashlib, sys
from test_cpu_determinism import bits_of_everything
sys.stdout.write(bits_of_everything())
"""


def bits_of_everything() -> str:
    """A hash over the outputs of all programs, of every dot, and of products large enough for BLAS to share
    out, among them a convolution's derivatives."""
    digest = hashlib.blake2b()
    big = ordinary(F32, 400, 300), ordinary(F32, 300, 500), ordinary(F32, 2, 300, 200)
    traced = trace_full(lambda a, b, c: (a @ b, a @ c, a @ c[0, :, 0], (a @ b).sum()), *big)
    images = ordinary(F32, 3, 40, 57, 58), ordinary(F32, 80, 40, 3, 3)
    convolved = trace_full(_convolved, *images)
    for graph, inputs in (
        *((case.graph, case.inputs) for case in (case for op in (*PROGRAMS, "dot") for case in cases(op))),
        (traced.graph, traced.bind(*big).inputs),
        (convolved.graph, convolved.bind(*images).inputs),
    ):
        for array in evaluate(graph, inputs):
            digest.update(array.tobytes())
    return digest.hexdigest()


def _convolved(x: Any, w: Any) -> Any:
    actual, pull = vjp(lambda x, w: nn.conv(x, w, stride=2, padding=1), x, w)
    return actual, pull(actual)


def test_the_number_of_threads_does_not_matter() -> None:
    here = os.path.dirname(__file__)
    roots = [os.path.join(here, "..", ".."), os.path.join(here, ".."), here]
    expected = bits_of_everything()
    for threads in ("1", "4"):
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
        environment["PYTHONPATH"] = os.pathsep.join(roots)
        done = subprocess.run(
            [sys.executable, "-c", _HASH], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout == expected, f"with {threads} BLAS threads"


def test_a_gradient_that_computes_again_gives_the_same_bits_wherever_it_is_cut() -> None:
    def block(w: Any, x: Any) -> Any:
        return nn.layer_norm(x + nn.gelu(x @ w["up"]) @ w["down"], w["scale"], w["shift"])

    def loss(weights: Any, x: Any) -> Any:
        for w in weights:
            x = remat(block)(w, x)
        return mnp.sum(nn.log_softmax(x)[:, 0])

    shapes = {"up": (6, 9), "down": (9, 6), "scale": (6,), "shift": (6,)}
    weights = [{name: ordinary(F32, *shape, seed=seed) for name, shape in shapes.items()} for seed in range(2)]
    x = ordinary(F32, 5, 6)
    traced = trace_full(value_and_grad(loss), weights, x)
    check_cuts(traced.graph, traced.bind(weights, x).inputs, range(1, len(traced.graph), 5))
