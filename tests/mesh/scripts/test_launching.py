"""Hostfiles, the settings of ranks, and the agent that starts them: real processes, which import nothing of ours."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.processes.commands import COMES_TRUE_S, wait_for
from support.processes.launching import runs
from support.waiting import until

from mesh.backends.enrolment import ask_for_token
from mesh.commands import launch
from mesh.commands.coord import parser
from mesh.scripts import agent_watch, launcher
from mesh.scripts.agent import Ranks
from mesh.scripts.hostfile import Host, parse, ranks_on, read_hostfile
from mesh.scripts.launcher import Launch, Launcher, merged
from mesh.scripts.settings import RankSettings, rank_settings
from wire.errors import ConfigError, InputError, StorageError
from wire.system.shared_memory import SharedDir

GOOD = """
# machines
localhost slots=2
anna  slots=3 user=me port=2222 python=/opt/bin/python folder=/srv/x   # the large one

ben
"""


def test_a_hostfile_says_who_starts_how_many() -> None:
    here, anna, ben = parse(GOOD, "hosts.txt")
    assert (here, ben) == (Host("localhost", 2), Host("ben"))
    assert anna == Host("anna", 3, "me", 2222, "/opt/bin/python", "/srv/x")
    assert here.here
    assert not anna.here
    assert [host.name for host in ranks_on((here, anna, ben), None)] == ["localhost"] * 2 + ["anna"] * 3 + ["ben"]
    assert [host.name for host in ranks_on((here, anna, ben), 3)] == ["localhost", "localhost", "anna"]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("anna slot=2", "hosts.txt line 2: 'slot' is no key of a host.*slots, user, port"),
        ("anna 2", "line 2: '2' is no key"),
        ("anna slots=0", "line 2: slots is '0', and not a whole number from 1"),
        ("anna slots=two", "line 2: slots is 'two'"),
        ("anna port=70000", "line 2: port is '70000'"),
        ("anna user=", "line 2: user is ''"),
        ("anna user=-oProxyCommand=x", "line 2: user is '-oProxyCommand=x'"),
        ("anna slots=1 slots=2", "line 2: slots stands there twice"),
        ("slots=2", "line 2: 'slots=2' is no host"),
        ("-oProxyCommand=x", "line 2: '-oProxyCommand=x' is no host"),
        ("anna;reboot", "line 2: 'anna;reboot' is no host"),
        ("$(reboot)", "is no host"),
        ("anna user=$(reboot)", r"line 2: user is '\$\(reboot\)', which is no user"),
        ("anna user=me`reboot`", "which is no user"),
        ("localhost", "line 2: localhost stands there already"),
    ],
)
def test_a_bad_hostfile_names_line_and_key(line: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        parse(f"localhost\n{line}\n", "hosts.txt")


def test_a_hostfile_that_is_empty_missing_or_too_small_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="names no host"):
        parse("# nobody\n", "hosts.txt")
    with pytest.raises(InputError, match="cannot be read"):
        read_hostfile(tmp_path / "none")
    with pytest.raises(ConfigError, match="8,192 slots, of 4096 ranks at most"):
        ranks_on(parse("a slots=4096\nb slots=4096", "hosts.txt"), None)
    with pytest.raises(ConfigError, match="python= is for ssh, and localhost starts directly"):
        parse("localhost python=/opt/python", "hosts.txt")
    with pytest.raises(ConfigError, match="7 ranks on 6 slots"):
        ranks_on(parse(GOOD, "hosts.txt"), 7)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="this system has no file without an end")
def test_files_that_never_end_are_refused() -> None:
    with pytest.raises(InputError, match=r"/dev/zero cannot be read.*it has more than 1,048,576 characters"):
        read_hostfile(Path("/dev/zero"))
    with pytest.raises(ConfigError, match=r"token file /dev/zero.*it has more than 1,048,576 characters"):
        ask_for_token("/dev/zero")


def test_every_rank_is_told_its_number_in_the_world_and_on_its_machine() -> None:
    launch = Launch("x.py", (), ranks_on(parse(GOOD, "hosts.txt"), 4), 30.0, 1.0)
    found = {rank: settings for its in launch.ranks().values() for rank, settings in its.items()}
    names = ("localhost", "localhost", "anna", "anna")
    assert found[3] == RankSettings(3, 4, 1, 2, "", names, 30.0)
    settings = rank_settings({**found[3].environment(), "MESH_RENDEZVOUS": "/tmp/x"})
    assert settings == RankSettings(3, 4, 1, 2, "/tmp/x", names, 30.0)
    alone = Launch("x.py", (), (Host("localhost", 2),) * 2, 30.0, 1.0)
    assert [each.hosts for each in next(iter(alone.ranks().values())).values()] == [(), ()]


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"MESH_RANK": "1"}, "MESH_WORLD_SIZE is not set"),
        ({"MESH_WORLD_SIZE": "2"}, "MESH_RANK is not set"),
        ({"MESH_RANK": "one", "MESH_WORLD_SIZE": "2"}, "MESH_RANK is 'one'"),
        ({"MESH_RANK": "2", "MESH_WORLD_SIZE": "2"}, "rank 2 of 2: ranks are 0 to 1"),
        ({"MESH_RANK": "1", "MESH_WORLD_SIZE": "2"}, "does not know where to find the others"),
        ({"MESH_COLLECTIVE_TIMEOUT": "0"}, "cannot wait 0 s"),
        ({"MESH_RANK": "0", "MESH_WORLD_SIZE": "2", "MESH_RENDEZVOUS": "/x", "MESH_HOSTS": "a"}, "names 1 host,"),
    ],
)
def test_an_environment_that_makes_no_sense_is_refused(variables: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        rank_settings(variables)


def test_a_rank_is_what_it_is_told_without_a_launcher() -> None:
    assert rank_settings({}) == RankSettings()
    by_hand = rank_settings({}).changed(rank=2, size=4, meeting="/tmp/x", timeout_s=3.0)
    assert by_hand == RankSettings(2, 4, 2, 4, "/tmp/x", (), 3.0)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["script.py"], "how many ranks"),
        (["-n", "0", "script.py"], "at least one rank"),
        (["-n", "2", "no/such/script.py"], "no script no/such/script.py"),
        (["--nodes", "0", "script.py"], "--nodes 0: a script has at least one rank"),
        (["--nodes", "2", "--gpus-per-node", "4", "script.py"], "--nodes 2: which machines.*Name them in a --hostfile"),
        (["-n", "4", "--gpus-per-node", "4", "script.py"], "-n is how many ranks there are in all.*Leave out -n"),
        (["--hostfile", "hosts.txt", "--nodes", "3", "script.py"], "--nodes 3: hosts.txt names 2.*Add hosts"),
        (["-n", "2", "--master-addr", "192.0.2.7", "script.py"], "192.0.2.7 is not this machine.*Type it on 192.0.2.7"),
        (["-n", "2", "--master-addr", "no such name", "script.py"], "is not this machine"),
        (["-n", "5000000", "script.py"], "at most 4096"),
        (["-n", "2", "--grace", "-1", "script.py"], "a grace of -1 s"),
        (["-n", "2", "--grace", "nan", "script.py"], "a grace of nan s"),
        (["-n", "2", "--grace", "inf", "script.py"], "a grace of inf s"),
        (["-n", "2", "--collective-timeout", "0", "script.py"], "cannot wait 0 s"),
    ],
)
def test_what_cannot_be_launched_is_a_mistake_of_who_typed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").touch()
    (tmp_path / "hosts.txt").write_text("localhost\nanna slots=3\n")
    options = parser().parse_args(["launch", *arguments])
    with pytest.raises(ConfigError, match=text):
        options.run(options)


@pytest.mark.parametrize(
    ("arguments", "hosts"),
    [
        (["--gpus-per-node", "3"], ["localhost"] * 3),
        (["--nodes", "1", "--gpus-per-node", "2"], ["localhost"] * 2),
        (["--hostfile", "hosts.txt", "--nodes", "1"], ["localhost"]),
        (["--hostfile", "hosts.txt", "--nodes", "2"], ["localhost", *["anna"] * 3]),
        (["--hostfile", "hosts.txt", "--nodes", "2", "--gpus-per-node", "2"], ["localhost"] * 2 + ["anna"] * 2),
        (["--hostfile", "hosts.txt", "--gpus-per-node", "1"], ["localhost", "anna"]),
    ],
)
def test_machines_and_ranks_on_each_may_be_said_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], hosts: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts.txt").write_text("localhost\nanna slots=3\n")
    options = parser().parse_args(["launch", *arguments, "script.py"])
    assert [host.name for host in launch.hosts_of(options)] == hosts


def test_lines_of_ranks_stay_whole(capsys: pytest.CaptureFixture[str]) -> None:
    show = merged(sys.stdout, sys.stderr)
    show(2, "out", "one")
    show("anna", "err", "two")
    show(0, "out", "")
    assert capsys.readouterr() == ("[2] one\n[0] \n", "[anna] two\n")


# -- the agent


class Job:
    """Ranks of `script`, run by an agent within this process."""

    def __init__(self, folder: Path, script: str, n: int = 2, grace_s: float = 60.0) -> None:
        self.events: list[dict[str, Any]] = []
        self.orders: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        (folder / "script.py").write_text(script)
        ranks = {str(rank): {"MESH_RANK": str(rank), "HERE": str(folder)} for rank in range(n)}
        command = [sys.executable, "-S", "-u", "script.py"]
        self.job = {"command": command, "folder": str(folder), "ranks": ranks, "grace_s": grace_s}

    async def run(self) -> None:
        await Ranks(self.job, self.events.append).run(self.orders)

    def said(self, line: str) -> int:
        """How often."""
        return len([each for each in self.events if each.get("line") == line])

    @property
    def exits(self) -> dict[int, int]:
        return {each["rank"]: each["exit"] for each in self.events if "exit" in each}

    def lines(self, rank: int, stream: str = "out") -> list[str]:
        return [each["line"] for each in self.events if (each.get("rank"), each.get("stream")) == (rank, stream)]


def test_a_rank_that_cannot_look_after_its_agent_for_a_moment_ends_with_it_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    faults = [OSError(errno.EMFILE, "the test has no free file"), None]
    ended: list[int] = []

    def wait_for_end(_: Path) -> None:
        if (fault := faults.pop(0)) is not None:
            raise fault

    monkeypatch.setattr(SharedDir, "wait_for_end", staticmethod(wait_for_end))
    monkeypatch.setattr(os, "killpg", lambda group, _: ended.append(group))
    agent_watch._end_with_it(tmp_path)
    assert ended == [os.getpid()] and not faults


def test_an_agent_that_ends_while_orders_come_says_nothing() -> None:
    code = """
