"""Weights inside of a .onnx file are mapped, and are what onnx reads, in whole files and in damaged ones."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("onnx", reason="the extra `onnx` is not installed")

import onnx
import psutil
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper, numpy_helper

import mesh
from mesh.errors import InputError
from mesh.importers.onnx import weight_stripping
from mesh.importers.onnx.reading import Reader, read
from worker.cpu.inplace_updates import root_of

RANDOM = np.random.default_rng(4)
WEIGHTS: dict[str, NDArray[Any]] = {
    "f32": RANDOM.standard_normal((40, 30)).astype(np.float32),
    "f64": RANDOM.standard_normal((700,)),
    "f16": RANDOM.standard_normal((3, 1000)).astype(np.float16),
    "i64": RANDOM.integers(-9, 9, (30, 30)),
    "bool": RANDOM.random((5000,)) > 0.5,
    "small": RANDOM.standard_normal((5,)).astype(np.float32),
    "none": np.zeros((0, 4), np.float32),
}


def model_of(weights: dict[str, NDArray[Any]], typed: tuple[str, ...] = ()) -> onnx.ModelProto:
    """x plus the first weight; those named in `typed` are lists of numbers in the file, not bytes."""
    first = next(iter(weights))
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items() if name not in typed]
    for name in typed:
        kind = helper.np_dtype_to_tensor_dtype(weights[name].dtype)
        tensors.append(helper.make_tensor(name, kind, weights[name].shape, weights[name].reshape(-1).tolist()))
    shape = weights[first].shape
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", first], ["y"])],
        "weights",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        tensors,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def saved(folder: Path, proto: onnx.ModelProto) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_large_weights_are_mapped_and_all_are_what_onnx_reads(tmp_path: Path) -> None:
    path = saved(tmp_path, model_of(WEIGHTS, typed=("i64",)))
    found = read(path).graph.initialisers
    mapped = {name for name, array in found.items() if root_of(array).nbytes == path.stat().st_size}
    assert mapped == {"f32", "f64", "f16", "bool"}
    assert not any(found[name].flags.writeable for name in mapped)
    for name, array in WEIGHTS.items():
        assert found[name].dtype == array.dtype and np.array_equal(found[name], array), name


def test_a_model_with_mapped_weights_runs_in_this_process(tmp_path: Path) -> None:
    model = mesh.load(saved(tmp_path, model_of(WEIGHTS)))
    x = np.ones((40, 30), np.float32)
    for _ in range(2):
        assert np.array_equal(np.asarray(model(x)), x + WEIGHTS["f32"])


LAID: dict[str, dict[str, Any]] = {
    "in the model": {},
    "in one file": {"save_as_external_data": True, "location": "weights.bin", "size_threshold": 0},
    "in a file each": {"save_as_external_data": True, "all_tensors_to_one_file": False, "size_threshold": 0},
}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows counts no open files")
@pytest.mark.parametrize("laid", LAID)
def test_weights_need_no_open_files(laid: str, tmp_path: Path) -> None:
    weights = {f"w{number}": np.full((32, 32), number, np.float32) for number in range(50)}
    onnx.save(model_of(weights), str(tmp_path / "model.onnx"), **LAID[laid])
    before = psutil.Process().num_fds()
    found = read(tmp_path / "model.onnx").graph.initialisers
    assert psutil.Process().num_fds() == before
    assert all(np.array_equal(found[name], array) for name, array in weights.items())


@contextlib.contextmanager
def no_more_files() -> Iterator[None]:
    """This process may not open a file more."""
    resource = pytest.importorskip("resource", reason="Windows has no such limit")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(free := os.dup(0))  # the lowest number that no file has
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            os.dup(0)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_files_that_the_system_does_not_open_are_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model_of({"w": WEIGHTS["f32"]}), str(path), **LAID["in one file"])
    stored = onnx.load(str(path), load_external_data=False)
    for begin, words in (
        (lambda: read(path), r"model\.onnx cannot be read as an ONNX model: .*Too many open files"),
        (lambda: Reader(stored, path).program(), r"weights\.bin cannot be read as a file of weights: .*Too many open"),
    ):
        with no_more_files(), pytest.raises(InputError, match=words) as told:
            begin()
        assert "ulimit -n" in told.value.next_step


def outcome(make: Any) -> Any:
    try:
        program = make()
    except (InputError, DecodeError):
        return None
    return [
        (name, str(array.dtype), array.shape, array.tobytes())
        for name, array in program.graph.initialisers.items()
    ], [node.op for node in program.graph.nodes], len(program.problems)  # fmt: skip


def test_damaged_files_are_what_onnx_makes_of_them(tmp_path: Path) -> None:
    weights = {"w": WEIGHTS["f32"][:3, :2], "n": WEIGHTS["i64"][:2, :2]}
    whole = model_of(weights, typed=("n",)).SerializeToString()
    read_alike = 0
    for seed in range(400):
        random = np.random.default_rng(seed)
        data = bytearray(whole)
        for at in random.integers(0, len(data), random.integers(1, 4)):
            data[at] = random.integers(256)
        damaged = bytes(data[: random.integers(1, len(data))] if seed % 4 == 0 else data)
        (tmp_path / "model.onnx").write_bytes(damaged)
        ours = outcome(lambda: read(tmp_path / "model.onnx", mapped_bytes_min=8))
        theirs = outcome(lambda damaged=damaged: Reader(onnx.ModelProto.FromString(damaged)).program())
        assert ours == theirs, seed
        read_alike += ours is not None
    assert read_alike > 40


def one(shape: Sequence[int], data: bytes = bytes(8), **external: str) -> onnx.TensorProto:
    """The weight "w" of a model, of which the file says what it likes."""
    kept = {"data_location": onnx.TensorProto.EXTERNAL} if external else {"raw_data": data}
    entries = [onnx.StringStringEntryProto(key=key, value=text) for key, text in external.items()]
    return onnx.TensorProto(name="w", data_type=1, dims=shape, external_data=entries, **kept)


def sparse(values: int, places: NDArray[Any], shape: Sequence[int]) -> onnx.SparseTensorProto:
    tensors = (numpy_helper.from_array(array, "w") for array in (np.ones(values, np.float32), places))
    return onnx.helper.make_sparse_tensor(*tensors, shape)


@pytest.mark.parametrize(
    ("weight", "words"),
    [
        (one([-1]), r"shape of \[-1\]"),
        (one([2], location="a\0b"), "no name of a file"),
        (one([2], offset="0"), "no name of a file"),
        (one([2], location="a" * 5000), "does not exist"),
        (one([2], location="w.bin", offset="9" * 5000), "are 8 bytes, not"),
        (sparse(2, np.array([0, 9]), [2]), "sparse weights 'w' are damaged"),
        (sparse(2, np.array([0, -1]), [2]), "sparse weights 'w' are damaged"),
        (sparse(2, np.array([[0, 0], [5, 5]]), [2, 2]), "sparse weights 'w' are damaged"),
        (sparse(2, np.array([0, 1, 1]), [3]), "2,.* values at .3,"),
        (sparse(2, np.array([0, 1]), [1 << 45]), "Unable to allocate"),
    ],
)
def test_weights_that_cannot_be_are_refused(tmp_path: Path, weight: Any, words: str) -> None:
    made = model_of({"v": np.ones(2, np.float32)})
    (made.graph.sparse_initializer if hasattr(weight, "indices") else made.graph.initializer).append(weight)
    with pytest.raises(InputError, match=words):
        mesh.load(saved(tmp_path, made))


def test_weights_of_another_length_than_their_shape_are_refused(tmp_path: Path) -> None:
    proto = model_of(WEIGHTS)
    proto.graph.initializer[0].dims[0] = 39
    with pytest.raises(InputError, match=r"'f32' of shape \[39, 30\] are 4680 bytes, not .*length 4800"):
        mesh.load(saved(tmp_path, proto))


def test_a_weight_that_says_its_bytes_twice_is_left_to_onnx(tmp_path: Path) -> None:
    proto = model_of({"w": WEIGHTS["f32"]})
    tensor = proto.graph.initializer[0]
    twice = tensor.SerializeToString() + TensorProto(raw_data=bytes(4800)).SerializeToString()
    proto.graph.ClearField("initializer")
    data = proto.SerializeToString()
    inner = bytes([5 << 3 | 2]) + weight_stripping._varint(len(twice)) + twice
    (tmp_path / "model.onnx").write_bytes(data + bytes([7 << 3 | 2]) + weight_stripping._varint(len(inner)) + inner)
    assert not read(tmp_path / "model.onnx").graph.initialisers["w"].any()


MEASURED = """
import json, sys
import numpy as np, onnx, mesh.numpy
from mesh.importers.onnx.reading import read
import mesh
def anonymous():
    return next(int(row.split()[1]) for row in open("/proc/self/status") if row.startswith("RssAnon"))
before = anonymous()
model = mesh.load(sys.argv[1])
addresses = {handle.address for handle in model.handles.values()}
graph = model.graph(model.given([np.zeros((1024, 1024), np.float32)]))
print(json.dumps([len(addresses), anonymous() - before]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_weights_are_hashed_and_traced_without_being_read_into_memory(tmp_path: Path) -> None:
    weights = {f"w{number}": np.full((1024, 1024), number, np.float32) for number in range(24)}
    path = saved(tmp_path, model_of(weights))
    words = [sys.executable, "-c", MEASURED, str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3])
    hashed, grew_kib = json.loads(done.stdout)
    assert hashed == 24
    assert grew_kib < 24 * 1024, "a quarter of the file"
