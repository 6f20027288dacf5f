"""ONNX ops at the edges: numbers far outside, no axes, lengths without factors, a free dimension written as -1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the extra `onnx` is not installed")

import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import mesh
from mesh.models.model import Model

MIXED = np.array([[-1, 2, -3]], np.float32)
NO_AXES = np.zeros(0, np.int64)
WORDS = {"min_gram_length": 1, "max_gram_length": 1, "max_skip_count": 0, "mode": "TF", "ngram_counts": [0]}


def proto(op: str, inputs: Sequence[NDArray[Any]], fixed: int, opset: int, attributes: dict[str, Any]) -> Any:
    """A model of one node, of whose inputs the last `fixed` are its own."""
    names = [f"x{place}" for place in range(len(inputs))]
    free = list(zip(names, inputs, strict=True))[: len(inputs) - fixed]
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], **attributes)], "edge",
        [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for name, x in free],
        [helper.make_value_info("y", onnx.TypeProto())],
        [numpy_helper.from_array(x, name) for name, x in list(zip(names, inputs, strict=True))[len(free) :]],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


CASES: dict[str, tuple[str, list[NDArray[Any]], int, dict[str, Any]]] = {
    **{f"{op} of no axes": (op, [MIXED, NO_AXES], 1, {"noop_with_empty_axes": 1})
       for op in ("ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceSumSquare")},
    "classes of u32": ("OneHot", [np.array([0, 2, 2**32 - 1], np.uint32), np.array(3), MIXED[0, :2]], 2, {}),
    "classes of u64": ("OneHot", [np.array([0, 2, 2**32], np.uint64), np.array(3), MIXED[0, :2]], 2, {}),
    "classes of u8": ("OneHot", [np.array([0, 2, 255], np.uint8), np.array(300), MIXED[0, :2]], 2, {}),
    "places of a number": ("NonZero", [np.array(3, np.float32)], 0, {}),
    "places of a zero": ("NonZero", [np.array(0, np.float32)], 0, {}),
    "words beyond 32 bits": (
        "TfIdfVectorizer", [np.array([5, 6, 7], np.int32)], 0,
        {"pool_int64s": [2**32 + 5, 6], "ngram_indexes": [0, 1], **WORDS},
    ),
    "two words of one column": (
        "TfIdfVectorizer", [np.array([[5, 6, 6], [7, 7, 7]])], 0,
        {"pool_int64s": [5, 6, 9], "ngram_indexes": [1, 1, 3], **WORDS},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_an_op_gives_what_the_reference_gives(name: str) -> None:
    op, inputs, fixed, attributes = CASES[name]
    model = proto(op, inputs, fixed, 23, attributes)
    given = {f"x{place}": x for place, x in enumerate(inputs[: len(inputs) - fixed])}
    with np.errstate(invalid="ignore"):
        (wanted,) = ReferenceEvaluator(model).run(None, given)
        found = np.asarray(mesh.load(model)(given))
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_one_element_comes_from_where_the_standard_says(mode: str) -> None:
    x = np.array([[[3, 1, 4, 1, 5]]], np.float32)
    nothing, region, sizes = np.zeros(0, np.float32), np.array([0, 0, 0, 1, 1, 0.5], np.float32), np.array([1, 1, 1])
    for how, roi, wanted in (("pytorch_half_pixel", nothing, 3), ("tf_crop_and_resize", region, 1)):
        attributes = {"mode": mode, "coordinate_transformation_mode": how}
        model = mesh.load(proto("Resize", [x, roi, nothing, sizes], 3, 19, attributes))
        assert np.asarray(model(x)).tolist() == [[[wanted]]], how


def test_numbers_that_are_all_alike_are_normalised_to_zeros() -> None:
    for shape, number in (((1, 2, 30, 3), 1234.567), ((1, 1, 7, 7), 1e4)):
        model = mesh.load(proto("MeanVarianceNormalization", [np.full(shape, number, np.float32)], 0, 13, {}))
        assert np.abs(np.asarray(model(np.full(shape, number, np.float32)))).max() < 0.1


def size_bytes(model: Model, x: NDArray[Any]) -> int:
    return model.graph(model.given([x])).memory_bytes


def test_a_transform_of_a_prime_length_has_no_matrix_of_it() -> None:
    x = np.random.default_rng(0).standard_normal((2, 2062, 2)).astype(np.float32)  # of 2 * 1031
    whole = x[..., 0] + 1j * x[..., 1]
    for inverse, wanted in ((0, np.fft.fft(whole)), (1, np.fft.ifft(whole))):
        model = mesh.load(proto("DFT", [x], 0, 17, {"inverse": inverse}))
        found = np.asarray(model(x))
        np.testing.assert_allclose(found[..., 0] + 1j * found[..., 1], wanted, atol=1e-5 * np.abs(wanted).max())
        assert size_bytes(model, x) < 1 << 16


def test_many_words_need_no_matrix_of_words_by_words() -> None:
    words = np.arange(3000)
    x = np.random.default_rng(0).integers(0, 4000, (2, 50))
    attributes = {"pool_int64s": words.tolist(), "ngram_indexes": words[::-1].tolist(), **WORDS}
    model = mesh.load(proto("TfIdfVectorizer", [x], 0, 9, attributes))
    wanted = [[np.count_nonzero(row == word) for word in words[::-1]] for row in x]
    np.testing.assert_array_equal(np.asarray(model(x)), wanted)
    assert size_bytes(model, x) < 1 << 20


def test_a_dimension_below_zero_is_free() -> None:
    made = proto("Relu", [MIXED], 0, 20, {})
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    model = mesh.load(made)
    assert model.free == ("x0.0",)
    np.testing.assert_array_equal(np.asarray(model(np.ones((5, 3), np.float32))), np.ones((5, 3)))
