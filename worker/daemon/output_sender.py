"""Output sender: the daemon's part that sends a step's outputs to the coordinator: with its answer, as files, or apart.

It does not know what an output is for, nor when a step is done.
"""

from __future__ import annotations

import logging
from functools import partial

from wire.errors import MeshError
from wire.limits import KIB
from wire.link.endpoint import Endpoint
from wire.link.link import Link
from wire.protocol.messages import Output, Push, Ran, Value
from wire.system.shared_memory import remove, take
from wire.system.tasks import Tasks

from ..state import events as ev
from .tensor_refs import header_of

log = logging.getLogger("graph_mesh.worker")
RAN_INLINE_BYTES_MAX = 512 * KIB  # inline outputs of one Ran; a control frame holds 1 MiB


class Returning:
    """Over the links of `endpoint`."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._apart = Tasks()  # streams

    def answer(self, action: ev.ReplyRan) -> Ran:
        """The answer to a Run; what does not fit into it is on its way."""
        link = self._endpoint.links.get(action.node)
        outputs, inline_bytes = [], 0
        for position, tensor in action.outputs:
            value = Value(tensor.dtype, tensor.shape)
            if isinstance(tensor, ev.Inline) and inline_bytes + len(tensor.data) <= RAN_INLINE_BYTES_MAX:
                inline_bytes += len(tensor.data)
                value = Value(tensor.dtype, tensor.shape, tensor.data)
            elif isinstance(tensor, ev.SharedFile) and link is not None and link.same_host:
                value = Value(tensor.dtype, tensor.shape, None, tensor.name)
                link.hand(tensor.directory, tensor.name, ev.size_bytes_of(tensor))
            else:
                self._send(link, action, position, tensor)
            outputs.append(Output(position, value))
        return Ran(tuple(outputs), action.parts, action.bytes_in, action.bytes_out)

    def close(self) -> None:
        self._apart.cancel()

    def _send(self, link: Link | None, action: ev.ReplyRan, position: int, tensor: ev.Tensor) -> None:
        """An output that does not fit into Ran goes by itself."""
        if isinstance(tensor, ev.Inline) and link is not None:
            value = Value(tensor.dtype, tensor.shape, tensor.data)
            link.notify(Push(action.plan, action.step, 0, position, value))
        elif isinstance(tensor, ev.SharedFile) and link is not None:
            header = Push(action.plan, action.step, 0, position, header_of(tensor))
            self._apart.run("sending an output", _stream(link, header, tensor), partial(_tell, link, header))
        elif isinstance(tensor, ev.SharedFile):
            remove(tensor.directory, tensor.name)


async def _stream(link: Link, header: Push, tensor: ev.SharedFile) -> None:
    await link.send_stream(header, take(tensor.directory, tensor.name, ev.size_bytes_of(tensor)))


def _tell(link: Link, header: Push, error: MeshError) -> None:
    """An output that could not be sent is told of by its header without bytes, so that nobody waits for it."""
    log.warning("output %d of step %d was not sent: %s", header.slot, header.step, error)
    if not link.closed:
        link.notify(header)
