"""The names that users import: the one list of them, by which `__init__.py` imports each when it is first used."""

from . import collectives, errors, nn, numpy, optim, training, tree
from .backends.worker_process import Worker
from .client.async_mesh import AsyncMesh
from .client.builder import MeshBuilder
from .client.mesh import Mesh
from .coding import CodedWeights, Coding
from .core.array import Array
from .core.handle import Handle
from .core.realise import realise
from .errors import MeshError
from .functions.function import Function, distributed, function
from .importers.jax import from_jax
from .importers.torch import from_torch
from .inference import AsyncInferenceServer, InferenceServer
from .models.load import load
from .models.model import InputSpec, Model
from .models.quantise import quantise
from .models.safetensors import load_safetensors, save_safetensors
from .models.store import ModelStore, StoredModel
from .numpy import random
from .originals import Coordinator, FaultHandler, HealthMonitor, auto_partition, partition, select
from .scripts.world import barrier, init, local_rank, rank, shutdown, world_size
from .serving.model_server import ModelServer
from .spmd.annotations import auto_sharding, on_grid, reshard, shard
from .spmd.device_transfer import accelerator, cpu, gpu, to_device, transfer_to
from .spmd.grid import Grid, PartitionSpec
from .spmd.shard_map import shard_map
from .tracing.trace import ShapeDtype, Traced, evaluate, trace, trace_full
from .training import DistributedTrainer
from .transforms.control_flow import cond, fori_loop, map, scan, while_loop  # noqa: A004  # users write mesh.map
from .transforms.custom_rules import custom_jvp, custom_vjp, stop_gradient
from .transforms.grad import grad, hessian, jacobian, jvp, value_and_grad, vjp
from .transforms.remat import remat
from .transforms.vmap import vmap
from .util.wire_exports import (
    Auto,
    DataParallel,
    DataTensor,
    DeviceMap,
    FullySharded,
    Pipeline,
    Ranks,
    Single,
    Strategy,
    TensorParallel,
    WireGraph,
)

__all__ = [
    "Array",
    "AsyncInferenceServer",
    "AsyncMesh",
    "Auto",
    "CodedWeights",
    "Coding",
    "Coordinator",
    "DataParallel",
    "DataTensor",
    "DeviceMap",
    "DistributedTrainer",
    "FaultHandler",
    "FullySharded",
    "Function",
    "Grid",
    "Handle",
    "HealthMonitor",
    "InferenceServer",
    "InputSpec",
    "Mesh",
    "MeshBuilder",
    "MeshError",
    "Model",
    "ModelServer",
    "ModelStore",
    "PartitionSpec",
    "Pipeline",
    "Ranks",
    "ShapeDtype",
    "Single",
    "StoredModel",
    "Strategy",
    "TensorParallel",
    "Traced",
    "WireGraph",
    "Worker",
    "accelerator",
    "auto_partition",
    "auto_sharding",
    "barrier",
    "collectives",
    "cond",
    "cpu",
    "custom_jvp",
    "custom_vjp",
    "distributed",
    "errors",
    "evaluate",
    "fori_loop",
    "from_jax",
    "from_torch",
    "function",
    "gpu",
    "grad",
    "hessian",
    "init",
    "jacobian",
    "jvp",
    "load",
    "load_safetensors",
    "local_rank",
    "map",
    "nn",
    "numpy",
    "on_grid",
    "optim",
    "partition",
    "quantise",
    "random",
    "rank",
    "realise",
    "remat",
    "reshard",
    "save_safetensors",
    "scan",
    "select",
    "shard",
    "shard_map",
    "shutdown",
    "stop_gradient",
    "to_device",
    "trace",
    "trace_full",
    "training",
    "transfer_to",
    "tree",
    "value_and_grad",
    "vjp",
    "vmap",
    "while_loop",
    "world_size",
]
