"""What follows for one worker keeps no other from being heard of."""

from __future__ import annotations

from typing import Any, cast

import pytest

from coordinator.runtime.health_watch import HealthWatch
from coordinator.workers.failure_detector import Cause, Health, Transition
from wire.errors import NodeLost


@pytest.mark.parametrize("fault", [KeyError("bad"), NodeLost("its link is closed")], ids=repr)
def test_a_decision_that_cannot_be_carried_out_keeps_nobody_from_hearing_of_a_death(
    caplog: pytest.LogCaptureFixture, fault: Exception
) -> None:
    heard: list[str] = []

    def changed(change: Transition) -> None:
        if change.node == "bad":
            raise fault
        heard.append(change.node)

    watch = cast(Any, HealthWatch.__new__(HealthWatch))
    watch._performers = {Transition: changed}
    row = Health.DEAD, Health.SUSPECT, 5.0, 5.0, "silent", Cause.TIMED_OUT, 1
    watch._judge([Transition(node, *row) for node in ("bad", "b", "c")])
    assert heard == ["b", "c"]
    assert "what follows of Transition failed" in caplog.text and str(fault) in caplog.text
