"""What mesh.nn is asked and torch was asked: a name, shapes of random arrays, and keywords.

`tests/golden/make_torch_reference.py` records torch's answers to these; `tests/mesh/nn/test_nn_torch.py` compares.
This file knows neither.  To add a case: a row, then run the script again.
"""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class NnCase(NamedTuple):
    """`shapes` give float32 arrays; a shape with a bound in front, ("int", 5, ...), gives integers below it."""

    label: str
    function: str
    shapes: tuple[tuple[Any, ...], ...]
    options: dict[str, Any]

    @property
    def arrays(self) -> list[NDArray[Any]]:
        rng = np.random.default_rng(zlib.crc32(self.label.encode()))
        return [_array(rng, shape) for shape in self.shapes]


def _array(rng: np.random.Generator, shape: tuple[Any, ...]) -> NDArray[Any]:
    if shape and shape[0] == "int":
        return rng.integers(0, shape[1], shape[2:])
    if shape and shape[0] == "probability":
        found = rng.random(shape[1:])
        return (found / found.sum(-1, keepdims=True)).astype(np.float32)
    if shape and shape[0] == "positive":
        return rng.random(shape[1:]).astype(np.float32) + np.float32(0.1)
    return rng.standard_normal(shape).astype(np.float32)


def _cases(function: str, *rows: tuple[tuple[tuple[Any, ...], ...], dict[str, Any]]) -> tuple[NnCase, ...]:
    return tuple(NnCase(f"{function}-{place}", function, *row) for place, row in enumerate(rows))


