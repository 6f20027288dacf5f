"""What a worker says of itself, with a certificate of its own: names, adapters, reasons, lines, and mistakes by the
thousand.  Terminals and logs stay as they are."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from support.machines.links import Recorder
from support.processes.commands import Daemon, environment, node_states, run, wait_for
from support.processes.site import serving

from coordinator.authority.authority import Authority
from mesh import errors
from mesh.backends.enrolment import authority_folder
from mesh.commands import exit_codes
from wire.joining.credentials import Credentials
from wire.link.identity import identity_here
from wire.link.link import Link
from wire.link.websocket_carrier import Endpoint
from wire.protocol.messages import Beat, DeviceReport, Join, Joined, Leaving, Message, PlanKey, Push, Value

MESH = "words"
PWNED = "\x1b[2J\x1b]0;PWNED\x07\x1b[31mevil\n17:00:00 INFO forged\u202eline"
LINES = 3000
LOG_BYTES_MAX = 64 * 1024


@dataclass(slots=True)
class Liar(Recorder):
    """A worker that joins, and reports a device of this adapter."""

    adapter: str = "a processor"
    joined: asyncio.Event = field(default_factory=asyncio.Event)

    async def on_request(self, link: Link, body: Message) -> Message:
        if not isinstance(body, Join):
            raise errors.Busy("not now")
        device = DeviceReport(
            0, "cpu", self.adapter, "cpu", "x", False, 1 << 30, {"max": 1}, {"add": ("f32",)}, 1.0, 1.0, 1e-3
        )
        asyncio.get_running_loop().call_soon(self.joined.set)
        return Joined((device,), 1 << 30, (), "Linux")


@dataclass(slots=True)
class Site:
    env: dict[str, str]
    coordinator: Daemon
    folder: Path

    def credentials(self, name: str) -> Credentials:
        """Those of a worker that was let in by this name."""
        root = str(Path(self.env["XDG_STATE_HOME"]) / "graph-mesh")
        made = Credentials(self.folder / name)
        made.adopt(Authority(authority_folder(MESH, root), MESH).admit_here(made.key.public, "worker", name))
        return made

    async def link(self, credentials: Credentials, says: str, liar: Liar) -> tuple[Endpoint, Link]:
        endpoint = Endpoint(
            identity_here("worker", MESH, says, None, credentials.node_id), liar, credentials=credentials
        )
        return endpoint, await endpoint.dial("127.0.0.1", self.coordinator.ready["port"])

    def shown(self) -> str:
        done = run("coord", "nodes", "-v", env=self.env)
        assert done.returncode == exit_codes.OK, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("words")
    env = environment(folder, MESH_NAME=MESH)
    with serving(folder, env) as coordinator:
        env["MESH_ADDRESS"] = coordinator.address
        yield Site(env, coordinator, folder)


def logs(coordinator: Daemon, said: str) -> bool:
    return said in coordinator.log.read_text()


def harmless(text: str) -> bool:
    return all(line.isprintable() and not line.startswith("17:00:00") for line in text.split("\n"))


def test_a_worker_is_called_as_it_was_let_in_and_not_as_it_says(site: Site) -> None:
    credentials = site.credentials("attic")

    async def scenario() -> None:
        liar = Liar(adapter=PWNED)
        endpoint, link = await site.link(credentials, f"safe {PWNED}", liar)
        await liar.joined.wait()
        beating = asyncio.create_task(beats(link))
        shown = await asyncio.to_thread(site.shown)
        assert harmless(shown) and "attic" in shown and "safe" not in shown
        assert "\\x1b[2J\\x1b]0;PWNED\\x07\\x1b[31mevil\\n17:00:00 INFO forged\\u202eline" in shown
        nodes = json.loads((await asyncio.to_thread(run, "coord", "nodes", "--json", env=site.env)).stdout)
        assert nodes[0]["devices"][0]["adapter"] == PWNED, "programs get what was said"
        beating.cancel()
        await endpoint.close()

    asyncio.run(scenario())
    out = run("coord", "nodes", "revoke", "attic", env=site.env)
    assert out.returncode == exit_codes.OK, "the name that is shown is the one to revoke"


async def beats(link: Link) -> None:
    for counter in range(10_000):
        link.notify(Beat(1, counter, 0.0, 0))
        await asyncio.sleep(0.05)


def test_last_words_and_reasons_are_escaped_in_the_log(site: Site) -> None:
    credentials = site.credentials("cellar")

    async def scenario() -> None:
        liar = Liar()
        endpoint, link = await site.link(credentials, "cellar", liar)
        await liar.joined.wait()
        await asyncio.to_thread(wait_for, lambda: "cellar" in node_states(site.coordinator))
        link.notify(Leaving(f"bye {PWNED}", (f"line {PWNED}",)))
        with contextlib.suppress(errors.NodeLost):
            await link.ping()
        await endpoint.close()

    asyncio.run(scenario())
    for said in ("cellar: line ", "cellar leaves: bye \\x1b[2J"):
        wait_for(partial(logs, site.coordinator, said))
    assert harmless(site.coordinator.log.read_text())


def test_mistakes_by_the_thousand_take_a_few_lines(site: Site) -> None:
    credentials = site.credentials("clumsy")
    before = site.coordinator.log.stat().st_size

    async def scenario() -> None:
        for _ in range(LINES // 100):
            endpoint, link = await site.link(credentials, "clumsy", Liar())
            try:
                for number in range(100):
                    link.notify(Push(PlanKey(1, 1), number, 0, 0, Value("f32", (), b"123")))
                    link.notify(Push(PlanKey(1, 1), number, 0, 0, Value("nope", (), b"1234")))
                await link.ping()
            except errors.MeshError:
                pass  # it was told to go
            await endpoint.close()

    asyncio.run(scenario())
    written = site.coordinator.log.stat().st_size - before
    assert written < LOG_BYTES_MAX, f"{written} bytes of log"
    assert harmless(site.coordinator.log.read_text())
