"""A worker's end of a link at which tensors arrive: the real one, without the machine that asked for them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from support.machines.links import Recorder, node

from wire.errors import MeshError
from wire.link.link import Link
from wire.link.websocket_carrier import Endpoint
from wire.protocol.messages import Message, Push
from wire.system.shared_memory import SharedDir
from wire.system.tasks import Tasks
from worker.daemon.plan_requests import PlanRequests
from worker.state import events as ev


class Receiver(Recorder):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.shared, self.under_way = SharedDir.create(folder), 0
        self.events: list[ev.Event] = []
        self.tasks, self.notified = Tasks(), asyncio.Event()
        shell = cast(Any, SimpleNamespace(feed=self._feed, tasks=self.tasks))
        arriving = cast(Any, SimpleNamespace(check=lambda *args: None, begin=self._begin, end=self._end))
        self.requests = cast(Any, PlanRequests)(shell, self.shared, None, None, None, arriving)

    def _feed(self, event: ev.Event) -> None:
        self.events.append(event)
        self.notified.set()

    def _begin(self, *args: object) -> None:
        self.under_way += 1

    def _end(self, *args: object) -> None:
        self.under_way -= 1

    def on_stream_open(self, link: Link, header: Message, size_bytes: int) -> Any:
        return self.requests.open_stream(link, cast(Push, header), size_bytes)

    def on_notify(self, link: Link, body: Message) -> None:
        self.requests.notifications()[type(body)](link, body)

    def on_stream_done(self, link: Link, header: Message, buffer: memoryview, error: MeshError | None) -> None:
        self.requests.stream_done(link, cast(Push, header), buffer, error)

    def files(self) -> list[str]:
        return [path.name for path in self.shared.path.iterdir() if path.name != "lock"]


@contextlib.asynccontextmanager
async def receiving(folder: Path) -> AsyncIterator[tuple[Link, Receiver]]:
    receiver = Receiver(folder)
    here = Endpoint(node("sends", host_id="a"), Recorder())
    there = Endpoint(node("takes", host_id="b"), receiver)
    try:
        yield await here.dial("127.0.0.1", await there.listen("127.0.0.1", 0, 0)), receiver
    finally:
        await here.close()
        await there.close()
        receiver.shared.close()
