"""Members that lie, on a mesh of processes under load: they change no result, fail nobody's call and take no memory.

A liar has a good certificate, as a client or as a worker, and sends valid messages.  It offers no device, since a
worker that is given a part can always fail that part.  `python tests/e2e/test_lying_members.py COUNT [FIRST]` sends
that many random sequences of messages and reports.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil
import pytest
from support.hostile.liar import ANSWER_S, Member, Sequences, forged, member, pushed, sent
from support.messages import MESSAGES
from support.processes.commands import client_of
from support.processes.footprint import MEMORY_FOLDER
from support.processes.site import Site, site

import mesh.numpy as mnp
from mesh.client.async_mesh import AsyncMesh
from wire import roles
from wire.errors import (
    MeshError,
    NoCoordinator,
    NodeLost,
    NotTrusted,
    ProtocolError,
    StaleGeneration,
)
from wire.limits import DEFAULT, MIB
from wire.link.guard import BY_ROLE
from wire.protocol.messages import (
    Began,
    CancelStep,
    Combine,
    Drop,
    Join,
    Message,
    Pause,
    PlanKey,
    Probe,
    Push,
    TailLog,
    Term,
    Value,
)
from wire.protocol.permissions import TABLE, Receiver, Relation, Way

MESH = "liars"
STEPS: dict[str, Counter[int]] = {}  # what victims had done by each coordinator's plans
SIDE = 100
X = np.eye(SIDE, dtype=np.float32) * np.float32(0.9)
LIE = Value("f32", (), np.float32(-666.0).tobytes())
TENSOR = Value("f32", (SIDE, SIDE), np.full((SIDE, SIDE), 5.0, np.float32).tobytes())
GROWTH_MAX = 64 * MIB  # of a process's memory: what one attack here would take is 100 MiB and more


def program(x: Any) -> Any:
    """Two stages, with a tensor between the workers."""
    y = x
    for _ in range(8):
        y = mnp.tanh(y @ x) + 0.001
    return mnp.sum(y)


@dataclass
class Scene:
    """A mesh with a victim that calls, and liars."""

    site: Site
    victim: AsyncMesh
    liars: dict[str, Member]
    right: Any
    epoch: int
    steps: Counter[int]  # that were done, by plan
    calls: int = 0
    failed: list[str] = field(default_factory=list)

    @property
    def port(self) -> int:
        return int(self.site.coordinator.ready["port"])

    @property
    def workers(self) -> list[int]:
        return [int(worker.ready["port"]) for worker in self.site.workers.values()]

    @property
    def daemons(self) -> list[psutil.Process]:
        daemons = [self.site.coordinator, *self.site.workers.values()]
        return [psutil.Process(daemon.process.pid) for daemon in daemons]

    def memory(self) -> list[int]:
        """What each daemon has in memory, the workers with their shared memory."""
        return [process.memory_info().rss for process in self.daemons]

    async def call(self) -> None:
        """A call of the victim, whose answer is right to the bit."""
        self.calls += 1
        try:
            found = await self.victim.run(program, X, strategy="pipeline")
        except MeshError as error:
            self.failed.append(f"{type(error).__name__}: {error}")
        else:
            generations = self.victim.report().generations or (max(self.steps),)  # another call may have begun
            self.steps[generations[-1]] += 1
            if found.tobytes() != self.right.tobytes():
                self.failed.append(f"{found} in place of {self.right}")

    def coming(self, count: int) -> tuple[range, range]:
        """The plan that the victim's calls run by, as far as a liar can guess it, and so many steps that are under way
        or come next."""
        generation = max(self.steps)
        first = max(self.steps[generation] - 1, 0)
        return range(generation, generation + 1), range(first, first + count)

    @asynccontextmanager
    async def load(self) -> AsyncIterator[None]:
        """The victim calls all the time, and once more at the end: nothing fails, and all is right."""
        over = asyncio.Event()

        async def calls() -> None:
            while not over.is_set():
                await self.call()

        calling = asyncio.ensure_future(calls())
        try:
            yield
        finally:
            over.set()
            await calling
            for liar in self.liars.values():
                await liar.leave()
        await self.call()
        assert not self.failed, self.failed


@asynccontextmanager
async def scene_of(folder: Path, there: Site) -> AsyncIterator[Scene]:
    async with AsyncExitStack() as stack:
        state = Path(there.env["XDG_STATE_HOME"])
        liars = {
            role: await stack.enter_async_context(member(folder / role, state, MESH, role))
            for role in ("client", "worker")
        }
        remote = await client_of(there.coordinator)
        stack.push_async_callback(remote.close)
        victim = AsyncMesh(remote)
        epoch = await liars["worker"].epoch(int(there.coordinator.ready["port"]))
        await liars["worker"].leave()
        right = await victim.run(program, X, strategy="single")
        made = Scene(there, victim, liars, right, epoch, STEPS.setdefault(there.coordinator.address, Counter()))
        for _ in range(3):
            await made.call()
        assert not made.failed, "bits do not depend on the cut"
        yield made


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("liars"), MESH) as made:
        yield made


@pytest.fixture
async def scene(there: Site, tmp_path: Path) -> AsyncIterator[Scene]:
    async with asyncio.timeout(400), scene_of(tmp_path, there) as made:
        yield made


# -- one attack after the other


@pytest.mark.parametrize("role", ["client", "worker"])
async def test_nobody_without_a_part_gives_a_result(scene: Scene, role: str) -> None:
    """The coordinator is told values for outputs of steps under way, for slots that there are not, too."""
    async with scene.load():
        for slots in ((0, 1), (0, 9999), (0,), (0,)):
            link = await scene.liars[role].link(scene.port)
            for _ in range(60):  # whenever a step is under way
                await pushed(link, forged(scene.epoch, *scene.coming(4), range(1), slots, LIE))
            await scene.liars[role].leave()


async def test_tensors_between_parts_come_from_nobody_else(scene: Scene) -> None:
    """A worker without a part pushes tensors for coming steps, and leaves; a client gets no link."""
    with pytest.raises(NoCoordinator, match="a worker, not a coordinator: it takes no links from clients"):
        await scene.liars["client"].link(scene.workers[0])
    for _ in range(3):
        for port in scene.workers:
            link = await scene.liars["worker"].link(port)
            await pushed(link, forged(scene.epoch, *scene.coming(60), range(3), (0, 1), TENSOR))
        for _ in range(3):
            await scene.call()
        async with scene.load():  # the liar leaves
            await scene.call()


@pytest.mark.parametrize("place", ["worker", "coordinator"])
async def test_a_stream_that_nobody_expects_takes_no_memory(scene: Scene, place: str) -> None:
    size = 3 << 29
    header = Push(PlanKey(scene.epoch, 999), 0, 0, 0, Value("u8", (size,)))
    before, files_before = scene.memory(), shared_bytes()
    link = await scene.liars["worker"].link(scene.workers[0] if place == "worker" else scene.port)
    async with scene.load():
        for _ in range(4):
            with pytest.raises((StaleGeneration, NotTrusted)):
                await link.send_stream(header, np.empty(size, np.uint8).data)
            assert shared_bytes() - files_before < GROWTH_MAX
    assert not link.closed or scene.liars["worker"].endpoints == []
    assert all(now - then < GROWTH_MAX for now, then in zip(scene.memory(), before, strict=True))


async def test_small_tensors_for_plans_that_are_not_there_are_not_kept(scene: Scene) -> None:
    before = scene.memory()
    link = await scene.liars["worker"].link(scene.workers[0])
    async with scene.load():
        await pushed(link, [Push(PlanKey(scene.epoch, 5000), step, 0, 0, LIE) for step in range(20_000)])
    assert all(now - then < GROWTH_MAX // 4 for now, then in zip(scene.memory(), before, strict=True))


async def test_steps_that_there_are_not_have_no_beginning(scene: Scene) -> None:
    before, grown = scene.memory()[0], 0
    link = await scene.liars["worker"].link(scene.port)
    async with scene.load():  # which goes by several plans, one after the other
        for first in range(1000, 401_000, 5000):
            plan = PlanKey(scene.epoch, max(scene.steps))
            for step in range(first, first + 5000):
                link.notify(Began(plan, step, 0))
            await link.ping(ANSWER_S)
            grown = max(grown, scene.memory()[0] - before)
    assert grown < GROWTH_MAX // 4


async def test_a_worker_is_had_by_its_coordinator_alone(scene: Scene) -> None:
    """Its log, its plans, its pause and its links are nobody else's to ask for."""
    link = await scene.liars["worker"].link(scene.workers[0])
    key = PlanKey(scene.epoch, 1)
    asked = (
        TailLog(1000), Join(scene.epoch + 1, 0.1, "bad", 1.0), Drop(key, True), Pause(True),
        Probe("x", ("127.0.0.1:1",), 1.0), Combine((Term(1, bytes(32), 8, ()),), 8, {}),
    )  # fmt: skip
    async with scene.load():
        for body in asked:
            with pytest.raises(NotTrusted, match=r"only (the|a) coordinator"):
                await link.request(body, timeout_s=ANSWER_S)
        for step in range(100):
            link.notify(CancelStep(key, step))
        await link.ping(ANSWER_S)


