"""One engine, or one peer of the engines, in a process of its own: bench/engines.py starts it and asks for calls.

A row of PEERS is a library: how it is set up for a number of threads, and the cases that it has.  Every case gets the
same numbers.  A call ends when its result is there; results of the first call are compared by their norm.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

ROWS, WIDTH, HIDDEN = 256, 512, 2048
HEADS, LENGTH, DEPTH = 32, 256, 64
BATCH, CHANNELS, SIDE = 8, 64, 56
MLP = ((ROWS, WIDTH), (WIDTH, HIDDEN), (HIDDEN,), (HIDDEN, WIDTH), (WIDTH,), (WIDTH,), (WIDTH,))
ATTENTION = ((HEADS, LENGTH, DEPTH),) * 3
CASES: dict[str, tuple[tuple[int, ...], ...]] = {  # name: the shapes of what it is called with, all float32
    "matmul 1024": ((1024, 1024), (1024, 1024)),
    "MLP, forward and backward": MLP,
    "attention": ATTENTION,
    "attention, forward and backward": (*ATTENTION, ATTENTION[0]),
    "chain of 16M": ((1 << 24,),),
    "layer norm": ((4096, 768), (768,), (768,)),
    "softmax": ((4096, 768),),
    "conv 3x3": ((BATCH, CHANNELS, SIDE, SIDE), (CHANNELS, CHANNELS, 3, 3)),
}

Tensors = Sequence[Any]


def given(case: str) -> list[np.ndarray[Any, Any]]:
    """The arrays of a case, at cache lines, as libraries lay out their own; weights are small, so that sums are."""
    rng = np.random.default_rng(list(case.encode()))
    arrays = []
    for shape in CASES[case]:
        values = rng.standard_normal(shape, dtype=np.float32)
        if len(shape) > 1 and case.startswith("MLP"):
            values *= np.float32(shape[0] ** -0.5)
        memory = np.empty(values.nbytes + 64, np.uint8)
        aligned = np.ndarray(shape, np.float32, memory, -memory.ctypes.data % 64)
        aligned[...] = values
        arrays.append(aligned)
    return arrays


@dataclass(frozen=True)
class Peer:
    """A library that is set up.  `prepare` makes a call of a case's function and its arrays; `first` waits for what a
    call gave, and returns its first result."""

    version: str
    cases: dict[str, Any]
    prepare: Callable[[Any, Tensors], Callable[[], Any]]
    wait: Callable[[Any], object]
    first: Callable[[Any], Any]


def gelu(xp: Any, x: Any) -> Any:
    """By tanh, as all of them have it."""
    return 0.5 * x * (1 + xp.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


# -- ours -------------------------------------------------------------------------------------------------


def mesh_cases() -> dict[str, Any]:
    import mesh
    import mesh.numpy as mnp
    from mesh import nn

    def mlp(x: Any, *weights: Any) -> Any:
        def loss(x: Any, w1: Any, b1: Any, w2: Any, b2: Any, scale: Any, shift: Any) -> Any:
            hidden = nn.gelu(x @ w1 + b1, approximate=True)
            return mnp.mean(nn.layer_norm(hidden @ w2 + b2, scale, shift) ** 2)

        return mesh.value_and_grad(loss, tuple(range(7)))(x, *weights)

    def attention(q: Any, k: Any, v: Any) -> Any:
        return nn.scaled_dot_product_attention(q, k, v, mnp.tril(mnp.ones((LENGTH, LENGTH), bool)))

    def attention_backward(q: Any, k: Any, v: Any, seed: Any) -> Any:
        result, back = mesh.vjp(attention, q, k, v)
        return result, back(seed)

    return {
        "matmul 1024": lambda a, b: a @ b,
        "MLP, forward and backward": mlp,
        "attention": attention,
        "attention, forward and backward": attention_backward,
        "chain of 16M": lambda x: x * mnp.sin(x) + mnp.exp(-x),
        "layer norm": lambda x, scale, shift: nn.layer_norm(x, scale, shift),
        "softmax": lambda x: nn.softmax(x, -1),
        "conv 3x3": lambda x, w: nn.conv(x, w, padding=1),
    }


def traced(function: Any, arrays: Tensors) -> Any:
    """The graph that a function computes of such arrays, all of them inputs."""
    import mesh
    from mesh.tree import leaves
    from wire.passes.simplify import simplify
    from worker.cpu.engine import evaluate

    return simplify(mesh.trace(lambda *tensors: leaves(function(*tensors)), *arrays), evaluate)


def _ours(engine: Any, version: str, uploads: bool = False) -> Peer:
    """What is given is no weight: it is loaded only where each call would bring it to the device's memory."""

    def prepare(function: Any, arrays: Tensors) -> Callable[[], Any]:
        graph = traced(function, arrays)
        executable = engine.compile(graph)
        handles = [engine.load(array) if uploads else array for array in arrays]
        keep = range(len(graph.outputs))
        return lambda: engine.run(executable, handles, keep=keep)

    return Peer(version, mesh_cases(), prepare, lambda made: made, lambda made: engine.read(made[0]))


