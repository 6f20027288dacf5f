"""An imposter on the network: announces itself with a mesh's own discovery key, as its coordinator and as a worker.

    python -m support.hostile.imposter KEY FOLDER

It has an authority of its own, listens on the usual ports and lets in whoever proves to know the secret of a token: its
audit log in FOLDER/authority says whether anyone was taken in by it.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from support.lan.lan_mesh import MESH
from support.machines.links import Recorder

from coordinator.authority.authority import Authority
from wire.addresses import PORT
from wire.discovery.mdns import Announcer
from wire.joining.credentials import Credentials
from wire.joining.join_port import PORT_OFFSET, serve_joining
from wire.link.identity import identity_here
from wire.link.websocket_carrier import Endpoint

WORKER_PORT = 7200


async def main(key: bytes, folder: Path) -> None:
    authority = Authority(folder / "authority", MESH)
    coordinator = Credentials(folder / "coordinator")
    coordinator.adopt(authority.certify_coordinator(coordinator.key.public))
    worker = Credentials(folder / "worker")
    worker.adopt(authority.admit_here(worker.key.public, "worker", "imposter"))
    await serve_joining(["0.0.0.0", "::"], PORT + PORT_OFFSET, coordinator, authority)
    for credentials, role, port in ((coordinator, "coordinator", PORT), (worker, "worker", WORKER_PORT)):
        identity = identity_here(role, MESH, "imposter", None, credentials.node_id)
        endpoint = Endpoint(identity, Recorder(), credentials=credentials)
        await endpoint.listen("::", port, port)
        await Announcer(identity, port, key, "::").start()
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(bytes.fromhex(sys.argv[1]), Path(sys.argv[2])))
