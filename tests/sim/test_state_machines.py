"""Simulated meshes as hypothesis state machines: any order of calls and faults; a failure prints a short script.

`PYTHONHASHSEED=0 python tests/sim/test_state_machines.py COUNT [SEED]` runs that many scripts and reports.
"""

from __future__ import annotations

import sys
import time

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.core import seed
from hypothesis.stateful import rule, run_state_machine_as_test
from support.simulated.sim_machine import CallingMesh, DurableMesh, FaultyMesh, worker

MACHINES = (CallingMesh, DurableMesh)


def scripts(count: int, steps: int, derandomize: bool = True) -> settings:
    return settings(
        max_examples=count,
        stateful_step_count=steps,
        derandomize=derandomize,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("count", [8, pytest.param(1000, marks=pytest.mark.long)])
def test_whatever_happens_every_call_ends_right_and_nothing_is_left(machine: type[FaultyMesh], count: int) -> None:
    before = machine.spotless_ends
    run_state_machine_as_test(machine, settings=scripts(count, 20))
    assert machine.spotless_ends - before >= count


class LyingMesh(CallingMesh):
    """A state machine with a fault that must be found."""

    @rule(name=worker)
    def device_lies(self, name: str) -> None:
        self.device(name).wrong = 1.0


@pytest.mark.long
def test_a_failure_is_told_as_the_shortest_script_that_shows_it() -> None:
    with pytest.raises(AssertionError, match="a wrong answer") as failed:
        run_state_machine_as_test(LyingMesh, settings=scripts(50, 6))
    told = "\n".join(failed.value.__notes__)
    script = [line.strip() for line in told.splitlines() if line.strip().startswith("state.")]
    assert len(script) == 2 and script[0].startswith("state.device_lies(name='sim-")
    assert "sim-0 starts" in told, "the transcript is there too"


if __name__ == "__main__":
    count, first = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    began_s = time.monotonic()
    for kind in MACHINES:
        run_state_machine_as_test(seed(first)(kind), settings=scripts(count, 30, derandomize=False))
    print(f"{count} scripts of seed {first} per machine, {time.monotonic() - began_s:.0f} s", flush=True)
