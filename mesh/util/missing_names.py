"""Names that other programs have and this one has not, and what to write in their place.

All modules and classes share one table: their `__getattr__` raises `missing_name_error(owner, name)`.  To add a name:
one row, which docs/originals.md then has to have, too.
"""

from __future__ import annotations

IMPORT = "A module of torch is imported: model = mesh.from_torch(module.eval(), x)"
TRAIN = f"{IMPORT}; then the params are model.params"
_RUN = "Write m.run(model, params, x, strategy=mesh.DeviceMap().layer('embed', 'anna')) on a mesh m"
_GROUP = "Ranks of a script are a group: world = mesh.init(), and then world.{0}"
_REDUCE = "Write all_reduce(x, 'dp', '{0}') in a function that is given to mesh.shard_map"

_HERE = "The mesh chooses the device: m.run({0}); m.put keeps arrays on the workers"
_FUNCTION = "It is a function: nn.{0}(x)"
_LOSS = "It is a function: nn.{0}"
_CONV = "Write nn.Conv.init(key, inputs, outputs, kernel), whose kernel has a size for each axis"

SUGGESTIONS: dict[str, str] = {
    # the Rust mesh
    "mesh.NodeId": "A worker is named, or given as its Node of mesh.nodes",
    "mesh.AllReduce": "Write mesh.collectives.all_reduce(x, 'dp', 'mean')",
    "mesh.ReduceOp": "Name the reduction: all_reduce(x, 'dp', 'mean')",
    "mesh.Placement": "A placement is a strategy: mesh.DataParallel(), mesh.Pipeline(stages=4), mesh.DeviceMap()",
    "mesh.GraphPartition": "mesh.partition(graph, m) returns a PlanPreview, which has parts",
    "mesh.strategies": "They are names of mesh itself: mesh.DataParallel(), mesh.Pipeline(stages=4), mesh.DeviceMap()",
    "mesh.coding": "Write mesh.Coding and mesh.CodedWeights",
    "mesh.simulation": "Write m = Mesh.builder().simulate(4).build(), and m.simulation",
    **dict.fromkeys(
        [f"mesh.MeshBuilder.{name}" for name in ("run", "plan", "put", "compile", "submit", "session", "nodes")],
        "Build the mesh first: with Mesh.builder().local(2).build() as m",
    ),
    **dict.fromkeys(
        ["mesh.HealthMonitor.register", "mesh.HealthMonitor.heartbeat"], "Workers join and beat by themselves"
    ),
    **dict.fromkeys(
        ["mesh.HealthMonitor.with_suspect_threshold", "mesh.HealthMonitor.with_dead_threshold"],
        "Write Mesh.builder().node_timeout(seconds), of which a worker is suspect after a third",
    ),
    # the tracing compiler
    "mesh.CPU": "Name the device: mesh.to_device(x, 'cpu'), or mesh.cpu(x)",
    "mesh.Accelerator": "Name the device: mesh.to_device(x, 'gpu'), or mesh.accelerator(x, 0)",
    "mesh.DeviceMesh": "Axes of devices are a Grid: mesh.Grid((2, 4), ('dp', 'tp'))",
    "mesh.DimSpec": "A PartitionSpec has an entry for each dimension: mesh.PartitionSpec('dp', None)",
    "mesh.collectives.recv": "In a graph a send gives what was sent: send(x, 'dp', source, destination)",
    "mesh.collectives.psum": _REDUCE.format("sum"),
    "mesh.collectives.pmean": _REDUCE.format("mean"),
    "mesh.collectives.pmax": _REDUCE.format("max"),
    "mesh.collectives.pmin": _REDUCE.format("min"),
    # the distributed array package
    "mesh.all_sum": _GROUP.format("all_sum(x)"),
    "mesh.all_max": _GROUP.format("all_max(x)"),
    "mesh.all_min": _GROUP.format("all_min(x)"),
    "mesh.all_gather": _GROUP.format("all_gather(x)"),
    "mesh.sum_scatter": _GROUP.format("sum_scatter(x)"),
    "mesh.send": _GROUP.format("send(x, to)"),
    "mesh.recv": _GROUP.format("recv(shape, dtype, source)"),
    "mesh.recv_like": _GROUP.format("recv_like(x, source)"),
    "mesh.is_available": "mesh.init() always gives a group, of one rank where nobody launched the script",
    "mesh.collectives.all_sum": _REDUCE.format("sum"),
    "mesh.collectives.all_max": _REDUCE.format("max"),
    "mesh.collectives.all_min": _REDUCE.format("min"),
    "mesh.collectives.sum_scatter": "Write reduce_scatter(x, 'dp') in a function that is given to mesh.shard_map",
    "mesh.collectives.recv_like": "In a graph a send gives what was sent: send(x, 'dp', source, destination)",
    # the compile-and-cache tracer
    "mesh.DeviceKernel": "Write kernel = m.compile(fn, *examples, name='kernel') on a mesh m",
    "mesh.DeviceTensor": "Arrays stay on a mesh as handles: w = m.put(array)",
    # the typed tensor language
    "mesh.ModelParallel": _RUN,
    "mesh.Device": "A worker is named, and 'NAME:1' is its second device: DeviceMap().layer('embed', 'anna:1')",
    "mesh.Schedule": "Name the schedule: mesh.Pipeline(stages=4, micro_batches=8, schedule='gpipe')",
    "mesh.optim.Optimiser.step": "Write trainer.step_with(trainer.forward_backward(batch)), or in a step of your own "
    "updates, state = optimizer.update(gradients, state, params)",
    "mesh.optim.Optimiser.zero_grad": "Gradients are values, and begin anew: grad and forward_backward give new ones",
    "mesh.Elastic": "Write trainer.fit(data, min_nodes=2, max_nodes=8, checkpoint='checkpoints/', every=1000)",
    # PyTorch
    **dict.fromkeys(["mesh.Tensor", "mesh.tensor", "mesh.array"], "Write mesh.numpy.asarray(values)"),
    "mesh.device": "Name the device: mesh.to_device(x, 'gpu'), or mesh.gpu(x)",
    "mesh.no_grad": "Nothing records gradients: mesh.grad(fn) and mesh.value_and_grad(fn) compute them",
    "mesh.compile": "Write fn = m.compile(fn, *examples) on a mesh m, or mesh.function(fn)",
    "mesh.jit": "Write fn = m.compile(fn, *examples) on a mesh m, or mesh.function(fn)",
    "mesh.save": "Write trainer.save(folder), mesh.save_safetensors(arrays, path), or mesh.trace(fn, *args).save(path)",
    "mesh.nn.Module": "Params are a pytree of layers, and a model is a function of them (docs/nn.md); "
    "mesh.from_torch takes a module of torch",
    **dict.fromkeys(
        ["mesh.nn.Sequential", "mesh.nn.ModuleList"], "Write a list of layers, and a function that calls each of them"
    ),
    "mesh.nn.Parameter": "Each array of the params is trained",
    "mesh.nn.functional": "Its functions are names of mesh.nn itself: nn.relu(x)",
    **dict.fromkeys(["mesh.nn.Conv1d", "mesh.nn.Conv2d", "mesh.nn.Conv3d"], _CONV),
    **dict.fromkeys(["mesh.nn.BatchNorm1d", "mesh.nn.BatchNorm2d"], "Write nn.BatchNorm.init(channels)"),
    "mesh.nn.MultiheadAttention": "Write nn.Attention.init(key, width, heads)",
    "mesh.nn.MaxPool2d": _FUNCTION.format("max_pool"),
    "mesh.nn.ReLU": _FUNCTION.format("relu"),
    "mesh.nn.GELU": _FUNCTION.format("gelu"),
    "mesh.nn.SiLU": _FUNCTION.format("silu"),
    "mesh.nn.Sigmoid": _FUNCTION.format("sigmoid"),
    "mesh.nn.Softmax": _FUNCTION.format("softmax"),
    "mesh.nn.Tanh": "It is a function: mesh.numpy.tanh(x)",
    "mesh.nn.Flatten": "Write x.reshape(x.shape[0], -1)",
    "mesh.nn.CrossEntropyLoss": _LOSS.format("cross_entropy(logits, labels)"),
    "mesh.nn.MSELoss": _LOSS.format("mse(prediction, target)"),
    "mesh.nn.L1Loss": _LOSS.format("mae(prediction, target)"),
    "mesh.nn.BCEWithLogitsLoss": _LOSS.format("binary_cross_entropy(logits, labels)"),
    "mesh.optim.Adam": "Write optim.adam(1e-3); a trainer, or its update, takes the params",
    "mesh.optim.AdamW": "Write optim.adamw(1e-3); a trainer, or its update, takes the params",
    "mesh.optim.SGD": "Write optim.sgd(1e-2, momentum=0.9); a trainer, or its update, takes the params",
    "mesh.optim.lr_scheduler": "A schedule is given as the rate: optim.adam(optim.warmup_cosine(1e-3, 100, 10_000))",
    **dict.fromkeys(["mesh.Array.to", "mesh.Array.cuda", "mesh.Array.cpu"], _HERE.format("fn, x")),
    "mesh.Array.numpy": "Write numpy.asarray(x)",
    "mesh.Array.detach": "Write mesh.stop_gradient(x)",
    "mesh.Array.backward": "Write gradients = mesh.grad(loss)(params, x), or mesh.value_and_grad",
    "mesh.Array.requires_grad": "mesh.grad(fn, argnums=0) says what the derivative is by",
    "mesh.Array.view": "Write x.reshape(shape)",
    "mesh.Array.dim": "Write x.ndim",
    "mesh.Array.permute": "Write x.transpose(axes)",
    "mesh.Array.unsqueeze": "Write mesh.numpy.expand_dims(x, axis=0)",
    **dict.fromkeys(["mesh.Model.to", "mesh.Model.cuda"], _HERE.format("model, x")),
    "mesh.Model.eval": "A model is always as in eval()",
    "mesh.Model.forward": "Call it: model(x), or m.run(model, x)",
    "mesh.Model.parameters": "Write model.params",
    "mesh.Model.state_dict": "Write model.params and model.buffers",
}


def missing_name_error(owner: str, name: str) -> AttributeError:
    """The error for a name that `owner`, such as "mesh", has not.  It says what to write instead, if that is known."""
    suggestion = SUGGESTIONS.get(f"{owner}.{name}")
    return AttributeError(f"{owner} has no attribute {name!r}" + (f". {suggestion}" if suggestion else ""))


__all__ = ["IMPORT", "SUGGESTIONS", "TRAIN", "missing_name_error"]
