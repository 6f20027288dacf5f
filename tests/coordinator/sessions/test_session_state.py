"""A session's machine: steps, copies, deaths; then random lives of it with its invariants checked after every event."""

from __future__ import annotations

import pytest
from support.by_seed import ranges
from support.machines.session_world import PIECES, World

from coordinator.lifecycle.retry import ATTEMPTS_MAX
from coordinator.planning.model.profiles import CLIENT
from coordinator.sessions import events as ev
from coordinator.sessions.state import Policy
from wire.errors import Cancelled, ExecuteFailed, MeshError, NodeLost, OutOfMemory, PlacementError
from wire.timeouts import DEFAULT_TIMEOUTS

EVERY = Policy("buddy", every=1, ahead=2)


def test_steps_are_told_in_order_and_once() -> None:
    world = World(1)
    world.do(25)
    assert list(world.told) == list(range(25)) and not world.rejected


def test_no_more_steps_are_under_way_than_may_be() -> None:
    world = World(2, Policy("none", ahead=3), together=True)
    for _ in range(9):
        world.ask()
    while not world.runs:
        world.step()
    assert world.runs == 3


def test_the_state_is_that_after_the_steps_asked_for_before() -> None:
    world = World(3)
    world.feed(ev.StateRequested(1))
    world.settle()
    assert world.states[1] == 0
    for _ in range(7):
        world.ask()
    world.feed(ev.StateRequested(2))
    world.do(5)
    assert world.states[2] == 7 and len(world.told) == 12
    world.feed(ev.StateRequested(3))
    world.settle()
    assert world.states[3] == 12


def test_a_state_that_nobody_waits_for_holds_up_nothing() -> None:
    world = World(3)
    world.ask()
    world.feed(ev.StateRequested(1))
    world.ask()
    world.feed(ev.StateRequestWithdrawn(1))
    world.settle()
    assert len(world.told) == 2 and not world.states


@pytest.mark.parametrize("copies", ["buddy", "coded", "checkpoint"])
def test_copies_let_feeds_go(copies: str) -> None:
    world = World(4, Policy(copies, every=5))
    world.do(23)
    assert world.feeds_from >= 15
    live = [key for key in world.kept if key[0]]
    assert len({number for number, _ in live}) == 1, "older copies were let go"


@pytest.mark.parametrize("copies", ["buddy", "coded", "checkpoint"])
def test_feeds_that_take_too_much_memory_have_a_copy_made_before_its_turn(copies: str) -> None:
    world = World(4, Policy(copies, every=1000))
    world.do(7)
    assert world.feeds_from == 0
    world.feed(ev.ReplayLimitExceeded())
    world.do(1)
    assert world.feeds_from >= 7
    world.kill(world.owner)
    world.do(3)
    assert list(world.told) == list(range(11)) and not world.ended


@pytest.mark.parametrize("copies", ["buddy", "coded"])
@pytest.mark.parametrize("roomless", [False, True])
def test_copies_that_workers_have_no_room_for_come_to_this_process(copies: str, roomless: bool) -> None:
    world = World(4, Policy(copies, every=5), roomless=roomless)
    world.do(23)
    assert (CLIENT in {node for _, node in world.kept}) == roomless
    world.kill(next(node for _, node in world.kept if node != CLIENT))
    world.do(3)
    assert len(world.told) == 26 and world.ended == []


def test_a_death_of_an_owner_goes_back_to_the_copy_of_its_buddy() -> None:
    world = World(5, Policy("buddy", every=4), together=True)
    world.do(10)
    owner = world.owner
    world.kill(owner)
    world.do(3)
    assert list(world.told) == list(range(13)) and not world.ended


def test_a_death_of_nobody_who_has_any_of_it_loses_nothing_and_repeats_nothing() -> None:
    world = World(6, Policy("none"), together=True)
    world.do(10)
    owner = world.owner
    runs = world.runs
    world.kill(min(world.alive - {owner}))
    world.settle()
    assert world.runs == runs and not world.ended


def test_replicas_are_copies() -> None:
    world = World(8, Policy("none"), replicas=True)
    world.do(6)
    plan = next(plan for plan in world.plans.values() if plan.values)
    world.feed(ev.ReplayLimitExceeded())
    survivors = world.alive - {min(plan.nodes)}
    if plan.nodes & survivors:
        world.kill(min(plan.nodes))
        world.ask()
        world.settle()
        assert len(world.told) == 7


