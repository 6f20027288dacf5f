"""Events and actions of a session's state machine (`state.py`).

Data only.  A *value* of the state is numbered by the steps that made it: value 0 is what the client gave, and step n
makes value n + 1 of value n.  A *piece* is the part of the state that one place holds (`plan.FromState`).  To add
an event or an action, add a class, name it in `Event` or `Action`, and give it a row in the tables of `SessionState` or
of `Sessions` in `runtime.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

from wire.errors import MeshError
from wire.plain_data import PlainData

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


class Check(PlainData, frozen=True):
    """A parity block: a sum of pieces, kept for when one of them is lost
    (`coordinator/planning/redundancy/parity_groups.py`).  A node keeps it as it does a piece."""

    blob: bytes
    size_bytes: int


class Checked(PlainData, frozen=True):
    """A group of pieces with their checks, and which node made which check.  As many shares of it as there are pieces
    suffice."""

    pieces: tuple[Piece, ...]
    size_bytes: int
    checks: tuple[tuple[str, bytes], ...]


class Start(PlainData, frozen=True):
    """What a plan goes on from: the job of MakePlan.  `contents` None: what the client gave."""

    contents: Contents | None
    holders: Holders


# -- events -----------------------------------------------------------------------------------------------


class NodesChanged(PlainData, frozen=True):
    """The nodes that may get work changed; `error` says what became of those that may not any more.  Of these some are
    `away`: they may come back, and then NodeReturned says what they have kept."""

    nodes: frozenset[str]
    error: MeshError | None = None
    away: frozenset[str] = frozenset()


class NodeReturned(PlainData, frozen=True):
    """A worker joined that was here before.  `deployed` are the plans and copies that it still has, by generation.
    `steps_done` is how many steps of a plan it has done, of the last of which it has the state."""

    node: str
    deployed: frozenset[int]
    steps_done: Mapping[int, int] = {}


class BetterPlanFound(PlainData, frozen=True):
    """A plan was found that is worth the move."""


class StepRequested(PlainData, frozen=True):
    """The client asks for a step; its number is what `next_number` was."""


class AnswersHeard(PlainData, frozen=True):
    """The client has the answers of the first `steps` steps; only durable sessions have this event."""

    steps: int


class ClientWent(PlainData, frozen=True):
    """The client that drives the session is `away`, or back."""

    away: bool


class ClaimRequested(PlainData, frozen=True):
    """Another client is to drive the session, once what was asked for is done and stored."""


class StateRequested(PlainData, frozen=True):
    """The client asks for the value after all steps that it has asked for so far."""

    request: int


class StateRequestWithdrawn(PlainData, frozen=True):
    request: int


class CloseRequested(PlainData, frozen=True):
    """The session is to end: its caller is done, or its shell failed in a way that no other event reports."""

    error: MeshError | None = None


class ReplayLimitExceeded(PlainData, frozen=True):
    """The feeds since the last copy, or since the first state, take too much memory to be kept for a replay."""


class NodeStuck(PlainData, frozen=True):
    """A worker is connected, and is stuck in work that is no session's."""

    node: str


class CompilationReported(PlainData, frozen=True):
    """A worker said for how many seconds it has been compiling a part."""

    node: str
    generation: int
    part: int
    seconds: float


class SnapshotTaken(PlainData, frozen=True):
    """A worker has made blobs of its pieces."""

    copy: int
    node: str
    contents: Contents


class CopyStored(PlainData, frozen=True):
    """A node has stored what it is to keep of a copy."""

    copy: int
    node: str


class CopyFailed(PlainData, frozen=True):
    """A node did not do its part in a copy."""

    copy: int
    node: str
    error: MeshError


class ChecksMade(PlainData, frozen=True):
    """Workers made the checks of a copy, as far as there are enough workers."""

    copy: int
    checked: tuple[Checked, ...]


class ChecksFailed(PlainData, frozen=True):
    copy: int
    error: MeshError


# -- actions ----------------------------------------------------------------------------------------------


class ReportStuckStep(PlainData, frozen=True):
    """Report that a step does not end and is given up; `nodes` compute it, and wait for nobody."""

    generation: int
    nodes: frozenset[str]


class TakeSnapshot(PlainData, frozen=True):
    """Have a worker make blobs of what step `step` of the plan left; answered by SnapshotTaken or CopyFailed."""

    copy: int
    generation: int
    step: int
    node: str


class MakeChecks(PlainData, frozen=True):
    """Have workers make checks of what others have of a copy; answered by ChecksMade or ChecksFailed."""

    copy: int
    contents: Contents
    owners: Mapping[Piece, str]
    nodes: frozenset[str]


class StoreCopy(PlainData, frozen=True):
    """Have a node store these pieces of a copy, "" for this process; answered by CopyStored or CopyFailed."""

    copy: int
    node: str
    contents: Contents
    holders: Holders


class ReleaseCopy(PlainData, frozen=True):
    """Have a node release its pieces of a copy."""

    copy: int
    node: str


class ForgetFeeds(PlainData, frozen=True):
    """Free the feeds of steps below this number: they will not be done again."""

    below: int


class Claimed(PlainData, frozen=True):
    """The client that claimed the session may drive it: `steps` steps are done."""

    steps: int


class DeliverState(PlainData, frozen=True):
    """Give the caller the value that it asked for; `contents` None: what the client gave."""

    request: int
    contents: Contents | None
    holders: Holders


class RejectState(PlainData, frozen=True):
    request: int
    error: MeshError


class EndSession(PlainData, frozen=True):
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
