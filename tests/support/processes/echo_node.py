"""A node of its own process, to be killed: prints its port, answers a request with itself, and TailLog never.

Called with a folder it has a directory of shared files there.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from support.machines.links import Recorder, node

from wire.link.link import Link
from wire.link.websocket_carrier import Endpoint
from wire.protocol.messages import Message, TailLog
from wire.system.shared_memory import SharedDir


class Echo(Recorder):
    async def on_request(self, link: Link, body: Message) -> Message:
        if isinstance(body, TailLog):
            await asyncio.Event().wait()
        return body


async def main() -> None:
    shared = str(SharedDir.create(Path(sys.argv[1])).path) if sys.argv[1:] else ""
    endpoint = Endpoint(node("echo", shared_memory=shared), Echo())
    print(await endpoint.listen(port=0), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
