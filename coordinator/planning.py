"""Planning: plans of the workers that are there, made in a thread and remembered.

It does not know what a plan is wanted for.  A plan follows from its Question and from nothing else, so that is what it
is remembered by: whatever changes about the machines makes another question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from wire.graph import WireGraph

from .plan import Plan
from .planner import Question
from .prober import Prober
from .profile import Profiles
from .records import Member
from .stragglers import Stragglers

PLANS_REMEMBERED = 256
NODES_REMEMBERED = 500_000  # of the graphs of all plans together: some hundred bytes each


class Planning:
    """Plans for some of `members`, by what is known of them, their pace and their links."""

    def __init__(self, members: Mapping[str, Member], stragglers: Stragglers, prober: Prober) -> None:
        self._members = members
        self._stragglers = stragglers
        self._prober = prober
        self._plans: dict[Question, Plan] = {}  # the oldest first

    def found(self, graph: WireGraph, strategy: str, nodes: Iterable[str]) -> Plan | None:
        """The plan for these workers, if it is remembered."""
        return self._plans.get(self._question(graph, strategy, nodes))

    async def plan(self, graph: WireGraph, strategy: str, nodes: Iterable[str]) -> Plan:
        """The plan for these workers; PlacementError if there is none."""
        question = self._question(graph, strategy, nodes)
        found = self._plans.get(question)
        return found or self._remember(question, await asyncio.to_thread(question.answer))

    def profiles(self, nodes: Iterable[str]) -> Profiles:
        """What is known of these workers, as far as they are there; by name: ids change with every start."""
        there = [self._members[node] for node in nodes if node in self._members]
        members = sorted(there, key=lambda member: member.profile.name)
        workers = tuple(self._stragglers.as_it_runs(member.profile) for member in members)
        near = frozenset(member.profile.node_id for member in members if member.link.same_host)
        return Profiles(workers, near, self._prober.known(worker.node_id for worker in workers))

    def _question(self, graph: WireGraph, strategy: str, nodes: Iterable[str]) -> Question:
        return Question(graph, strategy, self.profiles(nodes))

    def _remember(self, question: Question, plan: Plan) -> Plan:
        self._plans[question] = plan
        while len(self._plans) > PLANS_REMEMBERED or (len(self._plans) > 1 and self._size() > NODES_REMEMBERED):
            del self._plans[next(iter(self._plans))]
        return plan

    def _size(self) -> int:
        return sum(len(plan.graph) for plan in self._plans.values())
