"""Safetensors files: what the reference package writes is read, and what is written it reads; damage is named."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file, save_file

import mesh
from mesh.errors import InputError
from mesh.models.safetensors import DTYPES

TENSORS = {
    "a.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.array([1, 2, 3], np.int64),
    "scalar": np.array(2.5, np.float16),
    "empty": np.zeros((0, 3), np.float32),
    "flags": np.array([True, False, True]),
}


def write(path: Path, header: Any, body: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + body)
    return path


@pytest.mark.parametrize("mmap", [True, False])
def test_files_of_the_reference_package_are_read(tmp_path: Path, mmap: bool) -> None:
    save_file(TENSORS, tmp_path / "x.safetensors", metadata={"format": "np"})
    found = mesh.load_safetensors(tmp_path / "x.safetensors", mmap=mmap)
    assert set(found) == set(TENSORS)
    for name, tensor in TENSORS.items():
        assert found[name].dtype == tensor.dtype
        assert not found[name].flags.writeable
        np.testing.assert_array_equal(found[name], tensor)


def test_the_reference_package_reads_our_files(tmp_path: Path) -> None:
    mesh.save_safetensors({**TENSORS, "transposed": TENSORS["a.weight"].T}, tmp_path / "x.safetensors")
    found = load_file(tmp_path / "x.safetensors")
    for name, tensor in {**TENSORS, "transposed": TENSORS["a.weight"].T}.items():
        np.testing.assert_array_equal(found[name], tensor)


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_every_dtype_comes_back(tmp_path: Path, name: str) -> None:
    array = np.array([0, 1, 1], DTYPES[name].numpy)
    mesh.save_safetensors({"x": array}, tmp_path / "x.safetensors")
    found = mesh.load_safetensors(tmp_path / "x.safetensors")["x"]
    assert found.dtype == array.dtype
    assert found.tobytes() == array.tobytes()


def test_a_mapped_tensor_can_be_used_lazily(tmp_path: Path) -> None:
    mesh.save_safetensors({"w": np.ones(4, ml_dtypes.bfloat16)}, tmp_path / "x.safetensors")
    weights = mesh.load_safetensors(tmp_path / "x.safetensors")
    assert isinstance(weights["w"].base, np.ndarray)
    assert float(mesh.numpy.sum(weights["w"])) == 4


@pytest.mark.skipif(sys.platform == "win32", reason="Windows counts no open files")
def test_a_mapped_file_is_not_open_and_its_tensors_are_read_only(tmp_path: Path) -> None:
    mesh.save_safetensors({"w": np.arange(2000.0)}, tmp_path / "x.safetensors")
    before = psutil.Process().num_fds()
    weights = mesh.load_safetensors(tmp_path / "x.safetensors")
    assert psutil.Process().num_fds() == before
    (tmp_path / "x.safetensors").unlink()
    assert not weights["w"].flags.writeable and np.array_equal(weights["w"], np.arange(2000.0))


def test_unaligned_tensors_are_copied_into_place(tmp_path: Path) -> None:
    header = {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    text = json.dumps(header).encode()
    text += b" " * (3 - len(text) % 8)
    values = np.array([1.5, -2], np.float32)
    found = mesh.load_safetensors(write(tmp_path / "x", text, values.tobytes()))["x"]
    assert found.flags.aligned
    assert found.tolist() == [1.5, -2]


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
DAMAGED = [
    ("not JSON", b"{nope", b"", None, "not JSON"),
    ("not an object", [1], b"", None, "not an object"),
    ("cut off", {"x": ENTRY}, b"1234", None, "cut off"),
    ("long header", {}, b"", 1 << 60, "is not a safetensors file"),
    ("unknown dtype", {"x": {**ENTRY, "dtype": "Q7"}}, b"12345678", None, "has the dtype 'Q7'"),
    ("wrong size", {"x": {**ENTRY, "shape": [3]}}, b"12345678", None, "has 12 bytes"),
    ("negative", {"x": {**ENTRY, "shape": [-2]}}, b"12345678", None, "lacks a dtype, a shape or offsets"),
    ("overflowing", {"x": {**ENTRY, "shape": [1 << 62, 1 << 62]}}, b"12345678", None, "has 8507059"),
    ("no shape", {"x": {"dtype": "F32"}}, b"", None, "lacks a dtype, a shape or offsets"),
    ("dtype of another type", {"x": {**ENTRY, "dtype": 3}}, b"12345678", None, "has the dtype 3"),
    ("dtype not hashable", {"x": {**ENTRY, "dtype": ["F32"]}}, b"12345678", None, "has the dtype"),
    ("overlap", {"x": ENTRY, "y": ENTRY}, b"12345678", None, "belong to no tensor or two"),
    ("hole", {"x": {**ENTRY, "data_offsets": [4, 12]}}, b"123456789012", None, "belong to no tensor or two"),
    ("rest", {"x": ENTRY}, b"1234567890", None, "2 bytes follow"),
    ("deep", b"[" * 100_000, b"", None, "damaged"),
    (
        "no bytes of an endless shape",
        {"x": {**ENTRY, "shape": [0, 10**30], "data_offsets": [0, 0]}},
        b"",
        None,
        "shape",
    ),
    ("many dimensions", {"x": {**ENTRY, "shape": [1] * 64 + [2]}}, b"12345678", None, "has the shape"),
    ("a long number", {"x": {**ENTRY, "shape": [10**4299, 10**4299]}}, b"12345678", None, "has the shape"),
    ("very many dimensions", {"x": {**ENTRY, "shape": [9] * 1_000_000}}, b"12345678", None, "has the shape"),
]


@pytest.mark.parametrize(
    ("header", "body", "length", "words"), [row[1:] for row in DAMAGED], ids=[row[0] for row in DAMAGED]
)
def test_damage_is_named(tmp_path: Path, header: Any, body: bytes, length: int | None, words: str) -> None:
    with pytest.raises(InputError, match=words):
        mesh.load_safetensors(write(tmp_path / "x.safetensors", header, body, length))


def test_a_file_stays_where_the_disk_has_no_room_for_the_new_one(tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    mesh.save_safetensors({"w": np.arange(10.0)}, file)
    before, limits = file.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(InputError, match="cannot write"):
            mesh.save_safetensors({"w": np.ones(10_000)}, file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]
    with pytest.raises(InputError, match="no tensor can be called '__metadata__'"):
        mesh.save_safetensors({"__metadata__": np.ones(2)}, file)


def test_a_link_to_a_file_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "x.safetensors")
    mesh.save_safetensors(TENSORS, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert set(load_file(tmp_path / "x.safetensors")) == set(TENSORS)


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the tensor 'x' is no array"):
        mesh.save_safetensors({"x": [[1.0], [2.0, 3.0]]}, tmp_path / "x.safetensors")
    with pytest.raises(InputError, match=r"cannot write .*null (byte|character)"):
        mesh.save_safetensors({"x": [1.0]}, str(tmp_path / "x\0.safetensors"))


def test_missing_and_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing\.safetensors does not exist"):
        mesh.load_safetensors(tmp_path / "nothing.safetensors")
    for content in (b"", b"1234"):
        (tmp_path / "short").write_bytes(content)
        with pytest.raises(InputError, match="safetensors file"):
            mesh.load_safetensors(tmp_path / "short")
    with pytest.raises(InputError, match="cannot be read"):
        mesh.load_safetensors(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
@pytest.mark.parametrize("name", ["model.safetensors", "model.gguf"])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match="no regular file"):
        mesh.load(tmp_path / name) if name.endswith("gguf") else mesh.load_safetensors(tmp_path / name)


HOLDING = """
import sys
import mesh

weights = mesh.load_safetensors(sys.argv[1])
print(weights["w"].nbytes)
"""


def test_a_program_ends_that_has_large_mapped_tensors(tmp_path: Path) -> None:
    mesh.save_safetensors({"w": np.zeros(5 << 20, np.float32)}, tmp_path / "x.safetensors")
    command = [sys.executable, "-c", HOLDING, str(tmp_path / "x.safetensors")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{20 << 20}\n", "")
