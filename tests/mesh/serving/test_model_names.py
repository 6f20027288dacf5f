"""The name under which `mesh-coord serve-model` serves a model that has none."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from mesh.commands.serve_model import _models


@pytest.mark.parametrize(("link", "target"), [("llama", "0f3a"), ("llama.gguf", "0f3a.gguf")])
def test_a_model_has_the_name_of_the_link_and_not_of_what_it_leads_to(tmp_path: Path, link: str, target: str) -> None:
    if target.endswith(".gguf"):
        (tmp_path / target).write_bytes(b"")
    else:
        (tmp_path / target).mkdir()
    (tmp_path / link).symlink_to(tmp_path / target)
    assert served(tmp_path / link) == ["llama"]


def test_the_folder_that_one_is_in_has_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "llama").mkdir()
    monkeypatch.chdir(tmp_path / "llama")
    assert served(Path()) == ["llama"]


def served(*paths: Path) -> list[str]:
    options = argparse.Namespace(name="", model=[str(path) for path in paths], json=True, quiet=True)
    return list(_models(options))
