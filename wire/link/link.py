"""One link as its user sees it: requests, notes and streams to one other node (docs/protocol.md, "Link").

Turns calls into frames of the sans-IO Peer, and its events into results and Handler calls.  It decides nothing and
knows no sockets: `websocket_carrier.py` gives it two connections to write to and hands it the frames that come.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from ..errors import Cancelled, DeadlineExceeded, MeshError, NodeLost, ProtocolError, RemoteError
from ..protocol.flow_control import PacedBuffer
from ..protocol.messages import Message, decode_message, encode_message
from ..protocol.peer import (
    BULK,
    CONTROL,
    CancelReceived,
    Channel,
    Closed,
    Event,
    Identity,
    NotifyReceived,
    Peer,
    Ponged,
    Replied,
    RequestReceived,
    StreamDone,
    StreamOpened,
    StreamSent,
)
from ..roles import member_id
from ..system.log_limit import LogLimit, unlogged_text
from ..system.outcome import Outcome
from ..system.shared_memory_handoff import HandoffFiles
from ..system.steady_log import steady_logger
from ..system.tasks import Tasks, as_error
from ..timeouts import Timeouts

log = steady_logger("graph_mesh.link")


class Handler(Protocol):
    """What an endpoint's owner does with what arrives; every method is called on the loop's thread."""

    def on_request(self, link: Link, body: Message) -> Coroutine[Any, Any, Message] | Outcome[Message]:
        """Answer a request.  A MeshError is sent back as it is, anything else is logged and sent as RemoteError.  An
        Outcome needs no task: for what is asked all the time."""

    def on_notify(self, link: Link, body: Message) -> None:
        """Take a one-way message."""

    def on_stream_open(self, link: Link, header: Message, size_bytes: int) -> memoryview | PacedBuffer:
        """The buffer for a stream's bytes: writable, exactly `size_bytes`.  Raise a MeshError to refuse it."""

    def on_stream_done(self, link: Link, header: Message, buffer: memoryview, error: MeshError | None) -> None:
        """The stream placed in `buffer` (the very memory given) is complete, or broke off with `error`."""

    def on_linked(self, link: Link) -> None:
        """A link stands."""

    def on_unlinked(self, link: Link, error: MeshError | None) -> None:
        """A link ended; `error` is None if either side closed it in good order."""


class Connection(Protocol):
    """A connection of a link (it has two), for writing."""

    def pump(self) -> None:
        """Write what `Link.next_frame` gives, as far as the connection takes it now, and the rest later."""

    def close(self) -> None:
        """Let what is written leave, then drop the connection."""


class Owner(Protocol):
    """What a link needs of its endpoint."""

    identity: Identity
    handler: Handler
    timeouts: Timeouts
    handed: HandoffFiles

    def unlinked(self, link: Link) -> None:
        """The link ended."""


