"""`mesh-coord launch`: ranks that exchange arrays, ranks that fail, Ctrl-C, and machines behind an `ssh` that runs the
command on this one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes.commands import COMES_TRUE_S, command, environment, run, wait_for
from support.processes.launching import runs

from mesh.commands.coord import parser
from mesh.commands.exit_codes import UNREACHABLE, code_of
from mesh.scripts.hostfile import Host
from mesh.scripts.launcher import _command
from wire.errors import ConnectFailed

WORLD = """
import os, sys
import numpy as np
import mesh

world = mesh.init()
rank, size = mesh.rank(), mesh.world_size()
assert (world.rank, world.size, mesh.local_rank()) == (rank, size, rank)
large = np.arange(300_000, dtype=np.float32) + rank
assert np.array_equal(world.all_reduce(large, "mean"), np.arange(300_000, dtype=np.float32) + 1.5)
row, column = world.split(rank // 2), world.split(rank % 2, key=-rank)
names = ["b", "a"] if rank % 2 else ["a", "b"]
summed = row.all_reduce({name: np.full(2, rank + len(name)) for name in names})
if rank == 3:
    world.send(np.eye(2, dtype=np.int8), 0)
if rank == 0:
    assert world.recv((2, 2), np.int8, 3).tolist() == [[1, 0], [0, 1]]
mesh.barrier(timeout_s=100)
print("row", row.ranks, summed["a"].tolist(), "column", column.ranks, column.all_gather([rank]).tolist(), sys.argv[1:])
"""
WAITS = """
import os, sys, time
try:
    print(os.environ["MESH_RANK"], os.getpid(), os.environ["MESH_RENDEZVOUS"])
    time.sleep(1000)
except KeyboardInterrupt:
    print("told")
    sys.exit(9)
"""
MEETS_AND_WAITS = """
import os, subprocess, sys, time
import mesh

mesh.init()
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(1000)"])
print(os.getppid(), os.getpid(), child.pid)
time.sleep(1000)
"""
AGAIN = """
import mesh

for round in range(20):
    assert mesh.init().all_gather([mesh.rank() * round]).tolist() == [0, round, 2 * round]
    mesh.shutdown()
"""
AFTER_AN_ERROR = """
import numpy as np
import mesh
from mesh.errors import MeshError

world = mesh.init()
try:
    world.all_reduce(np.zeros(1 + mesh.rank()))
except MeshError:
    mesh.shutdown()
    print(mesh.init().all_gather([mesh.rank()]).tolist())
"""
FAILS = "import os, sys, time\nif os.environ['MESH_RANK'] == '1': sys.exit(7)\ntime.sleep(1000)\n"
BY_HAND = """
import os, sys
import mesh
given = dict(zip(("rank", "world_size", "rendezvous"), (int(sys.argv[1]), 2, sys.argv[2]))) if sys.argv[1:] else {}
world = mesh.init(**given)
print(mesh.rank(), mesh.world_size(), world.all_gather([10 + mesh.rank()]).tolist())
"""
HOSTS = """
import os, sys
import numpy as np
import mesh

world = mesh.init()
large = world.all_reduce(np.arange(200_000, dtype=np.float32) * (1 + mesh.rank()))
assert np.array_equal(large, np.arange(200_000, dtype=np.float32) * 6)
here = world.split(["localhost", "anna"].index(os.environ["MESH_HOSTS"].split(",")[mesh.rank()]))
told = here.all_gather([mesh.rank()]).tolist()
print(mesh.rank(), mesh.local_rank(), os.getcwd(), sys.argv[1:], told)
"""
SSH = """#!/bin/sh
echo "$*" >> "$SSH_LOG"
echo welcome to anna
for last; do :; done
exec sh -c "$last"
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "script.py"


def test_four_ranks_exchange_arrays(tmp_path: Path, script: Path) -> None:
    script.write_text(WORLD)
    done = run("coord", "launch", "-n", "4", str(script), "--flag", "a b", env=environment(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    sums, rows, columns = {0: 3, 1: 7}, {0: (0, 1), 1: (2, 3)}, {0: (2, 0), 1: (3, 1)}
    assert sorted(done.stdout.splitlines()) == [
        f"[{rank}] row {rows[rank // 2]} {[sums[rank // 2]] * 2} column {columns[rank % 2]} "
        f"{list(columns[rank % 2])} ['--flag', 'a b']"
        for rank in range(4)
    ]


def test_ranks_leave_and_come_again_as_often_as_they_like(tmp_path: Path, script: Path) -> None:
    script.write_text(AGAIN)
    done = run("coord", "launch", "-n", "3", str(script), env=environment(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_first_exit_code_that_is_not_0_ends_all_and_is_the_commands(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.write_text(FAILS)
    assert launched("-n", "3", str(script)) == 7
    assert capsys.readouterr() == ("", "mesh-coord: rank 1 ended with exit code 7, and with it the others\n")


def test_whoever_reads_the_lines_may_have_enough_of_them(tmp_path: Path, script: Path) -> None:
    script.write_text("print('one')\nimport time\ntime.sleep(1000)\n")
    reading, writing = os.pipe()
    launch = subprocess.Popen(
        command("coord", "launch", "-n", "2", str(script)), env=environment(tmp_path), stdout=writing
    )
    os.close(writing)
    os.close(reading)
    assert launch.wait(COMES_TRUE_S) == 0


def test_a_rank_is_started_by_hand_with_its_number_and_the_worlds_size(tmp_path: Path, script: Path) -> None:
    script.write_text(BY_HAND)
    env, meeting = environment(tmp_path), str(tmp_path / "meeting")
    settings = {"MESH_RANK": "1", "MESH_WORLD_SIZE": "2", "MESH_RENDEZVOUS": meeting}
    starts: list[tuple[list[str], dict[str, str]]] = [(["0", meeting], env), ([], {**env, **settings})]
    ranks = [
        subprocess.Popen([sys.executable, str(script), *given], env=its, stdout=subprocess.PIPE, text=True)
        for given, its in starts
    ]
    said = [rank.communicate(timeout=COMES_TRUE_S)[0] for rank in ranks]
    assert said == ["0 2 [10, 11]\n", "1 2 [10, 11]\n"]
    assert [rank.returncode for rank in ranks] == [0, 0]


@pytest.mark.parametrize("killed", [False, True], ids=["ctrl-c", "kill -9"])
def test_a_launch_that_is_stopped_leaves_nothing_behind(tmp_path: Path, script: Path, killed: bool) -> None:
    script.write_text(WAITS)
    lines, grace = tmp_path / "lines", "0.5" if killed else "100"
    with lines.open("w") as out:
        launch = subprocess.Popen(
            command("coord", "launch", "-n", "2", "--json", "--grace", grace, str(script)),
            env=environment(tmp_path),
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    wait_for(lambda: lines.read_text().count("\n") == 2)
    said = [json.loads(line) for line in lines.read_text().splitlines()]
    started = {int(rank): (int(pid), Path(folder)) for rank, pid, folder in (each["line"].split() for each in said)}
    assert all(runs(pid) and folder.is_dir() for pid, folder in started.values())
    launch.send_signal(signal.SIGKILL if killed else signal.SIGINT)
    assert launch.wait(COMES_TRUE_S) == (-signal.SIGKILL if killed else 130)
    wait_for(lambda: not any(runs(pid) or folder.exists() for pid, folder in started.values()))
    if not killed:
        events = [json.loads(line) for line in lines.read_text().splitlines()[2:]]
        assert sorted((each["rank"], each["line"]) for each in events) == [(0, "told"), (1, "told")]


def test_ranks_end_with_what_they_started_when_their_agent_is_killed(tmp_path: Path, script: Path) -> None:
    script.write_text(MEETS_AND_WAITS)
    launch = subprocess.Popen(
        command("coord", "launch", "-n", "2", "--json", str(script)),
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert launch.stdout is not None
    lines = [json.loads(launch.stdout.readline())["line"].split() for _ in range(2)]
    (agent,) = {int(agent) for agent, *_ in lines}
    started = [int(pid) for _, *pids in lines for pid in pids]
    assert len(started) == 4
    assert all(map(runs, started))
    os.kill(agent, signal.SIGKILL)
    try:
        wait_for(lambda: not any(map(runs, started)))
    finally:
        for pid in filter(runs, started):
            os.kill(pid, signal.SIGKILL)
    assert "the agent of rank 0, 1 ended, on localhost" in launch.communicate(timeout=COMES_TRUE_S)[1]
    assert launch.returncode == UNREACHABLE


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program of that name, to be written."""
    (tmp_path / "bin").mkdir()
    found = tmp_path / "bin" / "ssh"
    found.touch(0o755)
    monkeypatch.setenv("PATH", f"{found.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SSH_LOG", str(tmp_path / "ssh.log"))
    return found


def test_ranks_on_the_hosts_of_a_file_are_started_by_ssh_and_exchange_arrays(
    tmp_path: Path, script: Path, ssh: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ssh.write_text(SSH)
    script.write_text(HOSTS)
    elsewhere, hosts = tmp_path / "else where", tmp_path / "hosts.txt"
    elsewhere.mkdir()
    (elsewhere / "script.py").write_text(HOSTS)
    (tmp_path / "there").symlink_to(elsewhere)
    there = f"user=me port=2222 python={sys.executable} folder={tmp_path}/there"
    hosts.write_text(f"localhost slots=2\nanna slots=1 {there}\n")
    monkeypatch.chdir(tmp_path)
    assert launched("--hostfile", str(hosts), "script.py", "a b") == 0
    out, err = capsys.readouterr()
    assert err == "[anna] welcome to anna\n"
    places = [(0, tmp_path, [0, 1]), (1, tmp_path, [0, 1]), (0, elsewhere, [2])]
    assert sorted(out.splitlines()) == [
        f"[{rank}] {rank} {local} {folder} ['a b'] {near}" for rank, (local, folder, near) in enumerate(places)
    ]
    asked = (tmp_path / "ssh.log").read_text()
    alive = "-o ServerAliveInterval=15 -o ServerAliveCountMax=4"
    assert asked == f"-T -o BatchMode=yes {alive} -p 2222 me@anna {sys.executable} -P -m mesh.scripts.agent\n"


def test_ranks_of_several_hosts_meet_anew_after_an_error(
    tmp_path: Path, script: Path, ssh: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ssh.write_text(SSH)
    script.write_text(AFTER_AN_ERROR)
    hosts = tmp_path / "hosts.txt"
    hosts.write_text(f"localhost slots=2\nanna python={sys.executable}\n")
    assert launched("--hostfile", str(hosts), str(script)) == 0
    assert sorted(capsys.readouterr().out.splitlines()) == [f"[{rank}] [0, 1, 2]" for rank in range(3)]


@pytest.mark.skipif(shutil.which("ssh") is None, reason="NOT TESTED: there is no ssh here")
def test_a_host_with_another_key_than_the_known_one_is_refused_by_ssh_itself(tmp_path: Path) -> None:
    """What the real ssh makes of the launcher's words: it asks nobody, and goes by the keys that the user knows.  With
    "ask" and BatchMode it ends where a key is unknown, or not the one that is known."""
    (config := tmp_path / "config").touch()
    words = _command(Host("anna", user="me", port=2222, python="/opt/python"))
    options = subprocess.run(
        [words[0], "-F", str(config), "-G", *words[1:]], capture_output=True, text=True, timeout=60, check=True
    ).stdout.splitlines()
    assert {"batchmode yes", "stricthostkeychecking ask", "hostname anna", "user me", "port 2222"} <= set(options)
    assert not [line for line in options if line.startswith(("proxycommand", "localcommand", "knownhostscommand"))]
    assert any(line.startswith("userknownhostsfile") and "known_hosts" in line for line in options)


def test_an_agent_whose_output_nobody_reads_any_more_ends(tmp_path: Path, script: Path, ssh: Path) -> None:
    ssh.write_text("#!/bin/sh\ncase $* in *anna*) exit 255;; *) yes | head -c 33554432; cat > /dev/null; esac\n")
    script.touch()
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("bert\nanna\n")
    with pytest.raises(ConnectFailed, match="ended, on anna"):
        launched("--grace", "1000", "--hostfile", str(hosts), str(script))


@pytest.mark.parametrize("ends", ["a rank fails", "ctrl-c"])
def test_a_machine_that_is_lost_on_the_way_is_not_waited_for_once_all_ranks_are_to_end(
    tmp_path: Path, script: Path, ssh: Path, capsys: pytest.CaptureFixture[str], ends: str
) -> None:
    ssh.write_text("#!/bin/sh\nexec sleep 1000000\n")  # as ssh to a machine that has no power any more
    fails, interrupts = "raise SystemExit(7)\n", "import os, signal\nos.kill(int(os.sys.argv[1]), signal.SIGINT)\n"
    script.write_text(fails if ends == "a rank fails" else interrupts)
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("localhost\nanna\n")
    words = "--grace", "0.5", "--hostfile", str(hosts), str(script), str(os.getpid())
    assert launched(*words) == (7 if ends == "a rank fails" else 130)
    assert "[anna] the agent of this machine does not answer" in capsys.readouterr().err


def test_a_launch_ends_with_its_ranks_though_somebody_holds_the_stderr_of_ssh_open(
    tmp_path: Path, script: Path, ssh: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the master of several connections does, which ssh leaves behind."""
    holder = tmp_path / "holder"
    holds = f"sleep 1000000 < /dev/null > /dev/null & echo $! > {holder}"
    ssh.write_text(f'#!/bin/sh\n{holds}\nfor command; do :; done\nexec sh -c "$command"\n')
    script.write_text("print('done')\n")
    hosts = tmp_path / "hosts.txt"
    hosts.write_text(f"anna python={sys.executable}\n")
    try:
        assert launched("--hostfile", str(hosts), str(script)) == 0
        assert capsys.readouterr().out == "[0] done\n" and runs(int(holder.read_text()))
    finally:
        os.kill(int(holder.read_text()), signal.SIGKILL)


def test_a_host_that_cannot_be_reached_is_named(
    tmp_path: Path, script: Path, ssh: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ssh.write_text("#!/bin/sh\necho ssh: no route to host >&2\nexit 255\n")
    script.touch()
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("anna\n")
    with pytest.raises(ConnectFailed, match="the agent of rank 0 ended, on anna") as caught:
        launched("--hostfile", str(hosts), str(script))
    assert caught.value.cause == "ssh: no route to host"
    assert capsys.readouterr().err == "[anna] ssh: no route to host\n"
    assert code_of(caught.value) == UNREACHABLE


def launched(*arguments: str) -> int:
    """The exit code of a launch by this process."""
    options = parser().parse_args(["launch", *arguments])
    return int(options.run(options))
