"""Inference: models that answer requests, and models that go on with texts (docs/inference.md).

`slots.py` and `batching.py` decide, purely; `generating.py` and `answering.py` perform it; `server.py` has several
models at once.  `cached.py` and `sampling.py` are the graphs of a step.
"""

from .generating import Generating, TokenStream
from .replies import Reply
from .server import AsyncInferenceServer, InferenceServer, LoadedModel, Options
from .settings import GREEDY, Sampling

__all__ = [
    "GREEDY",
    "AsyncInferenceServer",
    "Generating",
    "InferenceServer",
    "LoadedModel",
    "Options",
    "Reply",
    "Sampling",
    "TokenStream",
]
