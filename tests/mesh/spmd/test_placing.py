"""to_device and its kin: where values are said to be, that derivatives go through, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.machines.profiles import device, near, worker
from support.machines.run_plan import run_plan

import mesh
import mesh.numpy as mnp
from coordinator.planning.planner import make_plan
from mesh import Grid, PartitionSpec, accelerator, cpu, gpu, to_device, transfer_to
from wire.errors import AttrError, InputError, NoSuchDevice
from wire.ir.device_names import DeviceName, device_named
from wire.ir.graph import WireGraph

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def graphics(index: int) -> Any:
    return replace(device(index, 1.0, 1.0), engine="wgsl")


MIXED = near(
    worker(0, device(0, 1e3, 1e3)),
    worker(1, graphics(0), device(1, 1.0, 1.0)),
    worker(2, graphics(0), graphics(1), device(2, 1.0, 1.0)),
)


def sites(fn: Any, *args: Any) -> list[tuple[str, int]]:
    """Where the parts of a program run, after its answer was checked."""
    traced = mesh.trace_full(fn, *args)
    given = dict(zip(traced.graph.input_types, args, strict=True))
    plan = make_plan(traced.graph, MIXED, "auto")
    placed = [(part.node[-1], part.device) for part in plan.parts]
    plain = make_plan(without_devices(traced.graph), MIXED, "single")
    for found, expected in zip(run_plan(plan, given, {}), run_plan(plain, given, {}), strict=True):
        np.testing.assert_array_equal(found, expected)
    return placed


def without_devices(graph: WireGraph) -> WireGraph:
    from wire.ir.graph import GraphBuilder

    builder, at = GraphBuilder(), list[int]()
    for node in graph.nodes:
        operands = [at[index] for index in node.inputs]
        at.append(operands[0] if node.op == "transfer" else builder.add(node.op, *operands, **node.attrs))
    return builder.build([at[index] for index in graph.outputs])


@pytest.mark.parametrize(
    ("move", "where"),
    [
        (cpu, [("0", 0)]),
        (lambda x: to_device(x, "worker-1"), [("1", 0)]),
        (lambda x: to_device(x, "worker-1:1"), [("1", 1)]),
        (lambda x: transfer_to(x, device="worker-2:2"), [("2", 2)]),
        (lambda x: accelerator(x, 0), [("1", 0)]),
        (lambda x: accelerator(x, 2), [("2", 1)]),
        (lambda x: accelerator(x, id=1), [("2", 0)]),
        (lambda x: accelerator(x, device_id=2), [("2", 1)]),
    ],
)
def test_what_is_computed_of_a_value_is_computed_where_it_is(move: Any, where: Any) -> None:
    assert sites(lambda x: mnp.tanh(move(x) * 2) + 1, X) == where


def test_any_gpu_is_one_of_them() -> None:
    (site,) = sites(lambda x: mnp.tanh(gpu(x)), X)
    assert site in (("1", 0), ("2", 0), ("2", 1))


def test_a_second_transfer_moves_on_and_what_nobody_placed_is_free() -> None:
    assert sites(lambda x: to_device(mnp.exp(to_device(x, "worker-1")), "worker-2:1") * 2, X) == [("1", 0), ("2", 1)]
    assert sites(lambda x: (mnp.exp(x), to_device(mnp.tanh(x), "worker-1") + 1)[0], X) == [("0", 0)]


def test_operands_on_two_devices_are_refused_until_one_is_moved() -> None:
    with pytest.raises(InputError, match="on different devices: cpu and gpu"):
        make_plan(mesh.trace(lambda x: cpu(x) + gpu(x), X), MIXED)
    assert len(sites(lambda x: cpu(x) + cpu(gpu(x) * 2), X)) > 1


def test_a_device_that_is_not_there_is_an_error_on_a_mesh_and_without_one() -> None:
    for name in ("worker-9", "worker-1:2"):
        with pytest.raises(NoSuchDevice, match="worker-0 0 is cpu"):
            make_plan(mesh.trace(lambda x, name=name: to_device(x, name) + 1, X), MIXED)
    with pytest.raises(NoSuchDevice):
        make_plan(mesh.trace(lambda x: accelerator(x, 3) + 1, X), MIXED)
    with pytest.raises(NoSuchDevice, match="in this process"):
        mesh.evaluate(lambda x: gpu(x) + 1, X)
    assert np.array_equal(mesh.evaluate(lambda x: cpu(x) + 1, X), X + 1)


def test_a_device_or_a_sharding_and_one_of_them() -> None:
    grid, spec = Grid((2,), ("dp",)), PartitionSpec("dp")
    with pytest.raises(InputError, match="not both"):
        mesh.trace(lambda x: transfer_to(x, device="cpu", sharding=spec), X)
    assert to_device(X) is X, "with neither it stays where it is"
    asked = mesh.trace(lambda x: transfer_to(x, sharding=spec, grid=grid), X)
    assert [node.op for node in asked.nodes if node.op != "input"] == ["constraint"]
    for wrong in ("", 3):
        with pytest.raises(InputError):
            mesh.trace(lambda x, wrong=wrong: to_device(x, wrong), X)
    for number in (-1, True, "0"):
        with pytest.raises(InputError):
            mesh.trace(lambda x, number=number: accelerator(x, number), X)
        with pytest.raises(InputError):
            mesh.trace(lambda x, number=number: accelerator(x, device_id=number), X)
    with pytest.raises(InputError, match="two names of one argument"):
        accelerator(X, 1, device_id=1)
    with pytest.raises(InputError, match=r"unexpected keyword argument 'device'.*Did you mean 'device_id'"):
        accelerator(X, device=0)  # type: ignore[call-arg]
    with pytest.raises(InputError, match="no PartitionSpec"):
        mesh.trace(lambda x: transfer_to(x, sharding="dp"), X)


def test_a_device_inside_of_a_loop_is_refused() -> None:
    looped = mesh.trace(lambda x: mesh.fori_loop(0, 3, lambda i, c: cpu(c) + 1, x), X)
    with pytest.raises(InputError, match="inside of a"):
        make_plan(looped, MIXED)


def test_a_device_named_in_what_is_split_is_refused_in_words_of_the_program() -> None:
    with mesh.on_grid(mesh.Grid(2, "dp")):
        split = mesh.trace(lambda x: cpu(mesh.shard(x, PartitionSpec("dp")) * 2), X)
    with pytest.raises(InputError, match=r"split over ranks \(by mesh.shard, .*choose strategy='single'"):
        make_plan(split, MIXED)
    make_plan(split, MIXED, "single")


@pytest.mark.parametrize("name", ["nobody", "nobody:7"])
def test_a_device_that_is_not_there_is_named_as_the_program_named_it(name: str) -> None:
    with pytest.raises(NoSuchDevice, match=f"there is no device '{name}'. There are"):
        make_plan(mesh.trace(lambda x: to_device(x, name), X), MIXED)
    with pytest.raises(NoSuchDevice, match=f"there is no device '{name}' in this process"):
        mesh.evaluate(lambda x: to_device(x, name), X)


def test_derivatives_and_batches_go_through() -> None:
    def loss(x: Any) -> Any:
        return (mnp.tanh(cpu(x * 2)) ** 2).sum()

    def plain(x: Any) -> Any:
        return (mnp.tanh(x * 2) ** 2).sum()

    for of in (
        mesh.grad,
        lambda fn: mesh.vmap(mesh.grad(fn)),
        mesh.vmap,
        lambda fn: lambda x: mesh.jvp(fn, (x,), (x,))[1],
    ):
        np.testing.assert_allclose(mesh.evaluate(of(loss), X), mesh.evaluate(of(plain), X), rtol=1e-6)


def on_two(ws: Any, x: Any) -> Any:
    """Two layers on two workers, and a weight that both use."""
    h = mnp.tanh(to_device(x, "worker-1") @ to_device(ws[0], "worker-1")) * to_device(ws[2], "worker-1")
    y = (to_device(h, "worker-2") @ to_device(ws[1], "worker-2")) * to_device(ws[2], "worker-2")
    return mnp.sum(y**2)


def both(ws: Any, x: Any) -> Any:
    value, slopes = mesh.value_and_grad(on_two)(ws, x)
    return (value, *slopes, sum(mnp.sum(slope**2) for slope in slopes))


@pytest.mark.parametrize(
    "fn",
    [
        mesh.grad(on_two),
        both,
        mesh.grad(lambda ws, x: mesh.vmap(on_two, in_axes=(None, 0))(ws, mnp.stack([x, 2 * x])).sum()),
        lambda ws, x: mesh.jvp(mesh.grad(lambda w: on_two((w, *ws[1:]), x)), (ws[0],), (ws[0],))[1],
        mesh.grad(lambda ws, x: mnp.sum(mesh.grad(on_two)(ws, x)[0] ** 2)),
        lambda ws, x: mesh.grad(on_two)((to_device(ws[0], "worker-2:1"), *ws[1:]), x)[0] * 2,
    ],
    ids=["grad", "value_and_grad", "vmap", "jvp", "grad of grad", "placed before"],
)
def test_derivatives_go_back_between_devices_to_where_values_came_from(fn: Any) -> None:
    weights = [np.random.default_rng(each).normal(size=shape) for each, shape in enumerate([(4, 4), (4, 2), ()])]
    ws = tuple(np.asarray(weight, np.float32) for weight in weights)
    graph = mesh.trace(fn, ws, X)
    given = dict(zip(graph.input_types, (*ws, X), strict=True))
    found = run_plan(make_plan(graph, MIXED, "auto"), given, {})
    plain = run_plan(make_plan(without_devices(graph), MIXED, "single"), given, {})
    for one, other in zip(found, plain, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_derivative_is_computed_where_its_value_was() -> None:
    def loss(w: Any, x: Any) -> Any:
        return mnp.sum(mnp.tanh(to_device(mnp.tanh(to_device(x, "worker-1") @ to_device(w, "worker-1")), "worker-2:2")))

    w = np.full((4, 2), 0.1, np.float32)
    graph = mesh.trace(mesh.grad(loss), w, X)
    plan = make_plan(graph, MIXED, "auto")
    where = {
        (part.node[-1], part.device): {node.op for node in part.graph.nodes if node.op not in ("param", "input")}
        for part in plan.parts
    }
    assert {site for site, ops in where.items() if "dot" in ops} == {("1", 0)}, "forward and backward"


def test_pytrees_are_placed_whole_and_nodes_are_workers() -> None:
    with mesh.Mesh.builder().simulate(2).build() as simulated:
        other = simulated.nodes[1]
        found = simulated.run(lambda pair: (lambda p: p["a"] + p["b"])(to_device(pair, other)), {"a": X, "b": X})
        assert np.array_equal(found, X + X)
        assert list(simulated.report().workers) == [other.name]


@pytest.mark.parametrize("text", ["cpu", "gpu", "accelerator 3", "any", "worker - anna", "worker 2 anna's machine"])
def test_names_have_a_text_and_come_back_from_it(text: str) -> None:
    assert str(device_named(text)) == text
    assert device_named(text) == device_named(str(device_named(text)))


def test_what_names_no_device_is_refused() -> None:
    for text in ("", "tpu", "gpu 0", "worker", "worker anna", "accelerator x"):
        with pytest.raises(AttrError):
            device_named(text)
    assert device_named("worker - 3 x") == DeviceName("worker", -1, "3 x")
