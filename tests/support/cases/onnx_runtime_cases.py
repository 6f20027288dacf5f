"""Ops, attributes and inputs of which the package `onnx` tries few, and what onnxruntime gives for them.

`python tests/support/cases/onnx_runtime_cases.py` asks onnxruntime anew, for these and for the light models.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from support.cases import light_models

GOLDEN = Path(__file__).parents[2] / "golden"
OPS, LIGHT = GOLDEN / "onnx_runtime_ops.npz", GOLDEN / "onnx_runtime_light.npz"
Given = Sequence[Any]  # inputs: a shape for random float32 values, an array, or None for one that is absent
OPSET = 20
VERSIONS = (13, 14, 16, 18, 21, 22, 23, 24)  # the others that are tried


def ints(low: int, high: int, *shape: int, dtype: Any = np.int64, seed: int = 5) -> NDArray[Any]:
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


def shape_of(*dims: int) -> NDArray[Any]:
    return np.array(dims, np.int64)


TRIED: list[tuple[str, dict[str, Any], Given]] = [
    # arithmetic
    *[
        ("Div", {}, (ints(-9, 9, 40, dtype=kind), ints(1, 5, 40, dtype=kind) * np.array([1, -1] * 20, kind)))
        for kind in (np.int32, np.int64)
    ],
    *[("Mod", {"fmod": fmod}, (ints(-9, 9, 40), ints(1, 5, 40) * np.array([1, -1] * 20))) for fmod in (0, 1)],
    ("Mod", {"fmod": 1}, ((40,), (40,))),
    ("Pow", {}, (ints(0, 9, 30, dtype=np.int32), np.full(30, 3.0, np.float32))),
    ("Pow", {}, (np.abs(np.random.default_rng(1).normal(size=30)).astype(np.float32), ints(-3, 4, 30))),
    *[(op, {}, ((3, 1, 5), (4, 1), (1, 5))) for op in ("Max", "Min", "Sum", "Mean")],
    ("BitShift", {"direction": "LEFT"}, (ints(0, 99, 20, dtype=np.uint8), ints(0, 7, 20, dtype=np.uint8))),
    *[
        (op, {}, ((4, 30),))
        for op in (
            "Elu",
            "Selu",
            "Celu",
            "LeakyRelu",
            "HardSigmoid",
            "HardSwish",
            "Mish",
            "Softplus",
            "Softsign",
            "Gelu",
            "ThresholdedRelu",
            "Shrink",
            "Erf",
            "Sign",
            "Round",
            "Asinh",
            "Sinh",
            "Atan",
        )
    ],
    ("PRelu", {}, ((2, 3, 4), (3, 1))),
    # reductions
    *[
        (op, {"keepdims": keep}, ((2, 3, 4), shape_of(*axes)))
        for op in (
            "ReduceL1",
            "ReduceL2",
            "ReduceLogSumExp",
            "ReduceMax",
            "ReduceMean",
            "ReduceMin",
            "ReduceProd",
            "ReduceSum",
            "ReduceSumSquare",
        )
        for keep, axes in ((0, (1,)), (1, (0, -1)))
    ],
    *[
        (op, {"axis": axis, "select_last_index": last}, (ints(0, 3, 4, 5).astype(np.float32),))
        for op in ("ArgMax", "ArgMin")
        for axis in (0, -1)
        for last in (0, 1)
    ],
    # shapes
    ("Slice", {}, ((6, 7), shape_of(-1, 5), shape_of(-100, 1), shape_of(0, 1), shape_of(-2, -3))),
    ("Slice", {}, ((6, 7), shape_of(2), shape_of(100), shape_of(-1))),
    *[("Pad", {"mode": mode}, ((3, 4), shape_of(1, 2, 0, 3))) for mode in ("constant", "reflect", "edge", "wrap")],
    ("Pad", {}, ((5, 6), shape_of(-1, 2, 1, -3), np.float32(7))),
    ("Split", {"axis": 1, "num_outputs": 3}, ((2, 7),)),
    ("Split", {"axis": -1}, ((2, 7), shape_of(1, 0, 6))),
    *[(op, {"blocksize": 2}, ((2, 8, 4, 6),)) for op in ("DepthToSpace", "SpaceToDepth")],
    ("DepthToSpace", {"blocksize": 2, "mode": "CRD"}, ((2, 8, 4, 6),)),
    ("Expand", {}, ((3, 1), shape_of(2, 1, 4))),
    ("Tile", {}, ((2, 3), shape_of(2, 3))),
    ("CenterCropPad", {"axes": [0, 2]}, ((5, 3, 4), shape_of(2, 7))),
    ("ReverseSequence", {"batch_axis": 0, "time_axis": 1}, ((3, 5, 2), shape_of(5, 1, 3))),
    ("Trilu", {"upper": 0}, ((2, 4, 5), np.array(-1))),
    # indexing
    ("Gather", {"axis": 1}, ((3, 5, 2), ints(-5, 5, 2, 2))),
    ("GatherElements", {"axis": 1}, ((4, 5), ints(-5, 5, 3, 7))),
    ("GatherND", {"batch_dims": 1}, ((2, 3, 4, 5), ints(-3, 3, 2, 6, 2))),
    *[
        ("ScatterElements", {"axis": 1, "reduction": mode}, ((4, 5), ints(-5, 5, 4, 3), (4, 3)))
        for mode in ("add", "mul", "max", "min")
    ],
    *[
        ("ScatterND", {"reduction": mode}, ((4, 5, 2), ints(-4, 4, 6, 1), (6, 5, 2)))
        for mode in ("add", "mul", "max", "min")
    ],
    ("OneHot", {"axis": 1}, (ints(-6, 6, 3, 4), np.array(5), np.array([2.0, 3.0], np.float32))),
    *[
        ("TopK", {"axis": 0, "largest": largest}, (ints(0, 4, 9, 3).astype(np.float32), shape_of(4)))
        for largest in (0, 1)
    ],
    *[("CumSum", {"exclusive": e, "reverse": r}, ((3, 6), np.array(1))) for e in (0, 1) for r in (0, 1)],
    ("Unique", {"axis": 0, "sorted": 0}, (ints(0, 3, 9, 1),)),
    ("Compress", {"axis": 1}, ((3, 4), np.array([True, False, True]))),
    # convolution and pooling
    *[
        (
            "Conv",
            {"strides": [2, 1], "pads": [1, 0, 2, 1], "dilations": [1, 2], "group": g},
            ((2, 4, 9, 10), (6, 4 // g, 3, 3), (6,)),
        )
        for g in (1, 2)
    ],
    *[
        ("Conv", {"auto_pad": pad, "strides": [2, 3]}, ((1, 2, 9, 10), (3, 2, 4, 3)))
        for pad in ("SAME_UPPER", "SAME_LOWER", "VALID")
    ],
    ("Conv", {}, ((2, 3, 11), (4, 3, 3))),
    ("Conv", {"pads": [1] * 6}, ((1, 2, 4, 5, 6), (3, 2, 3, 3, 3))),
    *[
        (
            "ConvTranspose",
            {"strides": [2, 3], "pads": [1, 0, 0, 2], "output_padding": [1, 0], "dilations": [1, 2], "group": g},
            ((2, 4, 5, 4), (4, 3, 3, 2), (3 * g,)),
        )
        for g in (1, 2)
    ],
    *[
        ("ConvTranspose", {"strides": [2, 2], "auto_pad": pad}, ((1, 2, 4, 5), (2, 3, 3, 3)))
        for pad in ("SAME_UPPER", "SAME_LOWER")
    ],
    ("ConvTranspose", {"strides": [2, 2], "output_shape": [9, 11]}, ((1, 2, 4, 5), (2, 3, 3, 3))),
    *[
        (op, {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1], "ceil_mode": c}, ((2, 3, 9, 8),))
        for op in ("MaxPool", "AveragePool", "LpPool")
        for c in (0, 1)
    ],
    *[
        (
            "AveragePool",
            {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4, "ceil_mode": c, "count_include_pad": 1},
            ((1, 2, 7, 6),),
        )
        for c in (0, 1)
    ],
    *[
        (op, {"kernel_shape": [3], "auto_pad": pad, "strides": [2]}, ((1, 2, 8),))
        for op in ("MaxPool", "AveragePool")
        for pad in ("SAME_UPPER", "SAME_LOWER")
    ],
    ("MaxPool", {"kernel_shape": [2, 3], "dilations": [2, 1], "pads": [1, 1, 1, 1]}, ((1, 2, 7, 8),)),
    ("AveragePool", {"kernel_shape": [20]}, ((1, 2, 30),)),
    *[(op, {}, ((2, 3, 4, 5),)) for op in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")],
    (
        "MaxRoiPool",
        {"pooled_shape": [2, 3], "spatial_scale": 0.5},
        ((2, 3, 9, 8), np.array([[0, 0, 0, 9, 9], [1, 2, 3, 15, 12], [0, 4, 4, 4, 4]], np.float32)),
    ),
    *[
        (
            "RoiAlign",
            {"output_height": 3, "output_width": 2, "sampling_ratio": ratio, "mode": mode},
            ((2, 3, 9, 8), np.array([[0, 0, 7, 7], [1.5, 2, 6, 8.5]], np.float32), shape_of(1, 0)),
        )
        for ratio in (0, 2)
        for mode in ("avg", "max")
    ],
    ("Col2Im", {"pads": [1, 0, 1, 0], "strides": [2, 1]}, ((2, 12, 12), shape_of(5, 5), shape_of(3, 2))),
    # resizing
    *[
        (
            "Resize",
            {"mode": mode, "coordinate_transformation_mode": how},
            ((1, 2, 5, 6), None, None, shape_of(1, 2, 8, 4)),
        )
        for mode in ("nearest", "linear", "cubic")
        for how in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    ],
    *[
        (
            "Resize",
            {"mode": "nearest", "nearest_mode": how},
            ((1, 1, 4, 4), None, np.array([1, 1, 1.7, 0.6], np.float32)),
        )
        for how in ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
    ],
    *[
        ("Resize", {"mode": mode, "antialias": 1}, ((1, 1, 9, 8), None, None, shape_of(1, 1, 4, 5)))
        for mode in ("linear", "cubic")
    ],
    *[
        ("GridSample", {"mode": mode, "padding_mode": pad, "align_corners": c}, ((2, 2, 5, 4), (2, 3, 3, 2)))
        for mode in ("linear", "cubic", "nearest")
        for pad in ("zeros", "border", "reflection")
        for c in (0, 1)
    ],
    # normalisation
    (
        "BatchNormalization",
        {},
        ((2, 3, 4), (3,), (3,), (3,), np.abs(np.random.default_rng(2).normal(size=3)).astype(np.float32)),
    ),
    ("InstanceNormalization", {"epsilon": 1e-3}, ((2, 3, 5), (3,), (3,))),
    *[("LayerNormalization", {"axis": axis}, ((2, 3, 4), (3, 4)[axis + 2 :], (3, 4)[axis + 2 :])) for axis in (-1, -2)],
    ("LRN", {"size": 5, "alpha": 0.1}, ((2, 7, 3, 3),)),
    *[("LpNormalization", {"axis": 1, "p": p}, ((2, 5),)) for p in (1, 2)],
    *[(op, {"axis": 1}, ((2, 5, 3),)) for op in ("Softmax", "LogSoftmax", "Hardmax")],
    # matrices
    *[
        (
            "Gemm",
            {"transA": a, "transB": b, "alpha": 0.5, "beta": 2.0},
            ((4, 3) if a else (3, 4), (5, 4) if b else (4, 5), (5,)),
        )
        for a in (0, 1)
        for b in (0, 1)
    ],
    ("Einsum", {"equation": "bij,bjk->ik"}, ((3, 2, 4), (3, 4, 5))),
    ("Einsum", {"equation": "...ij->...j"}, ((2, 3, 4),)),
    (
        "MatMulInteger",
        {},
        (ints(0, 255, 4, 5, dtype=np.uint8), ints(0, 255, 5, 3, dtype=np.uint8), np.uint8(7), np.uint8(9)),
    ),
    # quantised
    *[("QuantizeLinear", {}, ((5, 6), np.float32(0.03), kind(3))) for kind in (np.uint8, np.int8)],
    ("QuantizeLinear", {"axis": 1}, ((5, 3), np.array([0.1, 0.02, 0.3], np.float32), np.array([1, 2, 3], np.uint8))),
    (
        "DequantizeLinear",
        {"axis": 0},
        (ints(-99, 99, 3, 4, dtype=np.int8), np.array([0.1, 0.2, 0.3], np.float32), np.array([1, 2, 3], np.int8)),
    ),
    ("DynamicQuantizeLinear", {}, ((6, 7),)),
    (
        "ConvInteger",
        {"pads": [1, 1, 1, 1]},
        (ints(0, 255, 1, 2, 5, 5, dtype=np.uint8), ints(0, 255, 3, 2, 3, 3, dtype=np.uint8), np.uint8(12)),
    ),
    (
        "QLinearConv",
        {"pads": [1, 1, 1, 1]},
        (
            ints(0, 255, 1, 2, 5, 5, dtype=np.uint8),
            np.float32(0.02),
            np.uint8(100),
            ints(0, 255, 3, 2, 3, 3, dtype=np.uint8),
            np.float32(0.01),
            np.uint8(120),
            np.float32(0.3),
            np.uint8(90),
        ),
    ),
    # recurrent
    *[
        (
            "LSTM",
            {"hidden_size": 4, "direction": d},
            ((5, 2, 3), (n, 16, 3), (n, 16, 4), (n, 32), None, (n, 2, 4), (n, 2, 4)),
        )
        for d, n in (("forward", 1), ("reverse", 1), ("bidirectional", 2))
    ],
    (
        "LSTM",
        {"hidden_size": 4, "clip": 0.9, "activations": ["HardSigmoid", "Relu", "Tanh"]},
        ((2, 2, 3), (1, 16, 3), (1, 16, 4), (1, 32), None, None, None, (1, 12)),
    ),
    ("LSTM", {"hidden_size": 4}, ((5, 2, 3), (1, 16, 3), (1, 16, 4), (1, 32), np.array([5, 2], np.int32))),
    *[
        (
            "GRU",
            {"hidden_size": 4, "direction": d, "linear_before_reset": b},
            ((5, 2, 3), (n, 12, 3), (n, 12, 4), (n, 24), np.array([3, 5], np.int32)),
        )
        for d, n in (("forward", 1), ("bidirectional", 2))
        for b in (0, 1)
    ],
    (
        "RNN",
        {
            "hidden_size": 4,
            "direction": "reverse",
            "activations": ["Affine"],
            "activation_alpha": [0.5],
            "activation_beta": [0.1],
        },
        ((5, 2, 3), (1, 4, 3), (1, 4, 4), (1, 8), np.array([3, 5], np.int32)),
    ),
    # signal and boxes
    *[("DFT", {"inverse": i}, ((2, 64, 1 + i),)) for i in (0, 1)],
    ("DFT", {"onesided": 1}, ((1, 512, 1),)),
    ("STFT", {}, ((1, 64, 1), np.array(8), None, np.array(16))),
    ("HannWindow", {}, (np.array(9),)),
    ("MelWeightMatrix", {}, (np.array(8), np.array(32), np.array(8000), np.float32(100), np.float32(3000))),
    (
        "NonMaxSuppression",
        {},
        (
            np.sort(np.random.default_rng(3).random((2, 20, 4), np.float32)),
            np.random.default_rng(4).random((2, 3, 20), np.float32),
            np.array(5),
            np.float32(0.3),
            np.float32(0.2),
        ),
    ),
    ("Det", {}, ((3, 7, 7),)),
    (
        "TfIdfVectorizer",
        {
            "mode": "TFIDF",
            "min_gram_length": 1,
            "max_gram_length": 2,
            "max_skip_count": 2,
            "ngram_counts": [0, 3],
            "ngram_indexes": [0, 1, 2, 3, 4],
            "pool_int64s": [2, 3, 5, 5, 6, 2, 3],
            "weights": [0.5, 2.0, 1.0, 3.0, 0.1],
        },
        (ints(2, 7, 3, 12),),
    ),
    # edges
    *[("Slice", {}, ((6, 7), shape_of(start), shape_of(-200), shape_of(0), shape_of(-1))) for start in (-100, -7, 0)],
    *[("Pad", {}, ((4,), shape_of(*pads))) for pads in ((2, -5), (-5, 2), (-6, 4), (3, -6), (-2, -2))],
    ("Pad", {}, ((2, 3), shape_of(), None, shape_of())),
    ("OneHot", {}, (np.array([2**32 + 1, -(2**32), 2, -3]), np.array(3), np.array([0.0, 1.0], np.float32))),
    ("Gemm", {"beta": 0.0}, ((2, 3), (3, 4), np.full(4, np.nan, np.float32))),
    ("MaxPool", {"kernel_shape": [3, 3], "pads": [1] * 4}, (np.full((1, 1, 3, 3), -np.inf, np.float32),)),
    ("MaxPool", {"kernel_shape": [3, 3], "pads": [1] * 4}, (np.zeros((1, 2, 3, 3), np.uint8),)),
    ("DequantizeLinear", {}, (ints(0, 60000, 3, 4, dtype=np.int32) * 20, np.float16(0.002))),
    ("RoiAlign", {"output_height": 2, "output_width": 3}, ((2, 3, 9, 8), np.zeros((0, 4), np.float32), shape_of())),
    *[
        (
            op,
            {"hidden_size": 4, "direction": ("forward", "bidirectional")[n - 1], **attributes},
            ((5, 2, 3), (n, gates * 4, 3), (n, gates * 4, 4)),
        )
        for op, gates, n, attributes in (
            ("RNN", 1, 2, {"activations": ["Tanh", "LeakyRelu"], "activation_alpha": [0.3]}),
            ("GRU", 3, 1, {"activations": ["Sigmoid", "Elu"], "activation_alpha": [0.3]}),
            (
                "GRU",
                3,
                2,
                {
                    "activations": ["HardSigmoid", "Tanh", "Sigmoid", "LeakyRelu"],
                    "activation_alpha": [0.3, 0.4],
                    "activation_beta": [0.6],
                },
            ),
            ("LSTM", 4, 1, {"activations": ["Sigmoid", "LeakyRelu", "Tanh"], "activation_alpha": [0.3]}),
            (
                "LSTM",
                4,
                1,
                {
                    "activations": ["Sigmoid", "ThresholdedRelu", "Affine"],
                    "activation_alpha": [0.1, 0.7],
                    "activation_beta": [0.2],
                },
            ),
        )
    ],
]


def values(given: Given) -> list[NDArray[Any] | None]:
    random = np.random.default_rng(0)
    return [
        random.normal(size=each).astype(np.float32)
        if isinstance(each, tuple)
        else None
        if each is None
        else np.asarray(each)
        for each in given
    ]


def model_of(op: str, attributes: dict[str, Any], arrays: list[NDArray[Any] | None]) -> Any:
    schema_outputs = {
        "Split": 3,
        "LSTM": 3,
        "GRU": 2,
        "RNN": 2,
        "MaxPool": 1,
        "TopK": 2,
        "Unique": 4,
        "DynamicQuantizeLinear": 3,
    }
    names = [f"x{place}" if array is not None else "" for place, array in enumerate(arrays)]
    outputs = [f"y{place}" for place in range(schema_outputs.get(op, 1))]
    if op == "MaxPool" and "dilations" not in attributes:
        outputs.append("y1")
    inputs = [
        helper.make_tensor_value_info(name, numpy_helper.from_array(array).data_type, array.shape)
        for name, array in zip(names, arrays, strict=True)
        if array is not None
    ]
    node = helper.make_node(op, names, outputs, **attributes)
    graph = helper.make_graph([node], op, inputs, [helper.make_empty_tensor_value_info(name) for name in outputs])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)


def named(given: Given) -> dict[str, NDArray[Any]]:
    """The inputs by name."""
    return {f"x{place}": array for place, array in enumerate(values(given)) if array is not None}


# -- onnxruntime ------------------------------------------------------------------------------------------


def asked(model: Any, given: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
    """What onnxruntime gives."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found: list[NDArray[Any]] = session.run(None, given)
    return found


