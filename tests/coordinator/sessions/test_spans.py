"""What a worker's share of a step took, told apart, and how a profile shows it."""

from __future__ import annotations

import pytest

from coordinator.sessions.spans import Span
from mesh.training.profiler import events, table
from wire.protocol.messages import PartRun, Ran

PARTS = (
    PartRun(0, 0.25, 0.125, 0.0625, 0.125, 0.015625, 64, 5, 1),
    PartRun(1, 0.5, 0.0, 0.03125, 0.125, 0.0, 32, 6, 2),
)


def test_a_span_tells_computing_inputs_exchange_and_messages_apart() -> None:
    span = Span.of("w", 3, 10.0, 11.0, Ran((), PARTS, 7, 9))
    assert (span.compute_s, span.wait_s, span.exchange_s) == (0.5, 0.125, 0.09375)
    assert (span.readback_s, span.encode_s, span.sent_bytes, list(span.parts_s)) == (0.25, 0.015625, 96, [0.25, 0.5])
    assert (span.uploaded_bytes, span.readback_bytes) == (11, 3)
    assert span.rest_s == pytest.approx(1.0 - 0.984375)
    title, row = table([span, Span.of("w", 4, 11.0, 12.0, Ran((), PARTS, 7, 9))])
    assert " ".join(title.split()[2::2]) == "compute readback inputs exchange encode messages in out ranks upload read"
    assert row.split() == ["w", "2", "500.00", "250.00", "125.00", "93.75", "15.62", "15.62", "7", "9", "96", "11", "3"]


def test_a_trace_has_the_shares_of_a_step_within_it_also_where_devices_computed_at_once() -> None:
    for ended_s in (11.0, 10.5):
        span = Span.of("w", 3, 10.0, ended_s, Ran((), PARTS, 7, 9))
        inputs, step, *shares = events([span])
        assert [each["name"] for each in (inputs, step)] == ["inputs", "step 3"]
        known = ["compute", "readback", "exchange", "encode", "messages"]
        assert [each["name"] for each in shares] == (known if span.rest_s else known[:-1])
        assert sum(each["dur"] for each in shares) == pytest.approx(step["dur"])
        assert [each["ts"] for each in shares[1:]] == pytest.approx([each["ts"] + each["dur"] for each in shares[:-1]])
        assert (shares[1]["args"]["readback_ms"], step["args"]["sent_bytes"]) == (250.0, 96)


def test_workers_of_before_tell_no_readback_encoding_or_bytes_of_ranks() -> None:
    span = Span.of("w", 3, 10.0, 11.0, Ran((), (PartRun(0, 0.25, 0.125),), 7, 9))
    assert (span.compute_s, span.readback_s, span.encode_s, span.sent_bytes) == (0.25, 0.0, 0.0, 0)
    assert (span.uploaded_bytes, span.readback_bytes) == (0, 0)
