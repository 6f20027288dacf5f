"""What a worker's share of a step took, told apart, and how a profile shows it."""

from __future__ import annotations

import pytest

from coordinator.spans import Span
from mesh.training.profile import table
from wire.messages import PartRun, Ran


def test_a_span_tells_computing_inputs_exchange_and_messages_apart() -> None:
    parts = (PartRun(0, 0.25, 0.125, 0.0625), PartRun(1, 0.5, 0.0, 0.03125))
    span = Span.of("w", 3, 10.0, 11.0, Ran((), parts, 7, 9))
    assert (span.compute_s, span.wait_s, span.exchange_s) == (0.75, 0.125, 0.09375)
    assert span.rest_s == pytest.approx(1.0 - 0.96875)
    title, row = table([span, Span.of("w", 4, 11.0, 12.0, Ran((), parts, 7, 9))])
    assert title.split()[2::2][:4] == ["compute", "inputs", "exchange", "messages"]
    assert row.split() == ["w", "2", "750.00", "125.00", "93.75", "31.25", "7", "9"]
