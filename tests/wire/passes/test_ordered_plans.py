"""Ordered plans: parts as listed, steps as their Runs came, and no two gangs that wait for each other."""

from __future__ import annotations

import itertools
import random

import pytest
from msgspec.structs import replace
from support.machines.gang_model import EPOCH, Mesh, Place, Unit
from support.machines.worker_machine import GRAPH, ME, PEER, Driver, deploy, of, one

from wire.errors import InputError
from wire.protocol.messages import Gang, Member, PartSpec, PlanKey, Target
from worker.state import events as ev
from worker.state.device_queue import DeviceQueue

ONE, OTHER = PlanKey(EPOCH, 1), PlanKey(EPOCH, 2)
A, B = ("a", 0), ("b", 0)


def test_what_is_listed_later_waits_though_it_is_ready_first() -> None:
    device = DeviceQueue()
    first, second = (ONE, 0, 1), (ONE, 0, 2)
    device.ordered.extend([first, second])
    device.ready.append(second)
    assert device.take() is None
    device.ready.append(first)
    assert device.take() == first and device.take() == second and device.take() is None
    device.validate()


def test_what_is_not_ordered_passes_a_head_that_waits() -> None:
    device = DeviceQueue()
    free = (OTHER, 0, 0)
    device.ordered.append((ONE, 0, 0))
    device.ready.append(free)
    assert device.take() == free
    device.ready.extend([(ONE, 0, 0), free])
    assert device.take() == (ONE, 0, 0), "among what may run, what was ready first"


def test_a_step_that_is_over_holds_nobody_back() -> None:
    device = DeviceQueue()
    device.ordered.extend([(ONE, 0, 0), (ONE, 1, 0)])
    device.ready.append((ONE, 1, 0))
    device.remove_step(ONE, 0)
    assert device.take() == (ONE, 1, 0)


def crossing(free: frozenset[PlanKey], seed: int) -> Mesh:
    """Two plans of one gang each over the same two devices, each begun by a part whose result takes its time."""
    units = (Unit((A,)), Unit((B,)), Unit((A, B), (0, 1)))
    mesh = Mesh(random.Random(seed), {ONE: units, OTHER: units}, free)
    mesh.run(ONE, 0)
    mesh.run(OTHER, 0)
    mesh.settle()
    return mesh


def test_gangs_that_cross_end_only_if_they_are_ordered() -> None:
    assert not any(crossing(frozenset(), seed).waiting() for seed in range(40))
    assert any(crossing(frozenset({ONE, OTHER}), seed).waiting() for seed in range(40)), "the model would not notice"


def test_the_steps_of_a_plan_run_in_the_order_of_their_runs() -> None:
    units = (Unit((A,)), Unit((B,), (0,)), Unit((A, B), (1,)), Unit((A,), (2,)))
    for seed in range(20):
        mesh = Mesh(random.Random(seed), {ONE: units})
        for step in range(4):
            mesh.run(ONE, step)
        mesh.settle()
        assert not mesh.waiting()
        for runs in mesh.began.values():
            assert runs == sorted(runs, key=lambda run: run[1:]), "a later part ran before an earlier one"


def random_plan(chance: random.Random, places: list[Place]) -> tuple[Unit, ...]:
    units: list[Unit] = []
    for index in range(chance.randint(1, 5)):
        size = chance.choice((1, 1, 2, 3, len(places)))
        sources = chance.sample(range(index), min(index, chance.randint(0, 2)))
        units.append(Unit(tuple(sorted(chance.sample(places, min(size, len(places))))), tuple(sources)))
    return tuple(units)


def random_mesh(seed: int) -> Mesh:
    chance = random.Random(seed)
    places = [
        (f"w{worker}", device) for worker in range(chance.randint(2, 4)) for device in range(chance.randint(1, 2))
    ]
    plans = {PlanKey(EPOCH, number): random_plan(chance, places) for number in range(1, chance.randint(2, 5) + 1)}
    gangless = tuple(Unit((chance.choice(places),)) for _ in range(3))
    free = PlanKey(EPOCH, 9)
    return Mesh(chance, {**plans, free: gangless}, frozenset({free}))


