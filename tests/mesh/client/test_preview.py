"""Previews of plans: as a table, as plain data, and as a picture that any reader of XML can take."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.cases.towers import layers
from support.machines.profiles import device, near, worker

import mesh
from coordinator.planning.model.profiles import Profiles
from coordinator.planning.model.timeline import describe
from coordinator.planning.planner import make_plan
from mesh import Mesh
from mesh.client.plan_preview import PlanPreview
from mesh.client.plan_svg import BOX
from wire.errors import InputError, PlacementError
from wire.units import time_text

SVG = "{http://www.w3.org/2000/svg}"
ODD = ('<b>"anna" & co</b>', "b'erta", "ünïcode ✓")


def machines() -> Profiles:
    made = near(*(worker(number, device(0, 0.01, 1e3)) for number in range(3)))
    return replace(made, workers=tuple(replace(w, name=name) for w, name in zip(made.workers, ODD, strict=True)))


def preview(strategy: str) -> PlanPreview:
    plan = make_plan(layers(256, 64, 4), machines(), strategy)
    return PlanPreview({**plan.describe(), "timeline": describe(plan, machines())})


@pytest.mark.parametrize("strategy", ["single", "pipeline", "data", "fully-sharded", "auto"])
def test_a_picture_has_a_row_per_device_a_box_per_part_and_an_arrow_per_transfer(strategy: str) -> None:
    seen = preview(strategy)
    root = ElementTree.fromstring(seen.svg())
    texts = [each.text for each in root.iter(f"{SVG}text")]
    for name in {part["worker"] for part in seen.parts}:
        assert f"{name}, device 0" in texts
    boxes = [g for g in root.iter(f"{SVG}g") if g[0].text is not None and g[0].text.startswith("part ")]
    assert len(boxes) == len(seen.parts)
    for box, part in zip(boxes, seen.parts, strict=True):
        times = next(each for each in seen.timeline["parts"] if each["part"] == part["part"])
        assert box[0].text.startswith(f"part {part['part']}: {time_text(times['computed_s'] - times['start_s'])}")
        assert box[1].get("height") == str(BOX) and float(box[1].get("width")) >= 1
    arrows = [g for g in root.iter(f"{SVG}g") if g[1].tag == f"{SVG}line"]
    rows = {part["part"]: (part["worker"], part["device"]) for part in seen.parts} | {None: None}
    apart = [each for each in seen.timeline["transfers"] if rows[each["from"]] != rows[each["to"]]]
    assert len(arrows) == len(apart) > 0
    assert float(root.get("width")) >= max(float(line.get("x2")) for line in root.iter(f"{SVG}line"))


def test_a_program_without_work_has_a_picture_too() -> None:
    plan = make_plan(mesh.trace(lambda x: x, np.ones(3, np.float32)), machines())
    data = {**plan.describe(), "timeline": describe(plan, machines())}
    assert ElementTree.fromstring(PlanPreview(data).svg()).tag == f"{SVG}svg"


def test_the_table_tells_when_parts_run_and_what_every_way_would_take() -> None:
    seen = preview("auto")
    text = str(seen)
    assert text.splitlines()[0].split() == [
        "part", "worker", "device", "engine", "nodes", "GFLOP", "weights", "from", "to",
    ]  # fmt: skip
    assert seen.candidates[0]["seconds"] == seen.seconds
    for each in seen.candidates:
        assert f"  {each['name']}: " in text
    assert json.loads(json.dumps(seen.data)) == seen.data


def tower(weights: Any, x: Any) -> Any:
    for w in weights:
        x = mesh.numpy.tanh(x @ w)
    return x


def test_a_mesh_tells_what_a_death_would_do_before_and_after_a_call() -> None:
    weights, x = [np.ones((32, 32), np.float32) / 32] * 4, np.ones((8, 32), np.float32)
    with Mesh.builder().simulate(3, gflops=(1e-4,) * 3).build() as simulated:
        held = simulated.put([each + number for number, each in enumerate(weights)])
        seen = simulated.plan(tower, held, x, strategy="pipeline")
        assert not seen.what_if_dies and seen.timeline["seconds"] > 0
        name = seen.parts[0]["worker"]
        death = simulated.plan(tower, held, x, strategy="pipeline", what_if_dies=name).what_if_dies
        assert death["worker"] == name and name not in {part["worker"] for part in death["plan"]["parts"]}
        assert {each["source"] for each in death["weights"]} <= {"client", "peer"} and death["moved_bytes"] > 0
        assert death["call_s"] > 0 and death["seconds"] > 0
        text = str(simulated.plan(tower, held, x, strategy="pipeline", what_if_dies=name))
        assert f"if {name} dies, " in text and "weights that move: " in text
        with pytest.raises(InputError, match="no worker that takes work now is called 'nobody'"):
            simulated.plan(tower, held, x, what_if_dies="nobody")


def test_of_one_worker_a_plan_says_that_nobody_is_left_after_its_death() -> None:
    weights, x = [np.ones((32, 32), np.float32)], np.ones((8, 32), np.float32)
    with Mesh.builder().simulate(1).build() as alone:
        held = alone.put(weights)
        text = str(alone.plan(tower, held, x, copies="buddy"))
        assert "copies buddy: nothing is kept, since there are too few workers" in text
        assert "weights are lost, and no worker is left that could have them" in text
        with pytest.raises(PlacementError, match=r"no worker is left if sim-0 dies. Start another mesh-worker"):
            alone.plan(tower, held, x, what_if_dies="sim-0")
