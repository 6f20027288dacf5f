"""Paged reports: all that a coordinator tells of its workers, in as many answers as that takes
(`coordinator/workers/paged_reports.py`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from wire.protocol.messages import NodeReport, Nodes, PairReport


async def all_pages(ask: Callable[[tuple[str, ...]], Awaitable[Nodes]]) -> Nodes:
    """All answers as one.  `ask(after)` asks for the reports after the last one of the answer before, () at first."""
    nodes: dict[str, NodeReport] = {}
    pairs: dict[tuple[str, str], PairReport] = {}
    after: tuple[str, ...] = ()
    while True:
        answer = await ask(after)
        nodes |= {node.node_id: node for node in answer.nodes}
        pairs |= {(pair.source, pair.target): pair for pair in answer.pairs}
        if not answer.more:
            together = tuple(nodes.values()), answer.node_timeout_s, tuple(pairs.values())
            return Nodes(*together, answer.time_s, answer.system, loop_lag_s=answer.loop_lag_s)
        after = (answer.pairs[-1].source, answer.pairs[-1].target) if answer.pairs else (answer.nodes[-1].node_id,)
