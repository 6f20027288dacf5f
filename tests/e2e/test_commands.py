"""mesh-coord and mesh-worker as people type them: a coordinator, two workers, jobs, mistakes, and the end."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.compare import assert_as_promised
from support.processes import site as sites
from support.processes.commands import PATIENT_S, command, daemon, environment, node_states, run, wait_for

import mesh.numpy as mnp
from coordinator.workers.failure_detector import HealthConfig
from mesh import Auto, trace
from mesh.commands import exit_codes
from mesh.commands.coord import parser
from mesh.commands.flags import timeouts
from wire.policy.strategies import strategy_of

GPT2 = str(Path(__file__).resolve().parents[1] / "golden" / "huggingface" / "gpt2")
X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)
W = np.linspace(0, 1, 24, dtype=np.float32).reshape(8, 3)


class Served(sites.Site):
    def submit(self, *more: str) -> subprocess.CompletedProcess[str]:
        return self.ask("submit", "g.wire", "--input", "x=x.npy", "--input", "w=w.npy", *more)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    graph = trace(lambda x, w: {"y": mnp.tanh(x @ w), "total": mnp.sum(x)}, X, W)
    graph.save(folder / "g.wire")
    np.save(folder / "x.npy", X)
    np.save(folder / "w.npy", W)
    with sites.site(folder, "commands", kind=Served) as made:
        yield made


# -- asking


def test_nodes_are_shown_as_a_table_and_as_json(served: Served) -> None:
    table = served.ask("nodes")
    assert table.returncode == exit_codes.OK, table.stderr
    assert [line.split()[:3] for line in table.stdout.splitlines()] == [
        ["name", "state", "engine"],
        ["one", "healthy", "cpu"],
        ["two", "healthy", "cpu"],
    ]
    rows = json.loads(served.ask("nodes", "--json").stdout)
    assert {row["name"]: row["pid"] for row in rows} == {
        name: each.process.pid for name, each in served.workers.items()
    }
    assert all(row["devices"][0]["gflops"] > 0 for row in rows)
    assert [row["without_gpu"] for row in rows] == ["asked", "asked"]
    assert table.stdout.count("(no GPU: --device cpu)") == 2
    assert all(0 <= row["silent_s"] < PATIENT_S for row in rows)


@pytest.mark.parametrize(("quiet", "says"), [((), "no session has a name"), (("-q",), "")])
def test_a_table_without_rows_says_so(served: Served, quiet: tuple[str, ...], says: str) -> None:
    shown = served.ask("sessions", *quiet)
    assert len(shown.stdout.splitlines()) == 1
    assert shown.stderr.startswith(says) and bool(shown.stderr) == bool(says)


def test_the_topology_is_shown_as_tables_and_as_a_drawing(served: Served) -> None:
    shown = served.ask("topology")
    assert shown.returncode == exit_codes.OK, shown.stderr
    assert [line.split()[0] for line in shown.stdout.split("\n\n")[0].splitlines()] == ["worker", "one", "two"]
    drawn = served.ask("topology", "--dot").stdout
    assert drawn.startswith("graph mesh {\n")
    assert all(f'label="{name} (healthy)\\ncpu' in drawn for name in ("one", "two"))


def test_the_times_of_the_judge_are_told_at_start_and_with_v(served: Served) -> None:
    times = HealthConfig.from_node_timeout(PATIENT_S).describe()
    assert times in served.coordinator.log.read_text()
    header, one, two, told, *rest = served.ask("nodes", "-v").stdout.splitlines()
    assert "one computes on its processor: it was started with --device cpu" in rest
    assert told == times
    assert re.search(r"last seen +longest stop$", header)
    assert all(re.search(r"\d+\.\d\d s ago +[\d.]+ m?s$", row) for row in (one, two))


@pytest.mark.parametrize(
    ("arguments", "seconds"),
    [
        ((), 1.5),
        (("--preset", "wifi"), 4.0),
        (("--preset", "wan"), 10.0),
        (("--preset", "wan", "--timeout", "node_timeout_s=5"), 5.0),
        (("--preset", "wan", "--node-timeout", "4"), 4.0),
        (("--heartbeat", "0.2"), 3.0),
    ],
)
def test_the_node_timeout_is_chosen_by_preset_by_number_or_by_heartbeat(
    arguments: tuple[str, ...], seconds: float
) -> None:
    for verb in ("serve", "demo"):
        assert timeouts(parser().parse_args([verb, *arguments])).node_timeout_s == pytest.approx(seconds)


def test_a_plan_is_shown_before_a_byte_moves(served: Served) -> None:
    shown = served.ask("plan", "g.wire", "--strategy", "pipeline")
    assert shown.returncode == 0
    assert "2 of 2 workers (one, two)" in shown.stdout or "2 of 2 workers (two, one)" in shown.stdout
    data = json.loads(served.ask("plan", "g.wire", "--strategy", "single", "--copies", "buddy", "--json").stdout)
    assert len({part["worker"] for part in data["parts"]}) == 1
    assert data["redundancy"]["copies"] == "buddy" and len(data["redundancy"]["memory"]) == 2
    asked = ("plan", "g.wire", "--use-all", "--what-if-dies", "one", "--svg", "plan.svg", "--json")
    data = json.loads(served.ask(*asked).stdout)
    assert {part["worker"] for part in data["parts"]} == {"one", "two"}
    assert {part["worker"] for part in data["what_if_dies"]["plan"]["parts"]} == {"two"}
    texts = {each.text for each in ElementTree.parse(served.folder / "plan.svg").iter() if each.text}
    assert {"one, device 0", "two, device 0"} <= texts
    data = json.loads(served.ask("plan", "g.wire", "--use-all", "--reproducible", "--json").stdout)
    assert strategy_of(data["strategy"]) == Auto(use_all=True, reproducible=True)
    assert data["reasons"][0].startswith("reproducible: excluded are data, tensor")
    refused = served.ask("plan", "g.wire", "--strategy", "data", "--reproducible")
    assert refused.returncode != 0 and "'data' is not reproducible" in refused.stderr
    refused = served.ask("plan", "g.wire", "--use-all", "--strategy", "single")
    assert refused.returncode != 0 and "Leave out one of them" in refused.stderr


# -- jobs


def test_a_submitted_graph_leaves_its_outputs_as_npy_files(served: Served) -> None:
    done = served.submit("--output", "out", "--copies", "coded")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (served.folder / "out").iterdir()) == ["total.npy", "y.npy"]
    assert_as_promised("auto", np.load(served.folder / "out" / "y.npy"), np.tanh(X @ W), 1)
    np.testing.assert_allclose(np.load(served.folder / "out" / "total.npy"), X.sum(), atol=1e-6)
    assert "planned" in done.stderr, "what happens to the job is told while it runs"
    quiet = served.submit("--output", "out", "-q")
    assert (quiet.returncode, quiet.stderr) == (0, "")


def test_a_detached_job_is_asked_for_later(served: Served) -> None:
    job = json.loads(served.submit("--output", "later", "--detach", "--json").stdout)["job"]
    result = served.ask("result", job, "--output", "later", "--json")
    assert result.returncode == 0, result.stderr
    assert sorted(json.loads(result.stdout)["outputs"]) == ["total", "y"]
    assert_as_promised("auto", np.load(served.folder / "later" / "y.npy"), np.tanh(X @ W), 1)
    (row,) = json.loads(served.ask("status", job, "--json").stdout)
    assert (row["job"], row["state"], row["error"]) == (job, "done", "")
    log = served.ask("logs", job).stdout.splitlines()
    assert log[0].endswith("submitted")
    assert log[-1].endswith("done")
    over = served.ask("cancel", job)
    assert over.returncode == exit_codes.USAGE
    assert "is over already: done" in over.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("submit", "none.wire", "--output", "o"), exit_codes.USAGE, "there is no file none.wire"),
        (("submit", "x.npy", "--output", "o"), exit_codes.USAGE, r"x.npy is of no format that can be loaded"),
        (
            ("submit", "g.wire", "--output", "o", "--input", "x=x.npy"),
            exit_codes.USAGE,
            "the input 'w' (f32[8,3]) is missing",
        ),
        (
            ("submit", "g.wire", "--output", "o", "--input", "v=x.npy"),
            exit_codes.USAGE,
            "no input 'v'. It takes: x (f32[4,8]), w (f32[8,3])",
        ),
        (
            ("submit", "g.wire", "--output", "o", "--input", "x=w.npy", "--input", "w=w.npy"),
            exit_codes.USAGE,
            "the input 'x' is float32[8, 3], expected f32[4,8]",
        ),
        (("submit", "g.wire", "--output", "o", "--input", "x=no.npy"), exit_codes.USAGE, "does not exist: no.npy"),
        (("submit", "g.wire", "--output", "o", "--input", "x=g.wire"), exit_codes.USAGE, "is not a .npy file"),
        (("submit", "g.wire", "--output", "o", "--input", "x"), exit_codes.USAGE, "is not NAME=FILE.npy"),
        (("status", "nonsense"), exit_codes.USAGE, "no job 'nonsense' here"),
        (("nodes", "--mesh", "other"), exit_codes.USAGE, "are no member of mesh 'other'"),
        (("nodes", "--mesh", "other"), exit_codes.USAGE, "is not on this machine, or has a --state-dir. "),
        (("nodes", "--coordinator", "127.0.0.1:1"), exit_codes.UNREACHABLE, "no node answers at 127.0.0.1:1"),
        (("nodes", "--coordinator", "nonsense:port"), exit_codes.USAGE, "Write HOST:PORT"),
        (("serve", "--name", "x", "--host", "203.0.113.1"), exit_codes.USAGE, "cannot listen on port"),
        (("serve", "--name", "x", "--host", "203.0.113.1"), exit_codes.USAGE, "Choose another with --host"),
        (("serve", "--name", "x", "--standby", "x:y"), exit_codes.USAGE, "'x:y' is not an address"),
        (("serve-model", GPT2, "--local", "0"), exit_codes.USAGE, "a mesh has at least one local worker"),
        (("serve-model", GPT2, "--engine", "cpu"), exit_codes.USAGE, "--engine cpu is for new workers"),
        (("serve-model", GPT2, "--draft-tokens", "3"), exit_codes.USAGE, "--draft-tokens is for a drafter"),
        (("serve-model", "", "--port", "0"), exit_codes.USAGE, "no model is named"),
        (("plan", "no.wire", "--mesh", "other"), exit_codes.USAGE, "there is no file no.wire"),
        (
            ("submit", "no.wire", "--coordinator", "127.0.0.1:1"),
            exit_codes.USAGE,
            "there is no file no.wire",
        ),
        (("serve", "--name", ""), exit_codes.USAGE, "a node's name has 1 to 64 bytes of printable text, got ''"),
        (("serve", "--heartbeat", "0"), exit_codes.USAGE, "outside 0.01 to 60"),
        (("serve", "--node-timeout", "0.1"), exit_codes.USAGE, "outside 0.15 to 900"),
    ],
)
def test_mistakes_of_mesh_coord_are_one_line_and_an_exit_code(
    served: Served, arguments: tuple[str, ...], code: int, said: str
) -> None:
    done = served.ask(*arguments)
    assert said in done.stderr
    assert done.returncode == code
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_in_use_is_named(served: Served) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for name, verb in (("coord", ("serve", "--name", "x")), ("worker", ("--device", "cpu"))):
            done = run(name, *verb, "--port", port, "--no-mdns", env=served.env)
            assert done.returncode == exit_codes.USAGE, done.stderr
            assert port in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--host", "0.0.0.0"), "not a loopback address, and this node has joined no mesh"),
        (("--device", "nonsense"), "there is no device 'nonsense'. This machine has: "),
        (("--max-memory", "much"), "'much' is not a size"),
        (("--peer", "nonsense:port"), "Write HOST:PORT"),
        (("--time-limit", "3s"), "--time-limit is for mesh-worker tune"),
        (("--shape", "sum f32 64x64"), "--shape is for mesh-worker tune"),
        (("--token-file", "token"), "--token-file is for mesh-worker join"),
        (("--device", "cpu", "--cache-dir", "/proc/none"), "/proc/none"),
    ],
)
def test_mistakes_of_mesh_worker_are_one_line_and_an_exit_code(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    done = run("worker", *arguments, "--no-mdns", env=environment(tmp_path))
    assert said in done.stderr
    assert done.returncode == exit_codes.USAGE
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_versions_and_devices_are_shown(tmp_path: Path) -> None:
    env = environment(tmp_path)
    for name, program in (("coord", "mesh-coord"), ("worker", "mesh-worker")):
        shown = run(name, "--version", env=env)
        assert shown.returncode == 0
        assert shown.stdout.startswith(f"{program} ")
    table = run("worker", "--list-devices", env=env)
    assert table.stdout.splitlines()[0].split() == ["device", "engine", "adapter", "backend", "driver", "kind"]
    assert json.loads(run("worker", "--list-devices", "--json", env=env).stdout)[-1]["engine"] == "cpu"
    assert run("coord", env=env).returncode == exit_codes.USAGE


def test_a_table_on_a_terminal_is_drawn_and_plain_elsewhere(served: Served) -> None:
    leader, follower = pty.openpty()
    process = subprocess.Popen(command("coord", "nodes"), env={**served.env, "TERM": "xterm"}, stdout=follower)
    os.close(follower)
    assert process.wait(120) == 0
    drawn = os.read(leader, 65536).decode()
    os.close(leader)
    assert "\x1b[" in drawn
    assert "\x1b[" not in served.ask("nodes").stdout


def test_log_lines_may_be_json(tmp_path: Path) -> None:
    env = environment(tmp_path, MESH_NAME="log-json")
    log = tmp_path / "log"
    with daemon("coord", "serve", "--port", "0", "--no-mdns", "--log-json", env=env, log=log) as coordinator:
        assert coordinator.stop(signal.SIGTERM) == 0
    assert {json.loads(line)["level"] for line in log.read_text().splitlines()} == {"info"}


# -- the end of things


def test_a_plan_that_fits_no_worker_says_need_and_have(tmp_path: Path) -> None:
    env = environment(tmp_path, MESH_NAME="small")
    big = np.zeros((1024, 1024), np.float32)
    trace(lambda x: mnp.tanh(x), big).save(tmp_path / "big.wire")
    np.save(tmp_path / "x.npy", big)
    with sites.serving(tmp_path, env) as coordinator:
        env["MESH_ADDRESS"] = coordinator.address
        small = ("--device", "cpu", "--max-memory", "1MiB", "--peer", coordinator.address, "--name", "small")
        with daemon("worker", "--port", "0", "--no-mdns", *small, env=env, log=tmp_path / "w.log"):
            wait_for(lambda: len(node_states(coordinator)) == 1)
            arguments = ("submit", "big.wire", "--input", "x=x.npy", "--output", "o")
            done = run("coord", *arguments, env=env, cwd=tmp_path)
    assert done.returncode == exit_codes.NOTHING_FITS
    assert "small needs 8.0 MiB and has 1.0 MiB" in done.stderr
    assert "Raise --max-memory" in done.stderr
