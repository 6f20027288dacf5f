"""Factor rules: one for every op, and what they say of the ops whose rule is not plain."""

from __future__ import annotations

from typing import Any

import pytest

import mesh
import mesh.numpy as mnp
from wire.errors import UnknownOp
from wire.ir.dtypes import F32, I32, U32, DType
from wire.ir.ops import OPS
from wire.ir.types import Attrs, TensorType
from wire.sharding.factors import ROWS, WITHOUT, rule_of
from wire.sharding.rule import Rule


def _types(*shapes: tuple[int, ...], dtype: DType = F32) -> list[TensorType]:
    return [TensorType(shape, dtype) for shape in shapes]


def _rule(op: str, types: list[TensorType], results: int = 1, **attrs: Any) -> Rule:
    rule = rule_of(op, Attrs(attrs), types, results)
    assert rule is not None
    return rule


def test_every_op_has_a_rule_or_says_why_not() -> None:
    assert OPS.keys() - ROWS.keys() == WITHOUT.keys() & OPS.keys()
    assert all(WITHOUT.values())


def test_an_op_without_a_row_is_named() -> None:
    with pytest.raises(UnknownOp, match="'sharpen' has no sharding rule"):
        rule_of("sharpen", Attrs(), [])


def test_dot_is_split_along_batches_and_free_axes_and_summed_over_contracted_ones() -> None:
    batched = {"lhs_batch": (0,), "rhs_batch": (0,), "lhs_contract": (2,), "rhs_contract": (1,)}
    rule = _rule("dot", _types((2, 3, 4), (2, 4, 5)), **batched)
    ((b, m, k), (b2, k2, n)), ((b3, m2, n2),) = rule.operands, rule.results
    assert b == b2 == b3 and k == k2 and m == m2 and n == n2
    assert rule.reduced == {k[0]: "sum"}
    assert [rule.sizes[dim[0]] for dim in (b, m, k, n)] == [2, 3, 4, 5]


def test_what_is_broadcast_is_whole() -> None:
    rule = _rule("add", _types((4, 1), (3,)))
    assert rule.operands == (((0,), ()), ((1,),))
    assert rule.results == (((0,), (1,)),)


@pytest.mark.parametrize(
    ("before", "after", "operand", "result"),
    [
        ((6, 4), (24,), [(6,), (4,)], [(6, 4)]),
        ((24,), (6, 4), [(6, 4)], [(6,), (4,)]),
        ((2, 3, 4), (6, 4), [(2,), (3,), (4,)], [(2, 3), (4,)]),
        ((6, 4), (3, 8), [(3, 2), (4,)], [(3,), (2, 4)]),
        ((4, 3), (3, 4), [(), ()], [(), ()]),
        ((5, 4, 3), (5, 3, 4), [(5,), (), ()], [(5,), (), ()]),
        ((1, 5, 1), (5, 1, 1), [(), (5,), ()], [(5,), (), ()]),
        ((0, 4), (2, 0), [(), ()], [(), ()]),
        ((), (1, 1), [], [(), ()]),
    ],
    ids=str,
)
def test_reshape_shares_what_both_sides_begin_with(
    before: tuple[int, ...], after: tuple[int, ...], operand: list[tuple[int, ...]], result: list[tuple[int, ...]]
) -> None:
    rule = _rule("reshape", _types(before), shape=after)
    sizes = [
        [tuple(rule.sizes[factor] for factor in made) for made in side[0]] for side in (rule.operands, rule.results)
    ]
    assert sizes == [operand, result]


def test_factors_that_share_a_dimension_are_exact() -> None:
    merged = _rule("reshape", _types((5, 4)), shape=(20,))
    assert not merged.may_split(0, 2) and merged.may_split(0, 5) and merged.may_split(1, 2)
    assert _rule("exp", _types((5,))).may_split(0, 2)


def test_groups_of_a_convolution_are_split_with_their_channels() -> None:
    attrs: dict[str, Any] = dict.fromkeys(("stride", "lhs_dilation", "rhs_dilation"), (1,))
    attrs |= {"low": (0,), "high": (0,)}
    grouped = _rule("conv", _types((8, 6, 9), (4, 3, 3)), **attrs, groups=2)
    batch, group, out, inside = 0, 3, 1, 2
    assert grouped.operands == (((batch,), (group, inside), ()), ((group, out), (inside,), ()))
    assert grouped.results == (((batch,), (group, out), ()),)
    assert grouped.reduced == {inside: "sum"}
    plain = _rule("conv", _types((8, 6, 9), (4, 6, 3)), **attrs, groups=1)
    assert plain.operands == (((0,), (2,), ()), ((1,), (2,), ()))


