"""mesh.trace: names, kinds of leaves, closures, binding, and errors that say what to do instead."""

import functools
from collections import namedtuple
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import mesh
import mesh.numpy as mnp
from mesh import tree
from mesh.core.handle import Handle
from mesh.core.realise import using
from mesh.errors import GraphError, InputError, ShapeError
from mesh.tracing.trace import Kind, Parts, argument_names
from mesh.transforms.composite import composite
from wire.ir.codec import decode_graph, encode_graph, hash_array
from wire.ir.dtypes import F32
from wire.ir.types import TensorType

X = np.arange(6, dtype=np.float32).reshape(2, 3)
W = np.ones((3, 4), np.float32)


def handle_of(array: np.ndarray, name: str = "") -> Handle:
    return Handle(hash_array(array), TensorType(array.shape, F32), name, array)


def test_inputs_are_named_by_parameter_and_path() -> None:
    def fn(x: Any, params: Any, *more: Any) -> Any:
        return x @ params["layers"][0]["w"] + more[0] + more[1]["b/c"]

    graph = mesh.trace(fn, X, {"layers": [{"w": W}]}, np.float32(1), {"b/c": 2.0})
    assert list(graph.input_types) == ["x", "params/layers/0/w", "more/0", "more/1/b~1c"]
    assert graph.name == "fn"


class Unsigned:
    """What some builtins of every Python are, and not the same ones."""

    @property
    def __signature__(self) -> Any:
        raise ValueError("no signature found")

    def __call__(self, *given: Any) -> Any:
        return given


NAMED = [
    ("lambda", lambda x: x, ["x"]),
    ("partial", functools.partial(lambda w, x: x + w, 1.0), ["x"]),
    ("function", mnp.add, ["x1", "x2"]),
    ("no signature", Unsigned(), ["0", "1"]),
]


@pytest.mark.parametrize(("fn", "names"), [row[1:] for row in NAMED], ids=[row[0] for row in NAMED])
def test_parameter_names_come_from_the_signature_where_there_is_one(fn: Any, names: list[str]) -> None:
    assert argument_names(fn, tree.structure((X,) * len(names))) == names


def test_outputs_are_named_by_path_and_come_back_as_the_tree() -> None:
    pair = namedtuple("pair", "mean rest")
    traced = mesh.trace_full(lambda x: pair(x.mean(), {"a": [x, None], "b": 3}), X)
    assert traced.graph.output_names == ("mean", "rest/a/0", "rest/b")
    assert mesh.trace(lambda x: x + 1, X).output_names == ("output",)
    assert traced.unflatten([1, 2, 3]) == pair(1, {"a": [2, None], "b": 3})


def test_python_scalars_are_inputs_that_adapt() -> None:
    traced = mesh.trace_full(lambda x, s, n: x * s + n, X.astype(np.float16), 2.5, 3)
    assert [str(t) for t in traced.graph.input_types.values()] == ["f16[2,3]", "f32[]", "i32[]"]
    assert traced.graph.output_types["output"].dtype.name == "f16"
    bound = traced.bind(X.astype(np.float16), 4, 5)
    assert bound.inputs["s"] == np.float32(4)
    assert bound.inputs["s"].dtype == np.float32


def test_a_scalar_of_a_higher_kind_is_not_rounded_into_its_place() -> None:
    traced = mesh.trace_full(lambda x, n, s: x * n + s, X, 3, np.float32(1))
    bound = traced.bind(X, True, 2.0)
    assert (bound.inputs["n"].dtype, bound.inputs["s"].dtype) == (np.int32, np.float32)
    with pytest.raises(InputError, match=r"'n' is f32\[\], expected i32\[\]"):
        traced.bind(X, 2.5, 1.0)


def test_arrays_shapes_and_handles_are_examples() -> None:
    handle = handle_of(W, "w")
    graph = mesh.trace(lambda x, y, w: (x + y) @ w, mnp.asarray(X), mesh.ShapeDtype((2, 3)), handle)
    assert list(graph.input_types) == ["x", "y"]
    assert list(graph.param_types) == ["w"]


