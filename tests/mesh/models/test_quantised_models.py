"""Weights that GPTQ, AWQ and mesh.quantise packed: the floats that they stand for, and as small as they are."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import mesh
from mesh.errors import InputError, Unsupported
from mesh.models.safetensors import load_safetensors, save_safetensors

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "huggingface"
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 50, "hidden_size": 64,
    "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 64, "eos_token_id": 2, "dtype": "float32",
}  # fmt: skip
SHAPES = {  # (in, out)
    "self_attn.q_proj": (64, 64), "self_attn.k_proj": (64, 32), "self_attn.v_proj": (64, 32),
    "self_attn.o_proj": (64, 64), "mlp.gate_proj": (64, 96), "mlp.up_proj": (64, 96), "mlp.down_proj": (96, 64),
}  # fmt: skip
GROUP = 32
IDS = np.random.default_rng(2).integers(3, 50, (2, 9)).astype(np.int32)
Arrays = dict[str, NDArray[Any]]
Made = tuple[Arrays, NDArray[np.float32]]
"""The tensors of a file, and the matrix (in, out) that the method's own code makes of them."""


def in_words(levels: NDArray[np.int64], bits: int, axis: int) -> NDArray[np.int32]:
    """Levels side by side along an axis in 32-bit words, the first one lowest."""
    levels = np.moveaxis(levels, axis, -1).astype(np.uint32)
    parts = levels.reshape(*levels.shape[:-1], -1, 32 // bits)
    words = np.zeros(parts.shape[:-1], np.uint32)
    for place in range(32 // bits):
        words |= parts[..., place] << np.uint32(bits * place)
    return np.ascontiguousarray(np.moveaxis(words, -1, axis)).view(np.int32)


def gptq(
    rng: np.random.Generator, inputs: int, outputs: int, bits: int = 4, one_less: int = 1, act_order: bool = False
) -> Made:
    """As AutoGPTQ's QuantLinear packs: scales * (levels - (zeros + 1)), row i of the group g_idx[i]."""
    levels = rng.integers(0, 1 << bits, (inputs, outputs))
    zeros = rng.integers(1, (1 << bits) - 1, (inputs // GROUP, outputs))
    scales = (0.05 * rng.uniform(0.5, 1, zeros.shape)).astype(np.float16)
    groups = np.arange(inputs, dtype=np.int32) // GROUP
    groups = rng.permutation(groups) if act_order else groups
    tensors = {"qweight": in_words(levels, bits, 0), "qzeros": in_words(zeros - one_less, bits, 1), "scales": scales}
    matrix = scales.astype(np.float32)[groups] * (levels - zeros[groups])
    return {**tensors, "g_idx": groups}, matrix.astype(np.float32)


def awq(rng: np.random.Generator, inputs: int, outputs: int) -> Made:
    """As AutoAWQ's WQLinear_GEMM packs: nibble i of a word holds output (0, 2, 4, 6, 1, 3, 5, 7)[i]."""
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    levels, zeros = rng.integers(0, 16, (inputs, outputs)), rng.integers(0, 16, (inputs // GROUP, outputs))
    scales = (0.05 * rng.uniform(0.5, 1, zeros.shape)).astype(np.float16)
    packed = [
        in_words(each.reshape(len(each), -1, 8)[..., order].reshape(len(each), -1), 4, 1) for each in (levels, zeros)
    ]
    matrix = np.repeat(scales.astype(np.float32), GROUP, axis=0) * (levels - np.repeat(zeros, GROUP, axis=0))
    return {"qweight": packed[0], "qzeros": packed[1], "scales": scales}, matrix.astype(np.float32)


def folders(tmp_path: Path, method: Callable[..., Made], config: dict[str, Any], **how: Any) -> tuple[Path, Path]:
    """A folder whose matrices are packed, and one with the floats that they stand for."""
    rng = np.random.default_rng(5)
    shared: Arrays = {
        "model.embed_tokens.weight": rng.standard_normal((50, 64)).astype(np.float32),
        "lm_head.weight": rng.standard_normal((50, 64)).astype(np.float32),
        "model.norm.weight": np.ones(64, np.float32),
    }
    packed, floats = dict(shared), dict(shared)
    for number in range(2):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            packed[f"model.layers.{number}.{norm}.weight"] = np.ones(64, np.float32)
            floats[f"model.layers.{number}.{norm}.weight"] = np.ones(64, np.float32)
        for name, shape in SHAPES.items():
            tensors, matrix = method(rng, *shape, **how)
            packed |= {f"model.layers.{number}.{name}.{part}": array for part, array in tensors.items()}
            floats[f"model.layers.{number}.{name}.weight"] = np.ascontiguousarray(matrix.T)
    made = []
    for name, weights, more in (("packed", packed, {"quantization_config": config}), ("floats", floats, {})):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({**CONFIG, **more}))
        save_safetensors(weights, folder / "model.safetensors")
        made.append(folder)
    return made[0], made[1]


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}


@pytest.mark.parametrize(
    ("method", "config", "how"),
    [
        pytest.param(gptq, GPTQ, {}, id="gptq"),
        pytest.param(gptq, {**GPTQ, "bits": 8}, {"bits": 8}, id="gptq-8"),
        pytest.param(gptq, {**GPTQ, "bits": 2}, {"bits": 2}, id="gptq-2"),
        pytest.param(gptq, {**GPTQ, "desc_act": True}, {"act_order": True}, id="gptq-order"),
        pytest.param(gptq, {**GPTQ, "checkpoint_format": "gptq_v2"}, {"one_less": 0}, id="gptq-v2"),
        pytest.param(awq, AWQ, {}, id="awq"),
        pytest.param(awq, {"quant_method": "awq", "w_bit": 4, "q_group_size": GROUP}, {}, id="awq-old-names"),
    ],
)
def test_packed_weights_give_the_logits_of_the_floats(
    method: Any, config: dict[str, Any], how: dict[str, Any], tmp_path: Path
) -> None:
    packed, floats = (mesh.load(folder) for folder in folders(tmp_path, method, config, **how))
    wanted = np.asarray(floats(IDS))
    assert np.abs(np.asarray(packed(IDS)) - wanted).max() <= 1e-4 * np.abs(wanted).max()
    assert packed.generate([3, 4], max_new_tokens=6, ends=()) == floats.generate([3, 4], max_new_tokens=6, ends=())
    bits = how.get("bits", 4)
    held = sum(array.nbytes for name, array in packed.buffers.items() if not name.endswith(".order"))
    full = sum(array.nbytes for name, array in floats.params.items() if name.endswith("proj.weight"))
    assert held <= full * (bits + 1.2) / 32, "weights stay packed"


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"quant_method": "bitsandbytes"}, "has the method 'bitsandbytes'.*Known: awq, gptq"),
        ({**GPTQ, "bits": 3}, "quantization_config.bits = 3 is not supported.*Known: 4, 8, 2"),
        ({**GPTQ, "twist": 1}, "quantization_config.twist = 1 is not known"),
        ({**GPTQ, "group_size": 64}, "do not fit each other, or its group size"),
        ({**GPTQ, "group_size": "many"}, "group_size is an integer"),
        ({**GPTQ, "dynamic": {"-:lm": {}}}, "quantization_config.dynamic"),
        ({**AWQ, "version": "gemv"}, "quantization_config.version = 'gemv' is not supported"),
    ],
)
def test_what_is_not_known_is_named(config: dict[str, Any], says: str, tmp_path: Path) -> None:
    packed, _ = folders(tmp_path, gptq, config)
    with pytest.raises((InputError, Unsupported), match=says):
        mesh.load(packed)


