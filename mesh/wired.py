"""What users see of the wire format: the graph, and the strategies by which it is planned."""

from wire.graph import WireGraph
from wire.strategies import (
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
