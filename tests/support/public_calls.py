"""Every public call: functions of the namespaces, and the methods of one cheap instance of each class of theirs.

A new function is found by itself; a new class with methods needs a row in `instances`, and a layer one in
`LAYERS`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import wraps
from typing import Any

import numpy as np

import mesh
from mesh import Mesh, MeshError, collectives, nn, optim, random, training, tree
from mesh import numpy as mnp
from mesh.inference import Options
from mesh.inference.replies import Request
from mesh.numpy import fft, linalg
from wire.ir.dtypes import F32

Calls = dict[str, Callable[..., Any]]

NAMESPACES = (mesh, mnp, linalg, fft, random, nn, nn.initialisers, optim, collectives, tree, training)
X = np.ones((4, 2), np.float32)
KEY = np.zeros(2, np.uint32)
NOT_CALLED = {
    "mesh.init": "it makes the mesh of the whole process",
    "mesh.shutdown": "it ends that",
    "mesh.barrier": "it waits for ranks",
    "mesh.AsyncMesh": "it is made by the builder",
    "mesh.Worker": "it starts a process; tests/e2e/test_programs_of_others.py gives it what is wrong",
}
GRID = mesh.Grid((1,), ("a",))
IMAGE = np.ones((1, 2, 4, 4), np.float32)
LAYERS: dict[str, tuple[Callable[..., Any], Any]] = {  # how each is made, and what it is called with
    "AllToShardedLinear": (lambda: nn.AllToShardedLinear.init(KEY, 2, 3, grid=GRID, axis="a"), X),
    "Attention": (lambda: nn.Attention.init(KEY, 8, 2), np.ones((1, 3, 8), np.float32)),
    "BatchNorm": (lambda: nn.BatchNorm.init(2), IMAGE),
    "BatchStatistics": (lambda: nn.BatchStatistics.init(2), None),
    "Conv": (lambda: nn.Conv.init(KEY, 2, 2, (2, 2)), IMAGE),
    "ConvTranspose": (lambda: nn.ConvTranspose.init(KEY, 2, 2, (2, 2)), IMAGE),
    "Dropout": (lambda: nn.Dropout(0.5), X),
    "Embedding": (lambda: nn.Embedding.init(KEY, 5, 2), np.arange(3)),
    "GatedMLP": (lambda: nn.GatedMLP.init(KEY, 2, 4), X),
    "GroupNorm": (lambda: nn.GroupNorm.init(2, 2), IMAGE),
    "KVCache": (lambda: nn.KVCache.init((1,), 2, 4, 4), None),
    "LayerNorm": (lambda: nn.LayerNorm.init(2), X),
    "Linear": (lambda: nn.Linear.init(KEY, 2, 3), X),
    "MLP": (lambda: nn.MLP.init(KEY, 2, 4), X),
    "RMSNorm": (lambda: nn.RMSNorm.init(2), X),
    "ShardedToAllLinear": (lambda: nn.ShardedToAllLinear.init(KEY, 2, 3, grid=GRID, axis="a"), X),
    "TransformerBlock": (lambda: nn.TransformerBlock.init(KEY, 8, 2), np.ones((1, 3, 8), np.float32)),
}


def callables(alone: Mesh) -> Calls:
    """All of them, by name, with a mesh that has no workers."""
    found: Calls = {}
    for space in NAMESPACES:
        found |= {
            f"{space.__name__}.{name}": getattr(space, name) for name in space.__all__ if callable(getattr(space, name))
        }
    for name, (of, but) in instances(alone).items():
        found |= methods(name, of, *but)
    for transform in (
        mesh.grad,
        mesh.value_and_grad,
        mesh.jacobian,
        mesh.hessian,
        mesh.vmap,
        mesh.remat,
        mesh.function,
    ):
        found[f"{transform.__name__}(f)"] = transform(lambda x: mnp.sum(x))
    found |= layers()
    found |= with_options(alone)
    return {name: fn for name, fn in found.items() if name not in NOT_CALLED}


def instances(alone: Mesh) -> dict[str, tuple[Any, tuple[str, ...]]]:
    """One object of each class, by its name, and which of its methods are not called: those that wait, or end it."""
    inputs = [mesh.InputSpec("x", F32, ("n", 2))]
    model = mesh.Model("little", lambda p, v: {"y": v["x"] @ p["w"]}, inputs, ("y",), {"w": X.T})
    session = alone.session(lambda state, x: (state + mnp.sum(x), mnp.sum(x)), np.float32(0), X)
    server = mesh.InferenceServer(alone)
    server.load_model("sum", mnp.sum)
    trainer = mesh.DistributedTrainer(lambda w, x: mnp.mean((x @ w) ** 2, -1), np.ones((2, 1), np.float32))
    return {
        "Mesh": (alone, ("close", "wait")),
        "AsyncMesh": (on_loop(alone, alone.on_loop), ()),
        "Builder": (Mesh.builder(), ("build", "build_async")),
        "HealthMonitor": (mesh.HealthMonitor(alone), ()),
        "FaultHandler": (mesh.FaultHandler(), ()),
        "Job": (alone.submit(mnp.sum, X), ()),
        "Session": (session, ("close",)),
        "Step": (session.step(X), ()),
        "Compiled": (alone.compile(mnp.sum, X), ()),
        "Model": (model, ("graph", "arranged")),  # which take what `given` made, and the function
        "InputSpec": (inputs[0], ()),
        "InferenceServer": (server, ("close",)),
        "DistributedTrainer": (trainer, ()),
        "Gradients": (trainer.forward_backward((X,)), ("close",)),
        "Checkpoints": (training.Checkpoints("folder"), ()),
        "Callback": (training.Callback(), ()),
        "Array": (mnp.asarray(X), ()),
        "Grid": (mesh.Grid((2,), ("a",)), ()),
        "PartitionSpec": (mesh.PartitionSpec("a"), ()),
        "DeviceMap": (mesh.DeviceMap(), ()),
        "WireGraph": (mesh.trace(lambda x: x, X), ()),
        "Traced": (mesh.trace_full(lambda x: x, X), ("bind_parts",)),
        "Optimiser": (optim.adam(1e-3), ("index", "count")),
        "Schedule": (optim.warmup_cosine(1e-3, 1, 2), ()),
    }


def methods(name: str, of: object, *but: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Those that are public, and the call of what can be called."""
    if inspect.isfunction(of) or hasattr(type(of), "__call__"):  # noqa: B004  # of its class, not of itself
        yield name, of  # type: ignore[misc]
    for attribute in dir(of):
        if attribute.startswith("_") or attribute in but:
            continue
        try:
            found = getattr(of, attribute)
        except MeshError:
            continue
        if callable(found) and not inspect.isclass(found):
            yield f"{name}.{attribute}", found