async def test_bad_tensors_by_the_thousand_write_a_few_lines(scene: Scene) -> None:
    logs = [scene.site.coordinator.log, scene.site.workers["one"].log]
    before = [log.stat().st_size for log in logs]
    bad = [Push(PlanKey(scene.epoch, 1), 0, 0, 0, Value("f32", (), b"123"))] * 3000
    async with scene.load():
        for port in (scene.port, scene.workers[0]):
            await pushed(await scene.liars["worker"].link(port), bad)
            await scene.liars["worker"].leave()
        await pushed(await scene.liars["client"].link(scene.port), bad)
    grown = [log.stat().st_size - then for log, then in zip(logs, before, strict=True)]
    assert max(grown) < 64 << 10, "3,000 tracebacks are 2.7 MB"
    assert not any("Traceback" in log.read_text() for log in logs)


# -- the whole table


@pytest.mark.parametrize("role", ["client", "worker"])
@pytest.mark.parametrize("receiver", [Receiver.COORDINATOR, Receiver.WORKER])
async def test_a_member_gets_through_what_its_row_allows_and_nothing_else(
    scene: Scene, role: str, receiver: Receiver
) -> None:
    """Every message there is, in every way, from each role to each daemon."""
    liar, port = scene.liars[role], scene.port if receiver is Receiver.COORDINATOR else scene.workers[0]
    if (role, receiver) == ("client", Receiver.WORKER):
        with pytest.raises(NoCoordinator):
            await liar.link(port)
        return
    wrong: list[str] = []
    async with scene.load():
        link = await liar.link(port)
        for way in Way:
            for body in MESSAGES:
                if link.closed:
                    link = await liar.link(port)
                row = TABLE[way].get(type(body), {}).get(receiver)
                if row is not None and may(role, row) and ends_links(body):
                    continue
                allowed = row is not None and may(role, row)
                error = await sent(link, body, way, 8 if allowed else DEFAULT.window_bytes + 1)
                if allowed and isinstance(error, NotTrusted) and "a worker that has joined" in str(error):
                    link = await liar.link(port)  # a busy machine kept it silent, and the coordinator took it for dead
                    error = await sent(link, body, way)
                if not as_expected(error, way, row is not None, allowed):
                    wrong.append(f"{type(body).__name__} as a {way}: {error!r}")
    assert not wrong, "\n".join(wrong)


