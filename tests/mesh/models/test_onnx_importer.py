"""Loading ONNX models: what is static, what is refused, where weights come from."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the extra `onnx` is not installed")

import onnx
from onnx import TensorProto, helper, numpy_helper
from support.cases import light_models

import mesh
from mesh.commands.graph_argument import read_graph, read_program
from mesh.importers.onnx.rows import ROWS
from mesh.importers.onnx.static_inputs import READS, SHAPE_ONLY
from mesh.models.model import Model
from wire.errors import ConfigError, InputError, Unsupported
from worker.cpu import evaluate
from worker.cpu.inplace_updates import root_of

F, INT = TensorProto.FLOAT, TensorProto.INT64


def value(name: str, kind: int, shape: Sequence[int | str | None] | None) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def proto(
    nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: dict[str, Any] | None = None, **more: Any
) -> Any:
    initialisers = [numpy_helper.from_array(np.asarray(array), name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(nodes, "tested", inputs, outputs, initialisers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20), *more.pop("domains", [])], **more)


def ran(model: Model, **given: Any) -> Any:
    """The model's outputs by name, from the cpu engine."""
    checked = model.given([given])
    graph = model.graph(checked)
    params = {name: model.weights[name] for name in graph.param_types}
    return dict(zip(graph.output_names, evaluate(graph, {**model.dynamic(checked), **params}), strict=True))


def reshaping() -> Any:
    return proto(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        [value("x", F, [6]), value("shape", INT, [2])],
        [value("y", F, None)],
    )


# -- static inputs ----------------------------------------------------------------------------------------


def test_an_input_that_is_a_shape_is_read_at_every_call_and_part_of_the_key() -> None:
    model = mesh.load(reshaping())
    assert [spec.static for spec in model.inputs] == [False, True]
    x = np.arange(6, dtype=np.float32)
    first, second = (model.given([{"x": x, "shape": np.array(shape)}]) for shape in ([2, 3], [3, -1]))
    assert model.key(first) != model.key(second)
    assert ran(model, x=x, shape=np.array([2, 3]))["y"].shape == (2, 3)
    assert ran(model, x=x, shape=np.array([3, -1]))["y"].shape == (3, 2)
    assert list(model.graph(first).input_types) == ["x"]
    assert np.asarray(model(x, np.array([1, 6]))).shape == (1, 6)


def test_arithmetic_on_shapes_leaves_no_node_in_the_graph() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["dims"]),
        helper.make_node("Gather", ["dims", "first"], ["batch"]),
        helper.make_node("Concat", ["batch", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["y"]),
    ]
    weights = {"first": np.array([0]), "rest": np.array([-1])}
    model = mesh.load(proto(nodes, [value("x", F, ["n", 2, 3])], [value("y", F, None)], weights))
    graph = model.graph(model.given([np.zeros((4, 2, 3), np.float32)]))
    assert [node.op for node in graph.nodes] == ["input", "reshape"]
    assert graph.output_types["y"].shape == (4, 6)


def test_what_a_data_dependent_shape_depends_on_is_static() -> None:
    nodes = [helper.make_node("NonZero", ["mask"], ["where"]), helper.make_node("Gather", ["x", "where"], ["y"])]
    model = mesh.load(proto(nodes, [value("mask", F, [4]), value("x", F, [4])], [value("y", F, None)]))
    assert {spec.name: spec.static for spec in model.inputs} == {"mask": True, "x": False}
    found = ran(model, mask=np.array([0, 1, 0, 2], np.float32), x=np.array([1, 2, 3, 4], np.float32))
    assert found["y"].tolist() == [[2.0, 4.0]]


def test_a_condition_whose_branches_differ_in_shape_becomes_static_when_traced() -> None:
    def branch(name: str, count: int) -> Any:
        nodes = [helper.make_node("Concat", ["x"] * count, [name], axis=0)]
        return helper.make_graph(nodes, name, [], [value(name, F, None)])

    node = helper.make_node("If", ["c"], ["y"], then_branch=branch("a", 1), else_branch=branch("b", 2))
    model = mesh.load(proto([node], [value("c", TensorProto.BOOL, []), value("x", F, [2])], [value("y", F, None)]))
    assert not any(spec.static for spec in model.inputs)
    x = np.ones(2, np.float32)
    assert ran(model, c=np.array(True), x=x)["y"].shape == (2,)
    assert [spec.name for spec in model.inputs if spec.static] == ["c"]
    assert ran(model, c=np.array(False), x=x)["y"].shape == (4,)


