"""Other users of this machine, and nodes that have joined no mesh: a second real user gets nothing from them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
from support.processes.commands import PATIENT_S, ROOT, RUN_S, daemon, environment
from support.processes.fault_proxy import UP, FaultProxy

import mesh
from mesh import Mesh, errors
from wire.security.user_secret import SECRET_FILE, SECRET_FOLDER, user_secret
from wire.system.private_folder import user_name

UID = 65534  # nobody's, on every Linux
NAME = "other-users"
LASTING = {"node_timeout_s": PATIENT_S, "planner_idle_s": RUN_S}  # no process ends meanwhile
needs_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0,
    reason="NOT TESTED: a second user needs root, as the CI has it; run it as root to see that others get nothing",
)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can look into: what keeps others out must be our own doing."""
    with tempfile.TemporaryDirectory(prefix="graph-mesh-users-") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def tried(**asked: object) -> dict[str, str]:
    """What the other user got."""
    with tempfile.TemporaryDirectory() as home:
        os.chown(home, UID, UID)
        asked |= {"uid": UID, "home": home, "mesh": NAME}
        done = subprocess.run(
            [sys.executable, "-P", "-m", "support.hostile.other_user", json.dumps(asked)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests")))},
            capture_output=True, text=True, timeout=RUN_S, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


def ports_of(pids: list[int]) -> list[int]:
    """The ports on which these processes listen."""
    made = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):  # it has ended
            made += psutil.Process(pid).net_connections("tcp")
    return sorted({each.laddr.port for each in made if each.status == psutil.CONN_LISTEN})


def everything_in(folder: Path) -> tuple[list[str], list[str]]:
    """Its folders, and its files."""
    paths = sorted(folder.rglob("*"))
    return [str(path) for path in paths if path.is_dir()], [str(path) for path in paths if path.is_file()]


def shared_memory(pids: list[int]) -> tuple[list[str], list[str]]:
    """The folders of these processes, and their files: other tests' may go at any time."""
    opened = set()
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            opened |= {os.path.realpath(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()}
    folders = [path for path in Path("/dev/shm").glob("graph-mesh-*") if str(path / "lock") in opened]
    return [str(path) for path in folders], [name for path in folders for name in everything_in(path)[1]]


@needs_root
def test_another_user_gets_nothing_of_a_worker_without_a_token_and_of_local_workers(open_folder: Path) -> None:
    """Not a link in any role, nor a word but this user's name; no file, memory, signal, nor what processes know."""
    env = environment(open_folder, MESH_NAME=NAME)
    words = ("--device", "cpu", "--name", "mine", "--port", "0", "--no-mdns")
    weights = np.full((200, 200), 42.5, np.float32)
    with (
        daemon("worker", *words, env=env, log=open_folder / "log") as worker,
        Mesh.builder().mesh(NAME).node(worker.address).timeouts(**LASTING).build() as mine,
        Mesh.builder().mesh(NAME).local(1, engine="cpu").timeouts(**LASTING).build() as local,
    ):
        for each in (mine, local):
            held = each.put((weights,))
            assert each.run(lambda w, x: (x @ w).sum(), *held, np.ones((2, 200), np.float32)) == 42.5 * 200 * 400
        here = psutil.Process()
        pids = [child.pid for child in (here, *here.children()) for child in child.children(recursive=True)]
        pids = sorted({*pids, here.pid})
        ports = ports_of(pids)
        assert worker.ready["port"] in ports and len(ports) >= 2
        folders, files = everything_in(open_folder)
        more_folders, more_files = shared_memory(pids)
        assert any(file.endswith(f"{SECRET_FOLDER}/{SECRET_FILE}") for file in files) and len(more_folders) >= 3
        log = str(open_folder / "log")  # which this test made, for everybody to read
        files = [file for file in (*files, *more_files) if file != log]
        found = tried(ports=ports, folders=[*folders, *more_folders], files=files, pids=pids)
        for each in (mine, local):
            assert each.run(lambda x: x + 1, np.float32(1)) == 2, "and nobody noticed"
        assert [node.state for node in (*mine.nodes, *local.nodes)] == ["healthy"] * 2

    assert found.pop("secret") not in (user_secret().hex(), "")
    refusal = f"belongs to user {user_name()} of this machine, and you are {user_name(UID)}"
    for what, came in found.items():
        match what.split()[0]:
            case "link":
                assert came.startswith("NotTrusted") and refusal in came and "token" in came, (what, came)
            case "upgrade":
                assert not came.startswith("done"), (what, came)
            case "hello":
                after = "after" in what
                assert len(came) < 200 and (user_name() in came if after else came == ""), (what, came)
                assert NAME not in came and "graph-mesh-" not in came and "mine" not in came
            case "arguments":
                assert user_secret().hex() not in came
            case "list" if came == "done: []":
                raise AssertionError(f"{what}: others may look into it")
            case _:
                assert came.startswith("PermissionError"), (what, came)


@needs_root
def test_another_user_cannot_have_a_program_talk_to_an_imposter(open_folder: Path) -> None:
    """Somebody who listens where a worker was expected, and passes all on to the real one, breaks no proof."""
    env = environment(open_folder, MESH_NAME=NAME)
    words = ("--device", "cpu", "--name", "mine", "--port", "0", "--no-mdns")
    with (
        daemon("worker", *words, env=env, log=open_folder / "log") as worker,
        FaultProxy(("127.0.0.1", worker.ready["port"])) as imposter,
    ):
        with pytest.raises(errors.NotTrusted, match=r"is no node of yours.*or is an imposter"):
            Mesh.builder().mesh(NAME).node(imposter.address).build()
        assert imposter.passed(UP, 0) < 200, "the program said nothing but a nonce"
        assert "turned away" not in (open_folder / "log").read_text(), "and the real one heard no more"


def test_a_local_worker_is_for_the_program_that_started_it(tmp_path: Path) -> None:
    """Another program of the same user has another secret, and learns it by a clear error."""
    with Mesh.builder().mesh(NAME).local(1, engine="cpu").node_timeout(PATIENT_S).build() as local:
        (port,) = ports_of(
            [child.pid for child in psutil.Process().children() if "mesh.commands.worker" in _words(child)]
        )
        with pytest.raises(errors.NotTrusted, match=r"is no node of yours that this program may talk to"):
            Mesh.builder().mesh(NAME).node(f"127.0.0.1:{port}").build()
        assert local.run(lambda x: x + 1, np.float32(1)) == 2


def test_no_process_shows_the_secret(tmp_path: Path) -> None:
    """Neither in its arguments nor in its environment, which other users, or other programs, see."""
    with mesh.Worker("anna", device="cpu", mesh=NAME) as anna:
        process = psutil.Process(anna.pid)
        for each in (process, *process.children(recursive=True)):
            said = " ".join((*each.cmdline(), *each.environ().values()))
            assert user_secret().hex() not in said
        assert "--secret-on-stdin" in process.cmdline()
        with Mesh.builder().mesh(NAME).node(anna.address).node_timeout(PATIENT_S).build() as built:
            assert built.run(lambda x: x + 1, np.float32(1)) == 2


def _words(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""
