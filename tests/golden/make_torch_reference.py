"""Records what torch answers to the cases of tests/support/cases/nn_cases.py, in tests/golden/torch_nn.npz.

    PYTHONPATH=tests python tests/golden/make_torch_reference.py     # in an environment with torch and numpy

The recorded file came from torch 2.13.0 on a CPU; every function is computed in float64 and rounded to float32.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from support.cases.nn_cases import CASES


def by_rank(name: str) -> Callable[..., Any]:
    """conv2d, max_pool1d, ...: the function for as many axes as x has behind its channels (conv: as the kernel)."""

    def call(x: Any, *rest: Any, kernel: Any = None, output: Any = None, **options: Any) -> Any:
        rank = rest[0].ndim - 2 if rest else x.ndim - 2
        sizes = [size for size in (kernel, output) if size is not None]
        return getattr(F, name.format(rank))(x, *rest, *sizes, **options)

    return call


def lp_pool(x: Any, p: float, kernel: int, stride: int) -> Any:
    return F.lp_pool2d(x.abs(), p, kernel, stride)


def cross_entropy(logits: Any, labels: Any, **options: Any) -> Any:
    return F.cross_entropy(logits, labels, **{"ignore_index": -100, **options})


def encoder_layer(x: Any, *weights: Any, pre_norm: bool) -> Any:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, 0.0, F.gelu, batch_first=True, norm_first=pre_norm).double()
    for parameter, weight in zip(layer.parameters(), weights, strict=True):
        parameter.data = weight
    return layer(x).detach()


def grouped_attention(q: Any, k: Any, v: Any, causal: bool) -> Any:
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "conv": by_rank("conv{}d"),
    "conv_transpose": by_rank("conv_transpose{}d"),
    "max_pool": by_rank("max_pool{}d"),
    "avg_pool": by_rank("avg_pool{}d"),
    "lp_pool": lp_pool,
    "adaptive_avg_pool": by_rank("adaptive_avg_pool{}d"),
    "adaptive_max_pool": by_rank("adaptive_max_pool{}d"),
    "encoder_layer": encoder_layer,
    "grouped_attention": grouped_attention,
    "log_sigmoid": F.logsigmoid,
    "hard_tanh": F.hardtanh,
    "hard_sigmoid": F.hardsigmoid,
    "hard_swish": F.hardswish,
    "sigmoid": torch.sigmoid,
    "gelu": lambda x, approximate=False: F.gelu(x, approximate="tanh" if approximate else "none"),
    "softmax": lambda x: F.softmax(x, -1),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "layer_norm": lambda x, weight, bias, eps: F.layer_norm(x, weight.shape, weight, bias, eps),
    "rms_norm": lambda x, weight, eps: F.rms_norm(x, weight.shape, weight, eps),
    "group_norm": lambda x, weight, bias, groups: F.group_norm(x, groups, weight, bias),
    "instance_norm": lambda x, weight, bias: F.instance_norm(x, weight=weight, bias=bias),
    "batch_norm": lambda x, mean, variance, weight, bias, eps: F.batch_norm(x, mean, variance, weight, bias, eps=eps),
    "mse": F.mse_loss,
    "mae": F.l1_loss,
    "huber": F.huber_loss,
    "cross_entropy": cross_entropy,
    "binary_cross_entropy": lambda x, t: F.binary_cross_entropy_with_logits(x, t.double()),
    "kl_divergence": F.kl_div,
}


def answer(case: Any) -> np.ndarray:
    given = [torch.from_numpy(array) for array in case.arrays]
    wide = [tensor.double() if tensor.is_floating_point() else tensor for tensor in given]
    function = FUNCTIONS.get(case.function) or getattr(F, case.function)
    return function(*wide, **case.options).numpy().astype(np.float32)


if __name__ == "__main__":
    file = Path(__file__).with_name("torch_nn.npz")
    np.savez_compressed(file, **{case.label: answer(case) for case in CASES})
    print(file, len(CASES), "answers of torch", torch.__version__)
