"""Names of other programs: each is ours, or raises the sentence that docs/originals.md has for it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.documents import document, table
from support.rank_groups import as_ranks

import mesh
import mesh.numpy as mnp
from mesh import Grid, Mesh, collectives
from mesh import PartitionSpec as P
from mesh.commands.coord import parser
from mesh.scripts.group import Group
from mesh.training import DistributedTrainer
from mesh.util.missing_names import SUGGESTIONS
from wire.errors import ConfigError, InputError

PAGE = document("docs/originals.md")
LACKING = "Names that are not here"
OWNERS: dict[str, Any] = {
    "mesh": mesh, "Group": Group, "Mesh": Mesh, "DistributedTrainer": DistributedTrainer, "m": Mesh,
    "server": mesh.InferenceServer, "trainer": DistributedTrainer,
}  # fmt: skip
X = np.arange(32, dtype=np.float32).reshape(8, 4)


@pytest.fixture(scope="module")
def simulated() -> Iterator[Mesh]:
    with Mesh.builder().simulate(2).build() as m:
        yield m


def rows() -> Iterator[tuple[str, str]]:
    """What others call something, and what is written here."""
    for title in PAGE.headings():
        if title != LACKING and "|---" in PAGE.section(title):
            yield from ((row[0], row[1]) for row in table(PAGE.section(title)))


# -- the page


@pytest.mark.parametrize(("there", "here"), list(rows()))
def test_every_row_names_what_is_there(there: str, here: str) -> None:
    """Names, arguments of methods that are written out as `Owner.name(argument=)`, and flags."""
    assert there
    written = re.findall(r"`([^`]+)`", here)
    assert written, f"{there} has nothing here"
    for text in written:
        path = re.match(r"[A-Za-z_][\w.]*", text.rpartition("= ")[2])
        owner, _, name = path[0].partition(".") if path else ("", "", "")
        if owner in OWNERS and name:
            found = OWNERS[owner]
            for part in name.split("."):
                found = getattr(found, part)
            named = set(re.findall(r"(\w+)=", text)) if callable(found) else set()
            assert all(re.search(rf"\b{each}\b", signature(found)) for each in named), text
        for flag in re.findall(r"--[\w-]+", text):
            assert flag in flags_of_launch(), flag


def signature(called: Any) -> str:
    import inspect

    return str(inspect.signature(called))


def flags_of_launch() -> str:
    from mesh.commands.launch import launch_arguments

    made = __import__("argparse").ArgumentParser()
    launch_arguments(made)
    return str(made.format_help())


def test_the_page_has_every_name_that_is_not_here_with_what_to_write() -> None:
    listed = {f"{of}.{name.strip('`')}": text for of, name, text in table(PAGE.section(LACKING))}
    assert listed == SUGGESTIONS


ASKED = """
import importlib, json, sys
import mesh, mesh.optim, numpy
objects = {"mesh": mesh, "mesh.collectives": mesh.collectives, "mesh.optim.Optimiser": mesh.optim.sgd(0.1)}
objects["mesh.MeshBuilder"] = mesh.Mesh.builder()
objects |= {"mesh.nn": mesh.nn, "mesh.optim": mesh.optim, "mesh.Array": mesh.numpy.asarray(1.0)}
objects["mesh.Model"] = mesh.Model("none", lambda params, inputs: {}, [], [], {})
with mesh.Mesh.builder().simulate(1).build() as m:
    objects["mesh.HealthMonitor"] = mesh.HealthMonitor(m)
said = {}
for key in json.loads(sys.argv[1]):
    owner, _, name = key.rpartition(".")
    if f"mesh.{name}" in sys.modules:  # a folder of ours, which something above imported
        continue
    try:
        said[key] = str(getattr(objects[owner], name))
    except AttributeError as error:
        said[key] = str(error)
