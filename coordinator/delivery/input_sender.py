"""Input sender: starts a step on a worker.  Small inputs travel with its Run message; those that are copied to shared
memory without a thread are named in it; others follow it.

Runs leave in the order in which `run_step` is called, to whichever workers and for whichever plans, however long the
copies of inputs take: so gangs come in one order everywhere (worker/state/device_queue.py).  Of an input of which a
worker needs a window, only that travels.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.errors import MeshError, ProtocolError
from wire.ir.codec import tensor_bytes, tensor_copy
from wire.ir.dtypes import dtype_of
from wire.limits import KIB
from wire.link.link import Link
from wire.protocol.messages import INLINE_BYTES_MAX, Feed, Message, Push, Ran, Run, Value
from wire.system.outcome import Outcome
from wire.system.shared_memory import SharedDir, remove
from wire.system.tasks import Failed
from wire.transfer.content_exchange import OFF_LOOP_BYTES, off_loop, share_now, share_with

from ..planning.model.plan import FromInput
from ..planning.plan_messages import Fed

RUN_BYTES_MAX = 512 * KIB  # of feeds in one Run: a longer message would go by the bulk connection, and out of order
Arrays = Mapping[str, NDArray[Any]]
Sending = Callable[[str, Coroutine[Any, Any, None], Failed], asyncio.Task[None]]  # as `Tasks.run` is called


def run_step(
    link: Link, run: Run, wanted: Iterable[Fed], inputs: Arrays, shared: SharedDir | None, sending: Sending
) -> Outcome[Ran]:
    """Have a worker run a step, at once: what comes of it.  MeshError if the Run cannot leave.

    Inputs that do not leave with the Run are sent by a task of `sending`, until the worker has answered.
    """
    inline, apart = inline_feeds(wanted, inputs)
    named, later = file_feeds(link, apart, inputs, shared) if apart else ((), apart)
    answer = link.outcome_of(Run(run.plan, run.step, (*inline, *named), run.committed))
    ran: Outcome[Ran] = Outcome(answer.cancel)
    rest: asyncio.Task[None] | None = None

    def answered(message: Message | None, error: MeshError | None) -> None:
        if rest is not None:
            rest.cancel()
        if ran.done():
            return
        if isinstance(message, Ran):
            ran.set_result(message)
        else:
            what = f"expected Ran, got {type(message).__name__}"
            ran.set_exception(error or ProtocolError(what, node=link.peer.name))

    def failed(error: MeshError) -> None:
        answer.cancel()
        if not ran.done():
            ran.set_exception(error)

    if later:
        rest = sending("sending inputs", send_separately(link, run, later, inputs, shared), failed)
    answer.then(answered)
    return ran


def inline_feeds(wanted: Iterable[Fed], inputs: Arrays) -> tuple[tuple[Feed, ...], list[Fed]]:
    """The feeds that travel with a Run, and those that are sent separately."""
    feeds, apart, size_bytes = [], [], 0
    for part, slot, source in wanted:
        array = input_array(source, inputs)
        if array.nbytes > INLINE_BYTES_MAX or size_bytes + array.nbytes > RUN_BYTES_MAX:
            apart.append((part, slot, source))
            continue
        size_bytes += array.nbytes
        feeds.append(Feed(part, slot, Value(dtype_of(array).name, array.shape, tensor_copy(array))))
    return tuple(feeds), apart


def file_feeds(
    link: Link, wanted: Iterable[Fed], inputs: Arrays, shared: SharedDir | None
) -> tuple[tuple[Feed, ...], list[Fed]]:
    """The feeds of which the Run says in which file of shared memory they are, so that no message of their own wakes
    the worker again; and the others."""
    if shared is None or not link.same_host:
        return (), [*wanted]
    feeds, others, size_bytes = list[Feed](), list[Fed](), 0
    try:
        for part, slot, source in wanted:
            array = input_array(source, inputs)
            if array.nbytes <= INLINE_BYTES_MAX or size_bytes + array.nbytes > OFF_LOOP_BYTES:
                others.append((part, slot, source))
                continue
            size_bytes += array.nbytes
            name = share_now(link, shared, tensor_bytes(np.ascontiguousarray(array)))
            feeds.append(Feed(part, slot, Value(dtype_of(array).name, array.shape, None, name)))
    except MeshError:
        for feed in feeds:
            remove(shared.path, feed.value.shared)
        raise
    return tuple(feeds), others


async def send_separately(link: Link, run: Run, apart: Iterable[Fed], inputs: Arrays, shared: SharedDir | None) -> None:
    """Send the feeds that did not travel with the Run: through shared memory, or as streams."""
    key, step = run.plan, run.step
    for part, slot, source in apart:
        array = input_array(source, inputs)
        dtype = dtype_of(array).name
        contiguous = await off_loop(array.nbytes, np.ascontiguousarray, array)
        if array.nbytes <= INLINE_BYTES_MAX:
            link.notify(Push(key, step, part, slot, Value(dtype, array.shape, tensor_copy(contiguous))))
        elif link.same_host and shared is not None:
            name = await share_with(link, shared, tensor_bytes(contiguous))
            link.notify(Push(key, step, part, slot, Value(dtype, array.shape, None, name)))
        else:
            await link.send_stream(Push(key, step, part, slot, Value(dtype, array.shape)), tensor_bytes(contiguous))


def input_array(source: FromInput, inputs: Arrays) -> NDArray[Any]:
    """The array that a call has for an input, or the window of it that is asked for."""
    array = inputs[source.name]
    return array if source.window is None else source.window.of(array)
