"""Contingency: plans for deaths that have not happened.  Pure.

For every program in use: how it would go on without each one of the workers, those first that it runs on, and what its
next call needs if that is not known.  Each of these is a Question; what comes of it is kept as bytes, which bounds the
memory and is what a plan costs.  A plan follows from its question and from nothing else, so it is right whenever the
question is asked: a worker that joins or dies, a link or device measured anew, make other questions, and what was made
for the old ones is never found again.  `expect` then forgets it.

It does not know who answers questions (`coordinator/plan_service/plan_service.py`), nor how a plan is rehearsed
(`coordinator/plan_service/warm_up.py`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from wire.bounds import PLANS_AHEAD
from wire.ir.graph import WireGraph

from .model.profiles import Profiles
from .model.program import Program
from .planner import CANDIDATES_MAX, Question

PROGRAMS_MAX = 8  # those used last
DEATHS_MAX = 16  # of one program that are planned for
BYTES_MAX = PLANS_AHEAD.most  # one plan for 10 000 nodes has some 300 kB


@dataclass(frozen=True, slots=True)
class ProgramInUse:
    """A program that is called, and the workers that its present plan runs on."""

    program: Program
    nodes: frozenset[str] = frozenset()


@dataclass(slots=True)
class ContingencyPlans:
    """`use` for every plan that is used, `expect` whenever anything changed; then answer what is `next`.

    Planning for fewer than `nodes_min` graph nodes times workers is so quick that it is left for when it is needed;
    None: nothing is planned ahead.
    """

    nodes_min: int | None
    bytes_max: int = BYTES_MAX
    _uses: OrderedDict[Program, ProgramInUse] = field(default_factory=OrderedDict)  # the last used at the end
    _expected: dict[tuple[Program, Question], bool] = field(default_factory=dict)  # whether it was rehearsed
    _answers: dict[Question, bytes] = field(default_factory=dict)
    _passed: set[Question] = field(default_factory=set)  # that have no plan, or one that is too large to keep

    def use(self, use: ProgramInUse) -> None:
        """Note that calls of a program go by a plan."""
        self._uses[use.program] = use
        self._uses.move_to_end(use.program)
        if len(self._uses) > PROGRAMS_MAX:
            self._uses.popitem(last=False)

    def programs(self, graph: WireGraph) -> list[Program]:
        """The programs last used that have this graph."""
        return [program for program in self._uses if program.graph == graph]

    def expect(self, profiles: Profiles) -> None:
        """Take these as the workers there are now, and forget what can no longer be asked."""
        uses = [use for use in reversed(self._uses.values()) if self._is_slow(use, profiles)]
        expected = ((use.program, question) for use in uses for question in _questions(use, profiles))
        self._expected = {pair: self._expected.get(pair, False) for pair in expected}
        there = {question for _, question in self._expected}
        self._answers = {question: data for question, data in self._answers.items() if question in there}
        self._passed &= there

    def next(self, known: Iterable[Question] = ()) -> Question | None:
        """The question to answer next, or None: all are answered, or there is no room.

        `known` are answered elsewhere.
        """
        if self.used_bytes >= self.bytes_max:
            return None
        done = {*known, *self._answers, *self._passed}
        return next((question for _, question in self._expected if question not in done), None)

    def answered(self, question: Question, data: bytes | None) -> bool:
        """The plan as bytes, or None if there is none; whether it was kept."""
        if not self.expects(question):
            return False
        if data is None or self.used_bytes + len(data) > self.bytes_max:
            self._passed.add(question)
            return False
        self._answers[question] = data
        return True

    def find(self, question: Question) -> bytes | None:
        return self._answers.get(question)

    def expects(self, question: Question) -> bool:
        return any(question == expected for _, expected in self._expected)

    # -- rehearsals

    def unrehearsed(self) -> tuple[Program, Question] | None:
        """A plan that was not rehearsed yet, as its program and its question."""
        waiting = (pair for pair, done in self._expected.items() if not done and pair[1] in self._answers)
        return next(waiting, None)

    def rehearsed(self, program: Program, question: Question) -> None:
        """Note that a plan was rehearsed, or that it cannot be."""
        if (program, question) in self._expected:
            self._expected[program, question] = True

    def was_rehearsed(self, question: Question) -> bool:
        """Whether the plan for a question was rehearsed, for any program that asks it."""
        return any(done for (_, expected), done in self._expected.items() if expected == question)

    # -- helpers

    @property
    def wanted(self) -> bool:
        """Whether plans are made ahead at all."""
        return self.nodes_min is not None

    @property
    def busy(self) -> bool:
        """Whether there is anything to plan for."""
        return bool(self._expected)

    @property
    def used_bytes(self) -> int:
        return sum(map(len, self._answers.values()))

    def _is_slow(self, use: ProgramInUse, profiles: Profiles) -> bool:
        workers = min(len(profiles.workers), CANDIDATES_MAX)
        return self.nodes_min is not None and len(use.program.graph) * workers >= self.nodes_min


def _questions(use: ProgramInUse, profiles: Profiles) -> Iterator[Question]:
    """The questions that a program may ask next: its plan now, and without each worker."""
    graph, strategy, copies = use.program.graph, use.program.strategy, use.program.copies
    if profiles.workers:
        yield Question(graph, strategy, profiles, copies)
    for node in _by_use(use, profiles):
        if len(profiles.workers) > 1:
            yield Question(graph, strategy, profiles.without(node), copies)


def _by_use(use: ProgramInUse, profiles: Profiles) -> Sequence[str]:
    nodes = [worker.node_id for worker in profiles.workers]
    return sorted(nodes, key=lambda node: node not in use.nodes)[:DEATHS_MAX]
