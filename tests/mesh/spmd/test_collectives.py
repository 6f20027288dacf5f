"""Collectives as users call them: every one against numpy on the ranks' blocks, round trips, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import mesh
import mesh.numpy as mnp
from mesh import Grid, collectives
from mesh import PartitionSpec as P
from wire.errors import DTypeError, InputError, MeshError, ShapeError
from wire.ir.dtypes import BY_NAME, DType
from wire.ir.grids import coordinates, groups

SQUARE, THREE, FOUR = Grid((2, 2), ("dp", "tp")), Grid((3,), "dp"), Grid((4,), "dp")
GROUPS = [(SQUARE, "dp"), (SQUARE, "tp"), (SQUARE, ("dp", "tp")), (SQUARE, ("tp", "dp")), (THREE, "dp"), (FOUR, "dp")]
GROUP = pytest.mark.parametrize(("grid", "axes"), GROUPS, ids=lambda each: str(each).replace(" ", ""))
Numbers = NDArray[Any]


def blocks(grid: Grid, shape: tuple[int, ...], dtype: Any = np.float32, seed: int = 0) -> list[Numbers]:
    """An array for every rank, stacked along the first axis when they are put together."""
    rng = np.random.default_rng(seed)
    if np.dtype(dtype) == np.bool_:
        return [rng.random(shape) < 0.5 for _ in range(grid.ranks)]
    turned = 1 + 1j if np.dtype(dtype).kind == "c" else 1
    return [(rng.integers(1, 5, shape) * turned).astype(dtype) for _ in range(grid.ranks)]


def on_ranks(grid: Grid, fn: Callable[..., Any], given: list[Numbers]) -> list[Numbers]:
    """What every rank gets from `fn` of its block."""
    spec = P(grid.names)
    whole = np.asarray(mesh.shard_map(fn, grid, spec, spec)(np.concatenate(given)))
    return np.split(whole, grid.ranks)


def in_groups(grid: Grid, axes: Any, given: list[Numbers], what: Callable[[list[Numbers]], list[Numbers]]) -> Any:
    """What every rank gets if every group computes `what` of its members' arrays."""
    found: list[Any] = [None] * grid.ranks
    for members in groups(grid.names, grid.sizes, grid.axes(axes)):
        for rank, made in zip(members, what([given[rank] for rank in members]), strict=True):
            found[rank] = made
    return found


def assert_ranks(found: list[Numbers], wanted: list[Numbers]) -> None:
    for rank, (one, other) in enumerate(zip(found, wanted, strict=True)):
        np.testing.assert_allclose(one.astype(np.complex128), other.astype(np.complex128), 1e-6, err_msg=f"rank {rank}")


# -- against numpy ----------------------------------------------------------------------------------------

REDUCED: dict[str, Callable[[list[Numbers]], Numbers]] = {
    "sum": lambda each: reduce(np.add, each),
    "prod": lambda each: reduce(np.multiply, each),
    "max": lambda each: reduce(np.maximum, each),
    "min": lambda each: reduce(np.minimum, each),
    "mean": lambda each: np.mean(each, axis=0),
    "and": lambda each: reduce(np.bitwise_and, each),
    "or": lambda each: reduce(np.bitwise_or, each),
}
KINDS = {"sum": "iufc", "prod": "iufc", "mean": "iufc", "max": "biuf", "min": "biuf", "and": "biu", "or": "biu"}
DTYPES = [BY_NAME[name] for name in ("bool", "u8", "i32", "i64", "f16", "bf16", "f32", "f64", "c64")]


@pytest.mark.parametrize("op", REDUCED)
@GROUP
def test_all_reduce_of_every_op_over_every_group(grid: Grid, axes: Any, op: str) -> None:
    given = blocks(grid, (2, 3), np.int32 if op in ("and", "or") else np.float32)
    found = on_ranks(grid, lambda x: collectives.all_reduce(x, axes, op), given)
    assert_ranks(found, in_groups(grid, axes, given, lambda each: [REDUCED[op](each)] * len(each)))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("op", REDUCED)
