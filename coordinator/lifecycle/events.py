"""What happens to a plan, and what is done for it, be it of a call or of a session.

Data only.  `generation` is the plan's number.  A *step* is one run of the whole plan: of a call it is all there is, of
a session one of many.  To add an event or an action, add a class here, name it in `PlanEvent` or `PlanAction`, and
give it a row in the table of `PlanLifecycle` (`plan_lifecycle.py`) or of `PlanShell` (`plan_shell.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wire.errors import MeshError
from wire.plain_data import PlainData

Piece = Any  # hashable: the part of a session's state that one place holds (`plan.FromState`)
Holders = Mapping[Piece, frozenset[str]]  # the nodes that have them; "" is this process
NO_HOLDERS: Holders = {}

# -- events -----------------------------------------------------------------------------------------------


class PlanMade(PlainData, frozen=True):
    """A plan was made.  `nodes` are those that it uses, `outputs` how many outputs come back.  Predictions: `seconds`
    for every part, `prepare_s` to compile it, `step_s` for a whole step, infinity where that depends on values.  Of a
    session: which nodes make each piece of the state, and whether workers have no room for each other's copies."""

    generation: int
    nodes: frozenset[str]
    outputs: int
    seconds: Mapping[int, float] = {}
    prepare_s: Mapping[int, float] = {}
    step_s: float = 0.0
    owners: Holders = NO_HOLDERS
    roomless: bool = False


class PlanFailed(PlainData, frozen=True):
    generation: int
    error: MeshError


class DeployDone(PlainData, frozen=True):
    generation: int
    node: str


class DeployFailed(PlainData, frozen=True):
    """A node could not deploy its parts; `work` is that of RunFailed."""

    generation: int
    node: str
    error: MeshError
    work: frozenset[str] = frozenset()


class NodeBegan(PlainData, frozen=True):
    """The first part of a node in a step runs."""

    generation: int
    step: int
    node: str


class NodeRan(PlainData, frozen=True):
    """All parts of a node are done for this step; `seconds` is what each took.  `outputs`, by slot, came with it."""

    generation: int
    step: int
    node: str
    seconds: Mapping[int, float] = {}
    outputs: Mapping[int, Any] = {}


class RunFailed(PlainData, frozen=True):
    """A node could not run its parts.  If an engine host died of it, `work` is what that was computing.  `culprit` is
    the node whose error it is, where `node` waited for another one; "" for `node` itself."""

    generation: int
    step: int
    node: str
    error: MeshError
    work: frozenset[str] = frozenset()
    culprit: str = ""


class OutputArrived(PlainData, frozen=True):
    generation: int
    step: int
    slot: int
    value: Any


class Tick(PlainData, frozen=True):
    """A deadline was reached.  `working` are the workers that compute a part which waits for no other, as ranks do: its
    plan, its step, and the seconds so far."""

    working: Mapping[str, tuple[int, int, float]] = {}


# -- actions ----------------------------------------------------------------------------------------------


class MakePlan(PlainData, frozen=True):
    """Plan a job for these nodes: what a call is of, or what a session goes on from."""

    generation: int
    job: Any
    nodes: frozenset[str]


class SendDeploy(PlainData, frozen=True):
    generation: int
    node: str


class SendRun(PlainData, frozen=True):
    """Have a node run a step of the plan for the call of this number, or as the session's step of this number;
    `committed` of the plan's steps are committed."""

    generation: int
    step: int
    node: str
    number: int
    committed: int = 0


class SendCancel(PlainData, frozen=True):
    """Have a node give up a step that it has not done: nobody waits for it any more."""

    generation: int
    step: int
    node: str


class SendDrop(PlainData, frozen=True):
    """Have a node forget a plan; with `free` weights that only it used are freed and not kept."""

    generation: int
    node: str
    free: bool = False


class ForgetPlan(PlainData, frozen=True):
    """Nothing refers to this generation any more."""

    generation: int


class Resolve(PlainData, frozen=True):
    """Give the caller the outputs, by slot, of a call or of a committed step: once, and those of steps in order."""

    number: int
    generation: int
    outputs: Mapping[int, Any]


class Reject(PlainData, frozen=True):
    number: int
    error: MeshError


PlanFailure = PlanFailed | DeployFailed | RunFailed
PlanEvent = PlanMade | PlanFailure | DeployDone | NodeBegan | NodeRan | OutputArrived | Tick
PlanAction = MakePlan | SendDeploy | SendRun | SendCancel | SendDrop | ForgetPlan | Resolve | Reject
