"""The names that users import: the one list of them, by which `__init__.py` imports each when it is first used."""

from . import collectives, errors, neighbours, nn, numpy, optim, training, tree
from .aio import AsyncMesh
from .array import Array
from .client import Mesh
from .coding import CodedWeights, Coding
from .control import cond, fori_loop, map, scan, while_loop  # noqa: A004  # users write mesh.map
from .distributed import distributed
from .errors import MeshError
from .function import Function, function
from .grid import Grid, PartitionSpec
from .handle import Handle
from .importers.jax import from_jax
from .importers.torch import from_torch
from .inference import AsyncInferenceServer, InferenceServer
from .load import load
from .model import InputSpec, Model
from .numpy import random
from .placing import accelerator, cpu, gpu, to_device, transfer_to
from .realise import realise
from .safetensors import load_safetensors, save_safetensors
from .scripts.world import barrier, init, local_rank, rank, shutdown, world_size
from .shard_map import shard_map
from .sharding import auto_sharding, on_grid, reshard, shard
from .trace import ShapeDtype, Traced, evaluate, trace, trace_full
from .training import DistributedTrainer
from .transforms.batching import vmap
from .transforms.custom_rules import custom_jvp, custom_vjp, stop_gradient
from .transforms.grad import grad, hessian, jacobian, jvp, value_and_grad, vjp
from .transforms.remat import remat
from .wired import (
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
    "DataParallel",
    "DataTensor",
    "DeviceMap",
    "DistributedTrainer",
    "FullySharded",
    "Function",
    "Grid",
    "Handle",
    "InferenceServer",
    "InputSpec",
    "Mesh",
    "MeshError",
    "Model",
    "PartitionSpec",
    "Pipeline",
    "Ranks",
    "ShapeDtype",
    "Single",
    "Strategy",
    "TensorParallel",
    "Traced",
    "WireGraph",
    "accelerator",
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
    "neighbours",
    "nn",
    "numpy",
    "on_grid",
    "optim",
    "random",
    "rank",
    "realise",
    "remat",
    "reshard",
    "save_safetensors",
    "scan",
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
