"""Worker processes that can dial one port only, as behind another's firewall; what comes to them still comes.

It is done where the process dials, so that it needs neither root nor a firewall.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

HOOK = """
import os, sys

if "mesh.commands.worker" in sys.orig_argv:
    from wire.errors import ConnectFailed
    from wire.link.websocket_carrier import WebSockets

    connect = WebSockets.connect
    only = int(os.environ["ONLY_PORT"])

    async def refuse(self, address, port, *more, **named):
        if port != only:
            raise ConnectFailed(f"no node answers at {address}:{port}", cause="No route to host")
        return await connect(self, address, port, *more, **named)

    WebSockets.connect = refuse
"""


def dialling_only(port: int, env: Mapping[str, str], folder: Path) -> dict[str, str]:
    """An environment in which a worker can dial this port and no other."""
    hook = folder / "hook"
    hook.mkdir(exist_ok=True)
    (hook / "sitecustomize.py").write_text(HOOK)
    return {**env, "ONLY_PORT": str(port), "PYTHONPATH": f"{hook}:{env['PYTHONPATH']}"}
