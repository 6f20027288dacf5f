"""A node of its own process, to be killed: prints its port, answers a request with itself, and TailLog never."""

from __future__ import annotations

import asyncio

from support.links import Recorder, node

from wire.link import Link
from wire.messages import Message, TailLog
from wire.transport import Endpoint


class Echo(Recorder):
    async def on_request(self, link: Link, body: Message) -> Message:
        if isinstance(body, TailLog):
            await asyncio.Event().wait()
        return body


async def main() -> None:
    endpoint = Endpoint(node("echo"), Echo())
    print(await endpoint.listen(port=0), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
