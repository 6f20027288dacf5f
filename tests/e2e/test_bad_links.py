"""A mesh whose links are slow, cut, silent or corrupt: the right answer or a typed error, in time, and never a hang.

The workers run as if they were another user's, so that tensors travel over the links and not through shared memory.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.compare import assert_as_promised
from support.meanwhile import meanwhile
from support.processes.commands import PATIENT_S, Daemon, daemon, environment, wait_for
from support.processes.fault_proxy import DOWN, UP, Conditions, FaultProxy, resets
from support.processes.faults import EventTap, tower
from support.processes.site import WORKER

import mesh.numpy as mnp
from mesh import Auto, Mesh, errors
from wire.security.user_secret import user_secret
from wire.timeouts import DEFAULT_TIMEOUTS

WITHIN_S = 120.0  # no outcome may take longer, whatever happens to the links
CONTROL, BULK = 0, 1  # the connections of a link, in the order they are made
WIDTH, ROWS = 200, 100
RNG = np.random.default_rng(0)
WEIGHTS = [(RNG.standard_normal((WIDTH, WIDTH)) / np.sqrt(WIDTH)).astype(np.float32) for _ in range(4)]
X = RNG.standard_normal((ROWS, WIDTH)).astype(np.float32)
Proxies = Sequence[FaultProxy]


@dataclass(slots=True)
class Site:
    """Workers that know nothing of each other, and the answer they should give."""

    workers: list[Daemon]
    expected: NDArray[Any]

    @contextmanager
    def proxies(self, count: int = 1) -> Iterator[Proxies]:
        """A proxy before each of the first `count` workers."""
        with ExitStack() as stack:
            yield [
                stack.enter_context(FaultProxy(("127.0.0.1", worker.ready["port"]), seed=number, secret=user_secret()))
                for number, worker in enumerate(self.workers[:count])
            ]

    def mesh(self, proxies: Proxies, node_timeout_s: float = DEFAULT_TIMEOUTS.node_timeout_s) -> Mesh:
        """All workers, through the proxies as far as there are any."""
        direct = [worker.address for worker in self.workers[len(proxies) :]]
        builder = Mesh.builder().mesh("links").node_timeout(node_timeout_s)
        for address in (*(proxy.address for proxy in proxies), *direct):
            builder = builder.node(address)
        return builder.build()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("links")
    env = environment(folder, LOGNAME="somebody-else")
    words = (*WORKER, "--mesh", "links", "--name")
    with ExitStack() as stack:
        workers = [
            stack.enter_context(daemon(*words, name, env=env, log=folder / f"{name}.log")) for name in ("near", "far")
        ]
        made = Site(workers, X)
        with made.mesh([], PATIENT_S) as mesh:
            made.expected = mesh.run(tower, WEIGHTS, X, mode="off")
        yield made


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of building a mesh and of one call: the answer or the error, and the links' conduct."""

    answer: NDArray[Any] | None
    error: errors.MeshError | None
    seconds: float

    def is_right_or_typed(self, site: Site) -> bool:
        return self.error is not None or np.array_equal(self.answer, site.expected)


def outcome(
    site: Site, proxies: Proxies, strategy: str = "pipeline", node_timeout_s: float = DEFAULT_TIMEOUTS.node_timeout_s
) -> Outcome:
    """Build, hold the weights, call, close."""
    began_s = time.monotonic()
    try:
        with site.mesh(proxies, node_timeout_s) as mesh:
            held = mesh.put(WEIGHTS)
            answer = mesh.submit(tower, held, X, strategy=strategy, mode="on").result(timeout_s=WITHIN_S)
            return Outcome(answer, None, time.monotonic() - began_s)
    except errors.DeadlineExceeded:
        raise  # the call hung
    except errors.MeshError as error:
        return Outcome(None, error, time.monotonic() - began_s)


def sizes(site: Site) -> dict[tuple[str, int], int]:
    """How many bytes a good session moves, by direction and connection, on the first worker's link."""
    with site.proxies() as proxies:
        good = outcome(site, proxies, node_timeout_s=PATIENT_S)
        assert good.error is None and good.is_right_or_typed(site)
        return {(way, each): proxies[0].passed(way, each) for way in (UP, DOWN) for each in (CONTROL, BULK)}


def unharmed(site: Site) -> None:
    """The workers serve the next mesh as if nothing had been."""
    good = outcome(site, [], node_timeout_s=PATIENT_S)
    assert good.error is None, good.error
    np.testing.assert_array_equal(good.answer, site.expected)


# -- slow


