"""The same program with no worker at all: everything is computed in the process, and not one socket is made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.processes.commands import RUN_S, environment

PROGRAM = """
import sys

touched = []
sys.addaudithook(lambda event, args: touched.append((event, args)) if event.startswith("socket.") else None)

import numpy as np

import mesh
import mesh.numpy as mnp
from mesh import DistributedTrainer, Grid, PartitionSpec as P, collectives, errors

x = np.ones((4, 3), np.float32)
summed = mesh.shard_map(lambda b: collectives.all_reduce(b, "dp"), Grid((4,), ("dp",)), P("dp"), P())
assert (np.asarray(summed(x)) == 4).all()
world = mesh.init()
assert mesh.world_size() == 1 and (world.all_reduce(x) == x).all()
fitted = DistributedTrainer(lambda p, x: mnp.sum((x * p) ** 2, axis=1), np.ones(3, np.float32))
assert len(fitted.fit((x,), epochs=2, batch_size=2).losses) == 4
assert (np.asarray(mesh.function(lambda x: x + 1)(x)) == 2).all()
assert touched == [], touched

made = mesh.Mesh.builder().build()
assert made.nodes == () and (made.run(lambda v: v + 1, x) == 2).all()
assert made.report().reasons == ("computed in this process",)
try:
    made.run(lambda v: v + 1, x, mode="on")
except errors.NodeLost:
    print("refused")
made.close()
calls = {"socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo"}
print([event for event in touched if event[0] in calls])
"""


def test_a_program_without_workers_makes_no_network_call_and_says_so_where_it_must_have_one(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM],
        env=environment(tmp_path), cwd=tmp_path, capture_output=True, text=True, timeout=RUN_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["refused", "[]"]