def test_tensors_that_are_missing_or_damaged_are_named(tmp_path: Path) -> None:
    packed, _ = folders(tmp_path, gptq, GPTQ)
    file = packed / "model.safetensors"
    weights = dict(load_safetensors(file, mmap=False))
    key = "model.layers.1.mlp.up_proj"
    save_safetensors({name: array for name, array in weights.items() if name != f"{key}.scales"}, file)
    with pytest.raises(InputError, match=f"have no weight '{key}.scales'"):
        mesh.load(packed)
    save_safetensors({**weights, f"{key}.g_idx": np.zeros(64, np.int32)}, file)
    with pytest.raises(InputError, match="g_idx has groups of unlike sizes"):
        mesh.load(packed)
    save_safetensors({**weights, f"{key}.qweight": weights[f"{key}.qweight"].astype(np.int64)}, file)
    with pytest.raises(InputError, match="do not fit each other"):
        mesh.load(packed)


# -- mesh.quantise


@pytest.mark.parametrize(("to", "bits", "off"), [("int8", 8.5, 0.05), ("int4", 4.5, 0.6)])
def test_a_quantised_model_is_small_and_near(to: str, bits: float, off: float, tmp_path: Path) -> None:
    _, floats = folders(tmp_path, gptq, GPTQ)
    model = mesh.load(floats)
    small, wanted = mesh.quantise(model, to), np.asarray(model(IDS))
    wrong = np.asarray(small(IDS)) - wanted
    assert np.sqrt(np.mean(wrong**2)) < off * wanted.std()
    matrices = [name for name in model.params if name.endswith("proj.weight")]
    held = sum(array.nbytes for name, array in small.buffers.items() if "proj" in name)
    assert held == sum(model.params[name].size for name in matrices) * bits / 8
    assert not [name for name in small.params if name.endswith(("proj.weight", "lm_head.weight", "tokens.weight"))]
    assert len(small.generate([3, 4], max_new_tokens=4, ends=())) == 4