def test_a_slow_far_worker_gives_right_answers_and_is_not_taken_for_dead(site: Site) -> None:
    """80 ms each way and 20 Mbit/s."""
    with site.proxies(2) as proxies:
        for proxy in proxies:
            proxy.change(delay_s=0.08, bytes_per_s=20e6 / 8)
        with site.mesh(proxies, 3 * DEFAULT_TIMEOUTS.node_timeout_s) as mesh:
            tap = EventTap(mesh)
            held = mesh.put(WEIGHTS)
            for batch in (X, X[:10]):
                expected = mesh.run(tower, WEIGHTS, batch, mode="off")
                np.testing.assert_array_equal(mesh.run(tower, held, batch, strategy="pipeline", mode="on"), expected)
            wait_for(lambda: both_work(site, mesh, held), WITHIN_S)
            assert tap.wait(lambda event: event["kind"] == "dead", 0.1) is None
        assert sum(proxy.passed(UP, BULK) for proxy in proxies) > sum(weight.nbytes for weight in WEIGHTS)


def test_a_link_of_single_bytes_works(site: Site) -> None:
    x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
    with site.proxies(2) as proxies:
        for proxy in proxies:
            proxy.change(slice_bytes=1)
        with site.mesh(proxies, PATIENT_S) as mesh:
            found = mesh.run(lambda x: mnp.tanh(mnp.tanh(x @ x) @ x), x, strategy="pipeline", mode="on")
            np.testing.assert_array_equal(found, mesh.run(lambda x: mnp.tanh(mnp.tanh(x @ x) @ x), x, mode="off"))


# -- cut


