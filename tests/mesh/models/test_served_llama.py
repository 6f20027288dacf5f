"""The Llama that several servers are given (`bench/serve.py`): its folder and its GGUF file are the same model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.cases.served_llama import END, Size, served_llama

import mesh
from mesh.inference.tokenizer import Tokenizer

SMALL = Size(layers=2, width=64, heads=4, kv_heads=2, inner=96, vocabulary=1024, positions=64)


@pytest.mark.parametrize(("kind", "near"), [("F32", 1e-5), ("Q8_0", 5e-2)])
def test_a_folder_and_its_file_are_the_same_model(tmp_path: Path, kind: str, near: float) -> None:
    file = served_llama(tmp_path / "llama", SMALL, kind)
    ids = np.arange(1, 21, dtype=np.int32)[None]
    by_folder, by_file = (np.asarray(mesh.load(path)(input_ids=ids)) for path in (file.parent, file))
    assert np.abs(by_folder - by_file).max() <= near * np.abs(by_folder).max()


def test_its_tokens_are_texts(tmp_path: Path) -> None:
    tokenizer = Tokenizer(served_llama(tmp_path / "llama", SMALL).parent)
    assert tokenizer.size == SMALL.vocabulary
    assert tokenizer.id_of(END) == 0
    assert tokenizer.text([1, 300, 600]) == "".join(tokenizer.text([token]) for token in (1, 300, 600)) != ""
