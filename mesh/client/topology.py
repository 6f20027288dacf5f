"""The topology of a mesh: workers, their devices, and what is between them, as a Graphviz drawing or as plain data.

Pure: it draws from the reports of a coordinator, and needs no Graphviz.  Names may hold anything: nodes are numbered,
and all that is read stands in quoted labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wire.protocol.messages import PairReport

from ..core.node import Device, Node
from ..util.units import size_text, speed_text, time_text

STYLES = {"direct": "solid", "shared memory": "bold", "relay": "dashed"}
COLOURS = {"healthy": "black", "suspect": "orange", "dead": "red", "stuck": "red", "quarantined": "red"}


@dataclass(frozen=True, slots=True)
class Link:
    """What is between two nodes, the better of both ways; figures are 0 where nothing was measured."""

    ends: tuple[str, str]
    path: str
    rtt_s: float
    bytes_per_s: float
    cause: str = ""

    @property
    def label(self) -> str:
        measured = [f"{time_text(self.rtt_s)}"] if self.rtt_s else []
        measured += [f"{self.bytes_per_s * 8 / 1e6:.0f} Mbit/s"] if self.bytes_per_s else []
        return "\n".join([self.path, ", ".join(measured)]).strip()


def links(pairs: Sequence[PairReport]) -> tuple[Link, ...]:
    """One link for both ways between two nodes, in the order of names."""
    ways: dict[tuple[str, str], list[PairReport]] = {}
    for pair in pairs:
        ends = min(pair.source, pair.target), max(pair.source, pair.target)
        ways.setdefault(ends, []).append(pair)
    return tuple(_link(ends, both) for ends, both in sorted(ways.items()))


def dot(nodes: Sequence[Node], pairs: Sequence[PairReport]) -> str:
    """The mesh in the DOT language: a box per worker, a line per link; dashed where bytes pass the coordinator."""
    names = [*[node.name for node in nodes], *sorted({end for link in links(pairs) for end in link.ends})]
    numbers = {name: f"n{place}" for place, name in enumerate(dict.fromkeys(names))}
    boxes = {node.name: node for node in nodes}
    lines = ["graph mesh {", "  node [shape=box];"]
    for name, number in numbers.items():
        node = boxes.get(name)
        shape = "" if node else ", shape=ellipse"
        colour = COLOURS.get(node.state, "gray") if node else "black"
        lines.append(f"  {number} [label={quoted(_label(name, node))}, color={colour}{shape}];")
    for link in links(pairs):
        one, other = (numbers[end] for end in link.ends)
        style = STYLES.get(link.path, "dotted")
        lines.append(f"  {one} -- {other} [label={quoted(link.label)}, style={style}];")
    return "\n".join([*lines, "}", ""])


def data(nodes: Sequence[Node], pairs: Sequence[PairReport]) -> dict[str, Any]:
    """The topology as plain data, for programs."""
    workers = [
        {
            "name": node.name,
            "state": node.state,
            "address": node.address,
            "devices": [
                {
                    name: getattr(device, name)
                    for name in ("engine", "adapter", "memory_bytes", "gflops", "gbytes_per_s")
                }
                for device in node.devices
            ],
        }
        for node in nodes
    ]
    fields = ("ends", "path", "rtt_s", "bytes_per_s", "cause")
    return {"workers": workers, "links": [{name: getattr(link, name) for name in fields} for link in links(pairs)]}


def quoted(text: str) -> str:
    """A label of the DOT language that reads `text`, whatever is in it."""
    plain = text.replace("\\", "\\\\").replace('"', '\\"').replace("\r", "").replace("\n", "\\n").replace("\0", "")
    return f'"{plain}"'


def _link(ends: tuple[str, str], ways: Sequence[PairReport]) -> Link:
    reached = [way for way in ways if way.path in STYLES] or list(ways)
    best = min(reached, key=lambda way: list(STYLES).index(way.path) if way.path in STYLES else len(STYLES))
    rtts = [way.rtt_s for way in reached if way.rtt_s]
    rates = [way.bytes_per_s for way in reached]
    return Link(ends, best.path, min(rtts, default=0.0), max(rates), best.cause)


def _label(name: str, node: Node | None) -> str:
    if node is None:
        return f"{name}\ncoordinator"
    return "\n".join([f"{name} ({node.state})", *map(_device, node.devices)])


def _device(device: Device) -> str:
    return f"{device.engine} {device.adapter}: {size_text(device.memory_bytes)}, {speed_text(device.gflops)} GFLOP/s"