def test_all_reduce_and_reduce_scatter_of_every_dtype(op: str, dtype: DType) -> None:
    given = blocks(THREE, (3, 2), dtype.numpy)
    if dtype.kind not in KINDS[op]:
        for refused in (collectives.all_reduce, collectives.reduce_scatter):
            with pytest.raises(DTypeError):
                on_ranks(THREE, lambda x, refused=refused: refused(x, "dp", op=op), given)
        return
    wanted = REDUCED[op](given)
    found = on_ranks(THREE, lambda x: collectives.all_reduce(x, "dp", op), given)
    assert found[0].dtype == (
        np.float32 if op == "mean" and dtype.kind != "f" and found[0].itemsize == 4 else found[0].dtype
    )
    assert op == "mean" or found[0].dtype == dtype.numpy
    assert_ranks(found, [wanted] * 3)
    assert_ranks(on_ranks(THREE, lambda x: collectives.reduce_scatter(x, "dp", 0, op), given), np.split(wanted, 3))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_what_moves_values_takes_every_dtype(dtype: DType) -> None:
    given = blocks(THREE, (3, 2), dtype.numpy)
    for fn, wanted in (
        (lambda x: collectives.all_gather(x, "dp"), [np.concatenate(given)] * 3),
        (lambda x: collectives.all_to_all(x, "dp", 0, 0), [np.stack([each[at] for each in given]) for at in range(3)]),
        (lambda x: collectives.send(x, "dp", 2, 1), [np.zeros_like(given[0]), given[2], np.zeros_like(given[0])]),
        (lambda x: collectives.broadcast(x, "dp", 1), [given[1]] * 3),
    ):
        found = on_ranks(THREE, fn, given)
        assert {each.dtype for each in found} == {np.dtype(dtype.numpy)}
        assert_ranks(found, wanted)


def test_small_floats_are_added_in_f32_and_rounded_once() -> None:
    given = [np.full((1,), value, np.float16) for value in (2048.0, 1.0, 1.0)]
    for found in on_ranks(THREE, lambda x: collectives.all_reduce(x, "dp"), given):
        assert found.item() == 2050.0, "2048 + 1 is 2048 in f16"


def test_a_weighted_mean_is_that_of_unequal_shards() -> None:
    rows = [np.arange(count, dtype=np.float32) + count for count in (1, 2, 5)]
    means = [np.array([each.mean()], np.float32) for each in rows]
    counts = np.array([len(each) for each in rows], np.float32)
    mapped = mesh.shard_map(
        lambda x, weight: collectives.all_reduce(x, "dp", "mean", weight=weight[0]), THREE, (P("dp"), P("dp")), P()
    )
    np.testing.assert_allclose(np.asarray(mapped(np.concatenate(means), counts)), [np.concatenate(rows).mean()], 1e-6)


@GROUP
def test_all_gather_joins_and_stacks_along_every_axis(grid: Grid, axes: Any) -> None:
    given = blocks(grid, (2, 3))
    for axis in (0, 1, -1, -2):
        found = on_ranks(grid, lambda x, axis=axis: collectives.all_gather(x, axes, axis), given)
        assert_ranks(found, in_groups(grid, axes, given, lambda each, a=axis: [np.concatenate(each, a)] * len(each)))
    for axis in (0, 1, 2, -1, -3):
        found = on_ranks(grid, lambda x, axis=axis: collectives.all_gather(x, axes, axis, tiled=False), given)
        assert_ranks(found, in_groups(grid, axes, given, lambda each, a=axis: [np.stack(each, a)] * len(each)))


@pytest.mark.parametrize("spec", [P("dp", "tp"), P(("tp", "dp")), P(None, ("dp", "tp")), P("tp"), P()], ids=repr)
def test_all_gather_by_spec_is_the_inverse_of_splitting(spec: P) -> None:
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    whole = mesh.shard_map(lambda block: collectives.all_gather(block, spec), SQUARE, spec, P())(x)
    np.testing.assert_array_equal(np.asarray(whole), x)
    rows = mesh.shard_map(lambda block: collectives.all_gather(block, spec, 0), SQUARE, spec, P(None, *spec.dims[1:]))
    np.testing.assert_array_equal(np.asarray(rows(x)), x)


@GROUP
def test_reduce_scatter_along_every_axis(grid: Grid, axes: Any) -> None:
    given = blocks(grid, (12, 12))
    for axis in (0, 1, -1):
        found = on_ranks(grid, lambda x, axis=axis: collectives.reduce_scatter(x, axes, axis), given)
        wanted = in_groups(grid, axes, given, lambda each, a=axis: np.split(REDUCED["sum"](each), len(each), a))
        assert_ranks(found, wanted)