CASES: tuple[NnCase, ...] = (
    *_cases(
        "conv",
        (((2, 3, 9, 8), (4, 3, 3, 2)), {}),
        (((2, 3, 9, 8), (4, 3, 3, 2), (4,)), {"stride": (2, 3), "padding": (1, 2)}),
        (((1, 6, 7, 7), (9, 2, 3, 3), (9,)), {"padding": "same", "dilation": 2, "groups": 3}),
        (((1, 4, 7, 7), (8, 1, 3, 3)), {"padding": 1, "stride": 2, "groups": 4}),
        (((2, 3, 20), (5, 3, 4), (5,)), {"stride": 3, "padding": 2, "dilation": 2}),
        (((1, 2, 5, 6, 4), (3, 2, 2, 3, 2)), {"padding": (1, 0, 1), "stride": (1, 2, 1)}),
        (((3, 8, 8), (4, 3, 3, 3)), {"padding": "valid"}),
    ),
    *_cases(
        "conv_transpose",
        (((2, 3, 5, 4), (3, 4, 3, 2)), {}),
        (((2, 3, 5, 4), (3, 4, 3, 3), (4,)), {"stride": 2, "padding": 1, "output_padding": 1}),
        (((1, 6, 4, 5), (6, 2, 3, 2)), {"stride": (3, 1), "groups": 3, "dilation": (1, 2)}),
        (((2, 4, 9), (4, 3, 2), (3,)), {"stride": 4, "padding": 3}),
        (((1, 2, 3, 3, 4), (2, 3, 2, 2, 3)), {"stride": 2}),
        (((1, 3, 6, 6), (3, 2, 1, 1)), {"stride": 3, "padding": 1, "output_padding": 2}),
    ),
    *_cases(
        "max_pool",
        (((2, 3, 8, 9), ), {"kernel": 2}),
        (((2, 3, 8, 9), ), {"kernel": (3, 2), "stride": (2, 1), "padding": (1, 1)}),
        (((1, 2, 9, 10), ), {"kernel": 3, "stride": 2, "dilation": 2, "ceil_mode": True}),
        (((1, 2, 7, 7), ), {"kernel": 3, "stride": 3, "padding": 1, "ceil_mode": True}),
        (((2, 3, 17), ), {"kernel": 4, "stride": 3}),
        (((1, 2, 5, 6, 7), ), {"kernel": 2, "stride": 2, "ceil_mode": True}),
    ),
    *_cases(
        "avg_pool",
        (((2, 3, 8, 9), ), {"kernel": 2}),
        (((2, 3, 8, 9), ), {"kernel": (3, 2), "stride": (2, 1), "padding": 1}),
        (((2, 3, 8, 9), ), {"kernel": 3, "stride": 2, "padding": 1, "count_include_pad": False}),
        (((1, 2, 7, 8), ), {"kernel": 3, "stride": 2, "padding": 1, "ceil_mode": True}),
        (((1, 2, 7, 8), ), {"kernel": 3, "stride": 3, "padding": 1, "ceil_mode": True, "count_include_pad": False}),
        (((2, 3, 17), ), {"kernel": 4, "stride": 3}),
    ),
    *_cases("lp_pool", (((2, 3, 8, 9), ), {"p": 2, "kernel": 3, "stride": 2})),
    *_cases("adaptive_avg_pool", (((2, 3, 8, 9), ), {"output": (4, 3)}), (((2, 3, 7, 10), ), {"output": (3, 4)})),
    *_cases("adaptive_max_pool", (((2, 3, 8, 9), ), {"output": (4, 3)}), (((2, 3, 7, 10), ), {"output": (5, 1)})),
    *(
        case
        for name in (
            "relu", "relu6", "leaky_relu", "elu", "celu", "selu", "sigmoid", "log_sigmoid", "softplus", "softsign",
            "silu", "mish", "hard_tanh", "hard_sigmoid", "hard_swish", "gelu", "glu", "softmax", "log_softmax",
        )
        for case in _cases(name, (((6, 8),), {}))
    ),
    *_cases("gelu", (((3, 4),), {}), (((3, 4),), {"approximate": True}))[1:],
    *_cases("layer_norm", (((2, 5, 8), (8,), (8,)), {"eps": 1e-3})),
    *_cases("rms_norm", (((2, 5, 8), (8,)), {"eps": 1e-3})),
    *_cases("group_norm", (((2, 6, 4, 3), (6,), (6,)), {"groups": 3})),
    *_cases("instance_norm", (((2, 3, 4, 5), (3,), (3,)), {})),
    *_cases("batch_norm", (((4, 3, 5), (3,), ("positive", 3), (3,), (3,)), {"eps": 1e-4})),
    *_cases("mse", (((4, 5), (4, 5)), {}), (((4, 5), (4, 5)), {"reduction": "sum"})),
    *_cases("mae", (((4, 5), (4, 5)), {})),
    *_cases("huber", (((4, 5), (4, 5)), {"delta": 0.7}), (((4, 5), (4, 5)), {"reduction": "none"})),
    *_cases(
        "cross_entropy",
        (((7, 5), ("int", 5, 7)), {}),
        (((7, 5), ("int", 5, 7)), {"label_smoothing": 0.1}),
        (((7, 5), ("int", 5, 7)), {"ignore_index": 2, "label_smoothing": 0.2}),
        (((7, 5), ("int", 5, 7)), {"ignore_index": 1, "reduction": "none"}),
        (((7, 5), ("probability", 7, 5)), {"label_smoothing": 0.1}),
    ),
    *_cases("binary_cross_entropy", (((4, 5), ("positive", 4, 5)), {}), (((4, 5), ("int", 2, 4, 5)), {})),
    *_cases("kl_divergence", (((4, 5), ("probability", 4, 5)), {"reduction": "sum"})),
    *_cases(
        "encoder_layer",
        *(
            (
                ((2, 5, 8), (24, 8), (24,), (8, 8), (8,), (16, 8), (16,), (8, 16), (8,), (8,), (8,), (8,), (8,)),
                {"pre_norm": pre_norm},
            )
            for pre_norm in (False, True)
        ),
    ),
    *_cases(
        "grouped_attention",
        (((2, 6, 4, 8), (2, 2, 4, 8), (2, 2, 4, 8)), {"causal": True}),
        (((2, 6, 4, 8), (2, 3, 4, 8), (2, 3, 4, 8)), {"causal": False}),
    ),
    *_cases(
        "scaled_dot_product_attention",
        (((2, 3, 4, 8), (2, 3, 6, 8), (2, 3, 6, 5)), {}),
        (((2, 3, 4, 8), (2, 3, 6, 8), (2, 3, 6, 5)), {"scale": 0.3}),
    ),
)  # fmt: skip
