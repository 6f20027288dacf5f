"""Processes that last have one heap for all their threads."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from itertools import pairwise
from pathlib import Path

import pytest
from support.cases.served_models import llama_folder
from support.processes.commands import daemon, environment

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's heaps, as /proc shows them")
HEAP_BYTES = 64 << 20  # of address space, at a multiple of it, that glibc reserves for each further heap


def further_heaps(pid: int) -> int:
    """Heaps besides the one that a process begins with: each is memory at such a multiple, and what is reserved for it
    up to the next one."""
    found = re.findall(r"^(\w+)-(\w+) (\S+) \S+ \S+ 0 *$", Path(f"/proc/{pid}/maps").read_text(), re.MULTILINE)
    parts = [(int(begin, 16), int(end, 16), rights) for begin, end, rights in found]
    return sum(
        begin % HEAP_BYTES == 0 and end == next_begin and next_end - begin == HEAP_BYTES and rights.startswith("rw")
        for (begin, end, rights), (next_begin, next_end, _) in pairwise(parts)
    )


@pytest.mark.parametrize("shared", [False, True])
def test_a_heap_of_a_thread_is_found(shared: bool, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys, threading\n"
        f"sys.path.insert(0, {str(Path(__file__).resolve().parents[2])!r})\n"
        "from wire.system.malloc import share_heap\n"
        f"share_heap() if {shared} else None\n"
        "kept = []\n"
        "work = lambda: kept.append([bytes(5000) for _ in range(500)])\n"
        "threads = [threading.Thread(target=work) for _ in range(3)]\n"
        "[thread.start() for thread in threads], [thread.join() for thread in threads]\n"
        "print(os.getpid(), flush=True), sys.stdin.read()\n"
    )
    words = [sys.executable, str(script)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        heaps = further_heaps(int(process.stdout.readline()))
        process.communicate("")
    assert (heaps > 0) is not shared


def test_daemons_and_a_server_of_models_have_one(tmp_path: Path) -> None:
    model = llama_folder(tmp_path / "llama")
    env = environment(tmp_path, OF_ITS_OWN="1")  # such a process is not forked, whose heaps would be those of another
    with (
        daemon("coord", "serve", "--port", "0", "--no-mdns", env=env, log=tmp_path / "coordinator.log") as coordinator,
        daemon(
            "worker", "--port", "0", "--no-mdns", "--device", "native", "--peer", coordinator.address, env=env,
            log=tmp_path / "worker.log",
        ) as worker,
        daemon(
            "coord", "serve-model", str(model), "--port", "0", "--coordinator", coordinator.address, env=env,
            log=tmp_path / "server.log",
        ) as server,
    ):  # fmt: skip
        body = json.dumps({"model": "llama", "prompt": [5, 9, 40, 7], "max_tokens": 4}).encode()
        asked = urllib.request.Request(
            f"{server.ready['url']}/v1/completions", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(asked, timeout=120) as answer:
            assert answer.status == 200
        assert [further_heaps(each.process.pid) for each in (coordinator, worker, server)] == [0, 0, 0]
