"""An ssh server on loopback that runs what it is asked on this machine, and the configuration of its user's own ssh."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncssh


class SshServer:
    """A server with a host key of its own.  `commands` has what it was asked to run, `logins` who proved who they
    are."""

    def __init__(self, user_key: asyncssh.SSHKey) -> None:
        self.key = asyncssh.generate_private_key("ssh-ed25519")
        self.port = 0
        self.commands: list[str] = []
        self.logins: list[str] = []
        self._user_key = user_key

    def key_line(self, port: int | None = None) -> str:
        """What a known_hosts file says of this server's key, or of one at another port that claims it."""
        return f"[127.0.0.1]:{port or self.port} {self.key.export_public_key().decode().strip()}\n"

    async def serve(self, started: threading.Event) -> None:
        """Serve until `end` is called, which other threads may do once it has `started`."""
        server, ended, loop = self, asyncio.Event(), asyncio.get_running_loop()
        self.end = lambda: loop.call_soon_threadsafe(ended.set)

        class Connection(asyncssh.SSHServer):
            def begin_auth(self, username: str) -> bool:
                return True

            def public_key_auth_supported(self) -> bool:
                return True

            def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
                if key.public_data == server._user_key.public_data:
                    server.logins.append(username)
                    return True
                return False

        async with asyncssh.listen(
            "127.0.0.1", 0, server_host_keys=[self.key], server_factory=Connection, process_factory=self._run,
            encoding=None,
        ) as listening:  # fmt: skip
            self.port = listening.get_port()
            started.set()
            await ended.wait()
            listening.close()
            await listening.wait_closed()

    async def _run(self, process: Any) -> None:
        self.commands.append(process.command)
        child = await asyncio.create_subprocess_shell(
            process.command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        given = asyncio.create_task(_pass_on(process.stdin, child.stdin))
        await asyncio.gather(_pass_on(child.stdout, process.stdout), _pass_on(child.stderr, process.stderr))
        process.exit(await child.wait())
        given.cancel()


async def _pass_on(source: Any, target: Any) -> None:
    while data := await source.read(1 << 16):
        target.write(data)
        await target.drain()
    if hasattr(target, "close"):
        target.close()


@contextmanager
def ssh_server(user_key: asyncssh.SSHKey) -> Iterator[SshServer]:
    """A server in a thread."""
    server, started = SshServer(user_key), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(started)))
    thread.start()
    try:
        assert started.wait(60), "the ssh server did not start"
        yield server
    finally:
        server.end()
        thread.join(60)


def own_ssh(folder: Path, real: str, user_key: asyncssh.SSHKey, known: str) -> Path:
    """The folder of an `ssh` that is the real one, with a configuration, in which anna is this machine, and known hosts
    of its own."""
    (folder / "id").write_bytes(user_key.export_private_key())
    (folder / "id").chmod(0o600)
    (folder / "known_hosts").write_text(known)
    (folder / "config").write_text(
        f"Host anna\n  HostName 127.0.0.1\nHost *\n"
        f"IdentityFile {folder}/id\nIdentitiesOnly yes\nIdentityAgent none\nUserKnownHostsFile {folder}/known_hosts\n"
        "GlobalKnownHostsFile /dev/null\n"
    )
    (folder / "bin").mkdir()
    ssh = folder / "bin" / "ssh"
    ssh.write_text(f'#!/bin/sh\nexec {real} -F {folder}/config "$@"\n')
    ssh.chmod(0o755)
    return ssh.parent


__all__ = ["SshServer", "own_ssh", "ssh_server"]