def test_a_condition_whose_branches_agree_is_asked_on_the_workers() -> None:
    def branch(op: str) -> Any:
        return helper.make_graph([helper.make_node(op, ["x"], [op])], op, [], [value(op, F, [2])])

    node = helper.make_node("If", ["c"], ["y"], then_branch=branch("Neg"), else_branch=branch("Abs"))
    model = mesh.load(proto([node], [value("c", TensorProto.BOOL, []), value("x", F, [2])], [value("y", F, None)]))
    x = np.array([1, -2], np.float32)
    assert ran(model, c=np.array(True), x=x)["y"].tolist() == [-1, 2]
    assert ran(model, c=np.array(False), x=x)["y"].tolist() == [1, 2]
    assert not any(spec.static for spec in model.inputs)


def loop(body_nodes: list[Any], collects: bool, weights: dict[str, Any] | None = None) -> Any:
    """A Loop of `m` turns over the carry c, while `again` holds; it collects the carry if asked to."""
    outputs = [value("again", TensorProto.BOOL, []), value("after", F, None)]
    extra = [helper.make_node("Identity", ["after"], ["row"])] if collects else []
    outputs += [value("row", F, None)] if collects else []
    given = [value("i", INT, []), value("go", TensorProto.BOOL, []), value("before", F, None)]
    body = helper.make_graph([*body_nodes, *extra], "body", given, outputs)
    names = ["y", "rows"] if collects else ["y"]
    node = helper.make_node("Loop", ["m", "", "c"], names, body=body)
    results = [value(name, F, None) for name in names]
    return proto([node], [value("m", INT, []), value("c", F, [2])], results, weights)


def ops_of(model: Model, **given: Any) -> set[str]:
    return {node.op for node in model.graph(model.given([given])).nodes}


DOUBLING = helper.make_node("Add", ["before", "before"], ["after"])
FOR_EVER = helper.make_node("Identity", ["go"], ["again"])
C = np.array([1, 2], np.float32)


def test_a_loop_of_a_known_number_of_turns_is_a_scan() -> None:
    model = mesh.load(loop([DOUBLING, FOR_EVER], collects=True))
    found = ran(model, m=np.array(3), c=C)
    assert found["y"].tolist() == [8.0, 16.0]
    assert found["rows"].tolist() == [[2.0, 4.0], [4.0, 8.0], [8.0, 16.0]]
    assert "scan" in ops_of(model, m=np.array(3), c=C)


def test_a_loop_that_stops_by_what_it_computes_is_a_while() -> None:
    nodes = [
        DOUBLING,
        helper.make_node("ReduceMax", ["after"], ["largest"], keepdims=0),
        helper.make_node("Less", ["largest", "bound"], ["again"]),
    ]
    model = mesh.load(loop(nodes, collects=False, weights={"bound": np.float32(100)}))
    assert ran(model, m=np.array(1 << 62), c=C)["y"].tolist() == [64.0, 128.0]
    assert ran(model, m=np.array(2), c=C)["y"].tolist() == [4.0, 8.0]
    assert "while" in ops_of(model, m=np.array(2), c=C)


def test_a_loop_whose_turns_differ_in_shape_is_written_out() -> None:
    growing = helper.make_node("Concat", ["before", "before"], ["after"], axis=0)
    model = mesh.load(loop([growing, FOR_EVER], collects=False))
    assert ran(model, m=np.array(3), c=C)["y"].shape == (16,)


def test_a_loop_that_cannot_be_written_out_is_refused() -> None:
    growing = helper.make_node("Slice", ["before", "first", "last"], ["after"])
    model = mesh.load(loop([growing, FOR_EVER], True, {"first": np.array([0]), "last": np.array([9])}))
    checked = model.given([{"m": np.array(1 << 62), "c": C}])
    with pytest.raises(Unsupported, match="more than 1000 turns"):
        model.graph(checked)