@GROUP
def test_all_to_all_there_and_back(grid: Grid, axes: Any) -> None:
    given = blocks(grid, (12, 12, 2))
    for split, joined in ((0, 0), (0, 1), (1, 0), (-2, -1), (1, 2)):

        def exchanged(each: list[Numbers], split: int = split, joined: int = joined) -> list[Numbers]:
            cut = [np.split(array, len(each), split) for array in each]
            return [np.concatenate([blocks[at] for blocks in cut], joined) for at in range(len(each))]

        there = on_ranks(grid, lambda x, s=split, j=joined: collectives.all_to_all(x, axes, s, j), given)
        assert_ranks(there, in_groups(grid, axes, given, exchanged))
        back = on_ranks(grid, lambda x, s=split, j=joined: collectives.all_to_all(x, axes, j, s), there)
        assert_ranks(back, given)


@GROUP
@pytest.mark.parametrize(("split", "joined"), [(0, 0), (0, 1), (1, 0), (2, 1), (-1, 0), (0, -1)])
def test_untiled_all_to_all_there_and_back(grid: Grid, axes: Any, split: int, joined: int) -> None:
    ranks = grid.size(axes)
    shape = [2, 3, 5]
    shape[split] = ranks
    given = blocks(grid, tuple(shape))

    def exchanged(each: list[Numbers]) -> list[Numbers]:
        rows = [[np.take(array, at, split) for array in each] for at in range(ranks)]
        return [np.stack(row, joined) for row in rows]

    there = on_ranks(grid, lambda x: collectives.all_to_all(x, axes, split, joined, tiled=False), given)
    assert_ranks(there, in_groups(grid, axes, given, exchanged))
    back = on_ranks(grid, lambda x: collectives.all_to_all(x, axes, joined, split, tiled=False), there)
    assert_ranks(back, given)


@GROUP
def test_permute_shift_and_send(grid: Grid, axes: Any) -> None:
    given, ranks = blocks(grid, (2, 3)), grid.size(axes)

    def sent(pairs: list[tuple[int, int]]) -> Callable[[list[Numbers]], list[Numbers]]:
        came = {destination: source for source, destination in pairs}
        return lambda each: [each[came[at]] if at in came else np.zeros_like(each[0]) for at in range(len(each))]

    for pairs in ([(0, ranks - 1)], [(0, 0)], [], [(at, ranks - 1 - at) for at in range(ranks)]):
        found = on_ranks(grid, lambda x, pairs=pairs: collectives.permute(x, axes, pairs), given)
        assert_ranks(found, in_groups(grid, axes, given, sent(pairs)))
    for by in (1, -1, ranks + 1):
        found = on_ranks(grid, lambda x, by=by: collectives.shift(x, axes, by), given)
        assert_ranks(
            found,
            in_groups(grid, axes, given, lambda each, by=by: [each[(at - by) % len(each)] for at in range(len(each))]),
        )
    for source in range(ranks):
        found = on_ranks(grid, lambda x, source=source: collectives.send(x, axes, source, 0), given)
        assert_ranks(found, in_groups(grid, axes, given, sent([(source, 0)])))


@GROUP
def test_broadcast_from_every_root(grid: Grid, axes: Any) -> None:
    given = blocks(grid, (2, 3))
    for root in range(grid.size(axes)):
        found = on_ranks(grid, lambda x, root=root: collectives.broadcast(x, axes, root), given)
        assert_ranks(found, in_groups(grid, axes, given, lambda each, root=root: [each[root]] * len(each)))


@GROUP
def test_axis_index_and_size(grid: Grid, axes: Any) -> None:
    numbers = np.asarray(
        mesh.shard_map(lambda: mnp.reshape(collectives.axis_index(axes), (1,)), grid, (), P(grid.names))()
    )
    names = grid.axes(axes)
    for number, at in zip(numbers, coordinates(grid.sizes), strict=True):
        place = dict(zip(grid.names, at, strict=True))
        wanted = reduce(lambda total, name: total * grid.shape[name] + place[name], names, 0)
        assert (number, numbers.dtype) == (wanted, np.int32)
    sizes: list[int] = []
    mesh.shard_map(lambda x: sizes.append(collectives.axis_size(axes)) or x, grid, P(), P())(np.ones(1))
    assert sizes == [grid.size(axes)]


# -- trees, by name ---------------------------------------------------------------------------------------


