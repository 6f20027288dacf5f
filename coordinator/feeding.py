"""How a call's inputs get to a worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from wire.codec import tensor_bytes
from wire.dtypes import dtype_of
from wire.exchange import off_loop
from wire.link import Link
from wire.messages import INLINE_BYTES_MAX, Feed, PlanKey, Push, Value
from wire.sharedmem import SharedDir


async def feeds_of(
    link: Link,
    shared: SharedDir | None,
    key: PlanKey,
    step: int,
    wanted: Sequence[tuple[int, int, str]],
    inputs: Mapping[str, NDArray[Any]],
) -> tuple[tuple[Feed, ...], list[tuple[Push, memoryview]]]:
    """A call's inputs for one worker: small ones inline, large ones through shared memory or as streams."""
    feeds, streams = [], []
    for part, slot, name in wanted:
        array = inputs[name]
        dtype = dtype_of(array).name
        if array.nbytes <= INLINE_BYTES_MAX:
            value = Value(dtype, array.shape, tensor_bytes(array).tobytes())
        elif link.same_host and shared is not None:
            name_there = await off_loop(array.nbytes, shared.write, [tensor_bytes(array)])
            link.bytes_sent["shared"] += array.nbytes
            value = Value(dtype, array.shape, None, name_there)
        else:
            value = Value(dtype, array.shape)
            streams.append((Push(key, step, part, slot, value), tensor_bytes(array)))
        feeds.append(Feed(part, slot, value))
    return tuple(feeds), streams
