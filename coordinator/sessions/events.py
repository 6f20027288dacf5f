"""Events and actions of a session's state machine (`state.py`).

Data only.  A *value* of the state is numbered by the steps that made it: value 0 is what the client gave, and step n
makes value n + 1 of value n.  A *piece* is the part of the state that one place holds (`plan.FromState`).  To add
an event or an action, add a class, name it in `Event` or `Action`, and give it a row in the tables of `SessionState` or
of `Sessions` in `runtime.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from wire.errors import MeshError

from ..lifecycle.events import DeployDone as DeployDone
from ..lifecycle.events import DeployFailed as DeployFailed
from ..lifecycle.events import ForgetPlan as ForgetPlan
from ..lifecycle.events import Holders as Holders
from ..lifecycle.events import MakePlan as MakePlan
from ..lifecycle.events import NodeBegan as NodeBegan
from ..lifecycle.events import NodeRan as NodeRan
from ..lifecycle.events import OutputArrived as OutputArrived
from ..lifecycle.events import Piece as Piece
from ..lifecycle.events import PlanAction as PlanAction
from ..lifecycle.events import PlanEvent as PlanEvent
from ..lifecycle.events import PlanFailed as PlanFailed
from ..lifecycle.events import PlanMade as PlanMade
from ..lifecycle.events import Reject as Reject
from ..lifecycle.events import Resolve as Resolve
from ..lifecycle.events import RunFailed as RunFailed
from ..lifecycle.events import SendCancel as SendCancel
from ..lifecycle.events import SendDeploy as SendDeploy
from ..lifecycle.events import SendDrop as SendDrop
from ..lifecycle.events import SendRun as SendRun
from ..lifecycle.events import Tick as Tick

Contents = Mapping[Piece, bytes]  # addresses


@dataclass(frozen=True, slots=True)
class Check:
    """A parity block: a sum of pieces, kept for when one of them is lost
    (`coordinator/planning/redundancy/parity_groups.py`).  A node keeps it as it does a piece."""

    blob: bytes
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Checked:
    """A group of pieces with their checks, and who made which check.  As many shares of it as there are pieces
    suffice."""

    pieces: tuple[Piece, ...]
    size_bytes: int
    checks: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Start:
    """What a plan goes on from: the job of MakePlan.  `contents` None: what the client gave."""

    contents: Contents | None
    holders: Holders


# -- events -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodesChanged:
    """The nodes that may get work changed; `error` says what became of those that may not any more.  Of these some are
    `away`: they may come back, and then NodeReturned says what they have kept."""

    nodes: frozenset[str]
    error: MeshError | None = None
    away: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class NodeReturned:
    """A worker joined that was here before; `kept` are plans and copies that it has still, by generation, and `made`
    is how many steps of a plan it has done, of the last of which it has the state."""

    node: str
    kept: frozenset[int]
    made: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BetterPlanFound:
    """A plan was found that is worth the move."""


@dataclass(frozen=True, slots=True)
class StepRequested:
    """The client asks for a step; its number is what `next_number` was."""


@dataclass(frozen=True, slots=True)
class AnswersHeard:
    """The client has the answers of the first `steps` steps; only durable sessions have this event."""

    steps: int


@dataclass(frozen=True, slots=True)
class ClientWent:
    """The client that drives the session is `away`, or back."""

    away: bool


@dataclass(frozen=True, slots=True)
class ClaimRequested:
    """Another client is to drive the session, once what was asked for is done and stored."""


@dataclass(frozen=True, slots=True)
class StateRequested:
    """The client asks for the value after all steps that it has asked for so far."""

    request: int


@dataclass(frozen=True, slots=True)
class StateRequestWithdrawn:
    request: int


@dataclass(frozen=True, slots=True)
class CloseRequested:
    """The session is to end: its caller is done, or its shell failed in a way that no other event reports."""

    error: MeshError | None = None


@dataclass(frozen=True, slots=True)
class ReplayLimitExceeded:
    """The feeds since the last copy, or since the first state, take too much memory to be kept for a replay."""


@dataclass(frozen=True, slots=True)
class NodeStuck:
    """A worker is connected, and is stuck in work that is no session's."""

    node: str


@dataclass(frozen=True, slots=True)
class CompilationReported:
    """A worker said for how many seconds it has been compiling a part."""

    node: str
    generation: int
    part: int
    seconds: float


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """A worker has made blobs of its pieces."""

    copy: int
    node: str
    contents: Contents


@dataclass(frozen=True, slots=True)
class CopyStored:
    """A node has stored what it is to keep of a copy."""

    copy: int
    node: str


@dataclass(frozen=True, slots=True)
class CopyFailed:
    """A node did not do its part in a copy."""

    copy: int
    node: str
    error: MeshError


@dataclass(frozen=True, slots=True)
class ChecksMade:
    """Workers made the checks of a copy, as far as there are enough workers."""

    copy: int
    checked: tuple[Checked, ...]


@dataclass(frozen=True, slots=True)
class ChecksFailed:
    copy: int
    error: MeshError


# -- actions ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReportStuckStep:
    """Report that a step does not end and is given up; `nodes` compute it, and wait for nobody."""

    generation: int
    nodes: frozenset[str]


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Have a worker make blobs of what step `step` of the plan left; answered by SnapshotTaken or CopyFailed."""

    copy: int
    generation: int
    step: int
    node: str


@dataclass(frozen=True, slots=True)
class MakeChecks:
    """Have workers make checks of what others have of a copy; answered by ChecksMade or ChecksFailed."""

    copy: int
    contents: Contents
    owners: Mapping[Piece, str]
    nodes: frozenset[str]


@dataclass(frozen=True, slots=True)
class StoreCopy:
    """Have a node store these pieces of a copy, "" for this process; answered by CopyStored or CopyFailed."""

    copy: int
    node: str
    contents: Contents
    holders: Holders


@dataclass(frozen=True, slots=True)
class ReleaseCopy:
    """Have a node release its pieces of a copy."""

    copy: int
    node: str


@dataclass(frozen=True, slots=True)
class ForgetFeeds:
    """Free the feeds of steps below this number: they will not be done again."""

    below: int


@dataclass(frozen=True, slots=True)
class Claimed:
    """The client that claimed the session may drive it: `steps` steps are done."""

    steps: int


@dataclass(frozen=True, slots=True)
class DeliverState:
    """Give the caller the value that it asked for; `contents` None: what the client gave."""

    request: int
    contents: Contents | None
    holders: Holders


@dataclass(frozen=True, slots=True)
class RejectState:
    request: int
    error: MeshError


@dataclass(frozen=True, slots=True)
class EndSession:
    """End the session, of which nothing is left; with an error if nobody asked for its end."""

    error: MeshError | None


Event = (
    PlanEvent | NodesChanged | NodeReturned | BetterPlanFound | StepRequested | AnswersHeard | ClientWent
    | ClaimRequested | StateRequested | StateRequestWithdrawn | CloseRequested | ReplayLimitExceeded | NodeStuck
    | CompilationReported | SnapshotTaken | CopyStored | CopyFailed | ChecksMade | ChecksFailed
)  # fmt: skip
Action = (
    PlanAction | ReportStuckStep | TakeSnapshot | MakeChecks | StoreCopy | ReleaseCopy | ForgetFeeds | Claimed
    | DeliverState | RejectState | EndSession
)  # fmt: skip
