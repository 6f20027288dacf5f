"""Layers that are alike are traced once, and the step is the one that each of them would have made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cases.served_models import llama_folder

import mesh
from mesh.core.array import Array, handle_array
from mesh.functions.step_trace import Stepping
from mesh.inference import kv_cache_step, sampling
from mesh.inference.settings import GREEDY, Room
from mesh.models.decoder import Decoder, unlike
from mesh.models.model import Model
from wire.ir.dtypes import F32
from wire.ir.graph import WireGraph

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "huggingface"
DECODERS = (
    "bloom", "gemma", "gemma2", "gemma3", "gpt-neox", "gpt-neox-serial", "gpt-oss", "gpt2", "llama", "llama3",
    "mistral", "mixtral", "opt", "opt-norms-after", "phi3", "phi3-long", "qwen2", "qwen2-moe", "qwen2-windows",
    "qwen3", "qwen3-moe",
)  # fmt: skip
ROOM = Room(slots=3, pages=40, length=200, chunk=4, few=2)


def graph_of(model: Model, change: Callable[[Decoder], Decoder] = lambda decoder: decoder) -> WireGraph:
    """The step of a batch of texts."""
    assert model.text is not None
    decoder, ones = change(model.text.decoder), np.ones(ROOM.slots, np.int32)
    params = {key: handle_array(handle) for key, handle in model.handles.items()}
    table = np.zeros((ROOM.slots, -(-ROOM.length // kv_cache_step.PAGE)), np.int32)
    ids = np.ones((ROOM.slots, ROOM.chunk), np.int32)
    how = sampling.fed([GREEDY] * ROOM.slots)
    feeds = kv_cache_step.feeds(ROOM, ids, 0 * ones, ones, ones < 0, table, how)
    step = kv_cache_step.stepper(decoder, ROOM, params)
    return Stepping(step, kv_cache_step.empty(decoder, ROOM, F32), feeds, "auto").graph


def counted(calls: list[int]) -> Callable[[Decoder], Decoder]:
    """A decoder that notes which layers are computed."""

    def changed(decoder: Decoder) -> Decoder:
        def layer(params: Any, number: int, *others: Any) -> Array:
            calls.append(number)
            return decoder.layer(params, number, *others)

        return replace(decoder, layer=layer)

    return changed


@pytest.mark.parametrize("name", DECODERS)
def test_the_step_of_a_family_is_that_of_its_layers_one_by_one(name: str) -> None:
    model = mesh.load(GOLDEN / name)
    assert graph_of(model).hash == graph_of(model, lambda decoder: replace(decoder, alike=unlike)).hash


def test_of_many_layers_one_is_traced(tmp_path: Path) -> None:
    model, calls = mesh.load(llama_folder(tmp_path / "llama", layers=6)), list[int]()
    repeated = graph_of(model, counted(calls))
    assert set(calls) == {0}
    one_by_one = graph_of(model, lambda decoder: counted(calls)(replace(decoder, alike=unlike)))
    assert set(calls) == set(range(6)) and repeated.hash == one_by_one.hash


def test_layers_with_other_windows_are_traced_too() -> None:
    model, calls = mesh.load(GOLDEN / "gemma2"), list[int]()
    graph_of(model, counted(calls))
    assert model.text is not None and len(set(model.text.decoder.windows)) == 2
    assert set(calls) == {0, 1}


def test_layers_of_packed_weights_are_alike_as_others_are(tmp_path: Path) -> None:
    model, calls = mesh.quantise(mesh.load(llama_folder(tmp_path / "llama", layers=3)), "int8"), list[int]()
    repeated = graph_of(model, counted(calls))
    assert set(calls) == {0}
    assert repeated.hash == graph_of(model, lambda decoder: replace(decoder, alike=unlike)).hash
