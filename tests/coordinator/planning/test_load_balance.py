"""Proportions: units of a batch by the speed of workers, and whether other shares than even ones are worth it."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

import numpy as np
import pytest
from support.machines.profiles import device, near, worker

import mesh.numpy as mnp
from coordinator.planning.model.plan import Plan
from coordinator.planning.model.profiles import Profiles
from coordinator.planning.model.program import Program
from coordinator.planning.session_planner import Stateful, session_plan
from coordinator.planning.spmd.load_balance import proposals, uneven_speeds
from coordinator.sessions.elastic import Elastic, Planned
from mesh import optim, trace
from mesh.functions.step_trace import Stepping
from mesh.training.data import Cursor, Rows, Shares, padded
from mesh.training.step import first_state, training_step
from mesh.training.step_config import Recipe
from mesh.training.trainer import initial_state
from wire.ir.graph import WireGraph
from wire.policy.batch_shares import UNITS, Portions, by_speed, handed_out, ranks_of

ROWS, WIDTH = 64, 32
PARAMS = [np.eye(WIDTH, dtype=np.float32)] * 3


def loss(params: Any, x: Any) -> Any:
    for weights in params:
        x = mnp.tanh(x @ weights)
    return mnp.sum(x, axis=1)


@cache
def stepping(portions: Portions) -> Stepping:
    """A step of 64 rows by these portions."""
    recipe, ranks = Recipe(loss, optim.sgd(0.1)), ranks_of(portions)
    shares = Shares.of(recipe, portions, ROWS)
    given = None, *padded(Rows((np.ones((ROWS, WIDTH), np.float32),), ROWS, Cursor()), shares)
    step = training_step(recipe, ranks, False, False, None if shares.even else shares)
    state = first_state(recipe, initial_state(recipe, PARAMS)["params"], ranks)
    return Stepping(step, state, given, "ranks" if ranks > 1 else "single")


def machines(*gflops: float) -> Profiles:
    return near(*(worker(number, device(0, each / 100, 100.0)) for number, each in enumerate(gflops)))


def rank_graph(ranks: int) -> WireGraph:
    plan = planned(ranks, machines(*[1.0] * ranks))
    return plan.parts[plan.gangs[0].parts[0]].graph


def planned(portions: Portions, profiles: Profiles) -> Plan:
    made = stepping(portions)
    return session_plan(made.graph, profiles, made.work.strategy, Stateful(made.carries, made.returned_count))


def counts(*gflops: float, everybody: bool = False) -> list[dict[str, int]]:
    """What is proposed, by node."""
    found = proposals(stepping(1).graph, rank_graph(len(gflops)), len(gflops), machines(*gflops), ROWS, everybody)
    return [dict(each.units) for each in found]


class Session:
    """An elastic program, and what was asked of whoever makes programs and plans."""

    def __init__(self, pieces: int = ROWS, everybody: bool = False, most: int = 4) -> None:
        self.made = list[Portions]()
        self.elastic = Elastic(most, self._make, asyncio.to_thread, pieces, everybody)

    async def _make(self, portions: Portions) -> Program:
        self.made.append(portions)
        return Program(stepping(portions).graph, {}, stepping(portions).work.strategy)

    async def _plan(self, program: Program, profiles: Profiles) -> Plan:
        made = next(each for each in map(stepping, self.made) if each.graph == program.graph)
        return session_plan(program.graph, profiles, program.strategy, Stateful(made.carries, made.returned_count))

    def planned(self, *gflops: float) -> Planned:
        return asyncio.run(self.elastic.planned(machines(*gflops), self._plan))


def test_units_go_one_by_one_to_whoever_would_be_done_first() -> None:
    assert handed_out([0, 0], [1, 3], 16) == (12, 4)
    assert handed_out([0, 0, 0], [1, 1, 1], 16) == (6, 5, 5)
    assert handed_out([0, 7.5], [1, 1], 8) == (8, 0), "who begins late has nothing"
    assert handed_out([0, 100], [1, 1], 8, 1) == (7, 1), "unless everybody has one first"


def test_ranks_that_are_alike_have_even_portions() -> None:
    assert by_speed([1.0, 3.0], 512) == (12, 4) == by_speed([3.0, 1.0], 512)
    assert by_speed([1.0, 1.2], 512) == 2 and by_speed([1.0, 3.0], 1) == 2
    assert by_speed([1.0, 1.0, 1000.0], 8) == (4, 3, 1), "some for each"


def test_a_worker_that_is_three_times_as_fast_has_three_times_as_much() -> None:
    assert counts(3, 1) == [{"node-0": 12, "node-1": 4}]
    assert counts(1, 3) == [{"node-1": 12, "node-0": 4}], "most first"
    (found,) = counts(4, 2, 2)
    assert found["node-0"] == 12 and found["node-1"] == found["node-2"] == 6
    assert sum(found.values()) == 3 * UNITS


def test_who_would_have_next_to_nothing_is_left_out_too_unless_everybody_was_asked_for() -> None:
    first, without = counts(6, 6, 1)
    assert 0 < first["node-2"] <= 2 and "node-2" not in without and len(set(without.values())) == 1
    assert counts(6, 6, 1, everybody=True) == [first]
    assert "node-1" not in counts(1000, 1)[0] and counts(1000, 1, everybody=True)[0]["node-1"] == 1


def test_machines_that_are_nearly_alike_are_not_even_thought_of() -> None:
    assert uneven_speeds(rank_graph(2), machines(1.3, 1.0)) and not uneven_speeds(rank_graph(2), machines(1.2, 1.0))
    session = Session()
    assert session.planned(1.2, 1.0).portions == 2 and session.made == [2], "not even the program of one worker"


def test_the_plan_that_is_done_first_is_taken_and_says_who_has_what() -> None:
    session = Session()
    found = session.planned(1.0, 3.0)
    assert found.portions == (12, 4)
    assert any("shares of the batch by speed: worker-1 48, worker-0 16 of 64" in each for each in found.plan.reasons)
    assert session.planned(1.0, 3.0) is found, "it is remembered"
    assert session.planned(1.0, 1.0).portions == 2 and session.planned(2.0, 6.0) is found, "how fast all are is nothing"


def test_one_that_is_much_too_slow_has_nothing_to_do() -> None:
    found = Session().planned(1.0, 1000.0)
    assert found.portions == 1 and {part.node for part in found.plan.parts} == {"node-1"}
    found = Session(everybody=True).planned(1.0, 1000.0)
    assert found.portions == (15, 1)


@pytest.mark.parametrize("gflops", [(3.0, 1.0), (8.0, 1.0, 1.0)])
def test_without_pieces_shares_are_even(gflops: tuple[float, ...]) -> None:
    session = Session(pieces=0)
    assert session.planned(*gflops).portions == len(gflops) and session.made == [len(gflops)]


def test_no_more_take_part_than_may() -> None:
    found = Session(most=2).planned(3.0, 1.0, 6.0)
    assert ranks_of(found.portions) == 2 and {part.node for part in found.plan.parts} == {"node-0", "node-2"}
    assert isinstance(found.portions, tuple) and found.portions[0] > found.portions[1]


def test_what_is_only_a_little_better_is_not_worth_it() -> None:
    assert Session(pieces=2).planned(1.3, 1.0).portions == 2, "units are so coarse that even ones are best"


def test_programs_of_no_ranks_have_no_shares() -> None:
    graph = trace(lambda x: mnp.sin(x), np.ones(8, np.float32))
    assert not graph.has_spmd and proposals(graph, graph, 2, near(), ROWS) == ()
