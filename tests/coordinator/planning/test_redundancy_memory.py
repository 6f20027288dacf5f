"""Copies are counted: no worker's own parts and what it keeps for others exceed its memory, whatever there is of it."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from support.machines.profiles import device, near, worker

from coordinator.planning import auto_strategy
from coordinator.planning.model.memory_check import memory_by_worker
from coordinator.planning.model.plan import Plan
from coordinator.planning.model.profiles import Profiles
from coordinator.planning.planner import Question
from coordinator.planning.redundancy.parity_groups import grouped, kept_bytes, unkept
from coordinator.planning.redundancy.redundancy_memory import contents_of, room_of
from coordinator.planning.spmd.split_strategies import split
from mesh.util.units import parse_size
from wire.errors import PlacementError
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder, WireGraph
from wire.policy.redundancy import copies_of
from wire.units import room_text

SIZE = r"[\d.]+ [KMG]?i?B"
TENTH = 0.1  # of itself is the most that a size in a message is off
LAYERS, WIDTH = 6, 32
LAYER_BYTES = 4 * WIDTH * WIDTH
WORKING_BYTES = 4096


def layered(widths: list[int]) -> WireGraph:
    builder = GraphBuilder()
    x = builder.input("x", (2, widths[0]), F32)
    for number, (rows, columns) in enumerate(pairwise(widths)):
        w = builder.param(f"w{number}", (rows, columns), F32)
        x = builder.add("dot", x, w, lhs_batch=(), rhs_batch=(), lhs_contract=(1,), rhs_contract=(0,))
    return builder.build([x])


EVEN = layered([WIDTH] * (LAYERS + 1))


def machines(*rooms: int) -> Profiles:
    return near(*(worker(number, device(0, 10, 10), memory_bytes=room) for number, room in enumerate(rooms)))


def check(plan: Plan, profiles: Profiles, text: str) -> None:
    """Within every budget, counted anew; and all that is to be kept is, unless the plan says that it is not."""
    own, copies = memory_by_worker(plan), copies_of(text)
    nodes, held = [each.node_id for each in profiles.workers], contents_of(plan)
    groups = grouped(held, nodes, copies, room_of(plan, profiles))
    kept = kept_bytes(groups)
    for share, each in zip(plan.workers, profiles.workers, strict=True):
        assert share.memory_bytes == own.get(each.node_id, 0) and share.budget_bytes == each.memory_bytes
        assert share.kept_bytes == kept.get(each.node_id, 0)
        assert share.memory_bytes + share.kept_bytes <= each.memory_bytes
    lacking = unkept(held, nodes, copies, groups) if len(nodes) > copies.extra else []
    assert bool(lacking) == (plan.unkept is not None)


def read(size: str) -> int:
    return parse_size(size) if size != "0 B" else 0


def needed(plan: Plan, profiles: Profiles) -> Profiles:
    """Workers that have what the refusal says they would need."""
    assert plan.unkept is not None
    rows = plan.unkept[0].partition(": ")[2].split("; ")
    assert len(rows) == len(profiles.workers)
    found, total = [], 0
    for row, each in zip(rows, profiles.workers, strict=True):
        match = re.fullmatch(rf"(\S+) needs ({SIZE}) and ({SIZE}) for copies, and has ({SIZE})", row)
        assert match is not None, row
        name, own, kept, has = match.groups()
        assert (name, has) == (each.name, room_text(each.memory_bytes))
        found.append(replace(each, memory_bytes=max(read(own) + read(kept), each.memory_bytes)))
        total += found[-1].memory_bytes - each.memory_bytes
    said = re.match(rf"Raise --max-memory by ({SIZE}) in all", plan.unkept[1])
    assert said is not None
    assert 0 < read(said[1]) <= total * (1 + TENTH), "what is needed is rounded up, and this likewise"
    return replace(profiles, workers=tuple(found))


@pytest.mark.parametrize(
    "text", ["buddy", "coded", "coded 2 of 3", pytest.param("coded 2 of 4", marks=pytest.mark.long)]
)
def test_no_worker_exceeds_its_memory_whatever_there_is_of_it(text: str) -> None:
    rng = np.random.default_rng(sum(map(ord, text)))
    told = kept = 0
    for _ in range(60):
        widths = [int(each) for each in rng.integers(4, 48, rng.integers(3, 9))]
        graph, count = layered(widths), int(rng.integers(1, 7))
        whole = sum(4 * a * b for a, b in pairwise(widths))
        rooms = [int(whole * 10.0 ** rng.uniform(-0.8, 0.4)) for _ in range(count)]
        profiles = machines(*rooms)
        strategy = str(rng.choice(["auto", "pipeline", "single"]))
        try:
            plan = Question(graph, strategy, profiles, text).answer()
        except PlacementError:
            with pytest.raises(PlacementError):
                Question(graph, strategy, profiles).answer()
            continue
        check(plan, profiles, text)
        told, kept = told + (plan.unkept is not None), kept + any(each.kept_bytes for each in plan.workers)
        if plan.unkept is not None:
            roomier = needed(plan, profiles)
            after = Question(graph, strategy, roomier, text).answer()
            check(after, roomier, text)
            assert after.unkept is None, "the change that was said to do does not"
    assert told >= 5 and kept >= 5, (told, kept)


def test_a_program_is_split_once_however_many_budgets_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []
    monkeypatch.setattr(auto_strategy, "split", lambda *given: asked.append((given[1].text, given[2])) or split(*given))
    graph = layered([256] * 7)
    layer = 4 * 256 * 256
    slow = near(*(worker(n, device(0, 1e-3, 1e-3), memory_bytes=2 * layer + (1 << 14)) for n in range(4)))
    plan = Question(graph, "auto", slow, "buddy").answer()
    assert plan.unkept is not None and len(asked) == len(set(asked)) > 1
