"""Training steps for tests of pipelines: models that are hard to cut, and what a step of each makes in one process."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from support.machines.profiles import device, near, worker
from support.machines.run_plan import run_plan

import mesh.numpy as mnp
from coordinator.planning.model.plan import Plan
from coordinator.planning.model.profiles import Profiles
from coordinator.planning.planner import make_plan
from mesh import nn, optim, random, remat, scan, tree
from mesh.functions.step_trace import Stepping
from mesh.training.data import Cursor, Rows, Shares, padded
from mesh.training.step import first_state, training_step
from mesh.training.step_config import Recipe

ROWS, WIDTH = 24, 8
Loss = Callable[..., Any]


def layers(params: Any, x: Any, y: Any) -> Any:
    for weight, bias in params[:-1]:
        x = mnp.tanh(x @ weight + bias)
    weight, bias = params[-1]
    return mnp.sum((x @ weight + bias - y) ** 2, axis=1)


def skipping(params: Any, x: Any, y: Any) -> Any:
    """Residual blocks without activations at their ends, and the first layer's output used by the last."""
    first = x @ params[0][0] + params[0][1]
    x = first
    for weight, bias in params[1:-1]:
        x = x + mnp.tanh(x @ weight) @ weight + bias
    weight, bias = params[-1]
    return mnp.sum(((x + first) @ weight + bias - y) ** 2, axis=1)


def tied(params: Any, tokens: Any, y: Any) -> Any:
    """An embedding that is the last layer as well, with layer norms between."""
    table, inner = params["table"], params["inner"]
    x = table[tokens]
    for scale, weight in inner:
        normal = (x - mnp.mean(x, -1, keepdims=True)) * scale
        x = x + nn.relu(normal @ weight)
    return nn.cross_entropy(x @ mnp.transpose(table), y, reduction="none")


def mean(params: Any, x: Any, y: Any) -> Any:
    """One number, the mean over rows."""
    return mnp.mean(layers(params, x, y))


def dropping(params: Any, x: Any, y: Any, key: Any) -> Any:
    for number, (weight, bias) in enumerate(params[:-1]):
        x = nn.dropout(mnp.tanh(x @ weight + bias), 0.3, random.fold_in(key, number))
    return layers(params[-1:], x, y)


def computed_again(params: Any, x: Any, y: Any) -> Any:
    for weight, bias in params[:-1]:
        x = remat(lambda x, w, b: mnp.tanh(x @ w + b))(x, weight, bias)
    return layers(params[-1:], x, y)


def looping(params: Any, x: Any, y: Any) -> Any:
    """With a loop of its own, which stays together."""
    (first, _), (inner, _), *rest = params
    x, _ = scan(lambda x, _: (mnp.tanh(x @ inner), ()), mnp.tanh(x @ first), None, length=3)
    return layers(rest, x, y)


def dense(sizes: tuple[int, ...]) -> Any:
    rng = np.random.default_rng(0)
    return [
        (rng.normal(0, n**-0.5, (n, m)).astype(np.float32), rng.normal(0, 0.1, m).astype(np.float32))
        for n, m in itertools.pairwise(sizes)
    ]


def _tied_params() -> Any:
    rng = np.random.default_rng(1)
    inner = [(np.ones(WIDTH, np.float32), rng.normal(0, 0.3, (WIDTH, WIDTH)).astype(np.float32)) for _ in range(3)]
    return {"table": rng.normal(0, 0.5, (11, WIDTH)).astype(np.float32), "inner": inner}


def _regression() -> Any:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(ROWS, WIDTH)).astype(np.float32)
    return x, np.sin(x)


def _tokens() -> Any:
    rng = np.random.default_rng(3)
    return tuple(rng.integers(0, 11, ROWS).astype(np.int32) for _ in range(2))


MODELS: dict[str, tuple[Loss, Any, Any]] = {
    "layers": (layers, dense((WIDTH, 16, 16, 16, WIDTH)), _regression()),
    "skipping": (skipping, dense((WIDTH,) * 6), _regression()),
    "tied": (tied, _tied_params(), _tokens()),
}
KINDS = {
    loss.__name__: (loss, MODELS["layers"][1], MODELS["layers"][2])
    for loss in (mean, dropping, computed_again, looping)
}


@dataclass(frozen=True)
class Case:
    """A step with its inputs, and the state that it begins with."""

    recipe: Recipe
    stepping: Stepping
    feeds: dict[str, Any]
    params: dict[str, Any]

    def run(self, strategy: str, profiles: Profiles) -> tuple[Plan, list[Any]]:
        plan = make_plan(self.stepping.graph, profiles, strategy, self.stepping.carries)
        return plan, run_plan(plan, self.feeds, self.params)

    def told(self, outputs: list[Any]) -> Any:
        return self.stepping.outputs(outputs)

    def state(self, outputs: list[Any]) -> Any:
        """The state after the step."""
        carried = {name: outputs[at] for name, at in self.stepping.carries}
        return self.stepping.state(carried, self.stepping.remembered(outputs))


@cache
def case(model: str, micro_batches: int, rows: int = ROWS, times: int = 1, **options: Any) -> Case:
    """A step of a model with its rows, so many times over, in so many micro-batches."""
    loss, params, batch = (MODELS | KINDS)[model]
    given = {"clip": None if options.get("updates") else 1.0, **options}
    optimiser = given.pop("optimiser", optim.adam(1e-2))
    recipe = Recipe(loss, optimiser, accumulate=micro_batches, staged=True, **given)
    mine = tree.map(lambda leaf: np.repeat(leaf[:rows], times, axis=0), batch)
    rows *= times
    shares = Shares.of(recipe, 1, rows)
    arguments = (None, *padded(Rows(mine, rows, Cursor()), shares))
    step = training_step(recipe, 1, False, shares.pads(rows))
    stepping = Stepping(step, first_state(recipe, params, 1), arguments, "pipeline")
    held = {name: np.asarray(handle.local) for name, handle in stepping.work.bindings.items()}
    return Case(recipe, stepping, stepping.bind(arguments), held)


def alike(count: int, memory_bytes: int = 1 << 30) -> Profiles:
    """So many workers, all alike, for which computing is dear and sending cheap."""
    return near(*(worker(n, device(0, 1e-4, 1e-3), memory_bytes=memory_bytes) for n in range(count)))


def largest_difference(one: Any, other: Any) -> float:
    """Between two pytrees of arrays."""
    pairs = zip(tree.leaves(one), tree.leaves(other), strict=True)
    return max(
        float(np.max(np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)), initial=0)) for a, b in pairs
    )
