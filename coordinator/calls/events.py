"""What happens to the coordinator's machine, and what it wants done, besides what every plan has in its life
(`coordinator/lifecycle/events.py`).

Data only.  To add an event or an action, add a class, name it in `Event` or `Action`, and give it a row in the tables
of `CoordinatorState` or of `CallRunner` in `coordinator/runtime/call_runner.py`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from wire.errors import MeshError
from wire.plain_data import PlainData

from ..lifecycle.events import DeployDone as DeployDone
from ..lifecycle.events import DeployFailed as DeployFailed
from ..lifecycle.events import ForgetPlan as ForgetPlan
from ..lifecycle.events import MakePlan as MakePlan
from ..lifecycle.events import NodeBegan as NodeBegan
from ..lifecycle.events import NodeRan as NodeRan
from ..lifecycle.events import OutputArrived as OutputArrived
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

# -- events -----------------------------------------------------------------------------------------------


class NodeJoined(PlainData, frozen=True):
    node: str


class NodeGone(PlainData, frozen=True):
    """A node died or left, so its plans are void.  If it crashed, `work` is what it had to compute, by generation.  One
    that is `away` did not say goodbye, and may come back with what it holds for sessions."""

    node: str
    error: MeshError
    work: Mapping[int, frozenset[str]] = {}
    away: bool = False


class NodePaused(PlainData, frozen=True):
    """A node is connected and takes no work, and has handed back what it had; NodeJoined ends the pause."""

    node: str


class WorkReported(PlainData, frozen=True):
    """A node said what it computes, and for how long: (generation, step, part, seconds).  Step PREPARING is
    compiling."""

    node: str
    runs: tuple[tuple[int, int, int, float], ...]


class ProfilesChanged(PlainData, frozen=True):
    """The nodes are the same, but not what they can do: later calls get new plans."""


class PlanOutdated(PlainData, frozen=True):
    """A better plan than this generation's was found: later calls get that one."""

    generation: int


class CallSubmitted(PlainData, frozen=True):
    """A call is to be evaluated, without the nodes to `avoid` as long as others are there.  Calls with equal `job`
    share a plan.  A patient call waits for a node without end.  `input_bytes` are those of its inputs that do not
    travel within messages: they take memory until the call is over."""

    call: int
    job: Hashable
    avoid: frozenset[str] = frozenset()
    patient: bool = False
    input_bytes: int = 0


class JobForgotten(PlainData, frozen=True):
    """No more calls of this job will come, and what workers keep of it may be freed."""

    job: Hashable


class CallCancelled(PlainData, frozen=True):
    call: int


# -- actions ----------------------------------------------------------------------------------------------


class ReportStalled(PlainData, frozen=True):
    """Report that nobody has worked on a plan for too long, and that it is made anew."""

    generation: int
    error: MeshError


Event = (
    PlanEvent | NodeJoined | NodeGone | NodePaused | ProfilesChanged | PlanOutdated | WorkReported | CallSubmitted
    | CallCancelled | JobForgotten
)  # fmt: skip
NODE_EVENTS = frozenset({NodeJoined, NodeGone, NodePaused, ProfilesChanged})  # other plans may be wanted after it
Action = PlanAction | ReportStalled
