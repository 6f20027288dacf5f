"""Bounds: how much each queue and store holds at most, and what happens when it is full.

A row is one queue or store of one process.  Its bound is a number of the row, a field of `Limits`, or what a flag says.
Code reads the number from its row, and `tests/wire/test_bounds.py` finds queues that have none; it also names the test
that fills each of them.  docs/bounds.md is generated from here.  How large one thing may be is in wire/limits.py.

`FULL` says what may happen at a bound.  To add a queue, add a row and use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .limits import DEFAULT, GIB, MIB

WAITS, REFUSES, SPILLS, FORGETS = "wait", "refuse", "spill", "forget"
FULL: Mapping[str, str] = {
    WAITS: "A sender of more waits until there is room.",
    REFUSES: "More is refused, with an error for the sender.",
    SPILLS: "More is stored elsewhere, where it costs more time.",
    FORGETS: "What came first, or was not used for longest, is dropped.",
}
PLACES: Mapping[str, str] = {
    "program": "A program that uses `mesh`.",
    "link": "Each process, for each of its links to others.",
    "port": "Each process that listens, for callers that it does not know yet.",
    "coordinator": "A coordinator, in a program or in `mesh-coord serve`.",
    "worker": "The daemon of a worker.",
    "host": "An engine host of a worker.",
    "daemon": "`mesh-worker` and `mesh-coord serve`.",
    "server": "A server of models, in a program or in `mesh-coord serve-model`.",
}


@dataclass(frozen=True, slots=True)
class Bound:
    """One queue or store: `most` of `unit`, or what the field `limit` of Limits, or a `setting` of people, says."""

    place: str
    what: str  # what it holds
    full: str  # what happens when it is full, of FULL
    then: str  # the same in words
    unit: str = "bytes"
    most: int = 0
    limit: str = ""
    setting: str = ""

    def __post_init__(self) -> None:
        assert self.place in PLACES and self.full in FULL
        assert [bool(self.most), bool(self.limit), bool(self.setting)].count(True) == 1
        assert not self.limit or hasattr(DEFAULT, self.limit)


# -- program

ARGUMENTS = Bound(
    "program",
    "Copies of the arguments of calls that were submitted and of steps of sessions, until they are over. 4 KiB are "
    "added for each.",
    WAITS,
    "`submit` and `Session.step` wait until something is over. `AsyncSession.step` cannot wait, and raises "
    "LimitExceeded. What needs more alone is begun when there is nothing else.",
    most=512 * MIB,
)
SESSION_AHEAD = Bound(
    "program",
    "Steps that a session has in flight on its workers (`ahead=`). Each has a value of the state of its own.",
    REFUSES,
    "InputError.",
    unit="steps",
    most=1024,
)
SERVER_QUEUE = Bound(
    "program",
    "Requests and texts that wait at an `InferenceServer`, for each model.",
    REFUSES,
    "Busy.",
    unit="requests",
    setting="`load_model(queue=)`",
)
REPLAYED_FEEDS = Bound(
    "program",
    "Arguments of steps since the last copy of a session's state, from which a lost state is computed again.",
    FORGETS,
    "They are all forgotten. A state that is lost before its next copy is then NodeLost.",
    most=64 * MIB,
)
AGENT_ORDERS = Bound(
    "program",
    "Orders of `mesh-coord launch` that an agent on another machine has not obeyed yet.",
    WAITS,
    "The agent reads no more of its input.",
    unit="orders",
    most=64,
)

# -- link

LINK_QUEUE = Bound(
    "link",
    "Frames that wait to be sent.",
    REFUSES,
    "The link ends with NodeLost: the other side does not read.",
    limit="queue_bytes_max",
)
LINK_WINDOW = Bound(
    "link",
    "Bytes of tensors in flight that the other side has not acknowledged.",
    WAITS,
    "The sender waits.",
    limit="window_bytes",
)
LINK_REQUESTS = Bound(
    "link",
    "Requests without an answer, in each direction.",
    REFUSES,
    "LocalError for the caller; Busy for the other side.",
    unit="requests",
    limit="requests_per_peer_max",
)
LINK_REQUEST_BYTES = Bound(
    "link",
    "Bytes of the other side's requests without an answer.",
    REFUSES,
    "Busy for the other side.",
    limit="request_bytes_per_peer_max",
)
LINK_STREAMS = Bound(
    "link",
    "Tensors in flight at once, in each direction.",
    REFUSES,
    "LocalError for the caller; Busy for the other side, whose link ends if it opens as many again.",
    unit="tensors",
    limit="streams_per_peer_max",
)
UNTAKEN_FILES = Bound(
    "link",
    "Files of shared memory that the processes of one member asked for and have not taken.",
    SPILLS,
    "Content is sent over the link, at the speed at which the other side reads.",
    most=GIB,
)
SOCKET_MESSAGES = Bound(
    "link",
    "Messages that came and were not looked at.",
    WAITS,
    "The process reads no more of the connection, so that the other side waits.",
    most=2 * MIB,
)
RELAYED_PIECES = Bound(
    "link",
    "Pieces of 512 KiB that a worker sends to another one by way of the coordinator.",
    WAITS,
    "The worker waits for the first to arrive.",
    unit="pieces",
    most=8,
)
MEASUREMENTS = Bound(
    "link",
    "Measurements of links that a process takes part in.",
    REFUSES,
    "Busy; it is measured later.",
    unit="measurements",
    most=4,
)
REFUSED_MESSAGES = Bound(
    "link",
    "Messages in a minute that the other side may not send ([permissions](protocol.md#permissions)). Each is refused.",
    REFUSES,
    "The link ends with NotTrusted.",
    unit="messages",
    most=1000,
)
LINES_OF_ONE = Bound(
    "link",
    "Lines of the log in a minute about one thing that the other side does wrong.",
    REFUSES,
    "Lines are left out, and the next one that is written says how many.",
    unit="lines",
    most=6,
)

# -- port

UNLINKED = Bound(
    "port",
    "Connections that are no link yet.",
    FORGETS,
    "The oldest is closed.",
    unit="connections",
    most=256,
)
STRANGERS = Bound(
    "port",
    "Callers that have not proved who they are.",
    FORGETS,
    "The one that has not got on for longest is closed, or the newcomer where all are quick.",
    unit="callers",
    most=64,
)
QUESTIONS = Bound(
    "port",
    "Questions of joining nodes that are remembered, to slow those down that ask often.",
    FORGETS,
    "The oldest is forgotten.",
    unit="questions",
    most=1024,
)
CANDIDATES = Bound(
    "port",
    "Nodes that announce themselves by mDNS, are dialled and have not joined.",
    REFUSES,
    "Others are not dialled until one of these has joined or is silent.",
    unit="nodes",
    most=32,
)
JOINED_CANDIDATES = Bound(
    "port",
    "Nodes that announce themselves by mDNS and have joined.",
    REFUSES,
    "A further one counts among those that have not joined.",
    unit="nodes",
    most=DEFAULT.nodes_max,
)
# -- coordinator

LINKED_NODES = Bound(
    "coordinator",
    "Nodes that are linked, and workers that are remembered.",
    REFUSES,
    "Busy for a further node. Of workers that are gone, those that went first are forgotten.",
    unit="nodes",
    limit="nodes_max",
)
MEMBERS = Bound(
    "coordinator",
    "Members that are remembered: of those that left, too.",
    FORGETS,
    "Those gone for longest need a token again.",
    unit="nodes",
    most=4 * DEFAULT.nodes_max,
)
CALL_INPUTS = Bound(
    "coordinator",
    "Inputs of calls that run on workers.",
    WAITS,
    "Calls wait for their turn. One that needs more runs alone.",
    most=256 * MIB,
)
JOBS_WAITING = Bound(
    "coordinator",
    "Jobs of one client that wait to run.",
    REFUSES,
    "Busy.",
    unit="jobs",
    most=64,
)
JOB_BYTES_WAITING = Bound(
    "coordinator",
    "Values of the jobs of one client that wait to run, on the disk.",
    REFUSES,
    "Busy.",
    most=16 * GIB,
)
JOBS_RUNNING = Bound(
    "coordinator",
    "Jobs that run.",
    WAITS,
    "Others wait in the queue. A client that has less than its share of these begins its next all the same, since the "
    "jobs of others may be endless.",
    unit="jobs",
    most=8,
)
JOBS_OF_CLIENT = Bound(
    "coordinator", "Jobs of one client that run.", WAITS, "Its others wait in the queue.", unit="jobs", most=8
)
JOB_BYTES_RUNNING = Bound(
    "coordinator",
    "Values of the jobs of one client that run.",
    WAITS,
    "Its others wait in the queue. One that needs more runs alone.",
    most=4 * GIB,
)
JOBS_OVER = Bound(
    "coordinator",
    "Jobs that are over and whose results are stored on the disk.",
    FORGETS,
    "The oldest is forgotten.",
    unit="jobs",
    most=1000,
)
RESULTS_READY = Bound(
    "coordinator",
    "Results in shared memory, until clients have fetched them.",
    SPILLS,
    "The oldest is on the disk alone, and read again when a client asks.",
    unit="results",
    most=16,
)
JOBS_IN_MEMORY = Bound(
    "coordinator",
    "Jobs that are over and whose log and report are in memory.",
    SPILLS,
    "The oldest is read from the journal when a client asks.",
    unit="jobs",
    most=8,
)
SESSIONS_OPEN = Bound(
    "coordinator",
    "Sessions of programs that are open, or wait for their program to come back.",
    REFUSES,
    "Busy for a further one.",
    unit="sessions",
    most=1024,
)
SESSIONS_OF_CLIENT = Bound(
    "coordinator",
    "Those of one client.",
    REFUSES,
    "Busy for a further one.",
    unit="sessions",
    most=512,
)
EVENTS = Bound(
    "coordinator",
    "Events of the mesh in memory, for clients that ask.",
    FORGETS,
    "The oldest is forgotten.",
    unit="events",
    most=256,
)
REPORT_EVENTS = Bound(
    "coordinator",
    "Events in the report of one call.",
    FORGETS,
    "The first 64 and the latest are reported, and of the others their number by kind.",
    unit="events",
    most=256,
)
CALL_STORY = Bound(
    "coordinator",
    "Events of calls, for people who look for a fault.",
    FORGETS,
    "The oldest is forgotten.",
    unit="events",
    most=512,
)
DEFERRED_UPDATES = Bound(
    "coordinator",
    "Updates of what is known of workers, after calls, until no caller waits.",
    SPILLS,
    "All of them run at once.",
    unit="updates",
    most=64,
)
COPIED_FEEDS = Bound(
    "coordinator",
    "Arguments of one session's steps since the last copy of its state. The bound is that of a state that is as large "
    "or larger; a smaller state has its own size, or 64 MiB.",
    FORGETS,
    "A copy is made before its turn, after which they are not needed.",
    most=256 * MIB,
)
SESSION_INPUTS = Bound(
    "coordinator",
    "Arguments of steps of one client's sessions, in flight or since the last copies.",
    REFUSES,
    "LimitExceeded for the step, and the session continues. One step alone may need more.",
    most=4 * GIB,
)
SESSION_ANSWERS = Bound(
    "coordinator",
    "Answers of one client's sessions that it has not confirmed, as far as they are no blobs.",
    REFUSES,
    "LimitExceeded for a further request for the state. Steps wait until it confirms some.",
    most=1 * GIB,
)
SESSION_SPANS = Bound(
    "coordinator",
    "Times of parts of one session's latest steps.",
    FORGETS,
    "The oldest is forgotten.",
    unit="spans",
    most=256,
)
PROFILED_SPANS = Bound(
    "coordinator",
    "The same, of training in a program with MESH_PROFILE.",
    FORGETS,
    "As there.",
    unit="spans",
    most=50_000,
)
RELAYED_AT_ONCE = Bound(
    "coordinator",
    "Pieces of one worker that pass here at once.",
    REFUSES,
    "Busy. A worker sends no more than half as many at once, and some may be given up.",
    unit="pieces",
    most=2 * RELAYED_PIECES.most,
)
IDLE_PLANS = Bound(
    "coordinator",
    "Plans that stay deployed without a call.",
    FORGETS,
    "The one that was used longest ago is dropped by its workers.",
    unit="plans",
    most=64,
)
PLANS_AHEAD = Bound(
    "coordinator",
    "Plans for deaths that have not happened.",
    REFUSES,
    "No more are made; after such a death the plan is made then.",
    most=64 * MIB,
)
RECORD_WAITS = Bound(
    "coordinator",
    "What a session lets go of once its record is on a slow disk.",
    SPILLS,
    "It is let go at once. Until the next record, a restart would find an older state.",
    unit="actions",
    most=1024,
)
CONTENT_KEPT = Bound(
    "coordinator",
    "Weights on the disk that no job needs now: at most this, and a quarter of what is free.",
    FORGETS,
    "The content that was used longest ago is removed.",
    most=4 * GIB,
)
CONTENTS_SENT = Bound(
    "coordinator",
    "Addresses of content that clients have sent, which need not send it again.",
    FORGETS,
    "What was sent longest ago is sent again.",
    unit="addresses",
    most=65_536,
)
KNOWN_CONTENTS = Bound(
    "coordinator",
    "Addresses of content that a worker was sent or said that it has, for each worker.",
    FORGETS,
    "What was named longest ago is looked for elsewhere first, by other workers that need it.",
    unit="addresses",
    most=65_536,
)
KNOWN_GRAPHS = Bound(
    "coordinator",
    "Addresses of graphs that a worker was sent, for each worker.",
    FORGETS,
    "The graph that was sent longest ago is sent again with the next plan that has it.",
    unit="addresses",
    most=16_384,
)
JOURNAL_COPIES = Bound(
    "coordinator",
    "Messages of the journal that a standby has not written to its disk.",
    REFUSES,
    "The standby drops the message and asks for the whole journal, which it gets when it has written the others.",
    unit="messages",
    most=16,
)
STANDBY_ACTIONS = Bound(
    "coordinator",
    "What it would do about its standby once its disk has what it promised.",
    REFUSES,
    "It ends, as where the disk refuses. The other coordinator takes over.",
    unit="events",
    most=4096,
)
STANDBY_PEERS = Bound(
    "coordinator",
    "Other coordinators of which it remembers where they are dialled.",
    FORGETS,
    "The one that was met first; never one that has every acknowledged entry, or votes.",
    unit="coordinators",
    most=8,
)

# -- worker

KEPT_CONTENT = Bound(
    "worker",
    "Copies of sessions' state, and weights that the disk has no room for, in memory.",
    REFUSES,
    "BlobError, with the need and what is taken. Content that nothing needs is dropped first.",
    setting="`--max-memory`, or half of the machine's memory",
)
CACHED_WEIGHTS = Bound(
    "worker",
    "Weights on the disk.",
    SPILLS,
    "What was used longest ago is removed; then weights go to memory.",
    most=20 * GIB,
)
EARLY_TENSORS = Bound(
    "worker",
    "Tensors for steps that have not begun here, beside what each sender has for the first of them.",
    REFUSES,
    "The step is refused with QueueFull, and its call or session tries again. Where an eighth of the worker's memory "
    "is more, so much is taken.",
    most=GIB,
)
EARLY_OF_ONE = Bound(
    "worker",
    "The same, of one sender. Where the room of all is full, the sender that has most gives way.",
    REFUSES,
    "As there, and half as much.",
    most=GIB // 2,
)
EARLY_REFUSED = Bound(
    "worker",
    "Steps of one plan that are refused since a tensor for them found no room, or its sender went.",
    REFUSES,
    "All steps between the further ones are refused, too.",
    unit="steps",
    most=1024,
)
EARLY_COUNT = Bound("worker", "The same, counted.", REFUSES, "As there.", unit="tensors", most=65_536)
GRAPHS = Bound(
    "worker",
    "Graphs that came with plans, so that they need not be sent again.",
    FORGETS,
    "The one that was used longest ago is forgotten, unless a plan has it.",
    most=64 * MIB,
)
SUSPENDED_RUNS = Bound(
    "worker",
    "Runs of a device that are suspended while others compute there. Each takes the memory that it works with.",
    WAITS,
    "No part begins there until a suspended run is over, nor one that has no room beside them.",
    unit="runs",
    most=16,
)
FETCHES = Bound(
    "worker", "Contents that are fetched at once.", WAITS, "Others wait in the queue.", unit="contents", most=8
)
DROPPED_PLANS = Bound(
    "worker",
    "Plans that were dropped, to recognise messages that arrive late for them.",
    FORGETS,
    "The oldest is forgotten.",
    unit="plans",
    most=4096,
)
CLOSED_STEPS = Bound(
    "worker",
    "Steps of one plan that are over, out of order.",
    FORGETS,
    "The oldest and all before it count as over.",
    unit="steps",
    most=4096,
)
LOST_LINKS = Bound(
    "worker",
    "Nodes whose links were lost.",
    FORGETS,
    "The oldest is forgotten.",
    unit="nodes",
    most=1024,
)
WORKER_LOG = Bound(
    "worker",
    "Entries of what happened to the worker.",
    FORGETS,
    "The oldest is forgotten.",
    unit="entries",
    most=1024,
)

# -- host

HOST_MEMORY = Bound(
    "host",
    "Weights, arenas of collectives, the state of sessions and what a part computes with, together.",
    SPILLS,
    "Weights that nothing reads go first, then arenas of parts that do not run, then weights that other parts read. "
    "What does not fit even so is OutOfMemory with the need and the budget.",
    setting="`--max-memory`, or what the device has",
)
HOST_PARTS = Bound(
    "host",
    "Compiled parts that no plan has now.",
    FORGETS,
    "The one that was used longest ago is compiled again if a plan needs it again.",
    unit="parts",
    most=256,
)
HOST_CODE = Bound("host", "The same, their code and constants.", FORGETS, "As there.", most=512 * MIB)
NATIVE_CODE = Bound(
    "host",
    "The same of the native engine, its kernels with what LLVM holds of each. A step of texts has some 80, which take "
    "4 MiB.",
    FORGETS,
    "As there. Its kernels are read from the disk.",
    most=64 * MIB,
)
UNUSED_WEIGHTS = Bound(
    "host",
    "Weights on the device that no part reads now, as far as there is memory.",
    FORGETS,
    "The one that was read longest ago is read from its file again.",
    unit="tensors",
    most=512,
)
ARENAS = Bound(
    "host",
    "Memory that ranks of one machine share for collectives, of all plans.",
    SPILLS,
    "Arenas of parts that do not run go first. Without an arena, ranks copy through buffers; the log says so.",
    most=512 * MIB,
)
ARENA_OPERANDS = Bound(
    "host",
    "The same, operands of one rank in one step.",
    SPILLS,
    "The others are copied through buffers.",
    most=64 * MIB,
)
INLINE_OUTPUTS = Bound(
    "host",
    "Small outputs in one answer to the daemon.",
    SPILLS,
    "The others are files in shared memory.",
    most=16 * MIB,
)
TRACE_WAITS = Bound("host", "Events of a kernel trace in memory.", SPILLS, "They are written to the file.", most=MIB)

DIRECT_CALLERS = Bound(
    "host",
    "Connections for direct calls of a program, each of one part.",
    FORGETS,
    "The one that was not used for longest is closed. Its calls go through the coordinator.",
    unit="connections",
    most=16,
)

# -- daemon

LOG_QUEUE = Bound(
    "daemon",
    "Lines of the log that wait for a slow terminal or disk.",
    REFUSES,
    "Lines are dropped, and the next one that is written says how many.",
    unit="lines",
    most=10_000,
)
HOST_LINES = Bound(
    "daemon",
    "Lines of the log in a minute of what an engine host writes to stderr, as its driver does.",
    REFUSES,
    "They are counted, and the last of them are written when the host ends.",
    unit="lines",
    most=200,
)
LOG_LINES = Bound(
    "daemon",
    "Lines of the log in memory, for `mesh-coord logs` and for errors.",
    FORGETS,
    "The oldest is forgotten.",
    unit="lines",
    most=200,
)

# -- server

HTTP_QUEUE = Bound(
    "server",
    "Requests that wait for their turn, for each model.",
    REFUSES,
    "429 with Retry-After.",
    unit="requests",
    setting="`serve-model --queue`",
)
KV_POOL = Bound(
    "server",
    "Keys and values of the texts of each model, on all workers together, in pages of 16 tokens.",
    WAITS,
    "The beginnings of earlier texts are forgotten first. Then a new text waits, and of those that grow the one that "
    "came last gives its pages back, waits, and is read again.",
    setting="`serve-model --kv-budget`, `load_model(kv_budget=)`",
)
HTTP_BODIES = Bound(
    "server",
    "Bodies of requests that are not whole yet.",
    REFUSES,
    "503 with Retry-After.",
    most=256 * MIB,
)
HTTP_CONNECTIONS = Bound(
    "server",
    "Connections of HTTP clients.",
    REFUSES,
    "The new connection is closed. So it is where connections have half of the files that the process may open.",
    unit="connections",
    most=1024,
)

BOUNDS: Mapping[str, Bound] = {name: row for name, row in list(globals().items()) if isinstance(row, Bound)}
