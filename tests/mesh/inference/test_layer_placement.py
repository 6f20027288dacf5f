"""Texts of a model whose layers are where a map says."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from support.cases.language import golden_model

from mesh import DeviceMap, InferenceServer, Mesh
from mesh.errors import InputError, NoSuchDevice
from mesh.inference import Generating
from mesh.inference.layer_placement import by_numbers
from mesh.simulation.loop import VirtualLoop

HOW: dict[str, Any] = {"max_new_tokens": 8, "ends": (), "temperature": 0.8, "seed": 3}
PROMPTS = [[3, 4], list(range(2, 21))]
LAYERS = ("sim-0=0..1", "sim-1=1..2")


def where(name: str, *ranges: str, experts: Sequence[str] = ()) -> DeviceMap:
    return by_numbers(golden_model(name).weights, ranges, experts)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_texts_are_the_same_with_layers_where_the_map_says(name: str) -> None:
    model = golden_model(name)
    with Mesh.builder().simulate(2).build() as m:
        for layers in (where(name, *LAYERS), where(name, "sim-1=0..1", "sim-0=1..2"), DeviceMap().layer("", "sim-1")):
            assert model.generate(PROMPTS, mesh=m, strategy=layers, **HOW) == model.generate(PROMPTS, **HOW)


@pytest.mark.parametrize("name", ["gpt-oss", "mixtral", "qwen2-moe", "qwen3-moe"])
def test_texts_are_the_same_with_experts_on_other_workers_than_their_layers(name: str) -> None:
    model = golden_model(name)
    said = model.generate(PROMPTS, **HOW)
    ranges = ("sim-0=0..1", "sim-1=1..3") if name == "qwen2-moe" else LAYERS  # layer 1 of which has no experts
    layers = where(name, *ranges, experts=["sim-2=1..3", "sim-0=3..4"])
    with Mesh.builder().simulate(3).build() as m:
        assert model.generate(PROMPTS, mesh=m, strategy=layers, **HOW) == said


def test_weights_of_experts_are_on_their_workers_alone() -> None:
    layers = where("mixtral", *LAYERS, experts=["sim-2=1..3", "sim-0=3..4"])
    homes, kept, _ = placed("mixtral", layers, 3, 16)
    for name, workers in homes.items():
        layer, expert = re.search(r"layers\.(\d)", name), re.search(r"experts\.(\d)", name)
        of_layer = f"sim-{layer[1] if layer else 0}"
        assert workers == {{"1": "sim-2", "2": "sim-2", "3": "sim-0"}.get(expert[1], of_layer) if expert else of_layer}
    assert kept == [3, 2, 0], "keys and values are where a layer attends"


def test_experts_and_their_layers_meet_in_a_call_too() -> None:
    model, ids = golden_model("mixtral"), np.array([[3, 4, 9]], np.int32)
    with Mesh.builder().simulate(3).build() as m:
        found = m.run(model, ids, strategy=where("mixtral", *LAYERS, experts=["sim-2=1..3"]))
        assert len(m.report().workers) == 3
    assert np.asarray(found).tobytes() == np.asarray(model(ids)).tobytes()


@pytest.mark.parametrize(
    ("name", "experts", "says"),
    [
        ("llama", ["sim-0=0..1"], "the model has no numbered experts. Leave out the places of experts"),
        ("mixtral", ["sim-0=0..9"], "'sim-0=0..9': the model has experts 0 to 3"),
        ("mixtral", ["sim-0=0..2", "sim-1=1..3"], "expert 1 is on sim-0 and on sim-1"),
        ("mixtral", ["sim-0"], "'sim-0' places no experts. Write \"anna=0..20\""),
    ],
)
def test_places_of_experts_that_cannot_be_are_refused(name: str, experts: list[str], says: str) -> None:
    with pytest.raises(InputError, match=re.escape(says)):
        where(name, *LAYERS, experts=experts)


def test_an_expert_on_two_workers_is_refused() -> None:
    layers, model = DeviceMap(), golden_model("mixtral")
    for name in model.weights:
        layers = layers.layer(name, "sim-1" if "layers.0" in name and "experts.2.w1" in name else "sim-0")
    with Mesh.builder().simulate(2).build() as m, pytest.raises(InputError, match=r"experts\.2 is on sim-\d and on"):
        model.generate([3, 4], mesh=m, strategy=layers, **HOW)


@pytest.mark.parametrize("chunk", [1, 16])
def test_weights_and_what_is_kept_of_a_layer_are_on_its_worker(chunk: int) -> None:
    head = DeviceMap().layer("model.norm", "sim-1").layer("lm_head", "sim-1").layer("model.embed_tokens", "sim-0")
    layers = head.layer("model.layers.0", "sim-0").layer("model.layers.1", "sim-1")
    homes, kept, said = placed("llama", layers, 2, chunk)
    assert said == golden_model("llama").generate([3, 4], max_new_tokens=6, ends=())
    for name, workers in homes.items():
        layer = re.search(r"layers\.(\d)", name)
        assert workers == {f"sim-{layer[1]}" if layer else "sim-0" if "embed" in name else "sim-1"}, name
    assert kept == [2, 3], "keys and values of each layer, and the last tokens beside the head"


def placed(name: str, layers: DeviceMap, count: int, chunk: int) -> tuple[dict[str, set[str]], list[int], list[int]]:
    """The workers of each weight, how many tensors each of `count` workers keeps of a text, and what it says."""
    model = golden_model(name)

    async def parts() -> tuple[dict[str, set[str]], list[int], list[int]]:
        async with await Mesh.builder().simulate(count).build_async() as m:
            names = {node.id: node.name for node in await m.nodes()}
            generating = Generating(m, model, strategy=layers, chunk=chunk)
            said = [token async for token in generating.begin([3, 4], 6, ends=())]
            plan = generating._session.running.plan  # type: ignore[union-attr]
            homes: dict[str, set[str]] = {}
            for place in plan.params:
                homes.setdefault(place.name, set()).update(names[home] for home in place.homes)
            kept = [sum(names[plan.parts[carry.source.part].node] == name for carry in plan.carries)
                    for name in (f"sim-{worker}" for worker in range(count))]  # fmt: skip
            await generating.close()
            return homes, kept, said

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(parts())


@pytest.mark.parametrize(
    ("layers", "says"),
    [
        (DeviceMap().layer("model.layers", "sim-0"), r"no layer for 'model\.embed_tokens\.weight' and 2 more"),
        (where("llama", *LAYERS).layer("model.layers.7", "sim-0"), r"no param belongs to layer 'model\.layers\.7'"),
        (
            DeviceMap(where("llama", *LAYERS).rows[1:]).layer("model.layers.0.mlp", "sim-1")
            .layer("model.layers.0.self_attn", "sim-0").layer("model.layers.0.input_layernorm", "sim-0")
            .layer("model.layers.0.post_attention_layernorm", "sim-0"),
            r"text is generated by whole layers: .*layers\.0\.\S+ is on sim-\d, and .*layers\.0\.\S+ on sim-\d",
        ),
    ],
)  # fmt: skip
def test_a_map_that_does_not_fit_is_refused_with_what_to_do(layers: DeviceMap, says: str) -> None:
    with Mesh.builder().simulate(2).build() as m, pytest.raises(InputError, match=says):
        golden_model("llama").generate([3, 4], mesh=m, strategy=layers, **HOW)


def test_a_server_refuses_a_map_of_some_layers_when_the_model_is_loaded() -> None:
    with Mesh.builder().simulate(1).build() as m, InferenceServer(m) as server:
        with pytest.raises(InputError, match=r"no layer for 'model\.embed_tokens\.weight' and \d+ more"):
            server.load_model("llama", golden_model("llama"), strategy=DeviceMap().layers("model.layers.0..2", "sim-0"))
        assert not server.loaded_models()


def test_a_worker_that_is_not_there_is_named() -> None:
    with Mesh.builder().simulate(1).build() as m, pytest.raises(NoSuchDevice, match="no worker 'sim-1'"):
        golden_model("llama").generate([3, 4], mesh=m, strategy=where("llama", *LAYERS), **HOW)


@pytest.mark.parametrize(
    ("ranges", "says"),
    [
        (["anna=0..1"], "layer 1 is on no worker. Place all layers, 0 to 1"),
        (["anna=0..2", "berta=1..2"], "layers model.layers.1..2 overlap layers model.layers.0..2"),
        (["anna=0..3"], "'anna=0..3': the model has layers 0 to 1"),
        (["anna"], "'anna' places no layers. Write \"anna=0..20\""),
        (["anna=1..1", "berta=0..2"], "'anna=1..1' places no layers"),
    ],
)
def test_ranges_that_are_not_all_layers_once_are_refused(ranges: list[str], says: str) -> None:
    with pytest.raises(InputError, match=re.escape(says)):
        where("llama", *ranges)


def test_a_model_without_numbered_layers_or_with_two_lists_of_them_is_refused() -> None:
    for names in (["w"], ["encoder.layers.0.w", "decoder.layers.0.w"]):
        with pytest.raises(InputError, match=r"the model has .* of numbered layers.* Choose another strategy"):
            by_numbers(names, ["anna=0..1"])
