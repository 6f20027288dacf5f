"""The map of modules in docs/architecture.md is that of the code, and every folder says what it is for."""

from __future__ import annotations

import pytest
from support.source import PACKAGES, ROOT

from docs.tools import module_map

FOLDERS = [folder for top in PACKAGES for folder in module_map.packages(top)]


def test_the_map_is_up_to_date() -> None:
    text = module_map.PAGE.read_text(encoding="utf-8")
    assert text == module_map.page(text), "run: python -m docs.tools.module_map"
    assert all(text.count(module_map.BEGIN.format(top)) == 1 for top in PACKAGES)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(ROOT)))
def test_a_folder_says_in_a_line_what_it_is_for(folder: module_map.Path) -> None:
    assert 10 < len(module_map.role(folder)) <= 130


def test_every_module_is_in_a_package() -> None:
    lost = [path for top in PACKAGES for path in (ROOT / top).rglob("*.py") if path.parent not in FOLDERS]
    assert not lost, ", ".join(str(path.relative_to(ROOT)) for path in lost)
