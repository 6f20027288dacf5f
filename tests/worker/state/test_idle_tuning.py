"""When an idle worker measures its kernels: after a while without work, until there is some."""

from __future__ import annotations

from worker.state.idle_tuning import IdleTuning, Look, Measure

GPU = "best"


def idle(after_s: float = 30.0, *classes: str) -> IdleTuning:
    made = IdleTuning(after_s)
    made.met(GPU, classes)
    return made


def test_it_begins_once_there_was_no_work_for_long_enough() -> None:
    tuning = idle(30.0, "a", "b")
    assert tuning.look(False, 100.0) is Look.GO_ON
    assert tuning.look(False, 129.9) is Look.GO_ON
    assert tuning.look(False, 130.0) == Measure(GPU, ("a", "b"))
    assert tuning.look(False, 131.0) is Look.GO_ON, "it is at it"


def test_any_work_begins_the_wait_anew() -> None:
    tuning = idle(30.0, "a")
    tuning.look(False, 100.0)
    assert tuning.look(True, 129.0) is Look.GO_ON
    assert tuning.look(False, 130.0) is Look.GO_ON
    assert tuning.look(False, 159.0) is Look.GO_ON
    assert tuning.look(False, 160.0) == Measure(GPU, ("a",))


def test_work_stops_it_and_it_goes_on_later_with_what_is_left() -> None:
    tuning = idle(30.0, "a", "b")
    tuning.look(False, 0.0)
    tuning.look(False, 30.0)
    tuning.class_done("a")
    assert tuning.look(True, 31.0) is Look.STOP
    assert tuning.look(True, 31.1) is Look.STOP, "until it has ended"
    tuning.ended()
    assert tuning.look(True, 32.0) is Look.GO_ON
    assert tuning.look(False, 33.0) is Look.GO_ON
    assert tuning.look(False, 63.0) == Measure(GPU, ("b",))


def test_a_class_is_measured_once_and_another_device_after_it() -> None:
    tuning = idle(1.0, "a")
    tuning.met("1", ("a",))
    tuning.met(GPU, ("a",))
    tuning.look(False, 0.0)
    assert tuning.look(False, 1.0) == Measure(GPU, ("a",))
    tuning.class_done("a")
    tuning.ended()
    tuning.met(GPU, ("a",))
    assert tuning.look(False, 2.0) == Measure("1", ("a",))
    tuning.class_done("a")
    tuning.ended()
    assert tuning.look(False, 3.0) is Look.GO_ON and not tuning.waiting


def test_what_is_met_meanwhile_comes_next() -> None:
    tuning = idle(1.0, "a")
    tuning.look(False, 0.0)
    tuning.look(False, 1.0)
    tuning.met(GPU, ("b",))
    tuning.class_done("a")
    tuning.ended()
    assert tuning.look(False, 2.0) == Measure(GPU, ("b",))


def test_what_failed_is_not_tried_again() -> None:
    tuning = idle(1.0, "a", "b")
    tuning.look(False, 0.0)
    tuning.look(False, 1.0)
    tuning.ended(failed=True)
    assert tuning.look(False, 2.0) is Look.GO_ON
    tuning.met(GPU, ("a", "c"))
    assert tuning.look(False, 3.0) == Measure(GPU, ("c",))


def test_it_may_be_switched_off_and_needs_something_to_measure() -> None:
    for tuning in (idle(0.0, "a"), idle(30.0)):
        tuning.look(False, 0.0)
        assert tuning.look(False, 1e6) is Look.GO_ON