def native(threads: int) -> Peer:
    from wire.ir.arithmetic import NATIVE_ARITHMETIC
    from wire.system.malloc import hold_arrays
    from worker.native.engine import NativeEngine

    hold_arrays()  # as in a worker's engine host
    return _ours(NativeEngine(threads=threads), NATIVE_ARITHMETIC)


def wgsl(threads: int) -> Peer:
    from worker.wgsl.engine import WgslEngine

    engine = WgslEngine()
    return _ours(engine, engine.info.adapter, uploads=True)


# -- theirs -----------------------------------------------------------------------------------------------


def numpy(threads: int) -> Peer:
    def layer_norm(x: Any, scale: Any, shift: Any) -> Any:
        centred = x - x.mean(1, keepdims=True)
        return centred / np.sqrt((centred * centred).mean(1, keepdims=True) + 1e-5) * scale + shift

    def softmax(x: Any) -> Any:
        powers = np.exp(x - x.max(1, keepdims=True))
        return powers / powers.sum(1, keepdims=True)

    cases = {
        "matmul 1024": lambda a, b: a @ b,
        "chain of 16M": lambda x: x * np.sin(x) + np.exp(-x),
        "layer norm": layer_norm,
        "softmax": softmax,
    }
    return Peer(np.__version__, cases, lambda fn, arrays: lambda: fn(*arrays), lambda made: made, np.asarray)


def torch(threads: int) -> Peer:
    import torch
    from torch.nn import functional

    torch.set_num_threads(threads)

    def mlp(x: Any, w1: Any, b1: Any, w2: Any, b2: Any, scale: Any, shift: Any) -> Any:
        hidden = functional.gelu(x @ w1 + b1, approximate="tanh")
        loss = functional.layer_norm(hidden @ w2 + b2, scale.shape, scale, shift).square().mean()
        return loss, torch.autograd.grad(loss, (x, w1, b1, w2, b2, scale, shift))

    def attention(q: Any, k: Any, v: Any) -> Any:
        return functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]

    def attention_backward(q: Any, k: Any, v: Any, seed: Any) -> Any:
        result = attention(q, k, v)
        return result, torch.autograd.grad(result, (q, k, v), seed)

    cases = {
        "matmul 1024": lambda a, b: a @ b,
        "MLP, forward and backward": mlp,
        "attention": attention,
        "attention, forward and backward": attention_backward,
        "chain of 16M": lambda x: x * torch.sin(x) + torch.exp(-x),
        "layer norm": lambda x, scale, shift: functional.layer_norm(x, scale.shape, scale, shift),
        "softmax": lambda x: functional.softmax(x, -1),
        "conv 3x3": lambda x, w: functional.conv2d(x, w, padding=1),
    }
    backward = (mlp, attention_backward)

    def prepare(function: Any, arrays: Tensors) -> Callable[[], Any]:
        tensors = [torch.from_numpy(array).clone().requires_grad_(function in backward) for array in arrays]

        def call() -> Any:
            with torch.set_grad_enabled(function in backward):
                return function(*tensors)

        return call

    def first(made: Any) -> Any:
        return (made[0] if isinstance(made, tuple) else made).detach().numpy()

    return Peer(torch.__version__, cases, prepare, lambda made: made, first)


