"""Models: named inputs, free dimensions, inputs read for their values, params that are hashed once."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mesh
import mesh.numpy as mnp
from mesh.errors import InputError
from mesh.functions.call_options import CallOptions
from mesh.functions.compiled import CompiledFunction, handle_of
from mesh.models.model import InputSpec, Model
from wire.ir.dtypes import F32, I32
from worker.cpu import evaluate

W = np.arange(12, dtype=np.float32).reshape(3, 4)
X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)


def function(params: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    y = inputs["x"] @ params["w"] + inputs["scale"]
    return {"y": mnp.reshape(y, inputs["target"].tolist()), "x again": inputs["x"]}


def model(outputs: tuple[str, ...] = ("y", "x again")) -> Model:
    inputs = [
        InputSpec("x", F32, ("batch", 3)),
        InputSpec("scale", F32, ()),
        InputSpec("target", I32, ("rank",), static=True),
    ]
    return Model("little", function, inputs, outputs, {"w": W, "unused": np.ones(3, np.float32)})


EXPECTED = (X @ W + 0.5).reshape(4, 2)


def test_it_is_called_like_a_function() -> None:
    found = model()(X, 0.5, target=[4, 2])
    assert list(found) == ["y", "x again"]
    np.testing.assert_allclose(np.asarray(found["y"]), EXPECTED, rtol=1e-6)
    (single,) = (model(("y",))({"x": mnp.asarray(X), "scale": 0.5, "target": np.array([4, 2], np.int32)}),)
    np.testing.assert_allclose(np.asarray(single), EXPECTED, rtol=1e-6)


def test_its_graph_has_its_names_and_no_static_inputs() -> None:
    made = model()
    given = made.given((X, 0.5, [4, 2]))
    graph = made.graph(given)
    assert list(graph.input_types) == ["x", "scale"]
    assert list(graph.param_types) == ["w"]
    assert graph.output_names == ("y", "x again")
    found = evaluate(graph, made.dynamic(given), {"w": W})
    np.testing.assert_allclose(found[0], EXPECTED, rtol=1e-6)


def test_other_static_values_make_another_graph_and_the_same_ones_none() -> None:
    compiled = CompiledFunction(model(), CallOptions(mode="off"))
    first = compiled.form_for((X, 0.5, [4, 2]))
    assert compiled.form_for((X + 1, 0.25, [4, 2])) is first
    assert compiled.form_for((X, 0.5, [2, 4])) is not first
    inputs, work = first.bind((X, 0.5, [4, 2]))
    assert list(inputs) == ["x", "scale"] and list(work.bindings) == ["w"]
    assert first.bind((X, 1.5, [4, 2]))[1] is work, "nothing is looked up twice"


def test_params_are_hashed_once_and_mapped_files_stay_mapped(tmp_path: Path) -> None:
    mesh.save_safetensors({"w": W}, tmp_path / "w.safetensors")
    mapped = mesh.load_safetensors(tmp_path / "w.safetensors")
    made = Model("", function, model().inputs, ("y",), mapped)
    assert made.handles["w"] is made.handles["w"]
    assert made.handles["w"].local is not None and np.shares_memory(made.handles["w"].local, mapped["w"])


def test_params_of_a_callers_own_memory_are_copied() -> None:
    mine = W.copy()
    made = Model("", function, model().inputs, ("y",), {"w": mine})
    address = made.handles["w"].address
    mine[:] = 0
    assert made.handles["w"].local is not None and made.handles["w"].local.any()
    assert address == model().handles["w"].address


@pytest.mark.parametrize(
    ("args", "named", "says"),
    [
        ((X, 0.5), {}, r"the input 'target' \(i32\[rank\]\) is missing"),
        ((X, 0.5, [4, 2], 1), {}, "takes 3 inputs"),
        ((X, 0.5, [4, 2]), {"x": X}, "given twice"),
        ((X, 0.5, [4, 2]), {"z": X}, "no input 'z'"),
        ((X.astype(np.float64), 0.5, [4, 2]), {}, r"'x' is f64\[2, 3\], expected f32\[batch,3\]"),
        ((X.T.copy(), 0.5, [4, 2]), {}, r"'x' is f32\[3, 2\], expected f32\[batch,3\]"),
        ((X, "much", [4, 2]), {}, "'scale' is no f32"),
    ],
)
def test_what_does_not_fit_is_named(args: Any, named: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        model()(*args, **named)


def test_a_free_dimension_is_the_same_wherever_it_stands() -> None:
    both = Model(
        "",
        lambda params, inputs: {"sum": inputs["a"] + inputs["b"]},
        [InputSpec("a", F32, ("n",)), InputSpec("b", F32, ("n",))],
        ["sum"],
        {},
    )
    assert np.asarray(both([1.0, 2.0], [3.0, 4.0])).tolist() == [4.0, 6.0]
    with pytest.raises(InputError, match=r"'b' is f32\[1\], expected f32\[n\], n = 2"):
        both([1.0, 2.0], [3.0])


def test_a_graph_that_was_saved_is_a_model(tmp_path: Path) -> None:
    table = np.linspace(0, 1, 100 * 400, dtype=np.float32).reshape(400, 100)  # a constant too large to stand in a graph
    traced = mesh.trace_full(lambda x, w: {"y": x @ w, "z": (x @ w) @ table[:4]}, X, handle_of(W))
    traced.graph.save(tmp_path / "saved.wire", {"w": W})
    saved = mesh.load(tmp_path / "saved.wire")
    assert [str(spec) for spec in saved.inputs] == ["f32[2,3]"] and list(saved.params) == ["w"]
    found = saved(x=X)
    np.testing.assert_allclose(np.asarray(found["y"]), X @ W, rtol=1e-5)
    np.testing.assert_allclose(np.asarray(found["z"]), X @ W @ table[:4], rtol=1e-4)
    assert saved.graph(saved.given((X,))).hash == traced.graph.hash
    traced.graph.save(tmp_path / "bare.wire")
    with pytest.raises(InputError, match="no value of the param 'w'"):
        mesh.load(tmp_path / "bare.wire")


@pytest.mark.parametrize(("source", "says"), [("nowhere.onnx", "does not exist"), (3, "class int is of no format")])
def test_what_is_no_model_is_named(source: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        mesh.load(source)
