"""Another user of this machine, who tries what a stranger can: to link, to listen in, to read, to signal.

    python other_user.py '{"uid": 65534, "ports": [...], "folders": [...], "pids": [...], "mesh": "..."}'

Called as root it becomes that user first, once all that it needs is imported, since it may not be able to read the
packages then.  It prints as JSON what each attempt came to: the name of an error, or "done" with what it got.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import aiohttp.web
from support.hostile.raw_client import RawClient, upgrade, ws_frame
from support.machines.links import Recorder, node

from wire.limits import DEFAULT
from wire.link.websocket_carrier import Endpoint
from wire.protocol.messages import Join, TailLog
from wire.protocol.peer import CONTROL, Peer
from wire.security import user_proof
from wire.security.user_secret import user_secret


async def import_all() -> None:
    """Do once what imports modules, while the packages can be read."""
    here, there = (Endpoint(node(name), Recorder(), secret=bytes(32)) for name in ("here", "there"))
    port = await there.listen("127.0.0.1", 0)
    await here.dial("127.0.0.1", port)
    with contextlib.suppress(aiohttp.ClientError):
        await upgraded(port)
    await here.close()
    await there.close()
    await asyncio.to_thread(int)


def become(uid: int, home: str) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    os.environ.update(HOME=home, XDG_STATE_HOME=home)
    assert os.geteuid() == uid


async def link(port: int, mesh: str, role: str) -> str:
    """Own an idle worker as its coordinator would, with the mesh's name and no credential."""
    endpoint = Endpoint(node("mallory", role=role, mesh=mesh), Recorder())
    try:
        made = await endpoint.dial("127.0.0.1", port)
        owned = await made.request(Join(time.time_ns() // 1000, 0.5, "mallory", 5.0))
        lines = await made.request(TailLog(5))
        return f"done: {owned} {lines}"
    finally:
        await endpoint.close()


async def heard(port: int, *sent: bytes) -> str:
    """All that a node says to somebody who says this."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    client = RawClient(reader, writer)
    for each in sent:
        await client.send(each)
    said = await client.until_end()
    writer.close()
    return said.decode("latin-1")


async def upgraded(port: int) -> str:
    async with aiohttp.ClientSession() as session, session.ws_connect(f"http://127.0.0.1:{port}/graph-mesh/link"):
        return "done"


def attempts(asked: dict[str, Any]) -> dict[str, Any]:
    hello = Peer.dialer(node("mallory", role="coordinator", mesh=asked["mesh"]), DEFAULT, os.urandom(16))
    frame = hello.next_frame(CONTROL) or b""
    found: dict[str, Any] = {"secret": user_secret().hex()}
    for port in asked["ports"]:
        for role in ("coordinator", "worker", "client"):
            found[f"link {port} as {role}"] = outcome(lambda port=port, role=role: link(port, asked["mesh"], role))
        found[f"upgrade {port}"] = outcome(lambda port=port: upgraded(port))
        found[f"hello {port}"] = outcome(lambda port=port: heard(port, upgrade(), ws_frame(frame)))
        found[f"hello after a false proof {port}"] = outcome(
            lambda port=port: heard(port, user_proof.opening(bytes(32)), b"0" * 64 + user_proof.END)
        )
    for folder in asked["folders"]:
        found[f"list {folder}"] = outcome(lambda folder=folder: os.listdir(folder))
        found[f"write {folder}"] = outcome(lambda folder=folder: Path(folder, "planted").write_text(""))
    for file in asked["files"]:
        found[f"read {file}"] = outcome(lambda file=file: Path(file).read_bytes().hex())
        found[f"change {file}"] = outcome(lambda file=file: Path(file).write_bytes(b"x"))
        found[f"remove {file}"] = outcome(lambda file=file: os.unlink(file))
    for pid in asked["pids"]:
        found[f"stop {pid}"] = outcome(lambda pid=pid: os.kill(pid, signal.SIGSTOP))
        for name in ("environ", "mem", "maps"):
            found[f"{name} {pid}"] = outcome(lambda pid=pid, name=name: Path(f"/proc/{pid}/{name}").read_bytes().hex())
        found[f"arguments of {pid}"] = outcome(lambda pid=pid: Path(f"/proc/{pid}/cmdline").read_text())
    return found


def outcome(attempt: Any) -> str:
    try:
        came = attempt()
        return str(asyncio.run(came) if asyncio.iscoroutine(came) else f"done: {came}")
    except Exception as error:
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    asyncio.run(import_all())
    become(settings["uid"], settings["home"])
    print(json.dumps(attempts(settings)))