def test_without_copies_the_first_state_and_all_feeds_are_one_until_they_are_forgotten() -> None:
    world = World(9, Policy("none"), together=True)
    world.do(5)
    owner = world.owner
    world.kill(owner)
    world.settle()
    assert not world.ended
    world.feed(ev.ReplayLimitExceeded())
    assert world.feeds_from == 5
    owner = world.owner
    number = world.ask()
    world.kill(owner)
    world.settle()
    (error,) = world.ended
    assert isinstance(error, NodeLost) and "buddy" in error.next_step
    assert "no copy of it: none was asked for" in str(error)
    assert isinstance(world.rejected[number], NodeLost)


def test_a_lost_host_is_a_lost_copy_and_not_a_lost_session() -> None:
    world = World(10, Policy("buddy", every=3))
    world.do(8)
    for name in world.names:
        world.lose_values(name)
    world.do(4)
    assert len(world.told) == 12 and not world.ended


def test_a_step_that_fails_for_good_fails_alone_and_the_state_stays() -> None:
    world = World(11, EVERY, together=True)
    world.do(3)
    failing, later = world.ask(), world.ask()
    generation, plan = next((each, plan) for each, plan in world.plans.items() if plan.values)
    world.waiting.clear()
    (node,) = plan.nodes
    world.feed(ev.RunFailed(generation, failing - plan.start, node, ExecuteFailed("no")))
    assert isinstance(world.rejected[failing], ExecuteFailed) and isinstance(world.rejected[later], Cancelled)
    world.feed(ev.StateRequested(1))
    assert world.ask() == failing, "the number is free again"
    world.settle()
    assert world.states[1] == 3 and len(world.told) == 4


@pytest.mark.parametrize("error", [PlacementError("too large"), OutOfMemory("too large")])
def test_what_fits_nowhere_ends_the_session(error: MeshError) -> None:
    world = World(12)
    number = world.ask()
    (planned,) = world.waiting
    assert isinstance(planned, ev.PlanMade)
    world.waiting.clear()
    world.feed(ev.PlanFailed(planned.generation, error))
    assert world.ended == [error] and world.rejected[number].code == error.code


def test_no_plan_for_workers_that_went_while_it_was_made_is_not_the_end() -> None:
    world = World(11, Policy())
    (made,) = world.waiting
    assert isinstance(made, ev.PlanMade)
    for name in world.names:
        world.cut_off(name)
    world.waiting = [ev.PlanFailed(made.generation, PlacementError("no worker can compute add"))]
    world.deliver()
    assert not world.ended
    for name in world.names:
        world.come_back(name)
    world.do(2)
    assert len(world.told) == 2 and not world.ended


def test_what_nobody_who_is_left_can_go_on_with_names_the_dead_and_where_to_begin() -> None:
    """All workers seemed to be gone during a pause: the op that no worker computes is not the reason of the error."""
    world = World(12, Policy("none"), together=True)
    world.do(3)
    owner = world.owner
    world.kill(owner)
    (planned,) = world.waiting
    assert isinstance(planned, ev.PlanMade)
    world.waiting.clear()
    world.feed(ev.PlanFailed(planned.generation, PlacementError("no worker can compute add")))
    (error,) = world.ended
    assert isinstance(error, PlacementError)
    assert f"without {owner}: no worker can compute add" in str(error)
    assert f"Start {owner} again" in error.next_step and "after step 0" in error.next_step


def test_a_state_that_is_lost_names_all_who_had_it_and_the_copies_there_were() -> None:
    world = World(4, Policy("buddy", every=2))
    world.do(9)
    world.feed(ev.ReplayLimitExceeded())
    number = world.ask()
    for name in sorted(world.alive):
        world.kill(name)
    world.start("z")
    world.settle()
    (error,) = world.ended
    assert isinstance(error, NodeLost) and isinstance(world.rejected[number], NodeLost)
    assert "the session's state was lost with workers a, b, c" in str(error)
    assert "no copy of it: copies='buddy' went with them" in str(error)


def test_what_fails_again_and_again_is_given_up() -> None:
    world = World(13, Policy("none"), names=("a",))
    number = world.ask()
    for _ in range(ATTEMPTS_MAX):
        while not any(isinstance(each, ev.PlanMade) for each in world.waiting):
            assert world.step()
        (planned,) = world.waiting
        assert isinstance(planned, ev.PlanMade)
        world.waiting.clear()
        world.feed(ev.PlanFailed(planned.generation, NodeLost("a link broke")))
    assert len(world.ended) == 1 and number in world.rejected
    assert world.now > 5, "it waited longer and longer"


