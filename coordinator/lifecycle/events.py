"""What happens to a plan, and what is done for it, be it of a call or of a session.

Data only.  `generation` is the plan's number.  A *step* is one run of the whole plan: of a call it is all there is, of
a session one of many.  To add an event or an action, add a class here, name it in `PlanEvent` or `PlanAction`, and
give it a row in the table of `PlanLifecycle` (`plan_lifecycle.py`) or of `PlanShell` (`plan_shell.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from wire.errors import MeshError

Piece = Any  # hashable: the part of a session's state that one place holds (`plan.FromState`)
Holders = Mapping[Piece, frozenset[str]]  # who has them; "" is this process

# -- events -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlanMade:
    """A plan was made.  `nodes` are those that it uses, `outputs` how many outputs come back.  Predictions: `seconds`
    for every part, `prepare_s` to compile it, `step_s` for a whole step, infinity where that depends on values.  Of a
    session: which nodes make each piece of the state, and whether workers have no room for each other's copies."""

    generation: int
    nodes: frozenset[str]
    outputs: int
    seconds: Mapping[int, float] = field(default_factory=dict)
    prepare_s: Mapping[int, float] = field(default_factory=dict)
    step_s: float = 0.0
    owners: Holders = field(default_factory=dict)
    roomless: bool = False


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
    """All parts of a node are done for this step; `seconds` is what each took.  `outputs`, by slot, came with it."""

    generation: int
    step: int
    node: str
    seconds: Mapping[int, float] = field(default_factory=dict)
    outputs: Mapping[int, Any] = field(default_factory=dict)


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
class Tick:
    """A deadline was reached.  `working` are the workers that compute a part which waits for no other, as ranks do: its
    plan, its step, and the seconds so far."""

    working: Mapping[str, tuple[int, int, float]] = field(default_factory=dict)


# -- actions ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MakePlan:
    """Plan a job for these nodes: what a call is of, or what a session goes on from."""

    generation: int
    job: Any
    nodes: frozenset[str]


@dataclass(frozen=True, slots=True)
class SendDeploy:
    generation: int
    node: str


@dataclass(frozen=True, slots=True)
class SendRun:
    """Have a node run a step of the plan for the call of this number, or as the session's step of this number;
    `committed` of the plan's steps are committed."""

    generation: int
    step: int
    node: str
    number: int
    committed: int = 0


@dataclass(frozen=True, slots=True)
class SendCancel:
    """Have a node give up a step that it has not done: nobody waits for it any more."""

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
class ForgetPlan:
    """Nothing refers to this generation any more."""

    generation: int


@dataclass(frozen=True, slots=True)
class Resolve:
    """Give the caller the outputs, by slot, of a call or of a committed step: once, and those of steps in order."""

    number: int
    generation: int
    outputs: Mapping[int, Any]


@dataclass(frozen=True, slots=True)
class Reject:
    number: int
    error: MeshError


PlanFailure = PlanFailed | DeployFailed | RunFailed
PlanEvent = PlanMade | PlanFailure | DeployDone | NodeBegan | NodeRan | OutputArrived | Tick
PlanAction = MakePlan | SendDeploy | SendRun | SendCancel | SendDrop | ForgetPlan | Resolve | Reject
