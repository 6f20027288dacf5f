"""What happens to a coordinator that has a standby or is one, and what it does about it.  Data only.

Entries of the journal are numbered by the coordinator that serves; which bytes they are, nobody here knows.
"""

from __future__ import annotations

from dataclasses import dataclass

from wire.standby.configuration import Ballot
from wire.standby.voter import Answered, Asked, Keep, Say

# -- from this process


@dataclass(frozen=True, slots=True)
class Begin:
    """This process is to serve, unless another one took over."""


@dataclass(frozen=True, slots=True)
class Promote:
    """The operator says that the coordinator before is gone for good: serve without a vote."""


@dataclass(frozen=True, slots=True)
class Named:
    """These members vote from now on, beside the coordinators; none: the coordinator alone decides."""

    arbiters: frozenset[str]


@dataclass(frozen=True, slots=True)
class Wrote:
    """Every entry up to `last` is on this coordinator's disk, and waits to be acknowledged."""

    last: int


@dataclass(frozen=True, slots=True)
class Stored:
    """Every entry of a stream up to `last` is on the disk of this standby."""

    stream: int
    last: int


@dataclass(frozen=True, slots=True)
class NotStored:
    """Entries of a stream could not be written: ask for everything again."""

    stream: int


@dataclass(frozen=True, slots=True)
class Arriving:
    """More came of a long message of another coordinator, which may be the journal that this standby asked for."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""


# -- from other coordinators


@dataclass(frozen=True, slots=True)
class Attach:
    """`node` wants everything that the coordinator has, as a stream with this number."""

    node: str
    stream: int


@dataclass(frozen=True, slots=True)
class Entries:
    """Entries `first` to `last` of a stream; none where `last` is less: a sign of life.

    `whole`: they replace all that the standby has, and are everything up to `last`.
    """

    node: str
    ballot: Ballot
    stream: int
    first: int
    last: int
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Have:
    """`node` has all entries of the stream up to `last` on its disk."""

    node: str
    stream: int
    last: int


@dataclass(frozen=True, slots=True)
class Denied:
    """`node` takes no entries of a ballot below the one that it promised."""

    node: str
    promised: Ballot


Event = (
    Begin | Promote | Named | Wrote | Stored | NotStored | Arriving | Tick
    | Asked | Answered | Attach | Entries | Have | Denied
)  # fmt: skip


# -- what follows


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to another coordinator; with Entries, the entries that it names."""

    node: str
    message: Attach | Entries | Have | Denied


@dataclass(frozen=True, slots=True)
class Write:
    """Write the entries that came with this message; `Stored` when they are on the disk.

    Where they are `whole`, the copy of before goes once the new one is complete.
    """

    entries: Entries


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Entries up to `last` are where they have to be: requests that wait for them may be answered."""

    last: int


@dataclass(frozen=True, slots=True)
class Serve:
    """This process is the coordinator now, with what is on its disk."""

    ballot: Ballot


@dataclass(frozen=True, slots=True)
class StepDown:
    """Another coordinator took over: acknowledge nothing any more."""

    why: str


Action = Keep | Say | Send | Write | Acknowledge | Serve | StepDown