def test_handles_bind_params_and_unused_ones_vanish() -> None:
    used, unused = handle_of(W), handle_of(W + 1)
    traced = mesh.trace_full(lambda x, params: x @ params["w"], X, {"w": used, "v": unused})
    bound = traced.bind(X, {"w": used, "v": unused})
    assert bound.params == {"params/w": used}
    assert list(bound.inputs) == ["x"]


def test_closed_over_handles_are_params_by_their_names_or_where_these_say_too_little_by_content() -> None:
    named, alike, other, plain = handle_of(W, "w"), handle_of(W, "v"), handle_of(W + 1, "w"), handle_of(W + 2)
    traced = mesh.trace_full(lambda x: x @ named + x @ alike + x @ other + x @ plain, X)
    wanted = {"closure/w": named} | {f"closure/{each.address.hex()[:32]}": each for each in (other, plain)}
    assert traced.bind(X).params == wanted and set(traced.graph.param_types) == set(wanted)
    np.testing.assert_allclose(mesh.evaluate(lambda x: x @ named, X), X @ W)


def test_closed_over_arrays_are_constants_and_large_ones_blobs() -> None:
    large = np.ones((3, 10_000), np.float32)
    graph = mesh.trace(lambda x: (x @ large).sum() + W.sum() + mnp.asarray(W).sum(), X)
    consts = [node for node in graph.nodes if node.op == "const"]
    assert [hash_array(large)] == list(graph.blobs)
    assert {"data" in node.attrs for node in consts} == {True, False}
    np.testing.assert_allclose(mesh.evaluate(lambda x: (x @ large).sum(), X), (X @ large).sum())


def test_lazy_arrays_from_outside_become_part_of_the_graph() -> None:
    outside = mnp.asarray(W) * 2
    np.testing.assert_allclose(mesh.evaluate(lambda x: x @ outside, X), X @ (W * 2))


def test_a_product_by_a_transposed_matrix_reads_it_as_it_lies() -> None:
    graph = mesh.trace(lambda x, w: x @ w.T, X, W.T)
    assert [node.op for node in graph] == ["input", "input", "dot"]
    np.testing.assert_allclose(mesh.evaluate(lambda x, w: x.T.T @ w.T, X, W.T), X @ W)


def test_equal_subexpressions_are_one_node_and_dead_code_goes() -> None:
    def fn(x: Any) -> Any:
        mnp.exp(x)
        return mnp.sin(x) + mnp.sin(x)

    assert [node.op for node in mesh.trace(fn, X)] == ["input", "sin", "add"]


def test_a_trace_is_the_same_every_time_and_travels() -> None:
    def fn(x: Any, w: Any) -> Any:
        return mesh.nn.softmax(x @ w)

    graph = mesh.trace(fn, X, W)
    assert mesh.trace(fn, X, W).hash == graph.hash
    assert decode_graph(encode_graph(graph)) == graph


BIND_ERRORS = [
    ((X,), "differ in structure"),
    (({"a": X}, W), "differ in structure"),
    ((X[:1], W), "argument 'x' is f32[1,3], expected f32[2,3]"),
    ((X, W.astype(np.float64)), "argument 'w' is f64[3,4], expected f32[3,4]"),
    ((X, "text"), "argument 'w' is a str, not an array"),
    ((X, mesh.ShapeDtype((3, 4))), "has no value"),
    ((X, 1.0), "argument 'w' is f32[], expected f32[3,4]"),
]


@pytest.mark.parametrize(("args", "words"), BIND_ERRORS, ids=[words[:30] for _, words in BIND_ERRORS])
def test_bind_names_the_argument_and_what_was_expected(args: Any, words: str) -> None:
    traced = mesh.trace_full(lambda x, w: x @ w, X, W)
    with pytest.raises(InputError) as caught:
        traced.bind(*args)
    assert words in str(caught.value)


