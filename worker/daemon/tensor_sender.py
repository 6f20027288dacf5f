"""Tensor sender: sends tensors to other workers, and a step's outputs to the coordinator.

A small tensor travels in a message.  A large one travels as a file if the receiver is on this machine, as a stream if
it is not, and through the coordinator if there is no link.  Zeros at the end of a tensor do not travel to another
machine: where texts are generated, there is room for more tokens than a step has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from wire.errors import MeshError
from wire.limits import KIB, MIB
from wire.link.endpoint import Endpoint
from wire.link.link import Link
from wire.protocol.messages import INLINE_BYTES_MAX, Output, Push, Ran, Value
from wire.system.shared_memory import remove, take
from wire.system.steady_log import steady_logger
from wire.system.tasks import Tasks
from wire.transfer.zeros import zeros_behind

from ..state import events as ev
from .machine_shell import Performers
from .tensor_refs import INLINE_WHOLE_BYTES_MAX, bytes_of, header_of, push_of

log = steady_logger("graph_mesh.worker")
RAN_INLINE_BYTES_MAX = 512 * KIB  # inline outputs of one Ran; a control frame holds 1 MiB
LOOKED_AT_ONCE_BYTES_MAX = 4 * MIB  # for zeros, in the event loop

Send = Callable[[ev.SendPush], Awaitable[None]]


class TensorSender:
    """The sender uses the links of `endpoint`, and `relay` for a worker without a link.  `feed` takes the outcome."""

    def __init__(self, endpoint: Endpoint, relay: Send, feed: Callable[[ev.Event], None]) -> None:
        self._endpoint = endpoint
        self._relay = relay
        self._feed = feed
        self._tasks = Tasks()
        self._pushes: dict[int, asyncio.Task[None]] = {}  # streams and relays in flight, by push

    def close(self) -> None:
        self._tasks.cancel()

    def performers(self) -> Performers:
        return {ev.SendPush: self.push, ev.StopPush: self.stop_push}

    # -- to other workers

    def push(self, action: ev.SendPush) -> None:
        """Send a tensor to a worker; answered by PushSent or PushFailed."""
        link = self._endpoint.links.get(action.node)
        if link is None or link.closed:
            self._push_in_task(self._relay, action)
            return
        tensor, zeros = action.tensor, 0
        match tensor:
            case ev.Inline(dtype, shape, data):
                zeros = 0 if link.same_host or link.minor < 1 else zeros_behind(memoryview(data))
                value = Value(dtype, shape, data[: len(data) - zeros])
            case ev.SharedFile(dtype, shape, directory, name) if link.same_host:
                value = Value(dtype, shape, None, name)
                link.hand(directory, name, ev.size_bytes_of(tensor))
            case _:
                self._push_in_task(partial(_stream_push, link), action)
                return
        link.notify(push_of(action, value, zeros))
        self._feed(ev.PushSent(action.push))

    def stop_push(self, action: ev.StopPush) -> None:
        task = self._pushes.get(action.push)
        if task is not None:
            task.cancel()

    def _push_in_task(self, send: Send, action: ev.SendPush) -> None:
        task = self._pushes[action.push] = self._tasks.run(
            "sending a tensor", self._push(send, action), lambda error: self._feed(ev.PushFailed(action.push, error))
        )
        task.add_done_callback(partial(self._push_ended, action))

    def _push_ended(self, action: ev.SendPush, _: object) -> None:
        """Remove the tensor's file, also if the push was stopped before it began: nobody else owns the file."""
        self._pushes.pop(action.push, None)
        if isinstance(action.tensor, ev.SharedFile):
            remove(action.tensor.directory, action.tensor.name)

    async def _push(self, send: Send, action: ev.SendPush) -> None:
        await send(action)
        self._feed(ev.PushSent(action.push))

    # -- to the coordinator

    def answer_run(self, action: ev.ReplyRan) -> Ran:
        """The answer to a Run.  Outputs that do not fit into it are sent by themselves from now on."""
        link = self._endpoint.links.get(action.node)
        outputs, inline_bytes = [], 0
        for position, tensor in action.outputs:
            value = header_of(tensor)
            if isinstance(tensor, ev.Inline) and inline_bytes + len(tensor.data) <= RAN_INLINE_BYTES_MAX:
                inline_bytes += len(tensor.data)
                value = Value(tensor.dtype, tensor.shape, tensor.data)
            elif isinstance(tensor, ev.SharedFile) and link is not None and link.same_host:
                value = Value(tensor.dtype, tensor.shape, None, tensor.name)
                link.hand(tensor.directory, tensor.name, ev.size_bytes_of(tensor))
            else:
                self._send_output(link, action, position, tensor)
            outputs.append(Output(position, value))
        return Ran(tuple(outputs), action.parts, action.bytes_in, action.bytes_out)

    def _send_output(self, link: Link | None, action: ev.ReplyRan, position: int, tensor: ev.Tensor) -> None:
        if isinstance(tensor, ev.Inline) and link is not None:
            value = Value(tensor.dtype, tensor.shape, tensor.data)
            link.notify(Push(action.plan, action.step, 0, position, value))
        elif isinstance(tensor, ev.SharedFile) and link is not None:
            header = Push(action.plan, action.step, 0, position, header_of(tensor))
            self._tasks.run("sending an output", _stream_output(link, header, tensor), partial(_failed, link, header))
        elif isinstance(tensor, ev.SharedFile):
            remove(tensor.directory, tensor.name)


async def _stream_push(link: Link, action: ev.SendPush) -> None:
    data, value = bytes_of(action.tensor), header_of(action.tensor)
    zeros = 0 if link.minor < 1 else await _zeros_of(data)
    left = data[: data.nbytes - zeros]
    if zeros and data.nbytes <= INLINE_WHOLE_BYTES_MAX and left.nbytes <= INLINE_BYTES_MAX:
        link.notify(push_of(action, Value(value.dtype, value.shape, bytes(left)), zeros))
    else:
        await link.send_stream(push_of(action, value, zeros), left)


async def _zeros_of(data: memoryview) -> int:
    """How many bytes at the end of a tensor are 0, counted in blocks, and never all of them."""
    if data.nbytes <= LOOKED_AT_ONCE_BYTES_MAX:
        return zeros_behind(data)
    return await asyncio.to_thread(zeros_behind, data)


async def _stream_output(link: Link, header: Push, tensor: ev.SharedFile) -> None:
    await link.send_stream(header, take(tensor.directory, tensor.name, ev.size_bytes_of(tensor)))


def _failed(link: Link, header: Push, error: MeshError) -> None:
    """Send the header of an output without bytes, which means that the output will not follow."""
    log.warning("output %d of step %d was not sent: %s", header.slot, header.step, error)
    if not link.closed:
        link.notify(header)
