"""Memory planning: intermediate tensors share buffers, by a linear scan over the dispatches with best fit.

A tensor lives from the dispatch that first stores it to the last that binds it; outputs live to the end.  Two tensors
of one dispatch never share a slot, so a kernel never reads what it is writing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


def assign_slots(
    uses: Sequence[Iterable[int]], sizes: Mapping[int, int], keep: Iterable[int]
) -> tuple[dict[int, int], list[int]]:
    """`uses[t]` are the tensors dispatch t binds, `sizes` the bytes of those to place, `keep` the ones never freed.

    Returns each tensor's slot and each slot's bytes.
    """
    last = {tensor: time for time, bound in enumerate(uses) for tensor in bound}
    forever = set(keep)
    placed: dict[int, int] = {}
    slots: list[int] = []
    free: list[int] = []
    for time, bound in enumerate(uses):
        tensors = sorted(tensor for tensor in set(bound) if tensor in sizes)
        for tensor in tensors:
            if tensor not in placed:
                placed[tensor] = _take(slots, free, sizes[tensor])
        free += [placed[tensor] for tensor in tensors if last[tensor] == time and tensor not in forever]
    return placed, slots


def _take(slots: list[int], free: list[int], size: int) -> int:
    """The smallest free slot that is large enough, else the largest free one grown, else a new one."""
    fitting = [slot for slot in free if slots[slot] >= size]
    if fitting:
        chosen = min(fitting, key=lambda slot: (slots[slot], slot))
    elif free:
        chosen = max(free, key=lambda slot: (slots[slot], -slot))
        slots[chosen] = size
    else:
        slots.append(size)
        return len(slots) - 1
    free.remove(chosen)
    return chosen
