"""Sessions: a client has a coordinator run a graph step by step, with a state that stays on the workers."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ...limits import MIB
from .fields import Count, Index, Message, Name, Record, Seconds, Text
from .jobs import NamedValue

Form = Annotated[bytes, Meta(max_length=4 * MIB)]  # what a client has the coordinator keep for whoever attaches


class SessionCarry(Record, frozen=True):
    """A param of a session's graph that is its state: the next value is that output."""

    name: Name
    output: Index


class OpenSession(Message, frozen=True):
    """Run a graph step by step, with a state that stays on the workers; answers have the first `told` outputs.  Copies
    ("": what there is room for) are made every `every` steps; at most `ahead` steps are in flight, 0 for what
    suits.  Answered by SessionOpened.  It outlasts a link that breaks by a while,
    and the coordinator's process, if that is started anew (ResumeSession).  With a token in `session` the same may be
    sent again and counts once.  The session ends with its client; one with a `name` stays for AttachSession, which
    gets `form`."""

    graph: bytes
    params: tuple[NamedValue, ...]
    carries: Annotated[tuple[SessionCarry, ...], Meta(max_length=100_000)]
    told: Index
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
    """A further step.  What is asked of a session is done in the order of `number`, from 0, and once, however often it
    is sent; all answers below `heard` have come, with their blobs, and are forgotten.  Answered by SessionTold."""

    session: Name
    number: Count
    inputs: tuple[NamedValue, ...]
    heard: Count = 0


class SessionState(Message, frozen=True):
    """The state after what has smaller numbers; asked as SessionStep is.  Answered by SessionTold."""

    session: Name
    number: Count
    heard: Count = 0


class SessionTold(Message, frozen=True):
    """What a step tells, or the state by the params' names; large values are blobs to fetch, until the answer is
    forgotten.  With `interrupted` it is no answer: the coordinator was started anew, and waits for ResumeSession."""

    values: tuple[NamedValue, ...]
    step: Count = 0  # how many steps of the session were done before this one
    first_feed: Count = 0  # the inputs of no step before this one will be asked for again
    interrupted: bool = False


class SessionHeard(Message, frozen=True):
    """One-way: all answers below this number have come, as in SessionStep."""

    session: Name
    heard: Count


class ResumeSession(Message, frozen=True):
    """Go on with a session after the coordinator was started anew.  The client has the answers of the first `told`
    steps, and asks for what it has no answer of anew, from `number` on.  It attached after `since` steps, and
    has the inputs of no earlier one.  Answered by SessionResumed."""

    session: Name
    told: Count
    number: Count
    since: Count = 0


class SessionResumed(Message, frozen=True):
    """The session goes on if `first` is `until`; otherwise the coordinator wants the inputs of the steps from `first`
    until before `until`, as SessionFeed, and then ResumeSession again."""

    first: Count
    until: Count


class SessionFeed(Message, frozen=True):
    """The inputs of a step whose answer the client has: it may have to be done again.  Answered by Done."""

    session: Name
    step: Count
    inputs: tuple[NamedValue, ...]


class CloseSession(Message, frozen=True):
    """The answer is Done once the session's workers have freed all of it; with `keep` one that has a name stays."""

    session: Name
    keep: bool = False


class AttachSession(Message, frozen=True):
    """Drive a named session of this member from now on, under the token `session`, with numbers from 0.  Whoever drove
    it is refused from then on; without `take` it must have no link any more.  The answer, SessionAttached, comes when
    the steps that were asked for before are done.  The same may be sent again and counts once."""

    name: Name
    session: Name
    take: bool = False


class SessionAttached(Message, frozen=True):
    """The session has done `steps` steps; `graph` and `form` are what its opener gave.  `params` are those that no
    step changes, by address."""

    steps: Count
    graph: bytes
    form: Form
    params: tuple[NamedValue, ...]


class AskSessions(Message, frozen=True):
    """The named sessions of this member.  Answered by Sessions."""


class SessionReport(Record, frozen=True):
    name: Name
    steps: Count
    workers: tuple[Name, ...]  # that have some of its state
    client: Name  # who drove it last
    attached: bool  # whether that one has a link
    age_s: Seconds
    size_bytes: Count  # of its state
    found: bool = True  # False: the coordinator was started anew, and `steps` is what is known for certain


class Sessions(Message, frozen=True):
    sessions: tuple[SessionReport, ...]


class EndSession(Message, frozen=True):
    """End a named session of this member, whoever drives it.  The answer is Done once its workers have freed it."""

    name: Name
