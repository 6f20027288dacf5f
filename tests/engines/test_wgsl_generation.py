"""A step of a running batch on an adapter chooses what the cpu engine chooses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.adapter import needs_adapter
from support.cases.language import GOLDEN, golden_model

from mesh.core.array import handle_array
from mesh.functions.step_trace import Stepping
from mesh.inference import kv_cache_step, sampling
from mesh.inference.settings import GREEDY, Room, Sampling
from wire.ir.dtypes import F32

pytestmark = needs_adapter
ROOM = Room(2, 5, 32, 4)
TABLE = np.array([[4, 2], [1, 3]], np.int32)
REFERENCE: dict[str, Any] = json.loads((GOLDEN / "generation.json").read_text())
DRAWN = Sampling(0.9, 20, 0.95, 7)


@pytest.fixture(scope="module", params=[1, 1 << 60], ids=["in place", "copied"])
def engine(request: pytest.FixtureRequest) -> Iterator[Any]:
    from worker.wgsl.engine import WgslEngine

    made = WgslEngine(0, updated_bytes_min=request.param)
    yield made
    made.close()


@pytest.mark.parametrize("name", [pytest.param("gpt2", marks=pytest.mark.long), "mistral"])
def test_texts_on_an_adapter_are_those_of_transformers(engine: Any, name: str) -> None:
    model = golden_model(name)
    text = model.text
    assert text is not None
    params = {key: handle_array(handle) for key, handle in model.handles.items()}
    prompt, wanted = (REFERENCE[name][what][1] for what in ("prompts", "tokens"))
    assert len(prompt) == ROOM.chunk
    ids = np.tile(np.array(prompt, np.int32), (2, 1))
    whole, one = np.full(2, ROOM.chunk, np.int32), np.ones(2, np.int32)
    how = sampling.fed([GREEDY, DRAWN])
    first = kv_cache_step.feeds(ROOM, ids, np.zeros(2, np.int32), whole, np.zeros(2, bool), TABLE, how)
    step = kv_cache_step.stepper(text.decoder, ROOM, params)
    stepping = Stepping(step, kv_cache_step.empty(text.decoder, ROOM, F32), first, "auto")
    executable = engine.compile(stepping.graph)
    values = {key: np.asarray(handle) for key, handle in stepping.work.bindings.items()}
    names = [stepping.graph.nodes[at].attrs["name"] for at in (*stepping.graph.inputs, *stepping.graph.params)]
    chosen = []
    for number in range(4):
        feeds = first
        if number:
            at = whole + number - 1
            feeds = kv_cache_step.feeds(ROOM, ids * 0, at, one, np.ones(2, bool), TABLE, how)
        given = {**values, **stepping.bind(feeds)}
        outputs = engine.run(executable, [given[key] for key in names])
        values |= {key: outputs[at] for key, at in stepping.carries}
        chosen.append(stepping.outputs(outputs[: stepping.returned_count]))
    said = np.array(chosen).T.tolist()
    assert said[0] == wanted[:4]
    how_drawn = {"temperature": 0.9, "top_k": 20, "top_p": 0.95, "seed": 7, "max_new_tokens": 4, "ends": ()}
    assert said[1] == model.generate(prompt, **how_drawn)
