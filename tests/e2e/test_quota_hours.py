"""No false death of real workers that get a fifth of one core among all of them, beside a process that wants all of it.

`python tests/e2e/test_quota_hours.py MINUTES [FILE]` goes on for so long and adds what it saw to FILE, a line of JSON
every minute; it prints the sum over all runs of that file.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from support.faults import WIDTH, EventTap, tower, weights
from support.quota import NoQuota, burner, cpu_quota
from support.worker_process import children

from mesh import Mesh

RESULTS = Path(__file__).resolve().parents[2] / "bench" / "results" / "quota_hours.jsonl"
WORKERS = 8
SHARE = 0.2  # of one core, for all workers and the burner together
LOOK_S = 60.0
CALL_EVERY_S = 5.0  # there is some work too


def watch(seconds: float) -> Iterator[dict[str, float]]:
    """What happened, in spans of a minute."""
    with ExitStack() as stack:
        quota = stack.enter_context(cpu_quota(SHARE))
        mesh = stack.enter_context(Mesh.builder().local(WORKERS, engine="cpu").build())
        x, layers = np.ones((4, WIDTH), np.float32), weights(0)
        held = mesh.put(layers)
        expected = mesh.run(tower, held, x)
        tap = EventTap(mesh)
        for node in mesh.nodes:
            for pid in (node.pid, *children(node.pid)):
                quota.add(pid)
        stack.enter_context(burner(quota))
        end_s = time.monotonic() + seconds
        while (began_s := time.monotonic()) < end_s:
            throttled, counts = quota.throttled, Counter[str]()
            until_s = min(began_s + LOOK_S, end_s)
            while time.monotonic() < until_s:
                np.testing.assert_array_equal(mesh.run(tower, held, x), expected)
                rest_s = min(CALL_EVERY_S, max(until_s - time.monotonic(), 0.0))
                rest_until_s = time.monotonic() + rest_s
                while (left_s := rest_until_s - time.monotonic()) > 0:
                    found = tap.wait(lambda event: event["kind"] in ("suspect", "dead"), left_s)
                    if found is not None:
                        counts[found[1]["kind"]] += 1
            yield {
                "worker_hours": WORKERS * (time.monotonic() - began_s) / 3600.0,
                "throttled": quota.throttled - throttled,
                "suspect": counts["suspect"],
                "dead": counts["dead"],
            }


def test_nobody_is_dead_on_a_fifth_of_a_core() -> None:
    try:
        (span,) = watch(8.0)
    except NoQuota as reason:
        pytest.skip(f"no cgroup can be made here: {reason}")
    assert span["dead"] == 0
    assert span["throttled"] > 0, "the quota was not felt"


def main(minutes: float, path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    for span in watch(60.0 * minutes):
        with path.open("a") as file:
            file.write(json.dumps(span) + "\n")
    spans = [json.loads(line) for line in path.read_text().splitlines()]
    total = {name: sum(span[name] for span in spans) for name in spans[0]}
    print(f"{total['worker_hours']:.2f} worker-hours at {SHARE:.0%} of a core among {WORKERS} workers:", total)
    return int(total["dead"] > 0)


if __name__ == "__main__":
    file = Path(sys.argv[2]) if len(sys.argv) > 2 else RESULTS
    sys.exit(main(float((sys.argv[1:] or ["1"])[0]), file))
