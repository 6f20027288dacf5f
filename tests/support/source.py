"""The project's own source as data: every file of the four packages with its imports, read and never run."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from wire.cached_property import cached_property
from wire.collector import collector_paused

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("mesh", "wire", "coordinator", "worker")


@dataclass(frozen=True, slots=True)
class Import:
    """One imported module, by its absolute name; `names` are what a from-import takes out of it."""

    module: str
    names: tuple[str, ...]
    line: int
    written_absolute: bool
    for_types: bool  # under `if TYPE_CHECKING`
    deferred: bool  # inside a function

    @property
    def top(self) -> str:
        return self.module.partition(".")[0]

    def files(self, known: Mapping[str, object]) -> list[str]:
        """Which of the `known` paths it loads: the module, or the submodules it takes out of a package."""
        base = self.module.replace(".", "/")
        found = [path for name in self.names if (path := f"{base}/{name}.py") in known]
        return found + [path for path in (f"{base}.py",) if path in known]

    def targets(self, known: Mapping[str, object]) -> set[str]:
        """Which of the `known` paths it names: a module or package taken out of a package, else where the name is."""
        base = self.module.replace(".", "/")
        homes = [path for path in (f"{base}.py", f"{base}/__init__.py") if path in known]
        taken = [
            [path for path in (f"{base}/{name}.py", f"{base}/{name}/__init__.py") if path in known]
            for name in self.names
        ]
        return {path for paths in taken or [homes] for path in paths or homes}


@dataclass(frozen=True)
class SourceFile:
    """One Python file; `path` is relative to the repository's root, with forward slashes.

    Its syntax tree is kept until `forget`: all trees together take hundreds of megabytes.
    """

    path: str
    text: str

    @property
    def package(self) -> str:
        return self.path.partition("/")[0]

    @cached_property
    def tree(self) -> ast.Module:
        with collector_paused():  # it would look for cycles among the new nodes again and again
            return ast.parse(self.text, self.path)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node of the syntax tree."""
        return tuple(walk(self.tree))

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        tree = self.__dict__.get("tree") or ast.parse(self.text, self.path)
        return tuple(self._imports(tree, for_types=False, deferred=False))

    def forget(self) -> None:
        self.__dict__.pop("tree", None)
        self.__dict__.pop("nodes", None)

    def _imports(self, node: ast.AST, for_types: bool, deferred: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(alias.name, (), child.lineno, True, for_types, deferred)
            elif isinstance(child, ast.ImportFrom):
                names = tuple(alias.name for alias in child.names)
                yield Import(self._absolute(child), names, child.lineno, child.level == 0, for_types, deferred)
            else:
                typed = isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING")
                inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
                yield from self._imports(child, for_types or typed, deferred or inside)

    def _absolute(self, node: ast.ImportFrom) -> str:
        if node.level == 0:
            return node.module or ""
        folder = self.path.split("/")[: -node.level]
        return ".".join([*folder, *([node.module] if node.module else [])])


def walk(tree: ast.AST) -> list[ast.AST]:
    """What ast.walk gives, in its order, in less than half of the time: there are two million nodes."""
    found = [tree]
    for node in found:  # which grows
        for name in node._fields:
            child = getattr(node, name, None)
            if type(child) is list:
                found += [each for each in child if isinstance(each, ast.AST)]
            elif type(child) is not str and isinstance(child, ast.AST):
                found.append(child)
    return found


@cache
def source_file(path: Path) -> SourceFile:
    return SourceFile(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))


@cache
def source_files(*folders: str) -> tuple[SourceFile, ...]:
    """Every Python file below `folders` (default: the four packages), by path."""
    return tuple(
        map(source_file, sorted(path for folder in folders or PACKAGES for path in (ROOT / folder).rglob("*.py")))
    )
