"""Each key of each family's config.json changed alone: the same values as transformers, or an error that names the key.

tests/golden/make_huggingface_sweep.py has written down what transformers computes; the last test asks it anew, where it
is installed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cases import huggingface_cases
from support.cases.huggingface_cases import BASES, MAIN, Case
from support.rounding import RECORDED as ROUNDINGS
from support.rounding import allowed_of_model

import mesh
from mesh.errors import InputError, Unsupported
from mesh.importers.huggingface import KINDS
from mesh.importers.huggingface.config import Config
from mesh.importers.huggingface.keys import Only, Same, Used
from mesh.importers.huggingface.weights import load_weights

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "huggingface_sweep"
RECORDED = json.loads(GOLDEN.with_suffix(".json").read_text())
ARRAYS = np.load(GOLDEN.with_suffix(".npz"))
# Errors of the largest value: numpy and torch add float32 in another order.  The most seen is 2e-6; what is further off
# on some machine may be so by rounding alone (support/rounding.py, which takes too long for all of them).
CLOSE = 1e-5
# In narrow floats every step rounds, and no two libraries at the same place: what is compared is how far each is from
# float32.  With bodies that rounded at every step it was up to 2.7 times as far as torch; it is 1.6 times at most.
# Of a few numbers alone that says little, and these may be off by 25 roundings to 8 and 11 bits.
NARROW = {"bfloat16": 25 * 2**-8, "float16": 25 * 2**-11}
AS_GOOD, MANY = 1.8, 100
FEWER = (  # told of weights that are there
    ("qkv_bias", False), ("attention_bias", False), ("enable_bias", False), ("do_layer_norm_before", False),
    ("_remove_final_layer_norm", True),
)  # fmt: skip
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
ROPES = ("dynamic",)
ACTIVATIONS = ("laplace",)
REFUSED: dict[str, tuple[str, ...]] = {  # values of keys that are used, which transformers knows and we do not
    "rope_parameters": ROPES, "rope_scaling": ROPES, "hidden_act": ACTIVATIONS, "hidden_activation": ACTIVATIONS,
    "activation": ACTIVATIONS,
    "activation_function": ACTIVATIONS, "pooler_act": ACTIVATIONS, "feed_forward_proj": ACTIVATIONS,
}  # fmt: skip


@cache
def array(number: int) -> np.ndarray:
    return np.asarray(ARRAYS[f"arr_{number}"])


def kinds_of_keys(model_type: str) -> dict[str, str]:
    return {key: type(row).__name__.lower() for key, row in KINDS[model_type].keys.items()}


def recorded(model_type: str) -> list[tuple[Case, dict[str, Any]]]:
    found = huggingface_cases.cases(model_type, kinds_of_keys(model_type))
    return [(case, RECORDED["cases"][str(case)]) for case in found if str(case) in RECORDED["cases"]]


def outputs_of(model: Any, given: dict[str, Any]) -> dict[str, np.ndarray]:
    found = model(given)
    found = found if isinstance(found, dict) else {model.outputs[0]: found}
    return {name: np.asarray(each).astype(np.float32) for name, each in found.items()}


def root(error: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(error))))


def difference(case: Case, model: mesh.Model, name: str, found: np.ndarray, wanted: np.ndarray) -> str:
    """ "" if these are the same output, else how they differ."""
    largest = float(np.abs(wanted).max())
    if found.shape != wanted.shape:
        return f"{name} is {found.shape}, and of transformers {wanted.shape}"
    if not np.isfinite(found).all():  # of transformers all are, and NaN is above no bound
        return f"{name} has NaN or infinity"
    if case.key not in ("dtype", "torch_dtype") or case.value == "float32":
        off = float(np.abs(found - wanted).max()) / largest
        if off <= CLOSE:
            return ""
        allowed = allowed_of_model(model, huggingface_cases.inputs(case.settings), ROUNDINGS["huggingface"])
        return f"{name} is off by {off:.1e} of its maximum" if np.any(np.abs(found - wanted) > allowed[name]) else ""
    base = RECORDED["cases"][str(Case(case.model_type, case.architecture))]["found"]
    exact = array(base[name])
    if wanted.size >= MANY:
        ours, theirs = root(found - exact), root(wanted - exact)
        return f"{name} is {ours / theirs:.2f} times as far from float32 as torch" if ours > AS_GOOD * theirs else ""
    off = float(np.abs(found - exact).max()) / largest
    return f"{name} is off by {off:.1e} of its maximum" if off > NARROW[case.value] else ""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_an_output_with_nan_is_not_the_same(dtype: str, tmp_path: Path) -> None:
    case, row = next((case, row) for case, row in recorded("gpt2") if not case.key)
    shapes = {name: tuple(shape) for name, shape in RECORDED["shapes"][row["shapes"]].items()}
    model = mesh.load(huggingface_cases.write(case, shapes, tmp_path))
    name, number = next(iter(row["found"].items()))
    wanted = array(number)
    found = np.where(wanted == wanted.max(), np.nan, wanted)
    narrow = Case("gpt2", case.architecture, "dtype", dtype)
    assert not difference(narrow, model, name, wanted, wanted)
    assert difference(narrow, model, name, found, wanted) == f"{name} has NaN or infinity"


def verdict(case: Case, folder: Path, wanted: dict[str, np.ndarray] | str) -> str:
    """ "" if all is well, else what is not."""
    try:
        model = mesh.load(folder)
        found = outputs_of(model, huggingface_cases.inputs(case.settings))
    except (InputError, Unsupported) as error:
        return f"refused: {error}"
    if isinstance(wanted, str):
        return f"transformers refuses it ({wanted}), and it gives {', '.join(found)}"
    missing = wanted.keys() - found.keys()
    if missing:
        return f"it does not give {missing}"
    return "; ".join(filter(None, (difference(case, model, name, found[name], each) for name, each in wanted.items())))


def must_be_refused(case: Case) -> str:
    """What an error has to name where transformers computes something and we do not, "" where both have to agree."""
    row = KINDS[case.model_type].keys.get(case.key)
    if case.key and not case.absent and case.value is not None and (row is None or isinstance(row, Only)):
        return case.key
    if case.key == "architectures":
        return "NoSuchClass"
    if (case.model_type, case.key, case.value) == ("t5", "dtype", "float16"):
        return case.key
    fewer = (case.key in LAYERS and case.value == 1) or (case.key, case.value) in FEWER
    if fewer and not case.made:
        return "weights that a model of these settings does not read"
    if case.model_type == "gemma3_text" and case.key == "rope_scaling" and "rope_type" not in (case.value or ()):
        return "rope_scaling.type"  # transformers reads the other name alone
    kind = case.value.get("rope_type") if isinstance(case.value, dict) else case.value
    return case.key if kind in REFUSED.get(case.key, ()) else ""


def again(case: Case) -> bool:
    """Whether it is XLM-RoBERTa with a key that RoBERTa's own row has tried: they are one family but for defaults."""
    return case.model_type == "xlm-roberta" and case.key not in ("", "vocab_size", "pad_token_id", "hidden_act")