def layers() -> Calls:
    """The layers of nn: how they are made, called, and called when one of their fields is wrong."""
    found: Calls = {}
    for name, (make, given) in LAYERS.items():
        layer = make()
        found |= methods(name, layer)
        if callable(layer):
            for each in fields(layer):
                found[f"{name}({each.name}=...)(x)"] = of_field(layer, each.name, given)
    return found


def of_field(layer: Any, name: str, given: Any) -> Callable[[Any], Any]:
    values = {each.name: getattr(layer, each.name) for each in fields(layer)}
    more = [nn.BatchStatistics.init(2)] if isinstance(layer, nn.BatchNorm) else []
    return lambda value: type(layer)(**{**values, name: value})(given, *more)


def with_options(alone: Mesh) -> Calls:
    """Calls that hand `**options` on, of each option alone; and calls with `*args`, of the first."""
    server = mesh.InferenceServer(alone)
    server.load_model("sum", mnp.sum)
    found: Calls = {
        f"load_model({each.name})": handed_on(server.load_model, "other", mnp.sum, name=each.name)
        for each in fields(Options)
    }
    found |= {
        f"generate({each.name})": handed_on(server.generate, "sum", [1], name=each.name) for each in fields(Request)
    }
    for name, call in {
        "run": alone.run, "submit": lambda *args: alone.submit(*args).result(),
        "compile": alone.compile, "infer": lambda _, x: server.infer("sum", x),
    }.items():  # fmt: skip
        found[f"{name}(x)"] = of_one(call)
    return found


def handed_on(call: Callable[..., Any], *args: Any, name: str) -> Callable[[Any], Any]:
    return lambda value: call(*args, **{name: value})


def of_one(call: Callable[..., Any]) -> Callable[[Any], Any]:
    return lambda x: call(mnp.sum, x)


class on_loop:
    """An object whose coroutines are awaited on the loop of a mesh."""

    def __init__(self, alone: Mesh, of: Any) -> None:
        for name in dir(of):
            if not name.startswith("_") and inspect.iscoroutinefunction(getattr(type(of), name)) and name != "close":
                setattr(self, name, awaited(alone, getattr(of, name)))


def awaited(alone: Mesh, method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **keywords: Any) -> Any:
        return alone.wait(method(*args, **keywords))

    return call
