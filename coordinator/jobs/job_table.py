"""Job table: the jobs of a coordinator daemon, from submission until their results are no longer kept.

Pure: `now` is in seconds of a clock that nobody sets, ids are given, and a method that changes something returns what
the shell (`job_service.py`) must do, in order.  What people read and the journal keeps is Unix time: `now` and `unix_s`
more.  The shell keeps that figure current, for a machine's date may be set while jobs run.  The table does not know how
a job runs, what its values are, or where entries are kept.

    arriving --Save accepted--> queued --Start--> running --Save ended--> done | failed | cancelled
                                                                     (kept `keep_s`, --Save forgotten--> Free)

A job that arrives still needs its client: values are on their way, and nothing was promised.  From queued on it is
promised: it is in the journal, where there is one.  An end is reported once it is in the journal too, or once the
journal has refused it; then it is tried again every `retry_s`.  While no worker can be given work, a job that needs no
client stays queued, as long as it takes; one that is attached runs, and fails with an error that says so.

A job is of the member whose process submitted it, and for all other members it does not exist: two members may give two
jobs the same id.  Members take turns (`start`): of two that have jobs in the queue, the one that has fewer running
begins its next, and the jobs of one never keep another from its share.

Details of a job that is over (log, report, values, the log lines of its error) may be left to the journal: `shrink`
lets go of them, `recall` takes them up again.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from wire.bounds import JOB_BYTES_RUNNING, JOB_BYTES_WAITING, JOBS_OF_CLIENT, JOBS_OVER, JOBS_RUNNING, JOBS_WAITING
from wire.errors import Busy, Cancelled, DeadlineExceeded, InputError, MeshError, from_fields
from wire.limits import MIB, REPORT_CHARS_MAX
from wire.protocol.messages import JobReport
from wire.roles import member_id
from wire.timeouts import DEFAULT_TIMEOUTS
from wire.units import size_text

LOG_LINE_CHARS_MAX = 4096  # of a job's log
LOG_BYTES_MAX = MIB  # of it in the journal, as text: an entry that is too long would never be written
LISTED_CHARS_MAX = 400  # of each text of an error, where a message has all jobs
FINAL = frozenset({"done", "failed", "cancelled"})
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_OF = "@"  # between a job's id and its owner, in the journal and for operators; no id has it


@dataclass(frozen=True, slots=True)
class JobLimits:
    queued_per_client_max: int = JOBS_WAITING.most  # a script that loops over submit meets this before memory does
    queued_bytes_per_client_max: int = JOB_BYTES_WAITING.most  # of their values, which are on the disk
    running_max: int = JOBS_RUNNING.most  # jobs share the same workers; more at once only wait for each other
    running_per_client_max: int = JOBS_OF_CLIENT.most
    running_bytes_per_client_max: int = JOB_BYTES_RUNNING.most  # a job that has more runs as its client's only one
    time_limit_s: float = 0.0  # after which a running job fails; 0: never
    kept_max: int = JOBS_OVER.most
    keep_s: float = DEFAULT_TIMEOUTS.keep_results_s
    log_lines_max: int = 1000
    grace_s: float = DEFAULT_TIMEOUTS.job_grace_s
    retry_s: float = 5.0  # between attempts to write an end that the disk refused
    keep_anew_s: float = 3600.0  # a result is kept so long after a restart: the machine's date may be wrong then
    gather_s: float = DEFAULT_TIMEOUTS.job_gather_s


Key = tuple[str, str]  # a job's owner and its id


@dataclass(slots=True)
class Job:
    job: str
    name: str
    client: str  # the node that submitted it, a process of its owner
    detached: bool
    created_s: float  # Unix time, as is ended_s
    content: str = ""  # a digest of what it computes: the same id may only come again with the same
    size_bytes: int = 0  # of its values
    work: Any = None  # what job_service.py needs to run it, once that has arrived; freed at the end
    kept: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)  # what the journal said of its values
    state: str = "arriving"
    accepted: bool = False
    saving: bool = False  # its entry is on its way to the journal
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
    started_s: float = 0.0  # likewise
    over_s: float | None = None  # likewise
    entry: str = ""  # its name in the journal; a job of an older version has its id alone
    stopped_by: MeshError | None = None  # why its work was stopped, if it was not cancelled

    @property
    def owner(self) -> str:
        """The member whose job it is."""
        return member_id(self.client)

    @property
    def key(self) -> Key:
        """What the table knows it by."""
        return self.owner, self.job

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
    """All jobs, by owner and id."""

    def __init__(self, limits: JobLimits = JobLimits()) -> None:
        self.limits = limits
        self._jobs: dict[Key, Job] = {}
        # What is asked often is asked of few of them: of those that go on, and of the oldest of those that are over.
        self._going: dict[Key, Job] = {}  # in the order of their submission
        self._over: dict[Key, Job] = {}  # and not being forgotten, in the order of their ends
        self._unsaved: dict[Key, Job] = {}  # whose last entry the disk refused
        self._turn: dict[str, int] = {}  # of each owner, the number of its latest start
        self._starts = itertools.count(1)
        self._entries: dict[str, Job] = {}  # by their names in the journal, while that is read
        self._gather_until_s: float | None = None  # until then jobs wait for all workers of before a restart
        self._no_worker_reason = ""  # why no worker can be given work
        self.unix_s = 0.0  # what Unix time is ahead of `now`

    # -- a job's life

    def submit(self, job: Job) -> Job:
        """Add a job; return it, or the one that was submitted earlier with the same id and content.

        InputError for an id that is none or names another content, Busy if this client has too many waiting.
        """
        known = self._jobs.get(job.key)
        if known is not None and (known.accepted or known.state not in FINAL):
            if known.content != job.content:
                raise InputError(f"there is a job {job.job} with another content", next_step="Choose another id")
            return known
        if not _ID.fullmatch(job.job):
            raise InputError(f"{job.job!r} is no id for a job", next_step="Up to 64 letters, digits and any of _ . -")
        self._check_room(job)
        self._over.pop(job.key, None)  # one that was refused
        job.entry = f"{job.job}{_OF}{job.owner}"
        self._jobs[job.key] = self._going[job.key] = job
        job.began_s = job.created_s - self.unix_s
        self._tell(job, job.began_s, "submitted")
        return job

    def _check_room(self, job: Job) -> None:
        mine = [other for other in self._going.values() if other.owner == job.owner]
        waiting = [other for other in mine if other.state in ("arriving", "queued")]
        most, advice = self.limits.queued_bytes_per_client_max, "Wait for some, or cancel them"
        if len(waiting) >= self.limits.queued_per_client_max:
            raise Busy(f"{len(waiting)} jobs of this client are waiting already", next_step=advice)
        taken = sum(other.size_bytes for other in waiting)
        if taken + job.size_bytes > most:
            raise Busy(
                f"the job has {size_text(job.size_bytes)} of values, and those of this client that wait have "
                f"{size_text(taken)}: no more than {size_text(most)} may wait",
                next_step=advice if taken else "Make it smaller",
            )

    def arrived(self, job: Job, now: float, work: Any) -> list[Action]:
        """Everything the job needs is here; nothing happens if it was cancelled meanwhile."""
        if job.state != "arriving":
            return []
        job.work, job.saving = work, True
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
        if isinstance(error, Cancelled) and job.stopped_by is not None:
            error = job.stopped_by
        job.final = _final_state(error)
        job.over_s, job.ended_s, job.outputs, job.report = now, now + self.unix_s, outputs, report
        job.error = error and error.copy()  # the error itself would hold the stacks that it went through
        self._tell(job, now, job.final if error is None else f"{job.final}: {error}")
        return [self._save_end(job)]

    def cancel(self, job: Job, now: float) -> list[Action]:
        """Stop a job that is not over.  One whose entry is on its way to the journal ends once that is there or was
        refused: over before, its id would be free, and its end be written after the entry of the next one."""
        error = Cancelled("the job was cancelled")
        if job.state == "running" and not job.final:
            return [Stop(job)]
        if job.saving:
            job.stopped_by = error
            return []
        return self.ran(job, now, error=error) if job.accepted else self.refused(job, now, error)

    def saved(self, save: Save, now: float) -> list[Action]:
        """An entry was saved."""
        job = save.job
        match save.kind:
            case "accepted":
                job.accepted, job.saving = True, False
                if job.stopped_by is not None:
                    return self.ran(job, now, error=job.stopped_by)
                job.state = "queued"
                self._tell(job, now, "queued")
                self._log_waiting(job, now)
                return [Notify(job), *self.start(now)]
            case "ended":
                job.retry_s = None
                self._unsaved.pop(job.key, None)
                return self._end(job, now)
            case "forgotten":
                return self._drop(job)
        return []

    def save_failed(self, save: Save, now: float, error: MeshError) -> list[Action]:
        """The disk refused an entry."""
        job = save.job
        match save.kind:
            case "accepted":
                job.saving = False
                return self.refused(job, now, job.stopped_by or error)
            case "ended":
                if job.retry_s is None:
                    self._tell(job, now, f"not kept yet: {error}")
                self._save_later(job, now)
                return self._end(job, now)
            case "forgotten":
                self._save_later(job, now)
        return []

    def start(self, now: float) -> list[Action]:
        """Begin queued jobs that may run now: of each owner the oldest, and first those of the owner with the fewest
        running.

        All together run `running_max`.  Yet an owner always has its share of them, also where others came first and
        have it: their jobs may be endless.
        """
        if self._gather_until_s is not None:
            return []
        hungry = [job for job in self._going.values() if not (self._no_worker_reason and job.patient)]
        running: dict[str, list[Job]] = {}
        queued: dict[str, deque[Job]] = {}
        for job in hungry:
            if job.state == "running":
                running.setdefault(job.owner, []).append(job)
            elif job.state == "queued" and not job.final:
                queued.setdefault(job.owner, deque()).append(job)
        actions: list[Action] = []
        while (owner := self._next_owner(running, queued)) is not None:
            job = queued[owner].popleft()
            if not queued[owner]:
                del queued[owner]
            running.setdefault(owner, []).append(job)
            self._turn[owner] = next(self._starts)
            job.state, job.started_s = "running", now
            self._tell(job, now, "running")
            actions += [SaveLater(job, "started"), Start(job)]
        return actions

    def _next_owner(self, running: Mapping[str, Sequence[Job]], queued: Mapping[str, Sequence[Job]]) -> str | None:
        """The owner whose job begins next, None if nobody's may."""
        limits = self.limits
        free = limits.running_max - sum(map(len, running.values()))
        share = max(limits.running_max // max(len(running.keys() | queued.keys()), 1), 1)

        def may_begin(owner: str) -> bool:
            mine = running.get(owner, ())
            if not mine:
                return True
            size_bytes = sum(job.size_bytes for job in (*mine, queued[owner][0]))
            fits = size_bytes <= limits.running_bytes_per_client_max and len(mine) < limits.running_per_client_max
            return fits and (free > 0 or len(mine) < share)

        ready = filter(may_begin, queued)
        return min(ready, key=lambda owner: (len(running.get(owner, ())), self._turn.get(owner, 0)), default=None)

    # -- clients

    def left(self, client: str, now: float, for_good: bool) -> list[Action]:
        """A client's link ended; its attached jobs end too, after a grace unless it said that it leaves `for_good`."""
        for job in self._going.values():
            if job.client == client and not job.detached:
                job.leaves_s = now + (0.0 if for_good else self.limits.grace_s)
        return self.tick(now)

    def client_linked(self, client: str) -> None:
        """A client has a link: its attached jobs go on."""
        for job in self._going.values():
            if job.client == client:
                job.leaves_s = None

    # -- a restart

    def restore(self, job: str, kind: str, fields: Mapping[str, Any], now: float) -> None:
        """Restore a job from an entry of the journal, by its name there; call it for every entry, in order."""
        if kind == "accepted":
            restored = self._restored(job, fields)
            self._going[restored.key] = restored
            restored.state, restored.restored = "queued", True
            restored.began_s = min(restored.created_s - self.unix_s, now)
            self._tell(restored, restored.created_s - self.unix_s, "submitted")
            self._tell(restored, now, "queued again: the coordinator started anew")
            if not restored.detached:
                restored.leaves_s = now + self.limits.grace_s
        elif kind == "started":
            self._tell(self._entries[job], now, "it was running")
        elif kind == "ended":
            restored = self._restored(job, fields)
            self._going.pop(restored.key, None)
            self._over[restored.key] = restored
            restored.state = restored.final = fields["state"]
            restored.ended_s = fields["ended_s"]
            longest_s = max(self.limits.keep_s - self.limits.keep_anew_s, 0.0)
            restored.over_s = max(min(restored.ended_s - self.unix_s, now), now - longest_s)
            restored.began_s = restored.over_s - max(restored.ended_s - restored.created_s, 0.0)
            restored.error = from_fields(fields["error"]) if fields["error"] else None
            self.shrink(restored)

    def _restored(self, entry: str, fields: Mapping[str, Any]) -> Job:
        job = self._entries[entry] = _job_of(entry, fields)
        self._jobs[job.key] = job
        return job

    def wait_for_workers(self, now: float) -> None:
        """Restored jobs wait for the workers of before the restart: a plan for the first of them would be a poor
        one.  All entries are restored."""
        self._entries.clear()
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
            elif (limit_s := self._limit_s(job)) is not None and now >= limit_s:
                job.stopped_by = _too_long(self.limits.time_limit_s)
                actions.append(Stop(job))
        for job in self._unsaved.values():
            if job.retry_s is not None and now >= job.retry_s:
                job.retry_s = now + self.limits.retry_s
                actions.append(Save(job, "forgotten", {}) if job.forgetting else self._save_end(job))
        return actions + self._forget_old(now)

    def next_deadline(self) -> float | None:
        """The time at which a tick is due, or None."""
        due = [self._gather_until_s, *(job.leaves_s for job in self._going.values())]
        due += [self._limit_s(job) for job in self._going.values()]
        due += [job.retry_s for job in self._unsaved.values()]
        due += [_over_s(job) + self.limits.keep_s for job in itertools.islice(self._over.values(), 1)]
        return min((time_s for time_s in due if time_s is not None), default=None)

    # -- asking

    def get(self, job: str, owner: str, everybody: bool = False) -> Job:
        """The job of this owner; InputError if it has none of that id (never had, forgotten, or it is another's).

        Who may see `everybody`'s gets another's, too: by its id, or where several have such a job by "ID@OWNER", of the
        owner's id as many characters as it takes.
        """
        named = self._jobs.get((owner, job))
        if named is None and everybody:
            name, _, of = job.partition(_OF)
            found = [each for each in self._jobs.values() if each.job == name and each.owner.startswith(of)]
            if len(found) > 1:
                all_of_them = ", ".join(f"{each.job}{_OF}{each.owner}" for each in found)
                raise InputError(f"{len(found)} clients have a job {job!r}", next_step=f"Name one: {all_of_them}")
            named = found[0] if found else None
        if named is None:
            known = ", ".join(each.job for each in self.all(None if everybody else owner)[-5:]) or "none"
            kept = f"{self.limits.keep_s / 3600:g} h"
            raise InputError(f"no job {job!r} here", next_step=f"Most recent: {known}; results are kept for {kept}")
        return named

    def has(self, job: Job) -> bool:
        """Whether this very job is not forgotten."""
        return self._jobs.get(job.key) is job

    def all(self, owner: str | None = None) -> list[Job]:
        """The jobs of an owner, or of all owners."""
        return [job for job in self._jobs.values() if owner is None or job.owner == owner]

    def report(self, job: Job, now: float, details: bool) -> JobReport:
        """The job as a message row, with its log, its report and all that is known of its error, or without: one
        message has the rows of all jobs."""
        seconds = max((now if job.over_s is None else job.over_s) - job.began_s, 0.0)
        error = job.error.to_fields() if job.error and job.state in FINAL else {}
        if not details:
            error = {name: _shortened(text) for name, text in error.items() if not name.startswith("log ")}
        log = tuple(line[:LOG_LINE_CHARS_MAX] for line in job.log) if details else ()
        report = job.report if details else ""
        waits = self._waits(job)
        return JobReport(job.job, job.name, job.state, job.created_s, seconds, error, log, report, waits, job.owner)

    def tell(self, job: Job, now: float, text: str) -> None:
        """Add a line to the job's log."""
        self._tell(job, now, text)

    def validate(self) -> None:
        """Assert that the state does not contradict itself; tests call it after every event."""
        for name, job in self._jobs.items():
            assert job.key == name
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
            running = Counter(
                job.owner for job in self._jobs.values() if job.state == "running" and job.patient == patient
            )
            assert max(running.values(), default=0) <= self.limits.running_per_client_max, f"{running} run"
            assert running.total() <= self.limits.running_max + max(self.limits.running_max, len(running)), (
                f"{running} run"
            )

    # -- helpers

    def _limit_s(self, job: Job) -> float | None:
        """The time at which a job has run for too long, None for never."""
        if not self.limits.time_limit_s or job.state != "running" or job.final or job.stopped_by is not None:
            return None
        return job.started_s + self.limits.time_limit_s

    def _end(self, job: Job, now: float) -> list[Action]:
        if job.state in FINAL:
            return []
        if job.over_s is None:
            job.over_s, job.ended_s = now, now + self.unix_s
            self._tell(job, now, f"{job.final}: {job.error}")
        job.state, job.work = job.final, None
        del self._going[job.key]
        self._over[job.key] = job
        if not any(other.owner == job.owner for other in self._going.values()):
            self._turn.pop(job.owner, None)
        return [Notify(job), *self.start(now)]

    def _save_end(self, job: Job) -> Save:
        error = job.error.to_fields() if job.error else {}
        end = {
            "state": job.final,
            "ended_s": job.ended_s,
            "report": job.report,
            "error": error,
            "log": _latest(job.log),
        }
        return Save(job, "ended", {**_facts(job), **end})

    def _save_later(self, job: Job, now: float) -> None:
        job.retry_s = now + self.limits.retry_s
        self._unsaved[job.key] = job

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
            del self._over[job.key]
            job.forgetting = True
            actions += [Save(job, "forgotten", {})] if job.accepted else self._drop(job)
        return actions

    def _drop(self, job: Job) -> list[Action]:
        if self._jobs.get(job.key) is job:
            del self._jobs[job.key]
        self._unsaved.pop(job.key, None)
        return [Free(job)]

    def _tell(self, job: Job, now: float, text: str) -> None:
        job.log = (*job.log, f"{now + self.unix_s:.3f} {text}"[:LOG_LINE_CHARS_MAX])[-self.limits.log_lines_max :]


def _over_s(job: Job) -> float:
    assert job.over_s is not None
    return job.over_s


def _latest(log: Sequence[str]) -> list[str]:
    """The latest lines, as many as an entry has room for: workers say some of them, in any script."""
    left_bytes = LOG_BYTES_MAX
    for count, line in enumerate(reversed(log)):
        left_bytes -= len(json.dumps(line))
        if left_bytes < 0:
            return list(log[len(log) - count :])
    return list(log)


def _shortened(text: str) -> str:
    return text if len(text) <= LISTED_CHARS_MAX else f"{text[:LISTED_CHARS_MAX]}..."


def _final_state(error: MeshError | None) -> str:
    return "done" if error is None else "cancelled" if error.code == "cancelled" else "failed"


def _too_long(limit_s: float) -> MeshError:
    return DeadlineExceeded(
        f"the job ran for more than {limit_s:g} s, which is the limit of this coordinator",
        next_step="Submit smaller jobs, or have mesh-coord serve started with a longer --job-time-limit",
    )


_FACTS = ("name", "client", "detached", "created_s", "content", "size_bytes")


def _facts(job: Job) -> dict[str, Any]:
    return {name: getattr(job, name) for name in _FACTS}


def _job_of(entry: str, fields: Mapping[str, Any]) -> Job:
    facts = {name: fields[name] for name in _FACTS if name in fields}  # an older version wrote fewer
    job = Job(entry.partition(_OF)[0], **facts, kept=fields.get("values") or _NOTHING, accepted=True)
    job.entry = entry
    return job
