"""What copies of weights cost, and what a death costs then: `python bench/redundancy.py [MIB]`.

A model that no worker has room for, on three worker processes, one of which is killed.  For each policy: what workers
keep for each other, what moved from whom, and how long the call took before which the worker died, beside what the plan
said of it.  Answers are compared bit for bit.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import threading
import time
from typing import Any

import numpy as np

import mesh.numpy as mnp
from mesh import Mesh
from mesh.client.plan_preview import size_text

LAYERS = 12
POLICIES = ("checkpoint", "buddy", "coded", "replica")
WAIT_S = 60.0


def model(params: Any, x: Any) -> Any:
    for number in range(LAYERS):
        x = mnp.tanh(x @ params[f"w{number}"])
    return x


def measure(copies: str, weights: dict[str, Any], x: Any) -> None:
    layer_bytes = weights["w0"].nbytes
    room = (LAYERS if copies == "replica" else 8) * layer_bytes + (16 << 20)  # another's share too
    events: list[str] = []
    news = threading.Condition()

    def on_event(event: Any) -> None:
        with news:
            events.append(event["kind"])
            news.notify_all()

    with Mesh.builder().mesh("bench").local(3, "cpu", max_memory=room).copies(copies).build() as mesh:
        mesh.watch(on_event)
        held = mesh.put(weights)
        before = mesh.run(model, held, x, strategy="pipeline")
        if copies != "checkpoint":
            with news:
                assert news.wait_for(lambda: "guarded" in events, WAIT_S)
        took = []
        for _ in range(10):
            began = time.perf_counter()
            mesh.run(model, held, x, strategy="pipeline")
            took.append(time.perf_counter() - began)
        plan = mesh.plan(model, held, x, strategy="pipeline").redundancy
        row = plan["deaths"][1]
        os.kill(next(node.pid for node in mesh.nodes if node.name == row["worker"]), signal.SIGKILL)
        began = time.perf_counter()
        after = mesh.run(model, held, x, strategy="pipeline")
        through_s, report = time.perf_counter() - began, mesh.report()
    assert before.tobytes() == after.tobytes()
    kept = sum(each["kept_bytes"] for each in plan["memory"])
    client = sum(each.weight_bytes["client"] for each in report.workers.values())
    print(
        f"{copies:10}  kept for others {size_text(kept):>9}  lost {size_text(row['lost_bytes']):>9}  "
        f"moved {size_text(report.weight_bytes_moved):>9} (said {size_text(row['moved_bytes'])}), "
        f"from the client {size_text(client):>9}  a call {statistics.median(took) * 1e3:6.1f} ms, "
        f"through the death {through_s * 1e3:7.1f} ms (weights: said {row['seconds'] * 1e3:.0f} ms)",
        flush=True,
    )


def main() -> None:
    mib = float(sys.argv[1]) if len(sys.argv) > 1 else 48.0
    width = int((mib * (1 << 20) / LAYERS / 4) ** 0.5) // 16 * 16
    rng = np.random.default_rng(0)
    weights = {f"w{n}": rng.standard_normal((width, width), np.float32) / np.float32(width**0.5) for n in range(LAYERS)}
    x = rng.standard_normal((4, width), np.float32)
    print(f"{LAYERS} layers of {size_text(weights['w0'].nbytes)} on three workers, load {os.getloadavg()[0]:.1f}")
    for copies in POLICIES:
        measure(copies, weights, x)


if __name__ == "__main__":
    main()
