"""A session's machine while nobody drives it: its state is stored, and whoever claims it finds all answered steps."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from support.machines.session_world import World

from coordinator.planning.model.profiles import CLIENT
from coordinator.sessions import events as ev
from coordinator.sessions.state import Policy
from wire.errors import NodeLost

POLICIES = tuple(Policy(copies, every=10, ahead=3, durable=True) for copies in ("buddy", "coded", "checkpoint", "none"))
BUDDY = POLICIES[0]


def do(world: World, steps: int) -> None:
    for _ in range(steps):
        world.do(1)
        world.hear(len(world.told))


def alone(world: World) -> None:
    world.feed(ev.ClientWent(True))
    world.settle()


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.copies)
def test_what_is_under_way_when_the_client_goes_is_done_and_stored(policy: Policy) -> None:
    world = World(1, policy)
    do(world, 3)
    for _ in range(4):
        world.ask()
    world.hear(3)
    alone(world)
    assert len(world.told) == 3 + policy.ahead, "so many values are held for it"
    copies = [copy for copy in world.manifest.copies if copy.contents is not None]
    assert [copy.value for copy in copies if copy.regular] == [6] * (policy.copies != "none")


def test_a_copy_that_a_death_made_thin_is_stored_again() -> None:
    for seed in range(20):
        world = World(seed, BUDDY)
        do(world, 12)
        alone(world)
        for name in ("a", "b"):  # one after the other: whoever is left has all
            world.kill(name)
            world.settle()
            world.start(name)
            world.settle()
        world.feed(ev.ClaimRequested())
        world.settle()
        assert world.claimed == [12] and not world.ended


def test_a_coded_copy_that_a_death_made_thin_is_stored_again() -> None:
    for seed in range(20):
        world = World(seed, POLICIES[1], names=("a", "b", "c", "d"))
        do(world, 12)
        alone(world)
        for name in ("a", "b", "c"):
            world.kill(name)
            world.settle()
            world.start(name)
            world.settle()
        world.feed(ev.ClaimRequested())
        world.settle()
        assert world.claimed == [12] and not world.ended


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.copies)
def test_a_claim_waits_for_the_steps_under_way_and_needs_no_feed_of_before(policy: Policy) -> None:
    world = World(2, policy)
    do(world, 7)
    for _ in range(3):
        world.ask()
    world.feed(ev.ClaimRequested())
    assert world.claimed == []
    world.settle()
    assert world.claimed == [10]
    if policy.copies != "none":
        assert world.feeds_from == 10
    do(world, 5)
    assert len(world.told) == 15


def test_where_no_copy_can_be_stored_a_claim_is_answered_all_the_same() -> None:
    world = World(3, BUDDY, cut=frozenset("abc"))
    do(world, 4)
    world._StoreCopy = lambda action: world.waiting.append(  # type: ignore[method-assign]
        ev.CopyFailed(action.copy, action.node, NodeLost("no room"))
    )
    world.feed(ev.ClaimRequested())
    world.settle()
    assert world.claimed == [4] and world.now >= 2.0


def test_copies_that_fail_are_tried_again_after_a_while_only() -> None:
    world = World(3, BUDDY)
    do(world, 4)
    tried: list[float] = []

    def refuse(action: ev.StoreCopy) -> None:
        tried.append(world.now)
        world.waiting.append(ev.CopyFailed(action.copy, action.node, NodeLost("no room")))

    world._StoreCopy = refuse  # type: ignore[method-assign]
    world.feed(ev.ClientWent(True))
    for _ in range(40):
        world.step()
    assert len(tried) < 60 and tried[-1] - tried[0] >= 10.0
    world.feed(ev.ClientWent(False))
    world.settle()


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.copies)
def test_workers_know_how_many_steps_are_done_where_coordinator_and_client_die(policy: Policy) -> None:
    for seed in range(20):
        world = World(seed, policy)
        do(world, 12)
        for _ in range(3):
            world.ask()
        for _ in range(seed % 7):
            world.deliver()
        answered = len(world.told)
        world.restart_alone()
        world.settle()
        assert len(world.claimed) == 1 and answered <= world.claimed[0] <= 15, (seed, world.claimed)
        do(world, 3)
        assert len(world.told) == world.claimed[0] + 3 and not world.ended


def test_where_a_worker_dies_with_both_the_newest_copy_counts() -> None:
    for seed in range(20):
        world = World(seed, BUDDY, together=True)
        do(world, 14)
        world.restart_alone(dead=world.owner)
        world.settle()
        assert world.claimed == [10]
        do(world, 2)
        assert len(world.told) == 12


def test_once_the_client_was_away_a_worker_may_die_with_the_coordinator() -> None:
    for seed in range(20):
        world = World(seed, BUDDY)
        do(world, 14)
        alone(world)
        world.restart_alone(dead=world.random.choice(world.names))
        world.settle()
        assert world.claimed == [14]


def test_of_a_session_that_has_done_nothing_the_first_state_is_claimed() -> None:
    world = World(4, BUDDY)
    world.restart_alone()
    world.settle()
    assert world.claimed == [0]
    do(world, 2)
    assert len(world.told) == 2


def test_a_session_that_is_over_is_claimed_by_nobody() -> None:
    world = World(4, BUDDY)
    world.feed(ev.CloseRequested())
    world.feed(ev.ClaimRequested())
    world.feed(ev.ClientWent(True))
    world.settle()
    assert world.claimed == [] and world.ended == [None]


def cut_off_for_a_moment(world: World) -> None:
    name = world.random.choice(world.names)
    if name in world.alive:
        world.cut_off(name)
        for _ in range(world.random.randrange(10)):
            world.deliver()  # nobody waits for it for too long
        world.come_back(name)


def restart_and_be_cut_off(world: World) -> None:
    world.restart_alone()
    for _ in range(world.random.randrange(10)):
        world.step()
    if not world.claimed:
        cut_off_for_a_moment(world)


@pytest.mark.parametrize("end", [World.restart_alone, restart_and_be_cut_off, lambda world: None])
def test_no_answered_step_is_lost_whoever_goes_on(end: Callable[[World], None]) -> None:
    for seed in range(100):
        chance = random.Random(seed)
        policy = Policy(chance.choice(("buddy", "coded")), chance.randint(1, 6), chance.randint(1, 4), durable=True)
        world = World(seed, policy, replicas=chance.random() < 0.3, names=("a", "b", "c", "d"))
        done = 0
        for _ in range(4):
            for _ in range(chance.randrange(8)):
                world.ask()
                for _ in range(chance.randrange(6)):
                    world.deliver()
            world.hear(chance.randint(0, len(world.told)))
            if chance.random() < 0.5:
                world.feed(ev.ClientWent(True))
            for _ in range(chance.randrange(20)):
                world.step()
            if chance.random() < 0.3:
                cut_off_for_a_moment(world)
                world.hear(len(world.told))
                world.settle()  # what is done again after that is known to the coordinator only
            answered, asked = len(world.told), world.machine.next_number
            assert answered >= done
            world.claimed = []
            end(world)
            if not world.claimed and not world.machine._attendance.claimed:
                world.feed(ev.ClaimRequested())
            world.settle()
            assert len(world.claimed) == 1 and answered <= world.claimed[0] <= asked, (seed, answered, asked)
            done = world.claimed[0]
        assert not world.ended and CLIENT not in world.alive


def test_a_claim_of_a_client_that_goes_meanwhile_leaves_the_session_to_itself() -> None:
    """Its state is stored again after a death, as that of any session that nobody drives."""
    for seed in range(20):
        world = World(seed, BUDDY)
        do(world, 12)
        world.feed(ev.ClientWent(True))
        world.feed(ev.ClaimRequested())
        world.feed(ev.ClientWent(True))  # the one that claims
        world.settle()
        for name in ("a", "b"):
            world.kill(name)
            world.settle()
            world.start(name)
            world.settle()
        world.feed(ev.ClaimRequested())
        world.settle()
        assert world.claimed == [12, 12] and not world.ended