ASKING = [
    (lambda x: 1 if x.sum() > 0 else 2, "mnp.where"),
    (lambda x: float(x[0, 0]), "0-d arrays work"),
    (lambda x: int(x[0, 0]), "shapes and axes must be Python ints"),
    (lambda x: x[0, 0].item(), "0-d arrays work"),
    (lambda x: np.exp(x), "mesh.numpy in place of numpy's"),
    (lambda x: np.asarray(x * 2), "mesh.numpy in place of numpy's"),
    (lambda x: list(range(x.astype("int32")[0, 0])), "shapes must be Python ints"),
    (lambda x: mnp.nonzero(x), "shape would depend on values"),
    (lambda x: x.tolist(), "look at values outside"),
    (lambda x: f"{x.sum():.3f}", "look at values outside"),
    (lambda x: (x > 0).all() and x, "& | ~"),
]


@pytest.mark.parametrize(("fn", "advice"), ASKING, ids=[advice for _, advice in ASKING])
def test_asking_for_a_traced_value_says_what_to_write_instead(fn: Any, advice: str) -> None:
    with pytest.raises(InputError, match="has none while its function is traced") as caught:
        mesh.trace(fn, X)
    assert advice in str(caught.value)
    assert "'x' (f32[2,3])" in str(caught.value)


def test_leaves_that_are_not_arrays_are_named() -> None:
    with pytest.raises(InputError, match="'params/name' is a str"):
        mesh.trace(lambda params: params["w"], {"w": X, "name": "text"})
    with pytest.raises(InputError, match="returned a str at 'a/0'"):
        mesh.trace(lambda x: {"a": ["text"]}, X)
    with pytest.raises(InputError, match=r"dtype c(longdouble|omplex256)"):
        mesh.trace(lambda x: x, np.zeros(2, np.clongdouble))
    with pytest.raises(InputError, match="two arguments have the path 'x/1'"):
        mesh.trace(lambda x: x[1], {1: X, "1": X})


def test_static_fields_stay_out_of_the_graph() -> None:
    @dataclass(frozen=True)
    class Model:
        w: Any
        activation: str = field(metadata={"static": True})

    model = Model(W, "tanh")
    graph = mesh.trace(lambda model, x: getattr(mnp, model.activation)(x @ model.w), model, X)
    assert list(graph.input_types) == ["model/w", "x"]
    assert graph.nodes[-1].op == "tanh"


def test_a_traced_array_cannot_leave_its_function() -> None:
    kept: list[Any] = []
    with pytest.raises(InputError, match="keeps a traced array in 'kept/0'"):
        mesh.trace(lambda x: kept.append(x) or x, X)
    with pytest.raises(InputError, match="'x' belongs to another function"):
        mesh.trace(lambda y: y + kept[0], X)
    with pytest.raises(InputError, match="has none while its function is traced"):
        np.asarray(kept[0] + 1)


def test_errors_keep_the_line_that_caused_them() -> None:
    with pytest.raises(ShapeError, match="inner dimensions differ") as caught:
        mesh.trace(lambda x: x @ x, X)
    assert any(entry.name == "<lambda>" for entry in caught.traceback)


def test_nested_functions_can_be_evaluated_inside_a_trace() -> None:
    constant = mnp.asarray(W) * 3

    def fn(x: Any) -> Any:
        return x * float(constant.sum())  # not traced: has a value

    np.testing.assert_allclose(mesh.evaluate(fn, X), X * 36)


def test_evaluate_runs_on_the_current_evaluator() -> None:
    seen: list[Any] = []

    def evaluator(work: Any, inputs: Any) -> Any:
        seen.append((work.graph.output_names, sorted(inputs), sorted(work.bindings)))
        return [np.zeros(t.shape, t.dtype.numpy) for t in work.graph.output_types.values()]

    with using(evaluator):
        result = mesh.evaluate(lambda x, w: {"y": x @ w}, X, handle_of(W))
    assert seen == [(("y",), ["x"], ["w"])]
    assert result["y"].shape == (2, 4)


def kinds(*args: Any) -> tuple[Kind, ...]:
    return tuple(part.kind for part in Parts().of(args))


def test_kinds_tell_calls_apart_that_need_another_trace() -> None:
    base = kinds(X, {"w": W}, 1.0)
    assert kinds(X + 1, {"w": W * 2}, 5.0) == base
    assert hash(kinds(X, {"w": W}, 1.0)) == hash(base)
    for other in ((X[:1], {"w": W}, 1.0), (X, {"v": W}, 1.0), (X, {"w": handle_of(W)}, 1.0), (X, {"w": W},
    np.float32(1)),
                  (X, {"w": W}, 1), (X.astype(np.float64), {"w": W}, 1.0)):  # fmt: skip
        assert kinds(*other) != base