import asyncio, itertools
from mesh.scripts.agent import _run
for _ in range(40):
    asyncio.run(_run({"command": ["none"], "folder": "", "ranks": {}}, itertools.repeat({"signal": "SIGINT"})))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in done.stderr, done.stderr[-2000:]
    assert done.returncode == 0


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="it is about sockets of POSIX")
def test_ranks_end_though_the_launchers_end_is_a_reset(tmp_path: Path) -> None:
    """Servers of ssh may give a command sockets in place of pipes."""
    started, (ours, its) = tmp_path / "rank", socket.socketpair()
    lines = f"import os\nopen({str(started)!r}, 'w').write(str(os.getpid()))\nwhile True:\n    print('x' * 100)\n"
    (tmp_path / "script.py").write_text(lines)
    job = {"command": [sys.executable, "script.py"], "folder": str(tmp_path), "ranks": {"0": {"MESH_RANK": "0"}}}
    words = [sys.executable, "-P", "-m", "mesh.scripts.agent"]
    agent = subprocess.Popen(words, stdin=its, stdout=its, stderr=subprocess.PIPE, start_new_session=True)
    its.close()
    try:
        with ours:
            ours.sendall(json.dumps({**job, "grace_s": 0.5}).encode() + b"\n")
            wait_for(lambda: started.exists() and started.read_text() != "")
        agent.communicate(timeout=COMES_TRUE_S)  # what it had said is unread
        assert not runs(int(started.read_text()))
    finally:
        agent.kill()


