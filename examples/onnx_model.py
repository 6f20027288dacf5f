"""A convolutional network in an ONNX file, cut over three workers: it says what the same sums say in numpy.

pip install 'graph-mesh[onnx]'; python examples/onnx_model.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import mesh
from mesh import Mesh

IMAGES, SIDE, CHANNELS, HIDDEN, CLASSES = 4, 12, 8, 64, 10


def weights() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shapes = {"kernel": (CHANNELS, 1, 3, 3), "offset": (CHANNELS,), "up": (CHANNELS * (SIDE // 2) ** 2, HIDDEN),
              "down": (HIDDEN, CLASSES)}  # fmt: skip
    return {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}


def write(path: Path) -> None:
    """The network as an exporter writes it: convolution, pooling, two layers, probabilities."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes = [
        helper.make_node("Conv", ["images", "kernel", "offset"], ["seen"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["seen"], ["active"]),
        helper.make_node("MaxPool", ["active"], ["pooled"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("MatMul", ["flat", "up"], ["raised"]),
        helper.make_node("Tanh", ["raised"], ["hidden"]),
        helper.make_node("MatMul", ["hidden", "down"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["chances"], axis=-1),
    ]
    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 1, SIDE, SIDE])
    chances = helper.make_tensor_value_info("chances", TensorProto.FLOAT, ["batch", CLASSES])
    held = [numpy_helper.from_array(array, name) for name, array in weights().items()]
    graph = helper.make_graph(nodes, "digits", [images], [chances], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, str(path))


def by_numpy(images: Any) -> Any:
    """The same network, written out."""
    w = weights()
    padded = np.pad(images[:, 0], ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    seen = np.einsum("nhwij,cij->nchw", windows, w["kernel"][:, 0]) + w["offset"][:, None, None]
    halves = np.maximum(seen, 0).reshape(len(images), CHANNELS, SIDE // 2, 2, SIDE // 2, 2)
    hidden = np.tanh(halves.max(axis=(3, 5)).reshape(len(images), -1) @ w["up"])
    scores = np.exp(hidden @ w["down"])
    return scores / scores.sum(axis=-1, keepdims=True)


def main() -> float:
    images = np.random.default_rng(1).standard_normal((IMAGES, 1, SIDE, SIDE)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        try:
            write(path)
        except ModuleNotFoundError:
            print("This example needs onnx, which is not installed: pip install 'graph-mesh[onnx]'")
            raise SystemExit(0) from None
        model = mesh.load(path)
        with Mesh.builder().local(3, engine="cpu").node_timeout(20).build() as m:
            plan = m.plan(model, images, strategy="pipeline")
            found = m.run(model, images, strategy="pipeline")
    error = float(np.abs(found - by_numpy(images)).max())
    assert found.shape == (IMAGES, CLASSES) and error < 1e-5, error
    assert len(plan.workers) == 3, plan
    shares = ", ".join(f"{part['nodes']} on {part['worker']}" for part in plan.parts)
    print(f"{IMAGES} images over three workers, which compute these numbers of the graph's nodes: {shares}")
    print(f"largest difference from numpy {error:.0e}")
    return error


if __name__ == "__main__":
    main()