def test_every_op_that_reads_values_has_a_row_or_a_body() -> None:
    for op in [*READS, *SHAPE_ONLY]:
        assert ("", op) in ROWS or onnx.defs.get_schema(op).has_function, op


# -- shapes and weights -----------------------------------------------------------------------------------


def test_dimensions_can_be_given_by_name_or_by_input_and_place() -> None:
    made = proto([helper.make_node("Neg", ["x"], ["y"])], [value("x", F, ["batch", None, 3])], [value("y", F, None)])
    assert str(mesh.load(made).inputs[0]) == "f32[batch,x.1,3]"
    assert str(mesh.load(made, dims={"batch": 2, "x.1": 5}).inputs[0]) == "f32[2,5,3]"


def test_the_command_line_takes_a_model_with_dimensions_and_inputs(tmp_path: Path) -> None:
    made = proto([helper.make_node("Neg", ["x"], ["y"])], [value("x", F, ["batch", 3])], [value("y", F, None)])
    path = tmp_path / "model.onnx"
    onnx.save(made, str(path))
    for dims, inputs, rows, unknown in ((["batch=2"], [], 2, ()), ([], [], 1, ("batch",)), ([], ["x"], 4, ())):
        np.save(tmp_path / "x.npy", np.ones((4, 3), np.float32))
        graph, assumed = read_graph(str(path), [f"{name}={tmp_path / 'x.npy'}" for name in inputs], dims)
        assert (graph.output_types["y"].shape, assumed) == ((rows, 3), unknown)
    with pytest.raises(InputError, match="no free dimension"):
        read_graph(str(path), [], ["length=2"])
    program = read_program(str(path), [f"x={tmp_path / 'x.npy'}"], [])
    assert [array.shape for array in program.inputs.values()] == [(4, 3)]
    onnx.save(reshaping(), str(path))
    with pytest.raises(InputError, match="--input shape=FILE"):
        read_graph(str(path), [], [])
    mesh.trace(lambda x: -x, np.ones(2)).save(tmp_path / "plain.wire")
    with pytest.raises(InputError, match="which has no free dimensions"):
        read_graph(str(tmp_path / "plain.wire"), [], ["batch=1"])


def test_a_file_without_a_graph_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "empty.onnx").write_bytes(b"")
    with pytest.raises(InputError, match="is no ONNX model: it has no graph"):
        mesh.load(tmp_path / "empty.onnx")
    with pytest.raises(InputError, match="the object is no ONNX model"):
        mesh.load(onnx.ModelProto())


def test_dimensions_and_inputs_that_do_not_fit_are_named() -> None:
    made = proto([helper.make_node("Neg", ["x"], ["y"])], [value("x", F, ["batch", 3])], [value("y", F, None)])
    wrong = [({"rows": 1}, "no free dimension 'rows'. It has: batch")]
    wrong += [({"batch": size}, f"a count, got {size}") for size in (-1, True, 2.0)]
    for dims, said in wrong:
        with pytest.raises(InputError, match=said):
            mesh.load(made, dims=dims)
    assert mesh.load(made, dims={"batch": np.int64(2)}).inputs[0].shape == (2, 3)
    with pytest.raises(InputError, match="dims are sizes by name"):
        mesh.load(made, dims=["batch"])  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"is f64\[2, 3\], expected f32\[batch,3\]. Convert it: x.astype\('float32'\)"):
        mesh.load(made)(np.ones((2, 3)))
    shape = np.array([3, 2], np.int64)
    with pytest.raises(InputError, match="'shape' decides about shapes, and has no value while a function is traced"):
        mesh.evaluate(mesh.load(reshaping()), np.ones(6, np.float32), shape)


def test_weights_are_params_unless_they_are_small_or_read() -> None:
    weights = {"w": np.ones((6, 6), np.float32), "half": np.float32(0.5), "shape": np.array([2, 3])}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Mul", ["a", "half"], ["b"]),
        helper.make_node("Reshape", ["b", "shape"], ["y"]),
    ]
    model = mesh.load(proto(nodes, [value("x", F, [6])], [value("y", F, None)], weights))
    assert list(model.params) == ["w"]
    assert ran(model, x=np.ones(6, np.float32))["y"].reshape(-1).tolist() == [3.0] * 6


