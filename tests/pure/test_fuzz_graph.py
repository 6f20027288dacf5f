"""Whatever bytes come as a graph: a valid graph or a GraphError, and no memory beyond what the bytes are worth."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from support.golden import square_sum
from support.random_graphs import random_graph
from support.tampering import EXTREMES, Fields, bombs, column_bytes, nested, refuse_tampered

from wire.codec import decode_graph, encode_graph
from wire.errors import GraphError, VersionMismatch
from wire.limits import DEFAULT, MIB
from wire.verify import verify

SEEDS = 40
REFUSED = (GraphError, VersionMismatch)


def valid() -> list[bytes]:
    graphs = [square_sum(), nested(DEFAULT.nesting_max), *(random_graph(seed).graph for seed in range(SEEDS))]
    return [encode_graph(graph, graph.name) for graph in graphs]


def attempt(data: bytes) -> bool:
    """Whether `data` is refused; if it is not, the graph must stand up to the verifier and encode to itself."""
    try:
        graph = decode_graph(data)
    except REFUSED:
        return True
    verify(graph)
    assert decode_graph(graph.encoded) == graph
    return False


def rebuilt(rng: random.Random, fields: Fields) -> bytes:
    """An encoding that is msgpack all right: one to three of its fields have wrong values at random places."""
    for _ in range(rng.randint(1, 3)):
        name = rng.choice(Fields.__slots__)
        value = getattr(fields, name)
        extreme = rng.choice(
            [0, 1, -1, 255, 1 << 16, (1 << 32) - 1, 1 << 62, (1 << 64) - 1, None, "x", b"", 1.5, [], {}]
        )
        if isinstance(value, list) and value:
            at = rng.randrange(len(value))
            if isinstance(value[at], dict) and value[at]:
                key = rng.choice(list(value[at]))
                extreme = {**value[at], key: extreme if rng.random() < 0.5 else [extreme] * rng.randint(1, 20)}
            value = [*value[:at], extreme, *value[at + 1 :]]
        else:
            value = extreme
        fields = fields.but(**{name: value})
    columns = {
        name: column_bytes([each if type(each) is int and 0 <= each < 1 << 32 else 7 for each in getattr(fields, name)])
        for name in ("ops", "arities", "inputs", "attrs")
        if isinstance(getattr(fields, name), list)
    }
    return fields.but(**columns).pack()


@pytest.mark.parametrize("count", [30_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_tampered_graphs_raise_nothing_but_graph_errors_and_keep_no_memory(count: int) -> None:
    refuse_tampered(random.Random(7), valid(), attempt, count, "graphs")


@pytest.mark.parametrize("count", [3_000, pytest.param(200_000, marks=pytest.mark.long)])
def test_wrong_values_in_right_places_raise_nothing_but_graph_errors(count: int) -> None:
    rng = random.Random(8)
    originals = [Fields.of(random_graph(seed).graph) for seed in range(SEEDS)]
    refused = sum(attempt(rebuilt(rng, rng.choice(originals))) for _ in range(count))
    assert refused > count // 2


@pytest.mark.parametrize("name", bombs())
def test_a_bomb_costs_no_more_than_its_bytes(name: str) -> None:
    data = bombs()[name]
    tracemalloc.start()
    assert attempt(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50 * MIB + 20 * len(data)


@pytest.mark.parametrize("extreme", EXTREMES, ids=bytes.hex)
def test_an_extreme_at_any_place_is_refused_without_being_believed(extreme: bytes) -> None:
    data = square_sum().encoded
    tracemalloc.start()
    for at in range(len(data)):
        attempt(data[:at] + extreme + data[at + len(extreme) :])
        attempt(data[:at] + extreme + data[at:])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * MIB


def test_random_bytes_are_refused() -> None:
    rng = random.Random(9)
    assert all(attempt(rng.randbytes(rng.randrange(200))) for _ in range(3000))
    assert all(attempt(b"\x9a\x01" + rng.randbytes(rng.randrange(200))) for _ in range(3000))
