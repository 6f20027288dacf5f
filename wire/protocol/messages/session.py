"""Sessions: a client has a coordinator run a graph step by step, with a state that stays on the workers."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from .fields import Count, Index, Message, Name, Record, Text
from .jobs import NamedValue


class SessionCarry(Record, frozen=True):
    """A param of a session's graph that is its state: the next value is that output."""

    name: Name
    output: Index


class OpenSession(Message, frozen=True):
    """Run a graph step by step, with a state that stays on the workers; the first `told` outputs are answered.  Copies
    ("": what there is room for) are made after `every` so many steps; `ahead` steps are under way at most, 0 for what
    suits.  Answered by SessionOpened.  The session ends with its client.  It outlasts a link that breaks by a while,
    and the coordinator's process, if that is started anew (ResumeSession).  With a name in `session` the same may be
    sent again and counts once."""

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
    steps, and asks for what it has no answer of anew, from `number` on.  Answered by SessionResumed."""

    session: Name
    told: Count
    number: Count


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
    """The answer is Done once the session's workers have freed all of it."""

    session: Name
