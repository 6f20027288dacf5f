"""Job table: the jobs of a coordinator daemon, from submission until their results are no longer kept.

Pure: `now` is in seconds of a clock that nobody sets, ids are given, and a method that changes something returns what
the shell (`job_service.py`) must do, in order.  What people read and the journal keeps is Unix time: `now` and `unix_s`
more.  The shell keeps that figure current, for a machine's date may be set while jobs run.  The table does not know how
a job runs, what its values are, or where entries are kept.

    arriving --Save accepted--> queued --Start--> running --Save ended--> done | failed | cancelled
                                                                     (kept `keep_s`, --Save forgotten--> Free)

A job that arrives still needs its client: values are on their way, and nothing was promised.  From queued on it is
promised: it is in the journal, where there is one.  An end is told once it is in the journal too, or once the journal
has refused it; then it is tried again every `retry_s`.  While no worker can be given work, a job that needs no client
stays queued, as long as it takes; one that is attached runs, and fails with an error that says so.  Details of a job
that is over (log, report, values, the log lines of its error) may be left to the journal: `shrink` lets go of them,
`recall` takes them up again.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from wire.bounds import JOBS_OVER, JOBS_RUNNING, JOBS_WAITING
from wire.errors import Busy, Cancelled, InputError, MeshError, from_fields
from wire.limits import REPORT_CHARS_MAX
from wire.protocol.messages import JobReport
from wire.timeouts import DEFAULT_TIMEOUTS

FINAL = frozenset({"done", "failed", "cancelled"})
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True)
class JobLimits:
    queued_per_client_max: int = JOBS_WAITING.most  # a script that loops over submit meets this before memory does
    running_max: int = JOBS_RUNNING.most  # jobs share the same workers; more at once only wait for each other
    kept_max: int = JOBS_OVER.most
    keep_s: float = DEFAULT_TIMEOUTS.keep_results_s
    log_lines_max: int = 1000
    grace_s: float = DEFAULT_TIMEOUTS.job_grace_s
    retry_s: float = 5.0  # between attempts to write an end that the disk refused
    keep_anew_s: float = 3600.0  # a result is kept so long after a restart: the machine's date may be wrong then
    gather_s: float = DEFAULT_TIMEOUTS.job_gather_s


@dataclass(slots=True)
class Job:
    job: str
    name: str
    client: str
    detached: bool
    created_s: float  # Unix time, as is ended_s
    content: str = ""  # a digest of what it computes: the same id may only come again with the same
    work: Any = None  # what job_service.py needs to run it, once that has arrived; freed at the end
    kept: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)  # what the journal said of its values
    state: str = "arriving"
    accepted: bool = False
    ended_s: float = 0.0
    outputs: Any = None
    report: str = ""
    error: MeshError | None = None
    log: tuple[str, ...] = ()
    shrunk: bool = False  # log, report, outputs and kept are in the journal only
    final: str = ""  # the state it will have once that is saved
    leaves_s: float | None = None  # when it is cancelled unless its client comes back
    retry_s: float | None = None  # when its end is saved again
    forgetting: bool = False
    restored: bool = False  # from the journal
    began_s: float = 0.0  # by the table's clock
    over_s: float | None = None  # likewise

    @property
    def patient(self) -> bool:
        """Whether it waits in the queue for a worker."""
        return self.detached or self.restored


# -- actions ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Save:
    """Save this entry with the job's values; then call `saved` or `save_failed`."""

    job: Job
    kind: str  # "accepted", "ended" or "forgotten"
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SaveLater:
    """Save this entry with the next one; nothing waits for it."""

    job: Job
    kind: str  # "started"


@dataclass(frozen=True, slots=True)
class Start:
    """Run the job; then call `ran`."""

    job: Job


@dataclass(frozen=True, slots=True)
class Stop:
    """End the job's work; `ran` follows, with Cancelled."""

    job: Job


@dataclass(frozen=True, slots=True)
class Notify:
    """Answer the requests that wait until the job is accepted, refused or over."""

    job: Job


@dataclass(frozen=True, slots=True)
class Free:
    """Free the values of a job that is forgotten."""

    job: Job


Action = Save | SaveLater | Start | Stop | Notify | Free


# -- the machine ------------------------------------------------------------------------------------------


