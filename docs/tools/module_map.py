"""The map of all modules in docs/architecture.md: `python -m docs.tools.module_map`.

A package's role is the first sentence of its `__init__.py`; beside it stand its modules by name.  The map is written
between two marks of the page; what else is there is written by hand.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architecture.md"
TOPS = ("wire", "worker", "coordinator", "mesh")
BEGIN, END = "<!-- begin of the map of {}: python -m docs.tools.module_map -->", "<!-- end of the map of {} -->"


def packages(top: str) -> Iterator[Path]:
    """The folder and every folder below it that has modules, by path."""
    for init in sorted((ROOT / top).rglob("__init__.py")):
        yield init.parent


def role(package: Path) -> str:
    """The first sentence of a package's docstring."""
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return paragraph.partition(". ")[0].rstrip(".")


def modules(package: Path) -> list[str]:
    """The names of its modules; those that Markdown would take for bold stand in `code`."""
    names = sorted(path.stem for path in package.glob("*.py") if path.name != "__init__.py")
    return [f"`{name}`" if name.startswith("__") else name for name in names]


def table(top: str) -> str:
    rows = ["| Folder | What it is for | Modules |", "|---|---|---|"]
    for package in packages(top):
        names = ", ".join(modules(package))
        rows.append(f"| `{package.relative_to(ROOT).as_posix()}/` | {role(package)} | {names} |")
    return "\n".join(rows)


def page(text: str) -> str:
    """The page with the maps of now between their marks."""
    for top in TOPS:
        begin, end = BEGIN.format(top), END.format(top)
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        text = f"{before}{begin}\n{table(top)}\n{end}{after}"
    return text


def main() -> None:
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
