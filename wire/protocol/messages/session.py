"""Sessions: a client has a coordinator run a graph step by step, with a state that stays on the workers."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ...limits import MIB
from .fields import Count, Index, Message, Name, Record, Seconds, Text
from .jobs import NamedValue

Form = Annotated[bytes, Meta(max_length=4 * MIB)]  # what a client stores at the coordinator for programs that attach


class SessionCarry(Record, frozen=True):
    """A param of a session's graph that is state: output `output` of a step is its value in the next step."""

    name: Name
    output: Index


class OpenSession(Message, frozen=True):
    """Run a graph step by step, with a state that stays on the workers.  Answers have the first `returned_count`
    outputs.  Copies of the state ("": as many as there is room for) are made every `every` steps.  At most `ahead`
    steps are in flight; with 0 the coordinator chooses.  Answered by SessionOpened.  The session survives a broken link
    for a while, and a restart of the coordinator (ResumeSession).  A message with a token in `session` may be sent
    again and counts once.  The session ends with its client.  One with a `name` remains for AttachSession, whose answer
    has `form`."""

    graph: bytes
    params: tuple[NamedValue, ...]
    carries: Annotated[tuple[SessionCarry, ...], Meta(max_length=100_000)]
    returned_count: Index
    strategy: Text
    copies: Name
    every: Count
    ahead: Annotated[int, Meta(ge=0, le=1024)]
    replay_bytes: Count
    session: Name = ""
    name: Name = ""
    form: Form = b""


class SessionOpened(Message, frozen=True):
    session: Name


class SessionStep(Message, frozen=True):
    """The next step.  A session handles its requests in the order of `number`, from 0, and each once, however often it
    is sent.  The client has received all answers below `heard`, with their blobs, so the coordinator frees them;
    what it never asked by those numbers it will not ask.
    Answered by SessionTold."""

    session: Name
    number: Count
    inputs: tuple[NamedValue, ...]
    heard: Count = 0


class SessionState(Message, frozen=True):
    """Return the state after all requests with smaller numbers.  `number` and `heard` are as in SessionStep.  Answered
    by SessionTold."""

    session: Name
    number: Count
    heard: Count = 0


class SessionTold(Message, frozen=True):
    """The outputs of a step, or the state by the params' names.  Large values are blobs, which the client can fetch
    until it confirms the answer by `heard`.  With `interrupted` it is no answer: the coordinator was started again, and
    waits for ResumeSession."""

    values: tuple[NamedValue, ...]
    step: Count = 0  # how many steps of the session were done before this one
    first_feed: Count = 0  # the inputs of no step before this one will be asked for again
    interrupted: bool = False


class SessionHeard(Message, frozen=True):
    """One-way: the client has received all answers below `heard`, as in SessionStep."""

    session: Name
    heard: Count


class ResumeSession(Message, frozen=True):
    """Continue a session after the coordinator was started again.  The client has the answers of the first `answered`
    steps.  It sends its requests without an answer again, from `number` on.  It attached after `since` steps, and has
    the inputs of no earlier step.  Answered by SessionResumed."""

    session: Name
    answered: Count
    number: Count
    since: Count = 0


class SessionResumed(Message, frozen=True):
    """The session continues if `first` equals `until`.  Otherwise the coordinator needs the inputs of the steps from
    `first` to `until` - 1, each as a SessionFeed, and then ResumeSession again."""

    first: Count
    until: Count


class SessionFeed(Message, frozen=True):
    """The inputs of a step whose answer the client has: the workers may have to run it again.  Answered by Done."""

    session: Name
    step: Count
    inputs: tuple[NamedValue, ...]


class CloseSession(Message, frozen=True):
    """End the session.  Answered by Done once its workers have freed all of it.  With `keep`, a session that has a name
    remains."""

    session: Name
    keep: bool = False


class AttachSession(Message, frozen=True):
    """Drive a named session of this member from now on, under the token `session`, with numbers from 0.  The client
    that drove it before is refused from then on.  Without `take`, that client must have lost its link.  Answered by
    SessionAttached when all earlier steps are done.  The message may be sent again and counts once."""

    name: Name
    session: Name
    take: bool = False


class SessionAttached(Message, frozen=True):
    """The session has done `steps` steps.  `graph` and `form` are those of its OpenSession.  `params` are the params
    that no step changes, by address."""

    steps: Count
    graph: bytes
    form: Form
    params: tuple[NamedValue, ...]


class AskSessions(Message, frozen=True):
    """List the named sessions of this member.  Answered by Sessions."""


class SessionReport(Record, frozen=True):
    name: Name
    steps: Count
    workers: tuple[Name, ...]  # that have some of its state
    client: Name  # the client that drove it last
    attached: bool  # whether that client has a link
    age_s: Seconds
    size_bytes: Count  # of its state
    found: bool = True  # False: the coordinator was started again, and at least `steps` steps are done


class Sessions(Message, frozen=True):
    sessions: tuple[SessionReport, ...]


class EndSession(Message, frozen=True):
    """End a named session of this member, whichever client drives it.  Answered by Done once its workers have freed
    it."""

    name: Name
