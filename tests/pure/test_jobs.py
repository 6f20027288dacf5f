"""The job table of a coordinator daemon."""

from __future__ import annotations

import pytest

from coordinator.jobs import Job, JobLimits, JobTable
from wire.errors import Busy, Cancelled, ExecuteFailed, InputError

LIMITS = JobLimits(queued_per_client_max=3, running_max=2, kept_max=2, keep_s=10.0, log_lines_max=4)


def table(*jobs: str, client: str = "c", detached: bool = False) -> JobTable:
    made = JobTable(LIMITS)
    for job in jobs:
        made.submit(Job(job, "", client, detached, 0.0))
        made.arrived(job, 0.0, "work")
    return made


def names(jobs: list[Job]) -> list[str]:
    return [job.job for job in jobs]


def test_jobs_start_in_order_up_to_the_limit() -> None:
    jobs = table("a", "b", "c")
    assert names(jobs.startable()) == ["a", "b"]
    jobs.started("a", 1.0)
    assert names(jobs.startable()) == ["b"]
    jobs.started("b", 1.0)
    assert jobs.startable() == []
    jobs.ended("a", 2.0)
    assert names(jobs.startable()) == ["c"]


def test_a_job_whose_values_are_still_on_their_way_does_not_start() -> None:
    jobs = JobTable(LIMITS)
    jobs.submit(Job("a", "", "c", True, 0.0))
    assert jobs.startable() == []
    jobs.arrived("a", 1.0, "work")
    assert names(jobs.startable()) == ["a"]
    jobs.submit(Job("b", "", "c", True, 0.0))
    jobs.ended("b", 2.0, error=Cancelled("stop"))
    jobs.arrived("b", 3.0, "work")
    assert (jobs.get("b").state, names(jobs.startable())) == ("cancelled", ["a"])


def test_a_client_with_too_many_waiting_is_told_so() -> None:
    jobs = table("a", "b", "c")
    with pytest.raises(Busy, match="3 jobs of this client"):
        jobs.submit(Job("d", "", "c", False, 0.0))
    jobs.submit(Job("e", "", "another", False, 0.0))


def test_an_end_is_final_and_frees_the_work() -> None:
    jobs = table("a")
    jobs.started("a", 1.0)
    jobs.ended("a", 2.0, error=Cancelled("stop"))
    jobs.ended("a", 3.0, outputs="late")
    job = jobs.get("a")
    assert (job.state, job.outputs, job.work, job.ended_s) == ("cancelled", None, None, 2.0)


def test_a_failure_is_reported_with_its_error_and_log() -> None:
    jobs = table("a")
    jobs.started("a", 1.0)
    jobs.ended("a", 3.0, error=ExecuteFailed("out of luck", node="w1"))
    report = jobs.report(jobs.get("a"), 9.0, with_log=True)
    assert (report.state, report.seconds, report.error["code"], report.error["node"]) == (
        "failed",
        3.0,
        "execute_failed",
        "w1",
    )
    told = [line.split(" ", 1)[1] for line in report.log]
    assert told == ["submitted", "queued", "running", "failed: out of luck [worker w1]"]


def test_a_client_that_leaves_takes_its_attached_jobs_along() -> None:
    jobs = table("a", "b")
    jobs.submit(Job("d", "", "c", True, 0.0, None))
    jobs.submit(Job("e", "", "other", False, 0.0, None))
    jobs.ended("b", 1.0)
    assert names(jobs.left_by("c")) == ["a"]


def test_results_are_forgotten_by_age_and_by_number() -> None:
    jobs = table("a", "b", "c")
    for place, job in enumerate("abc"):
        jobs.ended(job, float(place))
    assert names(jobs.forget_old(2.0)) == ["a"]
    assert names(jobs.forget_old(11.5)) == ["b"]
    with pytest.raises(InputError, match="no job 'a' here"):
        jobs.get("a")


def test_a_log_is_bounded() -> None:
    jobs = table("a")
    for line in range(10):
        jobs.tell("a", float(line), f"line {line}")
    assert [line.split(" ", 1)[1] for line in jobs.get("a").log] == [f"line {line}" for line in range(6, 10)]