@pytest.mark.parametrize("how", ["rst", "fin"])
@pytest.mark.parametrize("connection", [CONTROL, BULK])
@pytest.mark.parametrize("direction", [UP, DOWN])
def test_a_link_cut_anywhere_costs_an_error_or_a_plan(site: Site, direction: str, connection: int, how: str) -> None:
    """Within the upgrade, the hello, the graphs and the tensors; and at the very last byte."""
    total = sizes(site)[direction, connection]
    for place in sorted({0, 1, 60, 250, 700, total // 3, total * 2 // 3, total - 1}):
        with site.proxies() as proxies:
            proxies[0].change(direction, connection, cut_after=place, cut_with=how)
            found = outcome(site, proxies)
            assert found.is_right_or_typed(site), (place, found)
            assert found.seconds < WITHIN_S, (place, found)
    unharmed(site)


@pytest.mark.parametrize("seed", range(6))
def test_links_reset_at_random_moments_of_a_job(site: Site, seed: int) -> None:
    with site.proxies(2) as proxies, site.mesh(proxies) as mesh:
        held = mesh.put(WEIGHTS)
        job = mesh.submit(tower, held, X, strategy="pipeline", mode="on")
        victim = proxies[seed % 2]
        for change in resets(seed, 1, 0.03):
            time.sleep(change.at_s)
            victim.end(change.end)
        try:
            np.testing.assert_array_equal(job.result(timeout_s=WITHIN_S), site.expected)
        except errors.DeadlineExceeded:
            raise
        except errors.MeshError:
            pass  # a typed error is an answer too
    unharmed(site)


# -- silent


@pytest.mark.parametrize("direction", [UP, DOWN])
def test_a_link_that_falls_silent_one_way_is_found_and_its_work_goes_elsewhere(site: Site, direction: str) -> None:
    with site.proxies() as proxies, site.mesh(proxies) as mesh:
        dead: list[str] = []
        mesh.watch(lambda event: dead.append(event["node"]) if event["kind"] == "dead" else None)
        held = mesh.put(WEIGHTS)
        np.testing.assert_array_equal(mesh.run(tower, held, X, strategy="pipeline", mode="on"), site.expected)
        proxies[0].change(direction, stalled=True)
        job = mesh.submit(tower, held, X, strategy="pipeline", mode="on")
        np.testing.assert_array_equal(job.result(timeout_s=WITHIN_S), site.expected)
        assert set(mesh.report().workers) == {"far"} or "far" in dead  # which this machine may have kept waiting
        wait_for(lambda: "near" in dead, WITHIN_S)
    unharmed(site)


# -- corrupt


@pytest.mark.parametrize("direction", [UP, DOWN])
def test_a_flipped_bit_in_a_message_is_a_typed_error_or_does_no_harm(site: Site, direction: str) -> None:
    total = sizes(site)[direction, CONTROL]
    rng = random.Random(direction)
    for _ in range(12):
        place, bit = rng.randrange(total), rng.randrange(8)
        with site.proxies() as proxies:
            proxies[0].change(direction, CONTROL, flip_at=place, flip_mask=1 << bit)
            found = outcome(site, proxies)
            assert found.is_right_or_typed(site), (place, bit, found)
            assert found.seconds < WITHIN_S, (place, bit, found)
    unharmed(site)


def test_a_flipped_bit_in_weights_is_found_by_their_address(site: Site) -> None:
    """Content is checked when it comes.  Inputs and outputs of a call have no check of their own but that of TLS."""
    for seed in range(6):
        weights = np.random.default_rng(seed).standard_normal((256, 256)).astype(np.float32)  # new to the worker
        x = np.ones((2, 256), np.float32)
        place, bit = 1000 + seed * weights.nbytes // 6, seed
        with site.proxies() as proxies:
            proxies[0].change(UP, BULK, flip_at=place, flip_mask=1 << bit)
            with Mesh.builder().mesh("links").node(proxies[0].address).node_timeout(PATIENT_S).build() as mesh:
                expected = mesh.run(mnp.matmul, x, weights, mode="off")
                job = mesh.submit(mnp.matmul, x, mesh.put(weights), mode="on")
                with contextlib.suppress(errors.BlobCorrupt):  # or the coordinator sent it once more
                    np.testing.assert_array_equal(job.result(timeout_s=WITHIN_S), expected)
                assert proxies[0].passed(UP, BULK) > place
    unharmed(site)


# -- healing


@pytest.mark.parametrize("how", ["rst", "fin"])
def test_a_link_that_was_reset_comes_back_and_its_worker_gets_work(site: Site, how: str) -> None:
    """It may come back by the worker's own address, around the proxy."""
    with site.proxies() as proxies, site.mesh(proxies, PATIENT_S) as mesh:
        held = mesh.put(WEIGHTS)
        tap = EventTap(mesh)
        proxies[0].end(how)
        noticed = tap.wait(lambda each: each["kind"] in {"dead", "healthy"} and each["node"] == "near", WITHIN_S)
        assert noticed is not None
        wait_for(lambda: both_work(site, mesh, held), WITHIN_S)


STRATEGIES = ("pipeline", "single", Auto(reproducible=True).text, "auto")


def both_work(site: Site, mesh: Mesh, held: Any) -> bool:
    """A call is right; whether all were there for it and had work."""
    states = {node.name: node.state for node in mesh.nodes}
    np.testing.assert_array_equal(mesh.run(tower, held, X, strategy="pipeline", mode="on"), site.expected)
    return states == {"near": "healthy", "far": "healthy"} and set(mesh.report().workers) == {"near", "far"}


@contextmanager
def weather(proxies: Proxies, rng: random.Random) -> Iterator[None]:
    """Faults of every kind on one link after the other, until the block ends; then all links are good."""
    faults: tuple[Callable[[FaultProxy], None], ...] = (
        lambda proxy: proxy.end(rng.choice(("rst", "fin"))),
        lambda proxy: proxy.change(rng.choice((UP, DOWN)), stalled=True),
        lambda proxy: proxy.change(delay_s=rng.uniform(0, 0.05), jitter_s=rng.uniform(0, 0.05)),
        lambda proxy: proxy.change(bytes_per_s=rng.uniform(1e6, 1e7)),
        lambda proxy: proxy.change(slice_bytes=rng.choice((1, 7, 1000))),
        lambda proxy: proxy.change(refused=True),
    )

    def play(over: threading.Event) -> None:
        while not over.wait(rng.uniform(0.05, 0.5)):
            proxy = rng.choice(proxies)
            rng.choice(faults)(proxy)
            over.wait(rng.uniform(0.05, 1.2))
            proxy.change(**asdict(Conditions()))

    with meanwhile(play):
        yield


@pytest.mark.parametrize(
    ("seed", "seconds"), [(1, 5.0), *(pytest.param(seed, 30.0, marks=pytest.mark.long) for seed in range(2, 8))]
)
def test_any_weather_on_the_links(site: Site, seed: int, seconds: float) -> None:
    """One call after the other while links break in every way; afterwards all is as before."""
    rng = random.Random(seed)
    with site.proxies(2) as proxies, site.mesh(proxies) as mesh:
        held = mesh.put(WEIGHTS)
        right = 0
        with weather(proxies, rng):
            end_s = time.monotonic() + seconds
            while time.monotonic() < end_s or not right:
                strategy = rng.choice(STRATEGIES)
                job = mesh.submit(tower, held, X, strategy=strategy, mode="on")
                try:
                    assert_as_promised(strategy, job.result(timeout_s=WITHIN_S), site.expected, len(WEIGHTS))
                    right += 1
                except errors.DeadlineExceeded:
                    raise AssertionError(f"a call hung, after {[proxy.schedule for proxy in proxies]}") from None
                except errors.MeshError:
                    time.sleep(0.05)  # no worker is left for a moment
        wait_for(lambda: both_work(site, mesh, held), WITHIN_S)
        assert right > 0