class JobTable:
    """All jobs by id."""

    def __init__(self, limits: JobLimits = JobLimits()) -> None:
        self.limits = limits
        self._jobs: dict[str, Job] = {}
        # What is asked often is asked of few of them: of those that go on, and of the oldest of those that are over.
        self._going: dict[str, Job] = {}  # in the order of their submission
        self._over: dict[str, Job] = {}  # and not being forgotten, in the order of their ends
        self._unsaved: dict[str, Job] = {}  # whose last entry the disk refused
        self._gather_until_s: float | None = None  # until then jobs wait for all workers of before a restart
        self._no_worker_reason = ""  # why no worker can be given work
        self.unix_s = 0.0  # what Unix time is ahead of `now`

    # -- a job's life

    def submit(self, job: Job) -> Job:
        """Add a job; return it, or the one that was submitted earlier with the same id and content.

        InputError for an id that is none or names another content, Busy if this client has too many waiting.
        """
        known = self._jobs.get(job.job)
        if known is not None and (known.accepted or known.state not in FINAL):
            if known.content != job.content:
                raise InputError(f"there is a job {job.job} with another content", next_step="Choose another id")
            return known
        if not _ID.fullmatch(job.job):
            raise InputError(f"{job.job!r} is no id for a job", next_step="Up to 64 letters, digits and any of _ . -")
        mine = (other for other in self._going.values() if other.client == job.client)
        waiting = sum(other.state in ("arriving", "queued") for other in mine)
        if waiting >= self.limits.queued_per_client_max:
            raise Busy(f"{waiting} jobs of this client are waiting already", next_step="Wait for some, or cancel them")
        self._over.pop(job.job, None)  # one that was refused
        self._jobs[job.job] = self._going[job.job] = job
        job.began_s = job.created_s - self.unix_s
        self._tell(job, job.began_s, "submitted")
        return job

    def arrived(self, job: Job, now: float, work: Any) -> list[Action]:
        """Everything the job needs is here; nothing happens if it was cancelled meanwhile."""
        if job.state != "arriving":
            return []
        job.work = work
        return [Save(job, "accepted", _facts(job))]

    def refused(self, job: Job, now: float, error: MeshError) -> list[Action]:
        """What the job needs did not come, or could not be saved."""
        if job.state in FINAL:
            return []
        job.error, job.final = error.copy(), _final_state(error)
        return self._end(job, now)

    def ran(
        self, job: Job, now: float, outputs: Any = None, report: str = "", error: MeshError | None = None
    ) -> list[Action]:
        """The job's work ended; one that is over stays as it is, whatever its work says afterwards."""
        if job.state in FINAL or job.final:
            return []
        job.final = _final_state(error)
        job.over_s, job.ended_s, job.outputs, job.report = now, now + self.unix_s, outputs, report
        job.error = error and error.copy()  # the error itself would hold the stacks that it went through
        self._tell(job, now, job.final if error is None else f"{job.final}: {error}")
        return [self._save_end(job)]

    def cancel(self, job: Job, now: float) -> list[Action]:
        """Stop a job that is not over."""
        error = Cancelled("the job was cancelled")
        if job.state == "running" and not job.final:
            return [Stop(job)]
        return self.ran(job, now, error=error) if job.accepted else self.refused(job, now, error)

    def saved(self, save: Save, now: float) -> list[Action]:
        """An entry was saved."""
        job = save.job
        match save.kind:
            case "accepted":
                job.accepted = True
                if job.state in FINAL:  # cancelled while it was being written
                    return [self._save_end(job)]
                job.state = "queued"
                self._tell(job, now, "queued")
                self._log_waiting(job, now)
                return [Notify(job), *self.start(now)]
            case "ended":
                job.retry_s = None
                self._unsaved.pop(job.job, None)
                return self._end(job, now)
            case "forgotten":
                return self._drop(job)
        return []

    def save_failed(self, save: Save, now: float, error: MeshError) -> list[Action]:
        """The disk refused an entry."""
        job = save.job
        match save.kind:
            case "accepted":
                return self.refused(job, now, error)
            case "ended":
                if job.retry_s is None:
                    self._tell(job, now, f"not kept yet: {error}")
                self._save_later(job, now)
                return self._end(job, now)
            case "forgotten":
                self._save_later(job, now)
        return []

    def start(self, now: float) -> list[Action]:
        """Begin queued jobs that may run now, oldest first."""
        if self._gather_until_s is not None:
            return []
        hungry = [job for job in self._going.values() if not (self._no_worker_reason and job.patient)]
        running = sum(job.state == "running" for job in hungry)
        queued = [job for job in hungry if job.state == "queued" and not job.final]
        actions: list[Action] = []
        for job in queued[: max(self.limits.running_max - running, 0)]:
            job.state = "running"
            self._tell(job, now, "running")
            actions += [SaveLater(job, "started"), Start(job)]
        return actions

    # -- clients

    def left(self, client: str, now: float, for_good: bool) -> list[Action]:
        """A client's link ended; its attached jobs end too, after a grace unless it said that it leaves `for_good`."""
        for job in self._going.values():
            if job.client == client and not job.detached:
                job.leaves_s = now + (0.0 if for_good else self.limits.grace_s)
        return self.tick(now)

    def seen(self, client: str) -> None:
        """A client has a link: its attached jobs go on."""
        for job in self._going.values():
            if job.client == client:
                job.leaves_s = None

    # -- a restart

    def restore(self, job: str, kind: str, fields: Mapping[str, Any], now: float) -> None:
        """Restore a job from an entry of the journal; call it for every entry, in order."""
        if kind == "accepted":
            restored = self._jobs[job] = self._going[job] = _job_of(job, fields)
            restored.state, restored.restored = "queued", True
            restored.began_s = min(restored.created_s - self.unix_s, now)
            self._tell(restored, restored.created_s - self.unix_s, "submitted")
            self._tell(restored, now, "queued again: the coordinator started anew")
            if not restored.detached:
                restored.leaves_s = now + self.limits.grace_s
        elif kind == "started":
            self._tell(self._jobs[job], now, "it was running")
        elif kind == "ended":
            self._going.pop(job, None)
            restored = self._jobs[job] = self._over[job] = _job_of(job, fields)
            restored.state = restored.final = fields["state"]
            restored.ended_s = fields["ended_s"]
            longest_s = max(self.limits.keep_s - self.limits.keep_anew_s, 0.0)
            restored.over_s = max(min(restored.ended_s - self.unix_s, now), now - longest_s)
            restored.began_s = restored.over_s - max(restored.ended_s - restored.created_s, 0.0)
            restored.error = from_fields(fields["error"]) if fields["error"] else None
            self.shrink(restored)

    def wait_for_workers(self, now: float) -> None:
        """Restored jobs wait for the workers of before the restart: a plan for the first of them would be a poor
        one."""
        if self._going:
            self._gather_until_s = now + self.limits.gather_s

    def workers(self, now: float, no_worker_reason: str, missing: Iterable[str]) -> list[Action]:
        """Workers came or went.  The reason says why none can be given work ("": one can); `missing` are those of
        before a restart that are not back."""
        was, self._no_worker_reason = self._no_worker_reason, no_worker_reason
        if no_worker_reason and no_worker_reason != was:
            for job in self._going.values():
                self._log_waiting(job, now)
        if self._gather_until_s is not None and (now >= self._gather_until_s or not (no_worker_reason or any(missing))):
            self._gather_until_s = None
            return self.start(now)
        return self.start(now) if no_worker_reason != was else []

    # -- details

    def shrink(self, job: Job) -> None:
        """Free what is long; it is in the journal."""
        if job.state in FINAL and job.accepted and job.retry_s is None:
            job.shrunk, job.outputs, job.report, job.kept, job.log = True, None, "", _NOTHING, ()
            if job.error is not None:
                job.error.log_lines = ()

    def recall(self, job: Job, fields: Mapping[str, Any]) -> None:
        """Restore from the journal what `shrink` freed."""
        job.shrunk, job.report, job.log = False, fields["report"], tuple(fields["log"])
        if len(job.report) > REPORT_CHARS_MAX:  # of a version that did not cut them; it fits into no message
            job.report = ""
        job.kept = fields["values"] or _NOTHING
        job.error = from_fields(fields["error"]) if fields["error"] else None

    # -- time

    def tick(self, now: float) -> list[Action]:
        """Do what is due."""
        actions: list[Action] = []
        for job in list(self._going.values()):
            if job.leaves_s is not None and now >= job.leaves_s:
                job.leaves_s = None
                self._tell(job, now, "its client went away")
                actions += self.cancel(job, now)
        for job in self._unsaved.values():
            if job.retry_s is not None and now >= job.retry_s:
                job.retry_s = now + self.limits.retry_s
                actions.append(Save(job, "forgotten", {}) if job.forgetting else self._save_end(job))
        return actions + self._forget_old(now)

    def next_deadline(self) -> float | None:
        """The time at which a tick is due, or None."""
        due = [self._gather_until_s, *(job.leaves_s for job in self._going.values())]
        due += [job.retry_s for job in self._unsaved.values()]
        due += [_over_s(job) + self.limits.keep_s for job in itertools.islice(self._over.values(), 1)]
        return min((time_s for time_s in due if time_s is not None), default=None)

    # -- asking

    def get(self, job: str) -> Job:
        """The job; InputError if there is none of that id (never was, or forgotten)."""
        named = self._jobs.get(job)
        if named is None:
            known = ", ".join(list(self._jobs)[-5:]) or "none"
            kept = f"{self.limits.keep_s / 3600:g} h"
            raise InputError(f"no job {job!r} here", next_step=f"Most recent: {known}; results are kept for {kept}")
        return named

    def all(self) -> list[Job]:
        return list(self._jobs.values())

    def report(self, job: Job, now: float, details: bool) -> JobReport:
        """The job as a message row, with its log and its report or without."""
        seconds = max((now if job.over_s is None else job.over_s) - job.began_s, 0.0)
        error = job.error.to_fields() if job.error and job.state in FINAL else {}
        log = tuple(line[:4096] for line in job.log) if details else ()
        report = job.report if details else ""
        waits = self._waits(job)
        return JobReport(job.job, job.name, job.state, job.created_s, seconds, error, log, report, waits)

    def tell(self, job: str, now: float, text: str) -> None:
        """Add a line to the job's log."""
        self._tell(self.get(job), now, text)

    def validate(self) -> None:
        """Assert that the state does not contradict itself; tests call it after every event."""
        for name, job in self._jobs.items():
            assert job.job == name
            assert job.state != "queued" or job.accepted, f"{name} waits to run and was not accepted"
            assert job.state != "running" or job.accepted, f"{name} runs and was not accepted"
            assert job.state not in FINAL or (job.state == job.final and job.work is None), f"{name} is over and is not"
            assert not job.shrunk or (job.state in FINAL and job.accepted), f"{name} is nowhere but in memory"
            assert not job.forgetting or job.state in FINAL, f"{name} is forgotten while it runs"
            assert (self._going.get(name) is job) == (job.state not in FINAL), f"{name} does not go on, or does"
            assert (self._over.get(name) is job) == (job.state in FINAL and not job.forgetting), (
                f"{name} is over, or not"
            )
            assert (self._unsaved.get(name) is job) == (job.retry_s is not None), f"{name} is to be saved, or not"
        assert self._going.keys() | self._over.keys() | self._unsaved.keys() <= self._jobs.keys()
        for patient in (True, False):
            running = sum(job.state == "running" and job.patient == patient for job in self._jobs.values())
            assert running <= self.limits.running_max, f"{running} jobs run"

    # -- helpers

    def _end(self, job: Job, now: float) -> list[Action]:
        if job.state in FINAL:
            return []
        if job.over_s is None:
            job.over_s, job.ended_s = now, now + self.unix_s
            self._tell(job, now, f"{job.final}: {job.error}")
        job.state, job.work = job.final, None
        del self._going[job.job]
        self._over[job.job] = job
        return [Notify(job), *self.start(now)]

    def _save_end(self, job: Job) -> Save:
        error = job.error.to_fields() if job.error else {}
        end = {"state": job.final, "ended_s": job.ended_s, "report": job.report, "error": error, "log": list(job.log)}
        return Save(job, "ended", {**_facts(job), **end})

    def _save_later(self, job: Job, now: float) -> None:
        job.retry_s = now + self.limits.retry_s
        self._unsaved[job.job] = job

    def _waits(self, job: Job) -> str:
        """What a job waits for, as text; "" if only for its own end."""
        if job.state == "queued" and self._gather_until_s is not None:
            return "for the workers of before"
        if self._no_worker_reason and (job.state == "running" or (job.state == "queued" and job.patient)):
            return f"for a worker: {self._no_worker_reason}"
        return "for other jobs to end" if job.state == "queued" else ""

    def _log_waiting(self, job: Job, now: float) -> None:
        if self._no_worker_reason and job.state == "queued" and job.patient:
            self._tell(job, now, f"waiting for a worker: {self._no_worker_reason}")

    def _forget_old(self, now: float) -> list[Action]:
        """Drop what was kept long enough, and the oldest above the cap."""
        actions: list[Action] = []
        while self._over:
            job = next(iter(self._over.values()))
            if len(self._over) <= self.limits.kept_max and now < _over_s(job) + self.limits.keep_s:
                break
            del self._over[job.job]
            job.forgetting = True
            actions += [Save(job, "forgotten", {})] if job.accepted else self._drop(job)
        return actions

    def _drop(self, job: Job) -> list[Action]:
        if self._jobs.get(job.job) is job:
            del self._jobs[job.job]
        self._unsaved.pop(job.job, None)
        return [Free(job)]

    def _tell(self, job: Job, now: float, text: str) -> None:
        job.log = (*job.log, f"{now + self.unix_s:.3f} {text}")[-self.limits.log_lines_max :]


def _over_s(job: Job) -> float:
    assert job.over_s is not None
    return job.over_s


def _final_state(error: MeshError | None) -> str:
    return "done" if error is None else "cancelled" if error.code == "cancelled" else "failed"


_FACTS = ("name", "client", "detached", "created_s", "content")


def _facts(job: Job) -> dict[str, Any]:
    return {name: getattr(job, name) for name in _FACTS}


def _job_of(job: str, fields: Mapping[str, Any]) -> Job:
    return Job(job, **{name: fields[name] for name in _FACTS}, kept=fields.get("values") or _NOTHING, accepted=True)
