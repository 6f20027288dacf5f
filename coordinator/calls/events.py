"""What happens to the coordinator's machine, and what it wants done.

Data only.  To add an event or an action, add a class, name it in `Event` or `Action`, and give it a row in the tables
of `CoordinatorState` or of `Coordinator` in `coordinator/coordinator.py`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from wire.errors import MeshError

# -- events -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeJoined:
    node: str


@dataclass(frozen=True, slots=True)
class NodeGone:
    """A node died or left, so its plans are void.  If it crashed, `work` is what it had to compute, by generation.  One
    that is `away` did not say goodbye, and may come back with what it holds for sessions."""

    node: str
    error: MeshError
    work: Mapping[int, frozenset[str]] = field(default_factory=dict)
    away: bool = False


@dataclass(frozen=True, slots=True)
class NodePaused:
    """A node is connected and takes no work, and has handed back what it had; NodeJoined ends the pause."""

    node: str


@dataclass(frozen=True, slots=True)
class WorkReported:
    """A node said what it computes, and for how long: (generation, step, part, seconds).  Step PREPARING is
    compiling."""

    node: str
    runs: tuple[tuple[int, int, int, float], ...]


@dataclass(frozen=True, slots=True)
class ProfilesChanged:
    """The nodes are the same, but not what they can do: later calls get new plans."""


@dataclass(frozen=True, slots=True)
class PlanOutdated:
    """A better plan than this generation's was found: later calls get that one."""

    generation: int


@dataclass(frozen=True, slots=True)
class CallSubmitted:
    """A call is to be evaluated, without the nodes to `avoid` as long as others are there.  Calls with equal `job`
    share a plan.  A patient call waits for a node without end.  `input_bytes` are those of its inputs that do not
    travel within messages: they take memory until the call is over."""

    call: int
    job: Hashable
    avoid: frozenset[str] = frozenset()
    patient: bool = False
    input_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PlanMade:
    """A plan was made.  `nodes` are those that it uses, `outputs` how many graph outputs come back.  Predictions:
    `seconds` for every part, `prepare_s` to compile it, `call_s` for a whole call."""

    generation: int
    nodes: frozenset[str]
    outputs: int
    seconds: Mapping[int, float] = field(default_factory=dict)
    prepare_s: Mapping[int, float] = field(default_factory=dict)
    call_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PlanFailed:
    generation: int
    error: MeshError


@dataclass(frozen=True, slots=True)
class DeployDone:
    generation: int
    node: str


@dataclass(frozen=True, slots=True)
class DeployFailed:
    """A node could not deploy its parts; `work` is that of RunFailed."""

    generation: int
    node: str
    error: MeshError
    work: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class NodeBegan:
    """The first part of a node in a step runs."""

    generation: int
    step: int
    node: str


@dataclass(frozen=True, slots=True)
class NodeRan:
    """All parts of a node are done for this step; `seconds` is what each took."""

    generation: int
    step: int
    node: str
    seconds: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunFailed:
    """A node could not run its parts.  If an engine host died of it, `work` is what that was computing.  `culprit` is
    the node whose error it is, where `node` waited for another one; "" for `node` itself."""

    generation: int
    step: int
    node: str
    error: MeshError
    work: frozenset[str] = frozenset()
    culprit: str = ""


@dataclass(frozen=True, slots=True)
class OutputArrived:
    generation: int
    step: int
    slot: int
    value: Any


@dataclass(frozen=True, slots=True)
class JobForgotten:
    """No more calls of this job will come, and what workers keep of it may be freed."""

    job: Hashable


@dataclass(frozen=True, slots=True)
class CallCancelled:
    call: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed; `now` says how much."""


# -- actions ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MakePlan:
    generation: int
    job: Hashable
    nodes: frozenset[str]


@dataclass(frozen=True, slots=True)
class SendDeploy:
    generation: int
    node: str


@dataclass(frozen=True, slots=True)
class SendRun:
    generation: int
    step: int
    node: str
    call: int


@dataclass(frozen=True, slots=True)
class SendCancel:
    generation: int
    step: int
    node: str


@dataclass(frozen=True, slots=True)
class SendDrop:
    """Have a node forget a plan; with `free` weights that only it used are freed and not kept."""

    generation: int
    node: str
    free: bool = False


@dataclass(frozen=True, slots=True)
class ReportStalled:
    """Report that nobody has worked on a plan for too long, and that it is made anew."""

    generation: int
    error: MeshError


@dataclass(frozen=True, slots=True)
class ForgetPlan:
    """Nothing refers to this generation any more."""

    generation: int


@dataclass(frozen=True, slots=True)
class Resolve:
    """The call's outputs, by slot."""

    call: int
    generation: int
    outputs: Mapping[int, Any]


@dataclass(frozen=True, slots=True)
class Reject:
    call: int
    error: MeshError


Event = (
    NodeJoined | NodeGone | NodePaused | ProfilesChanged | PlanOutdated | WorkReported | CallSubmitted | PlanMade
    | PlanFailed | DeployDone | DeployFailed | NodeBegan | NodeRan | RunFailed | OutputArrived | CallCancelled
    | JobForgotten | Tick
)  # fmt: skip
NODE_EVENTS = frozenset({NodeJoined, NodeGone, NodePaused, ProfilesChanged})  # other plans may be wanted after it
Action = MakePlan | SendDeploy | SendRun | SendCancel | SendDrop | ReportStalled | ForgetPlan | Resolve | Reject
