"""Mesh.compile: one signature for functions and graphs, wherever they run, and what it writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mesh
import mesh.numpy as mnp
from mesh import Grid, Mesh, collectives, shard_map
from mesh import PartitionSpec as P
from wire.errors import ConfigError, GraphError, InputError, NodeLost
from wire.ir.text import from_text

X = np.arange(12, dtype=np.float32).reshape(4, 3)
GRID = Grid((2,), ("dp",))


def plain(x: Any) -> Any:
    return mnp.tanh(x) * 2


total = shard_map(lambda x: collectives.all_reduce(mnp.tanh(x), "dp"), GRID, in_specs=P("dp"), out_specs=P())


def in_a_loop(x: Any) -> Any:
    return mesh.fori_loop(0, 3, lambda _, carry: carry + mnp.sum(total(x)), mnp.sum(x))


@pytest.fixture(scope="module")
def simulated() -> Iterator[Mesh]:
    with Mesh.builder().simulate(2).build() as made:
        yield made


@pytest.mark.parametrize("mode", ["auto", "on", "off", "local"])
@pytest.mark.parametrize("given", [plain, mesh.trace(plain, X)], ids=["function", "graph"])
def test_every_mode_gives_the_same(simulated: Mesh, mode: str, given: Any) -> None:
    compiled = simulated.compile(given, X, mode=mode, name="twice")
    np.testing.assert_allclose(compiled(X), np.tanh(X) * 2, rtol=1e-6)
    here = simulated.report().reasons == ("computed in this process",)
    assert here == (mode in ("off", "local"))


@pytest.mark.parametrize("mode", ["auto", "on", "off"])
def test_programs_of_ranks_run_in_every_mode_but_local(simulated: Mesh, mode: str) -> None:
    found = simulated.compile(total, X, mode=mode, strategy="ranks")(X)
    np.testing.assert_allclose(found, np.tanh(X[:2]) + np.tanh(X[2:]), rtol=1e-6)


@pytest.mark.parametrize("given", [total, in_a_loop, mesh.trace(total, X)], ids=["ranks", "ranks in a loop", "graph"])
@pytest.mark.parametrize("how", ["compile", "run", "submit"])
def test_local_refuses_a_collective_before_anything_runs(simulated: Mesh, given: Any, how: str) -> None:
    with pytest.raises(
        GraphError, match="mode='local' computes in this process alone, and all_reduce speaks"
    ) as caught:
        getattr(simulated, how)(given, X, mode="local")
    assert caught.value.op == "all_reduce"


def test_local_refuses_other_devices_and_sessions_with_collectives(simulated: Mesh) -> None:
    with pytest.raises(GraphError, match=r"not on .*sim-1"):
        simulated.compile(lambda x: mesh.to_device(x, "sim-1"), X, mode="local")
    with pytest.raises(GraphError, match="all_reduce"):
        simulated.session(lambda state, x: (state + mnp.sum(total(x)), state), np.float32(0), X, mode="local")
    with simulated.session(lambda state, x: (state + mnp.sum(x), state), np.float32(0), X, mode="local") as session:
        session.step(X).result()
        assert float(session.state()) == X.sum()


def compiled_on_workers(mesh: Mesh) -> int:
    """How many parts engines were asked to compile for the last call; `tests/e2e/test_kernel_cache.py` has what these
    then take from their caches."""
    return sum(each.kernels_compiled for each in mesh.report().workers.values())


def test_with_force_the_first_call_compiles_anew(simulated: Mesh) -> None:
    def work(x: Any) -> Any:
        return mnp.tanh(x) * 3

    simulated.compile(work, X, strategy="single")(X)
    found = []
    for force in ({}, {"force": True}, {"use_cached_if_exists": False}):
        compiled = simulated.compile(work, X, strategy="single", **force)
        for _ in range(2):
            np.testing.assert_allclose(compiled(X), np.tanh(X) * 3, rtol=1e-6)
            found.append(compiled_on_workers(simulated))
    assert found == [0, 0, 1, 0, 1, 0]
    with pytest.raises(InputError, match="force is True or False"):
        simulated.compile(work, X, force="yes")
    with pytest.raises(InputError, match="use_cached_if_exists is True or False"):
        simulated.compile(work, X, use_cached_if_exists=None)


def test_a_rank_of_several_writes_to_a_folder_of_its_own(
    simulated: Mesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in (("RANK", "1"), ("WORLD_SIZE", "3"), ("RENDEZVOUS", str(tmp_path / "meeting"))):
        monkeypatch.setenv(f"MESH_{variable}", value)
    simulated.compile(plain, X, name="kernel", build_dir=tmp_path / "made")
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["rank_1"]
    assert len(list((tmp_path / "made" / "rank_1").glob("kernel-*"))) == 2


def test_a_mode_that_is_not_known_is_refused(simulated: Mesh) -> None:
    with pytest.raises(InputError, match="mode='maybe' is not known"):
        simulated.compile(plain, X, mode="maybe")


def test_what_was_traced_is_kept_unless_it_must_not_be(simulated: Mesh) -> None:
    traced = []

    def counted(x: Any) -> Any:
        traced.append(x.shape)
        return x + 1

    for cache, times in ((True, 2), (False, 5)):
        traced.clear()
        compiled = simulated.compile(counted, X, mode="local", cache=cache)
        for rows in (4, 2, 4, 2):
            compiled(X[:rows])
        assert len(traced) == times


def test_graphs_are_written_by_name_for_commands_and_for_people(simulated: Mesh, tmp_path: Path) -> None:
    folder = tmp_path / "made" / "here"
    compiled = simulated.compile(plain, X, name="my step/1", build_dir=folder)
    compiled(X[:2])
    wires, texts = sorted(folder.glob("my_step_1-*.wire")), sorted(folder.glob("my_step_1-*.txt"))
    assert len(wires) == len(texts) == 2
    assert len(list(folder.iterdir())) == 4
    graphs = [mesh.WireGraph.load(path) for path in wires]
    assert {graph.name for graph in graphs} == {"my step/1"}
    assert {tuple(graph.input_types["x"].shape) for graph in graphs} == {(4, 3), (2, 3)}
    assert [from_text(path.read_text()) for path in texts] == graphs
    assert {graph.hash for graph in graphs} >= {mesh.trace(plain, X).hash}  # a name is no part of what is computed
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        simulated.compile(plain, X, build_dir=tmp_path / "file" / "x")


def test_on_needs_workers() -> None:
    with Mesh.builder().simulate(1).build() as alone:
        alone.simulation.kill("sim-0")
        with pytest.raises(NodeLost):
            alone.compile(plain, X, mode="on")(X)
        np.testing.assert_allclose(alone.compile(plain, X, mode="local")(X), np.tanh(X) * 2, rtol=1e-6)