def test_a_session_without_workers_waits_for_one_and_then_fails() -> None:
    world = World(14, Policy("checkpoint", every=1))
    world.do(3)
    for name in world.names:
        world.kill(name)
    assert world.machine.next_deadline() == world.now + 5.0
    world.start("b")
    world.ask()
    world.settle()
    assert len(world.told) == 4
    world.kill("b")
    world.settle()
    assert isinstance(world.ended[0], NodeLost)


def test_a_better_plan_begins_with_the_value_of_the_old_one() -> None:
    world = World(15, Policy("none"))
    world.do(5)
    runs = world.runs
    world.feed(ev.BetterPlanFound())
    world.settle()
    assert world.runs == runs, "no step is done again"
    world.ask()
    world.settle()
    assert len(world.told) == 6


@pytest.mark.parametrize("seed", range(8))
def test_workers_that_cannot_connect_have_their_state_brought_here(seed: int) -> None:
    world = World(seed, Policy("buddy", every=2), together=True, cut=frozenset("abc"))
    world.do(9)
    owner = world.owner
    world.kill(owner)
    for _ in range(3):
        world.ask()
    world.feed(ev.BetterPlanFound())
    world.settle()
    world.feed(ev.BetterPlanFound())
    world.ask()
    world.feed(ev.StateRequested(1))
    world.settle()
    assert list(world.told) == list(range(13)) and not world.ended and world.states == {1: 13}
    assert world.feeds_from > 0, "feeds are let go"


def test_the_end_lets_everything_go() -> None:
    world = World(16, EVERY)
    world.do(3)
    late = world.ask()
    world.feed(ev.StateRequested(9))
    world.feed(ev.CloseRequested())
    assert world.ended == [None] and isinstance(world.rejected[late], Cancelled)
    assert isinstance(world.states[9], Cancelled)
    world.settle()
    assert not any(plan.values for plan in world.plans.values())
    assert not world.kept, "blobs stay on workers"


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("copies", ["buddy", "coded", "checkpoint"])
def test_random_lives(seed: int, copies: str) -> None:
    """Deaths one at a time, with time to make a copy between them: every step is told once and in order."""
    cut = frozenset(("", "ab", "abc")[seed % 3])
    world = World(seed, Policy(copies, every=1 + seed % 4, ahead=1 + seed % 3), together=seed % 2 == 0, cut=cut)
    chance = world.random
    asked, requests = 0, 0
    for _ in range(150):
        draw = chance.random()
        if draw < 0.3:
            assert world.ask() == asked
            asked += 1
        elif draw < 0.85:
            world.step()
        elif draw < 0.88:
            requests += 1
            world.feed(ev.StateRequested(requests))
        elif draw < 0.9:
            world.feed(ev.BetterPlanFound())
        elif draw < 0.92:
            world.lose_values(chance.choice(world.names))
        elif draw < 0.95:
            missing = [name for name in world.names if name not in world.alive]
            if missing:
                world.start(chance.choice(missing))
        elif len(world.alive) == len(world.names):
            world.settle()  # the copy of before is made up for
            for _ in range(4):
                world.ask()
                asked += 1
            world.settle()
            world.kill(chance.choice(sorted(world.alive)))
    world.settle()
    assert not world.ended, f"the session ended: {world.ended[0]}"
    assert list(world.told) == list(range(asked)) and not world.rejected
    assert len(world.states) == requests
    world.feed(ev.CloseRequested())
    world.settle()
    assert not world.kept


@pytest.mark.parametrize("seed", range(30))
def test_random_lives_without_mercy_end_in_an_answer(seed: int) -> None:
    """Any deaths at any time: what is told is right and in order, and nobody waits for ever."""
    world = World(
        seed,
        Policy(("buddy", "none", "checkpoint", "coded", "coded 1 of 3")[seed % 5], every=3),
        replicas=seed % 5 == 0,
    )
    chance = world.random
    asked: set[int] = set()
    for _ in range(200):
        draw = chance.random()
        if draw < 0.3 and not world.ended:
            asked.add(world.ask())
        elif draw < 0.8:
            world.step()
        elif draw < 0.85:
            world.lose_values(chance.choice(world.names))
        elif draw < 0.9 and len(world.alive) < 3:
            world.start(min(set(world.names) - world.alive))
        elif draw < 0.95 and world.alive:
            world.kill(chance.choice(sorted(world.alive)))
    world.settle()
    assert asked == world.told.keys() | world.rejected.keys()
    assert not world.ended or world.rejected.keys().isdisjoint(world.told)