def code_of(model_type: str) -> str:
    """The module that makes models of this type."""
    make = KINDS[model_type].make
    return str(getattr(make, "func", make).__module__)


@cache
def tried_before() -> frozenset[str]:
    """The cases whose change an earlier family has, which the same code makes: all decoders are of one file, say."""
    seen, before = set(), set()
    for model_type in BASES:
        for case, _ in recorded(model_type):
            change = code_of(model_type), case.key, json.dumps(case.value), case.made, case.absent
            if case.key and change in seen:
                before.add(f"{model_type} {case}")
            seen.add(change)
    return frozenset(before)


@pytest.mark.parametrize("model_type", BASES)
def test_a_changed_key_gives_what_transformers_gives_or_is_refused_by_name(model_type: str, tmp_path: Path) -> None:
    check_changes(model_type, tmp_path, lambda case: f"{model_type} {case}" not in tried_before())


@pytest.mark.long
@pytest.mark.parametrize("model_type", BASES)
def test_a_key_that_an_earlier_family_changed_does_the_same_in_each(model_type: str, tmp_path: Path) -> None:
    check_changes(model_type, tmp_path, lambda case: f"{model_type} {case}" in tried_before())


def check_changes(model_type: str, tmp_path: Path, chosen: Callable[[Case], bool]) -> None:
    wrong = []
    for place, (case, row) in enumerate(recorded(model_type)):
        if not chosen(case):
            continue
        found = row["found"]
        if isinstance(KINDS[model_type].keys.get(case.key), Same):
            base = RECORDED["cases"][str(Case(case.model_type, case.architecture))]
            if found != base["found"] and not isinstance(found, str):
                wrong.append(f"{case}: transformers gives other values")
            continue
        if again(case):
            continue
        shapes = {name: tuple(shape) for name, shape in RECORDED["shapes"][row["shapes"]].items()}
        folder = huggingface_cases.write(case, shapes, tmp_path / str(place))
        wanted = found if isinstance(found, str) else {name: array(number) for name, number in found.items()}
        said, named = verdict(case, folder, wanted), must_be_refused(case)
        if named and not (said.startswith("refused: ") and named in said):
            wrong.append(f"{case}: {said or 'it is computed'}, and must be refused naming {named}")
        elif said and not named and not (said.startswith("refused: ") and isinstance(wanted, str)):
            wrong.append(f"{case}: {said}")
    assert not wrong, f"{len(wrong)} wrong:\n" + "\n".join(wrong)


