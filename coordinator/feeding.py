"""How a step begins on a worker, and how its inputs get there: small ones with its Run, and others after it.

Runs are sent in the order in which `begin` was called, to whichever workers and for whichever plans, however long the
copies of inputs take: so gangs come in one order everywhere (worker/lanes.py).  Of an input of which a worker needs a
window, only that travels.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.codec import tensor_bytes
from wire.dtypes import dtype_of
from wire.errors import ProtocolError
from wire.exchange import off_loop
from wire.limits import KIB
from wire.link import Link
from wire.messages import INLINE_BYTES_MAX, Feed, Message, PlanKey, Push, Ran, Run, Value
from wire.sharedmem import SharedDir

from .dispatch import Fed
from .plan import FromInput

RUN_BYTES_MAX = 512 * KIB  # of feeds in one Run: a longer message would go by the bulk connection, and out of order
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Begun:
    """A step on one worker; `apart` has yet to be sent."""

    link: Link
    key: PlanKey
    step: int
    ran: asyncio.Task[Message]
    apart: Sequence[Fed]
    inputs: Arrays


def begin(link: Link, key: PlanKey, step: int, wanted: Iterable[Fed], inputs: Arrays, committed: int = 0) -> Begun:
    """Have the Run leave next.  To be called as soon as it is decided, and never from within a task that waited."""
    feeds, apart = with_run(wanted, inputs)
    ran = asyncio.get_running_loop().create_task(link.request(Run(key, step, feeds, committed)))
    return Begun(link, key, step, ran, apart, inputs)


async def outcome(begun: Begun, shared: SharedDir | None) -> Ran:
    """What the worker answers, once the other inputs were sent, too; its MeshError, or NodeLost."""
    try:
        await send_apart(begun, shared)
        answer = await begun.ran
    finally:
        begun.ran.cancel()  # if it was not fed, it need not wait
    if not isinstance(answer, Ran):
        raise ProtocolError(f"expected Ran, got {type(answer).__name__}", node=begun.link.peer.name)
    return answer


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


async def send_apart(begun: Begun, shared: SharedDir | None) -> None:
    """Send what did not ride along: through shared memory, or as streams."""
    link, key, step = begun.link, begun.key, begun.step
    for part, slot, source in begun.apart:
        array = given(source, begun.inputs)
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
