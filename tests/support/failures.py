"""The commonest failures as users read them: code, text and places, by name.

`python tests/support/failures.py` writes them anew: read them as a user would before committing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
if __name__ == "__main__":
    sys.path += [str(ROOT), str(ROOT / "tests")]

import numpy as np  # noqa: E402
from support.machines import coordinator_machine as coordinator  # noqa: E402
from support.machines import profiles  # noqa: E402
from support.machines import worker_machine as worker  # noqa: E402

from coordinator.calls import events as calls  # noqa: E402
from coordinator.lifecycle.error_context import explain, lost_node  # noqa: E402
from coordinator.planning.planner import make_plan  # noqa: E402
from coordinator.workers.failure_detector import Cause, Health, HealthConfig, Transition  # noqa: E402
from wire.addresses import parse_address  # noqa: E402
from wire.errors import MeshError  # noqa: E402
from wire.ir.dtypes import F32  # noqa: E402
from wire.ir.graph import GraphBuilder, WireGraph  # noqa: E402
from wire.joining.join_tokens import parse_token  # noqa: E402
from wire.protocol.versions import negotiate  # noqa: E402
from worker.engine_host.host import mesh_error_of  # noqa: E402
from worker.engine_host.watchdog import loss_of  # noqa: E402
from worker.state import events as ev  # noqa: E402
from worker.state.availability import MACHINE  # noqa: E402

PATH = ROOT / "tests" / "golden" / "errors.txt"
MATMUL = {"lhs_batch": (), "rhs_batch": (), "lhs_contract": (1,), "rhs_contract": (0,)}
PLACES = ("node", "part", "op", "cause", "next_step")


def graph(size: int = 64) -> WireGraph:
    made = GraphBuilder()
    x = made.input("x", (size, size), F32)
    return made.build([made.add("exp", made.add("dot", x, made.param("w", (size, size), F32), **MATMUL))])


def killed() -> MeshError:
    change = Transition("n1", Health.DEAD, Health.HEALTHY, 9.0, 0.02, "the connection ended", Cause.CLOSED, 1)
    return lost_node("desk", change, HealthConfig())


def silent() -> MeshError:
    change = Transition("n1", Health.DEAD, Health.SUSPECT, 9.0, 1.5, "silent for 1.50 s", Cause.TIMED_OUT, 1)
    return lost_node("desk", change, HealthConfig())


def alone() -> MeshError:
    drive = coordinator.Driver("a")
    drive(calls.CallSubmitted(1, "job"))
    drive(calls.NodeGone("a", killed()))
    return rejection(drive(calls.Tick(), after_s=5.0))


def all_paused() -> MeshError:
    drive = coordinator.Driver("a", "b")
    drive(calls.CallSubmitted(1, "job"))
    drive(calls.NodePaused("a"))
    drive(calls.NodePaused("b"))
    return rejection(drive(calls.Tick(), after_s=5.0))


def paused_at_its_machine() -> MeshError:
    drive = worker.Driver()
    drive(ev.PauseFileChanged(MACHINE))
    return worker.one(ev.Refuse, drive(ev.PauseRequested(worker.COORD, drive.request(), False))).error


def host_died() -> MeshError:
    return explained(loss_of("cpu", "it was ended by signal 9"))


def host_without_memory() -> MeshError:
    return explained(loss_of("cpu", "it was ended by signal 9", no_memory=True))


def part_failed() -> MeshError:
    return explained(mesh_error_of(IndexError("out of range")))


def poison() -> MeshError:
    drive = coordinator.Driver("a", "b", "c")
    drive(calls.CallSubmitted(1, "job"))
    drive.deployed(1, ("a", "b", "c"))
    for generation, node in ((1, "a"), (2, "b"), (3, "c")):
        error = loss_of("0", "it was ended by signal 11")
        error.node = node
        actions = drive(calls.RunFailed(generation, 0, node, error, frozenset({"dot f32[64,64]"})))
        for plan in coordinator.of(calls.MakePlan, actions):
            drive.deployed(plan.generation, tuple(sorted(plan.nodes)))
    return rejection(actions)


def nothing_fits() -> MeshError:
    small = profiles.worker(1, profiles.device(0, 1.0, 1.0), memory_bytes=1000)
    return raised(lambda: make_plan(graph(), profiles.near(small)))


def nobody_can() -> MeshError:
    narrow = profiles.worker(1, profiles.device(0, 1.0, 1.0, ("i32",)))
    return raised(lambda: make_plan(graph(), profiles.near(narrow)))


def busy() -> MeshError:
    return worker.one(ev.Refuse, worker.Driver().join("other", epoch=9)).error


def explained(error: MeshError) -> MeshError:
    """As the coordinator passes it on."""
    plan = make_plan(graph(), profiles.near(profiles.worker(1, profiles.device(0, 1.0, 1.0))))
    error.part = "0"
    explain(error, "desk", plan.parts[0].node, plan)
    return error


def rejection(actions: list[calls.Action]) -> MeshError:
    (rejected,) = coordinator.of(calls.Reject, actions)
    assert isinstance(rejected.error, MeshError)
    return rejected.error


def raised(work: Callable[[], object]) -> MeshError:
    try:
        work()
    except MeshError as error:
        return error
    raise AssertionError("nothing was raised")


FAILURES: dict[str, Callable[[], MeshError]] = {
    "a worker was killed": killed,
    "a worker fell silent": silent,
    "no worker is left": alone,
    "all workers are paused": all_paused,
    "a pause that only its machine can end": paused_at_its_machine,
    "an engine host died": host_died,
    "an engine host was ended for memory": host_without_memory,
    "an engine raised an error": part_failed,
    "an engine had no memory": lambda: explained(mesh_error_of(MemoryError("Unable to allocate 64 GiB"))),
    "a part kills engines": poison,
    "no plan fits the memory": nothing_fits,
    "no device computes an op": nobody_can,
    "a worker has another coordinator": busy,
    "an address is none": lambda: raised(lambda: parse_address("desk:port")),
    "a token is none": lambda: raised(lambda: parse_token("secret")),
    "another major version": lambda: raised(lambda: negotiate((1, 0), (2, 0))),
    "an unknown strategy": lambda: raised(
        lambda: make_plan(graph(), profiles.random_profiles(np.random.default_rng(1), 1), "best")
    ),
}


def current() -> str:
    """Every failure as this version tells it."""
    found = []
    for name, make in FAILURES.items():
        error = make()
        places = [f"    {place}: {getattr(error, place)}" for place in PLACES if getattr(error, place)]
        found.append("\n".join([f"{name} ({error.code})", f"  {error}", *places, ""]))
    return "\n".join(found)


if __name__ == "__main__":
    PATH.write_text(current())