def jax(threads: int) -> Peer:
    import jax
    import jax.numpy as jnp

    def layer_norm(x: Any, scale: Any, shift: Any) -> Any:
        centred = x - x.mean(1, keepdims=True)
        return centred * jax.lax.rsqrt((centred * centred).mean(1, keepdims=True) + 1e-5) * scale + shift

    def mlp(*arguments: Any) -> Any:
        def loss(x: Any, w1: Any, b1: Any, w2: Any, b2: Any, scale: Any, shift: Any) -> Any:
            return jnp.mean(layer_norm(gelu(jnp, x @ w1 + b1) @ w2 + b2, scale, shift) ** 2)

        return jax.value_and_grad(loss, tuple(range(7)))(*arguments)

    def attention(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("btd,bsd->bts", q, k) * DEPTH**-0.5
        return jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), scores, -jnp.inf), -1) @ v

    def attention_backward(q: Any, k: Any, v: Any, seed: Any) -> Any:
        result, back = jax.vjp(attention, q, k, v)
        return result, back(seed)

    layout = ("NCHW", "OIHW", "NCHW")
    cases = {
        "matmul 1024": lambda a, b: a @ b,
        "MLP, forward and backward": mlp,
        "attention": attention,
        "attention, forward and backward": attention_backward,
        "chain of 16M": lambda x: x * jnp.sin(x) + jnp.exp(-x),
        "layer norm": layer_norm,
        "softmax": lambda x: jax.nn.softmax(x, -1),
        "conv 3x3": lambda x, w: jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=layout),
    }

    def prepare(function: Any, arrays: Tensors) -> Callable[[], Any]:
        compiled, tensors = jax.jit(function), [jnp.asarray(array) for array in arrays]
        return lambda: jax.block_until_ready(compiled(*tensors))

    def first(made: Any) -> Any:
        return np.asarray(made[0] if isinstance(made, tuple) else made)

    return Peer(jax.__version__, cases, prepare, lambda made: made, first)


def onnxruntime(threads: int) -> Peer:
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    node = helper.make_node
    mask = np.triu(np.full((LENGTH, LENGTH), -1e9, np.float32), 1)
    cases = {  # nodes from inputs a, b, ... to o; constants; the place of the input that has the result's shape
        "matmul 1024": ([node("MatMul", ["a", "b"], ["o"])], {}),
        "attention": (
            [node("Transpose", ["b"], ["t"], perm=[0, 2, 1]), node("MatMul", ["a", "t"], ["s"]),
             node("Mul", ["s", "scale"], ["m"]), node("Add", ["m", "mask"], ["n"]), node("Softmax", ["n"], ["p"]),
             node("MatMul", ["p", "c"], ["o"])],
            {"scale": np.float32(DEPTH**-0.5), "mask": mask},
        ),
        "chain of 16M": (
            [node("Sin", ["a"], ["s"]), node("Mul", ["a", "s"], ["m"]), node("Neg", ["a"], ["n"]),
             node("Exp", ["n"], ["e"]), node("Add", ["m", "e"], ["o"])], {},
        ),
        "layer norm": ([node("LayerNormalization", ["a", "b", "c"], ["o"], axis=1)], {}),
        "softmax": ([node("Softmax", ["a"], ["o"])], {}),
        "conv 3x3": ([node("Conv", ["a", "b"], ["o"], pads=[1, 1, 1, 1])], {}),
    }  # fmt: skip
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, threads

    def prepare(case: Any, arrays: Tensors) -> Callable[[], Any]:
        nodes, constants = case
        inputs = [helper.make_tensor_value_info("abc"[at], TensorProto.FLOAT, a.shape) for at, a in enumerate(arrays)]
        result = helper.make_tensor_value_info("o", TensorProto.FLOAT, arrays[0].shape)
        held = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
        graph = helper.make_graph(nodes, "case", inputs, [result], held)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
        binding = session.io_binding()
        for at, array in enumerate(arrays):
            binding.bind_cpu_input("abc"[at], array)
        made = onnxruntime.OrtValue.ortvalue_from_shape_and_type(arrays[0].shape, np.float32, "cpu")
        binding.bind_ortvalue_output("o", made)

        def call() -> Any:
            session.run_with_iobinding(binding)
            return made

        return call

    return Peer(onnxruntime.__version__, cases, prepare, lambda made: made, lambda made: made.numpy())


