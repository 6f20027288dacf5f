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
from mesh.importers.huggingface import KINDS
from mesh.importers.huggingface.config import DTYPES
from mesh.importers.huggingface.weights import Weights
from mesh.models.safetensors import load_safetensors, save_safetensors

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "huggingface"
NAMES = sorted(folder.name for folder in GOLDEN.iterdir() if folder.is_dir())
OUTPUTS = (
    "last_hidden_state", "pooler_output", "logits", "logits_per_image", "logits_per_text", "text_embeds",
    "image_embeds",
)  # fmt: skip
WITHOUT_IDS = {"vit", "whisper", "clip", "clip-image"}


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


@pytest.mark.parametrize("name", [name for name in NAMES if name not in WITHOUT_IDS])
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
    assert kinds == KINDS.keys() - {"xlm-roberta"}  # which is RoBERTa by another name


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
        ({"model_type": "hyena"}, r"of the type 'hyena'\. Known: bert, "),
        ({"model_type": "mamba"}, r"of the type 'mamba' \(missing: state-space layers\)\. Known: bert, "),
        ({"hidden_act": "snake"}, "hidden_act = 'snake' is not supported"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4}}, "rope_type = 'dynamic' is not supported"),
    ],
)
def test_what_is_not_known_is_named(folder: Path, settings: Any, says: str) -> None:
    with pytest.raises(Unsupported, match=says):
        mesh.load(changed(folder, **settings))


TURNED = {"rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 16}
LLAMA3 = {**TURNED, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 1.0}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"rope_parameters": {**TURNED, "rope_type": "yarn", "rope_theta": 1.0}}, "rope_theta is a number above 1"),
        ({"rope_parameters": LLAMA3}, "low_freq_factor = 1.0 is not below high_freq_factor = 1.0"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps is a finite number, got 1000"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is a finite number, got nan"),
        ({"num_hidden_layers": 10**9}, f"num_hidden_layers = {10**9}, and the files have 21 weights"),
        ({"head_dim": 10**9}, f"4 heads of {10**9} are more than any weight in the files has"),
        ({"max_position_embeddings": 10**400}, "is a positive integer, and 2147483647 at most, got 1000"),
        (
            {"rope_parameters": {**TURNED, "rope_type": "yarn", "beta_fast": 1e308}},
            "no positions follow from rope_para",
        ),
        ({"quantization_config": "gptq"}, "quantization_config is an object, got 'gptq'"),
    ],
)
def test_a_setting_that_nothing_can_be_computed_by_is_named(folder: Path, settings: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        mesh.load(changed(folder, **settings))


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("t5", {"dense_act_fn": []}, r"dense_act_fn = \[\] is not supported"),
        ("t5", {"relative_attention_max_distance": 2}, "is no more than a quarter of it"),
        ("qwen3-moe", {"num_local_experts": float("nan")}, "num_experts is a positive integer, got nan"),
    ],
)
def test_so_is_one_of_other_families(tmp_path: Path, name: str, settings: Any, says: str) -> None:
    with pytest.raises((InputError, Unsupported), match=says):
        mesh.load(changed(Path(shutil.copytree(GOLDEN / name, tmp_path / "model")), **settings))


def test_texts_of_one_token_have_no_longer_ones_to_turn(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(GOLDEN / "phi3-long", tmp_path / "model"))
    with pytest.raises(InputError, match="original_max_position_embeddings is a number above 1, got 1"):
        mesh.load(changed(folder, original_max_position_embeddings=1))


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


@pytest.mark.parametrize(("name", "head"), [("gpt2", "score"), ("bert-classifier", "span"), ("vit", "decoder")])
def test_a_head_that_is_not_known_is_refused_and_not_left_away(tmp_path: Path, name: str, head: str) -> None:
    folder = Path(shutil.copytree(GOLDEN / name, tmp_path / "model"))
    with pytest.raises(Unsupported, match=rf"does not read \(1\): {head}.weight"):
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
    with pytest.raises(
        InputError, match=r"model.embed_tokens.weight is \[50, 32\] in the files, and \[.*, hidden_size = 320\]"
    ):
        mesh.load(changed(folder, hidden_size=320))
    with pytest.raises(InputError, match=r"has a quantization_config, and the files .* have no weight \*\.qweight"):
        mesh.load(changed(folder, hidden_size=None, quantization_config={"quant_method": "gptq"}))
    with pytest.raises(Unsupported, match="quantization_config has the method 'other'"):
        mesh.load(changed(folder, hidden_size=None, quantization_config={"quant_method": "other"}))


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
    with pytest.raises(InputError, match="'input_ids' has 1099511627776, which i32 cannot hold"):
        model(np.array([[1 << 40]]))


@pytest.mark.parametrize("name", ["vit", "clip-image"])
def test_of_no_images_there_are_no_rows(name: str) -> None:
    model, pixels = mesh.load(GOLDEN / name), np.load(GOLDEN / name / "reference.npz")["pixel_values"]
    found = outputs_of(model, {"pixel_values": pixels[:0]})
    assert {array.shape[0] for array in found.values()} == {0}


