"""Where nodes join: 1,000 above a coordinator's port, if there is such a port, at an address, if there is one."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.processes.commands import environment, run

from mesh.commands import exit_codes
from wire.errors import ConfigError
from wire.joining.join_port import join, join_port_of
from wire.joining.join_tokens import KEY_ID_BYTES, SECRET_BYTES, new_token
from wire.security.certificates import new_key

TOKEN = new_token(b"authority", bytes(KEY_ID_BYTES), bytes(SECRET_BYTES))


def test_a_coordinator_has_a_port_that_leaves_one_to_join_at() -> None:
    assert join_port_of(64_535) == 65_535
    with pytest.raises(ConfigError, match="at most 64535"):
        join_port_of(64_536)


@pytest.mark.parametrize(
    ("words", "token"),
    [
        (("coord", "serve", "--port", "65000", "--no-mdns"), False),
        (("coord", "join", "--coordinator", "127.0.0.1:65000"), True),
        (("worker", "join", "--peer", "127.0.0.1:65000"), True),
    ],
)
def test_commands_say_so_in_one_line(tmp_path: Path, words: tuple[str, ...], token: bool) -> None:
    env = environment(tmp_path, MESH_NAME="high", **({"MESH_TOKEN": TOKEN.text} if token else {}))
    done = run(*words, env=env)
    assert (done.returncode, len(done.stderr.splitlines())) == (exit_codes.USAGE, 1)
    assert "cannot listen on port 65000" in done.stderr


async def test_a_name_that_no_resolver_takes_is_said_to_be_none() -> None:
    with pytest.raises(ConfigError, match=r"'a\.\.b' is not the name of any address"):
        await join("a..b", 8100, TOKEN, new_key(), "worker", "one")