KINDS = ("buddy", "coded", "coded 1 of 3", "checkpoint", "none")


@pytest.mark.parametrize("seed", range(50))
@pytest.mark.parametrize("copies", KINDS)
def test_links_that_all_end_for_a_while_lose_no_state(seed: int, copies: str) -> None:
    """This process was stopped for long, at any moment; all workers come back, in any order."""
    world = World(seed, Policy(copies, every=3, ahead=1 + seed % 3), together=seed % 2 == 0, replicas=seed % 5 == 0)
    chance = world.random
    for _ in range(4):
        for _ in range(chance.randrange(8)):
            world.ask()
        for _ in range(chance.randrange(40)):
            world.deliver()
        if chance.random() < 0.5:
            world.feed(ev.ReplayLimitExceeded())
        for name in chance.sample(world.names, 3):
            world.cut_off(name)
            for _ in range(chance.randrange(3)):
                world.deliver()
        for name in chance.sample(world.names, 3):
            world.come_back(name)
            for _ in range(chance.randrange(3)):
                world.deliver()
    world.settle()
    assert not world.ended, f"the session ended: {world.ended[0]}"
    assert list(world.told) == list(range(world.machine.next_number)) and not world.rejected
    world.feed(ev.CloseRequested())
    world.settle()
    assert not world.kept and not any(plan.values for plan in world.plans.values()), "something stays on workers"


def gone_for_a_while(copies: str = "none") -> World:
    """Eight steps are done, their first value is forgotten, and no worker is there."""
    world = World(21, Policy(copies, every=3))
    world.do(8)
    world.feed(ev.ReplayLimitExceeded())
    for name in world.names:
        world.cut_off(name)
    return world


def test_what_a_plan_came_to_is_gone_on_with_and_no_step_is_done_twice() -> None:
    world = gone_for_a_while()
    world.ask()
    assert world.machine.next_deadline() == world.now + DEFAULT_TIMEOUTS.session_return_s
    runs = world.runs
    for name in world.names:
        world.come_back(name)
    world.settle()
    (now,) = [plan for plan in world.plans.values() if plan.values]
    assert now.start == 8 and list(world.told) == list(range(9))
    assert world.runs == runs + len(now.nodes)


def test_workers_that_are_cut_off_are_waited_for_longer_than_the_dead_also_where_a_copy_is_whole() -> None:
    world = gone_for_a_while("checkpoint")
    world.ask()
    while world.deliver():
        pass
    assert world.machine.next_deadline() == world.now + DEFAULT_TIMEOUTS.session_return_s
    world.come_back("b")
    world.settle()
    assert list(world.told) == list(range(9)) and not world.ended


def test_a_session_waits_so_long_for_workers_and_then_says_what_is_lost() -> None:
    world = gone_for_a_while()
    number = world.ask()
    world.come_back("a", died=True)
    world.settle()
    (error,) = world.ended
    assert isinstance(error, NodeLost) and "lost with workers a, b, c, and there is no copy of it" in str(error)
    assert isinstance(world.rejected[number], NodeLost)


def test_a_session_whose_workers_all_began_anew_ends_at_once() -> None:
    world = gone_for_a_while()
    for name in world.names:
        world.come_back(name, died=True)
    assert world.ended and world.now == 0.0


def test_where_a_copy_is_whole_the_others_are_waited_for_a_moment_only() -> None:
    world = gone_for_a_while("buddy")
    world.ask()
    for name in ("a", "b"):
        world.come_back(name)
    began_s = world.now
    world.settle()
    assert not world.ended and len(world.told) == 9
    assert world.now - began_s <= DEFAULT_TIMEOUTS.session_settle_s


def test_workers_that_go_while_others_are_there_are_not_waited_for() -> None:
    """A death is gone on from at once, and what comes back with the state of then has to drop it."""
    world = World(22, Policy("buddy", every=2), together=True)
    world.do(9)
    owner = world.owner
    world.cut_off(owner)
    world.do(3)
    assert world.now == 0.0 and len(world.told) == 12
    world.come_back(owner)
    world.do(4)
    assert not any(owner in plan.values for plan in world.plans.values() if plan.start < 9)


def replicas(seed: int) -> World:
    """Every worker has every piece, and some steps are done."""
    world = World(seed, Policy("buddy", every=2, ahead=3), names=("a", "b", "c", "d"), replicas=True)
    world.do(9)
    return world


