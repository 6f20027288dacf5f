"""What users see of the wire format: the graph, and the strategies by which it is planned."""

from wire.ir.graph import WireGraph
from wire.policy.strategies import (
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
)

__all__ = [
    "Auto",
    "DataParallel",
    "DataTensor",
    "DeviceMap",
    "FullySharded",
    "Pipeline",
    "Ranks",
    "Single",
    "Strategy",
    "TensorParallel",
    "WireGraph",
]
