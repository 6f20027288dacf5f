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
from mesh.errors import InputError
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


def with_defaults(ir_version: int) -> Any:
    """y = reshape(x @ w + b, shape), where w, b and shape have values and are inputs, too; b as large as it comes."""
    rng = np.random.default_rng(0)
    own = {
        "w": rng.standard_normal((4, 6)).astype(np.float32), "b": np.arange(2, dtype=np.float32)[:1],
        "shape": np.array([3, -1]), "kept": np.float32([[2]]),
    }  # fmt: skip
    free = {"x": [2, 4], "w": [4, 6], "b": ["n"], "shape": [2], **({"kept": [1, 1]} if ir_version < 4 else {})}
    kinds = {name: 7 if name == "shape" else 1 for name in free}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["xw"]),
        helper.make_node("Add", ["xw", "b"], ["sum"]),
        helper.make_node("Mul", ["sum", "kept"], ["product"]),
        helper.make_node("Reshape", ["product", "shape"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info(name, kinds[name], shape) for name, shape in free.items()]
    graph = helper.make_graph(
        nodes, "defaults", [*inputs[1:], inputs[0]], [helper.make_value_info("y", onnx.TypeProto())],
        [numpy_helper.from_array(array, name) for name, array in own.items()],
    )  # fmt: skip
    return helper.make_model(graph, ir_version=ir_version, opset_imports=[helper.make_opsetid("", 17)])


GIVEN: dict[str, NDArray[Any]] = {
    "w": np.ones((4, 6), np.float32), "b": np.arange(6, dtype=np.float32), "shape": np.array([6, 2]),
}  # fmt: skip


@pytest.mark.parametrize("ir_version", [3, 10])
@pytest.mark.parametrize("names", [(), ("w",), ("b",), ("shape",), ("w", "b", "shape")], ids="-".join)
def test_an_input_with_a_value_in_the_file_has_that_value_unless_it_is_given(
    names: tuple[str, ...], ir_version: int
) -> None:
    proto, x = with_defaults(ir_version), np.arange(8, dtype=np.float32).reshape(2, 4)
    given = {name: GIVEN[name] for name in names}
    (wanted,) = ReferenceEvaluator(proto).run(None, {"x": x, **given})
    model = mesh.load(proto)
    assert [spec.name for spec in model.inputs] == ["x"], "what has to be given"
    np.testing.assert_allclose(np.asarray(model(x, **given)), wanted, rtol=1e-6)
    with mesh.Mesh.builder().simulate(2).build() as m:
        np.testing.assert_allclose(m.run(model, {"x": x, **given}), wanted, rtol=1e-6)
    np.testing.assert_allclose(np.asarray(model(x)), ReferenceEvaluator(proto).run(None, {"x": x})[0], rtol=1e-6)


def test_a_value_in_the_file_that_is_no_input_cannot_be_given() -> None:
    model = mesh.load(with_defaults(10))
    x = np.zeros((2, 4), np.float32)
    with pytest.raises(InputError, match="no input 'kept'") as told:
        model(x, kept=np.float32([[3]]))
    assert told.value.next_step == "It takes: x; and in place of values in the file: w, b, shape"
    with pytest.raises(InputError, match=r"'w' is f32\[4, 5\], expected f32\[4,6\]"):
        model(x, w=np.zeros((4, 5), np.float32))


def test_rows_of_a_batch_share_what_is_in_the_file() -> None:
    x = helper.make_tensor_value_info("x", 1, ["batch", 4])
    w = helper.make_tensor_value_info("w", 1, [4, 4])
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    own = [numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")]
    graph = helper.make_graph(nodes, "rows", [x, w], [helper.make_value_info("y", onnx.TypeProto())], own)
    rows = np.ones((4, 4), np.float32)
    with mesh.Mesh.builder().simulate(1).build() as m, mesh.InferenceServer(m) as server:
        server.load_model("rows", mesh.load(helper.make_model(graph)))
        assert np.array_equal(server.infer("rows", rows), rows)
        with pytest.raises(InputError, match="'w' is no row of a batch"):
            server.infer("rows", {"x": rows, "w": rows})
        server.load_model("alone", mesh.load(helper.make_model(graph)), batched=False)
        assert np.array_equal(server.infer("alone", {"x": rows, "w": rows}), 4 * rows)
