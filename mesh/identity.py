"""Who this process is when it coordinates a mesh or asks a coordinator: a fresh identity each time."""

from __future__ import annotations

import os
import secrets

from wire.protocol import Identity
from wire.sharedmem import SharedDir
from wire.versions import here


def make_identity(role: str, mesh: str, name: str, shared: SharedDir) -> Identity:
    """An identity of this process in `role` ("coordinator" or "client"); it listens nowhere yet."""
    return here(
        node_id=secrets.token_hex(16), name=name, role=role, mesh=mesh, boot_id=secrets.token_hex(8),
        shared_memory=str(shared.path),
    )  # fmt: skip


def default_name() -> str:
    """How a program that embeds a coordinator, or asks one, is called."""
    return f"python-{os.getpid()}"
