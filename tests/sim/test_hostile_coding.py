"""What codes over workers cannot be asked is named, and nothing that is coded is lost by it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from mesh import Coding, Mesh, errors
from mesh.coding import CodedWeights

WHOLE = np.arange(16, dtype=np.float32).reshape(4, 4)
WRONG: Any = 3  # of another type than what is asked for


@dataclass
class Coded:
    mesh: Mesh
    coding: Coding
    weights: CodedWeights


@pytest.fixture(scope="module")
def there() -> Iterator[Coded]:
    with Mesh.builder().simulate(4).build() as mesh:
        coding = Coding(mesh, n=3, k=2)
        with CodedWeights(coding, WHOLE) as weights:
            yield Coded(mesh, coding, weights)


CALLS: list[tuple[str, Callable[[Coded], Any]]] = [
    ("workers of a Mesh", lambda it: Coding(WRONG, 3, 2)),
    ("number of shares", lambda it: Coding(it.mesh, "x", 2)),
    ("number of shares", lambda it: Coding(it.mesh, 2.5, 2)),
    ("number of blocks", lambda it: Coding(it.mesh, 3, True)),
    ("1 <= k <= n", lambda it: Coding(it.mesh, 3, 0)),
    ("need 9 workers", lambda it: Coding(it.mesh, 9, 2)),
    ("extra", lambda it: Coding(it.mesh, 3, 2, extra="x")),
    ("extra", lambda it: Coding(it.mesh, 3, 2, extra=9)),
    ("names of workers", lambda it: Coding(it.mesh, 3, 2, workers=WRONG)),
    ("no worker 'nobody'", lambda it: Coding(it.mesh, 3, 2, workers=["sim-0", "sim-1", "nobody"])),
    *[("tolerance", lambda it, bad=bad: Coding(it.mesh, 3, 2, tolerance=bad)) for bad in ("x", -1, math.nan)],
    ("is no Coding", lambda it: CodedWeights(WRONG, WHOLE)),
    ("no rows to code", lambda it: CodedWeights(it.coding, "x")),
    ("cannot be coded", lambda it: CodedWeights(it.coding, WHOLE.astype(int))),
    *[("rank of changes", lambda it, bad=bad: CodedWeights(it.coding, WHOLE, rank=bad)) for bad in ("x", 0, -1, 0.5)],
    *[("change", lambda it, bad=bad: it.weights.update(bad)) for bad in ("x", object(), [[1], [1, 2]], WHOLE[:2])],
    ("a change has the shapes", lambda it: it.weights.update()),
    ("there is no share 9", lambda it: it.weights.send(9, 1, it.weights.coded(WHOLE)[0])),
    ("there is no share 'x'", lambda it: it.weights.send("x", 1, it.weights.coded(WHOLE)[0])),
    ("number of a change", lambda it: it.weights.send(0, "x", it.weights.coded(WHOLE)[0])),
    ("what a share is sent", lambda it: it.weights.send(0, 1, WRONG)),
]


@pytest.mark.parametrize(("said", "call"), CALLS)
def test_what_a_code_cannot_be_asked(said: str, call: Callable[[Coded], Any], there: Coded) -> None:
    with pytest.raises(errors.MeshError) as caught:
        call(there)
    assert said in str(caught.value)
    np.testing.assert_allclose(there.weights.read(), WHOLE, atol=1e-4)


def test_closed_weights_take_nothing_more(there: Coded) -> None:
    weights = CodedWeights(there.coding, WHOLE)
    weights.close()
    with pytest.raises(errors.ConfigError, match="closed"):
        weights.send(0, 1, (WHOLE[:2],))
