"""One message of every kind, every optional field given."""

from __future__ import annotations

from wire.messages import (
    AskJobs,
    AskNodes,
    AwaitJob,
    Ballast,
    Beat,
    Began,
    Blob,
    BlobSpec,
    BlobStream,
    CancelJob,
    CancelStep,
    Deploy,
    Deployed,
    DeviceReport,
    Devices,
    Done,
    Drop,
    Feed,
    FetchBlob,
    JobAccepted,
    JobReport,
    JobResult,
    Jobs,
    Join,
    Joined,
    Landed,
    Leaving,
    LogLines,
    Message,
    MissingGraphs,
    NamedValue,
    NodeReport,
    Nodes,
    Output,
    PairReport,
    PartRun,
    PartSpec,
    PlanGraph,
    PlanKey,
    Planned,
    Probe,
    Probed,
    Push,
    Ran,
    Relay,
    Revocations,
    Run,
    Source,
    SubmitJob,
    Suspected,
    TailLog,
    Target,
    Value,
    Working,
)

PLAN = PlanKey(3, 7)
BLOB = bytes(range(32))
VALUE = Value("f32", (2, 1), bytes(8))
SHARED = Value("f32", (1 << 20,), None, "t-1")
NAMED = NamedValue("x", "f32", (2, 1), bytes(8), BLOB)
DEVICE = DeviceReport(
    0, "wgsl", "llvmpipe", "Vulkan", "Mesa", True, 1 << 30, {"max_buffer": 1 << 28}, {"add": ("f32",)}, 80.0, 12.5, 1e-4
)
PART = PartSpec(
    1, 0, BLOB, (Source("input"), Source("edge", 2, 1), Source("param", blob=BLOB)), ((Target("n2", 4, 0),),)
)
MESSAGES: list[Message] = [
    Deploy(
        PLAN, (PART,), {BLOB: b"graph"}, (BlobSpec(BLOB, 8, "f32", (2,), ("", "n1"), False),), {"n1": ("h:1",)}, True
    ),
    Deployed(1, 2, 3, 4, 0.5, 5, 6),
    MissingGraphs((BLOB,)),
    Drop(PLAN),
    Done(),
    Run(PLAN, 9, (Feed(1, 0, VALUE), Feed(1, 1, SHARED))),
    Ran((Output(0, VALUE),), (PartRun(1, 0.25, 0.125),), 10, 20),
    Push(PLAN, 9, 1, 2, VALUE),
    Revocations(b"list"),
    Relay("n2", Push(PLAN, 5, 1, 2, Value("f32", (2,))), 8, 0, bytes(8)),
    Began(PLAN, 9, 1),
    CancelStep(PLAN, 9),
    FetchBlob(BLOB, 5),
    Blob(8, bytes(8), "t-2"),
    BlobStream(BLOB, 5),
    Join(3, 0.1, "coordinator", 1.5),
    Joined((DEVICE,), 1 << 33, (BLOB,)),
    Devices((DEVICE,), "device 0 given up"),
    Beat(1, 2, 0.001, 3, (Working(PLAN, 9, 1, 0.25),)),
    Suspected(1),
    Probe("n1", ("127.0.0.1:7100",), 0.4, True),
    Probed(True, 0.002, 1e8, False, "127.0.0.1:7100", ""),
    Ballast(3),
    Landed(3),
    Leaving("SIGTERM", ("last line",)),
    TailLog(100),
    LogLines(("one", "two")),
    SubmitJob(b"graph", (NAMED,), (NAMED,), "pipeline", True, "name", "job"),
    JobAccepted("j1"),
    PlanGraph(b"graph", "single"),
    Planned("{}"),
    AskJobs("j1"),
    Jobs((JobReport("j1", "job", "failed", 1.5e9, 2.5, {"code": "busy"}, ("line",), "{}"),)),
    AwaitJob("j1"),
    JobResult((NAMED,), "{}"),
    CancelJob("j1"),
    AskNodes(True),
    Nodes(
        (NodeReport("w1", "n1", 42, ("127.0.0.1:7100",), "healthy", "0.1.0", (DEVICE,), 0.05),),
        1.5,
        (PairReport("w1", "me", "direct", 0.002, 1e8, "h:1", ""),),
    ),
]
