"""Open sessions: all sessions of a coordinator, and those of an earlier process whose clients may come back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from wire.errors import MeshError
from wire.protocol.messages import PlanKey, Working
from wire.system.tasks import as_error, unheard

from ..planning.model.program import Program
from ..planning.session_planner import Stateful, check_carried
from . import events as ev
from .elastic import Elastic
from .manifest import SessionRecord
from .record_writer import WriteRecord
from .runtime import Session, StepFeeds
from .session_context import SessionContext
from .state import Policy


class Sessions:
    """All sessions of a coordinator."""

    def __init__(self, context: SessionContext) -> None:
        self._context = context
        self._open: list[Session] = []
        self._waiting: dict[int, SessionRecord] = {}  # sessions of another process, until their clients are back
        self._kept_by: dict[str, Mapping[int, int]] = {}  # what each worker has kept, as it joined, and at what step

    def open(
        self,
        program: Program,
        state: Stateful,
        policy: Policy,
        elastic: Elastic | None = None,
        write: WriteRecord | None = None,
    ) -> Session:
        """Begin a session, an elastic one with the program for the most workers; InputError without such a state.  A
        durable one has `write` write down where its state is."""
        check_carried(program.graph, state)
        forget = lambda: self._open.remove(session)  # noqa: E731
        session: Session = Session(self._context, program, state, policy, forget, elastic, write)
        self._open.append(session)
        session.begin()
        return session

    def expect(self, record: SessionRecord) -> None:
        """Have workers keep what a session of another process had, until it is opened again or given up."""
        self._waiting[id(record)] = record
        self._context.plans.earlier.update(record.epochs)

    def give_up(self, record: SessionRecord) -> None:
        """Have workers drop what they keep for a session whose client did not come back."""
        del self._waiting[id(record)]
        self._drop_unneeded(record)

    def _drop_unneeded(self, record: SessionRecord) -> None:
        """Have workers drop what of a record no session needs."""
        kept, plans = self.kept_plans, self._context.plans
        for generation, node in record.manifest.places:
            if generation not in kept and node in plans.members:
                drop = plans.deployer.drop(node, plans.key(generation))
                plans.tasks.run("dropping a session's state", drop, unheard)

    def open_again(
        self,
        program: Program,
        state: Stateful,
        policy: Policy,
        record: SessionRecord,
        answered: int | None,
        feeds: StepFeeds,
        write: WriteRecord,
        since: int = 0,
    ) -> Session:
        """Go on with a session of another process, whose client has the answers of `answered` steps.  `feeds` are those
        of the steps from `record.manifest.first_feed(answered, since)` on; `answered` is None where the client is gone,
        too."""
        forget = lambda: self._open.remove(session)  # noqa: E731
        session: Session = Session(self._context, program, state, policy, forget, None, write)
        back = {node: kept for node, kept in self._kept_by.items() if node in self._context.plans.members}
        session.restore(record, answered, feeds, since, back)
        del self._waiting[id(record)]
        self._open.append(session)
        self._drop_unneeded(record)  # as copies that came after the answers of this client
        session.begin()
        return session

    def names(self, nodes: Iterable[str]) -> tuple[str, ...]:
        """The workers' names, in order; of one that is not here the beginning of its id."""
        members = self._context.plans.members
        return tuple(sorted(members[node].profile.name if node in members else node[:8] for node in nodes))

    def nodes_changed(self, error: MeshError | None, away: bool = False) -> None:
        """The usable workers changed, perhaps by an error; workers that are `away` may come back as they were."""
        self._tell_each(lambda session: session.nodes_changed(error, away))

    def node_returned(self, node: str, steps_done: Mapping[int, int]) -> None:
        """A worker joined again.  `steps_done` has the plans that it still has, by generation, with the number of steps
        that it has done of each."""
        members = self._context.plans.members
        self._kept_by = {each: done for each, done in self._kept_by.items() if each in members} | {node: steps_done}
        self._tell_each(lambda session: session.feed(ev.NodeReturned(node, frozenset(steps_done), steps_done)))

    @property
    def kept_plans(self) -> frozenset[int]:
        """The plans that workers are to keep for sessions, by generation."""
        waiting = (record.manifest.generations for record in self._waiting.values())
        return frozenset().union(*(session._machine.kept for session in self._open), *waiting)

    def key(self, generation: int) -> PlanKey:
        """What workers know a plan by."""
        return self._context.plans.key(generation)

    @property
    def earlier(self) -> tuple[PlanKey, ...]:
        """The plans among `kept` that another process made."""
        return tuple(
            self._context.plans.key(generation)
            for generation in sorted(self.kept_plans & self._context.plans.earlier.keys())
        )

    def working(self, node: str, runs: Iterable[Working]) -> list[Working]:
        """A worker said what it computes; return what of it is no session's."""
        others = []
        for run in runs:
            session = self.of(run.plan.generation)
            if session is None:
                others.append(run)
            else:
                session.working[node] = run
                if run.preparing:
                    session.feed(ev.CompilationReported(node, run.plan.generation, run.part, run.seconds))
        return others

    def stuck(self, node: str) -> None:
        """A worker is stuck in work that is no session's."""
        self._tell_each(lambda session: session.feed(ev.NodeStuck(node)))

    def of(self, generation: int) -> Session | None:
        """The session that a plan is of; None for one of calls."""
        return next((session for session in self._open if generation in session.deployments), None)

    @property
    def idle(self) -> bool:
        """Whether no session is open."""
        return not self._open

    def leave(self) -> None:
        """Do nothing more about any of them: another process goes on with them."""
        for session in self._open:
            session.leave()

    def close(self) -> None:
        """End them all."""
        self._tell_each(lambda session: session.feed(ev.CloseRequested()))

    def _tell_each(self, tell: Callable[[Session], object]) -> None:
        """Tell all sessions something.  One that fails at it ends, and keeps no other from hearing it."""
        for session in list(self._open):
            try:
                tell(session)
            except Exception as fault:
                error = as_error("a session failed at an event", fault)
                asyncio.get_running_loop().call_soon(session._unanswered, error)
