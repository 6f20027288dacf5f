"""Explanations: which kernels a worker compiles a graph to, and what each of them costs."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ...limits import DEFAULT, KERNEL_TEXTS_CHARS_MAX
from .fields import Count, Index, Message, Name, PlanKey, Record, Seconds, Text


class ExplainGraph(Message, frozen=True):
    """Client to coordinator: list the kernels that a worker compiles a graph to.  `worker` is its name or id, or "" for
    the worker that a plan on one worker would use.  `texts` asks for the texts of all kernels, or of `kernel` alone.
    Answered by Explained."""

    graph: bytes
    worker: Name = ""
    device: Index | None = None  # the first that has every op
    texts: bool = False
    kernel: Index | None = None


class Explain(Message, frozen=True):
    """Coordinator to worker: list the kernels of part `part`, and run them a few times with random inputs, in place of
    step `step` of the plan.  Answered by Explained."""

    plan: PlanKey
    step: Count
    part: Index
    texts: bool = False
    kernel: Index | None = None


class KernelReport(Record, frozen=True):
    """One kernel, or one numpy call.  `nodes` are the graph nodes that it computes.  For a kernel in a branch or a
    loop, they are nodes of graph `body` in kernel `inside`.  `seconds` is the time that one evaluation spends in the
    kernel, the median of a few.  It is nil if the kernel did not run, or if no evaluation ended in time."""

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
    """The kernels in the order in which they run.  `seconds` is the time of a whole evaluation while its kernels are
    not measured, the median of `evaluations`.  `clock` says how the kernels were measured.  The other fields describe
    the device and its measured speed."""

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