def test_a_weight_that_is_missing_is_named(folder: Path) -> None:
    with pytest.raises(InputError, match=r"the files have no weight 'model.layers.2.input_layernorm.weight'"):
        mesh.load(changed(folder, num_hidden_layers=3))(np.zeros((1, 4), np.int32))


# -- every tensor is used, known to be no weight, or refused


def renamed(folder: Path, names: dict[str, str]) -> Path:
    file = folder / "model.safetensors"
    weights = {name: np.array(array) for name, array in load_safetensors(file, mmap=False).items()}
    for old, new in names.items():
        weights = {name.replace(old, new): array for name, array in weights.items()}
    save_safetensors(weights, file)
    return folder


def copied(name: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / name, tmp_path / "model"))


def test_names_that_tensorflow_gave_are_those_of_today(tmp_path: Path) -> None:
    folder = renamed(
        copied("bert-masked-lm", tmp_path), {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    )
    ids = np.arange(3, 11, dtype=np.int32)[None]
    old, new = mesh.load(folder), mesh.load(GOLDEN / "bert-masked-lm")
    assert old.params.keys() == new.params.keys()
    assert np.array_equal(np.asarray(old(ids)["logits"]), np.asarray(new(ids)["logits"]))


@pytest.mark.parametrize(
    ("name", "tensor", "shape"),
    [
        ("bert", "embeddings__position_ids", (1, 32)),
        ("distilbert", "distilbert__embeddings__position_ids", (1, 32)),
        ("gpt2", "transformer__h__0__attn__bias", (1, 1, 32, 32)),
        ("gpt2", "transformer__h__1__attn__masked_bias", ()),
        ("mistral", "model__layers__0__self_attn__rotary_emb__inv_freq", (4,)),
    ],
)
def test_tensors_of_old_files_that_are_no_weights_are_no_params(
    tmp_path: Path, name: str, tensor: str, shape: tuple[int, ...]
) -> None:
    model = mesh.load(with_weights(copied(name, tmp_path), **{tensor: np.ones(shape, np.float32)}))
    assert model.params.keys() == mesh.load(GOLDEN / name).params.keys()


def test_what_the_settings_tie_is_one_param_and_two_that_differ_are_two(tmp_path: Path) -> None:
    ids, table = np.arange(1, 5, dtype=np.int32)[None], "model.embed_tokens.weight"
    folder, tied = copied("llama3", tmp_path), mesh.load(GOLDEN / "llama3")
    same = mesh.load(with_weights(folder, lm_head__weight=tied.params[table]))
    assert same.params.keys() == tied.params.keys() and "lm_head.weight" not in same.params
    other = mesh.load(with_weights(folder, lm_head__weight=2 * tied.params[table]))
    np.testing.assert_allclose(np.asarray(other(ids)), 2 * np.asarray(tied(ids)), rtol=1e-5, atol=1e-5)
    alone = mesh.load(renamed(copied("llama3", tmp_path / "alone"), {table: "lm_head.weight"}))
    assert np.array_equal(np.asarray(alone(ids)), np.asarray(tied(ids)))
    with pytest.raises(InputError, match=r"the files have no weight 'lm_head.weight', which config.json asks for"):
        mesh.load(changed(copied("llama3", tmp_path / "untied"), tie_word_embeddings=False))


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("llama3", {"architectures": ["LlamaForQuestionAnswering"]}, r"Known: LlamaModel, LlamaForCausalLM"),
        ("t5", {"architectures": ["T5ForTokenClassification"]}, r"Known: T5EncoderModel, T5Model, T5For"),
        (
            "bert",
            {"architectures": ["BertForMaskedLM"]},
            r"'cls.predictions.transform.dense.weight'.*BertModel",
        ),
        ("bert", {"architectures": "BertModel"}, r"architectures is a list of names, got 'BertModel'"),
        (
            "bert",
            {"alibi_slope": 2, "twist": 1},
            r"not known for a 'bert' model.*alibi_slope = 2, twist = 1\. Remo",
        ),
        ("bert", {"model_type": ["bert"]}, r"of the type \['bert'\]"),
        ("bert", {"num_attention_heads": 5}, r"hidden_size = 32 is no multiple of num_attention_heads = 5"),
        ("bert", {"id2label": 3}, r"id2label is a name by number, got 3"),
        ("gpt2", {"scale_attn_weights": 1}, r"scale_attn_weights is true or false, got 1"),
        ("llama3", {"num_key_value_heads": 3}, r"num_attention_heads = 4 is no multiple of num_key_value_heads = 3"),
        ("llama3", {"rope_parameters": {"rope_type": "linear", "factor": 0}}, r"rope_parameters.factor is a positive"),
        ("llama3", {"rope_parameters": {"mrope_section": [1]}}, r"rope_parameters.mrope_section = \[1\] is not supp"),
        ("llama3", {"rope_scaling": "linear"}, r"rope_scaling is an object, got 'linear'"),
        ("llama3", {"dtype": "float8_e4m3fn"}, r"dtype = 'float8_e4m3fn' is not supported"),
        (
            "llama3",
            {"attention_bias": True},
            r"no weight 'model.layers.0.self_attn.q_proj.bias', which config",
        ),
        ("vit", {"patch_size": 9}, r"patch_size = 9 is more than 8"),
        ("vit", {"image_size": [8]}, r"image_size is a positive integer, or a list of two, got \[8\]"),
        ("t5", {"feed_forward_proj": 3}, r"feed_forward_proj = 3 is not supported"),
    ],
)
def test_what_cannot_be_is_named_with_what_to_do(
    tmp_path: Path, name: str, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises((InputError, Unsupported), match=says):
        mesh.load(changed(copied(name, tmp_path), **settings))


def test_a_bias_that_the_settings_deny_is_refused_by_its_name(tmp_path: Path) -> None:
    folder = copied("mistral", tmp_path)
    with pytest.raises(Unsupported, match=r"does not read \(1\): model.layers.0.self_attn.q_proj.bias"):
        mesh.load(with_weights(folder, model__layers__0__self_attn__q_proj__bias=np.ones(32, np.float32)))


def test_a_classifier_of_tokens_with_a_pooler_is_no_classifier_of_sequences(tmp_path: Path) -> None:
    """Files of older versions hold both."""
    folder, ids = copied("bert-classifier", tmp_path), np.arange(3, 11, dtype=np.int32)[None]
    assert mesh.load(folder)(ids)["logits"].shape == (1, 3)
    assert mesh.load(changed(folder, architectures=["BertForTokenClassification"]))(ids)["logits"].shape == (1, 8, 3)


def test_weights_of_several_dtypes_are_cast_as_config_says(tmp_path: Path) -> None:
    folder, norm = copied("mistral", tmp_path), "model.norm.weight"
    wide = mesh.load(GOLDEN / "mistral").params[norm]
    mixed = with_weights(folder, **{norm.replace(".", "__"): wide.astype(np.float16)})
    assert mesh.load(mixed).params[norm].dtype == np.float32
    with pytest.raises(InputError, match=r"are of several dtypes: f16, f32.*\"dtype\": \"float32\""):
        mesh.load(changed(mixed, dtype=None))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rms_norms_of_narrow_floats_are_those_of_transformers(dtype: str) -> None:
    """Normed in float32 and rounded, then scaled, as LlamaRMSNorm does."""
    narrow = DTYPES[dtype].numpy
    rng = np.random.default_rng(5)
    x, scale = (rng.normal(size=shape).astype(np.float32).astype(narrow) for shape in ((4, 96), (96,)))
    found = Weights({"n.weight": mesh.numpy.asarray(scale)}, {}).rms_norm("n", mesh.numpy.asarray(x), 1e-6)
    high = x.astype(np.float32)
    normed = (high / np.sqrt(np.mean(high * high, axis=-1, keepdims=True) + np.float32(1e-6))).astype(narrow)
    off = np.asarray(found).astype(np.float32) != (normed * scale).astype(np.float32)
    assert off.mean() < 0.02, "one in a hundred may lie at a border, where the order of a sum counts"


def test_an_expert_that_no_token_asks_for_is_not_computed(tmp_path: Path) -> None:
    folder, ids = copied("mixtral", tmp_path), np.array([[7]], np.int32)
    wanted = np.asarray(mesh.load(folder)(ids))
    weights = {name: np.array(array) for name, array in load_safetensors(folder / "model.safetensors").items()}
    unused = 0
    for number in range(4):
        poisoned = {
            name: np.full_like(array, np.nan) if f"layers.0.block_sparse_moe.experts.{number}." in name else array
            for name, array in weights.items()
        }
        save_safetensors(poisoned, folder / "model.safetensors")
        found = np.asarray(mesh.load(folder)(ids))
        unused += np.array_equal(found, wanted)
    assert unused == 2, "two of four experts are chosen for the one token"


@pytest.mark.parametrize("old", ["su", "yarn"])
def test_long_factors_by_their_older_names_are_the_same(tmp_path: Path, old: str) -> None:
    folder, ids = copied("phi3-longer", tmp_path), np.arange(3, 17, dtype=np.int32)[None]
    rope = json.loads((folder / "config.json").read_text())["rope_parameters"]
    changed(folder, rope_parameters={**rope, "rope_type": old})
    assert np.array_equal(np.asarray(mesh.load(folder)(ids)), np.asarray(mesh.load(GOLDEN / "phi3-longer")(ids)))
    assert mesh.load(folder).text.decoder.positions_max == 10, "longer texts turn keys that are kept in another way"


def test_two_names_of_one_setting_that_differ_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="num_experts = 4 and num_local_experts = 5 are one"):
        mesh.load(changed(copied("qwen3-moe", tmp_path), num_experts=4))
