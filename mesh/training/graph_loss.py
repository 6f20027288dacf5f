"""Graph loss: the loss that a WireGraph of (params, *batch) computes, for any number of rows.

    graph = mesh.trace(model, params, x)
    mesh.DistributedTrainer(graph, params).fit((x, y))    # the mean of (model(params, x) - y) ** 2

What the graph gives is the loss, one number per row, if the batch has as many arrays as the graph takes.  With one more
array, the targets, the loss is their squared error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wire.errors import InputError
from wire.ir.graph import WireGraph

from .. import numpy as mnp
from .. import tree
from ..core.array import Array
from ..numpy.promotion import asarray
from ..transforms.graph_function import graph_function, without_params


def graph_loss(graph: WireGraph, params: Any) -> Callable[..., Array]:
    """`loss(params, *batch)`; InputError if the graph does not begin with these params, or has several outputs."""
    types = without_params(graph).input_types
    paths = [path for path, _ in tree.flatten_with_paths(params)[0]]
    root = next(iter(types), "").partition("/")[0]
    names = [f"{root}/{path}" if path else root for path in paths]
    takes = ", ".join(types) or "nothing"
    for path, name in zip(paths, names, strict=True):
        if name not in types:
            raise InputError(
                f"the graph has no argument for the param {path!r}: it takes {takes}",
                next_step="Trace it of the params and a batch: mesh.trace(model, params, x)",
            )
    rows = [name for name in types if name not in names]
    if len(graph.outputs) != 1 or not rows:
        raise InputError(
            f"a loss has one output and takes a batch beside the params: this graph has {len(graph.outputs)} and takes "
            f"{', '.join(rows) or 'none'}",
            next_step="Trace it of the params and a batch: mesh.trace(model, params, x)",
        )
    computed = graph_function(graph, rows)

    def loss(params: Any, *batch: Any) -> Array:
        arrays = tree.leaves(batch)
        if len(arrays) not in (len(rows), len(rows) + 1):
            raise InputError(
                f"a batch of {len(arrays)} arrays, and the graph takes {len(rows)} ({', '.join(rows)})",
                next_step="Give those, and targets for a squared error: fit((x, y))",
            )
        arguments = dict(zip((*names, *rows), (*tree.leaves(params), *arrays), strict=False))
        (answer,) = computed(*[arguments[name] for name in types])
        return answer if len(arrays) == len(rows) else _squared_error(answer, asarray(arrays[-1]))

    loss.__name__ = graph.name or "graph"
    return loss


def _squared_error(answer: Array, targets: Array) -> Array:
    """The mean over all but the rows."""
    if answer.shape != targets.shape:
        raise InputError(
            f"the graph gives {answer.type}, and the targets are {targets.type}", next_step="Give them the same shape"
        )
    return mnp.mean((answer - targets) ** 2, axis=tuple(range(1, answer.ndim)))


__all__ = ["graph_loss"]
