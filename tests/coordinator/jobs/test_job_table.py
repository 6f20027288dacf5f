"""The job table of a coordinator daemon."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from coordinator.jobs.job_store import check_size
from coordinator.jobs.job_table import (
    FINAL,
    LOG_LINE_CHARS_MAX,
    Action,
    Job,
    JobLimits,
    JobTable,
    Save,
    SaveLater,
    Start,
    Stop,
)
from wire.bounds import JOBS_OVER
from wire.errors import Busy, Cancelled, ExecuteFailed, InputError, MeshError, NodeLost, NotDurable
from wire.limits import DEFAULT
from wire.protocol.messages import Jobs, encode_message

LIMITS = JobLimits(
    queued_per_client_max=3, running_max=2, kept_max=2, keep_s=10.0, log_lines_max=4, grace_s=5.0, retry_s=2.0,
    gather_s=3.0, keep_anew_s=4.0,
)  # fmt: skip
NOBODY = "none is connected"


class Story:
    """A table whose entries are kept at once, or refused while `full`; `actions` has one word per action."""

    def __init__(self) -> None:
        self.table = JobTable(LIMITS)
        self.now = 0.0
        self.actions: list[str] = []
        self.full = False
        self.journal: list[tuple[str, str, Any]] = []

    def job(self, name: str) -> Job:
        return self.table.get(name, "", everybody=True)

    def submit(
        self, name: str, client: str = "c", detached: bool = False, content: str = "x", size_bytes: int = 0
    ) -> Job:
        job = self.table.submit(Job(name, "", client, detached, self.now + self.table.unix_s, content, size_bytes))
        if job.state == "arriving":
            self.do(self.table.arrived(job, self.now, "work"))
        return job

    def ran(self, name: str, at: float, outputs: Any = None, error: MeshError | None = None) -> None:
        self.now = at
        self.do(self.table.ran(self.job(name), at, outputs, error=error))

    def at(self, now: float) -> None:
        self.now = now
        self.do(self.table.tick(now))

    def do(self, actions: list[Action]) -> None:
        self.table.validate()
        for action in actions:
            self.actions.append(f"{type(action).__name__} {action.job.job}")
            if isinstance(action, Save) and self.full:
                self.do(self.table.save_failed(action, self.now, NotDurable("the disk is full")))
            elif isinstance(action, Save):
                self.actions[-1] += f" {action.kind}"
                self.journal.append((action.job.entry, action.kind, json.loads(json.dumps(action.fields))))
                self.do(self.table.saved(action, self.now))
            elif isinstance(action, SaveLater):
                self.journal.append((action.job.entry, action.kind, {}))
            elif isinstance(action, Stop):
                self.do(self.table.ran(action.job, self.now, error=Cancelled("stopped")))

    def workers(self, no_worker_reason: str, now: float = 0.0) -> None:
        self.now = now
        self.do(self.table.workers(now, no_worker_reason, ()))

    def waits(self, name: str) -> str:
        return self.table.report(self.job(name), self.now, details=False).waits

    def restarted(self, now: float, unix_s: float = 0.0) -> Story:
        made = Story()
        made.now, made.table.unix_s = now, unix_s
        for job, kind, fields in self.journal:
            made.table.restore(job, kind, fields, now)
        made.table.wait_for_workers(now)
        return made

    def log(self, name: str) -> list[str]:
        return [line.split(" ", 1)[1] for line in self.job(name).log]


def test_a_job_is_promised_run_and_told_in_this_order() -> None:
    story = Story()
    story.submit("a")
    assert story.actions == ["Save a accepted", "Notify a", "SaveLater a", "Start a"]
    story.actions.clear()
    story.ran("a", 2.0, "outputs")
    assert story.actions == ["Save a ended", "Notify a"]
    job = story.job("a")
    assert (job.state, job.outputs, job.work, job.ended_s) == ("done", "outputs", None, 2.0)


@pytest.mark.parametrize("hours", [-5, 48])
def test_no_wait_follows_the_date_and_what_people_read_does(hours: int) -> None:
    story, set_s = Story(), hours * 3600.0
    story.table.unix_s = 1_700_000_000.0
    story.submit("a")
    story.submit("b")
    story.table.unix_s += set_s
    story.do(story.table.left("c", 1.0, for_good=False))
    story.ran("a", 2.0, "outputs")
    report = story.table.report(story.job("a"), 9.0, details=True)
    assert (report.created_s, report.seconds) == (1_700_000_000.0, 2.0)
    assert story.job("a").ended_s == 1_700_000_002.0 + set_s
    assert float(report.log[-1].split()[0]) == story.job("a").ended_s
    limits = story.table.limits
    for at, of_b in ((0.9 + limits.grace_s, "running"), (1.0 + limits.grace_s, "cancelled")):
        story.at(at)
        assert story.job("b").state == of_b
    story.at(1.9 + limits.keep_s)
    assert story.job("a").state == "done"
    story.at(2.0 + limits.keep_s)
    with pytest.raises(InputError, match="no job 'a'"):
        story.job("a")


@pytest.mark.parametrize("hours", [-100, 0, 5, 10_000])
def test_results_outlive_a_restart_whatever_the_date_is_then(hours: int) -> None:
    story = Story()
    story.table.unix_s = 1_700_000_000.0
    story.submit("a")
    story.ran("a", 2.0, "outputs")
    story.submit("b")
    again = story.restarted(10.0, unix_s=1_700_000_000.0 + hours * 3600)
    limits = again.table.limits
    assert again.table.report(again.job("a"), 10.0, details=False).seconds == 2.0
    again.do(again.table.workers(10.0 + limits.gather_s, "", {"gone"}))
    assert again.job("b").state == "running", "it waited for the workers of before, and no longer"
    assert again.table.report(again.job("b"), 20.0, details=False).seconds >= 10.0
    again.at(9.0 + limits.keep_anew_s)
    assert again.job("a").state == "done"
    again.at(10.0 + limits.keep_s)
    with pytest.raises(InputError, match="no job 'a'"):
        again.job("a")


def test_jobs_start_in_order_up_to_the_limit() -> None:
    story = Story()
    for name in "abc":
        story.submit(name)
    assert [story.job(name).state for name in "abc"] == ["running", "running", "queued"]
    story.ran("b", 1.0)
    assert story.job("c").state == "running"


def test_a_job_whose_values_are_still_on_their_way_does_not_start() -> None:
    story = Story()
    job = story.table.submit(Job("a", "", "c", True, 0.0))
    assert (story.table.start(0.0), job.state) == ([], "arriving")
    story.do(story.table.cancel(job, 1.0))
    assert (story.table.arrived(job, 2.0, "work"), job.state, story.actions) == ([], "cancelled", ["Notify a"])


def test_a_job_that_was_cancelled_while_it_was_written_is_written_as_cancelled() -> None:
    story = Story()
    job = story.table.submit(Job("a", "", "c", True, 0.0))
    (save,) = story.table.arrived(job, 0.0, "work")
    assert isinstance(save, Save)
    story.do(story.table.cancel(job, 1.0))
    assert job.state not in FINAL, "nobody may be told before the journal says so"
    story.do(story.table.saved(save, 2.0))
    assert story.actions == ["Save a ended", "Notify a"]
    assert (story.journal[-1][2]["state"], job.state) == ("cancelled", "cancelled")


def test_a_job_that_was_cancelled_while_the_disk_refused_it_is_cancelled() -> None:
    story = Story()
    job = story.table.submit(Job("a", "", "c", True, 0.0))
    (save,) = story.table.arrived(job, 0.0, "work")
    assert isinstance(save, Save)
    story.do(story.table.cancel(job, 1.0))
    story.do(story.table.save_failed(save, 2.0, NotDurable("the disk is full")))
    assert (job.state, job.accepted, story.actions, story.journal) == ("cancelled", False, ["Notify a"], [])


def test_the_end_of_a_cancelled_job_is_not_written_over_a_later_job_of_its_id() -> None:
    """A journal that is slow: what it is given it writes later, in that order."""
    story, slow = Story(), list[Action]()
    first = story.table.submit(Job("a", "", "c", True, 0.0))
    slow += story.table.arrived(first, 0.0, "work")
    slow += [action for action in story.table.cancel(first, 1.0) if isinstance(action, Save)]
    second = story.table.submit(Job("a", "", "c", True, 2.0))
    if second is not first:
        slow += story.table.arrived(second, 2.0, "work")
    written, done = list[tuple[Job, str]](), list[Action]()
    while slow:
        save = slow.pop(0)
        assert isinstance(save, Save)
        written.append((save.job, save.kind))
        done = story.table.saved(save, 3.0)
        slow += [action for action in done if isinstance(action, Save)]
    last, kind = written[-1]
    assert last is story.job("a"), "the journal ends with another job than the one of that id"
    assert (kind, last.state) == ("ended", "cancelled")


def test_a_log_that_workers_filled_leaves_the_end_room_in_the_journal() -> None:
    table = JobTable()
    job = table.submit(Job("a", "", "c", True, 0.0))
    (save,) = table.arrived(job, 0.0, "work")
    assert isinstance(save, Save)
    table.saved(save, 0.0)
    for number in range(2 * table.limits.log_lines_max):
        table.tell(job, 0.0, f"{number} devices sim-0: " + "\N{GRINNING FACE}" * LOG_LINE_CHARS_MAX)
    (end,) = table.ran(job, 1.0)
    assert isinstance(end, Save)
    check_size("a", len(json.dumps(end.fields)))
    log = end.fields["log"]
    assert len(log) >= 16 and (log[-1], log[0]) == (job.log[-1], job.log[-len(log)]), "the latest lines"


def test_a_client_with_too_many_waiting_is_told_so() -> None:
    story = Story()
    for name in "abcde":
        story.submit(name)
    with pytest.raises(Busy, match="3 jobs of this client"):
        story.submit("f")
    story.submit("g", client="another")


def test_a_failure_is_reported_with_its_error_and_log() -> None:
    story = Story()
    story.submit("a")
    story.ran("a", 3.0, error=ExecuteFailed("out of luck", node="w1"))
    report = story.table.report(story.job("a"), 9.0, details=True)
    assert (report.state, report.seconds) == ("failed", 3.0)
    assert (report.error["code"], report.error["node"]) == ("execute_failed", "w1")
    assert story.log("a") == ["submitted", "queued", "running", "failed: out of luck [worker w1]"]


# -- whose they are


def test_to_others_a_job_is_not_there() -> None:
    story = Story()
    story.submit("a", client="ann/1")
    story.submit("b", client="bob")
    with pytest.raises(InputError, match=r"no job 'a' here\. Most recent: b;") as foreign:
        story.table.get("a", "bob")
    with pytest.raises(InputError) as unknown:
        story.table.get("nowhere", "bob")
    assert str(foreign.value) == str(unknown.value).replace("nowhere", "a")
    assert [job.job for job in story.table.all("ann")] == ["a"]
    assert story.table.get("a", "ann") is story.table.get("a", "bob", everybody=True)


def test_two_members_may_give_their_jobs_the_same_id() -> None:
    story = Story()
    story.submit("a", client="ann/1", content="x")
    story.submit("a", client="bob", content="y")
    assert story.actions.count("Start a") == 2
    of_ann = story.table.get("a", "ann")
    assert story.submit("a", client="ann/2", content="x") is of_ann
    assert story.table.report(of_ann, 0.0, details=False).client == "ann"
    with pytest.raises(InputError, match=r"2 clients have a job 'a'\. Name one: a@ann, a@bob"):
        story.job("a")
    assert story.job("a@an") is of_ann
    again = story.restarted(1.0)
    assert {(job.owner, job.job, job.content) for job in again.table.all()} == {("ann", "a", "x"), ("bob", "a", "y")}


def test_a_job_of_an_older_journal_is_of_the_client_that_it_names() -> None:
    story = Story()
    story.submit("a", client="ann/1")
    ((_, kind, fields), *_) = story.journal
    del fields["size_bytes"]
    again = Story()
    again.table.restore("a", kind, fields, 0.0)
    assert (again.table.get("a", "ann").entry, again.submit("a", client="ann/2").accepted) == ("a", True)


# -- turns


def running(story: Story) -> list[str]:
    return [job.job for job in story.table.all() if job.state == "running"]


def test_who_came_first_keeps_nobody_from_a_share() -> None:
    story = Story()
    for name in "abcd":
        story.submit(name, client="ann")
    assert running(story) == ["a", "b"]
    story.submit("e", client="bob")
    story.submit("f", client="bob")
    assert running(story) == ["a", "b", "e"], "one of two, whatever runs"
    story.submit("g", client="cay")
    assert running(story) == ["a", "b", "e", "g"]
    story.ran("a", 1.0)
    assert running(story) == ["b", "e", "g"], "together they have more than their share"


def test_members_take_turns() -> None:
    story = Story()
    story.table.limits = replace(LIMITS, running_max=1, queued_per_client_max=9)
    for name in "abc":
        story.submit(name, client="ann")
    for name in "defg":
        story.submit(name, client="bob")
    starts: list[str] = []
    while len(starts) < 7:
        starts = [action.removeprefix("Start ") for action in story.actions if action.startswith("Start")]
        story.ran(next(name for name in starts if name in running(story)), story.now + 0.1)
    assert starts == list("adbecfg")


def test_one_member_alone_has_everything_up_to_its_cap() -> None:
    story = Story()
    story.table.limits = replace(LIMITS, running_max=4, running_per_client_max=2, queued_per_client_max=9)
    for name in "abcd":
        story.submit(name)
    assert running(story) == ["a", "b"]


def test_values_that_run_and_values_that_wait_are_bounded_for_each_member() -> None:
    story = Story()
    story.table.limits = replace(LIMITS, running_bytes_per_client_max=100, queued_bytes_per_client_max=250)
    for name, size_bytes in {"a": 60, "b": 60, "c": 180}.items():
        story.submit(name, size_bytes=size_bytes)
    assert running(story) == ["a"]
    with pytest.raises(
        Busy, match="the job has 20 B of values, and those of this client that wait have 240 B: no more"
    ):
        story.submit("d", size_bytes=20)
    story.submit("d", client="another", size_bytes=20)
    story.ran("a", 1.0)
    assert running(story) == ["b", "d"]
    story.ran("b", 2.0)
    assert running(story) == ["c", "d"], "one that has more than all may have runs alone"


def test_a_job_that_runs_for_too_long_fails_and_says_so() -> None:
    story = Story()
    story.table.limits = replace(LIMITS, time_limit_s=5.0)
    story.submit("a")
    assert story.table.next_deadline() == 5.0
    story.at(4.9)
    assert story.job("a").state == "running"
    story.at(5.0)
    report = story.table.report(story.job("a"), 5.0, details=True)
    assert (report.state, report.error["code"]) == ("failed", "deadline_exceeded")
    assert (
        "the job ran for more than 5 s" in report.error["message"] and "--job-time-limit" in report.error["next_step"]
    )
    assert report.log and story.journal[-1][1] == "ended"


def test_a_job_that_is_slow_to_stop_is_stopped_once() -> None:
    story = Story()
    story.table.limits = replace(LIMITS, time_limit_s=5.0)
    job = story.submit("a")
    (stop,) = story.table.tick(6.0)
    assert isinstance(stop, Stop) and (story.table.tick(7.0), story.table.next_deadline()) == ([], None)
    story.do(story.table.ran(job, 8.0, "outputs"))
    assert job.state == "done", "it was over before it heard"


# -- the same id again


def test_the_same_job_sent_again_counts_once() -> None:
    story = Story()
    first = story.submit("a")
    assert story.submit("a") is first
    story.ran("a", 1.0, "outputs")
    assert story.submit("a") is first
    assert story.actions.count("Start a") == 1


def test_an_id_is_not_given_twice_and_is_an_id() -> None:
    story = Story()
    story.submit("a")
    with pytest.raises(InputError, match="there is a job a with another content"):
        story.submit("a", content="y")
    for name in ("", "@workers", "a/b", "x" * 65, "é", "..", "a\n"):
        with pytest.raises(InputError, match="is no id for a job"):
            story.submit(name)


def test_a_job_that_was_not_accepted_may_be_sent_again() -> None:
    story = Story()
    story.full = True
    refused = story.submit("a")
    assert (refused.state, refused.accepted, str(refused.error)) == ("failed", False, "the disk is full")
    story.full = False
    assert story.submit("a", content="y").state == "running"


# -- a disk that refuses


def test_an_end_that_could_not_be_written_is_told_and_written_later() -> None:
    story = Story()
    story.submit("a")
    story.full = True
    story.ran("a", 1.0, "outputs")
    assert (story.job("a").state, story.actions[-2:]) == ("done", ["Save a", "Notify a"])
    story.at(2.0)
    assert (story.actions[-1], story.table.next_deadline()) == ("Notify a", 3.0)
    story.at(3.0)
    assert (story.actions[-1], story.table.next_deadline()) == ("Save a", 5.0)
    story.full = False
    story.at(5.0)
    assert (story.actions[-1], story.table.next_deadline()) == ("Save a ended", 11.0)
    assert "not kept yet: the disk is full" in story.log("a")


# -- clients


def test_a_client_that_vanishes_takes_its_attached_jobs_along_after_a_grace() -> None:
    story = Story()
    story.submit("a")
    story.submit("b", detached=True)
    story.submit("c", client="other")
    story.do(story.table.left("c", 1.0, for_good=False))
    assert story.table.next_deadline() == 6.0
    story.at(5.9)
    assert story.job("a").state == "running"
    story.at(6.0)
    assert [story.job(name).state for name in "abc"] == ["cancelled", "running", "running"]
    assert "its client went away" in story.log("a")


def test_a_client_that_says_goodbye_ends_its_attached_jobs_at_once() -> None:
    story = Story()
    story.submit("a")
    story.submit("b")
    story.submit("c")
    story.do(story.table.left("c", 1.0, for_good=True))
    assert [story.job(name).state for name in "abc"] == ["cancelled"] * 3


def test_a_client_that_comes_back_keeps_its_jobs() -> None:
    story = Story()
    story.submit("a")
    story.do(story.table.left("c", 1.0, for_good=False))
    story.table.client_linked("c")
    story.at(100.0)
    assert (story.job("a").state, story.table.next_deadline()) == ("running", None)


# -- for how long


def test_results_are_forgotten_by_age_and_by_number() -> None:
    story = Story()
    for place, name in enumerate("abc"):
        story.submit(name)
        story.ran(name, float(place))
    story.at(2.0)
    assert story.actions[-2:] == ["Save a forgotten", "Free a"]
    assert story.table.next_deadline() == 11.0
    story.at(11.5)
    assert [job.job for job in story.table.all()] == ["c"]
    with pytest.raises(InputError, match=r"no job 'a' here\. Most recent: c; results are kept for"):
        story.job("a")


def test_a_log_is_bounded() -> None:
    story = Story()
    story.submit("a")
    for line in range(10):
        story.table.tell(story.job("a"), float(line), f"line {line}")
    assert story.log("a") == [f"line {line}" for line in range(6, 10)]


# -- restarts


def test_a_restart_forgets_nothing_and_runs_what_was_not_over() -> None:
    before = Story()
    before.submit("done")
    before.ran("done", 1.0, "outputs")
    before.submit("failed")
    before.ran("failed", 2.0, error=ExecuteFailed("out of luck", node="w1"))
    before.submit("running", detached=True)
    before.submit("waiting", detached=True)
    after = before.restarted(5.0)
    assert [(job.job, job.state) for job in after.table.all()] == [
        ("done", "done"),
        ("failed", "failed"),
        ("running", "queued"),
        ("waiting", "queued"),
    ]
    error = after.job("failed").error
    assert isinstance(error, ExecuteFailed) and error.node == "w1"
    done = after.job("done")
    assert (done.shrunk, done.log) == (True, ())
    after.table.recall(done, {**before.journal[2][2], "values": None})
    assert before.log("done") == after.log("done")
    after.do(after.table.workers(5.0, no_worker_reason="", missing=()))
    assert after.job("running").state == after.job("waiting").state == "running"
    assert after.submit("running", detached=True) is after.job("running")


def test_a_failed_job_holds_what_its_error_says_and_not_where_it_went() -> None:
    story = Story()
    story.submit("failed")
    try:
        raise ExecuteFailed("out of luck", node="w1")
    except ExecuteFailed as error:
        error.log_lines = ("a line",) * 50
        story.ran("failed", 1.0, error=error)
    job = story.job("failed")
    assert job.error is not None and job.error.log_lines
    assert (job.error.__traceback__, job.error.__context__) == (None, None)
    story.table.shrink(job)
    assert str(job.error) == "out of luck [worker w1]" and not job.error.log_lines
    story.table.recall(job, {**story.journal[-1][2], "values": None})
    assert len(job.error.log_lines) == 50


def test_a_job_that_ends_while_its_client_is_away_leaves_nothing_due() -> None:
    story = Story()
    story.submit("a")
    story.do(story.table.left("c", 1.0, for_good=False))
    story.ran("a", 2.0)
    assert story.table.next_deadline() == 2.0 + LIMITS.keep_s


def test_after_a_restart_jobs_wait_for_the_workers_of_before_but_not_for_ever() -> None:
    before = Story()
    before.submit("a", detached=True)
    after = before.restarted(5.0)
    for now, no_worker_reason, missing in ((5.0, NOBODY, ["w1", "w2"]), (6.0, "", ["w2"]), (7.9, "", ["w2"])):
        assert after.table.workers(now, no_worker_reason, missing) == []
        assert after.waits("a") == "for the workers of before"
    assert after.table.next_deadline() == 8.0
    assert after.table.workers(8.0, NOBODY, missing=["w1", "w2"]) == []
    assert after.table.next_deadline() is None, "from now on any worker will do"
    assert after.waits("a") == "for a worker: none is connected"
    actions = after.table.workers(60.0, "", missing=["w2"])
    assert [type(action) for action in actions] == [SaveLater, Start]


def test_a_job_that_needs_no_client_waits_for_a_worker_and_says_so() -> None:
    story = Story()
    story.workers(NOBODY)
    story.submit("a", detached=True)
    assert story.log("a") == ["submitted", "queued", "waiting for a worker: none is connected"]
    assert (story.job("a").state, story.waits("a")) == ("queued", "for a worker: none is connected")
    story.workers("all are paused")
    assert story.waits("a") == "for a worker: all are paused" and story.table.next_deadline() is None
    story.workers("")
    assert (story.job("a").state, story.waits("a")) == ("running", "")
    story.workers(NOBODY)
    assert story.waits("a") == "for a worker: none is connected", "they all died while it ran"
    assert story.log("a")[-2:] == ["waiting for a worker: all are paused", "running"]


def test_a_job_that_waits_for_a_worker_is_cancelled_or_waits_on_after_a_restart() -> None:
    before = Story()
    before.workers(NOBODY)
    before.submit("a", detached=True)
    before.submit("b", detached=True)
    before.do(before.table.cancel(before.job("b"), 1.0))
    after = before.restarted(5.0)
    after.workers(NOBODY, 6.0)
    after.workers(NOBODY, 9.0)
    assert (after.job("a").state, after.job("b").state) == ("queued", "cancelled")
    assert after.log("a")[-1] == "waiting for a worker: none is connected"
    after.workers("", 10.0)
    assert after.job("a").state == "running"


def test_an_attached_job_runs_at_once_and_is_told_that_nobody_is_there_whoever_else_waits() -> None:
    story = Story()
    for name in ("a", "b"):
        story.submit(name, detached=True, client=name)
    assert story.job("a").state == story.job("b").state == "running", "and so there is room for no other"
    story.workers(NOBODY)
    story.submit("c")
    assert story.job("c").state == "running"
    again = story.restarted(5.0)
    again.workers(NOBODY, 5.0)
    again.submit("d")
    assert again.job("d").state == "queued", "workers of before may come back"
    again.workers(NOBODY, 8.0)
    assert (again.job("a").state, again.job("c").state, again.job("d").state) == ("queued", "queued", "running")


def test_after_a_restart_an_attached_job_waits_for_its_client_for_a_grace() -> None:
    before = Story()
    before.submit("a")
    before.submit("b", client="d")
    after = before.restarted(5.0)
    after.table.client_linked("d")
    after.at(10.0)
    assert (after.job("a").state, after.job("b").state) == ("cancelled", "queued")


def test_a_job_that_was_never_accepted_is_dropped_without_an_entry() -> None:
    story = Story()
    job = story.table.submit(Job("a", "", "c", True, 0.0))
    story.do(story.table.refused(job, 0.0, InputError("no")))
    story.at(10.0)
    assert (story.actions, story.journal) == (["Notify a", "Free a"], [])


# -- any order of events


NAMES = ("a", "b", "c", "d")


@pytest.mark.parametrize("seed", range(150))
def test_no_order_of_events_loses_a_job_or_changes_an_answer(seed: int) -> None:
    """A table over a journal that refuses and is slow; it is killed at any time, and what it said still holds."""
    world = World(random.Random(seed))
    for _ in range(120):
        world.event()
        world.table.validate()
    world.settle()
    for name in world.promised:
        job = world.table.get(name, "", everybody=True)
        assert job.state in FINAL
    world.check()


class World:
    """A JobTable, a journal that is a list, and clients who remember what they were told."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now = 0.0
        self.limits = JobLimits(running_max=2, time_limit_s=5.0, keep_s=1e9, grace_s=3.0, retry_s=1.0, gather_s=2.0)
        self.journal: list[tuple[str, str, Any]] = []
        self.promised: set[str] = set()
        self.answers: dict[str, str] = {}
        self.table = JobTable(self.limits)
        self.no_worker_reason = ""
        self.saving: list[Save] = []
        self.running: list[Job] = []

    def event(self) -> None:
        self.now += self.rng.uniform(0, 0.5)
        moves = (self.submit, self.save, self.save, self.save, self.refuse, self.run, self.run, self.cancel)
        self.rng.choice((*moves, self.leave, self.come, self.tick, self.tick, self.crash, self.come_and_go))()

    def do(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Save):
                self.saving.append(action)
            elif isinstance(action, SaveLater):
                self.journal.append((action.job.entry, action.kind, {}))
            elif isinstance(action, Start):
                assert action.job not in self.running
                self.running.append(action.job)
            elif isinstance(action, Stop):
                self.running.remove(action.job)
                self.do(self.table.ran(action.job, self.now, error=Cancelled("stopped")))
            elif action.job.accepted:
                self.promised.add(action.job.entry)
        self.check()

    def check(self) -> None:
        """A client gets the same answer as before, once the end is saved."""
        for name in self.promised:
            job = self.table.get(name, "", everybody=True)
            if job.state in FINAL and job.retry_s is None:
                assert self.answers.setdefault(name, job.state) == job.state, f"{name} was answered differently"
        assert self.promised >= self.answers.keys()

    def submit(self) -> None:
        name = self.rng.choice(NAMES)
        job = self.table.submit(Job(name, "", self.rng.choice("xy"), self.rng.random() < 0.5, self.now, "content"))
        if job.state == "arriving" and all(save.job is not job for save in self.saving):
            fails = self.rng.random() < 0.2
            error = InputError("the client went away")
            self.do(self.table.refused(job, self.now, error) if fails else self.table.arrived(job, self.now, "work"))

    def save(self) -> None:
        if self.saving:
            save = self.saving.pop(0)
            self.journal.append((save.job.entry, save.kind, json.loads(json.dumps(save.fields))))
            self.do(self.table.saved(save, self.now))

    def refuse(self) -> None:
        if self.saving:
            self.do(self.table.save_failed(self.saving.pop(0), self.now, NotDurable("the disk is full")))

    def run(self) -> None:
        if self.running:
            job = self.running.pop(self.rng.randrange(len(self.running)))
            self.do(self.table.ran(job, self.now, {"y": 1}))

    def cancel(self) -> None:
        jobs = [job for job in self.table.all() if job.state not in FINAL]
        if jobs:
            self.do(self.table.cancel(self.rng.choice(jobs), self.now))

    def leave(self) -> None:
        self.do(self.table.left(self.rng.choice("xy"), self.now, self.rng.random() < 0.3))

    def come(self) -> None:
        self.table.client_linked(self.rng.choice("xy"))

    def tick(self) -> None:
        self.do([*self.table.tick(self.now), *self.table.workers(self.now, self.no_worker_reason, [])])

    def come_and_go(self) -> None:
        self.no_worker_reason = self.rng.choice(("", NOBODY))

    def crash(self) -> None:
        """What was being saved may be on the disk or not; whatever else was in memory is gone."""
        for save in self.saving[: self.rng.randrange(len(self.saving) + 1)]:
            self.journal.append((save.job.entry, save.kind, json.loads(json.dumps(save.fields))))
        self.table, self.saving, self.running = JobTable(self.limits), [], []
        for entry in self.journal:
            self.table.restore(*entry, self.now)
        self.table.wait_for_workers(self.now)
        self.check()

    def settle(self) -> None:
        self.no_worker_reason = ""
        for _ in range(40):
            self.now += 1.0
            self.tick()
            while self.saving:
                self.save()
            while self.running:
                self.run()
        assert all(job.state in FINAL for job in self.table.all())


def test_all_jobs_that_are_kept_fit_into_one_message() -> None:
    """With an error as long as any may be, which every one has in full where it is asked about alone."""
    error = NodeLost("m" * 9000, node="n" * 9000, cause="c" * 9000, next_step="s" * 9000)
    error.log_lines = ("l" * 900,) * 99
    table = JobTable(JobLimits())
    for number in range(JOBS_OVER.most):
        job = Job(f"job-{number}", "n" * 256, "c", False, 0.0, "x")
        job.state, job.error, job.over_s = "failed", error, 1.0
        table._jobs[job.key] = job
    listed = Jobs(tuple(table.report(job, 2.0, details=False) for job in table.all()))
    assert len(encode_message(listed)) < DEFAULT.message_bytes_max / 2
    assert listed.jobs[0].error["message"].startswith("m" * 100) and "log 0" not in listed.jobs[0].error
    whole = table.report(table.get("job-0", "c"), 2.0, details=True)
    assert whole.error == error.to_fields()
