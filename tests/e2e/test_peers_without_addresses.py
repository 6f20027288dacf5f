"""A coordinator whose --peer has no address yet: its name may be known later, as that of a machine that is off."""

from __future__ import annotations

import signal
from pathlib import Path

from support.processes.commands import daemon, environment, wait_for

from mesh.commands import exit_codes


def test_a_peer_whose_name_is_not_known_now_is_dialled_again(tmp_path: Path) -> None:
    serve = ("coord", "serve", "--port", "0", "--no-mdns", "--peer", "nobody.invalid:7100")
    with daemon(*serve, env=environment(tmp_path, MESH_NAME="waits"), log=tmp_path / "log") as coordinator:
        wait_for(lambda: "is dialled again until it answers" in coordinator.log.read_text())
        assert coordinator.stop(signal.SIGTERM) == exit_codes.OK
