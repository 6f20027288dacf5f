"""Action failures: the event that the state machine gets where an action could not be performed.  Pure.

An action that has an answer has a row here, so that no call waits for one that will not come.
"""

from __future__ import annotations

from collections.abc import Mapping

from wire.errors import MeshError
from wire.protocol.messages import NodeReport

from ..workers.records import Deployment, Member
from ..workers.worker_names import culprit
from . import events as ev
from .error_context import explain

_DOING: Mapping[type, str] = {ev.MakePlan: "planning", ev.SendDeploy: "deploying", ev.SendRun: "running"}


def doing(action: object) -> str:
    """What an action does, for people."""
    return _DOING.get(type(action), f"the coordinator's {type(action).__name__}")


def failure_of(
    action: object,
    error: MeshError,
    known: Mapping[str, NodeReport],
    members: Mapping[str, Member],
    deployments: Mapping[int, Deployment],
) -> ev.PlanFailure | None:
    """The event that `action` failed, with the error completed for people; None for one that nobody waits for."""

    def work_of(generation: int, node: str) -> frozenset[str]:
        plan = deployments[generation].plan if generation in deployments else None
        return explain(error, known[node].name if node in known else "", node, plan)

    match action:
        case ev.MakePlan(generation):
            return ev.PlanFailed(generation, error)
        case ev.SendDeploy(generation, node):
            return ev.DeployFailed(generation, node, error, work_of(generation, node))
        case ev.SendRun(generation, step, node):
            work = work_of(generation, node)
            return ev.RunFailed(generation, step, node, error, work, culprit(error, node, members))
    return None
