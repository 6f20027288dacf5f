"""What a worker says that it did is reported as far as the plan has it: its outputs are right without that."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from support.machines.profiles import device, near, worker

from coordinator.planning.planner import make_plan
from coordinator.workers.call_report import worker_report
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder
from wire.protocol.messages import PartRun, Ran


def test_a_device_that_was_given_up_and_a_part_that_there_is_not_cost_no_report() -> None:
    builder = GraphBuilder()
    x = builder.input("x", (4,), F32)
    plan = make_plan(builder.build([builder.add("add", x, x)]), near(worker(0, device(0, 5.0, 10.0))), "single")
    node = cast(Any, SimpleNamespace(name="a", node_id="node-0", devices=()))
    ran = Ran((), (PartRun(0, 0.5, 0.25), PartRun(1 << 20, 1.0, 1.0)), 16, 16)
    (part,) = worker_report(plan, node, ran, ()).parts
    assert (part.part, part.engine, part.compute_s) == (0, "", 0.5)
