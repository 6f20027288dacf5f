"""The shell of the worker's machine: it feeds events to the machine, has its actions performed, and wakes it in time.

It holds requests until the machine answers them.  It does not know what any other action does: that is in the table of
performers, to which each part of the daemon adds its rows.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, get_args

from wire.errors import MeshError
from wire.protocol.messages import Message
from wire.system.outcome import Outcome
from wire.system.steady_log import steady_logger
from wire.system.tasks import AGAIN_S, Tasks, as_error

from ..state import events as ev
from ..state.action_failures import doing, failure_of
from ..state.lease import Owner
from ..state.worker_state import WorkerState

log = steady_logger("graph_mesh.worker")
LATE_S_MIN = 0.05  # a tick later than this counts as a delay of our own

Performers = Mapping[type, Callable[[Any], object]]  # what performs the actions of each type


class MachineShell:
    """`worker` is the name of the worker, `machine` is None until the devices are known and after the end."""

    def __init__(self, worker: str) -> None:
        self.machine: WorkerState | None = None
        self.tasks = Tasks()
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._performers: dict[type, Callable[[Any], object]] = {
            ev.Reply: lambda action: self.answer(action.request, action.message),
            ev.Refuse: self._refuse,
        }
        self._inbox: deque[ev.Event] = deque()
        self._handling = False
        self._answers: dict[int, asyncio.Future[Message] | Outcome[Message]] = {}
        self._next_request = 1
        self._ticker: asyncio.TimerHandle | None = None

    def perform_by(self, *tables: Performers) -> None:
        """Set the performers: every action has one."""
        for table in tables:
            assert not table.keys() & self._performers.keys()
            self._performers.update(table)
        assert self._performers.keys() == set(get_args(ev.Action))

    # -- what the machine says

    @property
    def owner(self) -> Owner | None:
        """The coordinator that this worker works for."""
        return self.machine.owner if self.machine is not None else None

    def owner_id(self) -> str:
        """The node id of the coordinator; "" if there is none."""
        return self.owner.node if self.owner else ""

    @property
    def queue_depth(self) -> int:
        """Parts that are ready or running."""
        return self.machine.queue_depth if self.machine is not None else 0

    def has_work(self) -> bool:
        """Whether there is work, or it is not known yet, or there is to be none."""
        machine = self.machine
        return machine is None or bool(machine.paused or machine.queue_depth or machine.working(self._loop.time()))

    # -- events and actions

    def feed(self, event: ev.Event) -> None:
        """Handle an event and perform what follows; events raised on the way are handled after it."""
        machine = self.machine
        if machine is None:
            return  # nothing is known yet that could be affected
        self._inbox.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._inbox:
                event = self._inbox.popleft()
                log.debug("%s", event)
                for action in machine.handle(event, self._loop.time()):
                    self._perform(action)
        except Exception:
            # Time goes on, though not at once: the machine may fail at it again.
            self._loop.call_later(AGAIN_S, self._arm_ticker, machine)
            raise
        finally:
            self._handling = False
        self._arm_ticker(machine)

    def begin(self, action: ev.Action, work: Coroutine[Any, Any, None]) -> None:
        """Perform an action by a task; the machine hears of it if the task fails."""
        self.tasks.run(doing(action), work, lambda error: self._failed(action, error))

    def _perform(self, action: ev.Action) -> None:
        try:
            self._performers[type(action)](action)
        except Exception as fault:
            self._failed(action, as_error(f"{doing(action)} failed", fault))

    def _failed(self, action: ev.Action, error: MeshError) -> None:
        """Give the failure of an action to the caller that waits for its answer."""
        if isinstance(action, ev.Reply | ev.ReplyRan | ev.ReplyJoined | ev.OpenDirect):
            self._refuse(ev.Refuse(action.request, error))
        elif (event := failure_of(action, error)) is not None:
            self.feed(event)
        else:
            log.warning("%s", error)

    def _arm_ticker(self, machine: WorkerState) -> None:
        deadline = machine.next_deadline()
        if self._ticker is not None:
            if deadline is None or self._ticker.when() <= deadline:
                return
            self._ticker.cancel()
        if deadline is not None:
            self._ticker = self._loop.call_at(deadline, self._tick, deadline)

    def _tick(self, asked: float) -> None:
        self._ticker = None
        late_s = self._loop.time() - asked
        self.feed(ev.Tick(late_s if late_s > LATE_S_MIN else 0.0))

    # -- requests

    async def ask(self, make_event: Callable[[int], ev.Event]) -> Message:
        """Put a request to the machine and wait for its answer."""
        answer: asyncio.Future[Message] = self._loop.create_future()
        request = self._expect(answer)
        try:
            self.feed(make_event(request))
            return await answer
        except asyncio.CancelledError:
            self._gone(request)
            raise

    def put(self, make_event: Callable[[int], ev.Event]) -> Outcome[Message]:
        """Put a request to the machine, without a task that waits for its answer."""
        answer: Outcome[Message] = Outcome(lambda: self._gone(request))
        request = self._expect(answer)
        self.feed(make_event(request))
        return answer

    def _expect(self, answer: asyncio.Future[Message] | Outcome[Message]) -> int:
        request = self._next_request
        self._next_request += 1
        self._answers[request] = answer
        return request

    def _gone(self, request: int) -> None:
        """Nobody waits for the answer any more."""
        if self._answers.pop(request, None) is not None:
            self.feed(ev.RequestGone(request))

    def answer(self, request: int, message: Message) -> None:
        """Answer a request, if its sender still waits for it."""
        answer = self._answers.pop(request, None)
        if answer is not None and not answer.done():
            answer.set_result(message)

    def _refuse(self, action: ev.Refuse) -> None:
        answer = self._answers.pop(action.request, None)
        if answer is not None and not answer.done():
            action.error.node = action.error.node or self._worker
            answer.set_exception(action.error)