def test_an_agent_tells_every_line_whole_and_how_ranks_end(tmp_path: Path) -> None:
    script = """
import os, sys
rank = os.environ["MESH_RANK"]
for word in ("half ", "line", "\\n", "x" * 600000, "\\n", "no end"):
    sys.stdout.write(word); sys.stdout.flush()
sys.stderr.buffer.write(b"\\xff bad\\n")
sys.exit(3 if rank == "1" else 0)
"""
    job = Job(tmp_path, script)
    asyncio.run(job.run())
    assert job.exits == {0: 0, 1: 3}
    for rank in (0, 1):
        first, *pieces, last = job.lines(rank)
        assert (first, "".join(pieces), last) == ("half line", "x" * 600000, "no end")
        assert job.lines(rank, "err") == ["\ufffd bad"]


def test_signals_reach_every_rank_and_those_that_ignore_them_are_killed_with_what_they_started(tmp_path: Path) -> None:
    script = """
import os, signal, subprocess, sys, time
rank = os.environ["MESH_RANK"]
def told(number, frame):
    if rank == "0":
        print("told", number); sys.exit(5)
signal.signal(signal.SIGINT, told)
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(1000)"])
open(os.environ["HERE"] + "/child" + rank, "w").write(str(child.pid))
print(os.environ["MESH_RENDEZVOUS"])
print("ready")
while True: time.sleep(1000)
"""
    job = Job(tmp_path, script)

    async def interrupt() -> None:
        running = asyncio.ensure_future(job.run())
        await until(lambda: job.said("ready") == 2, COMES_TRUE_S)
        job.orders.put_nowait({"signal": "SIGINT"})
        await until(lambda: job.exits, COMES_TRUE_S)
        job.orders.put_nowait({"signal": "SIGKILL"})
        await running
        for rank in (0, 1):
            child = int((tmp_path / f"child{rank}").read_text())
            await until(lambda child=child: not runs(child), COMES_TRUE_S)  # type: ignore[misc]

    asyncio.run(interrupt())
    assert job.exits == {0: 5, 1: 128 + 9}
    assert job.lines(0)[2:] == ["told 2"]
    assert not os.path.exists(job.lines(0)[0])


