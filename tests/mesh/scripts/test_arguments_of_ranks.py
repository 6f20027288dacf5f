"""What ranks cannot be asked: each mistake is named where it is made, and leaves the group as it was."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mesh
from mesh import Grid, PartitionSpec, collectives, shard_map
from mesh.errors import ConfigError, DeadlineExceeded, DTypeError, InputError, MeshError, ShapeError
from mesh.scripts import world
from mesh.scripts.group import Group
from mesh.scripts.settings import RankSettings

X = np.ones((2, 2), np.float32)
BAD_SECONDS: list[Any] = ["x", 0, -1, math.nan, math.inf, [], 10**400, True]
BAD_PAIRS: list[Any] = [3, None, "ab", [(0,)], [0], [(0.5, 0)], [("0", "0")], [(0, 9)], [(-1, 0)], {0: 0}, [(0, 0)] * 2]
BAD_WEIGHTS: list[Any] = [0, math.nan, math.inf, -1, "x", [1, 2], {}, 1j, True]
BAD_AXES: list[Any] = ["x", None, 0.5, True, [0]]


@pytest.fixture
def alone() -> Any:
    yield mesh.init()
    world.shutdown()


def refused(kind: type[MeshError], said: str, call: Callable[[], Any]) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert said in str(caught.value)


@pytest.mark.parametrize("seconds", BAD_SECONDS)
def test_seconds_that_nobody_can_wait(alone: Group, seconds: Any) -> None:
    said = "a positive number of seconds"
    refused(ConfigError, said, lambda: alone.barrier(timeout_s=seconds))
    refused(ConfigError, said, lambda: alone.all_reduce(X, timeout_s=seconds))
    refused(ConfigError, said, lambda: mesh.barrier(seconds))
    refused(ConfigError, said, lambda: RankSettings().changed(timeout_s=seconds))
    assert alone.all_reduce(X).tolist() == X.tolist(), "the group goes on"


@pytest.mark.parametrize("pairs", BAD_PAIRS)
def test_pairs_that_are_none(alone: Group, pairs: Any) -> None:
    refused(InputError, "permute", lambda: alone.permute(X, pairs))
    assert alone.permute(X, [(0, 0)]).tolist() == X.tolist()


@pytest.mark.parametrize("weight", BAD_WEIGHTS)
def test_weights_that_make_no_mean(alone: Group, weight: Any) -> None:
    refused(InputError, "weight", lambda: alone.all_reduce(X, "mean", weight=weight))
    assert alone.all_reduce(X, "mean", weight=2).tolist() == X.tolist()


@pytest.mark.parametrize("axis", BAD_AXES)
def test_axes_that_are_none(alone: Group, axis: Any) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: alone.all_gather(X, axis),
        lambda: alone.all_gather(X, axis, tiled=False),
        lambda: alone.reduce_scatter(X, axis),
        lambda: alone.all_to_all(X, axis),
        lambda: alone.all_to_all(X, 0, axis),
    ]
    for call in calls:
        refused(InputError, "an int, not", call)
    refused(ShapeError, "9", lambda: alone.all_gather(X, 9, tiled=False))


@pytest.mark.parametrize(
    "x", ["abc", object(), np.array(["2020"], "M8"), np.zeros(2, "i4,f4"), np.ones(2, np.longdouble)]
)
def test_what_no_rank_can_send(alone: Group, x: Any) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: alone.all_reduce(x),
        lambda: alone.all_gather(x),
        lambda: alone.broadcast(x),
        lambda: alone.permute(x, []),
    ]
    for call in calls:
        refused(DTypeError, "has no counterpart", call)
    refused(InputError, "ranks exchange arrays", lambda: alone.all_gather([[1], [1, 2]]))
    alone.barrier()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rank": -1, "world_size": 2}, "rank -1 of 2"),
        ({"rank": 2, "world_size": 2}, "rank 2 of 2"),
        ({"rank": 0, "world_size": 0}, "no world of 0 ranks"),
        ({"rank": 0, "world_size": 10**9}, "no world of 1000000000 ranks"),
        ({"rank": "a", "world_size": 1}, "a rank is an int, not 'a'"),
        ({"rank": 0.5, "world_size": 1}, "a rank is an int, not 0.5"),
        ({"rank": True, "world_size": 2}, "a rank is an int, not True"),
        ({"rank": 0, "world_size": "2"}, "the number of ranks is an int, not '2'"),
        ({"rank": 0, "world_size": 2, "rendezvous": 3}, "rendezvous is the path of a folder"),
        ({"rank": 0, "world_size": 2, "rendezvous": __file__}, "cannot meet in"),
        ({"rank": 0, "world_size": 2}, "does not know where to find the others"),
    ],
)
def test_worlds_that_there_are_not(given: dict[str, Any], said: str) -> None:
    world.shutdown()
    refused(ConfigError, said, lambda: mesh.init(**given))


GRID = Grid((2, 2), ("dp", "tp"))
P = PartitionSpec("dp")
INSIDE: list[tuple[str, Callable[[Any], Any]]] = [
    ("axes", lambda x: collectives.all_reduce(x, 3)),
    ("axes", lambda x: collectives.all_reduce(x, None)),
    ("axes", lambda x: x * collectives.axis_size(None)),
    ("weight", lambda x: collectives.all_reduce(x, "dp", "mean", weight=0)),
    ("weight", lambda x: collectives.all_reduce(x, "dp", "mean", weight=math.nan)),
    ("names", lambda x: collectives.all_reduce({"a": x}, "dp", names=3)),
    ("axis of all_gather", lambda x: collectives.all_gather(x, "dp", "x")),
    ("axis of all_gather", lambda x: collectives.all_gather(x, "dp", True)),
    ("axis of reduce_scatter", lambda x: collectives.reduce_scatter(x, "dp", None)),
    ("axis of all_to_all", lambda x: collectives.all_to_all(x, "dp", "x", 0)),
    ("shift", lambda x: collectives.shift(x, "dp", 0.5)),
    ("source of send is an int, not 'a'", lambda x: collectives.send(x, "dp", "a", 1)),
    ("root of broadcast", lambda x: collectives.broadcast(x, "dp", "x")),
    ("root of broadcast", lambda x: collectives.broadcast(x, "dp", None)),
    *[("permute", lambda x, pairs=pairs: collectives.permute(x, "dp", pairs)) for pairs in BAD_PAIRS],
    ("permute", lambda x: collectives.permute(x, "dp", (pair for pair in [(0, 1), (0, 0)]))),
]


@pytest.mark.parametrize(("said", "body"), INSIDE)
def test_collectives_of_graphs_name_what_is_wrong(said: str, body: Callable[[Any], Any]) -> None:
    refused(InputError, said, lambda: shard_map(body, GRID, in_specs=P, out_specs=P, check=False)(X))


@pytest.mark.parametrize(
    "given",
    [(None, None), ((2,), 3), ("2", "a"), ((2, 2), ("a", "b"), 4.0), ((2, 2), ("a", "b"), "4"), ((2, -1), "ab", 0)],
)
def test_grids_that_are_none(given: tuple[Any, ...]) -> None:
    with pytest.raises(InputError):
        Grid(*given)


@pytest.mark.parametrize("folder", ["x" * 5000, "y" * 300, "a\0b", "turning", "its own note is a folder"])
def test_a_folder_in_which_no_rank_can_meet_is_named(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("turning").symlink_to("turning")
    Path("its own note is a folder", "rank-0").mkdir(parents=True)
    refused(ConfigError, "ranks cannot meet in", lambda: mesh.init(0, 2, folder, 1.0))


@pytest.mark.parametrize(
    "note",
    [{}, {"directory": 5}, {"directory": "/x", "addresses": 5}, {"directory": "/x", "host": 5}, [], "[" * 100_000],
)
def test_a_file_that_no_rank_wrote_is_no_note(note: Any, tmp_path: Path) -> None:
    text = note if isinstance(note, str) else json.dumps(note)
    (tmp_path / "rank-1").write_text(text)
    tmp_path.chmod(0o700)
    refused(DeadlineExceeded, "for rank 1 to come", lambda: mesh.init(0, 2, tmp_path, 0.2))


def test_who_takes_part_cannot_meet_elsewhere(alone: Group, tmp_path: Path) -> None:
    refused(ConfigError, "takes part already, as rank 0", lambda: mesh.init(rendezvous=tmp_path))
    refused(ConfigError, "takes part already, as rank 0", lambda: mesh.init(0, 2, tmp_path))
    assert mesh.init() is alone and mesh.init(0, 1) is alone


def test_who_takes_part_may_name_what_it_has_again() -> None:
    settings = RankSettings(rank=1, size=2, meeting="here")
    assert not world._is_other(settings, None, None, "here")
    assert world._is_other(settings, 0, None, None) and world._is_other(settings, None, None, "elsewhere")