def start_steps(mesh: Mesh) -> list[tuple[PlanKey, int]]:
    started, steps = [], {key: itertools.count() for key in mesh.plans}
    for _ in range(mesh.chance.randint(3, 12)):
        key = mesh.chance.choice(list(mesh.plans))
        started.append((key, next(steps[key])))
        mesh.run(*started[-1])
    return started


@pytest.mark.parametrize("seed", range(60))
def test_no_timing_makes_gangs_wait_for_each_other(seed: int) -> None:
    mesh = random_mesh(seed)
    started = start_steps(mesh)
    mesh.settle()
    assert not mesh.waiting()
    assert mesh.ran == {(key, step, node) for key, step in started for node in mesh.nodes(key)}
    for runs in mesh.began.values():
        ordered = [run for run in runs if run[0] not in mesh.free]
        place = {gang: index for index, gang in enumerate(started)}
        assert ordered == sorted(ordered, key=lambda run: (place[run[:2]], run[2]))


@pytest.mark.parametrize("seed", range(60))
def test_what_is_cancelled_dropped_or_dies_frees_the_others(seed: int) -> None:
    mesh = random_mesh(1000 + seed)
    started = start_steps(mesh)
    gone: set[PlanKey] = set()
    cancelled: set[tuple[PlanKey, int]] = set()
    for _ in range(mesh.chance.randint(1, 3)):
        mesh.settle_some()
        match mesh.chance.choice(("cancel", "drop", "die")):
            case "cancel":
                cancelled.add(step := mesh.chance.choice(started))
                mesh.cancel(*step)
            case "drop":
                gone.add(key := mesh.chance.choice(list(mesh.plans)))
                mesh.drop(key)
            case "die" if len(mesh.workers) > 1:
                node = mesh.chance.choice(list(mesh.workers))
                gone |= {key for key in mesh.plans if node in mesh.nodes(key)}
                mesh.kill(node)
    mesh.settle()
    assert not mesh.waiting()
    whole = [(key, step) for key, step in started if key not in gone and (key, step) not in cancelled]
    assert {(key, step, node) for key, step in whole for node in mesh.nodes(key)} <= mesh.ran


GANG = Gang(("dp",), (2,), 0, (Member(ME, 0, 0), Member(PEER, 1, 0)))


def asked(gang: Gang, device: int = 0, ordered: bool = True) -> list[ev.Action]:
    """What a worker says to a deploy of one part of this gang."""
    spec = PartSpec(0, device, GRAPH, (), ((Target("", 0, 0),),), (), gang)
    return Driver().ask_deploy(replace(deploy(spec), ordered=ordered))


def test_a_gang_is_linked_to_its_members_though_no_tensor_goes_there() -> None:
    assert [link.node for link in of(ev.LinkTo, asked(GANG))] == [PEER]


@pytest.mark.parametrize(
    ("gang", "wrong"),
    [
        (replace(GANG, sizes=(3,)), "3 ranks"),
        (replace(GANG, rank=1), "not rank 1"),
        (replace(GANG, rank=2), "not rank 2"),
        (replace(GANG, members=(Member(ME, 0, 0), Member(ME, 1, 0))), "one device"),
        (replace(GANG, members=(Member(ME, 0, 0), Member("stranger", 1, 0))), "stranger"),
    ],
)
def test_a_gang_that_could_not_end_is_refused(gang: Gang, wrong: str) -> None:
    error = one(ev.Refuse, asked(gang)).error
    assert isinstance(error, InputError) and wrong in str(error)


def test_a_gang_in_a_plan_without_order_is_refused() -> None:
    assert "not ordered" in str(one(ev.Refuse, asked(GANG, ordered=False)).error)
