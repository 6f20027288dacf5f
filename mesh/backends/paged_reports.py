"""Paged reports: all that a coordinator tells of its workers, in as many answers as that takes
(`coordinator/workers/paged_reports.py`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from wire.protocol.messages import NodeReport, Nodes, PairReport


async def whole(ask: Callable[[tuple[str, ...]], Awaitable[Nodes]]) -> Nodes:
    """What the answers tell together; `ask` has what comes after the end of the answer before, () for the first."""
    nodes: dict[str, NodeReport] = {}
    pairs: dict[tuple[str, str], PairReport] = {}
    after: tuple[str, ...] = ()
    while True:
        answer = await ask(after)
        nodes |= {each.node_id: each for each in answer.nodes}
        pairs |= {(each.source, each.target): each for each in answer.pairs}
        if not answer.more:
            told = tuple(nodes.values()), answer.node_timeout_s, tuple(pairs.values())
            return Nodes(*told, answer.time_s, answer.system)
        after = (answer.pairs[-1].source, answer.pairs[-1].target) if answer.pairs else (answer.nodes[-1].node_id,)
