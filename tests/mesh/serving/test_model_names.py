"""The name under which `mesh-coord serve-model` serves a model that has none, and the address that it prints."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from mesh.commands.serve_model import _models, _tell_ready
from mesh.errors import InputError
from mesh.serving.http_server import Listening


@pytest.mark.parametrize(("link", "target"), [("llama", "0f3a"), ("llama.gguf", "0f3a.gguf")])
def test_a_model_has_the_name_of_the_link_and_not_of_what_it_leads_to(tmp_path: Path, link: str, target: str) -> None:
    if target.endswith(".gguf"):
        (tmp_path / target).write_bytes(b"")
    else:
        saved(tmp_path / target)
    (tmp_path / link).symlink_to(tmp_path / target)
    assert served(tmp_path / link) == ["llama"]


def test_the_folder_that_one_is_in_has_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path / "llama")
    monkeypatch.chdir(tmp_path / "llama")
    assert served(Path()) == ["llama"]


@pytest.mark.parametrize(("host", "shown"), [("0.0.0.0", False), ("127.0.0.1", True)])
def test_the_address_that_is_printed_is_one_to_type(host: str, shown: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """A server on all addresses is nowhere at 0.0.0.0, for another machine and for a certificate."""
    _tell_ready(argparse.Namespace(json=False), f"http://{host}:7200", ["llama"], Listening(host=host))
    said = capsys.readouterr().out
    assert (f"llama at http://{host}:7200 " in said) == shown and said.count(":7200") == 4


def test_a_folder_without_a_model_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has neither a config\.json nor a GGUF file") as refused:
        served(tmp_path)
    assert "Give a folder with config.json and safetensors, a GGUF file, or ORG/NAME" in str(refused.value)
    (tmp_path / "one.gguf").touch()
    assert served(tmp_path) == [tmp_path.name]
    (tmp_path / "other.gguf").touch()
    with pytest.raises(InputError, match="has 2 GGUF files"):
        served(tmp_path)


def saved(folder: Path) -> None:
    folder.mkdir()
    (folder / "config.json").write_text("{}")


def served(*paths: Path) -> list[str]:
    options = argparse.Namespace(name="", model=[str(path) for path in paths], json=True, quiet=True)
    return list(_models(options))