def test_rows_of_a_table_are_terms_of_a_sum() -> None:
    rule = _rule("gather", [TensorType((10, 4), F32), TensorType((3,), I32)], axis=0, batch_dims=0)
    table = rule.operands[0][0][0]
    assert rule.reduced == {table: "sum"} and table in rule.special
    assert rule.results[0] == (rule.operands[1][0], rule.operands[0][1])


def test_updates_are_terms_where_their_order_does_not_matter() -> None:
    types = [TensorType((10, 4), F32), TensorType((3,), I32), TensorType((3, 4), F32)]
    for mode, how in (("add", "sum"), ("max", "max"), ("min", "min")):
        rule = _rule("scatter", types, axis=0, mode=mode)
        assert list(rule.reduced.values()) == [how]
    assert _rule("scatter", types, axis=0, mode="set").operands[1] == ((),)


def _node(graph: mesh.WireGraph, op: str) -> Rule:
    index = next(place for place, node in enumerate(graph.nodes) if node.op == op)
    node = graph.nodes[index]
    rule = rule_of(
        node.op, node.attrs, [graph.types[source] for source in node.inputs], node.attrs.get("output", 0) + 1
    )
    assert rule is not None
    return rule


def test_a_composite_is_split_where_its_body_speaks_to_nobody() -> None:
    graph = mesh.trace(lambda x: mesh.nn.softmax(x, axis=-1), mesh.ShapeDtype((4, 6)))
    rule = _node(graph, "composite")
    assert rule.operands == (((0,), ()),)
    assert rule.results == (((0,), ()),)


def test_heads_that_a_body_takes_apart_are_exact() -> None:
    def body(x: mesh.Array) -> mesh.Array:
        return mnp.sum(mnp.reshape(x, (3, 4, 2)), axis=2)

    graph = mesh.trace(lambda p, x: mesh.cond(p, body, body, x), mesh.ShapeDtype((), "bool"), mesh.ShapeDtype((3, 8)))
    rule = _node(graph, "cond")
    assert rule.operands == ((), ((0,), (1,)))
    assert rule.exact == {1} and rule.sizes == (3, 4)


def test_a_carry_is_split_where_it_stays_so_from_turn_to_turn() -> None:
    def turn(carry: mesh.Array, row: mesh.Array) -> tuple[mesh.Array, mesh.Array]:
        return carry + mnp.sum(row), carry * 2

    rows, start = mesh.ShapeDtype((5, 3)), mesh.ShapeDtype((4,))
    graph = mesh.trace(lambda start, rows: mesh.scan(turn, start, rows), start, rows)
    rule = _node(graph, "scan")
    assert rule.operands[0] == ((0,),) and rule.operands[-1] == ((), ())
    turned = mesh.trace(lambda start, rows: mesh.scan(lambda c, row: (c[::-1], row * 2), start, rows), start, rows)
    assert _node(turned, "scan").operands[0] == ((),)


def test_a_loop_whose_test_looks_at_all_rows_is_whole() -> None:
    def step(x: mesh.Array) -> mesh.Array:
        return x * 2

    graph = mesh.trace(lambda x: mesh.while_loop(lambda x: mnp.any(x < 9), step, x), mesh.ShapeDtype((4, 2)))
    assert _node(graph, "while").operands == (((), ()),)


def test_random_words_and_positions_know_where_they_are() -> None:
    words = _rule("random_bits", [TensorType((2,), U32)], shape=(4, 2))
    assert words.special == {0, 1} and words.operands == (((),),)
    line = _rule("iota", [], shape=(4, 2), dtype="i32", axis=1)
    assert line.special == {1}


def test_the_windows_of_an_update_are_whole_where_they_are_narrower() -> None:
    types = [TensorType((4, 8), F32), TensorType((4, 2), F32), TensorType((2,), I32)]
    rule = _rule("dynamic_update_slice", types)
    assert rule.operands == (((0,), ()), ((0,), ()), ((),))
