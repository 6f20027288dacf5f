"""Records: what the coordinator's shell keeps of a worker, of a deployed plan and of a call."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from numpy.typing import NDArray

from wire.bounds import KNOWN_CONTENTS, KNOWN_GRAPHS
from wire.deadlines import WORK_LONGEST, Deadline
from wire.link.link import Link
from wire.policy.batch_shares import Portions
from wire.protocol.messages import Deployed, Joined, Message, Ran, Working
from wire.system.bounded_wait import within

from ..planning.auto_strategy import Measured
from ..planning.model.plan import FromState, Plan
from ..planning.model.profiles import WorkerProfile
from ..planning.model.program import Program
from ..planning.plan_messages import (
    NO_TRANSFERS,
    Content,
    Fed,
    Transfers,
    feeds,
    nodes,
    outputs_whole,
    transfers,
    work_of,
)
from .call_report import CallReport
from .recent_set import RecentSet

Evidence = tuple[int, Measured]  # how many verdicts there were on the pace of devices, and what calls took


@dataclass(frozen=True, slots=True)
class Enrolled:
    """What the mesh's authority knows of a worker: the name that it was let in by, and whether its token says that it
    is on another person's machine.  Where the authority does not know, the name is "" and it is `untrusted`."""

    name: str
    untrusted: bool = False


@dataclass(slots=True)
class Member:
    """A worker that joined."""

    link: Link
    joined: Joined
    profile: WorkerProfile
    graphs: RecentSet = field(default_factory=partial(RecentSet, KNOWN_GRAPHS.most))  # encodings that it was sent
    blobs: RecentSet = field(default_factory=partial(RecentSet, KNOWN_CONTENTS.most))  # content that it should hold
    leaving: bool = False
    paused: str = ""  # by whom, as in Paused
    last_words: tuple[str, ...] = ()  # of its log, as it left
    worked_s: float = -math.inf  # when it said last that it computes or compiles something
    working: tuple[Working, ...] = ()  # what it computed or compiled at its last heartbeat
    loop_lag_s: float = 0.0  # how long its event loop stood still at most of late

    async def answer(self, message: Message, deadline: Deadline, size_bytes: int) -> Message:
        """Ask the worker, about `size_bytes` bytes; DeadlineExceeded if it shows no sign of work for that long."""
        name, worked_s = self.profile.name, lambda: self.worked_s
        return await within(deadline, self.link.request(message), name, size_bytes, worked_s, WORK_LONGEST)

    def holds(self, program: Program) -> set[str]:
        """The params of a program that it is known to hold, by name."""
        return {name for name, (blob, _) in program.bindings.items() if blob in self.blobs}


def link_to(members: Mapping[str, Member], node: str) -> Link | None:
    """The link to a member; None for a node that is none."""
    member = members.get(node)
    return None if member is None else member.link


@dataclass(slots=True)
class StateStart:
    """What the steps of a session's plan begin with, and where the plan has each piece of the state."""

    contents: Mapping[FromState, bytes] | None  # None: what the client gave
    holders: Mapping[FromState, frozenset[str]]
    pieces: Mapping[tuple[int, int], FromState] = field(default_factory=dict)  # that are made, by part and output
    gathered: dict[str, Content] = field(default_factory=dict)  # of a state that was cut in another way before


@dataclass(slots=True)
class Deployment:
    """A plan on its way to its workers, or there."""

    program: Program
    plan: Plan | None = None
    feeds: dict[str, tuple[Fed, ...]] = field(default_factory=dict)
    transfers: Transfers = NO_TRANSFERS
    results: dict[str, Deployed] = field(default_factory=dict)  # of the workers that have deployed it
    reported: bool = False  # its weight bytes stand in a call's report
    trial: bool = False  # to see how fast a device is
    settled: Evidence = 0, ()  # what was known as this was planned or found to be the best still
    portions: Portions = 0  # of the batch that it is for, in an elastic session
    state: StateStart | None = None  # of a session
    whole: bool = False  # every output comes whole from a worker
    begun: set[tuple[int, str]] = field(default_factory=set)  # its steps that workers said they compute: step, worker
    sending: set[asyncio.Task[None]] = field(default_factory=set)  # inputs of its steps that are on their way

    def sends(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        """Note a task that sends inputs of its steps."""
        self.sending.add(task)
        task.add_done_callback(self.sending.discard)
        return task

    def stop_sending(self) -> None:
        """Stop sending inputs: the plan is given up."""
        for task in [*self.sending]:
            task.cancel()

    def planned(self, plan: Plan) -> None:
        """Note the plan that was made."""
        self.plan, self.feeds, self.transfers = plan, feeds(plan), transfers(plan)
        self.whole = outputs_whole(plan)

    @property
    def complete(self) -> bool:
        """Whether all its workers have deployed it."""
        return self.plan is not None and self.results.keys() >= nodes(self.plan)


@dataclass(slots=True)
class Call:
    """A call in progress."""

    program: Program
    inputs: Mapping[str, NDArray[Any]]
    future: asyncio.Future[list[NDArray[Any]]]
    report: CallReport
    began_s: float
    alone: bool = False  # no other call was in progress as it began
    patient: bool = False  # it waits for a worker as long as it takes
    input_bytes: int = 0  # of its large inputs
    owner: str = ""  # whose it is, "" where nobody else has calls
    held: object = None  # what must live until it is over
    doubts: int = 0  # how often auditors disagreed with its answer
    ran: dict[tuple[int, str], Ran] = field(default_factory=dict)  # by generation and worker
    steps: dict[int, int] = field(default_factory=dict)  # its number in each plan that it runs on, by generation
    given_up: list[Deployment] = field(default_factory=list)  # forgotten plans, whose weights its report counts
    # Tensors and bytes that came through here, by generation, sender and receiver.
    relayed: dict[tuple[int, str, str], list[int]] = field(default_factory=dict)


def work_by_plan(deployments: Mapping[int, Deployment], node: str) -> dict[int, frozenset[str]]:
    """What a worker has to compute in every plan that uses it, by generation."""
    plans = (
        (generation, deployment.plan) for generation, deployment in deployments.items() if deployment.plan is not None
    )
    return {generation: work_of(plan, node) for generation, plan in plans}