def test_only_what_nobody_can_change_is_remembered() -> None:
    handle, parts = handle_of(W), Parts()
    for settled in (handle, (handle, None, (handle,))):
        assert parts.of([settled])[0] is parts.of([settled])[0]
    for open_ in ([handle], {"w": handle}, (handle, [handle]), (handle, X), X, (), 1.0):
        assert parts.of([open_])[0] is not parts.of([open_])[0]
    for _ in range(10):
        parts.of([(handle, handle)])
    assert len(parts._settled) <= 4


# -- composites -------------------------------------------------------------------------------------------


def _twice(x: Any, scale: float = 2.0) -> Any:
    return x * scale


def test_a_composite_is_one_node_with_its_expansion() -> None:
    graph = mesh.trace(lambda x: composite("twice", _twice, x, scale=3.0), X)
    node = graph.nodes[-1]
    assert (node.op, node.attrs["name"], node.attrs["scale"]) == ("composite", "twice", 3.0)
    assert [inner.op for inner in node.attrs["body"]] == ["input", "const", "mul"]
    np.testing.assert_allclose(mesh.evaluate(lambda x: composite("twice", _twice, x, scale=3.0), X), X * 3)


def test_composites_of_equal_operands_share_their_expansion() -> None:
    graph = mesh.trace(lambda x, y: composite("twice", _twice, x) + composite("twice", _twice, y), X, X)
    bodies = [node.attrs["body"] for node in graph if node.op == "composite"]
    assert len(bodies) == 2
    assert bodies[0] is bodies[1]


LARGE = np.ones(30_000, np.float32)


def test_a_composite_takes_large_tensors_and_traced_ones_as_operands() -> None:
    with pytest.raises(InputError, match="Pass it as an operand"):
        composite("large", _with_large, mnp.asarray(X))
    with pytest.raises(InputError, match="belongs to another function"):
        mesh.trace(lambda x: composite("bad", lambda y: y + x, mnp.asarray(X)), X)


def _with_large(x: Any) -> Any:
    return x + mnp.asarray(LARGE).sum()


@pytest.mark.long
def test_a_graph_has_at_most_its_limit_of_nodes() -> None:
    def long(x: Any) -> Any:
        for step in range(101_000):
            x = x + (step % 3)
        return x

    with pytest.raises(GraphError, match="at most 100000 nodes"):
        mesh.trace(long, X)


class Foreign:
    """An array of another library: it has a shape and a dtype of its own, and gives numpy its memory or does not."""

    def __init__(self, array: np.ndarray | None) -> None:
        self.shape, self.dtype = (2,), "torch.float32"
        self._array = array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if self._array is None:
            raise TypeError("it lies on a device")
        return self._array


def test_arrays_of_other_libraries_are_arguments() -> None:
    assert mesh.evaluate(lambda x: x + 1, Foreign(np.ones(2, np.float32))).tolist() == [2, 2]
    with pytest.raises(InputError, match=r"the argument 'x' is a Foreign that does not become .*it lies on a device"):
        mesh.evaluate(lambda x: x + 1, Foreign(None))
    with pytest.raises(InputError, match="it is a Foreign that does not become a numpy array"):
        mnp.asarray(Foreign(None))


def test_numbers_in_another_byte_order_are_the_same_numbers() -> None:
    for dtype in (">f4", ">i8", ">u2"):
        x = np.arange(3).astype(dtype)
        assert mesh.evaluate(lambda x: x + 1, x).tolist() == [1, 2, 3]
        assert np.asarray(mnp.asarray(x) + 1).tolist() == [1, 2, 3]


def test_a_shape_that_is_no_shape_is_named() -> None:
    for shape in ((2.5,), 2.5, None, ("a",)):
        with pytest.raises(InputError, match="a shape is made of ints"):
            mnp.zeros(shape)  # type: ignore[arg-type]