def test_statistics_and_integers_are_buffers_and_no_params() -> None:
    names = ("scale", "shift", "mean", "variance")
    rows = {name: np.full(32, place + 1, np.float32) for place, name in enumerate(names)}
    nodes = [
        helper.make_node("BatchNormalization", ["x", *rows], ["a"]),
        helper.make_node("Gather", ["a", "places"], ["y"], axis=1),
    ]
    weights = {**rows, "places": np.arange(31, -1, -1)}
    model = mesh.load(proto(nodes, [value("x", F, [4, 32])], [value("y", F, None)], weights))
    assert set(model.params) == {"scale", "shift"} and set(model.buffers) == {"mean", "variance", "places"}
    x = np.random.default_rng(0).normal(size=(4, 32)).astype(np.float32)
    slopes = mesh.grad(lambda params: model.apply(params, x).sum())(dict(model.params))
    np.testing.assert_allclose(np.asarray(slopes["scale"]), ((x - 3) / np.sqrt(4 + 1e-5)).sum(0), rtol=1e-5)
    np.testing.assert_allclose(ran(model, x=x)["y"], ((x - 3) / np.sqrt(4 + 1e-5) + 2)[:, ::-1], rtol=1e-5, atol=1e-5)


def test_weights_beside_the_model_are_mapped_and_never_outside_of_its_folder(tmp_path: Path) -> None:
    made = proto(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [value("x", F, [1000])],
        [value("y", F, None)],
        {"w": np.arange(1000, dtype=np.float32)},
    )
    path = tmp_path / "model.onnx"
    onnx.save(made, str(path), save_as_external_data=True, location="weights.bin", size_threshold=0)
    model = mesh.load(path)
    assert root_of(model.params["w"]).nbytes == (tmp_path / "weights.bin").stat().st_size == 4000
    assert not model.params["w"].flags.writeable
    assert ran(model, x=np.ones(1000, np.float32))["y"][-1] == 1000
    (tmp_path / "linked").mkdir()
    for name in ("model.onnx", "weights.bin"):
        (tmp_path / "linked" / name).symlink_to(tmp_path / name)
    linked = tmp_path / "linked" / "model.onnx"
    with pytest.raises(InputError, match=r"weights\.bin, which is a symbolic link.*follow_links=True"):
        mesh.load(linked)
    assert ran(mesh.load(linked, follow_links=True), x=np.ones(1000, np.float32))["y"][-1] == 1000
    (tmp_path / "link").symlink_to(tmp_path)
    assert mesh.load(tmp_path / "link" / "model.onnx").params, "the user says where the model is, and not the model"
    (tmp_path / "weights.bin").write_bytes(b"short")
    with pytest.raises(InputError, match="which has fewer"):
        mesh.load(path)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(InputError, match=r"lie in .*weights\.bin, which does not exist"):
        mesh.load(path)
    stored = onnx.load(str(path), load_external_data=False)
    stored.graph.initializer[0].external_data[0].value = "../weights.bin"
    onnx.save(stored, str(tmp_path / "escaping.onnx"))
    with pytest.raises(InputError, match="outside"):
        mesh.load(tmp_path / "escaping.onnx")
    with pytest.raises(InputError, match="by its path"):
        mesh.load(onnx.load(str(path), load_external_data=False))


def test_functions_of_the_model_are_expanded() -> None:
    body = [helper.make_node("Mul", ["a", "a"], ["s"]), helper.make_node("Elu", ["s"], ["b"])]
    body[1].attribute.add(name="alpha", ref_attr_name="steep", type=onnx.AttributeProto.FLOAT)
    own = helper.make_function("mine", "Squared", ["a"], ["b"], body, [helper.make_opsetid("", 20)], ["steep"])
    node = helper.make_node("Squared", ["x"], ["y"], domain="mine", steep=2.0)
    made = proto(
        [node], [value("x", F, [2])], [value("y", F, None)], functions=[own], domains=[helper.make_opsetid("mine", 1)]
    )
    assert ran(mesh.load(made), x=np.array([2, -3], np.float32))["y"].tolist() == [4.0, 9.0]


