"""Inference: models that answer requests and generate text (docs/inference.md).

`continuous_batching.py` and `request_batcher.py` decide, purely; `generation_runner.py` and `request_runner.py` perform
it; `server.py` has several models at once.  `kv_cache_step.py` and `sampling.py` are the graphs of a step.
"""

from .generation_runner import Generating, TokenStream
from .logit_adjustment import LogitAdjustment
from .replies import Reply
from .server import AsyncInferenceServer, InferenceServer, LoadedModel
from .settings import GREEDY, Options, Sampling

__all__ = [
    "GREEDY",
    "AsyncInferenceServer",
    "Generating",
    "InferenceServer",
    "LoadedModel",
    "LogitAdjustment",
    "Options",
    "Reply",
    "Sampling",
    "TokenStream",
]
