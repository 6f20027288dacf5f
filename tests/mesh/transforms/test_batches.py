"""vmap of every op against a loop, whichever operands are batched; and vmap's face: axes, pytrees, nesting, errors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.cases.op_cases import ROWS, Example
from support.cases.smooth_cases import SMOOTH
from support.differences import numbers

import mesh
import mesh.numpy as mnp
from mesh.core.array import Array, apply
from mesh.numpy import asarray
from mesh.transforms.vmap_rules import VMAPS, batch
from wire.errors import InputError
from wire.ir.dtypes import BOOL, F32, I32, U8, U32
from wire.ir.ops import COLLECTIVES, EXACT, OPS
from wire.limits import DEFAULT

SIZE = 3
ELSEWHERE = {"composite", "conv", "cond", "while", "scan", "spmd", *COLLECTIVES}
DTYPES = (F32, I32, U8, U32, BOOL)
ELEMENTS_MAX = 500
EXAMPLES = 4  # per op and dtype in a quick run
OPS_WITH_RULES = sorted(VMAPS.keys() - ELSEWHERE)  # in the same order in every process


def examples(op: str, most: int) -> Iterator[Example]:
    """Those of the conformance tests that are small, for some dtypes, then those that are differentiable."""
    kinds, row = ROWS[op]
    for dtype in DTYPES:
        if dtype.kind in kinds:
            small = [each for each in row(dtype) if _is_small(each)]
            yield from small[:most]
    for case in SMOOTH.get(op, ()):
        yield Example(str(case), case.operands, case.attrs)


def _is_small(example: Example) -> bool:
    shapes = [*[operand.shape for operand in example.operands], example.attrs.get("shape", ())]
    return sum(map(math.prod, shapes)) <= ELEMENTS_MAX and max(map(len, shapes)) < DEFAULT.rank_max


def rows_of(operand: NDArray[Any]) -> NDArray[Any]:
    """A batch of operands: the one given, and its elements in other places."""
    return np.stack([np.roll(operand, place) for place in range(SIZE)])


def check_against_loop(op: str, example: Example) -> None:
    for batched in product([False, True], repeat=len(example.operands)):
        if not any(batched) or (len(batched) > 3 and sum(batched) not in (1, len(batched))):
            continue
        operands = [rows_of(x) if each else x for x, each in zip(example.operands, batched, strict=True)]
        results, found = batch(
            lambda *given: [apply(op, *given, **example.attrs)], SIZE, list(map(asarray, operands)), batched
        )
        alone = [
            apply(op, *[asarray(np.asarray(x[at]) if each else x) for x, each in zip(operands, batched, strict=True)],
                  **example.attrs)
            for at in range(SIZE)
        ]  # fmt: skip
        whole, *single = numbers([*results, *alone])
        wanted = np.stack(single) if found[0] else single[0]
        assert whole.dtype == wanted.dtype
        if wanted.dtype.kind == "V":  # bf16, whose NaN numpy does not know
            whole, wanted = whole.astype(np.float32), wanted.astype(np.float32)
        what = f"{example.label} batched {batched}"
        if OPS[op].tolerance == EXACT or wanted.dtype.kind not in "fc":
            np.testing.assert_array_equal(whole, wanted, what)
        else:
            np.testing.assert_allclose(whole, wanted, 1e-5, 1e-6, err_msg=what)


@pytest.mark.parametrize("op", OPS_WITH_RULES)
def test_a_batch_is_what_a_loop_gives(op: str) -> None:
    for example in examples(op, EXAMPLES):
        check_against_loop(op, example)


@pytest.mark.long
@pytest.mark.parametrize("op", OPS_WITH_RULES)
def test_a_batch_is_what_a_loop_gives_for_every_small_example(op: str) -> None:
    for example in examples(op, 10_000):
        check_against_loop(op, example)


# -- vmap -------------------------------------------------------------------------------------------------

X = np.arange(24.0).reshape(2, 3, 4)


def weigh(x: Array, w: Array) -> Array:
    return x * w + mnp.sum(x)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
@pytest.mark.parametrize("out", [0, 1, -1])
def test_the_axis_is_taken_out_and_put_back(axis: int, out: int) -> None:
    found = mesh.vmap(lambda x: mnp.cos(x) + mnp.sum(x), in_axes=axis, out_axes=out)(X)
    rows = [np.cos(x) + np.sum(x) for x in np.moveaxis(X, axis, 0)]
    np.testing.assert_allclose(np.asarray(found), np.moveaxis(np.stack(rows), 0, out))


def test_one_argument_may_be_the_same_for_all() -> None:
    w = np.arange(4.0)
    found = mesh.vmap(weigh, in_axes=(1, None), out_axes=1)(X[0].T, w)
    np.testing.assert_allclose(np.asarray(found).T, [x * w + x.sum() for x in X[0]])


def test_axes_may_be_a_prefix_of_a_pytree() -> None:
    params = {"w": np.ones((4, 5)), "b": [np.arange(5.0), np.ones((5, 2))]}
    found = mesh.vmap(
        lambda p, k: {"a": p["w"] * p["b"][0], "c": (p["b"][1] + k, k)},
        in_axes=({"w": 1, "b": 0}, None),
        out_axes={"a": 1, "c": (0, None)},
    )(params, np.float64(3))
    assert [leaf.shape for leaf in mesh.tree.leaves(found)] == [(4, 5), (5, 2), ()]
    np.testing.assert_array_equal(np.asarray(found["a"]), np.ones((4, 5)) * np.arange(5.0))


def test_vmap_nests() -> None:
    points, others = np.random.default_rng(0).random((5, 3)), np.random.default_rng(1).random((4, 3))
    distance = mesh.vmap(mesh.vmap(lambda a, b: mnp.sum((a - b) ** 2), (None, 0)), (0, None))
    wanted = ((points[:, None] - others[None]) ** 2).sum(-1)
    np.testing.assert_allclose(np.asarray(distance(points, others)), wanted)


def test_what_does_not_depend_on_the_element_is_not_repeated() -> None:
    table = np.ones((50, 50), np.float32)
    graph = mesh.trace(mesh.vmap(lambda x, t: x @ (t @ t), (0, None)), np.ones((7, 50), np.float32), table)
    assert [graph.types[index].shape for index, node in enumerate(graph.nodes) if node.op == "dot"] == [
        (50, 50),
        (7, 50),
    ]


def test_a_batch_of_products_is_one_product() -> None:
    x, w = np.ones((7, 4), np.float32), np.ones((5, 4), np.float32)
    for fn, axes in (
        (lambda x, w: w @ x, (0, None)),
        (lambda x, w: x @ w.T, (0, None)),
        (lambda x, w: w * x, (None, 0)),
    ):
        graph = mesh.trace(mesh.vmap(fn, axes), x, w) if axes[0] == 0 else mesh.trace(mesh.vmap(fn, axes), x[0], w)
        assert len([node for node in graph.nodes if node.op != "input"]) == 1


def test_keyword_arguments_are_mapped_over_their_first_axis() -> None:
    found = mesh.vmap(weigh, in_axes=0)(np.ones((2, 3)), w=np.arange(6.0).reshape(2, 3))
    np.testing.assert_array_equal(np.asarray(found), np.arange(6.0).reshape(2, 3) + 3)


def test_a_result_that_is_the_same_for_all_is_repeated() -> None:
    found = mesh.vmap(lambda x: (x, mnp.ones(2)))(np.arange(3.0))
    assert [each.shape for each in found] == [(3,), (3, 2)]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: mesh.vmap(weigh)(np.ones((2, 3)), np.ones((4, 3))), "'x' has 2, 'w' has 4"),
        (
            lambda: mesh.vmap(weigh, in_axes=(0,))(np.ones(2), np.ones(2)),
            "in_axes is for 1 argument, and the call has 2",
        ),
        (lambda: mesh.vmap(weigh, in_axes=(2, 0))(np.ones(2), np.ones(2)), "in_axes has 2 for 'x'"),
        (lambda: mesh.vmap(weigh, in_axes=None)(np.ones(2), np.ones(2)), "mapped over"),
        (lambda: mesh.vmap(weigh, in_axes=("0", 0))(np.ones(2), np.ones(2)), "expected an int or None"),
        (lambda: mesh.vmap(weigh, out_axes=None)(np.ones(2), np.ones(2)), "depends on the element"),
        (lambda: mesh.vmap(weigh, out_axes=1)(np.ones(2), np.ones(2)), "out_axes has 1"),
        (lambda: mesh.vmap(weigh, in_axes=({"a": 0}, 0))((np.ones(2),), np.ones(2)), "in_axes differs in structure"),
        (lambda: mesh.vmap(lambda x: mnp.sum(x) if x > 0 else x)(np.ones(2)), "needs the value of 'x'"),
        (lambda: mesh.vmap(lambda x: "text")(np.ones(2)), "returned a str"),
    ],
)
def test_misuse_is_told_by_name(call: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        call()
