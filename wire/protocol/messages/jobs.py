"""Jobs: a client submits graphs to a coordinator, and asks for plans, states and results."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from ...limits import PLAN_CHARS_MAX, REPORT_CHARS_MAX
from .fields import Dims, Hash, Inline, Message, Name, Record, Seconds, Text


class NamedValue(Record, frozen=True):
    """A tensor by name.  A small one is inline.  A larger one is a blob, which the receiver fetches from the sender."""

    name: Name
    dtype: Name
    shape: Dims
    data: Inline | None = None
    blob: Hash | None = None


class SubmitJob(Message, frozen=True):
    """Run a graph.  Answered by JobAccepted.  A coordinator with a journal answers once the job is on its disk.  A
    detached job outlives the client's link.  A message with an id in `job` may be sent again and counts once."""

    graph: bytes
    inputs: tuple[NamedValue, ...]
    params: tuple[NamedValue, ...]
    strategy: Text = "auto"  # wire/policy/strategies.py
    detach: bool = False
    name: Name = ""
    job: Name = ""
    copies: Name = "checkpoint"  # of the params (wire/policy/redundancy.py)
    force: bool = False  # compile it again, whatever is in the caches


class JobAccepted(Message, frozen=True):
    job: Name


class PlanGraph(Message, frozen=True):
    """Plan a graph without running it.  Answered by Planned."""

    graph: bytes
    strategy: Text = "auto"  # wire/policy/strategies.py
    copies: Name = "checkpoint"  # of the params (wire/policy/redundancy.py)
    dies: Name = ""  # also say what happens if the worker of that name dies


class Planned(Message, frozen=True):
    """A plan as JSON text (the fields of coordinator.planning.model.plan.Plan)."""

    plan: Annotated[str, Meta(max_length=PLAN_CHARS_MAX)]


class AskJobs(Message, frozen=True):
    """Report the state of one job, or with job "" of all jobs: the client's own, or for an operator those of all
    clients.  Answered by Jobs."""

    job: Name = ""


class JobReport(Record, frozen=True):
    job: Name
    name: Name
    state: Name  # queued, planning, shipping, running, done, failed, cancelled
    created_s: Seconds  # Unix time
    seconds: Seconds
    error: dict[Name, Text] = field(default_factory=dict)
    log: Annotated[tuple[Text, ...], Meta(max_length=1000)] = ()
    report: Annotated[str, Meta(max_length=REPORT_CHARS_MAX)] = ""  # JSON of the run's report, once done
    waits: Text = ""  # what it waits for, for people, where it does
    client: Name = ""  # whose it is, by the member's id


class Jobs(Message, frozen=True):
    jobs: tuple[JobReport, ...]


class AwaitJob(Message, frozen=True):
    """Wait for a job.  Answered by JobResult once it is done, or by its error."""

    job: Name


class JobResult(Message, frozen=True):
    """The outputs.  Small ones are inline.  Larger ones are blobs, which the client fetches from the coordinator."""

    outputs: tuple[NamedValue, ...]
    report: Annotated[str, Meta(max_length=REPORT_CHARS_MAX)] = ""


class CancelJob(Message, frozen=True):
    """Cancel a job.  Answered by Done."""

    job: Name