@pytest.mark.parametrize("count", [1, 2, 40])
def test_functions_without_an_end_are_refused(count: int) -> None:
    """Those that call themselves, one another in turn, and the next one twice, which makes 2^40 nodes."""
    names = [f"f{number}" for number in range(count)]
    functions = [
        helper.make_function(
            "own",
            name,
            ["a"],
            ["b"],
            [
                helper.make_node(called, ["a"], ["c"], domain="own"),
                helper.make_node(called, ["c"], ["b"], domain="own"),
            ],
            [helper.make_opsetid("own", 1)],
        )
        for name, called in zip(names, [*names[1:], "last" if count == 40 else names[0]], strict=True)
    ]
    made = proto(
        [helper.make_node(names[0], ["x"], ["y"], domain="own")],
        [value("x", F, [1])],
        [value("y", F, [1])],
        functions=functions,
        domains=[helper.make_opsetid("own", 1)],
    )
    with pytest.raises(InputError, match="nodes when they are written out" if count == 40 else "calls itself"):
        mesh.load(made)


def test_a_shipped_network_gives_what_is_shipped_with_it() -> None:
    model = mesh.load(light_models.path_of("squeezenet"))
    given = light_models.dummy_input(light_models.model("squeezenet"))
    (expected,) = light_models.stored_outputs("squeezenet")
    np.testing.assert_allclose(*[np.asarray(each) for each in (model(given), expected)], atol=1e-3)


# -- what is refused --------------------------------------------------------------------------------------


def test_everything_that_is_not_supported_is_reported_at_once() -> None:
    nodes = [
        helper.make_node("StringNormalizer", ["s"], ["t"], name="lower"),
        helper.make_node("Nonsense", ["x"], ["y"], name="odd", domain="elsewhere"),
        helper.make_node("Cast", ["x"], ["z"], name="narrow", to=TensorProto.FLOAT8E5M2),
        helper.make_node("SequenceConstruct", ["x"], ["q"], name="row"),
    ]
    inputs = [value("s", TensorProto.STRING, [1]), value("x", F, [1])]
    made = proto(
        nodes, inputs, [value("z", TensorProto.FLOAT8E5M2, [1])], domains=[helper.make_opsetid("elsewhere", 3)]
    )
    with pytest.raises(Unsupported) as caught:
        mesh.load(made)
    text = str(caught.value)
    for words in (
        "'s': ai.onnx input version 20: a tensor of string",
        "node 'lower': ai.onnx StringNormalizer version 20: strings are out of scope",
        "node 'odd': elsewhere Nonsense version 3: no such op",
        "node 'narrow': ai.onnx Cast version 20: a tensor of float8e5m2",
        "node 'row': ai.onnx SequenceConstruct version 20: sequences are out of scope",
    ):
        assert words in text


def test_what_stands_in_a_branch_or_a_function_is_reported_too() -> None:
    inner = helper.make_graph([helper.make_node("Nonsense", ["x"], ["b"], name="deep")], "b", [], [value("b", F, [1])])
    same = helper.make_graph([helper.make_node("Neg", ["x"], ["a"])], "a", [], [value("a", F, [1])])
    node = helper.make_node("If", ["c"], ["y"], then_branch=same, else_branch=inner)
    made = proto([node], [value("c", TensorProto.BOOL, []), value("x", F, [1])], [value("y", F, [1])])
    with pytest.raises(Unsupported, match=r"node 'deep': ai.onnx Nonsense version 20: no such op"):
        mesh.load(made)


@pytest.mark.parametrize(
    ("op", "shape", "attributes", "words"),
    [
        ("LeakyRelu", [4], {"slope": 0.5}, "it has no attribute 'slope'"),
        ("Softmax", [4], {"axis": "0"}, "its attribute 'axis' is of kind int, not string"),
        ("Gelu", [4], {"approximate": "erf"}, "its attribute 'approximate' is one of none, tanh, not 'erf'"),
        ("MaxPool", [1, 1, 4], {"kernel_shape": [2], "auto_pad": "SAME"}, "its attribute 'auto_pad' is one of NOTSET"),
        ("DepthToSpace", [1, 4, 2, 2], {"blocksize": 2, "mode": "RDC"}, "its attribute 'mode' is one of DCR, CRD"),
    ],
)
def test_attributes_that_an_op_does_not_have_are_refused(
    op: str, shape: list[int], attributes: dict[str, Any], words: str
) -> None:
    made = proto([helper.make_node(op, ["x"], ["y"], **attributes)], [value("x", F, shape)], [value("y", F, None)])
    with pytest.raises(Unsupported, match=f"ai.onnx {op} version 20: {words}"):
        mesh.load(made)


