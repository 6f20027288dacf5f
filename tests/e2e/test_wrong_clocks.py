"""Clocks that are ten years off: nobody is let in by mistake, nobody hangs, and the error speaks of the clocks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio
from support.hostile.faulty_disk import QuickDisk
from support.machines.links import Recorder, node
from support.tls import MESH, authority, credentials

from coordinator.authority.authority import Authority
from coordinator.jobs.job_store import JobStore
from wire.errors import MeshError, NotTrusted
from wire.joining.credentials import Credentials
from wire.link.websocket_carrier import Endpoint
from wire.security.certificates import CertificateAuthority
from worker.state import events as ev
from worker.state.lease import Lease

TEN_YEARS_S = 3653 * 86400.0


@pytest_asyncio.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with asyncio.timeout(240), AsyncExitStack() as made:
        yield made


async def dialled(stack: AsyncExitStack, folder: Path, here: Credentials, there: Credentials) -> MeshError | None:
    """What a dial comes to."""
    ends = []
    for name, card in (("here", here), ("there", there)):
        said = {"mesh": MESH, "node_id": card.node_id, "role": card.member.role}
        ends.append(Endpoint(node(name, **said), Recorder(), credentials=card))
        stack.push_async_callback(ends[-1].close)
    port = await ends[1].listen("127.0.0.1", 0)
    try:
        await ends[0].dial("127.0.0.1", port)
    except MeshError as error:
        return error
    return None


def of(folder: Path, name: str, by: CertificateAuthority, now_s: float | None = None) -> Credentials:
    return credentials(folder / name, by, now_s=now_s)


@pytest.mark.parametrize(
    ("ahead_s", "said"), [(TEN_YEARS_S, "is not valid yet"), (-TEN_YEARS_S, "has a certificate that ran out")]
)
async def test_who_is_dialled_was_certified_by_a_clock_ten_years_off(
    stack: AsyncExitStack, tmp_path: Path, ahead_s: float, said: str
) -> None:
    long = authority(time.time() - TEN_YEARS_S / 2)  # good now, whatever the certificate says
    there = of(tmp_path, "there", long, time.time() + ahead_s)
    error = await dialled(stack, tmp_path, of(tmp_path, "here", long), there)
    assert isinstance(error, NotTrusted) and said in str(error) and "clocks of both machines" in str(error)


@pytest.mark.parametrize("ahead_s", [TEN_YEARS_S, -TEN_YEARS_S])
async def test_who_dials_was_certified_by_a_clock_ten_years_off(
    stack: AsyncExitStack, tmp_path: Path, ahead_s: float
) -> None:
    ours = authority(time.time() - TEN_YEARS_S / 2)
    error = await dialled(
        stack, tmp_path, of(tmp_path, "here", ours, time.time() + ahead_s), of(tmp_path, "there", ours)
    )
    assert isinstance(error, NotTrusted) and "clock" in str(error)


@pytest.mark.parametrize("ahead_s", [TEN_YEARS_S, -TEN_YEARS_S - 86400.0])
async def test_an_authority_whose_clock_was_ten_years_off_when_it_was_made(
    stack: AsyncExitStack, tmp_path: Path, ahead_s: float
) -> None:
    """All of its mesh have certificates of that time, and the list of revoked nodes is of then, too."""
    off = authority(time.time() + ahead_s)
    error = await dialled(stack, tmp_path, of(tmp_path, "here", off), of(tmp_path, "there", off))
    assert isinstance(error, NotTrusted) and "clock" in str(error)


@pytest.mark.parametrize("jump_s", [TEN_YEARS_S, -TEN_YEARS_S])
def test_no_token_outlives_a_clock_that_jumps(tmp_path: Path, jump_s: float) -> None:
    """Set back, the clock would reach a token's end in ten years."""
    clock = [time.time()]
    made = Authority(tmp_path, "home", lambda: clock[0], QuickDisk())
    made.create_token()
    assert [record.state(clock[0]) for record in made.tokens()] == ["open"]
    clock[0] += jump_s
    assert [record.state(clock[0]) for record in made.tokens()] == ["expired"]
    clock[0] += 3000.0 - jump_s if jump_s < 0 else 0.0
    assert [record.state(clock[0]) for record in made.tokens()] == ["expired"]


def test_a_token_that_is_taken_back_while_the_clock_is_wrong_stays_so(tmp_path: Path) -> None:
    clock = [time.time()]
    made = Authority(tmp_path, "home", lambda: clock[0], QuickDisk())
    made.create_token()
    clock[0] -= TEN_YEARS_S
    made.rotate()
    clock[0] += TEN_YEARS_S
    assert [record.state(clock[0]) for record in made.tokens()] == ["withdrawn"]


def test_epochs_grow_however_a_clock_is_set_back(tmp_path: Path) -> None:
    """A coordinator's epoch is made of the time; a worker's lease goes by the order of epochs, and by no clock."""
    ahead, _ = JobStore.open(tmp_path, int((time.time() + TEN_YEARS_S) * 1e6))
    asyncio.run(closed(ahead))
    back, _ = JobStore.open(tmp_path, int(time.time() * 1e6))
    asyncio.run(closed(back))
    assert back.epoch > ahead.epoch


async def closed(store: JobStore) -> None:
    await store.close()


@pytest.mark.parametrize("epoch", [1, 2**52])
def test_a_worker_serves_a_coordinator_after_one_whose_clock_was_ten_years_ahead(epoch: int) -> None:
    lease = Lease(600.0)
    asked = [ev.JoinRequested(f"n{at}", at, f"c{at}", each, 0.1, 1.5) for at, each in enumerate((2**52, epoch))]
    assert lease.refusal(asked[0]) is None
    lease.joined(asked[0], 0.0)
    lease.lapsed = True
    assert lease.refusal(asked[1]) is None, "its node is another, and so its epoch has no order with the first one's"
