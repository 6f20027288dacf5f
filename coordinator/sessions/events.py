"""What happens to a session and what it wants done: the vocabulary of `state.py`.

Data only.  A *value* of the state is known by how many steps made it: value 0 is what the client gave, step n makes
value n + 1 of value n.  A *piece* is what of the state lives in one place, whatever that is (`plan.FromState`).  To add
an event or an action, add a class, name it in `Event` or `Action`, and give it a row in the tables of `SessionState` or
of `Sessions` in `runtime.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from wire.errors import MeshError

# What is the same for a session as for jobs (`generation`: of this session's plans).
from ..calls.events import DeployDone as DeployDone
from ..calls.events import DeployFailed as DeployFailed
from ..calls.events import ForgetPlan as ForgetPlan
from ..calls.events import OutputArrived as OutputArrived
from ..calls.events import PlanFailed as PlanFailed
from ..calls.events import RunFailed as RunFailed
from ..calls.events import SendDeploy as SendDeploy

Piece = Any  # hashable
Contents = Mapping[Piece, bytes]  # addresses
Holders = Mapping[Piece, frozenset[str]]  # who has them; "" is this process


@dataclass(frozen=True, slots=True)
class Check:
    """A sum of pieces, kept for when one of them is lost (`coordinator/planning/redundancy/parity_groups.py`); a node
    keeps it as it does a piece."""

    blob: bytes
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Checked:
    """Pieces that are checked together, and who made which check; any as many shares as there are pieces suffice."""

    pieces: tuple[Piece, ...]
    size_bytes: int
    checks: tuple[tuple[str, bytes], ...]


# -- events -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodesChanged:
    """These may get work from now on; `error` says what became of those that may not any more.  Of these some are
    `away`: they may come back with what they have, and NodeReturned says so, or that they do not have it."""

    nodes: frozenset[str]
    error: MeshError | None = None
    away: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class NodeReturned:
    """A worker joined that was here before; `kept` are plans and copies that it has still, by generation."""

    node: str
    kept: frozenset[int]


@dataclass(frozen=True, slots=True)
class BetterPlanFound:
    """There is a plan that is worth the move."""


@dataclass(frozen=True, slots=True)
class StepRequested:
    """Its number is what `next_number` was."""


@dataclass(frozen=True, slots=True)
class StateRequested:
    """The value after all steps that were asked for until now."""

    request: int


@dataclass(frozen=True, slots=True)
class StateRequestWithdrawn:
    request: int


@dataclass(frozen=True, slots=True)
class CloseRequested:
    """It ends: its caller has done, or what performs it failed in a way that nothing else answers."""

    error: MeshError | None = None


@dataclass(frozen=True, slots=True)
class ReplayLimitExceeded:
    """What the client gave, and all its feeds since, are too much to be held for a state that nobody copies."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A deadline is there.  `working` are workers that compute a part that waits for no other, as ranks do: of which
    plan and step it is, and for how many seconds by now."""

    working: Mapping[str, tuple[int, int, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeStuck:
    """A worker is there, and does not get on with something else."""

    node: str


@dataclass(frozen=True, slots=True)
class CompilationReported:
    """A worker has been compiling a part for so many seconds by now."""

    node: str
    generation: int
    part: int
    seconds: float


@dataclass(frozen=True, slots=True)
class PlanMade:
    """`nodes` are those the plan uses, `owners` which of them make each piece, `outputs` how many outputs come back;
    `seconds` what a step is predicted to take, infinity where that depends on values.  `roomless`: workers have no room
    for each other's copies.  `prepare_s` is what each part should take to compile."""

    generation: int
    nodes: frozenset[str]
    owners: Holders
    outputs: int
    seconds: float = 0.0
    roomless: bool = False
    prepare_s: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeRan:
    generation: int
    step: int
    node: str


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """A worker has made blobs of its pieces."""

    copy: int
    node: str
    contents: Contents


@dataclass(frozen=True, slots=True)
class CopyStored:
    """A node has what it is to keep of a copy."""

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
    """Of all pieces of a copy, as far as there are workers for that."""

    copy: int
    checked: tuple[Checked, ...]


@dataclass(frozen=True, slots=True)
class ChecksFailed:
    copy: int
    error: MeshError


# -- actions ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MakePlan:
    """Plan for these nodes, to go on from this value; `contents` None: from what the client gave."""

    generation: int
    nodes: frozenset[str]
    contents: Contents | None
    holders: Holders


@dataclass(frozen=True, slots=True)
class SendRun:
    """Step `step` of the plan is step `number` of the session; so many of the plan's are committed."""

    generation: int
    step: int
    node: str
    number: int
    committed: int


@dataclass(frozen=True, slots=True)
class ReportStuckStep:
    """A step does not end, and is given up; `nodes` compute it, and wait for nobody."""

    generation: int
    nodes: frozenset[str]


@dataclass(frozen=True, slots=True)
class StopStep:
    """This step of the plan will not be done, unless a worker has done it: it need not wait for the others any more."""

    generation: int
    step: int
    node: str


@dataclass(frozen=True, slots=True)
class SendDrop:
    generation: int
    node: str


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
    """Have a node hold these pieces of a copy, "" for this process; answered by CopyStored or CopyFailed."""

    copy: int
    node: str
    contents: Contents
    holders: Holders


@dataclass(frozen=True, slots=True)
class ReleaseCopy:
    """A node need not hold its pieces of a copy any more."""

    copy: int
    node: str


@dataclass(frozen=True, slots=True)
class ForgetFeeds:
    """Steps below this number will not be done again."""

    below: int


@dataclass(frozen=True, slots=True)
class Resolve:
    """A step is committed, and its outputs, by slot, are told: once, and in order."""

    number: int
    outputs: Mapping[int, Any]


@dataclass(frozen=True, slots=True)
class Reject:
    number: int
    error: MeshError


@dataclass(frozen=True, slots=True)
class DeliverState:
    """Here is what was asked for; `contents` None: what the client gave."""

    request: int
    contents: Contents | None
    holders: Holders


@dataclass(frozen=True, slots=True)
class RejectState:
    request: int
    error: MeshError


@dataclass(frozen=True, slots=True)
class EndSession:
    """Nothing of the session is left; with an error if nobody asked for its end."""

    error: MeshError | None


Event = (
    NodesChanged | NodeReturned | BetterPlanFound | StepRequested | StateRequested | StateRequestWithdrawn
    | CloseRequested | ReplayLimitExceeded | NodeStuck | CompilationReported | PlanMade | PlanFailed | DeployDone
    | DeployFailed | NodeRan | RunFailed | OutputArrived | SnapshotTaken | CopyStored | CopyFailed | ChecksMade
    | ChecksFailed | Tick
)  # fmt: skip
Action = (
    MakePlan | SendDeploy | SendRun | StopStep | ReportStuckStep | SendDrop | ForgetPlan | TakeSnapshot | MakeChecks
    | StoreCopy | ReleaseCopy | ForgetFeeds | Resolve | Reject | DeliverState | RejectState | EndSession
)  # fmt: skip