@pytest.mark.parametrize(
    ("op", "shapes", "read", "attributes", "outputs", "words"),
    [
        ("Split", [[5]], [[2]], {}, 1, r"sizes \[2\] do not make up the axis 0"),
        ("Split", [[5]], [[2, 2]], {}, 2, r"sizes \[2, 2\] do not make up"),
        ("Split", [[5]], [[2, 3]], {}, 3, "3 parts of sizes"),
        ("Slice", [[5]], [[0], [3], [0], [0]], {}, 1, "step of 0"),
        ("Pad", [[2, 3]], [[1, 1, 1, 1, 1, 1]], {}, 1, "2 axes has 4 pads, got 6"),
        ("Pad", [[3]], [[-2, -2]], {}, 1, "take more"),
        ("Flatten", [[2, 3]], [], {"axis": -3}, 1, "not at -3"),
        ("Conv", [[1, 2, 5], [3, 2, 3]], [], {"kernel_shape": [2]}, 1, "its weight has"),
        ("GroupNormalization", [[2, 4, 3], [4], [4]], [], {"num_groups": 3}, 1, "4 channels do not divide"),
        ("LSTM", [[5, 2, 3], [2, 16, 3], [2, 16, 4]], [], {"hidden_size": 4}, 3, "2 directions"),
        ("GRU", [[5, 2, 3], [1, 12, 3], [1, 12, 4]], [], {"hidden_size": 4, "direction": "backward"}, 2, "backward"),
        (
            "RNN",
            [[5, 2, 3], [1, 4, 3], [1, 4, 4]],
            [],
            {"hidden_size": 4, "activations": ["Tanh"] * 2},
            2,
            "activations",
        ),
    ],
)
def test_values_that_do_not_fit_an_op_are_refused(
    op: str, shapes: list[list[int]], read: list[Any], attributes: dict[str, Any], outputs: int, words: str
) -> None:
    given = {f"x{place}": np.ones(shape, np.float32) for place, shape in enumerate(shapes)}
    weights = {f"w{place}": np.array(values, np.int64) for place, values in enumerate(read)}
    names = [f"y{place}" for place in range(outputs)]
    made = proto(
        [helper.make_node(op, [*given, *weights], names, **attributes)],
        [value(name, F, array.shape) for name, array in given.items()],
        [value(name, F, None) for name in names],
        weights,
    )
    with pytest.raises(InputError, match=words):
        ran(mesh.load(made), **given)


def test_a_newer_opset_than_the_package_knows_is_refused() -> None:
    made = reshaping()
    made.opset_import[0].version = 999
    with pytest.raises(Unsupported, match="upgrade it"):
        mesh.load(made)


def test_what_is_no_model_says_so(tmp_path: Path) -> None:
    (tmp_path / "noise.onnx").write_bytes(b"\xff" * 40)
    with pytest.raises(InputError, match="not an ONNX model"):
        mesh.load(tmp_path / "noise.onnx")


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    onnx.save(reshaping(), str(tmp_path / "model.onnx"))
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ConfigError, match=r"graph-mesh\[onnx\]"):
        mesh.load(tmp_path / "model.onnx")


def test_an_error_while_tracing_names_the_node() -> None:
    made = proto(
        [helper.make_node("Add", ["x", "z"], ["y"], name="sum")],
        [value("x", F, [2]), value("z", F, ["n"])],
        [value("y", F, None)],
    )
    model = mesh.load(made)
    with pytest.raises(Exception, match="ONNX Add 'sum'"):
        model.graph(model.given([np.ones(2, np.float32), np.ones(3, np.float32)]))