@pytest.mark.parametrize("model_type", BASES)
def test_every_key_of_transformers_is_known_and_has_its_default(model_type: str) -> None:
    keys, defaults = KINDS[model_type].keys, RECORDED["defaults"][model_type]
    assert defaults.keys() <= keys.keys()
    for key, default in defaults.items():
        row = keys[key]
        if isinstance(row, Used):
            assert row.default == default, key
        if isinstance(row, Only):
            assert row.allowed[0] == default, key


@pytest.mark.parametrize("model_type", BASES)
def test_every_key_that_a_table_calls_used_is_read(model_type: str, tmp_path: Path) -> None:
    """A key that nothing reads would be a key that is ignored."""
    read: set[str] = set()

    for place, (case, row) in enumerate(recorded(model_type)):
        if not case.key and not isinstance(row["found"], str):
            shapes = {name: tuple(shape) for name, shape in RECORDED["shapes"][row["shapes"]].items()}
            folder = huggingface_cases.write(case, shapes, tmp_path / str(place))
            config = Config(case.settings, KINDS[model_type].keys, folder / "config.json")
            weights = load_weights(folder)
            KINDS[model_type].make(config, weights)
            assert config.architecture and config.dtype is None
            read |= config.read
    used = {key for key, row in KINDS[model_type].keys.items() if isinstance(row, Used)}
    assert used - read <= BY_LOAD | {"num_labels", "id2label"}


BY_LOAD = {"model_type", "eos_token_id"}  # what every model is asked for, in `load`


@pytest.mark.parametrize("model_type", sorted(BASES.keys() - {"xlm-roberta"}))
def test_no_param_is_dead(model_type: str, tmp_path: Path) -> None:
    """Each param that a model has changes an output of it: none is a second copy of one that is live."""
    for place, (case, row) in enumerate(recorded(model_type)):
        if case.architecture != MAIN[model_type] or case.key not in ("", "tie_word_embeddings") or case.absent:
            continue
        shapes = {name: tuple(shape) for name, shape in RECORDED["shapes"][row["shapes"]].items()}
        if isinstance(row["found"], str):
            continue
        model = mesh.load(huggingface_cases.write(case, shapes, tmp_path / str(place)))
        given = huggingface_cases.inputs(case.settings)

        def total(params: Any, model: mesh.Model = model, given: Any = given) -> Any:
            found = model.apply(params, given)
            found = found if isinstance(found, dict) else {"": found}
            return sum((each * mesh.numpy.sin(each)).sum() for each in found.values())

        slopes = mesh.grad(total)(dict(model.params))
        mesh.realise(list(slopes.values()))  # by one graph: each alone would compute the model again
        dead = [name for name, slope in slopes.items() if not np.abs(np.asarray(slope)).max() > 1e-4]
        assert not [name for name in dead if not name.endswith(("key.bias", "k_proj.bias", "k_lin.bias"))], case


@pytest.mark.long
@pytest.mark.parametrize("model_type", BASES)
def test_transformers_itself_says_the_same(model_type: str, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    from support.cases import huggingface_reference

    for place, case in enumerate(huggingface_cases.cases(model_type, kinds_of_keys(model_type))):
        shapes = huggingface_reference.shapes_of(case)
        if shapes is None:
            continue
        folder = huggingface_cases.write(case, shapes, tmp_path / str(place))
        wanted = huggingface_reference.outputs_of(folder, case)
        said, named = verdict(case, folder, wanted), must_be_refused(case)
        if named:
            assert said.startswith("refused: ") and named in said, case
        elif isinstance(KINDS[model_type].keys.get(case.key), Same):
            assert not said, f"{case}: {said}"
        else:
            assert not said or (said.startswith("refused: ") and isinstance(wanted, str)), f"{case}: {said}"
