"""Nodes find their own mesh by mDNS on the loopback interface, and no other mesh; a list of addresses does as well."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from support.commands import daemon, environment, wait_for
from support.multicast import needs_multicast

from mesh import Mesh, errors
from wire.adverts import Candidate
from wire.discovery import Announcer, Browser, StaticFinder, discover
from wire.identity import identity_here

APPEAR_S = 5.0
WORKER = ("worker", "--port", "0", "--device", "cpu")


@pytest.fixture
def mesh() -> str:
    """A name that no other test, and nobody else on this machine, uses."""
    return f"discovery-{secrets.token_hex(4)}"


async def until(holds: Callable[[], bool], within_s: float = APPEAR_S) -> None:
    async with asyncio.timeout(within_s):
        while not holds():
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def browsing(mesh: bytes | str, role: str = "", **options: Any) -> AsyncIterator[dict[str, Candidate]]:
    """The candidates that are there, by label, kept up to date."""
    present: dict[str, Candidate] = {}
    browser = Browser(
        mesh,
        lambda candidate: present.update({candidate.label: candidate}),
        lambda candidate: present.pop(candidate.label),
        role,
        **options,
    )
    await browser.start()
    try:
        yield present
    finally:
        await browser.close()


def hosts(present: dict[str, Candidate]) -> list[tuple[tuple[str, ...], str]]:
    return sorted((candidate.addresses, candidate.role) for candidate in present.values())


@needs_multicast
async def test_a_node_appears_to_its_own_mesh_and_goes_when_it_says_goodbye(mesh: str) -> None:
    async with browsing(mesh) as own, browsing(f"{mesh}-other") as other:
        async with Announcer(identity_here("worker", mesh, "kitchen", None), 7123):
            await until(lambda: hosts(own) == [(("127.0.0.1:7123",), "worker")])
        await until(lambda: not own)
        assert not other


@needs_multicast
async def test_a_browser_may_ask_for_one_role(mesh: str) -> None:
    async with (
        browsing(mesh, "coordinator") as coordinators,
        Announcer(identity_here("worker", mesh, "a", None), 7124),
        Announcer(identity_here("coordinator", mesh, "b", None), 7125),
    ):
        await until(lambda: bool(coordinators))
        assert hosts(coordinators) == [(("127.0.0.1:7125",), "coordinator")]


@needs_multicast
async def test_candidates_come_as_they_are_found_and_no_longer_than_was_asked(mesh: str) -> None:
    async with Announcer(identity_here("worker", mesh, "kitchen", None), 7126):
        async for candidate in discover(mesh, wait_s=APPEAR_S):
            assert (candidate.addresses, candidate.role) == (("127.0.0.1:7126",), "worker")
            break
    assert [candidate async for candidate in discover(f"{mesh}-other", wait_s=0.05)] == []


@needs_multicast
def test_a_started_worker_is_discovered_and_works(mesh: str, tmp_path: Path) -> None:
    with daemon(
        *WORKER, "--mesh", mesh, "--name", "kitchen", env=environment(tmp_path), log=tmp_path / "log"
    ) as worker:
        with Mesh.builder().mesh(mesh).discover(wait_s=APPEAR_S).build() as found:
            assert [(node.name, node.state) for node in found.nodes] == [("kitchen", "healthy")]
            assert found.run(lambda x: x + 1, 1.0, mode="on") == 2.0
        with pytest.raises(errors.ConnectFailed, match="0 of at least 1 workers"):
            Mesh.builder().mesh(f"{mesh}-other").discover(wait_s=1.0).build()
        assert worker.stop(signal.SIGTERM) == 0


@needs_multicast
def test_a_worker_that_comes_later_joins_and_one_that_exits_is_dead(mesh: str, tmp_path: Path) -> None:
    env = environment(tmp_path)
    with Mesh.builder().mesh(mesh).discover(wait_s=0.1, min_nodes=0).build() as found:
        assert found.nodes == ()
        with daemon(*WORKER, "--mesh", mesh, "--name", "late", env=env, log=tmp_path / "log") as worker:
            wait_for(lambda: [node.state for node in found.nodes] == ["healthy"])
            worker.stop(signal.SIGTERM)
            wait_for(lambda: [node.state for node in found.nodes] == ["dead"])


async def test_a_list_of_addresses_is_a_finder_too() -> None:
    found: list[Candidate] = []
    finder = StaticFinder(["127.0.0.1:7100", "[::1]:7101"], found.append)
    await finder.start()
    await finder.close()
    assert found == [Candidate(("127.0.0.1:7100",)), Candidate(("[::1]:7101",))]
