"""No false death of real workers that get a fifth of a core each, two of them beside a process that wants all of it.

`python tests/e2e/test_quota_hours.py MINUTES [FILE]` goes on for so long and adds what it saw to FILE, a line of JSON
every minute; it prints the sum over all runs of that file.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.compare import assert_as_promised
from support.processes.faults import WIDTH, EventTap, tower, weights
from support.processes.quota import NoQuota, burner, cpu_quota
from support.processes.worker_process import children

from mesh import Mesh

RESULTS = Path(__file__).resolve().parents[2] / "bench" / "results" / "quota_hours.jsonl"
WORKERS = 8
BURNERS = 2  # so many workers share their quota with a process that uses all the worker leaves
SHARE = 0.2  # of one core, for a worker with its engine host and, where there is one, its burner
LOOK_S = 60.0
GIVEN_MIN = 0.95  # who wants all it can get comes up to the quota in so many periods, or did not get it
TRIES = 3
TOLD = ("suspect", "probed", "healthy", "dead")
CALL_EVERY_S = 5.0  # there is some work too


def watch(seconds: float) -> Iterator[dict[str, Any]]:
    """What happened, in spans of a minute."""
    with ExitStack() as stack:
        quotas = [stack.enter_context(cpu_quota(SHARE)) for _ in range(WORKERS)]
        mesh = stack.enter_context(Mesh.builder().local(WORKERS, engine="cpu").build())
        x, layers = np.ones((4, WIDTH), np.float32), weights(0)
        held = mesh.put(layers)
        expected = mesh.run(tower, held, x)
        tap = EventTap(mesh)
        for node, quota in zip(mesh.nodes, quotas, strict=True):
            for pid in (node.pid, *children(node.pid)):
                quota.add(pid)
        for quota in quotas[:BURNERS]:
            stack.enter_context(burner(quota))
        end_s = time.monotonic() + seconds
        while (began_s := time.monotonic()) < end_s:
            throttled, told = sum(quota.throttled for quota in quotas), []
            until_s = min(began_s + LOOK_S, end_s)
            while time.monotonic() < until_s:
                assert_as_promised("auto", mesh.run(tower, held, x), expected, len(layers))
                rest_s = min(CALL_EVERY_S, max(until_s - time.monotonic(), 0.0))
                rest_until_s = time.monotonic() + rest_s
                while (left_s := rest_until_s - time.monotonic()) > 0:
                    found = tap.wait(lambda event: event["kind"] in TOLD, left_s)
                    if found is not None:
                        told.append((found[1]["kind"], found[1]["node"], found[1]["text"]))
            yield {
                "worker_hours": WORKERS * (time.monotonic() - began_s) / 3600.0,
                "throttled": sum(quota.throttled for quota in quotas) - throttled,
                "given": min(quota.throttled / max(quota.periods, 1) for quota in quotas[:BURNERS]),
                "suspect": sum(kind == "suspect" for kind, _, _ in told),
                "dead": sum(kind == "dead" for kind, _, _ in told),
                "told": told,
            }


def test_nobody_is_dead_on_a_fifth_of_a_core() -> None:
    for _ in range(TRIES):
        try:
            (span,) = watch(8.0)
        except NoQuota as reason:
            pytest.skip(f"no cgroup can be made here: {reason}")
        if not span["throttled"]:  # others have the machine, and nobody reached its share
            continue
        if not span["dead"]:
            return
        assert span["given"] < GIVEN_MIN, span
    pytest.skip("this machine has no fifth of a core for each of them")


def main(minutes: float, path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    for span in watch(60.0 * minutes):
        with path.open("a") as file:
            file.write(json.dumps(span) + "\n")
    spans = [json.loads(line) for line in path.read_text().splitlines()]
    total = {name: sum(span[name] for span in spans) for name in ("worker_hours", "throttled", "suspect", "dead")}
    print(f"{WORKERS} workers at {SHARE:.0%} of a core each, {BURNERS} of them with none of it to spare: {total}")
    return int(total["dead"] > 0)


if __name__ == "__main__":
    file = Path(sys.argv[2]) if len(sys.argv) > 2 else RESULTS
    sys.exit(main(float((sys.argv[1:] or ["1"])[0]), file))