@pytest.mark.parametrize("seed", range(12))
def test_whoever_has_all_of_the_state_goes_on_with_it_and_needs_no_other_copy(seed: int) -> None:
    world = replicas(seed)
    (plan,) = [plan for plan in world.plans.values() if plan.values]
    runs, spare = world.runs, len(plan.nodes) > 1
    assert not (spare and world.kept), "each of them is a copy"
    world.kill(min(plan.nodes))
    world.do(4)
    assert list(world.told) == list(range(13)) and not world.ended
    contents, holders = world.begins[max(world.begins)]
    if spare and contents is not None:
        assert all(plan.nodes - {min(plan.nodes)} <= nodes for nodes in holders.values()), "none has to fetch it"
        (now,) = [plan for plan in world.plans.values() if plan.values]
        assert world.runs - runs == 4 * len(now.nodes), "nothing is done again"


def test_who_waits_for_the_dead_is_told_before_he_is_asked_for_anything() -> None:
    world = World(7, Policy("buddy", ahead=2), replicas=True)
    world.ask()
    world.settle()
    world.ask()
    (plan,) = [number for number, plan in world.plans.items() if plan.values]
    victim, *others = sorted(world.plans[plan].nodes)
    assert others, "this seed has several workers"
    actions = world.machine.handle(ev.NodesChanged(frozenset(world.alive) - {victim}, NodeLost("it died")), 0.0)
    kinds = [type(action) for action in actions]
    assert [action.node for action in actions if isinstance(action, ev.SendCancel)] == others
    assert kinds.index(ev.SendCancel) < kinds.index(ev.TakeSnapshot)
    assert {action.node for action in actions if isinstance(action, ev.TakeSnapshot)} == set(others)


def test_the_step_under_way_and_the_next_one_are_done_before_a_better_plan_takes_over() -> None:
    world = World(8, Policy("buddy", ahead=3), together=True)
    for _ in range(8):
        world.ask()
    while not world.told:
        world.step()
    before, done = max(world.begins), len(world.told)
    actions = world.machine.handle(ev.BetterPlanFound(), world.now)
    assert {type(action) for action in actions} == {ev.SendCancel}, "the third one need not begin"
    world.perform(actions)
    world.settle()
    assert list(world.told) == list(range(8)) and max(world.begins) > before
    contents, _ = world.begins[max(world.begins)]
    assert world._value_of(contents) == done + 2


def test_a_step_that_all_who_are_left_have_done_counts() -> None:
    world = World(7, Policy("buddy", ahead=1), replicas=True)
    world.ask()
    world.settle()
    world.ask()
    (generation,) = [number for number, plan in world.plans.items() if plan.values]
    victim = max(world.plans[generation].nodes)
    assert len(world.plans[generation].nodes) > 1, "this seed has several workers"
    silent = [each for each in world.waiting if isinstance(each, ev.NodeRan) and each.node == victim]
    world.waiting = [each for each in world.waiting if each not in silent]
    while world.waiting:
        world.step()
    assert len(world.told) == 1, "it did not answer"
    world.kill(victim)
    assert len(world.told) == 2, "and need not, since the others have what it made"
    world.ask()
    world.settle()
    assert list(world.told) == [0, 1, 2]


def test_a_read_is_answered_though_who_brought_the_value_died_beside_the_plan() -> None:
    struck = 0
    for seed in range(300):
        world = World(seed, Policy("buddy", every=2, ahead=2), together=True)
        world.do(4)
        world.feed(ev.StateRequested(1))
        bringing = [pending for pending in world.machine._pending.values() if pending.purpose == 1]
        beside = {node for pending in bringing for node in pending.sources.values()} - {world.owner, CLIENT}
        if not beside:
            continue
        struck += 1
        world.kill(min(beside))
        number = world.ask()
        world.settle()
        assert world.states[1] == 4 and world.told[number] == 4
    assert struck >= 10


