"""Values that one worker alone may have: `put(on=...)`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mesh
from mesh import DeviceMap, Mesh
from mesh.errors import InputError, NoSuchDevice

W, V, X = (np.random.default_rng(seed).normal(size=(64, 64)).astype(np.float32) for seed in range(3))


def two_layers(w: Any, v: Any, x: Any) -> Any:
    return mesh.numpy.tanh(mesh.numpy.tanh(x @ w) @ v)


EXPECTED = np.tanh(np.tanh(X @ W) @ V)


def readers(m: Mesh, *args: Any, **options: Any) -> dict[str, set[str]]:
    """The workers that have each param, by the plan of a call."""
    places = m.plan(two_layers, *args, **options).data["params"]
    return {place["param"]: {place["worker"]} for place in places}


@pytest.mark.parametrize("by", ["name", "id", "node"])
def test_what_is_put_on_a_worker_is_read_there_and_nowhere_else(by: str) -> None:
    with Mesh.builder().simulate(3).build() as m:
        node = m.nodes[1]
        w, v = m.put((W, V), on={"name": node.name, "id": node.id, "node": node}[by])
        np.testing.assert_allclose(m.run(two_layers, w, v, X), EXPECTED, rtol=1e-5, atol=1e-5)
        assert set(m.report().workers) == {node.name}
        for _ in range(5):
            m.run(two_layers, w, v, X)
            assert set(m.report().workers) == {node.name}


def test_two_values_stay_on_their_workers_and_a_public_one_goes_along() -> None:
    with Mesh.builder().simulate(3).build() as m:
        one, other = m.nodes[0], m.nodes[2]
        w, v = m.put(W, on=one), m.put(V, on=other)
        np.testing.assert_allclose(m.run(two_layers, w, v, X), EXPECTED, rtol=1e-5, atol=1e-5)
        assert set(m.report().workers) == {one.name, other.name}
        np.testing.assert_allclose(m.run(two_layers, w, m.put(V), X), EXPECTED, rtol=1e-5, atol=1e-5)
        assert set(m.report().workers) == {one.name}


def test_an_audit_gives_it_to_nobody() -> None:
    with Mesh.builder().simulate(4).audit(1.0).build() as m:
        w, v = m.put((W, V), on=m.nodes[1])
        for _ in range(4):
            m.run(two_layers, w, v, X)
            assert set(m.report().workers) == {m.nodes[1].name}
        m.run(two_layers, *m.put((W, V)), X)
        assert len(m.report().workers) == 3, "others are audited"


def test_the_same_value_may_be_public_elsewhere() -> None:
    with Mesh.builder().simulate(2).build() as m:
        private, public = m.put(W, on=m.nodes[1]), m.put(W)
        assert private != public
        double = m.compile(lambda w: w * 2, W)
        np.testing.assert_array_equal(double(public), W * 2)
        np.testing.assert_array_equal(double(private), W * 2)
        assert set(m.report().workers) == {m.nodes[1].name}


def test_what_would_give_it_to_others_is_refused() -> None:
    with Mesh.builder().simulate(3).build() as m:
        w, v = m.put((W, V), on=m.nodes[1])
        with pytest.raises(InputError, match="private to a worker, and strategy='pipeline'"):
            m.run(two_layers, w, v, X, strategy="pipeline")
        with pytest.raises(InputError, match="private to a worker, and copies='buddy'"):
            m.run(two_layers, w, v, X, copies="buddy")
        with pytest.raises(InputError, match="private to a worker, and strategy='placed'"):
            m.run(two_layers, w, v, X, strategy=DeviceMap().layer("", m.nodes[0]))
        with pytest.raises(InputError, match="private to another worker already"):
            m.put(w, on=m.nodes[0])
        np.testing.assert_allclose(m.run(two_layers, w, v, X, strategy="single"), EXPECTED, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("on", ["nowhere", "sim"])
def test_a_worker_that_is_not_there_is_named(on: str) -> None:
    with Mesh.builder().simulate(2).build() as m, pytest.raises(NoSuchDevice, match=f"there is no worker '{on}'") as no:
        m.put(W, on=on)
    assert "sim-0, sim-1" in (no.value.next_step or "")