def refusals() -> tuple[type[Exception], ...]:
    """The classes of what onnxruntime raises about a model: its own, by the statuses of its C API."""
    from onnxruntime.capi import onnxruntime_pybind11_state as statuses

    names = ("Fail", "InvalidArgument", "InvalidGraph", "InvalidProtobuf", "NotImplemented", "RuntimeException")
    return tuple(getattr(statuses, name) for name in names)


def accepted(versions: Sequence[int]) -> NDArray[Any]:
    """Pairs of an opset version and a case that mean the same to onnxruntime as in OPSET."""
    found = []
    for version in versions:
        for number, (op, attributes, given) in enumerate(TRIED):
            model = model_of(op, attributes, values(given))
            wanted = asked(model, named(given))
            model.opset_import[0].version = version
            try:
                same = all(np.array_equal(a, b) for a, b in zip(asked(model, named(given)), wanted, strict=True))
            except refusals():  # no such attribute, input, dtype or op in that version
                continue
            if same:
                found.append((version, number))
    return np.array(found)


def record() -> None:
    """Write the golden files."""
    ops = {
        f"{number}.{place}": array
        for number, (op, attributes, given) in enumerate(TRIED)
        for place, array in enumerate(asked(model_of(op, attributes, values(given)), named(given)))
    }
    np.savez_compressed(OPS, accepted=accepted(VERSIONS), **ops)
    light = {}
    for name in light_models.NAMES:
        proto = light_models.without_softmax(light_models.model(name))
        light[name] = asked(proto, light_models.inputs(proto, seed=1))[0]
        if name not in light_models.LARGE:
            proto = light_models.weighted(name, seed=2)
            light[f"{name} weighted"] = asked(proto, light_models.inputs(proto, seed=3))[0]
    np.savez_compressed(LIGHT, **light)


if __name__ == "__main__":
    record()
