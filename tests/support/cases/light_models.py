"""The light models that come with the package `onnx`: well-known networks whose weights are one number each.

`weighted` gives such a model weights of random numbers, scaled so that values stay near 1 from layer to layer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
LARGE = {"bvlc_alexnet", "vgg19", "zfnet512"}  # their weights take 230 to 550 MiB
NAMES = tuple(sorted(path.stem.removeprefix("light_") for path in FOLDER.glob("light_*.onnx")))


def path_of(name: str) -> Path:
    return FOLDER / f"light_{name}.onnx"


def model(name: str) -> Any:
    return onnx.load(str(path_of(name)))


def inputs(proto: Any, seed: int) -> dict[str, NDArray[Any]]:
    """Random values for every input of a model."""
    random = np.random.default_rng(seed)
    inside = {each.name for each in proto.graph.initializer}
    return {
        each.name: random.random([dim.dim_value for dim in each.type.tensor_type.shape.dim], np.float32)
        for each in proto.graph.input
        if each.name not in inside
    }


def dummy_input(proto: Any) -> dict[str, NDArray[Any]]:
    """The input for which the package has the outputs."""
    found = inputs(proto, 0)
    return {
        name: (np.arange(value.size).reshape(value.shape) / value.size).astype(np.float32)
        for name, value in found.items()
    }


def stored_outputs(name: str) -> list[NDArray[Any]]:
    """What the package says that the model gives for `dummy_input`."""
    found = []
    for path in sorted(FOLDER.glob(f"light_{name}_output_*.pb")):
        tensor = onnx.TensorProto()
        tensor.ParseFromString(path.read_bytes())
        found.append(numpy_helper.to_array(tensor))
    return found


def weighted(name: str, seed: int) -> Any:
    """The model with random weights in place of those that ConstantOfShape makes, without its last Softmax."""
    proto = model(name)
    random = np.random.default_rng(seed)
    shapes = {each.name: numpy_helper.to_array(each) for each in proto.graph.initializer}
    made = {node.output[0]: shapes[node.input[0]] for node in proto.graph.node if node.op_type == "ConstantOfShape"}
    weights = [numpy_helper.from_array(_weight(tuple(shape.tolist()), random), name) for name, shape in made.items()]
    kept = [node for node in proto.graph.node if node.op_type != "ConstantOfShape"]
    read = {name for node in kept for name in node.input}
    weights += [each for each in proto.graph.initializer if each.name in read]
    given = [each for each in proto.graph.input if each.name in read]
    graph = proto.graph
    for field, values in ((graph.node, kept), (graph.initializer, weights), (graph.input, given)):
        del field[:]
        field.extend(values)
    return without_softmax(proto)


def without_softmax(proto: Any) -> Any:
    """The model up to what its last Softmax takes.

    The shipped weights give numbers up to 1e31 there, of which a Softmax is all or nothing by the last bit.
    """
    last = proto.graph.node[-1]
    if last.op_type == "Softmax":
        last.op_type = "Identity"
        del last.attribute[:]
    return proto


def _weight(shape: tuple[int, ...], random: np.random.Generator) -> NDArray[Any]:
    """A kernel or matrix that keeps the spread of values (He et al., 2015); scales, shifts and variances around 1."""
    if len(shape) == 1:
        return random.uniform(0.5, 1.5, shape).astype(np.float32)
    return random.normal(0, np.sqrt(1 / np.prod(shape[1:])), shape).astype(np.float32)
