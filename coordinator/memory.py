"""What the parts of a plan hold while they run, counted from the parts themselves.

The cost model counts the same of an assignment, in the order of the whole graph.  A part's own graph may have another
order (its canonical one), in which other results are alive at once; so a plan is counted again before it is believed.
"""

from __future__ import annotations

from collections.abc import Iterable

from wire.graph import WireGraph

from .cost import DUPLICATED
from .plan import Part


def memory_by_site(parts: Iterable[Part]) -> dict[tuple[str, int], int]:
    """Per (worker, device) the most bytes held at once by one call.

    All that its parts read stays, each tensor once; of what they make, the largest working set of a part is added.
    """
    held: dict[tuple[str, int], dict[object, int]] = {}
    made: dict[tuple[str, int], int] = {}
    for part in parts:
        site = (part.node, part.device)
        mine = held.setdefault(site, {})
        for index, node in enumerate(part.graph.nodes):
            if node.op == "input":
                mine[part.sources[int(node.attrs["name"])]] = part.graph.types[index].size_bytes
            elif node.op in DUPLICATED:
                mine[node] = part.graph.types[index].size_bytes
        made[site] = max(made.get(site, 0), _working_set(part.graph))
    return {site: most + sum(held[site].values()) for site, most in made.items()}


def _working_set(graph: WireGraph) -> int:
    """The most bytes of results alive at once, where a result is freed after its last reader and an output never."""
    last_reader = {source: index for index, node in enumerate(graph.nodes) for source in node.inputs}
    freed_by: dict[int, int] = {}
    for source, reader in last_reader.items():
        if graph.nodes[source].op not in DUPLICATED and source not in graph.outputs:
            freed_by[reader] = freed_by.get(reader, 0) + graph.types[source].size_bytes
    alive = most = 0
    for index, node in enumerate(graph.nodes):
        if node.op not in DUPLICATED:
            alive += graph.types[index].size_bytes
            most = max(most, alive)
            alive -= freed_by.get(index, 0)
    return most
