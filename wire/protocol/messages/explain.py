"""Explanations: which kernels a worker compiles a graph to, and what each of them costs."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ...limits import DEFAULT, KERNEL_TEXTS_CHARS_MAX
from .fields import Count, Index, Message, Name, PlanKey, Record, Seconds, Text


class ExplainGraph(Message, frozen=True):
    """Client to coordinator: the kernels that a worker, by name or id, compiles a graph to ("": the worker that a plan
    for one takes), with their texts if they are asked for, of all or of one.  Answered by Explained."""

    graph: bytes
    worker: Name = ""
    device: Index | None = None  # the first that has every op
    texts: bool = False
    kernel: Index | None = None


class Explain(Message, frozen=True):
    """Coordinator to worker: tell the kernels of part `part`, and run them a few times with random inputs, in place of
    step `step` of the plan.  Answered by Explained."""

    plan: PlanKey
    step: Count
    part: Index
    texts: bool = False
    kernel: Index | None = None


class KernelReport(Record, frozen=True):
    """One kernel, or one numpy call.  `nodes` are those of the graph that it computes; of a kernel in a branch or a
    loop they are nodes of graph `body` in kernel `inside`.  `seconds` is what one evaluation took in it, the median of
    a few; none where it did not run, or none ended in time."""

    name: Name
    nodes: Annotated[tuple[Index, ...], Meta(max_length=DEFAULT.graph_nodes_max)]
    read_bytes: Count
    written_bytes: Count
    flops: Count
    runs: Count = 0  # in one evaluation
    seconds: Seconds | None = None
    inside: Index | None = None
    body: Name = ""
    text: Annotated[str, Meta(max_length=KERNEL_TEXTS_CHARS_MAX)] = ""  # WGSL, or LLVM's language


class Explained(Message, frozen=True):
    """The kernels in the order in which they run.  `seconds` is what a whole evaluation takes when nobody measures its
    kernels, the median of `evaluations`; `clock` says how kernels were measured.  The rest describes the device, with
    its own measurements."""

    kernels: Annotated[tuple[KernelReport, ...], Meta(max_length=DEFAULT.graph_nodes_max)]
    clock: Text
    evaluations: Count
    seconds: Seconds | None
    worker: Name = ""
    device: Index = 0
    engine: Name = ""
    adapter: Text = ""
    gflops: Seconds = 0.0
    gbytes_per_s: Seconds = 0.0
    dispatch_s: Seconds = 0.0