@pytest.mark.parametrize("of_its_own", [False, True], ids=["in the rank's session", "in a session of its own"])
def test_a_rank_is_over_though_what_it_started_keeps_its_output_open(tmp_path: Path, of_its_own: bool) -> None:
    script = f"""
import os, subprocess, sys
lives = os.path.join(os.environ["HERE"], "lives")
code = "import os, sys, time\\nwhile os.path.exists(sys.argv[1]): time.sleep(0.02)"
subprocess.Popen([sys.executable, "-S", "-c", code, lives], start_new_session={of_its_own})
sys.stdout.write("x" * 100000 + "\\nno end")
sys.exit(3)
"""
    (tmp_path / "lives").touch()

    async def story() -> Job:
        job = Job(tmp_path, script)
        async with asyncio.timeout(COMES_TRUE_S):
            await job.run()
        return job

    try:
        job = asyncio.run(story())
    finally:
        (tmp_path / "lives").unlink()
    assert job.exits == {0: 3, 1: 3}
    assert [job.lines(rank) for rank in (0, 1)] == [["x" * 100000, "no end"]] * 2


def test_a_rank_that_does_not_end_is_killed_after_the_grace(tmp_path: Path) -> None:
    script = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready')\ntime.sleep(1000)\n"
    job = Job(tmp_path, script, grace_s=0.01)

    async def end() -> None:
        running = asyncio.ensure_future(job.run())
        await until(lambda: job.said("ready") == 2, COMES_TRUE_S)
        job.orders.put_nowait({"signal": "SIGTERM"})
        await running

    asyncio.run(end())
    assert job.exits == {0: 128 + 9, 1: 128 + 9}


