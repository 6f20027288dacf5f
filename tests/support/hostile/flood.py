"""Strangers by the thousand: `python -m support.hostile.flood HOST COUNT [mixed|hello]` connects that often to a
coordinator.

A third say nothing, a third speak HTTP, a third begin TLS and stop; with `hello` all say the whole first word of TLS,
so each costs a handshake.  It goes to both ports, and where such a word is named to the join port alone.  All stay
until they are dropped, or for STAY_S.  Prints how many connects there were.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import sys
from collections.abc import Sequence
from itertools import cycle

from wire.addresses import PORT
from wire.joining.join_port import PORT_OFFSET

AT_ONCE = 250
STAY_S = 3.0
SAID = (b"", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")


def hello() -> bytes:
    """What a TLS client says first."""
    said = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), said, server_hostname="join.mesh").do_handshake()
    return said.read()


async def main(host: str, count: int, ports: Sequence[int], words: Sequence[bytes], at_once: int = AT_ONCE) -> int:
    calls = zip(range(count), cycle(ports), cycle(words), strict=False)
    connected = 0

    async def some() -> None:
        nonlocal connected
        for _, port, said in calls:
            with contextlib.suppress(OSError, TimeoutError):
                reader, writer = await asyncio.wait_for(asyncio.open_connection(host, port), STAY_S)
                connected += 1
                try:
                    writer.write(said)
                    async with asyncio.timeout(STAY_S):
                        while await reader.read(4096):
                            pass
                finally:
                    writer.transport.abort()

    await asyncio.gather(*(some() for _ in range(at_once)))
    return connected


if __name__ == "__main__":
    to, often, *kind = sys.argv[1:]
    both = (PORT, PORT + PORT_OFFSET)
    print(asyncio.run(main(to, int(often), both[1:] if kind else both, (hello(),) if kind == ["hello"] else SAID)))