def test_weights_that_are_steps_are_kept(tmp_path: Path) -> None:
    """What is rounded already is not rounded again: levels times a step that float16 has."""
    rng = np.random.default_rng(0)
    _, floats = folders(tmp_path, gptq, GPTQ)
    weights = dict(load_safetensors(floats / "model.safetensors", mmap=False))
    for name, array in weights.items():
        if array.ndim == 2:
            levels = rng.integers(-7, 8, array.shape)
            levels[:, ::32] = -8
            weights[name] = (levels * 2.0**-6).astype(np.float32)
    tables = [name for name in weights if "embed_tokens" in name]
    for name in tables:  # of 8 bits
        levels = rng.integers(-126, 127, weights[name].shape)
        levels[:, ::32] = 127
        weights[name] = (levels * 2.0**-9).astype(np.float32)
    save_safetensors(weights, floats / "model.safetensors")
    model = mesh.load(floats)
    wanted = np.asarray(model(IDS))
    assert np.abs(np.asarray(mesh.quantise(model, "int4")(IDS)) - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_packed_weights_stay_packed_in_files(tmp_path: Path) -> None:
    _, floats = folders(tmp_path, gptq, GPTQ)
    small = mesh.quantise(mesh.load(floats), "int4")
    saved = Path(shutil.copytree(floats, tmp_path / "saved"))
    mesh.save_safetensors(small.weights, saved / "model.safetensors")
    assert (saved / "model.safetensors").stat().st_size < 0.25 * (floats / "model.safetensors").stat().st_size
    again = mesh.load(saved)
    assert again.buffers.keys() == small.buffers.keys()
    assert np.array_equal(np.asarray(again(IDS)), np.asarray(small(IDS)))


@pytest.mark.parametrize(
    "name", ["bert", "bert-masked-lm", "clip-text", "distilbert", "gpt2", "gpt-oss", "roberta", "t5", "vit", "whisper"]
)
def test_other_families_are_quantised_too(name: str) -> None:
    model = mesh.load(GOLDEN / name)
    reference = np.load(GOLDEN / name / "reference.npz")
    given = {spec.name: reference[spec.name] for spec in model.inputs if spec.name in reference}
    small = mesh.quantise(model, "int8")
    for found, wanted in zip(outputs(small, given), outputs(model, given), strict=True):
        assert np.sqrt(np.mean((found - wanted) ** 2)) < 0.1 * wanted.std()
    assert sum(array.nbytes for array in small.weights.values()) < sum(array.nbytes for array in model.weights.values())


def outputs(model: mesh.Model, given: dict[str, Any]) -> list[NDArray[Any]]:
    found = model(given)
    return [np.asarray(each) for each in (found.values() if isinstance(found, dict) else [found])]


def test_what_cannot_be_quantised_is_named(tmp_path: Path) -> None:
    _, floats = folders(tmp_path, gptq, GPTQ)
    model = mesh.load(floats)
    with pytest.raises(InputError, match="quantised to int8 or int4, not 'int3'"):
        mesh.quantise(model, "int3")
    with pytest.raises(InputError, match="no matrix whose inputs are a multiple of 32"):
        mesh.quantise(mesh.quantise(model, "int8"), "int8")
    broken = model.trained({**model.params, "lm_head.weight": np.full((50, 64), np.inf, np.float32)})
    with pytest.raises(InputError, match=r"lm_head.weight has weights that are infinite"):
        mesh.quantise(broken, "int8")
    large = model.trained({**model.params, "lm_head.weight": np.full((50, 64), 1e9, np.float32)})
    with pytest.raises(InputError, match=r"whose steps float16 can't hold"):
        mesh.quantise(large, "int8")
