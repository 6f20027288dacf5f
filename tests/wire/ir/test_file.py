"""`.wire` files: what is saved comes back, and a damaged file is refused."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

import mesh.numpy as mnp
from mesh import trace
from wire.errors import GraphDecodeError, InputError, MeshError, VersionMismatch
from wire.ir.codec import hash_bytes
from wire.ir.dtypes import F16, F32
from wire.ir.file import load_graph, load_params
from wire.ir.graph import GraphBuilder, WireGraph


def small() -> WireGraph:
    return trace(lambda x, w: {"y": mnp.tanh(x @ w), "x": x}, np.ones((2, 3), np.float32), np.ones((3, 4), np.float32))


def with_param_and_constant() -> WireGraph:
    builder = GraphBuilder()
    x = builder.input("x", (300,), F32)
    table = builder.const(np.arange(90_000, dtype=np.float32).reshape(300, 300))
    w = builder.param("w", (300,), F16)
    row = builder.add("reduce_sum", builder.add("mul", x, table), axes=(0,))
    return builder.build([builder.add("add", row, builder.add("cast", w, dtype="f32"))], names=["y"], name="named")


def test_a_graph_its_constants_and_its_params_come_back(tmp_path: Path) -> None:
    graph = with_param_and_constant()
    w = np.linspace(0, 1, 300).astype(np.float16)
    graph.save(tmp_path / "g.wire", {"w": w})
    loaded = WireGraph.load(tmp_path / "g.wire")
    assert (loaded, loaded.hash, loaded.name) == (graph, graph.hash, "named")
    assert loaded.types == graph.types
    assert graph.blobs.keys() == loaded.blobs.keys() != set()
    for address, array in graph.blobs.items():
        np.testing.assert_array_equal(loaded.blobs[address].reshape(array.shape), array)
    (param,) = load_params(tmp_path / "g.wire").items()
    assert param[0] == "w"
    np.testing.assert_array_equal(param[1], w, strict=True)


def test_the_container_is_a_safetensors_file(tmp_path: Path) -> None:
    small().save(tmp_path / "g.wire")
    with safe_open(tmp_path / "g.wire", framework="numpy") as file:
        assert list(file.keys()) == ["graph"]


def test_saving_replaces_the_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "g.wire"
    small().save(path)
    with_param_and_constant().save(path)
    assert load_graph(path).name == "named"
    assert [file.name for file in tmp_path.iterdir()] == ["g.wire"]


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"v": np.ones(300, np.float16)}, "Its params: w"),
        ({"w": np.ones(3, np.float16)}, r"f16\[300\], got float16\[3\]"),
    ],
)
def test_values_that_do_not_fit_the_graph_are_refused(tmp_path: Path, params: dict[str, np.ndarray], said: str) -> None:
    with pytest.raises(InputError, match=said):
        with_param_and_constant().save(tmp_path / "g.wire", params)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_and_a_folder_that_is_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing\.wire"):
        load_graph(tmp_path / "nothing.wire")
    with pytest.raises(InputError, match="cannot write"):
        small().save(tmp_path / "no" / "g.wire")


def test_a_file_of_another_kind_or_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "g.wire"
    save_file({"weights": np.ones(3)}, path)
    with pytest.raises(GraphDecodeError, match=r"not a \.wire file"):
        load_graph(path)
    save_file({"graph": np.ones(3, np.uint8)}, path, {"format": "2", "graph": "00"})
    with pytest.raises(VersionMismatch, match="format 2, this version reads 1"):
        load_graph(path)


@pytest.mark.parametrize("dtype", ["BOOL", "I8", "F8_E4M3", "F8_E8M0", "BF16", "F64", "C64"])
def test_entries_of_another_dtype_are_refused(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "g.wire"
    small().save(path)
    whole = path.read_bytes()
    size = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + size])
    header["graph"]["dtype"] = dtype
    header["graph"]["shape"][0] //= {"BF16": 2, "F64": 8, "C64": 8}.get(dtype, 1)
    changed = json.dumps(header).encode()
    path.write_bytes(len(changed).to_bytes(8, "little") + changed + whole[8 + size :])
    for load in (load_graph, load_params):
        with pytest.raises(GraphDecodeError, match=r"not a \.wire file"):
            load(path)


def test_a_file_without_one_of_its_constants_is_refused(tmp_path: Path) -> None:
    path, graph = tmp_path / "g.wire", with_param_and_constant()
    save_file({"graph": entry(graph.encoded)}, path, {"format": "1", "graph": graph.hash.hex()})
    with pytest.raises(GraphDecodeError, match="lacks the constant"):
        load_graph(path)
    with pytest.raises(InputError, match="is not in this process"):
        replace(graph, blobs={}).save(path)


def entry(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


def test_entries_that_contradict_the_graph_are_refused(tmp_path: Path) -> None:
    path, graph, other = tmp_path / "g.wire", with_param_and_constant(), bytes(360_000)
    whole = {"format": "1", "graph": graph.hash.hex()}
    (address,) = graph.blobs
    for name, data, said in (
        (f"const/{address.hex()}", other, "lacks the constant"),
        ("param/v", other, "values of params the graph does not have: v"),
        ("param/w", other, "a tensor f16\\[300\\] has 600 bytes, got 360000"),
    ):
        save_file({"graph": entry(graph.encoded), name: entry(data)}, path, {**whole, name: hash_bytes(data).hex()})
        with pytest.raises(GraphDecodeError, match=said):
            (load_graph if name.startswith("const/") else load_params)(path)
    save_file({"graph": entry(graph.encoded), "more": entry(other)}, path, whole)
    with pytest.raises(GraphDecodeError, match=r"not a \.wire file"):
        load_graph(path)


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), SafetensorError("I/O error")])
def test_a_save_that_fails_midway_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    path = tmp_path / "g.wire"
    small().save(path)

    def half(entries: object, place: Path, metadata: object) -> None:
        place.write_bytes(b"half a file")
        raise failure

    monkeypatch.setattr("wire.ir.file.save_file", half)
    with pytest.raises(InputError, match=r"cannot write .*g\.wire"):
        with_param_and_constant().save(path)
    assert load_graph(path) == small()
    assert [file.name for file in tmp_path.iterdir()] == ["g.wire"]


def test_every_truncation_and_any_flipped_byte_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "g.wire"
    small().save(path)
    whole = path.read_bytes()
    rng = random.Random(3)
    damaged = [whole[:size] for size in range(len(whole))]
    for _ in range(300):
        flipped = bytearray(whole)
        flipped[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        damaged.append(bytes(flipped))
    for data in damaged:
        path.write_bytes(data)
        try:
            loaded = load_graph(path)
        except MeshError:
            continue
        assert loaded == small(), "damage went unnoticed"