print(json.dumps(said))
"""


def test_a_name_that_is_not_here_says_what_to_write() -> None:
    done = subprocess.run([sys.executable, "-c", ASKED, json.dumps([*SUGGESTIONS])], capture_output=True, text=True)
    said = json.loads(done.stdout or done.stderr)
    assert len(said) >= len(SUGGESTIONS) - 2
    for key, text in said.items():
        owner, _, name = key.rpartition(".")
        assert text == f"{owner} has no attribute {name!r}. {SUGGESTIONS[key]}"


def test_any_other_name_is_an_attribute_error() -> None:
    for owner in (mesh, collectives, mesh.optim.sgd(0.1), mesh.nn, mesh.optim, mnp.asarray(1.0)):
        with pytest.raises(AttributeError, match=r"has no attribute 'no_such_name'$"):
            owner.no_such_name  # noqa: B018


# -- the Rust mesh


def model(x: Any) -> Any:
    return mnp.tanh(x @ np.ones((4, 4), np.float32))


def test_a_graph_is_partitioned_and_partitioned_again_without_a_worker(simulated: Mesh) -> None:
    graph = mesh.trace(model, X)
    names = [node.name for node in simulated.nodes]
    assert mesh.partition(graph, simulated, "pipeline").data == simulated.plan(graph, strategy="pipeline").data
    assert mesh.auto_partition(graph, simulated).data == simulated.plan(graph).data
    one = mesh.DeviceMap().layer("", names[0])
    assert mesh.partition(graph, simulated, one).workers == (names[0],)
    for dead in (names[1], simulated.nodes[1]):
        assert mesh.FaultHandler.handle_failure([dead], graph, simulated, "pipeline").workers == (names[0],)
    assert "predicted" in str(mesh.FaultHandler.handle_failure(names[0], graph, simulated))


def test_a_mesh_is_the_coordinator(simulated: Mesh) -> None:
    assert mesh.Coordinator is Mesh
    assert isinstance(mesh.Coordinator.builder(), mesh.MeshBuilder)
    with pytest.raises(InputError, match=r"a Mesh is built of nodes. Write mesh\.Mesh\.builder"):
        mesh.Coordinator()


def test_a_monitor_says_who_died_since_the_last_look() -> None:
    with Mesh.builder().simulate(3).build() as m:
        monitor, names = mesh.HealthMonitor(m), tuple(node.name for node in m.nodes)
        assert (monitor.healthy_nodes(), monitor.dead_nodes(), monitor.tick()) == (names, (), ())
        m.simulation.kill(names[1])
        m.run(model, X, strategy="pipeline")
        assert monitor.tick() == (names[1],)
        assert monitor.tick() == ()
        assert (monitor.state(names[1]), monitor.state(m.nodes[0]), monitor.state("nobody")) == (
            "dead",
            "healthy",
            None,
        )
        assert monitor.healthy_nodes() == (names[0], names[2])
        assert repr(monitor) == f"<HealthMonitor: {names[0]} healthy, {names[1]} dead, {names[2]} healthy>"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda m: mesh.partition(model, m), "partition takes a WireGraph, not .*Trace the function"),
        (lambda m: mesh.partition(mesh.trace(model, X), None), "partition takes a Mesh, not None.*Build one"),
        (lambda m: mesh.auto_partition(mesh.trace(model, X), m.on_loop), "takes a Mesh.*await mesh.plan"),
        (lambda m: mesh.auto_partition(mesh.trace(model, X)), "missing 1 required positional argument: 'mesh'"),
        (lambda m: mesh.partition(mesh.trace(model, X), m, "no_such"), "strategy='no_such' is not known"),
        (lambda m: mesh.HealthMonitor(0.5), "HealthMonitor takes a Mesh, not 0.5"),
        (lambda m: mesh.HealthMonitor(m).state(3), "by its name or its Node, not by 3"),
        (lambda m: mesh.FaultHandler.handle_failure([], mesh.trace(model, X), m), "one worker at a time, not of 0"),
        (lambda m: mesh.FaultHandler.handle_failure(["a", "b"], mesh.trace(model, X), m), "one worker at a time"),
        (lambda m: mesh.FaultHandler.handle_failure(["zz"], mesh.trace(model, X), m), "zz"),
        (lambda m: mesh.FaultHandler.handle_failure(3, mesh.trace(model, X), m), "of nodes"),
    ],
)
def test_what_is_no_mesh_graph_or_worker_is_refused(simulated: Mesh, call: Any, text: str) -> None:
    with pytest.raises(InputError, match=text):
        call(simulated)


def test_select_takes_a_float_condition_above_zero() -> None:
    condition = np.array([-1.0, 0.0, -0.0, np.nan, 2.0], np.float32)
    assert np.asarray(mesh.select(condition, 1.0, 2.0)).tolist() == [2.0, 2.0, 2.0, 2.0, 1.0]
    assert np.asarray(mesh.select(condition > 0, 1, 2)).tolist() == [2, 2, 2, 2, 1]
    assert np.asarray(mesh.select(np.array([0, -1, 2]), 1, 2)).tolist() == [2, 1, 1]
    assert np.asarray(mesh.numpy.where(condition, 1.0, 2.0)).tolist() == [1.0, 2.0, 2.0, 1.0, 1.0], "numpy's rule"
    traced = mesh.evaluate(lambda c, a: mnp.sum(mesh.select(c, a, -a)), condition, np.arange(5, dtype=np.float32))
    assert traced == -6 + 4
    with pytest.raises(InputError, match="not c64"):
        mesh.select(np.ones(2, np.complex64), 1, 2)
    with pytest.raises(InputError, match="missing 1 required positional argument: 'b'"):
        mesh.select(condition, 1)  # type: ignore[call-arg]


# -- the tracing compiler

GRID = Grid((4,), "dp")


def by_ranks(fn: Any, out: Any = P("dp"), x: Any = X) -> Any:
    return np.asarray(mesh.shard_map(fn, GRID, P("dp"), out)(x))


def test_collectives_go_by_their_other_names() -> None:
    around = [(rank, (rank + 1) % 4) for rank in range(4)]
    assert np.array_equal(by_ranks(lambda x: collectives.ppermute(x, "dp", around)), np.roll(X, 2, axis=0))
    assert np.array_equal(by_ranks(lambda x: collectives.distributed_broadcast(x, "dp", root=1), P()), X[2:4])


@pytest.mark.parametrize(
    ("name", "arguments", "named"),
    [
        ("all_reduce", (), {}),
        ("all_reduce", ("dp",), {}),
        ("all_gather", (), {"axis": 0}),
        ("all_to_all", (), {"split_axis": 1, "concat_axis": 0}),
        ("reduce_scatter", (), {"axis": 0}),
        ("ppermute", ([(0, 1), (1, 0)],), {}),
        ("distributed_broadcast", (), {}),
    ],
)
def test_a_collective_on_a_sharded_value_says_where_it_belongs(name: str, arguments: Any, named: Any) -> None:
    with mesh.on_grid(GRID):
        sharded = mesh.shard(X, P("dp", None))
        with pytest.raises(InputError, match=r"one tensor, also where mesh\.shard.*a function of blocks") as said:
            getattr(collectives, name)(sharded, *arguments, **named)
    assert ("PartitionSpec()) gives every device all of x" in str(said.value)) == (
        name in ("all_gather", "distributed_broadcast")
    )


def test_a_collective_without_its_axes_says_what_it_takes() -> None:
    with pytest.raises(InputError, match=r"missing 1 required positional argument: 'axes'. It takes x, axes, op"):
        by_ranks(lambda x: collectives.all_reduce(x))  # type: ignore[call-arg]
    with pytest.raises(InputError, match="unexpected keyword argument 'reduce_op'"):
        by_ranks(lambda x: collectives.all_reduce(x, "dp", reduce_op="max"))  # type: ignore[call-arg]
    with pytest.raises(InputError, match="missing 1 required positional argument: 'pairs'"):
        by_ranks(lambda x: collectives.ppermute(x, [(0, 1)]))  # type: ignore[call-arg]


# -- the distributed array package


def test_groups_go_by_their_other_names(tmp_path: Path) -> None:
    def body(world: Group) -> Any:
        mine = np.arange(4, dtype=np.float32) * (world.rank + 1)
        around = [(0, 1), (1, 0)]
        if world.rank == 0:
            world.send(mine, 1)
        received = world.recv_like(mine, 0) if world.rank else mine
        exchanged = [world.all_sum(mine), world.all_max(mine), world.all_min(mine), world.sum_scatter(mine)]
        moved = [world.ppermute(mine, around), world.distributed_broadcast(mine, 1)]
        row = world.split(world.rank)
        assert row is not None
        return [*exchanged, *moved, received, row.all_sum(mine)]

    one, two = np.arange(4.0), np.arange(4.0) * 2
    for rank, found in enumerate(as_ranks(2, tmp_path, body)):
        other = [two, one][rank]
        half = (one + two)[2 * rank : 2 * rank + 2]
        expected = [one + two, two, one, half, other, two, one, [one, two][rank]]
        for got, wanted in zip(found, expected, strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_what_a_rank_writes_wrongly_is_refused_and_the_group_goes_on(tmp_path: Path) -> None:
    def body(world: Group) -> Any:
        for call in (
            lambda: world.recv_like(np.ones(3)),  # type: ignore[call-arg]
            lambda: world.send(np.ones(3), dst=1),  # type: ignore[call-arg]
            lambda: world.all_sum(),
            lambda: world.all_sum(np.ones(3), group=world),
        ):
            with pytest.raises(InputError):
                call()
        return world.all_sum(1.0)

    assert as_ranks(2, tmp_path, body) == [2.0, 2.0]


def test_a_script_may_insist_on_being_launched() -> None:
    with pytest.raises(ConfigError, match=r"nobody launched this process.*mesh-coord launch"):
        mesh.init(strict=True)
    with pytest.raises(ConfigError, match="strict is True or False"):
        mesh.init(strict="yes")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="unexpected keyword argument 'backend'"):
        mesh.init(backend="ring")  # type: ignore[call-arg]


# -- the typed tensor language


def test_a_train_step_is_distributed_by_the_other_name_of_its_strategy(simulated: Mesh) -> None:
    def loss(weights: Any, x: Any) -> Any:
        return mnp.mean((x @ weights) ** 2)

    @mesh.distributed(strategy="data_parallel")
    def whole_batch(x: Any) -> Any:
        return mnp.tanh(x) * 2

    step = mesh.distributed(mesh.value_and_grad(loss), strategy=mesh.DataParallel(inputs=("x",)))
    weights = np.ones((4, 4), np.float32)
    with simulated_block(2) as m:
        np.testing.assert_allclose(np.asarray(whole_batch(X)), np.tanh(X) * 2, rtol=1e-6)
        assert len(m.report().workers) == 2
        found, gradient = step(weights, X)
        assert len(m.report().workers) == 2
        np.testing.assert_allclose(float(found), float(loss(weights, X)), rtol=1e-5)
        np.testing.assert_allclose(np.asarray(gradient), np.asarray(mesh.grad(loss)(weights, X)), rtol=1e-5)


def simulated_block(count: int) -> Mesh:
    return Mesh.builder().simulate(count).build()


def test_an_optimiser_without_a_step_says_where_it_is() -> None:
    with pytest.raises(AttributeError, match=r"trainer\.step_with"):
        mesh.optim.adam(1e-3).step()  # type: ignore[attr-defined]
    assert parser().parse_args(["launch", "--nodes", "1", "--gpus-per-node", "2", "x.py"]).gpus_per_node == 2
