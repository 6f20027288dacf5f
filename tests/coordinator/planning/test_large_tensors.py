"""Tensors that a device cannot bind go to one that can, and those that need not be in memory decide nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from support.machines.profiles import device, near, worker

from coordinator.planning.model.profiles import Profiles, worker_profile
from coordinator.planning.planner import make_plan
from wire.errors import PlacementError
from wire.ir.dtypes import BOOL, F32, I32
from wire.ir.graph import GraphBuilder, WireGraph
from wire.limits import MIB
from wire.protocol.messages import DeviceReport, Joined

GPU, CPU = 0, 1
LARGE = 40 * MIB  # elements: 160 MiB of float32, and of bool where one has 4 bytes


def machines(tensor_bytes_max: float = 128 * MIB, cpu: bool = True) -> Profiles:
    gpu = replace(device(GPU, 1e4, 1e3, engine="wgsl"), tensor_bytes_max=tensor_bytes_max)
    return near(worker(0, gpu, *([device(CPU, 10.0, 10.0)] if cpu else [])))


def used(graph: WireGraph, profiles: Profiles) -> set[int]:
    return {part.device for part in make_plan(graph, profiles, "single").parts}


def rows_of_a_table() -> WireGraph:
    builder = GraphBuilder()
    table, rows = builder.param("table", (LARGE // 64, 64), F32), builder.input("rows", (3,), I32)
    return builder.build([builder.add("gather", table, rows, axis=0, batch_dims=0)])


def product_with_weights() -> WireGraph:
    builder = GraphBuilder()
    x, w = builder.input("x", (64, 16), F32), builder.param("w", (LARGE // 64, 16), F32)
    axes = {"lhs_contract": (1,), "rhs_contract": (1,), "lhs_batch": (), "rhs_batch": ()}
    return builder.build([builder.add("reduce_max", builder.add("dot", x, w, **axes), axes=(0, 1))])


def joined() -> WireGraph:
    """What is made of a large tensor is one, however it is computed."""
    builder = GraphBuilder()
    x = builder.input("x", (LARGE // 4,), F32)
    whole = builder.add("tanh", builder.add("concat", x, x, x, x, axis=0))
    return builder.build([builder.add("reduce_sum", whole, axes=(0,))])


def flags() -> WireGraph:
    builder = GraphBuilder()
    return builder.build([builder.add("reduce_max", builder.input("x", (LARGE,), BOOL), axes=(0,))])


def scores() -> WireGraph:
    """(queries, keys) that a kernel sums as it makes them."""
    builder = GraphBuilder()
    q, k = builder.input("q", (8192, 8), F32), builder.input("k", (8192, 8), F32)
    axes = {"lhs_contract": (1,), "rhs_contract": (1,), "lhs_batch": (), "rhs_batch": ()}
    return builder.build([builder.add("reduce_sum", builder.add("exp", builder.add("dot", q, k, **axes)), axes=(1,))])


@pytest.mark.parametrize("make", [rows_of_a_table, product_with_weights, joined, flags])
def test_what_a_device_cannot_bind_is_computed_by_another(make: Callable[[], WireGraph]) -> None:
    graph = make()
    assert used(graph, machines()) == {CPU}
    assert used(graph, machines(tensor_bytes_max=1 << 32)) == {GPU}
    with pytest.raises(PlacementError, match=r"with a tensor of 16\d.0 MiB: wgsl of worker-0 takes 128.0 MiB .*Cut"):
        make_plan(graph, machines(cpu=False), "single")


def test_tensors_that_need_not_be_in_memory_decide_nothing() -> None:
    assert used(scores(), machines()) == {GPU}


def counted(shape: tuple[int, int]) -> WireGraph:
    """Elements that are in no memory: a kernel makes each where it looks for the greatest."""
    builder = GraphBuilder()
    spread = builder.add("broadcast", builder.input("x", (1, 1), F32), shape=shape)
    return builder.build([builder.add("reduce_max", builder.add("exp", spread), axes=(0, 1))])


def test_more_elements_than_kernels_for_gpus_count_are_computed_by_another_device_or_refused() -> None:
    roomy = machines(tensor_bytes_max=1 << 32)
    assert used(counted((1 << 15, (1 << 16) - 1)), roomy) == {GPU}
    with pytest.raises(PlacementError, match=r"a tensor of 8.0 GiB: wgsl of worker-0 takes 4.0 GiB .*Cut the tensor"):
        make_plan(counted((1 << 15, 1 << 16)), machines(tensor_bytes_max=1 << 32, cpu=False), "single")
    with pytest.raises(PlacementError, match=r"needs .* and has 16.0 GiB.*Raise --max-memory"):
        make_plan(counted((1 << 15, 1 << 16)), roomy, "single")


@pytest.mark.parametrize("named", [{"tensor_bytes": 5, "binding_bytes": 2}, {"binding_bytes": 7, "buffer_bytes": 5}])
def test_a_device_tells_its_limit(named: dict[str, int]) -> None:
    limits = {**named, "invocations": 1}
    report = DeviceReport(0, "wgsl", "", "", "", True, 1 << 30, limits, {"add": ("f32",)}, 5.0, 10.0, 1e-4)
    profile = worker_profile("id", "name", Joined((report,), 1 << 30, ()), frozenset({"add"}))
    (made,) = profile.devices
    assert made.supports("add", ("f32",), 5) and not made.supports("add", ("f32",), 6)