class Link:
    """The link to one other node.  Made by an Endpoint; use it on the loop's thread."""

    def __init__(self, owner: Owner, peer: Peer) -> None:
        assert peer.other is not None
        self.peer: Identity = peer.other
        self.link_id = peer.link_id
        self.address = ""  # where the other end was dialled; "" if it dialled
        self.same_host = False
        self.closed = False
        self.heard_s = asyncio.get_running_loop().time()  # when the last frame came
        self._taken_s = self.heard_s  # when a full socket took more
        self.bytes_sent: Counter[str] = Counter(control=0, bulk=0, shared=0)
        self.bytes_received: Counter[str] = Counter(control=0, bulk=0, shared=0)
        self._owner = owner
        self._machine = peer
        self._loop = asyncio.get_running_loop()
        self._connections: Mapping[Channel, Connection] = {}
        self._answers: dict[int, asyncio.Future[Message] | Outcome[Message]] = {}
        self._tasks = Tasks()
        self._serving: dict[int, asyncio.Task[None] | Outcome[Message]] = {}
        self._sending: dict[int, asyncio.Future[None]] = {}
        self._arriving: dict[int, tuple[Message, memoryview]] = {}
        self._pings: dict[int, asyncio.Future[None]] = {}
        self._last_ping = 0
        self._over = asyncio.Event()
        self._fault_lines = LogLimit()

    def __repr__(self) -> str:
        return f"<Link to {self.peer.role} {self.peer.name}{' (closed)' if self.closed else ''}>"

    # -- what callers use

    @property
    def minor(self) -> int:
        """The minor version of the protocol that both nodes speak."""
        return self._machine.version[1]

    def hand(self, directory: str, name: str, size_bytes: int) -> None:
        """Note that the other end gets the name of a file of shared memory, which it takes from `directory`."""
        self.bytes_sent["shared"] += size_bytes
        self._owner.handed.add(self.peer.shared_memory, directory, name, member_id(self.peer.node_id), size_bytes)

    @contextlib.contextmanager
    def room_for_file(self, size_bytes: int) -> Iterator[bool]:
        """Whether a file may be written for the other end: it is on this machine, and has taken enough of those before
        (HandoffFiles.room)."""
        if not self.same_host:
            yield False
            return
        with self._owner.handed.room(member_id(self.peer.node_id), size_bytes) as room:
            yield room

    async def request(self, body: Message, timeout_s: float | None = None) -> Message:
        """Ask and wait for the answer.

        Raises the other side's MeshError, DeadlineExceeded after `timeout_s`, or NodeLost when the link ends.
        Cancelling the awaiting task sends Cancel to the other side.
        """
        with self.asking(body) as answer:
            timer = None if timeout_s is None else self._loop.call_later(timeout_s, self._expire, answer, timeout_s)
            try:
                return await answer
            finally:
                if timer is not None:
                    timer.cancel()

    @contextlib.contextmanager
    def asking(self, body: Message) -> Iterator[asyncio.Future[Message]]:
        """A request that leaves at once: a future of its answer, as `request` has it.  The other side is asked to stop
        if the block ends before the answer came."""
        number = self._machine.request(self._encoded(body))
        answer: asyncio.Future[Message] = self._loop.create_future()
        self._answers[number] = answer
        self._flush()
        try:
            yield answer
        finally:
            if self._answers.pop(number, None) is not None:
                self._machine.cancel(number)
                self._flush()
            elif answer.done() and not answer.cancelled():
                answer.exception()  # a task that stopped for another reason need not raise it

    def outcome_of(self, body: Message) -> Outcome[Message]:
        """A request that leaves at once: what comes of it, known in the turn of the loop in which the answer comes.
        NodeLost when the link has ended."""
        number = self._machine.request(self._encoded(body))
        answer = self._answers[number] = Outcome(lambda: self._withdraw(number))
        self._flush()
        return answer

    def _withdraw(self, number: int) -> None:
        if self._answers.pop(number, None) is not None:
            self._machine.cancel(number)
            self._flush()

    def notify(self, body: Message, in_order: bool = False) -> None:
        """Send a one-way message, at once where the socket takes it.  NodeLost when the link has ended.

        A short one may overtake long ones, but for those that are sent `in_order`: they take the same way.
        """
        self._machine.notify(self._encoded(body), in_order)
        self._flush()

    async def send_stream(self, header: Message, data: memoryview | Sequence[memoryview]) -> None:
        """Send `data` in chunks and return when the last has left; until then it must not change.

        Raises the receiver's MeshError if it refuses, NodeLost when the link ends.
        """
        parts = [data] if isinstance(data, memoryview) else data
        stream = self._machine.open_stream(self._encoded(header), [_flat(part) for part in parts])
        sent = self._sending[stream] = self._loop.create_future()
        self._flush()
        try:
            await sent
        finally:
            if self._sending.pop(stream, None) is not None:
                self._machine.abort_stream(stream, Cancelled("the sender gave up"))
                self._flush()

    def emptied(self, buffer: PacedBuffer, size: int) -> None:
        """Let the sender go on: `size` bytes were taken out of a stream's buffer."""
        self._machine.emptied(buffer, size)
        self._flush()

    def give_up(self, buffer: PacedBuffer) -> None:
        """Let the sender go on: nobody takes any more out of a stream's buffer."""
        self._machine.give_up(buffer)
        self._flush()

    async def ping(self, timeout_s: float = 5.0) -> float:
        """Seconds for a frame to get there and back; DeadlineExceeded or NodeLost."""
        self._last_ping += 1
        token = self._last_ping
        ponged = self._pings[token] = self._loop.create_future()
        timer = self._loop.call_later(timeout_s, self._expire, ponged, timeout_s)
        began_s = self._loop.time()
        try:
            self._machine.ping(token)
            self._flush()
            await ponged
        finally:
            timer.cancel()
            self._pings.pop(token, None)
        return self._loop.time() - began_s

    def ask(self) -> None:
        """Have the other end answer, at any time: `alive_s` says when it did."""
        self._machine.ping(_NOBODY)
        self._flush()

    @property
    def alive_s(self) -> float:
        """The time of the last sign of life: a frame came, or a full socket took more, for which the other end had
        to."""
        return max(self.heard_s, self._taken_s)

    def close(self, reason: str = "") -> None:
        """End the link in good order; on_unlinked follows."""
        if not self.closed:
            self._machine.close(reason)
            self._flush()
            self._end(None)

    async def wait_closed(self) -> None:
        """Return when the link has ended."""
        await self._over.wait()

    # -- the endpoint's side

    def attach(self, connections: Mapping[Channel, Connection]) -> None:
        """Take both connections; from now on the link may be used."""
        self.same_host = self._machine.shared_ok
        self._connections = connections
        self._guarded("on_linked", self._owner.handler.on_linked, self)
        self._flush()

    def received(self, channel: Channel, data: bytes | memoryview) -> None:
        """A frame came; a view, which only a chunk's may be, is not kept."""
        self.bytes_received[_KIND[channel]] += len(data)
        self.heard_s = self._loop.time()
        try:
            for event in self._machine.receive(channel, data):
                self._handle(event)
            self._flush()
        except MeshError as error:
            self.fail(error)

    def handle(self, events: Sequence[Event]) -> None:
        """Act on events that did not come from `received`."""
        for event in events:
            self._handle(event)

    def ended(self, channel: Channel) -> None:
        """A connection is gone.  The end of the bulk one may overtake a goodbye, and last words, on the other."""
        if channel is BULK and not self.closed:
            self._loop.call_later(self._owner.timeouts.link_goodbye_s, self._eof, channel)
        else:
            self._eof(channel)

    def _eof(self, channel: Channel) -> None:
        if not self.closed:
            self.handle(self._machine.receive_eof(channel))

    def replaced(self) -> None:
        """Another link to the same node took over; no goodbye, as the node does not go."""
        self._machine.refuse(NodeLost("replaced by a newer link", node=self._owner.identity.name))
        self._flush()
        self._end(NodeLost("the node came back on a new link", node=self.peer.name))

    # -- events

    def _handle(self, event: Event) -> None:
        _REACTIONS[type(event)](self, event)

    def _encoded(self, body: Message) -> bytes:
        return encode_message(body, self.minor)

    def _on_request(self, event: RequestReceived) -> None:
        number, body = event.number, decode_message(event.body)
        try:
            answer = self._owner.handler.on_request(self, body)
        except Exception as error:
            self._machine.reply_error(number, self._as_answer(body, error))
            return
        if isinstance(answer, Outcome):
            self._serving[number] = answer
            answer.then(partial(self._served, number, body))
        else:
            task = self._tasks.run("answering", self._serve(number, body, answer), self.fail)
            self._serving[number] = task
            task.add_done_callback(partial(self._stopped, number, body, answer))

    async def _serve(self, number: int, body: Message, answer: Coroutine[Any, Any, Message]) -> None:
        try:
            self._served(number, body, await answer, None)
        except Exception as error:
            self._served(number, body, None, self._as_answer(body, error))

    def _stopped(
        self, number: int, body: Message, answer: Coroutine[Any, Any, Message], task: asyncio.Task[None]
    ) -> None:
        """A task that answers is over.  One that was cancelled, perhaps before it began, has not answered."""
        answer.close()
        if self._serving.get(number) is task:
            self._served(number, body, None, Cancelled("the asker no longer waits"))

    def _served(self, number: int, body: Message, answer: Message | None, error: MeshError | None) -> None:
        """Send the answer to a request, or the error that it is."""
        self._serving.pop(number, None)
        if answer is not None:
            try:
                self._machine.reply(number, self._encoded(answer))
            except Exception as fault:
                error = self._as_answer(body, fault)
        if error is not None:
            self._machine.reply_error(number, error)
        self._flush()

    def _as_answer(self, body: Message, error: Exception) -> MeshError:
        """A bug in the handler must reach the asker and the log, not end the link."""
        if isinstance(error, MeshError):
            return error
        what = type(body).__name__
        self._log_fault(f"answering {what}", error)
        return RemoteError(f"{what} failed", node=self._owner.identity.name, cause=repr(error))

    def _on_replied(self, event: Replied) -> None:
        answer = self._answers.pop(event.number, None)
        if answer is None or answer.done():
            return
        if event.error is not None:
            answer.set_exception(event.error)
            return
        try:
            body = decode_message(event.body)
        except ProtocolError as error:
            answer.set_exception(error)
            raise
        except Exception as fault:  # want of memory, say; nobody else would tell whoever waits for this answer
            answer.set_exception(as_error("reading an answer failed", fault))
            return
        answer.set_result(body)

    def _on_cancel(self, event: CancelReceived) -> None:
        serving = self._serving.get(event.number)
        if serving is None:
            return
        serving.cancel()
        if isinstance(serving, Outcome):
            del self._serving[event.number]
            self._machine.reply_error(event.number, Cancelled("the asker no longer waits"))

    def _on_notify(self, event: NotifyReceived) -> None:
        body = decode_message(event.body)
        self._guarded(type(body).__name__, self._owner.handler.on_notify, self, body)

    def _on_stream_open(self, event: StreamOpened) -> None:
        header = decode_message(event.header)
        try:
            buffer = self._owner.handler.on_stream_open(self, header, event.size)
        except ProtocolError:
            raise
        except MeshError as error:
            self._machine.refuse_stream(event.stream, error)
            return
        except Exception as error:  # as in _serve
            self._log_fault("placing a stream", error)
            self._machine.refuse_stream(event.stream, RemoteError("placing the stream failed", cause=repr(error)))
            return
        self._arriving[event.stream] = header, buffer.view if isinstance(buffer, PacedBuffer) else buffer
        self.handle(self._machine.place_stream(event.stream, buffer))

    def _on_stream_done(self, event: StreamDone) -> None:
        header, buffer = self._arriving.pop(event.stream)
        self._guarded(type(header).__name__, self._owner.handler.on_stream_done, self, header, buffer, event.error)

    def _on_stream_sent(self, event: StreamSent) -> None:
        sent = self._sending.pop(event.stream, None)
        if sent is None or sent.done():
            return
        if event.error is None:
            sent.set_result(None)
        else:
            sent.set_exception(event.error)

    def _on_pong(self, event: Ponged) -> None:
        ponged = self._pings.get(event.token)
        if ponged is not None and not ponged.done():
            ponged.set_result(None)

    def _on_closed(self, event: Closed) -> None:
        self._end(event.error)

    def _guarded(self, what: str, tell: Callable[..., None], *arguments: object) -> None:
        """A handler's bug must reach the log, not end the link; its ProtocolError blames the other side and does."""
        try:
            tell(*arguments)
        except ProtocolError:
            raise
        except Exception as error:
            self._log_fault(f"handling {what}", error)

    def _log_fault(self, doing: str, error: Exception) -> None:
        """Log an exception with its stack: a few in a minute, whatever the other side sends."""
        unlogged_count = self._fault_lines.admit(self._loop.time())
        if unlogged_count is not None:
            log.error("%s from %s failed%s", doing, self.peer.name, unlogged_text(unlogged_count), exc_info=error)

    # -- sending

    def _flush(self) -> None:
        if not self._machine.has_to_send():
            return
        for channel, connection in self._connections.items():
            if self._machine.has_frames(channel):
                connection.pump()
        for event in self._machine.sent_events():
            self._handle(event)
        if self._machine.queued_bytes > self._machine.limits.queue_bytes_max:
            self.fail(NodeLost("it does not read what is sent to it", node=self.peer.name))

    def next_frame(self, channel: Channel) -> bytes | None:
        """The next frame to write, for the connection that has room."""
        frame = self._machine.next_frame(channel)
        if frame is not None:
            self.bytes_sent[_KIND[channel]] += len(frame)
        return frame

    def bulk_moved(self, waited: bool) -> None:
        """A frame left in the background, perhaps after the socket was full; streams may be complete."""
        if waited:
            self._taken_s = self._loop.time()
        self.handle(self._machine.sent_events())

    def _expire(self, answer: asyncio.Future[Any], timeout_s: float) -> None:
        if not answer.done():
            answer.set_exception(DeadlineExceeded(f"no answer within {timeout_s:g} s", node=self.peer.name))

    # -- the end

    def fail(self, error: MeshError, level: int = logging.WARNING) -> None:
        """The link cannot go on: say why, at that level of the log, and end it."""
        if self.closed:
            return
        log.log(level, "link to %s %s: %s", self.peer.role, self.peer.name, error)
        self._machine.refuse(error)
        for connection in self._connections.values():
            connection.pump()
        self._end(error)

    def _end(self, error: MeshError | None) -> None:
        if self.closed:
            return
        self.closed = True
        lost = error if isinstance(error, RemoteError) else NodeLost("the link was closed", node=self.peer.name)
        for waiting in (self._answers, self._sending, self._pings):
            futures = list(waiting.values())
            waiting.clear()  # first: a callback may come back here at once
            for future in futures:
                if isinstance(future, Outcome):
                    self._loop.call_soon(_lose, future, _copy(lost))  # as a future's callback: after the calls below
                elif not future.done():
                    future.set_exception(_copy(lost))
        for serving in self._serving.values():
            if isinstance(serving, Outcome):
                self._loop.call_soon(serving.cancel)  # as a task is: after the calls below
            else:
                serving.cancel()
        for connection in self._connections.values():
            connection.close()
        self._connections = {}  # which hold this link
        self._owner.unlinked(self)
        self._over.set()
        for header, buffer in self._arriving.values():
            self._guarded(type(header).__name__, self._owner.handler.on_stream_done, self, header, buffer, _copy(lost))
        self._arriving.clear()
        self._guarded("on_unlinked", self._owner.handler.on_unlinked, self, error)


_NOBODY = 0  # the number of a ping for whose answer no request waits
_KIND = {CONTROL: "control", BULK: "bulk"}
_REACTIONS: dict[type[Any], Callable[[Link, Any], None]] = {
    RequestReceived: Link._on_request,
    Replied: Link._on_replied,
    CancelReceived: Link._on_cancel,
    NotifyReceived: Link._on_notify,
    StreamOpened: Link._on_stream_open,
    StreamDone: Link._on_stream_done,
    StreamSent: Link._on_stream_sent,
    Ponged: Link._on_pong,
    Closed: Link._on_closed,
}


def _flat(part: memoryview) -> memoryview:
    return part.cast("B") if part.nbytes else memoryview(b"")


def _lose(outcome: Outcome[Message], error: MeshError) -> None:
    if not outcome.done():
        outcome.set_exception(error)


def _copy(error: MeshError) -> MeshError:
    """Make an exception of its own for every waiter: a traceback is kept on the exception."""
    return type(error)(error.message, node=error.node, op=error.op, cause=error.cause, next_step=error.next_step)
