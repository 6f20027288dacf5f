"""Models that `mesh.load` reads, cut over real workers, equal their reference; and from the command line."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.processes.commands import PATIENT_S, until_by_the_same_plan, until_they_work
from support.rounding import RECORDED, allowed_of_model, assert_rounds_alike

import mesh
from mesh import Mesh

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "huggingface"
OUTPUTS = (
    "last_hidden_state", "pooler_output", "logits", "logits_per_image", "logits_per_text", "text_embeds",
    "image_embeds",
)  # fmt: skip


def reference(name: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    values = dict(np.load(GOLDEN / name / "reference.npz"))
    outputs = {key: values.pop(key) for key in OUTPUTS if key in values}
    return values, outputs


FAMILIES = sorted(folder for folder in GOLDEN.iterdir() if folder.is_dir())


@pytest.mark.parametrize(
    "folders", [FAMILIES[::3], pytest.param(FAMILIES, marks=pytest.mark.long)], ids=["some", "all"]
)
def test_families_run_over_three_workers(folders: list[Path]) -> None:
    with Mesh.builder().mesh("models").local(3).node_timeout(PATIENT_S).build() as workers:
        for folder in folders:
            inputs, wanted = reference(folder.name)
            model = mesh.load(folder)
            bounds = allowed_of_model(model, inputs, RECORDED["huggingface"])
            found = until_they_work(workers, 3, partial(workers.run, model, inputs, strategy="pipeline"))
            for key, array in wanted.items():
                got = found[key] if isinstance(found, dict) else found
                assert_rounds_alike(got, array, bounds[key], f"{folder.name} {key}")


def test_a_compiled_model_sends_its_weights_once() -> None:
    inputs, wanted = reference("gpt2")
    model = mesh.load(GOLDEN / "gpt2")
    bound = allowed_of_model(model, inputs, RECORDED["huggingface"])["logits"]
    with Mesh.builder().mesh("models-once").local(2).node_timeout(PATIENT_S).build() as workers:
        run = workers.compile(model, inputs, strategy="pipeline")
        assert_rounds_alike(run(inputs), wanted["logits"], bound)
        assert workers.report().weight_bytes_moved > 0
        found = until_by_the_same_plan(workers, lambda: run(inputs))
        assert_rounds_alike(found, wanted["logits"], bound)
        assert workers.report().weight_bytes_moved == 0
        assert_rounds_alike(model(inputs), wanted["logits"], bound)
