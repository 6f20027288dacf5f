"""What processes leave on the disk that are killed is removed by the next one that does the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="it kills by signals")

# Each writes into the current folder or into TMPDIR; where `killed` is set, its process dies before it is done.
WRITERS = {
    "a file of weights": """
import numpy as np, mesh
limit()
mesh.save_safetensors({"w": np.zeros(1 << 15)}, "whole")
""",
    "a file of a graph": """
import numpy as np, mesh
limit()
mesh.trace(lambda x: x + np.arange(1 << 15), np.float32(0)).save("whole")
""",
    "a simulated mesh": """
import mesh
with mesh.Mesh.builder().mesh("sim").simulate(1).build():
    die()
""",
    "the identity of a program": """
import asyncio
from pathlib import Path
from coordinator.authority.authority import Authority
from mesh.backends.admission import Admission
admission = Admission(Authority(Path("whole"), "home"))
die()
asyncio.run(admission.close())
""",
    "the folder of ranks": """
import asyncio, sys
from mesh.scripts.agent import _run
rank = f"import os; os.kill(os.getppid(), {9 if killed else 0})"
asyncio.run(_run({"command": [sys.executable, "-c", rank], "folder": "", "ranks": {"0": {}}, "grace_s": 5}, iter(())))
""",
    "a node that joins": """
import asyncio, socket, threading
from contextlib import nullcontext, suppress
from pathlib import Path
from mesh.backends.enrolment import join_mesh
from mesh.errors import MeshError
from wire.joining.join_port import PORT_OFFSET
from wire.joining.join_tokens import new_token
from wire.security.certificates import new_authority
listener = socket.create_server(("127.0.0.1", 0))
def answer():
    caller, _ = listener.accept()
    die()
    caller.recv(1 << 16)
    caller.sendall(b"it is nothing that speaks TLS")
    caller.close()
threading.Thread(target=answer, daemon=True).start()
token = new_token(new_authority("home", 0.0).certificate, bytes(5), bytes(20))
at = listener.getsockname()[1] - PORT_OFFSET
with suppress(MeshError):
    asyncio.run(join_mesh(token, "worker", "desk", [f"127.0.0.1:{at}"], (), ".", lambda mesh: nullcontext(Path(mesh))))
""",
}
DYING = """
import os, resource, signal
killed = True
def die(): os.kill(os.getpid(), signal.SIGKILL)
def limit():
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # of a file that grows beyond it
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
"""


LIVING = """
killed = False
def die(): ...
def limit(): ...
"""


def run(start: str, what: str, folder: Path) -> tuple[int, str]:
    """The exit code of a process that does this in a folder, and what it says of errors."""
    command = [sys.executable, "-W", "ignore", "-c", start + WRITERS[what]]
    environment = {**os.environ, "TMPDIR": str(folder)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=120, check=False)
    return done.returncode, done.stderr.decode()[-2000:]


@pytest.mark.parametrize("what", WRITERS)
def test_the_next_process_removes_what_a_killed_one_left(what: str, tmp_path: Path) -> None:
    def left() -> list[str]:
        return sorted(path.name for path in tmp_path.iterdir() if path.name != "whole")

    code, said = run(DYING, what, tmp_path)
    assert code in (-signal.SIGKILL, -signal.SIGXFSZ), said
    assert left()
    assert run(LIVING, what, tmp_path) == (0, "")
    assert not left()
