"""What a caller says of its calls: how graphs of them are built, placed and kept, and where they run.

It does not know how functions are traced or graphs are run.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

from wire.errors import ConfigError, GraphError, InputError
from wire.ir.device_names import ANY
from wire.ir.graph import WireGraph
from wire.ir.ops import COLLECTIVES, inner_graphs
from wire.ir.text import to_text

MODES = ("auto", "on", "off", "local")
HERE = ("off", "local")  # computed in this process, whatever workers there are


@dataclass(frozen=True, slots=True)
class CallOptions:
    """`strategy` says how calls are placed, `mode` where they run, and `copies` which copies of params workers keep.

    `name` is the graphs' ("": what they have), and that of their files in `folder`, where there is one.  Without
    `cache` nothing is kept from one call to the next.  With `force` the first call compiles the graph anew wherever it
    runs, whatever is in the caches, and they get what comes of it.
    """

    strategy: str = "auto"
    mode: str = "auto"
    copies: str = "checkpoint"
    name: str = ""
    cache: bool = True
    folder: Path | None = None
    force: bool = False

    def built(self, graph: WireGraph) -> WireGraph:
        """The graph as it is called; GraphError if it must not be, ConfigError if it cannot be written."""
        if self.mode == "local":
            check_local(graph)
        if self.name:
            graph = replace(graph, name=self.name)
        if self.folder is not None:
            _write(graph, self.folder)
        return graph


def checked_options(
    strategy: str, mode: str, copies: str, name: str, cache: bool, build_dir: str | Path | None, force: bool
) -> CallOptions:
    """What a caller said, checked; InputError for a mode that is not known."""
    if not isinstance(mode, str) or mode not in MODES:
        raise InputError(f"{mode=} is not known", next_step=f"Choose one of {', '.join(map(repr, MODES))}")
    if not isinstance(name, str):
        raise InputError(f"the name of a graph is a text, not {name!r}")
    if not isinstance(cache, bool) or not isinstance(build_dir, str | PathLike | None):
        raise InputError(f"cache is True or False, and build_dir a folder or None, not {cache!r} and {build_dir!r}")
    if not isinstance(force, bool):
        raise InputError(f"force is True or False, not {force!r}")
    folder = None if build_dir is None else Path(build_dir).expanduser()
    return CallOptions(strategy, mode, copies, name, cache, folder, force)


def forced(force: bool, use_cached_if_exists: bool) -> bool:
    """Whether to compile anew, by either of two names."""
    if not isinstance(use_cached_if_exists, bool):
        raise InputError(f"use_cached_if_exists is True or False, not {use_cached_if_exists!r}")
    return force if use_cached_if_exists else True


def check_local(graph: WireGraph) -> None:
    """Raise GraphError if a graph, or one inside it, has ranks that exchange tensors, or values for other devices."""
    for op, _, attrs in graph.nodes:
        if op in COLLECTIVES:
            raise GraphError(
                f"mode='local' computes in this process alone, and {op} speaks with other ranks",
                op=op,
                next_step="mode='off' computes here what all ranks together would",
            )
        if op == "transfer" and attrs["device"] not in ("cpu", ANY):
            raise GraphError(f"mode='local' computes in this process alone, not on {attrs['device']!r}", op=op)
        for inner in inner_graphs(op, attrs):
            check_local(inner)


def _write(graph: WireGraph, folder: Path) -> None:
    """`NAME-HASH.wire`, which commands take, and the same as text; whole, or not there."""
    name = "".join(char if char.isalnum() or char in "-_." else "_" for char in graph.name) or "graph"
    stem = f"{name}-{graph.hash.hex()[:8]}"
    new = folder / f".{stem}.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        graph.save(new)
        os.replace(new, folder / f"{stem}.wire")
        new.write_text(to_text(graph), encoding="utf-8")
        os.replace(new, folder / f"{stem}.txt")
    except OSError as error:
        raise ConfigError(f"the graph cannot be written to {folder}", cause=str(error)) from None
