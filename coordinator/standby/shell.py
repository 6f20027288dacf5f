"""The shell of a coordinator's standby machine: it keeps its record, asks for votes, and has other actions performed.

The same one lasts from following to serving; `attach` says how others are reached now, and who performs the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from wire.deadlines import VOTE
from wire.errors import MeshError, ProtocolError
from wire.link.link import Link
from wire.protocol.messages import Message, Vote, Voted
from wire.standby.in_messages import answered_of, asked_of, vote_of, voted_of
from wire.standby.standby_file import StandbyFile
from wire.standby.voter import Answered, Asked, Keep, Say
from wire.system.tasks import Tasks

from . import events as ev
from .state import StandbyState, StandbyTimes

log = logging.getLogger("graph_mesh.standby")

VOTE_ANSWER_S = VOTE.seconds  # a question without an answer is asked again
Performers = Mapping[type, Callable[[Any], object]]
LinkTo = Callable[[str], Awaitable[Link]]


class StandbyShell:
    """The shell of the coordinator `node`; `others` are the ids of other coordinators.

    `broken` is called, with the reason, if its record cannot be written: this process may then say nothing any more,
    since it would forget it.
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
        self._inbox: deque[ev.Event] = deque()
        self._handling = False
        self._said: Answered | None = None  # to whoever asks for a vote now
        self._tasks = Tasks()

    def attach(self, link_to: LinkTo, performers: Performers) -> None:
        """Reach others by `link_to`, and have actions performed, from now on."""
        self._link_to = link_to
        self._performers = {Keep: lambda keep: None, Say: self._say, **performers}

    def feed(self, event: ev.Event) -> None:
        """Handle an event and perform what follows; events raised on the way are handled after it."""
        self._inbox.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._inbox:
                actions = self.state.handle(self._inbox.popleft(), self._loop.time())
                self._keep()
                for action in actions:
                    self._performers[type(action)](action)
        finally:
            self._handling = False

    async def vote(self, link: Link, body: Vote) -> Message:
        """The answer to another coordinator that asks for a vote."""
        self._said = None
        self.feed(asked_of(body, link.peer.node_id))
        said: Answered | None = self._said
        assert said is not None
        return voted_of(said)

    async def run(self) -> None:
        """Let time pass, for ever."""
        while True:
            self.feed(ev.Tick())
            await asyncio.sleep(self.times.beat_s)

    def close(self) -> None:
        self._tasks.cancel()

    def _keep(self) -> None:
        """Have the record on the disk before anything is said."""
        try:
            self.file.change(record=self.state.record)
        except OSError as error:
            self.broken(f"what this coordinator promised cannot be written: {error}")
            raise

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
