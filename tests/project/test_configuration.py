"""Tests replace no constant of the product: what they want otherwise they pass as an argument or in a configuration."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*")
# What the text of a file has that replaces any.  To parse all tests takes three seconds, and few have this.
REPLACES = re.compile(r"\.(?:setattr|patch|object)\b|\._?[A-Z][A-Z0-9_]*\s*=(?!=)")
OF_TESTS = frozenset({"long_run", "processors"})  # modules of tests/ that are tested themselves


def replaced_constants(source: str) -> Iterator[str]:
    """The constants that `monkeypatch.setattr`, `mock.patch` or an assignment to a module replaces, as "line: name"."""
    if not REPLACES.search(source):
        return
    tree = ast.parse(source)
    modules = {
        alias.asname or alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            patches = node.func.attr in ("setattr", "patch") or (
                node.func.attr == "object" and ast.unparse(node.func).endswith("patch.object")
            )
            target = ast.unparse(node.args[0]) if node.args else ""
            names = [each.value for each in node.args[:2] if isinstance(each, ast.Constant)]
            last = [str(name).rpartition(".")[2] for name in names]
            if patches and target not in OF_TESTS and any(map(CONSTANT.fullmatch, last)):
                yield f"{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Assign):
            for to in node.targets:
                constant = isinstance(to, ast.Attribute) and CONSTANT.fullmatch(to.attr)
                if constant and isinstance(to.value, ast.Name) and to.value.id in modules - OF_TESTS:
                    yield f"{node.lineno}: {ast.unparse(node)}"


def test_no_test_replaces_a_constant_of_the_product() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{what}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for what in replaced_constants(path.read_text(encoding="utf-8"))
    ]
    assert not found, "pass an argument or a configuration instead:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "line",
    [
        'monkeypatch.setattr(module, "LOOK_S", 0.0)',
        'monkeypatch.setattr("mesh.training.fit_loop.LOOK_S", 0.0)',
        'patch.setattr(module, "_LOOK_S", 0.0)',
        'mock.patch("mesh.training.fit_loop.LOOK_S", 0.0)',
        'mock.patch.object(module, "LOOK_S", 0.0)',
        "import module\nmodule.LOOK_S = 0.0",
    ],
)
def test_a_replaced_constant_is_found(line: str) -> None:
    assert len(list(replaced_constants(line))) == 1


@pytest.mark.parametrize(
    "line",
    [
        'monkeypatch.setattr(module, "perform", faulty)',
        'monkeypatch.setattr(Coordinator, "on_notify", faulty)',
        'monkeypatch.setattr(long_run, "RUNS", runs)',
        "self.KEPT = 3",
    ],
)
def test_functions_methods_and_what_tests_have_may_be_replaced(line: str) -> None:
    assert not list(replaced_constants(line))
