"""Plan as SVG: a plan as SVG: a row for every device, a box for every part with its time, an arrow for every transfer.

It is drawn from the plan as plain data (docs/planning.md) and knows nothing else.  Times run from left to right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from ..util.units import counted, size_text, time_text

WIDTH, LEFT, RIGHT, TOP, ROW, BOX = 1000, 150, 20, 40, 56, 28
TICKS = 5
COLOURS = ("#4e79a7", "#59a14f", "#f28e2b", "#b07aa1", "#76b7b2", "#edc948", "#9c755f", "#ff9da7")
EXCHANGE, INK, LINE, ARROW = "#e15759", "#222222", "#dddddd", "#888888"
LABEL_MIN = 40  # pixels of a box that has room for words
ARROWS_MAX = 400  # beyond, a picture of lines only


def svg(data: Mapping[str, Any]) -> str:
    """The picture of a plan as an SVG document."""
    return "\n".join(_Picture(data).lines())


class _Picture:
    def __init__(self, data: Mapping[str, Any]) -> None:
        self._parts: Sequence[Mapping[str, Any]] = data["parts"]
        self._times = {timed["part"]: timed for timed in data["timeline"]["parts"]}
        self._transfers: Sequence[Mapping[str, Any]] = data["timeline"]["transfers"]
        self._seconds = float(data["timeline"]["seconds"])
        self._title = data["reasons"][0] if data["reasons"] else data["strategy"]
        self._rows: dict[tuple[str, int], int] = {}
        for part in self._parts:
            self._rows.setdefault((part["worker"], part["device"]), len(self._rows) + 1)

    def lines(self) -> Iterator[str]:
        height = TOP + ROW * (len(self._rows) + 1) + 30
        size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
        yield f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">'
        yield f"<title>{escape(self._title)}</title>"
        yield '<defs><marker id="tip" markerWidth="6" markerHeight="6" refX="5" refY="3" orient="auto">'
        yield f'<path d="M0,0 L6,3 L0,6 z" fill="{ARROW}"/></marker></defs>'
        yield f'<rect width="{WIDTH}" height="{height}" fill="white"/>'
        yield _text(LEFT, 16, self._title, 'font-weight="bold"')
        yield from self._axis(height)
        yield from self._labels()
        yield from self._arrows()
        for part in self._parts:
            yield from self._box(part)
        yield "</svg>"

    def _axis(self, height: int) -> Iterator[str]:
        for tick in range(TICKS + 1):
            seconds = self._seconds * tick / TICKS
            x = self._x(seconds)
            yield f'<line x1="{x:.1f}" y1="{TOP - 10}" x2="{x:.1f}" y2="{height - 24}" stroke="{LINE}"/>'
            yield _text(x, height - 10, f"{time_text(seconds)}", 'text-anchor="middle"')

    def _labels(self) -> Iterator[str]:
        yield _text(8, TOP + BOX / 2 + 4, "client")
        for (worker, device), row in self._rows.items():
            yield _text(8, TOP + ROW * row + BOX / 2 + 4, f"{worker}, device {device}")

    def _box(self, part: Mapping[str, Any]) -> Iterator[str]:
        times, y = self._times[part["part"]], self._y(part["part"])
        first, computed, last = (self._x(times[name]) for name in ("start_s", "computed_s", "end_s"))
        colour = COLOURS[part["part"] % len(COLOURS)]
        took, shared_s = time_text(times["computed_s"] - times["start_s"]), times["exchange_s"]
        words = f"part {part['part']}: {took}"
        more = f", then {time_text(shared_s)} with other ranks" if shared_s else ""
        title = f"{words}{more}, {counted(part['nodes'], 'node')}, {size_text(part['weight_bytes'])} of weights"
        yield f"<g><title>{escape(title)}</title>"
        yield _rect(first, y, computed - first, colour)
        if last > computed:
            yield _rect(computed, y, last - computed, EXCHANGE, "0.35")
        if last - first >= LABEL_MIN:
            yield _text(first + 4, y + BOX / 2 + 4, words if last - first >= 3 * LABEL_MIN else str(part["part"]))
        yield "</g>"

    def _arrows(self) -> Iterator[str]:
        for transfer in self._transfers[:ARROWS_MAX]:
            if self._same_place(transfer):
                continue
            x1, y1 = (
                self._x(transfer["start_s"]),
                self._y(transfer["from"]) + (BOX if transfer["from"] is None else BOX / 2),
            )
            x2, y2 = (
                self._x(transfer["end_s"]),
                self._y(transfer["to"]) + (BOX / 2 if transfer["to"] is not None else BOX),
            )
            size = size_text(transfer["size_bytes"])
            yield f"<g><title>{escape(size)}</title>"
            ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
            yield f'<line {ends} stroke="{ARROW}" marker-end="url(#tip)"/>'
            yield _text((x1 + x2) / 2 + 3, (y1 + y2) / 2, size, f'fill="{ARROW}" font-size="9"')
            yield "</g>"

    def _same_place(self, transfer: Mapping[str, Any]) -> bool:
        return None not in (transfer["from"], transfer["to"]) and self._y(transfer["from"]) == self._y(transfer["to"])

    def _x(self, seconds: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (seconds / self._seconds if self._seconds > 0 else 0.0)

    def _y(self, part: int | None) -> float:
        if part is None:
            return TOP
        return TOP + ROW * self._rows[self._parts[part]["worker"], self._parts[part]["device"]]


def _rect(x: float, y: float, width: float, colour: str, opacity: str = "0.75") -> str:
    size = f'width="{max(width, 1.0):.1f}" height="{BOX}"'
    return f'<rect x="{x:.1f}" y="{y:.1f}" {size} fill={quoteattr(colour)} fill-opacity="{opacity}" stroke="{INK}"/>'


def _text(x: float, y: float, text: str, style: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'
