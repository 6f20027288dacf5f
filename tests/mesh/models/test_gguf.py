"""GGUF files give what the package `gguf` dequantises (and transformers computes), and stay as small as they are."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Type
from support.cases.gguf_files import GOLDEN, HALVES, IDS, dequantised, random_blocks, write_model

import mesh
import mesh.numpy as mnp
from mesh.errors import InputError, Unsupported
from mesh.importers.gguf.blocks import BLOCKS, packed
from mesh.importers.gguf.file import read
from mesh.importers.gguf.names import ARCHITECTURES
from mesh.nn.packed import packed_product, packed_rows, unpacked
from wire.units import need_text

FOLDER = Path(__file__).resolve().parents[2] / "golden" / "gguf"
TOKENS = IDS.astype(np.int32)


def relative(found: Any, wanted: Any) -> float:
    return float(np.abs(np.asarray(found) - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize("kind", HALVES)
def test_blocks_are_the_weights_of_the_package_to_the_bit(kind: str) -> None:
    number, shape = Type[kind].value, (70, 512)
    block, rng = BLOCKS[number], np.random.default_rng(number)
    assert (block.name, block.weights, block.size_bytes) == (kind, *gguf.GGML_QUANT_SIZES[Type[kind]])
    raw = random_blocks(rng, kind, shape)
    wanted = gguf.quants.dequantize(raw, Type[kind])
    parts = packed(block, shape, raw.reshape(-1))
    arrays = {name: mnp.asarray(part) for name, part in parts.items()}
    np.testing.assert_array_equal(np.asarray(unpacked(arrays, 512)).T, wanted)
    np.testing.assert_array_equal(np.asarray(packed_rows(arrays, mnp.asarray([[3, 69]]), 512))[0], wanted[[3, 69]])
    x = rng.standard_normal((3, 512)).astype(np.float32)
    assert relative(packed_product(mnp.asarray(x), arrays), x @ wanted.T.astype(np.float64)) < 1e-5
    held, told = sum(part.nbytes for part in parts.values()), raw.nbytes
    assert held <= told * (1.2 if kind == "Q2_K" else 1.04), "parts of 4 and 6 bits may have a byte"


def test_every_type_of_the_table_is_tried() -> None:
    assert {block.name for block in BLOCKS.values()} == {*HALVES, "F32", "F16", "BF16"}


@pytest.mark.parametrize("name", GOLDEN)
def test_a_model_equals_transformers(name: str) -> None:
    model = mesh.load(FOLDER / f"{name}.gguf")
    assert relative(model(TOKENS), np.load(FOLDER / "logits.npz")[name]) < 1e-4
    assert model.buffers and not any(name.endswith("proj.weight") for name in model.params)


@pytest.mark.parametrize("kind", [*HALVES, "F16", "BF16"])
def test_logits_are_those_of_the_dequantised_model(kind: str, tmp_path: Path) -> None:
    wide = {"width": 256, "inner": 256} if BLOCKS[Type[kind].value].weights == 256 else {}
    write_model(tmp_path / "packed.gguf", "llama", kind, layers=1, **wide)
    dequantised(tmp_path / "packed.gguf", tmp_path / "floats.gguf")
    model, floats = mesh.load(tmp_path / "packed.gguf"), mesh.load(tmp_path / "floats.gguf")
    assert relative(model(TOKENS), np.asarray(floats(TOKENS))) < 1e-4
    size, full = (sum(array.nbytes for array in each.weights.values()) for each in (model, floats))
    most = {"F16": 0.52, "BF16": 0.52}.get(
        kind, 1.25 * BLOCKS[Type[kind].value].size_bytes / BLOCKS[Type[kind].value].weights / 4
    )
    assert size < most * full, "weights stay packed"
    if kind in ("Q4_K", "F16"):
        how = {"max_new_tokens": 8, "ends": ()}
        assert model.generate([[3, 4, 5], [7]], **how) == floats.generate([[3, 4, 5], [7]], **how)


@pytest.mark.parametrize(
    ("architecture", "how"),
    [("llama", {"experts": 4}), ("qwen3moe", {"experts": 4}), ("qwen3", {}), ("phi3", {}), ("gemma", {})],
)
def test_other_architectures_compute_their_dequantised_weights(
    architecture: str, how: dict[str, Any], tmp_path: Path
) -> None:
    write_model(tmp_path / "packed.gguf", architecture, "Q8_0", **how)
    dequantised(tmp_path / "packed.gguf", tmp_path / "floats.gguf")
    model, floats = mesh.load(tmp_path / "packed.gguf"), mesh.load(tmp_path / "floats.gguf")
    assert relative(model(TOKENS), np.asarray(floats(TOKENS))) < 1e-4
    assert ARCHITECTURES[architecture]


def test_names_and_metadata_are_read() -> None:
    model = mesh.load(FOLDER / "llama-Q4_0.gguf")
    text = model.text
    assert text is not None and text.ends == (2,) and text.decoder.positions_max == 64
    assert model.generate([3, 4, 5], max_new_tokens=4, ends=()) == mesh.load(str(FOLDER / "llama-Q4_0.gguf")).generate(
        [3, 4, 5], max_new_tokens=4, ends=()
    )


# -- files that are damaged, or mean harm


def header(tensors: int = 0, entries: int = 0, rest: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, entries) + rest


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def tensor(dims: tuple[int, ...], kind: int = 0, offset: int = 0, name: str = "t") -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


HUGE = (1 << 62) + 1
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "cannot be read as a GGUF file"),
    "other": (b"PK\x03\x04" + bytes(60), "is no GGUF file"),
    "cut in the header": (b"GGUF\x03\0\0\0\1", "8 B are announced at byte 8, of 9 B"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "of GGUF version"),
    "tensors without end": (header(tensors=HUGE), f"it tells of {HUGE} tensors, and has 0 B more"),
    "entries without end": (header(entries=HUGE), f"it tells of {HUGE} entries of metadata"),
    "a long name": (
        header(entries=1, rest=struct.pack("<Q", HUGE) + bytes(20)),
        f"{need_text(HUGE)} are announced at byte",
    ),
    "a name that is no text": (header(entries=1, rest=struct.pack("<Q", 1) + b"\xff" + bytes(30)), "is no UTF-8"),
    "a strange type": (header(entries=1, rest=text("k") + struct.pack("<I", 99) + bytes(9)), "of the type 99"),
    "a long list": (
        header(entries=1, rest=text("k") + struct.pack("<IIQ", 9, 6, HUGE)),
        f"it tells of {HUGE} elements of 'k'",
    ),
    "a list of lists": (
        header(entries=1, rest=text("k") + struct.pack("<IIQ", 9, 9, 1) + bytes(40)),
        "'k' is a list of lists",
    ),
    "many axes": (header(tensors=1, rest=tensor((1,) * 5)), "has 5 axes"),
    "a shape that overflows": (
        header(tensors=1, rest=tensor((1 << 33, 1 << 33))),
        f"{need_text((1 << 66) * 4)} at byte 0, of",
    ),
    "an offset outside": (header(tensors=1, rest=tensor((8,), 0, 1 << 40) + bytes(64)), f"32 B at byte {1 << 40}, of"),
    "an offset between": (header(tensors=1, rest=tensor((8,), 0, 4) + bytes(96)), "in steps of 32"),
    "half a block": (header(tensors=1, rest=tensor((31, 2), 2) + bytes(99)), "does not consist of blocks of 32"),
    "an axis of no length": (
        header(tensors=1, rest=tensor((0, 1 << 40), 2) + bytes(99)),
        r"'t' has the shape \(1099511627776, 0\), which holds nothing",
    ),
    "twice the same": (header(tensors=2, rest=tensor((1,)) + tensor((1,)) + bytes(99)), "is there twice"),
    "shared bytes": (
        header(tensors=2, rest=tensor((16,)) + tensor((8,), 0, 32, "u") + bytes(150)),
        "share bytes",
    ),
    "a strange alignment": (
        header(entries=1, rest=text("general.alignment") + struct.pack("<II", 4, 3)),
        "general.alignment is a power of 2",
    ),
    "types that are not known": (header(tensors=1, rest=tensor((256,), 16) + bytes(99)), r"'t' \(IQ2_XXS\)"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_and_nothing_allocated(name: str, tmp_path: Path) -> None:
    content, says = HOSTILE[name]
    path = tmp_path / "hostile.gguf"
    path.write_bytes(content)
    with pytest.raises((InputError, Unsupported), match=says):
        mesh.load(path)


def test_a_file_that_is_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = (FOLDER / "llama-Q4_0.gguf").read_bytes()
    path = tmp_path / "cut.gguf"
    for size in [*range(1, 4000, 97), len(whole) // 2, len(whole) - 33]:
        path.write_bytes(whole[:size])
        with pytest.raises(InputError):
            mesh.load(path)


@pytest.mark.parametrize("seed", range(3))
def test_a_file_with_damaged_bytes_is_refused_or_loads(seed: int, tmp_path: Path) -> None:
    whole = bytearray((FOLDER / "llama-Q4_0.gguf").read_bytes())
    rng, path, refused = np.random.default_rng(seed), tmp_path / "damaged.gguf", 0
    for _ in range(40):
        changed = whole.copy()
        changed[int(rng.integers(0, 3500))] ^= 1 << int(rng.integers(0, 8))
        path.write_bytes(changed)
        try:
            mesh.load(path)
        except (InputError, Unsupported):
            refused += 1
    assert refused > 4, "most bits of the header count"


def rewritten(tmp_path: Path, old: bytes, new: bytes) -> Path:
    content = (FOLDER / "llama-Q4_0.gguf").read_bytes()
    assert old in content and len(old) == len(new)
    path = tmp_path / "changed.gguf"
    path.write_bytes(content.replace(old, new))
    return path


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("phi3.rope.dimension_count", "x", "rope.dimension_count is an integer below 16, got 'x'"),
        ("phi3.attention.key_length", "x", "head_dim is a positive integer, got 'x'"),
        ("phi3.attention.key_length", 10**9, f"4 heads of {10**9} are more than any weight"),
        ("phi3.block_count", 10**9, f"num_hidden_layers = {10**9}, and the files have"),
    ],
)
def test_metadata_of_the_wrong_kind_is_named(
    key: str, value: Any, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path / "own.gguf", "phi3", "Q8_0")
    whole = read(tmp_path / "own.gguf")
    monkeypatch.setattr(
        "mesh.importers.gguf.read", lambda path: replace(whole, metadata={**whole.metadata, key: value})
    )
    with pytest.raises(InputError, match=says):
        mesh.load(tmp_path / "own.gguf")


def test_what_is_not_known_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=r"of the architecture 'mamba'.*Known: bert, gemma"):
        mesh.load(rewritten(tmp_path, text("general.architecture") + struct.pack("<I", 8) + text("llama"),
                            text("general.architecture") + struct.pack("<I", 8) + text("mamba")))  # fmt: skip
    with pytest.raises(Unsupported, match=r"metadata that are not known.*llama.context_lengtx = 64"):
        mesh.load(rewritten(tmp_path, b"llama.context_length", b"llama.context_lengtx"))
    with pytest.raises(
        Unsupported, match=r"tensors that a model of its architecture does not have \(1\): blk.1.ffn_dowx"
    ):
        mesh.load(rewritten(tmp_path, b"blk.1.ffn_down", b"blk.1.ffn_dowx"))
    with pytest.raises(InputError, match="does not exist"):
        mesh.load(tmp_path / "missing.gguf")
