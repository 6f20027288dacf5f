"""`mesh-coord launch` by the real ssh: ranks behind a server whose key is known, nothing for one whose key is not."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncssh
import pytest
from support.processes.commands import environment, run
from support.processes.ssh_server import SshServer, own_ssh, ssh_server

from mesh.commands.exit_codes import UNREACHABLE

SSH = shutil.which("ssh")
pytestmark = pytest.mark.skipif(SSH is None, reason="NOT TESTED: there is no ssh here")
SCRIPT = """
import os
import mesh

world = mesh.init()
print(mesh.rank(), world.all_gather([mesh.rank()]).tolist(), flush=True)
"""
Launched = Callable[[SshServer, str], "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def user_key() -> asyncssh.SSHKey:
    return asyncssh.generate_private_key("ssh-ed25519")


@pytest.fixture
def server(user_key: asyncssh.SSHKey) -> Iterator[SshServer]:
    with ssh_server(user_key) as started:
        yield started


@pytest.fixture
def launched(tmp_path: Path, user_key: asyncssh.SSHKey) -> Launched:
    """A launch on this machine and behind a server, by a user who knows these hosts."""

    def launch(server: SshServer, known: str) -> subprocess.CompletedProcess[str]:
        assert SSH is not None
        folder = own_ssh(tmp_path, SSH, user_key, known)
        (tmp_path / "script.py").write_text(SCRIPT)
        hosts = tmp_path / "hosts.txt"
        there = f"anna slots=1 user={getpass.getuser()} port={server.port} python={sys.executable}"
        hosts.write_text(f"localhost slots=1\n{there} folder={tmp_path}\n")
        env = environment(tmp_path, PATH=f"{folder}{os.pathsep}{os.environ['PATH']}")
        words = "--grace", "0.5", "--hostfile", str(hosts), str(tmp_path / "script.py")
        return run("coord", "launch", *words, env=env, cwd=tmp_path)

    return launch


def test_ranks_behind_a_server_that_the_user_knows_exchange_arrays(server: SshServer, launched: Launched) -> None:
    done = launched(server, server.key_line())
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == ["[0] 0 [0, 1]", "[1] 1 [0, 1]"]
    assert server.commands == [f"{sys.executable} -P -m mesh.scripts.agent"]


@pytest.mark.parametrize("known", ["another key", "nothing"])
def test_a_server_with_another_key_than_the_known_one_gets_nothing(
    server: SshServer, launched: Launched, user_key: asyncssh.SSHKey, known: str
) -> None:
    with ssh_server(user_key) as other:
        done = launched(server, other.key_line(server.port) if known == "another key" else "")
    assert done.returncode == UNREACHABLE
    assert "mesh-coord: the agent of rank 1 ended, on anna" in done.stderr
    assert "Host key verification failed" in done.stderr
    assert ("REMOTE HOST IDENTIFICATION HAS CHANGED" in done.stderr) == (known == "another key")
    assert (server.logins, server.commands) == ([], []), "it learns neither who asks, nor what"
    assert "Traceback" not in done.stderr
