"""PlanPreview: a plan as people and programs read it, before a byte moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True)
class PlanPreview:
    """What would go where.  `data` is the plan as plain data (docs/planning.md); `str(preview)` is a table."""

    data: Mapping[str, Any]

    @property
    def parts(self) -> Sequence[Mapping[str, Any]]:
        """One entry per part: part, worker, device, engine, nodes, flops, weight_bytes, graph."""
        parts: Sequence[Mapping[str, Any]] = self.data["parts"]
        return parts

    @property
    def workers(self) -> tuple[str, ...]:
        """The names of the workers that have work."""
        return tuple(dict.fromkeys(part["worker"] for part in self.parts))

    @property
    def seconds(self) -> float:
        """Predicted seconds per call."""
        return float(self.data["seconds"])

    @property
    def cut_bytes(self) -> int:
        """Predicted bytes between machines per call."""
        return int(self.data["cut_bytes"])

    @property
    def reasons(self) -> tuple[str, ...]:
        return tuple(self.data["reasons"])

    @property
    def deaths(self) -> Sequence[Mapping[str, Any]]:
        """One entry per worker whose death is planned for already: worker, seconds (predicted per call without it) and
        whether that plan was rehearsed, so that weights and kernels are where it needs them."""
        deaths: Sequence[Mapping[str, Any]] = self.data.get("deaths", ())
        return deaths

    @property
    def gangs(self) -> Sequence[Mapping[str, Any]]:
        """One entry per grid whose ranks have a device each: axes (sizes by name), ranks (part, worker, device, place
        on the grid), groups (ranks by axis), seconds and sent_bytes of its collectives."""
        gangs: Sequence[Mapping[str, Any]] = self.data.get("gangs", ())
        return gangs

    @property
    def redundancy(self) -> Mapping[str, Any]:
        """Which copies of the weights are kept (copies, meaning, deaths_survived), memory (worker, own_bytes, and
        kept_bytes for others), and deaths: worker, lost_bytes, moved_bytes, client_bytes of these, and the seconds
        until the others have what was lost."""
        redundancy: Mapping[str, Any] = self.data.get("redundancy", {})
        return redundancy

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("part", "worker", "device", "engine", "nodes", "GFLOP", "weights")]
        rows += [
            (
                *(str(p[key]) for key in ("part", "worker", "device", "engine", "nodes")),
                f"{p['flops'] / 1e9:.3g}",
                size_text(p["weight_bytes"]),
            )
            for p in self.parts
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        deaths = [
            f"if {each['worker']} is lost: planned{' and rehearsed' if each['rehearsed'] else ''} ahead, "
            f"predicted {each['seconds'] * 1e3:.3g} ms per call"
            for each in self.deaths
        ]
        return "\n".join(
            [*lines, *map(_ranks_text, self.gangs), *self.reasons, *deaths, *_copies_text(self.redundancy)]
        )


def _ranks_text(gang: Mapping[str, Any]) -> str:
    """Who is which rank: "grid dp 2 x tp 2: (0,0) anna, (0,1) berta, ..."."""
    grid = " x ".join(f"{axis} {size}" for axis, size in gang["axes"].items())
    ranks = (f"({','.join(map(str, rank['at']))}) {rank['worker']}" for rank in gang["ranks"])
    return f"grid {grid}: {', '.join(ranks)}"


def _copies_text(redundancy: Mapping[str, Any]) -> list[str]:
    """What is kept against deaths, what that costs, and what each death costs."""
    if not redundancy or not redundancy["deaths"]:
        return []
    kept = ", ".join(f"{row['worker']} {size_text(row['kept_bytes'])}" for row in redundancy["memory"])
    memory = f"; for others hold {kept}" if any(row["kept_bytes"] for row in redundancy["memory"]) else ""
    return [
        f"copies {redundancy['copies']}: {redundancy['meaning']}{memory}",
        *(
            f"if {row['worker']} dies: {size_text(row['lost_bytes'])} of weights are lost, {_moved(row)} and are there "
            f"in {row['seconds'] * 1e3:.3g} ms"
            for row in redundancy["deaths"]
        ),
    ]


def _moved(row: Mapping[str, Any]) -> str:
    if not row["moved_bytes"]:
        return "are held elsewhere"
    source = "the client" if row["client_bytes"] == row["moved_bytes"] else "other workers"
    return f"{size_text(row['moved_bytes'])} come from {source}"


def size_text(size_bytes: float) -> str:
    """A size for people: "12.5 MiB"."""
    size, unit = float(size_bytes), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.0f} {_UNITS[unit]}" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"
