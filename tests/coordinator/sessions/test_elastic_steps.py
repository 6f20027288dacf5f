"""Elastic steps: one that is known is there at once, whatever is being made."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from mesh.client.elastic_session import Elastic
from mesh.functions.step_trace import Stepping


def test_a_step_that_is_made_already_waits_for_no_other_one() -> None:
    asked, go_on = threading.Event(), threading.Event()

    def make(portions: Any) -> Stepping:
        if portions == 2:
            asked.set()
            assert go_on.wait(240)
        return Stepping(lambda state, x: (state + x, state), np.zeros(3, np.float32), [np.ones(3, np.float32)], "auto")

    elastic = Elastic(make, 3, 3)
    making = threading.Thread(target=elastic.of, args=(2,))
    making.start()
    assert asked.wait(120)
    first = threading.Thread(target=elastic.of, args=(3,), daemon=True)
    first.start()
    first.join(60)
    stuck = first.is_alive()
    go_on.set()
    making.join()
    assert not stuck and elastic.of(3) is elastic.first and elastic.of(2) is not elastic.first