def _tinygrad(device: str) -> Peer:
    os.environ["DEV"] = device
    if device == "WEBGPU":
        import pathlib
        import platform
        from importlib.util import find_spec

        if (dawn := find_spec("pydawn")) is not None and dawn.origin:
            library = pathlib.Path(dawn.origin).parent / "lib" / f"libwebgpu_dawn_{platform.machine()}.so"
            os.environ.setdefault("WEBGPU_PATH", str(library))
    from importlib.metadata import version

    from tinygrad import Device, Tensor, TinyJit

    Tensor([1.0]).exp().realize()  # raises here where there is no compiler or no device

    def mlp(x: Any, w1: Any, b1: Any, w2: Any, b2: Any, scale: Any, shift: Any) -> Any:
        loss = (((x @ w1 + b1).gelu() @ w2 + b2).layernorm() * scale + shift).square().mean()
        return [loss, *loss.gradient(x, w1, b1, w2, b2, scale, shift)]

    def attention(q: Any, k: Any, v: Any) -> Any:
        return q.scaled_dot_product_attention(k, v, is_causal=True)

    def attention_backward(q: Any, k: Any, v: Any, seed: Any) -> Any:
        result = attention(q, k, v)
        return [result, *result.gradient(q, k, v, gradient=seed)]

    cases = {
        "matmul 1024": lambda a, b: a @ b,
        "MLP, forward and backward": mlp,
        "attention": attention,
        "attention, forward and backward": attention_backward,
        "chain of 16M": lambda x: x * x.sin() + (-x).exp(),
        "layer norm": lambda x, scale, shift: x.layernorm() * scale + shift,
        "softmax": lambda x: x.softmax(),
        "conv 3x3": lambda x, w: x.conv2d(w, padding=1),
    }

    def prepare(function: Any, arrays: Tensors) -> Callable[[], Any]:
        tensors = [Tensor(array).realize() for array in arrays]

        @TinyJit
        def compiled(*tensors: Any) -> Any:
            made = function(*tensors)
            made = made if isinstance(made, list) else [made]
            Tensor.realize(*made)
            return made

        def call() -> Any:
            made = compiled(*tensors)
            Device[Device.DEFAULT].synchronize()
            return made

        return call

    return Peer(version("tinygrad"), cases, prepare, lambda made: made, lambda made: made[0].numpy())


PEERS: dict[str, Callable[[int], Peer]] = {
    "native": native,
    "wgsl": wgsl,
    "numpy": numpy,
    "torch": torch,
    "jax": jax,
    "onnxruntime": onnxruntime,
    "tinygrad": lambda threads: _tinygrad("CPU"),
    "tinygrad-webgpu": lambda threads: _tinygrad("WEBGPU"),
}


def main() -> None:
    name, threads = sys.argv[1], int(sys.argv[2])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    clock = time.process_time if threads == 1 else time.perf_counter

    def answer(**fields: Any) -> None:
        print(json.dumps(fields), file=answers, flush=True)

    try:
        peer = PEERS[name](threads)
    except (ImportError, OSError, RuntimeError) as error:
        answer(missing=f"{type(error).__name__}: {error}")
        return
    answer(version=peer.version, cases=list(peer.cases))
    current, call = "", None
    for line in sys.stdin:
        case = line.strip()
        norm = None
        if case != current:
            current, call = case, peer.prepare(peer.cases[case], given(case))
            norm = float(np.linalg.norm(np.asarray(peer.first(call()), np.float64)))
            for _ in range(3):  # TinyJit compiles at the second
                peer.wait(call())
        assert call is not None
        began_s = clock()
        peer.wait(call())
        answer(seconds=clock() - began_s, norm=norm)


if __name__ == "__main__":
    main()
