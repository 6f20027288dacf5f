"""Folders of every family equal what transformers computes (tests/golden/make_huggingface_reference.py)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mesh
from mesh.errors import InputError, Unsupported
from mesh.importers.huggingface import FAMILIES

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
    for key, array in wanted.items():
        np.testing.assert_allclose(np.asarray(found[key]), array, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "vit"])
def test_without_a_mask_every_token_counts(name: str) -> None:
    model, ids = mesh.load(GOLDEN / name), np.arange(3, 11, dtype=np.int32)[None]
    bare, masked = outputs_of(model, {"input_ids": ids}), outputs_of(
        model, {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    )  # fmt: skip
    for key in bare:
        np.testing.assert_allclose(np.asarray(bare[key]), np.asarray(masked[key]), rtol=1e-5, atol=1e-5)


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


def test_a_weight_that_is_missing_is_named(folder: Path) -> None:
    with pytest.raises(InputError, match=r"the files have no weight 'model.layers.2.input_layernorm.weight'"):
        mesh.load(changed(folder, num_hidden_layers=3))(np.zeros((1, 4), np.int32))
