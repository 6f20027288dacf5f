"""The table of families in docs/importers.md is that of the importer."""

from __future__ import annotations

from docs.tools import families_page


def test_the_page_has_every_family_and_no_other() -> None:
    text = families_page.PAGE.read_text(encoding="utf-8")
    assert text == families_page.page(text), "run: python -m docs.tools.families_page"
