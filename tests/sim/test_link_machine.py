"""One link between two Peers as a hypothesis state machine: whatever both do, and wherever the carrier is lost.

`PYTHONHASHSEED=0 python tests/sim/test_link_machine.py COUNT [SEED]` runs that many scripts and reports.
"""

from __future__ import annotations

import sys
import time

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.core import seed
from hypothesis.stateful import run_state_machine_as_test
from support.machines.link_machine import LinkMachine


def scripts(count: int, steps: int, derandomize: bool = True) -> settings:
    return settings(
        max_examples=count,
        stateful_step_count=steps,
        derandomize=derandomize,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.parametrize("count", [50, pytest.param(20_000, marks=pytest.mark.long)])
def test_requests_end_once_streams_arrive_whole_and_nothing_is_left(count: int) -> None:
    links, whole = LinkMachine.links, LinkMachine.whole
    run_state_machine_as_test(LinkMachine, settings=scripts(count, 50))
    assert LinkMachine.links - links >= count and LinkMachine.whole - whole >= count / 10


if __name__ == "__main__":
    count, first = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    began_s = time.monotonic()
    run_state_machine_as_test(seed(first)(LinkMachine), settings=scripts(count, 100, derandomize=False))
    print(
        f"{count} scripts of seed {first}: {LinkMachine.links} links, {LinkMachine.whole} whole streams, "
        f"{time.monotonic() - began_s:.0f} s"
    )
