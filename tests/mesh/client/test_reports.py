"""What a coordinator tells clients of a call fits into its messages, however long it took and whatever it gave."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest

from coordinator.workers.call_report import EVENTS_FIRST, EVENTS_LAST, CallReport, report_json
from mesh.client.report import Report
from wire.limits import DEFAULT, KIB, REPORT_CHARS_MAX
from wire.protocol.messages import INLINE_BYTES_MAX, JobResult, decode_message, encode_message
from wire.protocol.reports import Event, PartReport, RelayReport, WorkerReport
from wire.transfer.content_exchange import INLINE_TOTAL_BYTES_MAX, BlobExchange, sent_separately


def test_of_many_events_the_first_and_the_latest_are_kept_and_the_others_counted() -> None:
    report, count = CallReport(), 5000
    for number in range(count):
        report.add_event(Event(float(number), "paused" if number % 2 else "resumed", "one", ""))
        report.add_generation(number)
    times = [event.at_s for event in report.events]
    assert times == [*range(EVENTS_FIRST), *range(count - EVENTS_LAST, count)]
    assert report.generations == [int(time_s) for time_s in times]
    left_out = (count - len(times)) // 2
    assert report.omitted == {"paused": left_out, "resumed": left_out}
    assert Report.of(asdict(report)).omitted == report.omitted


def worker(name: str, parts: int) -> WorkerReport:
    rows = tuple(PartReport(number, "cpu", 7, 0.125, 0.25) for number in range(parts))
    return WorkerReport(name, "f" * 32, rows, 1, 2, 0.5, 0.5, {"socket": 1, "shared": 0}, 0.0, 0, 0)


def reports() -> dict[str, CallReport]:
    event = Event(1.0, "planned", "", "x" * 20_000)
    return {
        "many parts": CallReport(1.0, 1, [1], workers={f"w{n}": worker(f"w{n}", 300) for n in range(60)}),
        "many workers": CallReport(1.0, 1, [1], workers={f"w{n}": worker(f"w{n}", 1) for n in range(4000)}),
        "long events": CallReport(1.0, 1, [1], events=[event] * 256),
        "long reasons": CallReport(1.0, 1, [1], reasons=("é" * 3_000_000,) * 3),
        "many relayed": CallReport(1.0, 1, [1], relayed=[RelayReport("a" * 200, "b" * 200, 1, 1)] * 8_000),
    }


@pytest.mark.parametrize("case", reports())
def test_a_report_that_is_too_long_is_cut_until_it_fits(case: str) -> None:
    report = reports()[case]
    assert len(json.dumps(asdict(report))) > REPORT_CHARS_MAX
    text = report_json(report)
    assert decode_message(encode_message(JobResult((), text))) == JobResult((), text)
    found = Report.of(json.loads(text))
    assert (found.seconds, found.generations) == (1.0, (1,))
    assert bool(found.workers) == (case == "many parts") and bool(found.events) == (case == "long events")


def test_a_report_just_at_the_limit_stays_whole() -> None:
    report = CallReport(reasons=("",))
    report.reasons = ("x" * (REPORT_CHARS_MAX - len(report_json(report))),)
    assert json.loads(report_json(report)) == json.loads(json.dumps(asdict(report)))
    report.reasons = (report.reasons[0] + "x",)
    assert len(report_json(report)) < 2000


@pytest.mark.parametrize("size_bytes", [8, KIB, INLINE_BYTES_MAX, INLINE_BYTES_MAX + 8])
def test_the_values_of_one_message_fit_into_it(size_bytes: int) -> None:
    arrays = [np.full(size_bytes // 8, number, np.float64) for number in range(9000 if size_bytes <= KIB else 1100)]
    far = sent_separately(arrays)
    inline = sum(array.nbytes for array, away in zip(arrays, far, strict=True) if not away)
    assert inline <= INLINE_TOTAL_BYTES_MAX and (not any(far)) == (sum(a.nbytes for a in arrays) == inline)
    values = [BlobExchange.named(f"y{n}", array, far[n], bytes(32)) for n, array in enumerate(arrays)]
    message = JobResult(tuple(values), "x" * REPORT_CHARS_MAX)
    encoded = encode_message(message)
    assert len(encoded) < DEFAULT.message_bytes_max and decode_message(encoded) == message
