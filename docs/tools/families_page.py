"""The table of model families as markdown: `python -m docs.tools.families_page` writes it into docs/importers.md.

Every row comes from the importer's table of model types.
"""

from __future__ import annotations

from pathlib import Path

from mesh.importers.huggingface import KINDS
from mesh.importers.huggingface.decoders import FORMS

PAGE = Path(__file__).resolve().parents[1] / "importers.md"
BEGIN, END = "<!-- families: python -m docs.tools.families_page -->", "<!-- end of families -->"
ENCODERS = {
    "bert": "an encoder", "clip": "both towers", "clip_text_model": "the tower for texts",
    "clip_vision_model": "the tower for images", "distilbert": "an encoder", "roberta": "an encoder",
    "t5": "the encoder alone", "vit": "an encoder of images", "whisper": "the encoder alone",
    "xlm-roberta": "an encoder",
}  # fmt: skip


def table() -> str:
    """A row for each model type."""
    lines = ["| model_type | What | Classes of transformers |", "|---|---|---|"]
    for model_type, kind in sorted(KINDS.items()):
        form = FORMS.get(model_type)
        mixture = ", a mixture of experts" if form is not None and form.experts else ""
        what = ENCODERS[model_type] if form is None else f"a decoder{mixture}"
        lines.append(f"| `{model_type}` | {what} | {', '.join(kind.architectures)} |")
    return "\n".join(lines)


def page(text: str) -> str:
    """The page with the table as it is now."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