def test_a_tree_is_reduced_by_name() -> None:
    tree = {"w": np.ones((3, 2), np.float32), "b": {"x": np.full(3, 2, np.float32)}}
    specs, out = {"w": P("dp"), "b": {"x": P("dp")}}, {"w": P(), "b": {"x": P()}}
    reduced = mesh.shard_map(lambda t: collectives.all_reduce(t, "dp", names=["b/x", "w"]), THREE, (specs,), out)
    found = reduced(tree)
    np.testing.assert_array_equal(np.asarray(found["w"]), [[3, 3]])
    np.testing.assert_array_equal(np.asarray(found["b"]["x"]), [6])


def test_the_order_in_which_a_tree_was_made_does_not_matter() -> None:
    """Each rank makes its dict in the order of its own program; leaves that have one name are summed."""
    one, two = np.full(3, 1, np.float32), np.full(3, 2, np.float32)

    def reduced(tree: dict[str, Any]) -> dict[str, Any]:
        return collectives.all_reduce(tree, "dp", names=["b", "w"])

    for made in (lambda x, y: {"w": x, "b": y}, lambda x, y: {"b": y, "w": x}):
        found = mesh.shard_map(lambda x, y, made=made: reduced(made(x, y)), THREE, P("dp"), P())(one, two)
        assert [np.asarray(found[name]).item() for name in ("w", "b")] == [3, 6]


