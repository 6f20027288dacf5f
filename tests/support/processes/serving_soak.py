"""A server of models that works for an hour while its workers die, its clients are rude and somebody attacks it.

The coordinator, workers, the server and its clients are processes, as in `soak.py`.  The clients check what they are
told.  All texts are those that the model says alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from support.cases.served_models import llama_folder
from support.cases.served_requests import CASES, Answered, Asker
from support.processes.commands import ROOT, command, environment, run, wait_for
from support.processes.durable import free_port
from support.processes.serving_load import PAUSE
from support.processes.soak import COORDINATOR, KEPT, Part, Site

from mesh import Mesh, ModelServer
from mesh.importers.minilm import model_folder

CLIENTS = ("openai", "anthropic", "ollama", "crowd", "rude", "attacker")
SERVER = "server"
LOAD = Path(__file__).with_name("serving_load.py")
PATIENT = "5"  # a worker that is stopped for longer is dead; a busy machine keeps one waiting for a second or two
AWAY_S = (1.0, 12.0)  # a worker that leaves
REST_S = 40.0  # without an answer: what processes free goes back to the system within 30 s
SERVES = (
    "--replicas", "2", "--max-batch", "4", "--queue", "16", "--kv-budget", "12MiB", "--require-key", "--json", "-v",
)  # fmt: skip
FIRST_S = 600.0  # until each client was answered, on a machine with much else to do
HUNG_S = 420.0  # without an answer of one client: longer than any request may take
WRONG_MAX = 20  # more of the same kind say nothing new


class Replies:
    """What clients heard: how many answers of each kind, what came of them, and how long they took."""

    def __init__(self) -> None:
        self.last_s = dict.fromkeys(CLIENTS, time.monotonic())
        self.count: dict[str, Counter[str]] = defaultdict(Counter)
        self.longest_s: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._lock = threading.Lock()

    def read(self, part: Part, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with self._lock:
                self._hear(part.name, line)

    def _hear(self, name: str, line: bytes) -> None:
        try:
            told = json.loads(line)
        except ValueError:  # the last words of one that was killed
            return
        self.last_s[name] = time.monotonic()
        self.count[told["kind"]][told["outcome"]] += 1
        self.longest_s[told["kind"]] = max(self.longest_s[told["kind"]], told["s"])
        if "wrong" in told and len(self.wrong) < WRONG_MAX:
            self.wrong.append(f"{told['kind']}: {told['wrong']}")

    def close(self) -> None:
        """There is nothing to close."""


class ServingSite(Site[Replies]):
    """All of it; a context manager."""

    programs = CLIENTS
    disk_size = "2g"  # the coordinator and each worker keep the 90 MB of MiniLM
    lasting = frozenset((COORDINATOR, "one", SERVER, *CLIENTS))

    def _start(self, stack: ExitStack) -> None:
        env = environment(self.disk, MESH_NAME="serving-soak")
        env["PYTHONPATH"] = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
        env.pop("SSL_CERT_FILE", None)
        llama, answers = llama_folder(self.folder / "llama"), self.folder / "answers.json"
        answers.write_text(json.dumps(alone(llama)))
        # reproducible: `auto` may divide a sum among workers else, and probabilities end in other digits
        self.serve(stack, env, (*self.workers, SERVER), "--node-timeout", PATIENT, "--reproducible", *KEPT)
        for name in self.workers:
            words = ("worker", "--port", "0", "--no-mdns", "--device", "native", "--threads", "1", "--name", name)
            self.add(name, command(*words, "--host", "127.0.0.1", "--peer", self.proxies[name].address), env)
        keys = {name: run("coord", "keys", "create", name, env=env).stdout.strip() for name in CLIENTS}
        time.sleep(5.0)  # a server that finds no coordinator as it begins ends
        self._port = free_port()
        port, models = str(self._port), (f"llama={llama}", f"minilm={model_folder()}")
        words = (
            "coord",
            "serve-model",
            *models,
            "--port",
            port,
            "--coordinator",
            self.proxies[SERVER].address,
            *SERVES,
        )
        self.add(SERVER, command(*words), env)
        url = f"http://127.0.0.1:{port}"
        wait_for(lambda: self._serves(url))
        for name in CLIENTS:
            self.add(name, [sys.executable, str(LOAD), name, url, keys[name], str(answers)], env)
        began_s = time.monotonic()  # the first answers wait for all that is compiled
        wait_for(lambda: min(self.answers.last_s.values()) > began_s, FIRST_S)

    def _serves(self, url: str) -> bool:
        assert self.parts[SERVER].process.poll() is None, "the server ended"
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=60) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def sample(self) -> dict[str, float]:
        """What they hold; without the connections that clients of the server have open, which come and go by hundreds.
        Those that a client has closed, and the server not, do count."""
        found = super().sample()
        found[f"{SERVER} files"] -= established(self._port)
        return found

    def faults(self) -> dict[str, Callable[[], str]]:
        return {
            **super().faults(),
            "leave worker": self.leave_worker,
            "reload models": self.reload_models,
            "stop server": self.stop_server,
        }

    def at_rest(self) -> dict[str, float]:
        """What they hold once nobody has asked for anything for a while."""
        pause = self.folder / PAUSE
        pause.touch()
        try:
            wait_for(lambda: time.monotonic() - max(self.answers.last_s.values()) > REST_S, HUNG_S)
            return self.sample()
        finally:
            pause.unlink()

    def leave_alone(self, name: str, seconds: float) -> None:
        """All other workers leave in good order for a time, in which this one has every model."""
        for part in [self.parts[other] for other in self.workers if other != name]:
            part.killed, part.away_until_s = True, time.monotonic() + seconds
            part.process.send_signal(signal.SIGTERM)

    def leave_worker(self) -> str:
        """A worker leaves in good order, and comes back later."""
        part, seconds = self._one_of(self.workers), self.chance.uniform(*AWAY_S)
        part.killed, part.away_until_s = True, time.monotonic() + seconds
        part.process.send_signal(signal.SIGTERM)
        return f"{part.name} for {seconds:.1f} s"

    def reload_models(self) -> str:
        self.parts[SERVER].process.send_signal(signal.SIGHUP)
        return "by SIGHUP"

    def stop_server(self) -> str:
        return self._stop(self.parts[SERVER].process.pid)

    def kill_program(self) -> str:
        return super().kill_program() if not self.judged else self.reload_models()


def established(port: int) -> int:
    """How many connections a server on a port of this machine has that neither side has ended."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(local.endswith(f":{port:04X}") and state == "01" for _, local, _, state, *_ in rows)


def alone(llama: Path) -> dict[str, Answered]:
    """What the models say to each case, one at a time, on one worker."""

    async def asked(url: str) -> dict[str, Answered]:
        asker = Asker(url, "none", 120.0)
        found = {case.name: await asker.ask(case) for case in CASES}
        await asker.close()
        return found

    with Mesh.builder().local(1, engine="native", threads=1).build() as own, ModelServer(own, port=0) as server:
        server.load_model("llama", llama)
        server.load_model("minilm", model_folder())
        return asyncio.run(asked(server.url))
