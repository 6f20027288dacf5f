"""How a call's inputs get to a worker: small ones in its Run, which is sent at once, and others after it.

So the Runs of one step leave before those of the next, however long copies take.  Of an input of which a worker needs
only a window, only that travels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.codec import tensor_bytes
from wire.dtypes import dtype_of
from wire.exchange import off_loop
from wire.limits import KIB
from wire.link import Link
from wire.messages import INLINE_BYTES_MAX, Feed, PlanKey, Push, Value
from wire.sharedmem import SharedDir

from .dispatch import Fed
from .plan import FromInput

RUN_BYTES_MAX = 512 * KIB  # of feeds in one Run: a longer message would go by the bulk connection, and out of order
Arrays = Mapping[str, NDArray[Any]]


def with_run(wanted: Iterable[Fed], inputs: Arrays) -> tuple[tuple[Feed, ...], list[Fed]]:
    """What rides along with a Run, and what is sent apart."""
    feeds, apart, size_bytes = [], [], 0
    for part, slot, source in wanted:
        array = given(source, inputs)
        if array.nbytes > INLINE_BYTES_MAX or size_bytes + array.nbytes > RUN_BYTES_MAX:
            apart.append((part, slot, source))
            continue
        size_bytes += array.nbytes
        feeds.append(Feed(part, slot, Value(dtype_of(array).name, array.shape, tensor_bytes(array).tobytes())))
    return tuple(feeds), apart


async def send_apart(
    link: Link, shared: SharedDir | None, key: PlanKey, step: int, apart: Iterable[Fed], inputs: Arrays
) -> None:
    """Send what did not ride along: through shared memory, or as streams."""
    for part, slot, source in apart:
        array = given(source, inputs)
        dtype = dtype_of(array).name
        whole = await off_loop(array.nbytes, np.ascontiguousarray, array)
        if array.nbytes <= INLINE_BYTES_MAX:
            link.notify(Push(key, step, part, slot, Value(dtype, array.shape, tensor_bytes(whole).tobytes())))
        elif link.same_host and shared is not None:
            name = await off_loop(array.nbytes, shared.write, [tensor_bytes(whole)])
            link.bytes_sent["shared"] += array.nbytes
            link.notify(Push(key, step, part, slot, Value(dtype, array.shape, None, name)))
        else:
            await link.send_stream(Push(key, step, part, slot, Value(dtype, array.shape)), tensor_bytes(whole))


def given(source: FromInput, inputs: Arrays) -> NDArray[Any]:
    """What a call gives for an input, or the window of it that is meant."""
    array = inputs[source.name]
    return array if source.window is None else source.window.of(array)