@pytest.mark.parametrize(("names", "said"), [(["w", "v"], "lacks 'v'"), ([], "nobody expects, 'w'")])
def test_a_name_that_is_missing_or_too_many_is_refused(names: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        mesh.shard_map(lambda x: collectives.all_reduce({"w": x}, "dp", names=names), THREE, P("dp"), P())(np.ones(3))


# -- what is refused, where it is written -----------------------------------------------------------------

WRONG: list[tuple[str, Callable[[Any], Any], type[MeshError], str]] = [
    ("unknown op", lambda x: collectives.all_reduce(x, "dp", "median"), InputError, "no op 'median'.*sum, mean"),
    ("unknown op", lambda x: collectives.reduce_scatter(x, "dp", 0, "avg"), InputError, "no op 'avg'"),
    ("weight of a sum", lambda x: collectives.all_reduce(x, "dp", weight=1.0), InputError, "belongs to a mean"),
    ("weights", lambda x: collectives.all_reduce(x, "dp", "mean", weight=x), InputError, "one number"),
    ("unknown axis", lambda x: collectives.all_reduce(x, "pp"), InputError, "no axis 'pp'.*It has dp"),
    ("no axis", lambda x: collectives.all_reduce(x, ()), InputError, "distinct names"),
    ("axis twice", lambda x: collectives.all_gather(x, ("dp", "dp")), InputError, "distinct names"),
    ("part of an axis", lambda x: collectives.all_gather(x, "dp:2"), InputError, "part of an axis"),
    ("bits of floats", lambda x: collectives.all_reduce(x, "dp", "and"), DTypeError, "does not take f32"),
    ("axis", lambda x: collectives.all_gather(x, "dp", 2), InputError, "along axis 2"),
    ("axis", lambda x: collectives.reduce_scatter(x, "dp", -3), InputError, "along axis -3"),
    ("not divisible", lambda x: collectives.reduce_scatter(x, "dp", 1), ShapeError, "into 3 blocks, and 4 does not"),
    ("not divisible", lambda x: collectives.all_to_all(x, "dp", 1, 0), ShapeError, "into 3 blocks, and 4 does not"),
    (
        "not a row each",
        lambda x: collectives.all_to_all(x, "dp", 1, 0, tiled=False),
        ShapeError,
        "one row along axis 1",
    ),
    ("source twice", lambda x: collectives.permute(x, "dp", [(0, 1), (0, 2)]), InputError, "source 0 twice"),
    ("destination twice", lambda x: collectives.permute(x, "dp", [(0, 1), (2, 1)]), InputError, "destination 1 twice"),
    ("no such rank", lambda x: collectives.permute(x, "dp", [(0, 3)]), InputError, "has 3 ranks"),
    ("no such rank", lambda x: collectives.send(x, "dp", -1, 0), InputError, "has 3 ranks"),
    ("no such root", lambda x: collectives.broadcast(x, "dp", 3), InputError, "has 3 ranks"),
    ("no array", lambda x: collectives.all_reduce("text", "dp"), InputError, "a str, not an array"),
]


@pytest.mark.parametrize(("fn", "error", "said"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_what_does_not_fit_is_refused_where_it_is_written(
    fn: Callable[[Any], Any], error: type[MeshError], said: str
) -> None:
    with pytest.raises(error, match=said):
        mesh.shard_map(fn, THREE, P(), P("dp"))(np.ones((3, 4), np.float32))


CALLS: list[Callable[[Any], Any]] = [
    lambda x: collectives.all_reduce(x, "dp"),
    lambda x: collectives.all_gather(x, "dp"),
    lambda x: collectives.all_gather(x, P("dp")),
    lambda x: collectives.reduce_scatter(x, "dp"),
    lambda x: collectives.all_to_all(x, "dp", 0, 0),
    lambda x: collectives.permute(x, "dp", []),
    lambda x: collectives.shift(x, "dp"),
    lambda x: collectives.send(x, "dp", 0, 1),
    lambda x: collectives.broadcast(x, "dp"),
    lambda x: collectives.axis_index("dp"),
    lambda x: collectives.axis_size("dp"),
]


@pytest.mark.parametrize("call", CALLS)
def test_outside_of_a_grid_they_say_where_they_belong(call: Callable[[Any], Any]) -> None:
    with pytest.raises(InputError, match=r"there is no grid here.*mesh\.shard_map"):
        call(np.ones(4, np.float32))


# -- properties -------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(GROUPS), st.integers(1, 3), st.integers(0, 2), st.integers(0, 99))
def test_scattering_a_sum_and_gathering_it_is_the_sum(group: Any, count: int, axis: int, seed: int) -> None:
    grid, axes = group
    shape = [2, 3, 1]
    shape[axis] = count * grid.size(axes)
    given_ = blocks(grid, tuple(shape), np.int32, seed)

    def both(x: Any) -> Any:
        return collectives.all_gather(collectives.reduce_scatter(x, axes, axis), axes, axis)

    assert_ranks(on_ranks(grid, both, given_), on_ranks(grid, lambda x: collectives.all_reduce(x, axes), given_))


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(GROUPS), st.data())
def test_a_permutation_and_its_inverse(group: Any, data: Any) -> None:
    grid, axes = group
    order = data.draw(st.permutations(range(grid.size(axes))))
    given_ = blocks(grid, (2,), np.int32, len(order))
    there = [(source, destination) for source, destination in enumerate(order)]
    back = [(destination, source) for source, destination in there]
    found = on_ranks(grid, lambda x: collectives.permute(collectives.permute(x, axes, there), axes, back), given_)
    assert_ranks(found, given_)


@pytest.mark.parametrize(
    ("number", "dtype"),
    [
        (200, np.uint8),
        (-100, np.int8),
        (30000, np.int16),
        (2**31 - 1, np.int32),
        (2**63 - 1, np.int64),
        (4e4, np.float16),
    ],
)
def test_a_mean_has_room_for_its_sum(number: float, dtype: Any) -> None:
    """The sum was made in the dtype of the arrays: the mean of 200 and 200 was 72, that of 40,000 in f16 infinite."""
    given = [np.full((4,), number, dtype)] * 4
    wanted = np.mean(given, axis=0)
    for fn, count in (
        (lambda x: collectives.all_reduce(x, "dp", "mean"), 4),
        (lambda x: collectives.reduce_scatter(x, "dp", op="mean"), 1),
        (lambda x: collectives.all_reduce(x, "dp", "mean", weight=mnp.asarray(70_000)), 4),
        (lambda x: collectives.all_reduce(x, "dp", "mean", weight=mnp.asarray(3, dtype="uint8")), 4),
        (lambda x: collectives.all_reduce(x, "dp", "mean", weight=1.5), 4),
    ):
        for found in on_ranks(FOUR, fn, given):
            assert found.dtype == (np.float16 if dtype is np.float16 else np.float32)
            np.testing.assert_allclose(found, wanted[:count], rtol=1e-3 if dtype is np.float16 else 1e-6)


def test_a_mean_of_halves_that_overflow_has_a_derivative() -> None:
    mean = mesh.shard_map(lambda x: collectives.all_reduce(x, "dp", "mean"), FOUR, P("dp"), P())
    slope = mesh.grad(lambda x: mnp.sum(mean(x)))(np.full(4, 4e4, np.float16))
    np.testing.assert_array_equal(np.asarray(slope), np.full(4, 0.25, np.float16))
