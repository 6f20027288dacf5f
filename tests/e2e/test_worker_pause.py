"""A worker as the person at its machine meets it: paused and lent again, and ended at once by a second signal."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.processes.commands import daemon, environment, node_states, wait_for
from support.processes.site import SERVE, WORKER
from support.processes.worker_process import gone, worker

from mesh.commands import coord, exit_codes
from mesh.commands import worker as worker_command
from mesh.commands.exit_codes import run_command
from wire.system.private_folder import state_root
from worker.daemon.state_folder import claim

Main = Callable[[Sequence[str]], None]


def test_the_commands_pause_a_worker_and_lend_it_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = ("--mesh", "pausing", "--state-dir", str(tmp_path / "state"))
    env = environment(tmp_path)

    def ask(*words: str) -> tuple[int, list[dict[str, str]]]:
        """What the command says; it runs in this process, which is quicker."""
        options = worker_command.parser().parse_args([*words, *place, "--json"])
        code = run_command("mesh-worker", lambda: worker_command.work(options))
        return code, json.loads(capsys.readouterr().out or "[]")

    words = (*WORKER, "--name", "attic", *place)
    claim(state_root(str(tmp_path / "state")) / "pausing", "Dach Süd").lock.release()
    for name in ("Dach Süd", "Dach-S-d"):  # as its user called it, and as it is called since
        assert ask("pause", "--name", name) == (exit_codes.OK, [{"name": "Dach-S-d", "state": "stopped"}])
    with daemon(*words, env=env, log=tmp_path / "attic.log") as attic:
        assert ask("pause") == (exit_codes.OK, [{"name": "attic", "state": "paused"}])
        assert attic.stop(signal.SIGTERM) == 0
    with daemon(*words, env=env, log=tmp_path / "again.log") as attic:
        wait_for(lambda: "paused here" in attic.log.read_text())  # a pause outlives the worker
        assert ask("resume", "--name", "attic") == (exit_codes.OK, [{"name": "attic", "state": "serving"}])
        assert ask("pause", "--name", "cellar") == (exit_codes.USAGE, [])
        assert attic.stop(signal.SIGTERM) == 0
    assert ask("pause") == (exit_codes.USAGE, []), "none runs"
    assert ask("pause", "--name", "attic") == (exit_codes.OK, [{"name": "attic", "state": "stopped"}])


@pytest.mark.long  # tests/sim has the same in no time; this one has the commands
def test_the_coordinator_pauses_a_worker_but_does_not_end_a_pause_of_its_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = environment(tmp_path, MESH_NAME="pausing")
    with ExitStack() as stack:
        serve = (*SERVE, "--port", "0")
        coordinator = stack.enter_context(daemon(*serve, env=env, log=tmp_path / "coordinator.log"))
        words = (*WORKER, "--peer", coordinator.address)
        stack.enter_context(daemon(*words, "--name", "attic", env=env, log=tmp_path / "attic.log"))
        wait_for(lambda: node_states(coordinator) == {"attic": "healthy"})
        for name in ("XDG_STATE_HOME", "MESH_NAME"):
            monkeypatch.setenv(name, env[name])

        def ask(main: Main, *words: str) -> int:
            """The exit code of a command that runs in this process."""
            with pytest.raises(SystemExit) as raised:
                main(words)
            return int(raised.value.code or 0)

        place = ("--coordinator", coordinator.address)
        assert ask(coord.main, "nodes", "pause", "attic", *place) == exit_codes.OK
        assert node_states(coordinator) == {"attic": "paused"}
        assert ask(coord.main, "nodes", "resume", "attic", *place) == exit_codes.OK
        assert node_states(coordinator) == {"attic": "healthy"}
        assert ask(worker_command.main, "pause") == exit_codes.OK
        wait_for(lambda: node_states(coordinator) == {"attic": "paused"})
        assert ask(coord.main, "nodes", "resume", "attic", *place) == exit_codes.UNREACHABLE
        assert node_states(coordinator) == {"attic": "paused"}
        assert ask(worker_command.main, "resume") == exit_codes.OK
        wait_for(lambda: node_states(coordinator) == {"attic": "healthy"})


@pytest.mark.asyncio
async def test_the_second_signal_ends_a_worker_at_once_with_its_hosts(tmp_path: Path) -> None:
    async with worker(tmp_path) as each:
        hosts = each.host_pids()
        assert hosts
        for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):  # both are there as it goes on
            each.signal(number)
        assert await each.exit_code() in (exit_codes.INTERRUPTED, exit_codes.TERMINATED)
        for pid in hosts:
            assert await gone(pid)
