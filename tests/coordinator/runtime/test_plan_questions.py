"""Questions whose worker dies while the answer is sought."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.runtime.plan_questions import PlanQuestions
from wire.errors import NodeLost
from wire.ir.graph import WireGraph
from wire.protocol.messages import ExplainGraph


@pytest.mark.parametrize("parts", [(SimpleNamespace(node="n1"),), ()])
async def test_a_graph_whose_worker_died_while_it_was_planned_is_to_be_asked_about_again(parts: Any) -> None:
    members: dict[str, Any] = {"n1": SimpleNamespace(paused=False)}
    machine = SimpleNamespace(nodes=dict.fromkeys(members))

    async def plan(*asked: object) -> Any:
        members.clear()
        machine.nodes.clear()
        return SimpleNamespace(parts=parts)

    planning, guards = SimpleNamespace(plan=plan), SimpleNamespace(is_new=lambda *asked: False)
    questions = PlanQuestions(members, *cast(Any, (machine, planning, guards, None)))
    with pytest.raises(NodeLost, match="lost meanwhile"):
        await questions.explain(cast(WireGraph, None), ExplainGraph(b""))
