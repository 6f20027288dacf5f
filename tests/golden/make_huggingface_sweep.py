"""Makes tests/golden/huggingface_sweep.{json,npz}: each key of each family's config.json changed alone, and what
transformers computes then.

PYTHONPATH=.:tests python tests/golden/make_huggingface_sweep.py    needs torch and transformers, as no test does
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from support.cases import huggingface_cases, huggingface_reference

from mesh.importers.huggingface import KINDS

GOLDEN = Path(__file__).with_name("huggingface_sweep")


def main() -> None:
    torch.set_num_threads(1)
    kept: dict[str, Any] = {"versions": {"torch": torch.__version__, "transformers": transformers.__version__}}
    kept |= {"defaults": {}, "shapes": [], "cases": {}}
    shapes: dict[str, int] = {}
    arrays: dict[bytes, int] = {}
    stored: list[np.ndarray] = []

    def number(array: np.ndarray) -> int:
        key = str(array.shape).encode() + array.tobytes()
        if key not in arrays:
            arrays[key] = len(stored)
            stored.append(array)
        return arrays[key]

    for model_type in huggingface_cases.BASES:
        kind = KINDS[model_type]
        print(model_type, flush=True)
        config = getattr(transformers, huggingface_cases.MAIN[model_type]).config_class
        kept["defaults"][model_type] = {
            each.name: each.default for each in dataclasses.fields(config) if each.default is not dataclasses.MISSING
        }
        keys = {key: type(row).__name__.lower() for key, row in kind.keys.items()}
        for case in huggingface_cases.cases(model_type, keys):
            made = huggingface_reference.shapes_of(case)
            if made is None or (case.made and made == huggingface_reference.shapes_of(case.unmade)):
                continue  # there is no such model, or it has the weights of another case
            with tempfile.TemporaryDirectory() as folder:
                found = huggingface_reference.outputs_of(huggingface_cases.write(case, made, Path(folder)), case)
            text = json.dumps(made, separators=(",", ":"))
            row: dict[str, Any] = {"shapes": shapes.setdefault(text, len(shapes))}
            row["found"] = found if isinstance(found, str) else {name: number(each) for name, each in found.items()}
            assert str(case) not in kept["cases"], case
            kept["cases"][str(case)] = row
    kept["shapes"] = [json.loads(text) for text in shapes]
    GOLDEN.with_suffix(".json").write_text(_in_lines(kept))
    np.savez_compressed(GOLDEN.with_suffix(".npz"), *stored)
    print(f"{len(kept['cases'])} cases, {len(stored)} arrays, {len(shapes)} sets of shapes")


def _in_lines(kept: dict[str, Any]) -> str:
    """As JSON with a line for each entry of a section, so that a change shows which ones it changes."""
    sections = []
    for name, entries in kept.items():
        if isinstance(entries, dict):
            lines, ends = [f"{json.dumps(key)}: {json.dumps(each, default=str)}" for key, each in entries.items()], "{}"
        else:
            lines, ends = [json.dumps(each) for each in entries], "[]"
        sections.append(f"{json.dumps(name)}: {ends[0]}\n" + ",\n".join(lines) + f"\n{ends[1]}")
    return "{\n" + ",\n".join(sections) + "\n}\n"


if __name__ == "__main__":
    main()
