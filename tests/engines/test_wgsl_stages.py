"""The parts of a pipeline on an adapter: what stages pass on, keep and add up is what the cpu engine makes of it."""

from __future__ import annotations

import numpy as np
from support.adapter import needs_adapter
from support.cases.pipelines import alike, case

from coordinator.planning.planner import make_plan
from mesh import Pipeline
from worker.cpu import evaluate

pytestmark = needs_adapter


def test_every_part_of_a_pipeline_runs_on_an_adapter() -> None:
    from worker.wgsl.engine import WgslEngine

    step = case("layers", 4).stepping
    plan = make_plan(step.graph, alike(2), Pipeline(2, 4).text, step.carries)
    rng, engine = np.random.default_rng(0), WgslEngine(0)
    try:
        for graph in dict.fromkeys(part.graph for part in plan.parts):
            kinds = graph.input_types
            given = {name: np.abs(rng.normal(size=kind.shape)).astype(kind.dtype.numpy) for name, kind in kinds.items()}
            actual = engine.run(engine.compile(graph), list(given.values()))
            for one, other in zip(actual, evaluate(graph, given), strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    finally:
        engine.close()
