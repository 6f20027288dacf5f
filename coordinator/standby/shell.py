"""The shell of a coordinator's standby machine: it keeps its record, asks for votes, and has other actions performed.

The same one lasts from following to serving; `attach` says how others are reached now, and who performs the rest.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wire.bounds import STANDBY_ACTIONS
from wire.deadlines import VOTE
from wire.errors import MeshError, NotDurable, ProtocolError
from wire.link.link import Link
from wire.protocol.messages import Message, Vote, Voted
from wire.standby.in_messages import answered_of, asked_of, vote_of, voted_of
from wire.standby.standby_file import StandbyFile
from wire.standby.voter import Answered, Asked, Keep, Say
from wire.system.steady_log import steady_logger
from wire.system.tasks import Tasks, isolated

from . import events as ev
from .state import StandbyState, StandbyTimes

log = steady_logger("graph_mesh.standby")

VOTE_ANSWER_S = VOTE.seconds  # a question without an answer is asked again
Then = Callable[[], object]
Performers = Mapping[type, Callable[[Any], object]]
LinkTo = Callable[[str], Awaitable[Link]]


@dataclass(frozen=True, slots=True)
class _Due:
    """Actions that are performed once the record of this number is on the disk, and what is called then."""

    record: int
    actions: Sequence[ev.Action]
    then: Then


class StandbyShell:
    """The shell of the coordinator `node`; `others` are the ids of other coordinators.

    What its machine decides is performed once the record is on the disk, which a thread writes.  `broken` is called,
    with the reason, if the disk refuses it: this process may then say nothing any more, since it would forget it.
    """

    def __init__(
        self,
        node: str,
        others: Iterable[str],
        file: StandbyFile,
        broken: Callable[[str], None],
        times: StandbyTimes = StandbyTimes(),
    ) -> None:
        self._loop = asyncio.get_running_loop()
        now = self._loop.time()
        self.file = file
        self.broken = broken
        self.times = times
        self.state = StandbyState(node, others, file.remembered.record, now, int(now * 1000), times)
        self._link_to: LinkTo | None = None
        self._performers: dict[type, Callable[[Any], object]] = {}
        self._inbox: deque[tuple[ev.Event, Then]] = deque()
        self._due: deque[_Due] = deque()  # in order
        self._handling = False
        self._record, self._records, self._written = self.state.record, 0, 0  # the newest, its number, that on the disk
        self._refusal: MeshError | None = None  # of the disk
        self._votes: set[asyncio.Future[Answered]] = set()
        self._said: Answered | None = None  # to a coordinator that asks for a vote now
        self._tasks = Tasks()

    def attach(self, link_to: LinkTo, performers: Performers) -> None:
        """Reach others by `link_to`, and have actions performed, from now on."""
        self._link_to = link_to
        self._performers = {Keep: lambda keep: None, Say: self._say, **performers}

    def feed(self, event: ev.Event, then: Then = lambda: None) -> None:
        """Handle an event and perform what follows, and call `then`: at once, or after what has to be on the disk
        first.  Events raised on the way are handled after it."""
        self._inbox.append((event, then))
        self._go_on()

    async def vote(self, link: Link, body: Vote) -> Message:
        """The answer to another coordinator that asks for a vote; NotDurable if the disk refuses what it says."""
        if self._refusal is not None:
            raise _copy(self._refusal)
        answer: asyncio.Future[Answered] = self._loop.create_future()
        self._votes.add(answer)
        answer.add_done_callback(self._votes.discard)

        def answered() -> None:
            assert self._said is not None
            if not answer.done():
                answer.set_result(self._said)

        self.feed(asked_of(body, link.peer.node_id), answered)
        return voted_of(await answer)

    async def run(self) -> None:
        """Let time pass, for ever."""
        while True:
            self.feed(ev.Tick())
            await asyncio.sleep(self.times.beat_s)

    def close(self) -> None:
        self._tasks.cancel()

    def _go_on(self) -> None:
        """Handle what came and perform what is due, unless that is being done."""
        if self._handling:
            return
        self._handling = True
        try:
            while self._refusal is None:
                if self._due and self._due[0].record <= self._written:
                    self._perform(self._due.popleft())
                elif self._inbox:
                    self._handle(*self._inbox.popleft())
                else:
                    return
            self._inbox.clear()
        finally:
            self._handling = False

    def _handle(self, event: ev.Event, then: Then) -> None:
        actions = self.state.handle(event, self._loop.time())
        if self.state.record != self._record:
            idle = self._records == self._written
            self._record, self._records = self.state.record, self._records + 1
            if idle:
                self._tasks.run("writing what this coordinator promised", self._keep(), self._refused)
        if not actions:
            then()
            return
        self._due.append(_Due(self._records, actions, then))
        if len(self._due) > STANDBY_ACTIONS.most:
            self._refused(NotDurable("the disk has not taken for minutes what this coordinator promised"))

    def _perform(self, due: _Due) -> None:
        for action in due.actions:
            with isolated(f"the standby's {type(action).__name__}"):  # the others follow all the same
                self._performers[type(action)](action)
        due.then()

    async def _keep(self) -> None:
        """Have the record on the disk, and then perform what waits for it."""
        while self._written < self._records:
            number, record = self._records, self._record
            await self.file.change(record=record)
            self._written = number
            with isolated("what follows of a promise"):  # the disk has taken it
                self._go_on()

    def _refused(self, error: MeshError) -> None:
        """The disk does not take the record: end, once."""
        if self._refusal is not None:
            return
        self._refusal = error
        self._due.clear()
        for answer in list(self._votes):
            if not answer.done():
                answer.set_exception(_copy(error))
        self.broken(f"what this coordinator promised cannot be written: {error}")

    def _say(self, say: Say) -> None:
        if isinstance(say.message, Answered):
            self._said = say.message
        else:
            asking = self._ask(say.node, say.message)
            self._tasks.run("asking for a vote", asking, lambda why: log.debug("%s did not vote: %s", say.node, why))

    async def _ask(self, node: str, asked: Asked) -> None:
        assert self._link_to is not None
        try:
            async with asyncio.timeout(VOTE_ANSWER_S):
                link = await self._link_to(node)
                voted = await link.request(vote_of(asked))
        except TimeoutError:
            raise MeshError(f"no answer within {VOTE_ANSWER_S:g} s") from None
        if not isinstance(voted, Voted):
            raise ProtocolError(f"expected Voted, got {type(voted).__name__}", node=link.peer.name)
        self.feed(answered_of(asked, voted, node))


def _copy(error: MeshError) -> NotDurable:
    """An exception of its own for each waiter."""
    return NotDurable(error.message, cause=error.cause, next_step=error.next_step)