def may(role: str, row: tuple[Relation, ...]) -> bool:
    """Whether a node may send something by its role alone, or is not blamed for it since it may be late."""
    by_role = {Relation.MEMBER, Relation.CLIENT} if role == roles.CLIENT else {Relation.MEMBER, Relation.WORKER}
    late = {Relation.SOURCE, Relation.PEER, Relation.JOINED} if role == roles.WORKER else set()
    assert by_role <= BY_ROLE.keys()
    return bool(set(row) & (by_role | late | {Relation.ASKED}))


def ends_links(body: Message) -> bool:
    """Whether a member ends its own link by it, or waits for something that does not come."""
    return type(body).__name__ in ("Leaving", "AwaitJob", "OpenSession", "SessionStep", "SessionState")


def as_expected(error: MeshError | None, way: Way, known: bool, allowed: bool) -> bool:
    if allowed:
        return not isinstance(error, NotTrusted) or "only" not in str(error)
    if way is Way.REQUEST or (known and way is Way.STREAM):
        return isinstance(error, NotTrusted | ProtocolError | NodeLost)
    return error is None if known else isinstance(error, NodeLost | ProtocolError)


# -- random sequences


async def liars_at_work(scene: Scene, first: int, count: int) -> Counter[str]:
    """So many random sequences of a client and of a worker, to the coordinator and to workers, under load."""
    seen: Counter[str] = Counter()
    nodes = [daemon.ready.get("node_id", "") for daemon in scene.site.workers.values()]
    sequences = Sequences(first, scene.epoch, (SIDE, SIDE), nodes, lambda: scene.coming(8))
    places = [("client", scene.port), ("worker", scene.port), *(("worker", port) for port in scene.workers)]

    async def lie(role: str, port: int, rounds: int) -> None:
        receiver = Receiver.COORDINATOR if port == scene.port else Receiver.WORKER
        link = None
        for _ in range(rounds):
            if link is None or link.closed:
                link = await scene.liars[role].link(port)
                seen["links"] += 1
            for body, way in sequences.next(receiver):
                seen["messages"] += 1
                seen[await quickly_sent(link, body, way)] += 1
                if link.closed:
                    break
            seen["sequences"] += 1

    async with scene.load():
        share = -(-count // len(places))
        for role, port in places:
            await lie(role, port, share)
            await scene.liars[role].leave()
    return seen


async def quickly_sent(link: Any, body: Message, way: Way) -> str:
    """Send a message and do not wait long for an answer: a liar has no time."""
    try:
        match way:
            case Way.REQUEST:
                await link.request(body, timeout_s=0.2)
            case Way.NOTIFICATION:
                link.notify(body)
            case Way.STREAM:
                async with asyncio.timeout(0.2):
                    await link.send_stream(body, memoryview(bytes(8)))
    except TimeoutError:
        return "no answer"
    except MeshError as error:
        return type(error).__name__
    return "sent"


async def test_random_lies_change_nothing(scene: Scene) -> None:
    before = scene.memory()
    seen = await liars_at_work(scene, 1, 400)
    assert seen["sequences"] >= 400 and seen[NotTrusted.__name__] > 20
    assert all(now - then < GROWTH_MAX for now, then in zip(scene.memory(), before, strict=True))
    told = await scene.victim.nodes()
    assert {node.name: node.state for node in told if node.name in scene.site.workers} == {
        "one": "healthy",
        "two": "healthy",
    }


def shared_bytes() -> int:
    """What all files of shared memory of this user's processes take."""
    total = 0
    for path in MEMORY_FOLDER.glob("graph-mesh-*/*"):
        try:
            total += path.stat().st_blocks * 512
        except OSError:
            continue
    return total


async def lied(folder: Path, there: Site, first: int, count: int) -> None:
    async with scene_of(folder, there) as scene:
        began_s, before = time.monotonic(), scene.memory()
        seen = await liars_at_work(scene, first, count)
        grown = [now - then >> 20 for now, then in zip(scene.memory(), before, strict=True)]
        print(f"{dict(seen)}, {scene.calls} calls of the victim in {time.monotonic() - began_s:.0f} s")
        print(f"memory of the daemons grew by {grown} MiB")
        assert all(each < GROWTH_MAX >> 20 for each in grown)


def main(count: int, first: int) -> int:
    with TemporaryDirectory() as folder, site(Path(folder) / "site", MESH) as there:
        asyncio.run(lied(Path(folder), there, first, count))
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1))
