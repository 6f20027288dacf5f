"""Deadlines: how long each phase of a call or a session may wait for another process, and what happens then.

A row is one wait.  Its limit is a number of the row, or a field of `Timeouts` that people may change.  Where the limit
counts from the last sign of work, a worker that computes or bytes that come put it off.  Code that waits reads the
number from its row; `tests/wire/test_deadlines.py` finds waits that have none.  docs/deadlines.md is generated from
here.  To add a wait, add a row and use it: with `wire/system/bounded_wait.py` where a task waits, and in the state
machines where one decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .timeouts import ROWS

BYTES_PER_S_MIN = 5_000_000  # what is slower than this on average counts as no progress
PHASES: Mapping[str, str] = {
    "plan": "From a graph and the workers that are there to a plan.",
    "deploy": "Workers get their parts, and fetch the weights that they lack.",
    "compile": "Engine hosts open devices and compile parts.",
    "run": "Workers run a step; inputs, outputs and tensors between workers travel.",
    "fetch": "A process gets content from one that has it.",
    "gather": "The pieces of a session's state come together: copies, snapshots, and the workers that have them.",
    "link": "Two processes find each other, and notice that one is gone.",
    "serve": "Programs ask a server of models over HTTP.",
    "end": "Something is taken down.",
}


@dataclass(frozen=True, slots=True)
class Deadline:
    """One wait: `seconds`, or the field `timeout` of Timeouts.  `more` says what is added to that."""

    phase: str
    what: str  # what waits, and for what
    then: str  # what happens when it passes
    seconds: float = 0.0
    timeout: str = ""
    by_size: bool = False  # and as long as the bytes in question take at BYTES_PER_S_MIN
    more: str = ""

    def __post_init__(self) -> None:
        assert self.phase in PHASES
        assert bool(self.seconds) != (self.timeout in ROWS), "a number of its own, or a field of Timeouts"

    def of(self, size_bytes: int) -> float:
        """The limit in seconds for `size_bytes` bytes."""
        assert self.by_size
        return self.seconds + size_bytes / BYTES_PER_S_MIN


# -- plan

PLAN = Deadline(
    "plan",
    "The coordinator waits for a plan that it needs now. One for 100,000 nodes takes 20 s.",
    "The call ends with DeadlineExceeded, which names the phase. A session plans once more, then it ends so too.",
    seconds=300.0,
)
PLAN_AHEAD = Deadline(
    "plan",
    "The coordinator waits for the process that plans ahead.",
    "The process is ended. The plan is made in the coordinator when it is needed.",
    seconds=300.0,
)
WORKER_WAIT = Deadline(
    "plan",
    "A call or a session waits for any worker, where there is none.",
    "It ends with NodeLost.",
    timeout="worker_wait_s",
)

# -- deploy

DEPLOY = Deadline(
    "deploy",
    "The coordinator waits for a worker to have prepared its parts, from the last sign of work of that worker.",
    "The plan is void. The call or session plans anew without that worker, as long as there are others.",
    seconds=60.0,
    by_size=True,
)
WORK_LONGEST = Deadline(
    "deploy",
    "The same, for a snapshot too, whatever the worker says that it does.",
    "As there.",
    seconds=3600.0,
    by_size=True,
)
EXPLAIN = Deadline(
    "deploy",
    "The coordinator waits for a worker's kernels, which it explains, from the last sign of work.",
    "`explain` ends with DeadlineExceeded.",
    seconds=60.0,
    by_size=True,
)
JOIN = Deadline(
    "deploy",
    "The coordinator waits for a worker to say what it has.",
    "The link is closed; the node that dialled dials again.",
    timeout="worker_join_s",
)

# -- compile

COMPILE = Deadline(
    "compile",
    "The coordinator waits for one part to be compiled.",
    "The worker counts as stuck: calls are tried on others too, sessions plan without it. With no other worker, they "
    "wait.",
    seconds=60.0,
    more="or ten times what it should take, if that is more",
)
COMPILE_HANG = Deadline(
    "compile",
    "A worker waits for its engine host to compile or run one part.",
    "The host is replaced. The part fails with DeviceLost and is done elsewhere.",
    timeout="part_s",
)
DEVICE_OPEN = Deadline(
    "compile",
    "A worker waits for an engine host to open its device.",
    "The host is ended; the worker continues without that device.",
    timeout="device_open_s",
)

# -- run

FIRST_STEP = Deadline(
    "run",
    "A session waits for the first step of a plan.",
    "The step is given up and done again without the workers that are at it. The next limit is twice as long.",
    seconds=30.0,
    more="and 20 times what it should take",
)
STEP = Deadline(
    "run",
    "A session waits for a later step.",
    "As for the first.",
    seconds=10.0,
    more="or ten times the longest of late",
)
STEP_MOVE = Deadline(
    "run",
    "The same while a better plan waits for the step.",
    "The session changes to that plan, and does the step again there.",
    seconds=1.0,
    more="or three times the longest of late",
)
STUCK = Deadline(
    "run",
    "A call waits for one part.",
    "The worker counts as stuck: the call is tried on others too, and the first answer counts.",
    seconds=2.0,
    more="or twice the longest of late; the first time 20 times what it should take",
)
STOPPED = Deadline(
    "run",
    "The coordinator waits for a worker to end a part that nobody wants any more.",
    "The worker counts as stuck, and gets no new calls.",
    seconds=5.0,
)
STALLED = Deadline(
    "run",
    "A call waits while nobody works on it: inputs, outputs or tensors are on their way.",
    "The plan is void, and the call is done again. The next limit is twice as long.",
    seconds=30.0,
    more="or 20 times what the call should take",
)
RELAY = Deadline(
    "run",
    "A worker or the coordinator waits for one relayed piece of a tensor to arrive.",
    "The tensor is lost; the plan is void, and the call or step is done again.",
    seconds=60.0,
)
RUN_STOP = Deadline(
    "run",
    "A worker waits for its engine host to give up a run that was cancelled.",
    "The host is replaced.",
    timeout="part_stop_s",
)
HOST_SILENCE = Deadline(
    "run",
    "A worker waits for any sign of its engine host.",
    "The host is replaced. What it did fails with DeviceLost and is done again.",
    timeout="host_silence_s",
)
COLLECTIVE = Deadline(
    "run",
    "A rank waits for the others in a collective.",
    "The step fails with DeadlineExceeded, and is done again.",
    timeout="collective_timeout_s",
)
RANK_CALL = Deadline(
    "run",
    "An engine host waits for the connection to a rank on another machine.",
    "What it has for that rank is sent through the daemons.",
    timeout="rank_call_s",
)
RANK_PROOF = Deadline(
    "run", "An engine host waits for its caller to prove who it is.", "It hangs up.", timeout="rank_proof_s"
)

DIRECT_OPENING = Deadline(
    "run",
    "A coordinator in a program waits until a worker of its machine has connected an engine host for direct calls.",
    "Calls go through the coordinator and the daemon, as before.",
    seconds=5.0,
)
DIRECT_ANSWER = Deadline(
    "run",
    "A thread waits for an engine host to answer a direct call, whose part took less than 2 ms before.",
    "The call starts again through the coordinator, which knows what to do with a worker that does not answer.",
    seconds=0.25,
)

# -- fetch

FETCH = Deadline(
    "fetch",
    "A worker waits for one holder of content, dialling it included.",
    "The next holder is asked. With none left the plan fails with NodeLost.",
    seconds=10.0,
    by_size=True,
)
FETCH_PROGRESS = Deadline(
    "fetch",
    "Any process waits for content, from the last bytes that came over that link.",
    "NodeLost for its receiver, which asks the next holder; a session's copy or gathering continues with that.",
    seconds=30.0,
    by_size=True,
)
CONTENT_LINK = Deadline(
    "fetch",
    "A worker waits for the link to another worker that it needs.",
    "The coordinator relays between the two.",
    timeout="worker_link_s",
)

# -- gather

SNAPSHOT = Deadline(
    "gather",
    "A session waits for a worker to copy its piece of the state, from the last sign of work of that worker."
    " A worker whose device hangs ends it before, after `part_s`.",
    "The copy is asked for again, three times in all; the copy before it stays.",
    seconds=660.0,
    by_size=True,
)
STORE_COPY = Deadline(
    "gather",
    "A session waits for a worker to fetch a copy, or to compute a check of several.",
    "As for a snapshot; where workers cannot, the copy passes through the coordinator.",
    seconds=60.0,
    by_size=True,
)
SESSION_RETURN = Deadline(
    "gather",
    "A session waits for workers without which its state is lost.",
    "It ends with NodeLost, or continues from an older copy.",
    timeout="session_return_s",
)
SESSION_SETTLE = Deadline(
    "gather",
    "A session waits for the other workers, once a copy is whole.",
    "It continues from the copy, without them.",
    timeout="session_settle_s",
)
JOB_GATHER = Deadline(
    "gather",
    "Jobs wait for the workers of before, after a restart of the coordinator.",
    "They continue with those that are there.",
    timeout="job_gather_s",
)
STANDBY_ACKNOWLEDGED = Deadline(
    "gather",
    "The coordinator waits for its standby and the voters to have an entry of the journal.",
    "The entry is refused, and the caller gets the error.",
    seconds=30.0,
)

# -- link

SILENCE = Deadline(
    "link",
    "The coordinator waits for a worker's heartbeat.",
    "The worker is dead: its calls and sessions continue elsewhere.",
    timeout="node_timeout_s",
)
PING = Deadline(
    "link",
    "Each end of a link waits for the answer to a ping.",
    "The link ends, and with it all requests over it, with NodeLost.",
    timeout="keepalive_answer_s",
)
UNACKNOWLEDGED = Deadline(
    "link",
    "The system of a machine waits for another one to acknowledge what was sent over either connection of a link.",
    "As there.",
    timeout="keepalive_program_answer_s",
)
UNACKNOWLEDGED_BY_RANK = Deadline(
    "link",
    "The system of a machine waits for a sign of another one over an idle connection of engine hosts or of ranks.",
    "The connection ends. Messages of hosts go over their daemons' links, and ranks of scripts raise ConnectFailed.",
    seconds=90.0,
)
DIAL = Deadline(
    "link", "A process waits for a node that it dials.", "ConnectFailed; it dials again later.", timeout="dial_s"
)
PROBE = Deadline(
    "link",
    "The coordinator waits for a measurement of the way between two workers.",
    "The way counts as cut: tensors are relayed. It is measured again later.",
    timeout="link_probe_s",
)
PAUSE = Deadline(
    "link",
    "The coordinator waits for a worker to pause or resume.",
    "The command ends with DeadlineExceeded.",
    timeout="pause_answer_s",
)
LOCK = Deadline(
    "link",
    "A process waits for another one of this machine, which has the lock on files of both.",
    "ConfigError, which names the lock.",
    seconds=60.0,
)
VOTE = Deadline("link", "A coordinator waits for the answer of a voter.", "It asks again.", seconds=2.0)
ORPHANS = Deadline(
    "link",
    "A worker waits for a coordinator that fell silent.",
    "It drops what that coordinator deployed, and frees its memory.",
    timeout="keep_orphans_s",
)

# -- serve

HTTP_HEADERS = Deadline(
    "serve",
    "A server of models waits for the first request of a connection, or the next one, to have its headers.",
    "It hangs up.",
    seconds=30.0,
)
HTTP_BODY = Deadline(
    "serve",
    "A server of models waits for the body of a request.",
    "The request is refused with 408, and the connection is closed.",
    seconds=20.0,
    by_size=True,
)
HTTP_READER = Deadline(
    "serve",
    "A server of models waits for a client to take what it is sent.",
    "The request is cancelled, and the connection is closed.",
    seconds=30.0,
)
HTTP_LINGER = Deadline(
    "serve",
    "A server of models reads, and throws away, what follows a request that is not HTTP, until the client hangs up.",
    "It hangs up.",
    seconds=2.0,
)

MODEL_LOADING = Deadline(
    "serve",
    "A request to a server of models waits for its model, which is not on the workers, to be loaded.",
    "It is refused with 503 and the time to ask again. Loading continues.",
    seconds=300.0,
)
CHAT_ANSWER = Deadline(
    "serve",
    "`mesh-coord chat` waits for the next piece of an answer, its turn in the queue included.",
    "The answer ends with ConnectFailed.",
    seconds=600.0,
)
HUB_ANSWER = Deadline(
    "serve",
    "A download of a model waits for the hub to say which files there are.",
    "It ends with ConnectFailed. What has come stays for the next time.",
    seconds=30.0,
)

# -- end

DROP = Deadline(
    "end",
    "The coordinator waits for a worker to forget a plan.",
    "It continues without the answer. The worker forgets the plan later.",
    seconds=30.0,
)
LAST_WORDS = Deadline(
    "end",
    "A worker whose machine is about to sleep waits for its coordinator to have heard it.",
    "The machine sleeps all the same.",
    seconds=1.0,
)
HOST_END = Deadline(
    "end", "A worker that ends waits for its engine hosts, which it killed.", "Its process ends.", seconds=0.5
)
DRAIN = Deadline("end", "A worker waits for its last messages to leave.", "Its process ends.", timeout="worker_drain_s")

DEADLINES: Mapping[str, Deadline] = {
    name: row for name, row in list(globals().items()) if isinstance(row, Deadline)
}  # by the name under which code reads them
