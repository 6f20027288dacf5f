"""Texts over three real workers, one of which is killed in the middle of them."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from support.language import gpt2_folder

import mesh
from mesh import Mesh


@pytest.mark.skipif(sys.platform == "win32", reason="there is no kill -9")
def test_a_stage_killed_in_the_middle_changes_no_token(tmp_path: Path) -> None:
    model = mesh.load(gpt2_folder(tmp_path))
    prompts = [[5, 6, 7], list(range(100, 130)), [9]]
    how = {"temperature": 0.8, "top_k": 50, "seed": 7, "max_new_tokens": 40}
    expected = model.generate(prompts, **how)
    with Mesh.builder().local(3, engine="cpu").build() as workers:
        said: list[list[int]] = [[] for _ in prompts]
        for place, token in model.generate(prompts, mesh=workers, strategy="pipeline", stream=True, **how):
            said[place].append(token)
            if place == 0 and len(said[0]) == 10:
                os.kill(workers.nodes[1].pid, signal.SIGKILL)
        assert said == expected
