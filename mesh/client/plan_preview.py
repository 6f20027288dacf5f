"""PlanPreview: a plan as people and programs read it, before a byte moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..util.units import counted, size_text, time_text
from .plan_svg import svg


@dataclass(frozen=True, repr=False)
class PlanPreview:
    """A plan before anything is sent; `Mesh.plan` returns it, and `print` shows it as a table.

    Parameters
    ----------
    data : mapping
        The plan as plain data (docs/planning.md).

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> with mesh.Mesh.builder().simulate(2).build() as m:
    ...     preview = m.plan(lambda x: x @ x, np.ones((64, 64), np.float32), strategy="single")
    >>> preview.parts[0]["device"], preview.seconds > 0, preview.cut_bytes
    (0, True, 32768)
    >>> preview.svg()[:4]
    '<svg'
    """

    data: Mapping[str, Any]

    @property
    def parts(self) -> Sequence[Mapping[str, Any]]:
        """One entry for each part: part, worker, device, engine, nodes, flops, weight_bytes, graph."""
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
        """Why the plan is as it is, a sentence each."""
        return tuple(self.data["reasons"])

    @property
    def deaths(self) -> Sequence[Mapping[str, Any]]:
        """One entry for each worker whose death is planned for already.

        It has the worker, seconds (predicted per call without it) and whether that plan was rehearsed, so that weights
        and kernels are where it needs them.
        """
        deaths: Sequence[Mapping[str, Any]] = self.data.get("deaths", ())
        return deaths

    @property
    def gangs(self) -> Sequence[Mapping[str, Any]]:
        """One entry for each grid whose ranks have a device each.

        It has axes (sizes by name), ranks (part, worker, device, place on the grid), groups (ranks by axis), and
        seconds and sent_bytes of its collectives.
        """
        gangs: Sequence[Mapping[str, Any]] = self.data.get("gangs", ())
        return gangs

    @property
    def redundancy(self) -> Mapping[str, Any]:
        """The copies of the weights, what they cost, and what each death costs (docs/redundancy.md).

        It has copies, meaning and deaths_survived; memory (worker, own_bytes, and kept_bytes for others); and deaths
        (worker, lost_bytes, moved_bytes, client_bytes of these, and the seconds until the others have what was lost).
        """
        redundancy: Mapping[str, Any] = self.data.get("redundancy", {})
        return redundancy

    @property
    def candidates(self) -> Sequence[Mapping[str, Any]]:
        """The plans that "auto" chose among, the best first.

        Each has a name, seconds (predicted per call, None if it was not planned), workers that would have work, and why
        it was not planned.
        """
        candidates: Sequence[Mapping[str, Any]] = self.data.get("candidates", ())
        return candidates

    @property
    def timeline(self) -> Mapping[str, Any]:
        """The predicted times of a call.

        It has the seconds of the call; parts (part, start_s, computed_s, end_s, and exchange_s with other ranks); and
        transfers (from, to: parts, or None for the client; size_bytes, start_s, end_s).
        """
        timeline: Mapping[str, Any] = self.data.get("timeline", {})
        return timeline

    @property
    def what_if_dies(self) -> Mapping[str, Any]:
        """What follows from the death that `Mesh.plan` was asked about.

        It has the worker, the plan without it (as `data`), call_s and before_s (predicted per call then and now),
        weights (param, worker that needs it, source "disk", "peer" or "client", size_bytes, seconds), moved_bytes and
        seconds of all of them, and planned_ahead.
        """
        death: Mapping[str, Any] = self.data.get("what_if_dies", {})
        return death

    def svg(self) -> str:
        """Draw which worker computes what, and when.

        Returns
        -------
        str
            An SVG document.
        """
        return svg(self.data)

    def __repr__(self) -> str:
        parts, who = counted(len(self.parts), "part"), ", ".join(self.workers)
        return f"<PlanPreview: {parts} on {who}, predicted {time_text(self.seconds)} per call; print() shows it>"

    def __str__(self) -> str:
        titles = ("part", "worker", "device", "engine", "nodes", "GFLOP", "weights", "from", "to")
        times = {part["part"]: part for part in self.timeline.get("parts", ())}
        rows: list[tuple[str, ...]] = [titles if times else titles[:-2]]
        rows += [
            (
                *(str(p[key]) for key in ("part", "worker", "device", "engine", "nodes")),
                f"{p['flops'] / 1e9:.3g}",
                size_text(p["weight_bytes"]),
                *(f"{time_text(times[p['part']][when])}" for when in ("start_s", "end_s") if times),
            )
            for p in self.parts
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        deaths = [
            f"if {death['worker']} is lost: planned{' and rehearsed' if death['rehearsed'] else ''} ahead, "
            f"predicted {time_text(death['seconds'])} per call"
            for death in self.deaths
        ]
        return "\n".join(
            [
                *lines,
                *map(_ranks_text, self.gangs),
                *self.reasons,
                *_candidates_text(self.candidates),
                *deaths,
                *_copies_text(self.redundancy),
                *_death_text(self.what_if_dies),
            ]
        )


def _ranks_text(gang: Mapping[str, Any]) -> str:
    """The worker of each rank: "grid dp 2 x tp 2: (0,0) anna, (0,1) berta, ..."."""
    grid = " x ".join(f"{axis} {size}" for axis, size in gang["axes"].items())
    ranks = (f"({','.join(map(str, rank['at']))}) {rank['worker']}" for rank in gang["ranks"])
    return f"grid {grid}: {', '.join(ranks)}"


def _candidates_text(candidates: Sequence[Mapping[str, Any]]) -> list[str]:
    """What every way to do it is predicted to take."""
    return [
        f"  {candidate['name']}: {candidate['why'] or _took_text(candidate)}"
        for candidate in candidates
        if len(candidates) > 1
    ]


def _took_text(candidate: Mapping[str, Any]) -> str:
    workers = candidate["workers"]
    return f"{time_text(candidate['seconds'])} on {counted(workers, 'worker')}"


def _death_text(death: Mapping[str, Any]) -> list[str]:
    """What follows from a death."""
    if not death:
        return []
    then, plan = time_text(death["call_s"]), death["plan"]
    sources: dict[str, int] = {}
    for weight in death["weights"]:
        sources[weight["source"]] = sources.get(weight["source"], 0) + weight["size_bytes"]
    come = ", ".join(f"{size_text(size)} from {SOURCES[source]}" for source, size in sources.items())
    workers = dict.fromkeys(part["worker"] for part in plan["parts"])
    return [
        (
            f"if {death['worker']} dies, {', '.join(workers)} will do its work: predicted {then} per call "
            f"instead of {time_text(death['before_s'])}"
            f"{', by a plan that is made already' if death['planned_ahead'] else ''}"
        ),
        f"  weights that move: {come or 'none'}; there in {time_text(death['seconds'])}",
        *(
            f"  part {part['part']} on {part['worker']}, device {part['device']}: {counted(part['nodes'], 'node')}, "
            f"{size_text(part['weight_bytes'])} of weights"
            for part in plan["parts"]
        ),
    ]


SOURCES = {"disk": "the disk of the worker that needs them", "peer": "other workers", "client": "the client"}


def _copies_text(redundancy: Mapping[str, Any]) -> list[str]:
    """What is kept against deaths, what that costs, and what each death costs."""
    if not redundancy or not redundancy["deaths"]:
        return []
    kept = ", ".join(f"{row['worker']} {size_text(row['kept_bytes'])}" for row in redundancy["memory"])
    alone = len(redundancy["memory"]) == 1
    memory = f"; stored for others: {kept}" if any(row["kept_bytes"] for row in redundancy["memory"]) else ""
    if redundancy.get("unkept_bytes"):
        memory += f"; for {size_text(redundancy['unkept_bytes'])} there is no room"
    return [
        f"copies {redundancy['copies']}: {redundancy['meaning']}{memory}",
        *(
            f"if {row['worker']} dies: {size_text(row['lost_bytes'])} of weights are lost, {_moved(row, alone)}"
            for row in redundancy["deaths"]
        ),
    ]


def _moved(row: Mapping[str, Any], alone: bool) -> str:
    if alone:
        return "and no worker is left that could have them"
    return f"{_source(row)} and are there in {time_text(row['seconds'])}"


def _source(row: Mapping[str, Any]) -> str:
    if not row["moved_bytes"]:
        return "are held elsewhere"
    source = "the client" if row["client_bytes"] == row["moved_bytes"] else "other workers"
    return f"{size_text(row['moved_bytes'])} come from {source}"