@pytest.mark.parametrize("every", [2, 100])
def test_a_read_of_what_only_a_plan_has_that_did_no_step_yet_ends_nothing(every: int) -> None:
    struck = 0
    for seed in range(100):
        world = World(seed, Policy("buddy", every=every), together=True)
        world.do(3)
        world.feed(ev.BetterPlanFound())
        while (plan := world.machine._plan) is None or not (plan.running and plan.start == 3):
            if not world.step():
                break
        if plan is None or not plan.running or plan.start != 3:
            continue
        holders = {
            node
            for copy in world.machine._copies
            if copy.value == 3
            for nodes in copy.holders.values()
            for node in nodes
        }
        if not holders or holders & {*plan.nodes, CLIENT}:
            continue
        struck += 1
        for node in sorted(holders):
            world.kill(node)
        kept = bool(world.machine._copies)
        world.feed(ev.StateRequested(1))
        world.settle()
        if kept:
            assert world.states[1] == 3, "it was made again"
        else:
            assert isinstance(world.states[1], NodeLost)
            world.do(1)
            world.feed(ev.StateRequested(2))
            world.settle()
            assert world.told[3] == 3 and world.states[2] == 4
        assert not world.ended
    assert struck >= 5


DURABLE = [
    Policy("buddy", every=3, durable=True),
    Policy("coded", every=3, durable=True),
    Policy("checkpoint", every=4, durable=True),
    Policy("none", ahead=3, durable=True),
]


@pytest.mark.parametrize("policy", DURABLE, ids=lambda policy: policy.copies)
@pytest.mark.parametrize("form", ["spread", "together", "replicas"])
@pytest.mark.parametrize("seeds", ranges(14, 40), ids=str)
def test_what_a_client_has_no_answer_of_is_done_again_after_a_restart_and_nothing_else_is_told(
    seeds: range, policy: Policy, form: str
) -> None:
    """In every second life, a worker dies with the coordinator where others have copies, once these are whole again."""
    for seed in seeds:
        dies = seed % 2 == 1 and policy.copies in ("buddy", "coded")
        world = World(seed, policy, together=form == "together", replicas=form == "replicas")
        chance, heard, asked = world.random, 0, 0
        for _ in range(8):
            for _ in range(chance.randint(0, 6)):
                world.ask()
                asked += 1
            for _ in range(chance.randint(0, 40)):
                world.deliver()
                if chance.random() < 0.2:
                    heard = chance.randint(heard, len(world.told))
                    world.hear(heard)
            if policy.copies == "none" and chance.random() < 0.3:
                world.feed(ev.ReplayLimitExceeded())
            if chance.random() < 0.3:
                world.feed(ev.BetterPlanFound())
                world.settle()
            heard = chance.randint(heard, len(world.told))
            world.restart(heard, chance.choice(world.names) if dies else "")
            assert not world.ended, world.ended
            if not dies and chance.random() < 0.7:
                continue
            for _ in range(2 * policy.every):
                world.ask()
                asked += 1
            while heard < asked:
                world.settle()
                assert len(world.told) > heard, "it does not get on"
                heard = len(world.told)
                world.hear(heard)
            world.settle()
        while heard < asked:
            world.settle()
            assert len(world.told) > heard, "it does not get on"
            heard = len(world.told)
            world.hear(heard)
        assert list(world.told) == list(range(asked)) and not world.ended and not world.rejected


def test_a_copy_that_checks_make_whole_is_written_down_after_the_death_of_an_owner() -> None:
    struck = 0
    for seed in range(20):
        world = World(seed, Policy("coded", every=2, durable=True), names=("a", "b", "c", "d"))
        for heard in (2, 4, 6):
            world.do(2)
            world.hear(heard)
            world.settle()
        newest = max(world.checked)
        owners = [node for (number, node), held in world.kept.items() if number == newest and set(PIECES) & set(held)]
        struck += len(owners) > 1
        world.kill(owners[0])  # and before a new plan begins:
        world.restart(6)
        world.do(2)
        assert len(world.told) == 8 and not world.ended
    assert struck >= 10


@pytest.mark.parametrize("copies", ["buddy", "coded"])
def test_copies_are_made_in_their_turn_however_often_the_coordinator_is_killed(copies: str) -> None:
    world = World(4, Policy(copies, every=5, durable=True))
    for life in range(1, 7):
        world.do(3)
        world.hear(3 * life)
        world.settle()
        world.restart(3 * life)
        world.settle()
    assert world.feeds_from >= 10, "nothing newer than the first state is whole twice"


def test_after_a_death_a_client_that_lacks_answers_has_its_session_also_where_the_coordinator_dies_next() -> None:
    for seed in range(10):
        world = World(seed, Policy("checkpoint", every=2, ahead=4, durable=True), together=True)
        for steps, heard in ((2, 2), (1, 3)):
            world.do(steps)
            world.hear(heard)
            world.settle()
        world.do(4)  # whose answers it lacks
        world.kill(world.owner)
        world.settle()
        world.restart(3)
        world.settle()
        assert len(world.told) == 7 and not world.ended
