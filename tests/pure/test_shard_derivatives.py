"""Derivatives and batches of what ranks compute together: against central differences, and against loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.differences import along, assert_close, inner, numbers
from support.shard_cases import CASES, Case

import mesh
import mesh.numpy as mnp
from mesh.array import Array

CASE = pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])


def directions(case: Case, seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape) for shape in case.shapes]


@CASE
def test_jvp_and_vjp_through_shard_map_are_what_differences_are(case: Case) -> None:
    fn, point, direction = case.mapped, case.point(), directions(case, 1)
    wanted = along(fn, point, direction)
    outputs, tangents = mesh.jvp(lambda *args: tuple(fn(*args)), tuple(point), tuple(direction))
    for found, right in zip(numbers(tangents), wanted, strict=True):
        assert_close(found, right, "jvp")
    _, pull = mesh.vjp(lambda *args: tuple(fn(*args)), *point)
    rng = np.random.default_rng(2)
    weights = [rng.standard_normal(output.shape) for output in outputs]
    assert_close(inner(numbers(pull(tuple(weights))), direction), inner(wanted, weights), "vjp", 10)


@CASE
def test_second_derivatives_are_what_differences_of_the_first_are(case: Case) -> None:
    fn, point, direction = case.mapped, case.point(3), directions(case, 4)
    rng = np.random.default_rng(5)
    weights = [rng.standard_normal(output.shape) for output in fn(*point)]

    def loss(*args: Any) -> Array:
        return sum(
            (mnp.sum(each * weight) for each, weight in zip(fn(*args), weights, strict=True)), start=mnp.zeros(())
        )

    gradient = mesh.grad(loss, argnums=tuple(range(len(point))))
    wanted = along(lambda *args: list(gradient(*args)), point, direction)
    _, found = mesh.jvp(gradient, tuple(point), tuple(direction))
    _, pull = mesh.vjp(gradient, *point)
    for each, right in zip(numbers(found), wanted, strict=True):
        assert_close(each, right, "forward over reverse", 10)
    for each, right in zip(numbers(pull(tuple(mnp.asarray(d) for d in direction))), wanted, strict=True):
        assert_close(each, right, "reverse over reverse: the matrix is symmetric", 10)


@CASE
def test_a_batch_is_the_calls_one_by_one(case: Case) -> None:
    fn = case.mapped
    points = [case.point(seed) for seed in range(3)]
    stacked = [np.stack(arrays) for arrays in zip(*points, strict=True)]
    wanted = [np.stack(arrays) for arrays in zip(*[numbers(fn(*point)) for point in points], strict=True)]
    for found, right in zip(numbers(mesh.vmap(lambda *args: tuple(fn(*args)))(*stacked)), wanted, strict=True):
        assert_close(found, right)
    last = [np.moveaxis(array, 0, -1) for array in stacked]
    moved = mesh.vmap(lambda *args: tuple(fn(*args)), in_axes=-1, out_axes=-1)(*last)
    for found, right in zip(numbers(moved), wanted, strict=True):
        assert_close(np.moveaxis(found, -1, 0), right)


@CASE
def test_a_batch_within_the_ranks_is_the_blocks_one_by_one(case: Case) -> None:
    """The mapped axis is whole on every rank, and the function sees blocks as before."""
    points = [case.point(seed) for seed in range(2)]
    wanted = [np.stack(arrays) for arrays in zip(*[numbers(case.mapped(*point)) for point in points], strict=True)]
    ahead = [mesh.PartitionSpec(None, *spec.dims) for spec in case.in_specs]
    behind = mesh.tree.map(lambda spec: mesh.PartitionSpec(None, *spec.dims), case.out_specs)
    fn = mesh.shard_map(mesh.vmap(case.fn), case.grid, tuple(ahead), behind)
    found = mesh.tree.leaves(fn(*[np.stack(arrays) for arrays in zip(*points, strict=True)]))
    for each, right in zip(numbers(found), wanted, strict=True):
        assert_close(each, right)
