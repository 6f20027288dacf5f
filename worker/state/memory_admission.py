"""Memory admission: how much of a worker's memory is taken by what it holds for other workers.  Pure.

A plan without parts has a worker hold content for others: copies of their weights, or of a session's state.  It counts
against the worker's budget beside what the worker computes with; content that it computes with itself counts once.

What is kept for a coordinator that fell silent gives way where other programs need the machine's memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from wire.byte_sizes import size_text
from wire.errors import OutOfMemory
from wire.protocol.messages import Deploy

from .deployments import Plan
from .events import MemoryLeft

SHORT_SHARE = 1 / 20  # of the machine's memory: with less left it begins to swap, or to kill


def kept_bytes(plans: Collection[Plan]) -> int:
    """What is held for others only."""
    own = _blobs(plan for plan in plans if plan.parts)
    return sum(size for blob, size in _blobs(plan for plan in plans if not plan.parts).items() if blob not in own)


def no_room(deploy: Deploy, node: str, plans: Collection[Plan], memory_bytes: int) -> OutOfMemory | None:
    """Why this cannot be held for others.  What `node`, this worker, has made itself is there in any case."""
    if deploy.parts or not memory_bytes:
        return None
    own = _blobs(plan for plan in plans if plan.parts)
    kept = _blobs(plan for plan in plans if not plan.parts)
    kept |= (asked := {spec.blob: spec.size_bytes for spec in deploy.blobs if node not in spec.holders})
    more = sum(size for blob, size in kept.items() if blob not in own)
    mine = sum(own.values()) + max((plan.working_bytes for plan in plans), default=0)
    if not asked or mine + more <= memory_bytes:
        return None
    return OutOfMemory(
        f"{size_text(more)} are to be kept for other workers, beside {size_text(mine)} to compute with; "
        f"the budget is {size_text(memory_bytes)}",
        next_step="Give the worker a larger --max-memory, or choose copies that take less",
    )


def shortage(left: MemoryLeft) -> str:
    """In which way the machine runs short of memory, "" if it does not."""
    if left.free_bytes >= left.total_bytes * SHORT_SHARE:
        return ""
    return f"this machine has {size_text(left.free_bytes)} of {size_text(left.total_bytes)} of memory left"


def _blobs(plans: Iterable[Plan]) -> dict[bytes, int]:
    return {blob: plan.sizes[blob] for plan in plans for blob in plan.blobs}
