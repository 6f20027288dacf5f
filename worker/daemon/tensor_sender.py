"""Tensor sender: the daemon's part that sends tensors to other workers: in a message, as a file, as a stream, or by
relay.

It does not know what a tensor is for; it says which pushes have left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from wire.link.endpoint import Endpoint
from wire.link.link import Link
from wire.protocol.messages import Push, Value
from wire.system.shared_memory import remove
from wire.system.tasks import Tasks

from ..state import events as ev
from .tensor_refs import bytes_of, push_header_of

Send = Callable[[ev.SendPush], Awaitable[None]]


class Pushing:
    """`relay` sends to a worker without a link; `feed` takes PushSent and PushFailed."""

    def __init__(self, endpoint: Endpoint, relay: Send, feed: Callable[[ev.Event], None]) -> None:
        self._endpoint = endpoint
        self._relay = relay
        self._feed = feed
        self._tasks = Tasks()
        self._apart: dict[int, asyncio.Task[None]] = {}  # those that take their time

    def send(self, action: ev.SendPush) -> None:
        """Send; answered by PushSent or PushFailed."""
        link = self._endpoint.links.get(action.node)
        if link is None or link.closed:
            self._send_apart(self._relay, action)
            return
        tensor = action.tensor
        match tensor:
            case ev.Inline(dtype, shape, data):
                value = Value(dtype, shape, data)
            case ev.SharedFile(dtype, shape, directory, name) if link.same_host:
                value = Value(dtype, shape, None, name)
                link.hand(directory, name, ev.size_bytes_of(tensor))
            case _:
                self._send_apart(partial(_stream, link), action)
                return
        link.notify(Push(action.plan, action.step, action.part, action.slot, value))
        self._feed(ev.PushSent(action.push))

    def stop(self, action: ev.StopPush) -> None:
        task = self._apart.get(action.push)
        if task is not None:
            task.cancel()

    def close(self) -> None:
        self._tasks.cancel()

    def _send_apart(self, send: Send, action: ev.SendPush) -> None:
        task = self._apart[action.push] = self._tasks.run(
            "sending a tensor", self._push(send, action), lambda error: self._feed(ev.PushFailed(action.push, error))
        )
        task.add_done_callback(partial(self._over, action))

    def _over(self, action: ev.SendPush, _: object) -> None:
        """Also of a push that was stopped before it began: nobody else has its file."""
        self._apart.pop(action.push, None)
        if isinstance(action.tensor, ev.SharedFile):
            remove(action.tensor.directory, action.tensor.name)

    async def _push(self, send: Send, action: ev.SendPush) -> None:
        await send(action)
        self._feed(ev.PushSent(action.push))


async def _stream(link: Link, action: ev.SendPush) -> None:
    await link.send_stream(push_header_of(action), bytes_of(action.tensor))
