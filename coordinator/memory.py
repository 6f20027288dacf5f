"""What the parts of a plan hold while they run, counted from the parts themselves.

The cost model counts the same of an assignment, in the order of the whole graph.  A part's own graph may have another
order (its canonical one), in which other results are alive at once; so a plan is counted again before it is believed.
"""

from __future__ import annotations

from collections.abc import Iterable

from .plan import Part
from .working_set import DUPLICATED, working_set


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
        made[site] = max(made.get(site, 0), working_set(part.graph))
    return {site: most + sum(held[site].values()) for site, most in made.items()}
