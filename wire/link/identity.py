"""Identity of this process: the one that its hello carries, made from the machine it runs on."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import secrets
import uuid
from functools import cache
from pathlib import Path

from ..errors import ConfigError
from ..ir.ops import OPS, row_hash
from ..package import package_version
from ..protocol.peer import Identity
from ..protocol.versions import PROTOCOL
from ..system.private_folder import login_name
from ..system.shared_memory import SharedDir

_NODE_ID = re.compile(r"[0-9a-f]{32}")


def identity_here(role: str, mesh: str, name: str, shared: SharedDir | None, node_id: str = "") -> Identity:
    """The identity of this process in `role` (wire/roles.py), listening nowhere yet.

    Without `node_id` the node is new; a worker keeps its id in its state folder.
    """
    return Identity(
        node_id=node_id or secrets.token_hex(16),
        name=name,
        role=role,
        mesh=mesh,
        boot_id=secrets.token_hex(8),
        incarnation=1,
        version=package_version(),
        protocol=PROTOCOL,
        op_rows={op: row_hash(op) for op in OPS},
        addresses=(),
        host_id=host_id(),
        shared_memory=str(shared.path) if shared else "",
        pid=os.getpid(),
    )


def process_id(member_id: str) -> str:
    """A node id for one of several processes of a member, so that they do not end each other's links."""
    return f"{member_id}/{secrets.token_hex(4)}"


def kept_node_id(folder: Path) -> str:
    """The node id kept in a state folder, made at the first start; ConfigError if the disk refuses it."""
    path = folder / "node_id"
    try:
        node_id = path.read_text(errors="replace").strip() if path.exists() else ""
        if not _NODE_ID.fullmatch(node_id):
            node_id = secrets.token_hex(16)
            path.write_text(node_id + "\n")
    except OSError as error:  # one that cannot be read now is not replaced: others know this node by it
        raise ConfigError(f"cannot keep the node's id in {path}", cause=str(error)) from None
    return node_id


@cache
def host_id() -> str:
    """Equal for processes of one user on one running machine; says nothing else about it."""
    seen = (platform.node(), str(uuid.getnode()), _boot_id(), login_name())
    return hashlib.blake2b("\0".join(seen).encode(), digest_size=16).hexdigest()


def _boot_id() -> str:
    """Linux's random id of this boot, which containers on one machine share; elsewhere nothing."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
