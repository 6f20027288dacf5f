"""Jobs: a client has a coordinator run graphs, and asks for plans, states and results."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from ...limits import PLAN_CHARS_MAX, REPORT_CHARS_MAX
from .fields import Dims, Hash, Inline, Message, Name, Record, Seconds, Text


class NamedValue(Record, frozen=True):
    """A tensor by name: small ones inline, others as a blob the coordinator fetches from the client."""

    name: Name
    dtype: Name
    shape: Dims
    data: Inline | None = None
    blob: Hash | None = None


class SubmitJob(Message, frozen=True):
    """Run a graph.  Answered by JobAccepted, where the coordinator keeps a journal once the job outlives its process.
    A detached job outlives the client's link.  With an id in `job` the same may be sent again and counts once."""

    graph: bytes
    inputs: tuple[NamedValue, ...]
    params: tuple[NamedValue, ...]
    strategy: Text = "auto"  # wire/policy/strategies.py
    detach: bool = False
    name: Name = ""
    job: Name = ""
    copies: Name = "checkpoint"  # of the params (wire/policy/redundancy.py)
    force: bool = False  # compile it anew, whatever is in the caches


class JobAccepted(Message, frozen=True):
    job: Name


class PlanGraph(Message, frozen=True):
    """Preview: what would go where.  Answered by Planned."""

    graph: bytes
    strategy: Text = "auto"  # wire/policy/strategies.py
    copies: Name = "checkpoint"  # of the params (wire/policy/redundancy.py)
    dies: Name = ""  # tell, too, what follows if the worker of that name dies


class Planned(Message, frozen=True):
    """A plan as JSON text (the fields of coordinator.planning.model.plan.Plan)."""

    plan: Annotated[str, Meta(max_length=PLAN_CHARS_MAX)]


class AskJobs(Message, frozen=True):
    """State of one job, or of all with job "": the client's own, or for an operator everybody's.  Answered by Jobs."""

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
    """The answer is JobResult when the job is done, or its error."""

    job: Name


class JobResult(Message, frozen=True):
    """The outputs, small ones inline and others as blobs to fetch from the coordinator."""

    outputs: tuple[NamedValue, ...]
    report: Annotated[str, Meta(max_length=REPORT_CHARS_MAX)] = ""


class CancelJob(Message, frozen=True):
    """The answer is Done."""

    job: Name
