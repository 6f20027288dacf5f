"""Requests that tasks answer: each gets one answer, whenever it is withdrawn."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from support.machines.links import node

from wire.errors import NodeLost
from wire.limits import DEFAULT
from wire.link.link import Link
from wire.link.websocket_carrier import Endpoint
from wire.protocol.messages import AskNodes, Done, Message

SECRET = bytes(32)


class End:
    """Answers in a later turn of the loop."""

    async def on_request(self, link: Link, body: Message) -> Message:
        await asyncio.sleep(0)
        return Done()

    def on_unlinked(self, *args: Any) -> None: ...

    def on_linked(self, *args: Any) -> None: ...

    def on_notify(self, *args: Any) -> None: ...

    def on_stream_open(self, *args: Any) -> memoryview:
        raise NodeLost("no streams here")

    def on_stream_done(self, *args: Any) -> None: ...


async def test_requests_that_are_withdrawn_at_once_take_no_room_from_later_ones() -> None:
    """They arrive together with their withdrawal, which cancels their task before it begins."""
    limits = replace(DEFAULT, requests_per_peer_max=4)
    there = Endpoint(node("b", host_id="b"), End(), limits, secret=SECRET)
    here = Endpoint(node("a", host_id="a"), End(), limits, secret=SECRET)
    link = await here.dial("127.0.0.1", await there.listen("127.0.0.1", 0, 0))
    for _ in range(3):
        for _ in range(3):
            with link.asking(AskNodes()):
                pass
        assert await link.request(AskNodes(), 60) == Done()
        await link.ping(60)
    await here.close()
    await there.close()
