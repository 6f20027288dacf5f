"""Copies of a session's state are counted: two of each, own and kept, within every worker's memory."""

from __future__ import annotations

import numpy as np
import pytest
from support.machines.profiles import device, near, worker

from coordinator.planning import auto_strategy
from coordinator.planning.model.memory_check import memory_by_worker
from coordinator.planning.model.plan import Plan
from coordinator.planning.model.profiles import Profiles
from coordinator.planning.redundancy.redundancy_memory import contents_of
from coordinator.planning.session_planner import SessionQuestion, Stateful
from coordinator.planning.spmd.split_strategies import split
from wire.errors import PlacementError
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder, WireGraph
from wire.policy.strategies import DataParallel

WIDTH, LAYERS = 32, 4
LAYER_BYTES = 4 * WIDTH * WIDTH


def training(layers: int, width: int = WIDTH) -> tuple[WireGraph, Stateful]:
    """Every weight of a chain is its state, and grows with every step."""
    builder = GraphBuilder()
    x = builder.input("x", (2, width), F32)
    grown = []
    for number in range(layers):
        w = builder.param(f"w{number}", (width, width), F32)
        x = builder.add("dot", x, w, lhs_batch=(), rhs_batch=(), lhs_contract=(1,), rhs_contract=(0,))
        grown.append(builder.add("add", w, w))
    graph = builder.build([x, *grown])
    return graph, Stateful(tuple((f"w{number}", number + 1) for number in range(layers)), 1)


def machines(*rooms: int) -> Profiles:
    return near(*(worker(number, device(0, 10, 10), memory_bytes=room) for number, room in enumerate(rooms)))


def kept(plan: Plan) -> list[int]:
    return [each.kept_bytes for each in plan.workers]


@pytest.mark.parametrize(
    ("copies", "each"),
    [("buddy", 8), ("coded", 6), ("checkpoint", 4), ("none", 0)],  # two copies of what it has, and of what it keeps
)
def test_what_a_policy_takes_is_counted(copies: str, each: int) -> None:
    graph, state = training(6)
    plan = SessionQuestion(graph, "pipeline", machines(*[1 << 30] * 3), state, copies).answer()
    assert kept(plan) == [each * LAYER_BYTES] * 3 and plan.unkept is None
    assert [share.memory_bytes for share in plan.workers] == [
        memory_by_worker(plan)[share.node] for share in plan.workers
    ]
    assert all(share.memory_bytes >= 4 * LAYER_BYTES for share in plan.workers), "two values of the state"


@pytest.mark.parametrize("copies", ["buddy", "coded", "coded 1 of 3", "checkpoint"])
def test_no_worker_exceeds_its_memory_whatever_there_is_of_it(copies: str) -> None:
    rng = np.random.default_rng(len(copies))
    told = fit = 0
    for _ in range(25):
        graph, state = training(int(rng.integers(2, 6)))
        whole = len(state.carries) * LAYER_BYTES
        profiles = machines(*(int(whole * 10.0 ** rng.uniform(0, 1)) for _ in range(rng.integers(1, 5))))
        try:
            plan = SessionQuestion(graph, "pipeline", profiles, state, copies).answer()
        except PlacementError:
            with pytest.raises(PlacementError):
                SessionQuestion(graph, "pipeline", profiles, state).answer()
            continue
        told, fit = told + (plan.unkept is not None), fit + (plan.unkept is None)
        own = memory_by_worker(plan)
        for share, each in zip(plan.workers, profiles.workers, strict=True):
            assert own.get(share.node, 0) == share.memory_bytes <= share.budget_bytes == each.memory_bytes
            assert plan.unkept is not None or share.memory_bytes + share.kept_bytes <= each.memory_bytes
        if plan.unkept is not None:
            assert "copies go to this process instead" in plan.reasons[-1] and "Raise --max-memory by" in plan.unkept[1]
    assert told >= 3 and fit >= 3, (told, fit)


def test_what_ranks_make_alike_needs_no_copies_by_buddies() -> None:
    builder = GraphBuilder()
    x, w = builder.input("x", (64, 8), F32), builder.param("w", (8, 8), F32)
    y = builder.add("dot", x, w, lhs_batch=(), rhs_batch=(), lhs_contract=(1,), rhs_contract=(0,))
    graph = builder.build([y, builder.add("add", w, w)])
    profiles, state = machines(1 << 30, 1 << 30), Stateful((("w", 1),), 1)
    plan = SessionQuestion(graph, DataParallel(2).text, profiles, state, "buddy").answer()
    assert all(len(each.owners) == 2 for each in contents_of(plan, state=True)) and kept(plan) == [0, 0]
    assert sum(kept(SessionQuestion(graph, DataParallel(2).text, profiles, state, "checkpoint").answer())) == 2 * 4 * 64


def test_a_step_is_split_once_however_many_budgets_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []
    monkeypatch.setattr(auto_strategy, "split", lambda *given: asked.append((given[1].text, given[2])) or split(*given))
    graph, state = training(6, 256)
    room = 12 * 4 * 256 * 256 + (1 << 14)
    slow = near(*(worker(n, device(0, 1e-3, 1e-3), memory_bytes=room) for n in range(3)))
    plan = SessionQuestion(graph, "auto", slow, state, "buddy").answer()
    assert plan.unkept is not None and len(asked) == len(set(asked)) > 1
