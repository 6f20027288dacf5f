"""Functions of blocks with collectives, which transforms are tested with: for each its arguments' and results' specs.

All are smooth where the arguments are, so that central differences judge them.  Grids: 2x2 ("dp", "tp"), 3 ("dp",).
To add one: a row of CASES.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import mesh
import mesh.numpy as mnp
from mesh import Grid, collectives
from mesh import PartitionSpec as P
from mesh.core.array import Array

SQUARE, LINE = Grid((2, 2), ("dp", "tp")), Grid((3,), "dp")
BOTH = ("dp", "tp")


class Case(NamedTuple):
    """`fn` of blocks of arguments of these shapes."""

    fn: Callable[..., Any]
    grid: Grid
    shapes: tuple[tuple[int, ...], ...]
    in_specs: tuple[P, ...]
    out_specs: Any

    @property
    def mapped(self) -> Callable[..., list[Array]]:
        """The function of whole arrays, its results in a list."""
        found = mesh.shard_map(self.fn, self.grid, self.in_specs, self.out_specs)
        return lambda *args: mesh.tree.leaves(found(*args))

    def point(self, seed: int = 0) -> list[NDArray[Any]]:
        rng = np.random.default_rng(seed)
        return [rng.uniform(0.5, 1.5, shape) for shape in self.shapes]


def _reduced(op: str, axes: Any) -> Callable[[Array], Array]:
    return lambda x: collectives.all_reduce(x * x, axes, op) * 2


def _mlp(w1: Array, w2: Array, x: Array) -> Array:
    return mnp.tanh(collectives.all_reduce(mnp.tanh(x @ w1) @ w2, "tp"))


def _mlp_loss(w1: Array, w2: Array, x: Array) -> Any:
    """Weights cut over tp, rows over dp, and a bias-like use of what is whole on every rank."""
    made = _mlp(w1, w2, x)
    return collectives.all_reduce(mnp.mean(made * made), "dp", "mean")


def _deep(w: Array, x: Array) -> Array:
    """Two blocks in a row with a path around them: what is behind a reduction is used alike, and not alike."""
    for _ in range(2):
        x = x + collectives.all_reduce(mnp.tanh(x @ w) @ w.mT, "tp")
    return x


def _gathered_weights(w: Array, x: Array) -> Array:
    whole = collectives.all_gather(w, "dp", 0)
    return mnp.tanh(x @ whole)


def _normed(x: Array) -> Array:
    total = collectives.all_reduce(mnp.sum(mnp.exp(x)), BOTH)
    return mnp.exp(x) / total


def _weighted(x: Array, weight: Array) -> Array:
    return collectives.all_reduce(x, "dp", "mean", weight=mnp.sum(weight))


def _scanned(x: Array, w: Array) -> Any:
    """A collective at every turn, of a carry that differs and a weight that does not."""

    def turn(carry: Array, row: Array) -> tuple[Array, Array]:
        total = collectives.all_reduce(mnp.tanh(carry * w + row), "dp", "mean")
        return collectives.shift(carry, "dp") * total, total

    return mesh.scan(turn, mnp.ones_like(w) * (1.0 + mnp.sum(x)), x)


def _branched(x: Array) -> Array:
    """Every row of the grid takes a branch, both with collectives."""
    first = mnp.equal(collectives.axis_index("dp"), 0)
    return mesh.cond(
        first, lambda y: collectives.all_reduce(y * y, "tp"), lambda y: mnp.sin(collectives.shift(y, "tp")), x
    )


def _recomputed(w: Array, x: Array) -> Array:
    block = mesh.remat(lambda w, x: collectives.all_reduce(mnp.tanh(x @ w), "tp"))
    return block(w, x) * x


def _own_rank(x: Array) -> Array:
    scale = mnp.astype(collectives.axis_index(BOTH), x.dtype) + 1
    return mnp.sin(x * scale)


def _double(x: Array, y: Array) -> Any:
    """Several results, one of them whole, and an argument that nobody reads."""
    total = collectives.all_reduce(x * x, BOTH)
    return {"total": total, "own": x * total, "most": collectives.all_reduce(mnp.sum(x), BOTH, "max")}


def _exchanged(tiled: bool, split: int, joined: int) -> Callable[[Array], Array]:
    return lambda x: mnp.sin(collectives.all_to_all(x * x, "dp", split, joined, tiled=tiled))


CASES: dict[str, Case] = {
    **{f"all_reduce-{op}": Case(_reduced(op, "dp"), SQUARE, ((4, 6),), (P("dp", "tp"),), P(None, "tp"))
       for op in ("sum", "mean", "prod", "max", "min")},
    **{f"all_reduce-{op}-over-both": Case(_reduced(op, ("tp", "dp")), SQUARE, ((4, 2),), (P(BOTH),), P())
       for op in ("sum", "prod", "min")},
    "all_reduce-of-copies": Case(_reduced("sum", BOTH), SQUARE, ((2, 3),), (P("dp"),), P()),
    "all_reduce-of-three": Case(_reduced("mean", "dp"), LINE, ((6,),), (P("dp"),), P()),
    "all_reduce-result-split": Case(_reduced("sum", "dp"), SQUARE, ((4, 6),), (P("dp", "tp"),), P("dp", "tp")),
    "all_gather": Case(lambda x: mnp.sin(collectives.all_gather(x, "tp", 1)), SQUARE, ((4, 4),), (P("dp", "tp"),),
                       P("dp")),
    "all_gather-used-apart": Case(lambda x: mnp.sin(collectives.all_gather(x, "tp", -1) * x[:, :1]), SQUARE, ((4, 4),),
                                  (P("dp", "tp"),), P("dp", "tp")),
    "all_gather-stacked": Case(lambda x: collectives.all_gather(x * x, BOTH, 1, tiled=False), SQUARE, ((4, 2),),
                               (P("dp", "tp"),), P()),
    "all_gather-by-spec": Case(lambda x: collectives.all_gather(x * x, P(("tp", "dp"), None)) * 3, SQUARE, ((8, 2),),
                               (P(("tp", "dp")),), P()),
    "gathered-weights": Case(_gathered_weights, SQUARE, ((4, 3), (6, 4)), (P("dp"), P("tp")), P("tp")),
    **{f"reduce_scatter-{op}": Case(lambda x, op=op: collectives.reduce_scatter(mnp.sin(x), "dp", 1, op), SQUARE,
                                    ((4, 4),), (P("dp", "tp"),), P(None, ("tp", "dp")))
       for op in ("sum", "mean", "prod", "max")},
    **{f"reduce_scatter-along-{axis}": Case(lambda x, axis=axis: collectives.reduce_scatter(x * x, BOTH, axis), SQUARE,
                                            ((8, 4),), (P("dp"),), P(*spec))
       for axis, spec in ((0, (BOTH,)), (-1, (None, BOTH)))},
    "all_to_all": Case(_exchanged(True, 0, 1), LINE, ((9, 2),), (P("dp"),), P("dp")),
    "all_to_all-back": Case(_exchanged(True, 1, 0), LINE, ((3, 6),), (P("dp"),), P("dp")),
    "all_to_all-untiled": Case(_exchanged(False, 0, 1), LINE, ((9, 2),), (P("dp"),), P("dp")),
    "shift": Case(lambda x: mnp.sin(collectives.shift(x * x, "dp")) * x, LINE, ((6, 2),), (P("dp"),), P("dp")),
    "permute-some": Case(lambda x: mnp.sin(collectives.permute(x * x, BOTH, [(0, 3), (2, 1)])) + x, SQUARE, ((4, 2),),
                         (P(BOTH),), P(BOTH)),
    "send": Case(lambda x: collectives.send(x * x, "dp", 2, 0), LINE, ((6,),), (P("dp"),), P("dp")),
    **{f"broadcast-{root}": Case(lambda x, root=root: collectives.broadcast(x * x, "dp", root), LINE, ((6, 2),),
                                 (P("dp"),), P()) for root in range(3)},
    "broadcast-of-copies": Case(lambda x: collectives.broadcast(x * x, "dp", 1) * x, SQUARE, ((4, 2),),
                                (P(None, "tp"),), P("dp", "tp")),
    "own-rank": Case(_own_rank, SQUARE, ((4, 2),), (P("dp", "tp"),), P("dp", "tp")),
    "mlp": Case(_mlp, SQUARE, ((3, 4), (4, 3), (4, 3)), (P(None, "tp"), P("tp"), P("dp")), P("dp")),
    "mlp-loss": Case(_mlp_loss, SQUARE, ((3, 4), (4, 3), (4, 3)), (P(None, "tp"), P("tp"), P("dp")), P()),
    "deep": Case(_deep, SQUARE, ((3, 4), (2, 3)), (P(None, "tp"), P("dp")), P("dp")),
    "softmax": Case(_normed, SQUARE, ((4, 2),), (P("dp", "tp"),), P("dp", "tp")),
    "weighted-mean": Case(_weighted, LINE, ((3, 2), (3,)), (P("dp"), P("dp")), P()),
    "scan": Case(_scanned, LINE, ((6, 2), (2,)), (P("dp"), P()), (P("dp"), P())),
    "cond": Case(_branched, SQUARE, ((4,),), (P(BOTH),), P(BOTH)),
    "remat": Case(_recomputed, SQUARE, ((3, 3), (4, 3)), (P(None), P("dp")), P("dp")),
    "several-results": Case(_double, SQUARE, ((4,), (3,)), (P(BOTH), P()), {"total": P(), "own": P(BOTH), "most": P()}),
    "without-collectives": Case(lambda w, x: mnp.tanh(x @ w), SQUARE, ((3, 4), (4, 3)), (P(None, "tp"), P("dp")),
                                P("dp", "tp")),
}  # fmt: skip
