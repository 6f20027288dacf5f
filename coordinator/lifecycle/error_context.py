"""Errors that explain: where something happened, what was computed there, and what to do about it.  Pure."""

from __future__ import annotations

from collections.abc import Collection

from wire.errors import BlobError, DeadlineExceeded, DeviceLost, ExecuteFailed, MeshError, NodeLost, OutOfMemory
from wire.units import time_text

from ..planning import plan_messages
from ..planning.model.plan import Plan
from ..workers.failure_detector import Cause, HealthConfig, Transition


def explain(error: MeshError, name: str, node: str, plan: Plan | None) -> frozenset[str]:
    """Complete the error of the worker `name` for people.  If an engine host died of it: what that was computing."""
    error.node = error.node or name
    if plan is None or not error.part.isdigit():
        return frozenset()
    work = plan_messages.work_of(plan, node, int(error.part))
    error.op = error.op or plan_messages.work_text(work)
    return work if isinstance(error, DeviceLost) else frozenset()


def lost_node(name: str, change: Transition, health: HealthConfig) -> NodeLost:
    """The error of calls that a death ended, which says what to turn where the worker was only slow."""
    message = f"worker {name} is gone: {change.reason}"
    if change.cause is Cause.CLOSED:
        return NodeLost(message, node=name, next_step="Its log says why; start it again with mesh-worker")
    return NodeLost(
        message,
        node=name,
        cause=f"last seen {change.silent_s:.2f} s before; the node time-out is {health.node_timeout_s:g} s",
        next_step="If it was only slow, allow more: --node-timeout {0:g}, or Mesh.builder().node_timeout({0:g})".format(
            2 * health.node_timeout_s
        ),
    )


def in_quarantine(name: str) -> NodeLost:
    """The error of work that a worker in quarantine had."""
    return NodeLost(
        f"worker {name} is in quarantine: it was wrong twice",
        node=name,
        next_step="Test its memory and its device, then start it and the coordinator again",
    )


def no_worker_left(waited_s: float, paused: int, last: MeshError | None) -> NodeLost:
    """The error of calls that no worker is left for; `paused` are there and do not work."""
    if paused:
        who = "the only worker is" if paused == 1 else f"all {paused} workers are"
        waited = f", and none was lent again for {waited_s:g} s" if waited_s else ""
        there = "On its machine: mesh-worker resume; or, if it was paused from here: mesh-coord nodes resume NAME"
        return NodeLost(f"{who} paused{waited}", next_step=there)
    error = NodeLost(
        f"no worker is left, and none joined for {waited_s:g} s",
        cause=str(last or ""),
        next_step="Start mesh-worker on a machine of this mesh",
    )
    error.log_lines = last.log_lines if last else ()
    return error


def disagreement(times: int) -> ExecuteFailed:
    """The error of a call whose answer was doubted again and again."""
    return ExecuteFailed(
        f"workers disagreed about the answer {times} times",
        next_step="Add a worker: among three or more the one that is wrong is found",
    )


def stuck_step(took_s: float) -> MeshError:
    """The error of a session whose step never ends; those before it took `took_s` at most."""
    return DeadlineExceeded(
        "a step of the session does not end, though its workers are there",
        cause=f"steps before it took {time_text(took_s)} at most" if took_s else "it is the first",
        next_step="See with mesh-coord nodes which worker hangs, and start that one again",
    )


def stalled(seconds: float) -> MeshError:
    """The error of a call for which nobody works any more, though it is not done."""
    return DeadlineExceeded(
        f"nobody has worked on the call for {seconds:.0f} s, though its workers are there and it is not done",
        cause="something between two of them was lost, perhaps with a connection that is cut",
        next_step="See with mesh-coord topology which of them reach each other",
    )


def stuck_at_first(node: str) -> MeshError:
    """The error of a session for which a worker does not get ready: it compiles, or does something else, without
    end."""
    return DeadlineExceeded(
        "a worker does not get ready for the session: it takes far too long to compile, or for what it did before",
        node=node,
        next_step="See with mesh-coord nodes which worker hangs, and start that one again",
    )


def is_lack_of_memory(error: MeshError) -> bool:
    """Whether a copy was not kept because there is no memory for it, or its content is not to be had."""
    return isinstance(error, OutOfMemory | BlobError)


def state_lost(error: MeshError | None, copies: str, gone: Collection[str]) -> NodeLost:
    """The error of a session whose state is lost in spite of these copies; `gone` are the workers that died lately."""
    which = f" {', '.join(gone)}" if gone else "s"
    kept = "none was asked for" if copies == "none" else f"copies={copies!r} went with them"
    lost = NodeLost(
        f"the session's state was lost with worker{'s' * (len(gone) > 1)}{which}, and there is no copy of it: {kept}",
        cause=str(error or ""),
        next_step="Open sessions with copies='buddy' or 'checkpoint', and buddies on machines that do not die together"
        if copies == "none"
        else "Make copies more often (every=), or keep them in this process: copies='checkpoint'",
    )
    lost.node = error.node if error else ""
    return lost


def cannot_continue(error: MeshError, gone: Collection[str], step: int) -> MeshError:
    """The error of a session that cannot go on with the workers that are left, after the death of some."""
    if not gone:
        return error
    error = error.copy()
    error.message = f"no worker that is left can continue the session without {', '.join(gone)}: {error.message}"
    error.next_step = f"Start {', '.join(gone)} again, or a worker like it, and begin from a state after step {step}"
    return error


def not_readable_yet(error: MeshError | None) -> NodeLost:
    """The error of a read of a state that only the workers of a plan hold that has done no step yet."""
    return NodeLost(
        "the other holders of the session's state are gone, and its present workers can give it after their next step",
        cause=str(error or ""),
        next_step="Do a step, and ask again",
    )
