"""Nodes that join one after another: `python -m support.processes.joiner HOST COUNT`, with a token in MESH_TOKEN.

Prints a line of JSON for each: how long it took, and what became of it ("" if it is in).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

from wire.addresses import PORT
from wire.errors import MeshError
from wire.joining.join_port import PORT_OFFSET, join
from wire.joining.join_tokens import parse_token
from wire.security.certificates import new_key


async def main(host: str, count: int) -> None:
    token = parse_token(os.environ["MESH_TOKEN"])
    for number in range(count):
        began_s, error = time.monotonic(), ""
        try:
            await join(host, PORT + PORT_OFFSET, token, new_key(), "worker", f"joiner-{number}")
        except MeshError as failure:
            error = str(failure)
        print(json.dumps({"seconds": round(time.monotonic() - began_s, 3), "error": error}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
