"""A node of its own process on another host, told by lines on stdin what to do: one JSON line answers each.

    listen               -> the port
    dial HOST PORT [S]   -> the other node's name, or the code of the error after so many seconds
    send MIB             -> seconds until the other node said that a stream of so many MiB came whole
    bulk                 -> the port from which the link's connection for bulk was dialled
    ask SECONDS          -> seconds that a request and its answer took, or the code of the error

Commands run side by side; an answer is {"of": the command, "is": the result}.  `LanNode` is the test's end of it.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from support.lan.namespaces import Host
from support.machines.links import Recorder, node
from support.processes.commands import ROOT

from wire.errors import MeshError
from wire.joining.credentials import Credentials
from wire.limits import MIB
from wire.link.link import Link
from wire.link.websocket_carrier import Endpoint
from wire.protocol.messages import BlobStream, Done, Message
from wire.protocol.peer import BULK
from wire.timeouts import Timeouts


class LanNode:
    """Starts the process on a host, with the credentials in a folder, and speaks to it."""

    def __init__(self, host: Host, name: str, folder: Path, **timeouts: float) -> None:
        self.host = host
        command = [sys.executable, "-m", "support.lan.lan_node", name, str(folder), json.dumps(timeouts)]
        path = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
        self._process = host.start(
            *command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self._early: list[dict[str, Any]] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def tell(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()

    def answer(self, command: str, within_s: float = 120.0) -> Any:
        """What became of a command that was told."""
        deadline_s = time.monotonic() + within_s
        while True:
            for found in self._early:
                if found["of"] == command:
                    self._early.remove(found)
                    return found["is"]
            self._early.append(self._answers.get(timeout=max(0.01, deadline_s - time.monotonic())))

    def ask(self, command: str, within_s: float = 120.0) -> Any:
        self.tell(command)
        return self.answer(command, within_s)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(json.loads(line))


# -- in the process


class Receiver(Recorder):
    """Says when a stream came whole."""

    def on_stream_done(self, link: Link, header: Message, buffer: memoryview, error: MeshError | None) -> None:
        super().on_stream_done(link, header, buffer, error)
        if error is None and buffer[-MIB:] == _content(MIB):
            link.notify(Done())


class Doer:
    """Does what the lines say."""

    def __init__(self, name: str, folder: Path, timeouts: Timeouts) -> None:
        self.handler = Receiver()
        card = Credentials(folder)
        said = node(name, node_id=card.node_id, mesh=card.mesh, role=card.member.role, host_id=name)
        self.endpoint = Endpoint(said, self.handler, credentials=card, timeouts=timeouts)

    async def run(self, command: str) -> None:
        word, *rest = command.split()
        try:
            result = await getattr(self, f"do_{word}")(*rest)
        except MeshError as error:
            result = error.code
        print(json.dumps({"of": command, "is": result}), flush=True)

    async def do_listen(self) -> int:
        return await self.endpoint.listen("0.0.0.0", 0)

    async def do_dial(self, host: str, port: str, seconds: str = "60") -> str:
        return (await self.endpoint.dial(host, int(port), float(seconds))).peer.name

    async def do_send(self, mib: str) -> float:
        began_s = time.monotonic()
        await self._link().send_stream(BlobStream(bytes(32), 1), memoryview(_content(int(mib) * MIB)))
        await self.handler.notes.get()
        return time.monotonic() - began_s

    async def do_bulk(self) -> int:
        (connection,) = [each for channel, each in self._link()._connections.items() if channel is BULK]
        return int(connection._socket._transport.get_extra_info("sockname")[1])  # type: ignore[attr-defined]

    async def do_ask(self, seconds: str) -> float:
        began_s = time.monotonic()
        await self._link().request(Done(), float(seconds))
        return time.monotonic() - began_s

    def _link(self) -> Link:
        (link,) = self.endpoint.links.values()
        return link


def _content(size: int) -> bytes:
    return bytes(range(256)) * (size // 256)


async def main() -> None:
    doer = Doer(sys.argv[1], Path(sys.argv[2]), Timeouts(**json.loads(sys.argv[3])))
    doing: set[asyncio.Task[None]] = set()
    while line := await asyncio.to_thread(sys.stdin.readline):
        task = asyncio.create_task(doer.run(line.strip()))
        doing.add(task)
        task.add_done_callback(doing.discard)


if __name__ == "__main__":
    asyncio.run(main())
