"""The jobs of a coordinator daemon: what was submitted, what became of it, and for how long that is kept.

Pure: `now` is Unix time in seconds, ids are given.  It does not know how a job runs; `service.py` starts what
`startable` names and reports back.

    arriving --> queued --> running --> done | failed | cancelled        (kept `keep_s`, then forgotten)

A job that arrives still needs its client: values are on their way.  From queued on it does not.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from wire.errors import Busy, InputError, MeshError
from wire.messages import JobReport

FINAL = frozenset({"done", "failed", "cancelled"})


@dataclass(frozen=True, slots=True)
class JobLimits:
    queued_per_client_max: int = 64  # a script that loops over submit meets this before memory does
    running_max: int = 8  # jobs share the same workers; more at once only wait for each other
    kept_max: int = 1000
    keep_s: float = 3600.0  # long enough to come back from lunch for a result
    log_lines_max: int = 1000


@dataclass(slots=True)
class Job:
    job: str
    name: str
    client: str
    detached: bool
    created_s: float
    work: Any = None  # what service.py needs to run it, once that has arrived; freed at the end
    state: str = "arriving"
    ended_s: float = 0.0
    outputs: Any = None
    report: str = ""
    error: MeshError | None = None
    log: deque[str] = field(default_factory=deque)


class JobTable:
    """All jobs by id."""

    def __init__(self, limits: JobLimits = JobLimits()) -> None:
        self.limits = limits
        self._jobs: dict[str, Job] = {}

    def submit(self, job: Job) -> None:
        """Take a job in; Busy if this client has too many waiting."""
        mine = (other for other in self._jobs.values() if other.client == job.client)
        waiting = sum(other.state in ("arriving", "queued") for other in mine)
        if waiting >= self.limits.queued_per_client_max:
            raise Busy(f"{waiting} jobs of this client are waiting already", next_step="Wait for some, or cancel them")
        self._jobs[job.job] = job
        self.tell(job.job, job.created_s, "submitted")

    def arrived(self, job: str, now: float, work: Any) -> None:
        """Everything the job needs is here; nothing happens if it was cancelled meanwhile."""
        found = self.get(job)
        if found.state == "arriving":
            found.state, found.work = "queued", work
            self.tell(job, now, "queued")

    def get(self, job: str) -> Job:
        """The job; InputError if there is none of that id (never was, or forgotten)."""
        found = self._jobs.get(job)
        if found is None:
            known = ", ".join(list(self._jobs)[-5:]) or "none"
            raise InputError(f"no job {job!r} here", next_step=f"Most recent: {known}; results are kept for an hour")
        return found

    def startable(self) -> list[Job]:
        """Queued jobs that may run now, oldest first."""
        running = sum(job.state == "running" for job in self._jobs.values())
        queued = [job for job in self._jobs.values() if job.state == "queued"]
        return queued[: max(self.limits.running_max - running, 0)]

    def started(self, job: str, now: float) -> None:
        self.get(job).state = "running"
        self.tell(job, now, "running")

    def ended(
        self, job: str, now: float, outputs: Any = None, report: str = "", error: MeshError | None = None
    ) -> None:
        """A job is over; a cancelled one stays cancelled whatever its work says afterwards."""
        found = self.get(job)
        if found.state in FINAL:
            return
        found.state = "done" if error is None else "cancelled" if error.code == "cancelled" else "failed"
        found.ended_s, found.outputs, found.report, found.error, found.work = now, outputs, report, error, None
        self.tell(job, now, found.state if error is None else f"{found.state}: {error}")

    def left_by(self, client: str) -> list[Job]:
        """Jobs to cancel because their client went away: those not detached and not over."""
        return [
            job for job in self._jobs.values() if job.client == client and not job.detached and job.state not in FINAL
        ]

    def forget_old(self, now: float) -> list[Job]:
        """Drop what was kept long enough, and the oldest above the cap; returns what was dropped."""
        over = [job for job in self._jobs.values() if job.state in FINAL]
        excess = max(len(over) - self.limits.kept_max, 0)
        dropped = [job for place, job in enumerate(over) if place < excess or now - job.ended_s > self.limits.keep_s]
        for job in dropped:
            del self._jobs[job.job]
        return dropped

    def tell(self, job: str, now: float, text: str) -> None:
        """Add a line to the job's log."""
        log = self.get(job).log
        log.append(f"{now:.3f} {text}")
        while len(log) > self.limits.log_lines_max:
            log.popleft()

    def report(self, job: Job, now: float, with_log: bool) -> JobReport:
        """The job as a message row."""
        seconds = max((job.ended_s or now) - job.created_s, 0.0)
        error = job.error.to_fields() if job.error else {}
        log = tuple(line[:4096] for line in job.log) if with_log else ()
        return JobReport(job.job, job.name, job.state, job.created_s, seconds, error, log, job.report)

    def all(self) -> list[Job]:
        return list(self._jobs.values())
