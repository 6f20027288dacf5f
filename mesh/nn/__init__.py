"""mesh.nn: what a transformer encoder is made of, as functions and as plain pytrees of weights.

Functions (`functions.py`, `attention.py`) take arrays; layers (`layers.py`) are frozen dataclasses that hold arrays or
handles, can be put, traced and mapped like any tree, and are called.  Weights have torch's layout: (out, in).
"""

from .attention import multi_head_attention, scaled_dot_product_attention
from .functions import embedding, gelu, layer_norm, linear, log_softmax, relu, silu, softmax
from .layers import Embedding, LayerNorm, Linear, MultiHeadAttention

__all__ = [
    "Embedding",
    "LayerNorm",
    "Linear",
    "MultiHeadAttention",
    "embedding",
    "gelu",
    "layer_norm",
    "linear",
    "log_softmax",
    "multi_head_attention",
    "relu",
    "scaled_dot_product_attention",
    "silu",
    "softmax",
]
