"""What a person at the terminal sees of a worker that falls silent and comes back: by `nodes`, and in serve's log."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

from support.commands import command, daemon, environment, run, wait_for

NODE_TIMEOUT_S = 4.5  # suspect after 1.5 s of silence, dead after 3: ten times what a watch looks at


def test_a_stopped_worker_is_suspect_then_gone_then_back_and_serve_says_so(tmp_path: Path) -> None:
    env = environment(tmp_path, MESH_NAME="watched")
    log = tmp_path / "coord.log"
    serve = ("coord", "serve", "--port", "0", "--no-mdns", "--node-timeout", f"{NODE_TIMEOUT_S:g}")
    with daemon(*serve, env=env, log=log) as coordinator:
        assert not 7100 <= coordinator.ready["port"] <= 7131
        worker = ("worker", "--port", "0", "--no-mdns", "--device", "cpu", "--peer", coordinator.address)
        with daemon(*worker, "--name", "kitchen", env=env, log=tmp_path / "worker.log") as kitchen:
            wait_for(lambda: "kitchen joined" in log.read_text())
            shown = run("coord", "nodes", env=env)  # no address: its own coordinator is found by what it wrote down
            assert shown.returncode == 0, shown.stderr
            assert "kitchen" in shown.stdout
            watch = command("coord", "nodes", "--watch", "--json")
            with subprocess.Popen(watch, env=env, stdout=subprocess.PIPE, text=True) as watching:
                assert watching.stdout is not None
                (first,) = json.loads(watching.stdout.readline())
                assert first["state"] == "healthy"
                kitchen.process.send_signal(signal.SIGSTOP)
                changes = [json.loads(watching.stdout.readline()) for _ in range(2)]
                kitchen.process.send_signal(signal.SIGCONT)
                changes.append(json.loads(watching.stdout.readline()))
                watching.send_signal(signal.SIGINT)
                assert watching.wait() == 0
            assert [(each["was"], each["state"]) for each in changes] == [
                ("healthy", "suspect"), ("suspect", "dead"), ("dead", "healthy")
            ]  # fmt: skip
            wait_for(lambda: "kitchen is back" in log.read_text())
            before = len(log.read_text())
            assert kitchen.stop(signal.SIGTERM) == 0
        wait_for(lambda: "kitchen is gone: " in log.read_text()[before:])
        assert "WARNING" not in log.read_text()[before:], "it left as it was told to"
    said = log.read_text()
    assert "[worker coordinator]" not in said
    assert "kitchen is suspect: silent for" in said
    assert "kitchen is gone: silent for" in said
    assert "no work was under way" in said
    assert "no node answers" not in said, "who judges the worker says that it is gone"
    lost = run("coord", "nodes", env=env)
    assert "no coordinator of mesh 'watched' on this machine" in lost.stderr
