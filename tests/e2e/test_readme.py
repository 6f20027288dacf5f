"""What the README and some pages show runs as it stands: Python in an empty folder, commands against real daemons."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from support.documents import document
from support.processes.commands import RUN_S, daemon, environment, node_states, run, wait_for
from support.processes.site import SERVE

README = document("README.md")
EXAMPLES = README.code_blocks("python")
COORDINATOR = "localhost:7100"  # in an example: wherever `mesh-coord serve` runs
PAGES = (
    "docs/training.md",
    "docs/training-details.md",
    "docs/sessions.md",
    "docs/control-flow.md",
    "docs/simulation.md",
    "docs/transforms.md",
    "docs/scripts.md",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the examples run, one after the other: a later one may use what an earlier one wrote."""
    return tmp_path_factory.mktemp("readme")


@pytest.fixture(scope="module")
def env(folder: Path) -> Iterator[dict[str, str]]:
    """A coordinator with one worker, and the environment in which `mesh-coord` finds it."""
    env = environment(folder, MESH_NAME="readme")
    with ExitStack() as stack:
        serve = (*SERVE, "--port", "0")
        served = stack.enter_context(daemon(*serve, env=env, log=folder / "c"))
        env["MESH_ADDRESS"] = served.address
        worker = ("--peer", served.address, "--port", "0", "--no-mdns", "--device", "cpu")
        stack.enter_context(daemon("worker", *worker, env=env, log=folder / "w"))
        wait_for(lambda: len(node_states(served)) == 1)
        yield env


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_examples_run(number: int, folder: Path, env: dict[str, str]) -> None:
    run_script(folder / f"example_{number}.py", EXAMPLES[number].replace(COORDINATOR, env["MESH_ADDRESS"]), env)


def test_an_example_uses_the_workers_of_a_coordinator() -> None:
    assert any(COORDINATOR in example for example in EXAMPLES)


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_run_one_after_the_other(page: str, tmp_path: Path, env: dict[str, str]) -> None:
    """A later one may use the names of an earlier one."""
    text = "\n".join(document(page).code_blocks("python")).replace(COORDINATOR, env["MESH_ADDRESS"])
    run_script(tmp_path / "examples.py", text, env)


def run_script(script: Path, text: str, env: dict[str, str]) -> None:
    """Run a Python program in its own folder; the test fails if it does."""
    script.write_text(text, encoding="utf-8")
    command = [sys.executable, script.name]
    done = subprocess.run(
        command, cwd=script.parent, env=env, capture_output=True, text=True, timeout=RUN_S, check=False
    )
    assert done.returncode == 0, done.stderr


def test_commands_run(folder: Path, env: dict[str, str]) -> None:
    lines = [line for block in README.code_blocks("sh") for line in block.splitlines()]
    asked = [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("mesh-coord")]
    asked = [words for words in asked if words[0] not in ("serve", "demo")]  # daemons run; the demo has its own test
    assert {words[0] for words in asked} == {"nodes", "plan", "submit"}
    for words in asked:
        done = run("coord", *words, env=env, cwd=folder)
        assert done.returncode == 0, done.stderr
    x = np.load(folder / "x.npy")
    weights = np.exp(x - x.max(axis=-1, keepdims=True))
    np.testing.assert_allclose(np.load(folder / "results" / "p.npy"), weights / weights.sum(axis=-1, keepdims=True))
