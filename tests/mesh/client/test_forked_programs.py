"""A process that was forked has no thread of its parent's mesh: it hears so, and leaves the mesh alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from support.processes.worker_process import gone

CODE = """
import os, sys
import numpy as np
import mesh

def told(work):
    try:
        work()
    except mesh.errors.ConfigError as error:
        return "forked" in str(error)

with mesh.Mesh.builder().local(1, engine="cpu").build() as m:
    pending = m.submit(lambda x: x + 1, np.ones(2))
    session = m.session(lambda s, x: (s + x, s), np.float32(1), np.float32(1))
    child = os.fork()
    if not child:
        calls = [
            lambda: m.run(lambda x: x + 1, np.ones(2)), lambda: m.submit(lambda x: x + 1, np.ones(2)), lambda: m.nodes,
            lambda: m.wait(m.on_loop.nodes()), lambda: session.step(np.float32(1)), m.__enter__,
        ]
        good = all(map(told, calls))
        session.close()
        m.close()
        os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0
    folder = m.on_loop._backend._local._folder.path
    child = os.fork()
    if not child:
        sys.exit(0)  # which calls what was registered for the end
    assert os.waitpid(child, 0)[1] == 0 and os.path.exists(folder)
    assert pending.result().tolist() == [2, 2] and session.step(np.float32(1)).result() == 1
    assert [node.state for node in m.nodes] == ["healthy"]
print("good")
"""


def test_a_forked_process_hears_that_the_mesh_is_its_parents() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.splitlines()[-1:] == ["good"], done.stderr[-3000:]


KILLED = """
import os, time
import mesh
m = mesh.Mesh.builder().local(1, engine="cpu").build()
child = os.fork()
if not child:
    time.sleep(1000)
print(child, *m.on_loop._backend._local._logs, flush=True)
time.sleep(1000)
"""


async def test_workers_of_a_killed_program_end_though_what_it_forked_goes_on() -> None:
    """A forked process, as those of a pool are, keeps the pipe open by whose end workers see that of their program."""
    with subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        child, worker = map(int, program.stdout.readline().split())
        program.kill()
        try:
            assert await gone(worker), "the worker of a program that is no more goes on"
        finally:
            os.kill(child, signal.SIGKILL)