def test_notes_are_copied_between_machines_and_nothing_else_is(tmp_path: Path) -> None:
    script = """
import os, pathlib, time
meeting = pathlib.Path(os.environ["MESH_RENDEZVOUS"])
assert (meeting / "own.key").read_text() == "secret" and (meeting / "own.key").stat().st_mode & 0o77 == 0
for name in ("rank-0", "rank-9", "failed-0123456789abcdef-0", "other"):
    (meeting / ("." + name)).write_text(name)
    (meeting / ("." + name)).rename(meeting / name)
while not (meeting / "rank-7").exists(): time.sleep(0.01)
print((meeting / "rank-7").read_text(), sorted(path.name for path in meeting.iterdir()))
"""
    job = Job(tmp_path, script, n=1)
    job.job["passport"] = {"own.key": "secret"}
    for name in ("../rank-7", "own.key", "rank-7"):
        job.orders.put_nowait({"note": name, "text": "elsewhere"})

    asyncio.run(job.run())
    notes = {each["note"]: each["text"] for each in job.events if "note" in each}
    assert notes == {"rank-0": "rank-0", "failed-0123456789abcdef-0": "failed-0123456789abcdef-0"}
    assert job.lines(0) == [
        "elsewhere ['failed-0123456789abcdef-0', 'lock', 'other', 'own.key', 'rank-0', 'rank-7', 'rank-9']"
    ]


def test_what_cannot_be_started_is_told(tmp_path: Path) -> None:
    job = Job(tmp_path, "")
    job.job["command"] = ["/no/such/python"]
    asyncio.run(job.run())
    assert "/no/such/python cannot be started" in job.events[0]["error"]
    assert json.dumps(job.events)


def test_notes_are_told_though_a_look_for_them_found_no_file_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = """
import os, pathlib, time
meeting = pathlib.Path(os.environ["MESH_RENDEZVOUS"])
(meeting / ".rank-0").write_text("here")
(meeting / ".rank-0").rename(meeting / "rank-0")
while not os.path.exists(os.environ["HERE"] + "/told"): time.sleep(0.01)
"""
    job, faults, tell = Job(tmp_path, script, n=1), [OSError(24, "Too many open files")], Ranks._tell_notes
    job.job["passport"] = {"own.key": "secret"}

    def look(ranks: Ranks, meeting: Path) -> None:
        if faults:
            raise faults.pop()
        tell(ranks, meeting)

    async def story() -> None:
        running = asyncio.ensure_future(job.run())
        await until(lambda: any("note" in each for each in job.events), COMES_TRUE_S)
        (tmp_path / "told").touch()
        await running

    monkeypatch.setattr(Ranks, "_tell_notes", look)
    asyncio.run(story())
    assert not faults and job.exits == {0: 0}


MUTTERING = """
import sys
sys.stderr.write("a line that is shown\\n" * 100_000)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="ranks have no such signals")
async def test_a_place_where_no_line_can_be_shown_ends_the_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a full disk: an agent whose stderr nobody reads any more would stand still, and be waited for, for ever."""

    def show(who: int | str, stream: str, line: str) -> None:
        raise StorageError("the output cannot be written")

    (tmp_path / "rank.py").touch()
    monkeypatch.setattr(launcher, "_command", lambda host: [sys.executable, "-c", MUTTERING])
    launch = Launch(str(tmp_path / "rank.py"), (), (Host("localhost"),), 60.0, 0.5)
    with pytest.raises(StorageError):
        async with asyncio.timeout(COMES_TRUE_S):
            await Launcher(launch, show).run()


async def test_lines_that_are_longer_than_an_agents_are_passed_over() -> None:
    stream = asyncio.StreamReader(limit=16)
    stream.feed_data(b"one\n" + b"x" * 40 + b"\ntwo\n")
    stream.feed_eof()
    lines = [line async for line in launcher._lines(stream)]
    assert lines[0] == b"one\n" and lines[-1] == b"two\n"
