"""A coordinator's machine is lost, as by its plug: the standby on another one takes over, and training and streams of
tokens go on with the same bits.

`python tests/e2e/test_standby_on_a_lan.py ROUNDS`: so many machines, in turns under training and under streams.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from support.cases.language import gpt2_folder
from support.lan.lan_mesh import LanMesh, LoggedProcess, until
from support.lan.namespaces import Lan, needs_namespaces
from support.processes.commands import COMES_TRUE_S, environment
from support.processes.served_texts import HOW, PROMPTS, TOKENS
from support.processes.stopped_programs import PROGRAM, Program, trained_alone

import mesh

pytestmark = needs_namespaces
WORKERS = ("desk", "attic", "cellar")
TEXTS = PROGRAM.parent / "served_texts.py"
PORT = 7100


class Home:
    """A coordinator, its standby and workers, on a machine each, and one more for a program."""

    def __init__(self, lan: Lan, folder: Path, *arguments: str) -> None:
        self.first, self.second, self.user, *others = lan.hosts
        self.folder, self.arguments = folder, arguments
        self.mesh = LanMesh(self.first, folder, "--name", "first", *arguments)
        for host, name in zip(others, WORKERS, strict=True):
            self.mesh.worker(host, name)
        until(lambda: list(self.mesh.nodes().values()) == ["healthy"] * len(WORKERS))
        self._state = self._folder("second")
        shutil.copytree(self._folder("coordinator") / "@authority", self._state / "@authority")
        self.standby = self._serve_standby()
        until(self._in_sync)

    @property
    def address(self) -> str:
        return f"{self.first.address}:{PORT}"

    def start(self, program: Path, *arguments: str) -> subprocess.Popen[str]:
        """A program on a machine that is nobody else's, of the user to whom the mesh belongs."""
        env, pipe = environment(self.folder / "coordinator", MESH_NAME=self.mesh.mesh), subprocess.PIPE
        words = (sys.executable, str(program), *arguments)
        return self.user.start(*words, env=env, stdin=pipe, stdout=pipe, text=True)

    def lose_the_coordinator(self) -> tuple[float, float]:
        """Its machine loses its power; when, and when the standby served."""
        lost_s = time.monotonic()
        self.first.lose_power()
        until(lambda: any(line.startswith('{"event": "ready"') for line in self.standby.lines()))
        return lost_s, time.monotonic()

    def _folder(self, name: str) -> Path:
        env = environment(self.folder / name)
        return Path(env["XDG_STATE_HOME"], "graph-mesh", self.mesh.mesh)

    def _serve_standby(self) -> LoggedProcess:
        words = ("--name", "second", "--standby", self.address, *self.arguments)
        return self.mesh.daemon(self.second, "second", "coord", "serve", "--json", "--mesh", self.mesh.mesh, *words)

    def _in_sync(self) -> bool:
        file = self._state / "@second" / "standby.json"
        configuration: Any = json.loads(file.read_text())["record"]["configuration"] if file.exists() else None
        return configuration is not None and len(configuration["in_sync"]) == 2


class Streams:
    """Streams of tokens as they come from the program that serves them."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.texts: dict[int, list[int]] = defaultdict(list)
        self.told_s: dict[int, float] = {}  # when each stream had a token last
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            words = line.split()
            if len(words) == 4:
                stream, place, token = (int(word) for word in words[:3])
                assert place == len(self.texts[stream]) % TOKENS, "a token is missing, or came twice"
                self.texts[stream].append(token)
                self.told_s[stream] = float(words[3])

    def go_on(self, since_s: float) -> float:
        """Wait until each stream had a token after that; when the last of them had."""
        until(lambda: len(self.told_s) == len(PROMPTS) and min(self.told_s.values()) > since_s, COMES_TRUE_S)
        return min(self.told_s.values())

    def end(self, folder: Path) -> None:
        """Have it end, and compare all it said with what one process says."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(COMES_TRUE_S) == 0
        model = mesh.load(folder)
        expected = [model.generate([prompt], **HOW)[0] for prompt in PROMPTS]
        for stream, tokens in self.texts.items():
            for first in range(0, len(tokens), TOKENS):
                text = tokens[first : first + TOKENS]
                assert text == expected[stream][: len(text)]


def trained(lan: Lan, folder: Path, *arguments: str) -> tuple[float, float]:
    """Training while the coordinator's machine is lost: after how long the standby served, and a step was done."""
    home = Home(lan, folder, *arguments)
    running = Program(home.start(PROGRAM, "buddy", home.address), trained_alone)
    for _ in range(8):
        running.read()
    lost_s, served_s = home.lose_the_coordinator()
    went_on_s = running.read_on(served_s)
    running.end()
    return served_s - lost_s, went_on_s - served_s


def streamed(lan: Lan, folder: Path, *arguments: str) -> tuple[float, float]:
    """The same with streams of tokens, until each of them has another one."""
    home = Home(lan, folder, *arguments)
    model = gpt2_folder(folder / "model")
    streams = Streams(home.start(TEXTS, str(model), home.address))
    streams.go_on(0.0)
    lost_s, served_s = home.lose_the_coordinator()
    went_on_s = streams.go_on(served_s)
    streams.end(model)
    return served_s - lost_s, went_on_s - served_s


@pytest.mark.long
@pytest.mark.parametrize("what", [trained, streamed])
def test_what_runs_goes_on_with_a_standby_on_another_machine(what: Any, tmp_path: Path) -> None:
    with Lan(3 + len(WORKERS)) as lan:
        _, went_on_s = what(lan, tmp_path)
    assert went_on_s < 30.0, "its clients waited for the one that is lost"


def many(rounds: int) -> None:
    went_on: dict[str, list[float]] = defaultdict(list)
    for number in range(rounds):
        what = (trained, streamed)[number % 2]
        with TemporaryDirectory() as folder, Lan(3 + len(WORKERS)) as lan:
            served_s, after_s = what(lan, Path(folder))
        went_on[what.__name__].append(after_s)
        print(f"{what.__name__}: served {served_s:.2f} s after the loss, went on {after_s:.2f} s later", flush=True)
    for name, seconds in went_on.items():
        print(f"{name}: {len(seconds)} losses, median {statistics.median(seconds):.2f} s, at most {max(seconds):.2f} s")


if __name__ == "__main__":
    many(int(sys.argv[1]))
