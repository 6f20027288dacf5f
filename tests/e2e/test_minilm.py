"""all-MiniLM-L6-v2 against its reference embeddings (tests/golden/make_minilm_reference.py, torch and transformers)."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.adapter import needs_adapter
from support.processes.commands import PATIENT_S, until_they_work
from support.rounding import MINILM_MAX

import mesh.numpy as mnp
from mesh import Mesh
from mesh.errors import InputError
from mesh.importers.minilm import batches, embed, encode, load_model

COSINE_MIN = 0.9999
WGSL_MAX = 1e-4  # its functions are within a few units of the op table each, not within rounding
REFERENCE = json.loads((Path(__file__).parent.parent / "golden" / "minilm_reference.json").read_text())
SENTENCES: list[str] = REFERENCE["sentences"]
EXPECTED: NDArray[np.float32] = np.array(REFERENCE["embeddings"], np.float32)


def assert_matches(embeddings: NDArray[np.float32], error_max: float = MINILM_MAX) -> None:
    assert embeddings.dtype == np.float32
    assert embeddings.shape == EXPECTED.shape == (len(SENTENCES), 384)
    assert np.abs(embeddings - EXPECTED).max() <= error_max
    cosines = np.sum(embeddings * EXPECTED, axis=1) / (
        np.linalg.norm(embeddings, axis=1) * np.linalg.norm(EXPECTED, axis=1)
    )
    assert cosines.min() >= COSINE_MIN


@pytest.mark.parametrize(
    "engines",
    [
        pytest.param(["cpu", "cpu", "cpu"], id="three cpu workers"),
        pytest.param(["wgsl"], id="one wgsl worker", marks=[needs_adapter, pytest.mark.long]),
        pytest.param(["wgsl", "cpu", "cpu"], id="wgsl and two cpu workers", marks=needs_adapter),
    ],
)
def test_embeddings_match_the_reference(engines: list[str]) -> None:
    with Mesh.builder().mesh("minilm").local(len(engines), engines).node_timeout(PATIENT_S).build() as workers:
        each_one = partial(embed, workers, SENTENCES, strategy="pipeline")
        found = until_they_work(workers, len(engines), each_one)
        assert_matches(found, WGSL_MAX if "wgsl" in engines else MINILM_MAX)
        ran = workers.report().workers.values()
    assert sorted(part.engine for worker in ran for part in worker.parts[:1]) == sorted(engines)


def test_the_same_function_without_a_mesh_matches_the_reference() -> None:
    model = load_model()
    result = np.zeros_like(EXPECTED)
    for batch in batches(SENTENCES):
        rows = np.asarray(encode(model, mnp.asarray(batch.ids), mnp.asarray(batch.mask)))
        result[list(batch.places)] = rows[: len(batch.places)]
    assert_matches(result)


@pytest.mark.parametrize(
    ("sentences", "said"),
    [
        (["one", 3], "a sentence is a text, not 3"),
        ([b"one"], "a sentence is a text, not b'one'"),
        (["one", "\ud800"], "a sentence is a text, not"),
        ("one", "of the sentences a list is given, not 'one'"),
        (3, "of the sentences a list is given, not 3"),
    ],
)
def test_what_is_no_text_is_told(sentences: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        batches(sentences)
    assert batches([]) == []
