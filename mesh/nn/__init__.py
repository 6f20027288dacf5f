"""mesh.nn: what neural networks are made of, as functions and as plain pytrees of weights.

Functions take arrays; layers (`layers.py`, `transformer.py`) are frozen dataclasses that hold arrays or handles, can be
put, traced and mapped like any tree, and are called.  Weights have torch's layout: (out, in, *kernel); channels come
before the axes of an image.  docs/nn.md is the guide.
To add a function: write it in the module of its kind, and its name here.
"""

from typing import TYPE_CHECKING, Any

from ..util.missing_names import missing_name_error
from . import initialisers
from .activations import (
    celu,
    elu,
    gelu,
    glu,
    hard_sigmoid,
    hard_swish,
    hard_tanh,
    leaky_relu,
    log_sigmoid,
    mish,
    relu,
    relu6,
    selu,
    sigmoid,
    silu,
    softplus,
    softsign,
)
from .attention import causal_mask, scaled_dot_product_attention
from .convolution import conv, conv_transpose
from .functions import embedding, linear, log_softmax, softmax
from .layers import (
    MLP,
    BatchNorm,
    BatchStatistics,
    Conv,
    ConvTranspose,
    Dropout,
    Embedding,
    GatedMLP,
    GroupNorm,
    LayerNorm,
    Linear,
    RMSNorm,
    dropout,
)
from .losses import binary_cross_entropy, cross_entropy, huber, kl_divergence, mae, mse
from .normalisation import batch_norm, batch_statistics, group_norm, instance_norm, layer_norm, rms_norm
from .parallel import AllToShardedLinear, ShardedToAllLinear
from .pooling import adaptive_avg_pool, adaptive_max_pool, avg_pool, global_avg_pool, global_max_pool, lp_pool, max_pool
from .quantisation import QuantisedLinear, dequantise, quantise
from .transformer import Attention, KVCache, TransformerBlock, rotary

__all__ = [
    "MLP",
    "AllToShardedLinear",
    "Attention",
    "BatchNorm",
    "BatchStatistics",
    "Conv",
    "ConvTranspose",
    "Dropout",
    "Embedding",
    "GatedMLP",
    "GroupNorm",
    "KVCache",
    "LayerNorm",
    "Linear",
    "QuantisedLinear",
    "RMSNorm",
    "ShardedToAllLinear",
    "TransformerBlock",
    "adaptive_avg_pool",
    "adaptive_max_pool",
    "avg_pool",
    "batch_norm",
    "batch_statistics",
    "binary_cross_entropy",
    "causal_mask",
    "celu",
    "conv",
    "conv_transpose",
    "cross_entropy",
    "dequantise",
    "dropout",
    "elu",
    "embedding",
    "gelu",
    "global_avg_pool",
    "global_max_pool",
    "glu",
    "group_norm",
    "hard_sigmoid",
    "hard_swish",
    "hard_tanh",
    "huber",
    "initialisers",
    "instance_norm",
    "kl_divergence",
    "layer_norm",
    "leaky_relu",
    "linear",
    "log_sigmoid",
    "log_softmax",
    "lp_pool",
    "mae",
    "max_pool",
    "mish",
    "mse",
    "quantise",
    "relu",
    "relu6",
    "rms_norm",
    "rotary",
    "scaled_dot_product_attention",
    "selu",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "softsign",
]


if not TYPE_CHECKING:  # which would take any name then

    def __getattr__(name: str) -> Any:
        raise missing_name_error(__name__, name)
