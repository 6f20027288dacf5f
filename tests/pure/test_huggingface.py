"""Folders of every family equal what transformers computes (tests/golden/make_huggingface_reference.py)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.rounding import RECORDED, allowed_of_model, assert_rounds_alike

import mesh
from mesh.errors import InputError, Unsupported
from mesh.importers.huggingface import FAMILIES
from mesh.safetensors import load_safetensors, save_safetensors

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "huggingface"
NAMES = sorted(folder.name for folder in GOLDEN.iterdir() if folder.is_dir())
OUTPUTS = ("last_hidden_state", "pooler_output", "logits")


def outputs_of(model: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    found = model(inputs)
    return found if isinstance(found, dict) else {model.outputs[0]: found}


@pytest.mark.parametrize("name", NAMES)
def test_a_model_equals_transformers(name: str) -> None:
    reference = dict(np.load(GOLDEN / name / "reference.npz"))
    wanted = {key: reference.pop(key) for key in OUTPUTS if key in reference}
    model = mesh.load(GOLDEN / name)
    found = outputs_of(model, reference)
    assert wanted and wanted.keys() <= found.keys()
    bounds = allowed_of_model(model, reference, RECORDED["huggingface"])
    for key, array in wanted.items():
        assert_rounds_alike(found[key], array, bounds[key], key)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "vit"])
def test_without_a_mask_every_token_counts(name: str) -> None:
    model, ids = mesh.load(GOLDEN / name), np.arange(3, 11, dtype=np.int32)[None]
    bare, masked = outputs_of(model, {"input_ids": ids}), outputs_of(
        model, {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    )  # fmt: skip
    bounds = allowed_of_model(model, {"input_ids": ids}, RECORDED["huggingface"])
    for key in bare:
        assert_rounds_alike(bare[key], masked[key], bounds[key], key)


def test_every_family_is_there_with_a_reference() -> None:
    kinds = {json.loads((GOLDEN / name / "config.json").read_text())["model_type"] for name in NAMES}
    assert kinds == FAMILIES.keys() - {"xlm-roberta"}  # which is RoBERTa by another name


def test_weights_stay_mapped_and_are_params() -> None:
    model = mesh.load(GOLDEN / "bert-masked-lm", dims={"batch": 1, "length": 7})
    assert [str(spec) for spec in model.inputs] == ["i32[1,7]"] * 3
    graph = model.graph(model.given((np.zeros((1, 7), np.int32),)))
    assert set(graph.param_types) <= set(model.params)
    assert not graph.blobs, "no weight is a constant"
    assert all(isinstance(array.base, np.ndarray) and not array.flags.owndata for array in model.params.values())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / "llama", tmp_path / "model"))


def changed(folder: Path, **settings: Any) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))
    return folder


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"model_type": "mamba"}, r"of the type 'mamba'\. Known: bert, "),
        ({"hidden_act": "snake"}, "hidden_act = 'snake' is not supported"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_type = 'yarn' is not supported"),
    ],
)
def test_what_is_not_known_is_named(folder: Path, settings: Any, says: str) -> None:
    with pytest.raises(Unsupported, match=says):
        mesh.load(changed(folder, **settings))


def test_what_is_damaged_is_named(folder: Path) -> None:
    with pytest.raises(InputError, match="num_hidden_layers is a positive integer, got 'two'"):
        mesh.load(changed(folder, num_hidden_layers="two"))
    (folder / "model-00002-of-00004.safetensors").unlink()
    with pytest.raises(InputError, match=r"model-00002-of-00004.safetensors does not exist"):
        mesh.load(folder)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../secret.safetensors"}}))
    with pytest.raises(InputError, match="which is not a file beside it"):
        mesh.load(folder)
    index.write_text("{")
    with pytest.raises(InputError, match="cannot be read as JSON"):
        mesh.load(folder)
    index.unlink()
    with pytest.raises(InputError, match="save_pretrained"):
        mesh.load(folder)
    (folder / "config.json").unlink()
    with pytest.raises(InputError):
        mesh.load(folder)


def with_weights(folder: Path, **more: np.ndarray) -> Path:
    """The folder with these weights beside its own; `__` in their names is a dot."""
    file = folder / "model.safetensors"
    weights = {name: np.array(array) for name, array in load_safetensors(file, mmap=False).items()}
    save_safetensors({**weights, **{name.replace("__", "."): array for name, array in more.items()}}, file)
    return folder


@pytest.mark.parametrize(("name", "head"), [("gpt2", "score"), ("bert-classifier", "qa_outputs"), ("vit", "decoder")])
def test_a_head_that_is_not_known_is_refused_and_not_left_away(tmp_path: Path, name: str, head: str) -> None:
    folder = Path(shutil.copytree(GOLDEN / name, tmp_path / "model"))
    with pytest.raises(Unsupported, match=f"has a head that is not known: {head}.weight"):
        mesh.load(with_weights(folder, **{f"{head}__weight": np.ones((2, 2), np.float32)}))


def test_a_language_model_saved_without_its_prefix_gives_logits_all_the_same(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(GOLDEN / "gpt2", tmp_path / "model"))
    weights = load_safetensors(GOLDEN / "gpt2" / "model.safetensors")
    save_safetensors(
        {name.removeprefix("transformer."): array for name, array in weights.items()}, folder / "model.safetensors"
    )
    ids = np.arange(1, 5, dtype=np.int32)[None]
    bare, whole = mesh.load(folder), mesh.load(GOLDEN / "gpt2")
    assert bare.outputs == ("logits",) and np.array_equal(np.asarray(bare(ids)), np.asarray(whole(ids)))
    assert mesh.load(changed(folder, architectures=["GPT2Model"])).outputs == ("last_hidden_state",)


def test_settings_that_the_weights_contradict_are_named(folder: Path) -> None:
    with pytest.raises(InputError, match=r"hidden_size = 320, but model.embed_tokens.weight is \["):
        mesh.load(changed(folder, hidden_size=320))
    with pytest.raises(Unsupported, match="quantization_config"):
        mesh.load(changed(folder, hidden_size=None, quantization_config={"quant_method": "gptq"}))


@pytest.mark.parametrize("name", ["bert", "distilbert", "gpt2", "roberta"])
def test_more_tokens_than_positions_are_refused(name: str) -> None:
    model = mesh.load(GOLDEN / name)
    with pytest.raises(InputError, match=r"the model has \d+ positions, got"):
        model(np.ones((1, 2000), np.int32))


def test_of_a_whole_t5_the_encoder_is_loaded_and_told(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(GOLDEN / "t5", tmp_path / "model"))
    with pytest.warns(UserWarning, match="only the encoder"):
        mesh.load(with_weights(folder, decoder__final_layer_norm__weight=np.ones(2, np.float32)))


def test_tokens_of_any_width_fit() -> None:
    model, ids = mesh.load(GOLDEN / "llama"), np.arange(1, 5, dtype=np.int32)[None]
    wide = np.asarray(model(ids.astype(np.int64)))
    assert np.array_equal(wide, np.asarray(model(ids)))
    with pytest.raises(InputError, match=r"is i64\[1, 1\], expected i32"):
        model(np.array([[1 << 40]]))


def test_a_weight_that_is_missing_is_named(folder: Path) -> None:
    with pytest.raises(InputError, match=r"the files have no weight 'model.layers.2.input_layernorm.weight'"):
        mesh.load(changed(folder, num_hidden_layers=3))(np.zeros((1, 4), np.int32))
