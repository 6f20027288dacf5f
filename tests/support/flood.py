"""Strangers by the thousand: `python -m support.flood HOST COUNT` connects that often to both ports of a coordinator.

A third say nothing, a third speak HTTP, a third begin TLS and stop; all stay until they are dropped, or for STAY_S.
Prints how many connects there were.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from itertools import cycle

from wire.address import PORT
from wire.join_link import PORT_OFFSET

AT_ONCE = 250
STAY_S = 3.0
SAID = (b"", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")


async def main(host: str, count: int) -> int:
    room = asyncio.Semaphore(AT_ONCE)
    connected = 0

    async def one(port: int, said: bytes) -> None:
        nonlocal connected
        async with room:
            with contextlib.suppress(OSError, TimeoutError):
                reader, writer = await asyncio.wait_for(asyncio.open_connection(host, port), STAY_S)
                connected += 1
                try:
                    writer.write(said)
                    await asyncio.wait_for(reader.read(), STAY_S)
                finally:
                    writer.transport.abort()

    ports, words = cycle((PORT, PORT + PORT_OFFSET)), cycle(SAID)
    await asyncio.gather(*(one(next(ports), next(words)) for _ in range(count)))
    return connected


if __name__ == "__main__":
    print(asyncio.run(main(sys.argv[1], int(sys.argv[2]))))
