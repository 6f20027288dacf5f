"""Timeouts: every time that a user or an operator may want to change, with its reason and its value per network.

A field of Timeouts is a row: the value of the `lan` preset, why it is that, and what other presets have instead.  To
add a time, add a row, and read it where the process got its Timeouts; docs/configuration.md is generated from here.
Times that follow from a row are derived where they are used, as the failure detector's are from `node_timeout_s`.  A
time that nobody would change (how often a file is looked at) stays a constant beside its use.
"""

from __future__ import annotations

import difflib
import numbers
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeGuard

from .errors import ConfigError

BEATS = 15  # heartbeats in one node time-out
BEAT_S_MIN, BEAT_S_MAX = 0.01, 60.0
SECONDS_MAX = 1e9  # what a clock can be set to, everywhere
COLLECTIVE_TIMEOUT_S = 120.0  # what a message means that does not say how long ranks wait for each other
SILENT = "silence"  # the cause in the error of a link that was ended because nothing came over it for so long
DAY_S = 86_400.0

PRESETS_FOR: Mapping[str, str] = {
    "lan": "Machines on one cable or switch. A frame takes less than a millisecond and is rarely lost. The default.",
    "wifi": "Some machines on Wi-Fi. Power saving and roaming stop all frames for up to a second or so, and "
    "multicast is lost now and then.",
    "wan": "Machines that reach each other over the internet. A round trip takes 100 to 300 ms, and a lost segment "
    "stops a connection for seconds.",
    "test": "Many processes on one busy machine, as in tests. Silence means that the machine is busy, so nothing is "
    "given up early; pauses that only save work are short.",
    "local": "The same as `lan`.",
}
COORDINATOR, WORKER, CLIENT = "coordinator", "worker", "client"
EVERY = (COORDINATOR, WORKER, CLIENT)


def _row(
    lan: float,
    why: str,
    least: float = 0.01,
    most: float = DAY_S,
    by: tuple[str, ...] = EVERY,
    **presets: float,
) -> Any:
    """A field: its value in the preset `lan` and in those that differ, from `least` to `most`; `by` says who reads
    it."""
    assert presets.keys() <= PRESETS_FOR.keys()
    about = {"why": why, "least": least, "most": most, "by": by, "presets": {"lan": lan, **presets}}
    return field(default=lan, metadata=about)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Timeouts:
    """All in seconds.  The defaults are the preset `lan`.  ConfigError for a value outside its row's bounds."""

    # -- failure detection

    node_timeout_s: float = _row(
        1.5,
        "Silence after which a worker is certainly dead. It is ten to thirty times the worst gap measured between "
        "heartbeats, so a false death needs a real fault. On Wi-Fi it is longer than roaming takes; over the internet "
        "a lost segment alone can cost seconds.",
        least=BEATS * BEAT_S_MIN,
        most=BEATS * BEAT_S_MAX,
        by=(COORDINATOR,),
        wifi=4.0,
        wan=10.0,
        test=60.0,
    )

    # -- links

    dial_s: float = _row(
        5.0,
        "To reach a node at an address: name, TCP, TLS and hello. A lost first packet is sent again after 1 s, and "
        "after 3 s.",
        wifi=8.0,
        wan=15.0,
        test=20.0,
    )
    tls_handshake_s: float = _row(
        3.0, "A handshake takes milliseconds; each half-open one costs 300 KiB.", wifi=5.0, wan=10.0, test=10.0
    )
    request_header_s: float = _row(
        3.0,
        "From the connection until the request's header is complete; after that a stranger is dropped.",
        wifi=5.0,
        wan=10.0,
    )
    link_setup_s: float = _row(
        5.0,
        "From the upgrade until both connections of the link stand; after that the caller is dropped.",
        wifi=8.0,
        wan=15.0,
    )
    link_close_s: float = _row(
        0.2, "For a closing handshake, after which the socket is dropped: some round trips.", wifi=0.5, wan=1.0
    )
    link_goodbye_s: float = _row(
        0.05,
        "From the end of one of a link's two connections until the link ends: a goodbye on the other one may come "
        "later.",
        least=0.0,
        wifi=0.3,
        wan=1.0,
    )
    keepalive_idle_s: float = _row(
        2.0, "Silence after which a link in use is pinged; traffic of any kind counts.", wan=5.0
    )
    keepalive_resting_s: float = _row(
        15.0,
        "The same for a link to a worker that nothing depends on. A ping and its answer take each end 70 us, so a "
        "hundred links cost less than a thousandth of a core.",
        wan=30.0,
    )
    keepalive_answer_s: float = _row(
        3.0,
        "For the answer to a ping: twice the node time-out. A coordinator and its workers wait longer where the "
        "node time-out is longer.",
        wifi=8.0,
        wan=20.0,
        test=120.0,
    )
    keepalive_program_answer_s: float = _row(
        90.0,
        "The same for a process of a user, which may stand still in a debugger or in a call that lets nothing "
        "else run: a stop of a minute, and what a busy machine needs to answer after it. The system of a machine waits "
        "as long for another one to acknowledge what was sent, and then ends the connection.",
    )
    keepalive_doubtful_answer_s: float = _row(
        2.0,
        "The same once this machine slept or moved, and for a coordinator that has a standby: the link is doubtful, "
        "and dialling anew costs little.",
        wifi=4.0,
        wan=5.0,
        test=10.0,
    )
    reconnect_first_s: float = _row(
        0.2,
        "The longest wait before the second attempt to reach a node; it doubles with every further one. Each wait "
        "is drawn from 0 to that, so that a hundred workers do not dial at the same moment.",
        wan=0.5,
    )
    reconnect_most_s: float = _row(
        2.0, "No wait is longer, so a machine that is switched on again is dialled within this time.", wan=5.0
    )

    # -- discovery

    discovery_redial_s: float = _row(
        5.0,
        "From one dial of a node that announces itself to the next, while there is no link to it.",
        test=1.0,
    )
    find_coordinator_s: float = _row(
        5.0,
        "For a coordinator of the token's mesh to be heard, when a node joins. What is there answers within a second; "
        "Wi-Fi loses multicast, so the question has to go out again.",
        by=(WORKER, CLIENT),
        wifi=10.0,
        test=10.0,
    )
    no_coordinator_warning_s: float = _row(
        30.0,
        "Without a coordinator for so long, a worker warns once and says what to type. One that is there finds a "
        "worker within seconds.",
        by=(WORKER,),
    )

    # -- joining and certificates

    first_word_s: float = _row(
        3.0,
        "For the first bytes of a caller at a TLS port: one that wants something says so at once.",
        wifi=5.0,
        wan=10.0,
    )
    join_call_s: float = _row(
        5.0,
        "For a whole call at the join port, which takes milliseconds.",
        wifi=10.0,
        wan=20.0,
        test=20.0,
    )
    join_close_s: float = _row(
        0.5, "For the last bytes of such a call, after which the connection is dropped.", wifi=1.0, wan=2.0
    )
    join_insist_s: float = _row(
        20.0,
        "How long a node calls again where the join port hangs up on it. A flood of callers leaves room for another "
        "one every few hundredths of a second.",
        wan=60.0,
    )
    join_second_call_s: float = _row(
        5.0,
        "For the second of a node's two calls, which follows the first at once; then the coordinator's log says that a "
        "node learned who it is and did not ask.",
        by=(COORDINATOR,),
        wifi=10.0,
        wan=20.0,
    )
    refusal_reason_s: float = _row(
        1.0,
        "For the reason of a refusal, asked at the join port when there is no link.",
        wifi=2.0,
        wan=10.0,
        test=10.0,
    )
    certificate_retry_s: float = _row(60.0, "From a renewal of the certificate that failed to the next attempt.")
    certificate_expired_retry_s: float = _row(
        5.0, "The same once the certificate ran out: without it there are no links.", wan=10.0
    )

    # -- workers

    keep_orphans_s: float = _row(
        600.0,
        "How long a worker keeps what a coordinator deployed that fell silent, so that it finds it after a restart. 0 "
        "keeps nothing.",
        least=0.0,
        most=SECONDS_MAX,
        by=(WORKER,),
    )
    worker_link_s: float = _row(
        1.5,
        "For a link to another worker, after which its tensors are relayed and the coordinator looks closer. "
        "A worker waits longer where the node time-out is longer.",
        by=(WORKER,),
        wifi=4.0,
        wan=10.0,
        test=10.0,
    )
    lost_link_grace_s: float = _row(
        1.0,
        "From the end of a link between two workers until the steps under it fail. If the other worker died, the "
        "coordinator notices in less and ends their plan.",
        by=(WORKER,),
        wifi=2.0,
        wan=4.0,
    )
    host_silence_s: float = _row(
        3.0,
        "Silence after which an engine host counts as hung. It beats ten times meanwhile, from a thread of its own, "
        "but a library may hold the interpreter's lock.",
        least=0.1,
        by=(WORKER,),
        test=30.0,
    )
    device_open_s: float = _row(60.0, "To open a device: a cold GPU driver takes seconds.", by=(WORKER,))
    part_s: float = _row(
        600.0,
        "Compiling or running one part longer than this counts as a hang, and the engine host is replaced.",
        by=(WORKER,),
    )
    part_stop_s: float = _row(
        30.0, "A run that still runs so long after it was cancelled counts as a hang, too.", by=(WORKER,)
    )
    idle_tuning_s: float = _row(
        30.0,
        "Without work for so long, a worker begins to measure which kernels are fastest on its graphics adapter. It "
        "stops at once when there is some. 0: never.",
        least=0.0,
        by=(WORKER,),
        test=0.0,
    )
    worker_drain_s: float = _row(
        1.0, "For the last messages to leave before a worker's process ends.", by=(WORKER,), wifi=2.0, wan=3.0
    )

    # -- coordinators

    worker_wait_s: float = _row(
        5.0,
        "How long a call waits for any worker when there is none, before it fails. A redial takes no longer.",
        by=(COORDINATOR,),
        wifi=10.0,
        wan=20.0,
    )
    worker_join_s: float = _row(
        30.0,
        "For a worker's answer when it joins, which it sends once its devices are probed.",
        by=(COORDINATOR,),
        wan=60.0,
        test=120.0,
    )
    pause_answer_s: float = _row(
        5.0, "For a worker's answer when it is paused or resumed.", by=(COORDINATOR,), wan=15.0, test=30.0
    )
    link_probe_s: float = _row(
        3.0,
        "For one measurement of the way between two nodes: an address that swallows everything holds it up so long.",
        by=(COORDINATOR,),
        wifi=5.0,
        wan=10.0,
        test=10.0,
    )
    planner_idle_s: float = _row(
        10.0,
        "Without a question for so long, the process that plans ahead ends.",
        by=(COORDINATOR,),
        test=0.5,
    )

    plan_here_s: float = _row(
        0.02,
        "A session's plan for a death to come that takes less is made in this process: it is not worth another one.",
        least=0.0,
        by=(COORDINATOR,),
    )

    # -- sessions and jobs

    session_return_s: float = _row(
        15.0,
        "How long a session waits for workers without which its state is lost: as long as a network is away, or a "
        "redial takes.",
        by=(COORDINATOR,),
        wifi=20.0,
        wan=60.0,
    )
    session_settle_s: float = _row(
        1.0,
        "How long it waits for the others, too, once a copy of the state is whole. With them its plan continues. "
        "Without them it continues from the copy.",
        by=(COORDINATOR,),
        wifi=2.0,
        wan=4.0,
    )
    keep_sessions_s: float = _row(
        60.0,
        "How long a client that lost its link finds its sessions. It dials for `coordinator_return_s`, and may notice "
        "later than the coordinator that the link broke.",
        most=SECONDS_MAX,
        by=(COORDINATOR,),
        wan=240.0,
    )
    keep_named_sessions_s: float = _row(
        7 * DAY_S,
        "How long a session that has a name stays on its workers while no program drives it: a week-end, a broken "
        "machine, a holiday. It takes their memory for so long.",
        most=SECONDS_MAX,
        by=(COORDINATOR,),
    )
    keep_results_s: float = _row(
        DAY_S,
        "How long a job that is over is stored: long enough to come back tomorrow for its result.",
        most=SECONDS_MAX,
        by=(COORDINATOR,),
    )
    job_grace_s: float = _row(
        10.0,
        "How long a job that is not detached outlives its client's link: a restart, or a moment without a network.",
        by=(COORDINATOR,),
        wifi=20.0,
        wan=60.0,
    )
    job_gather_s: float = _row(
        10.0,
        "How long jobs wait, after a restart of the coordinator, for the workers of before.",
        by=(COORDINATOR,),
        wifi=15.0,
        wan=30.0,
    )

    # -- clients

    coordinator_return_s: float = _row(
        30.0,
        "How long a client dials a coordinator that vanished.",
        by=(CLIENT,),
        wan=120.0,
    )
    local_worker_start_s: float = _row(
        120.0,
        "For a worker that a program starts to be ready. A warm start takes a second, one from a cold disk ten, and a "
        "busy machine is as much slower.",
        by=(CLIENT,),
    )
    local_worker_stop_s: float = _row(
        2.5,
        "For such a worker to end in good order, which takes it up to 2 s; then it is killed.",
        by=(CLIENT,),
        test=10.0,
    )

    # -- programs of ranks

    rank_call_s: float = _row(
        10.0,
        "For the connection between engine hosts of two machines, from the moment one listens; without one, "
        "messages of collectives are sent over links.",
        by=(WORKER,),
        wan=30.0,
        test=120.0,
    )
    rank_proof_s: float = _row(
        3.0,
        "For a caller there to prove who it is: a TCP connection, TLS and a key.",
        by=(WORKER,),
        wifi=5.0,
        wan=10.0,
        test=60.0,
    )
    rank_reconnect_s: float = _row(
        1.0,
        "From the end of such a connection to the offer of another, doubled with each further one up to 300 times.",
        least=0.0,
        by=(WORKER,),
        test=0.05,
    )
    rank_failure_reason_s: float = _row(
        1.0,
        "For the reason of the end of such a connection, which the daemons bring.",
        by=(WORKER,),
        wifi=2.0,
        wan=4.0,
    )
    collective_timeout_s: float = _row(
        COLLECTIVE_TIMEOUT_S,
        "For the ranks of a program to wait for each other: one may compile, or compute, for "
        "long before it is ready. A worker that dies is noticed much earlier.",
        least=1e-6,
        most=SECONDS_MAX,
        by=(COORDINATOR,),
    )

    def __post_init__(self) -> None:
        for row in fields(self):
            object.__setattr__(self, row.name, _checked(row.name, getattr(self, row.name)))

    def with_values(self, values: Mapping[str, object]) -> Timeouts:
        """A copy with other values; ConfigError for a name that no field has."""
        for name in values:
            check_name_of_time(name)
        return replace(self, **{name: _checked(name, seconds) for name, seconds in values.items()})

    def arguments(self, process: str) -> list[str]:
        """The flags with which a command of a worker or coordinator gets all these times that it reads."""
        preset, others = self._nearest(names_read_by(process))
        flags = [] if preset == DEFAULT_PRESET else ["--preset", preset]
        for name, seconds in others.items():
            flags += ["--timeout", f"{name}={seconds!r}"]
        return flags

    def __repr__(self) -> str:
        preset, others = self._nearest(ROWS)
        return f"Timeouts({', '.join([repr(preset), *(f'{name}={seconds!r}' for name, seconds in others.items())])})"

    def _nearest(self, names: Iterable[str]) -> tuple[str, dict[str, float]]:
        """The preset that differs in the fewest of these fields, and the values that it has otherwise."""
        values = {name: getattr(self, name) for name in names}

        def others(preset: Timeouts) -> dict[str, float]:
            return {name: seconds for name, seconds in values.items() if seconds != getattr(preset, name)}

        nearest = min(PRESETS, key=lambda name: len(others(PRESETS[name])))
        return nearest, others(PRESETS[nearest])


ROWS = {row.name: row for row in fields(Timeouts)}


def names_read_by(process: str) -> tuple[str, ...]:
    """The fields that a coordinator, a worker or a client reads."""
    return tuple(name for name, row in ROWS.items() if process in row.metadata["by"])


def check_name_of_time(name: str, known: Iterable[str] = ROWS) -> str:
    """The name of a field; ConfigError for any other, with the nearest."""
    known = tuple(known)
    if name in known:
        return name
    if name in ROWS:
        readers = " and ".join(ROWS[name].metadata["by"])
        raise ConfigError(f"{name} is not read here but by the {readers}", next_step="Give it where that is started")
    near = difflib.get_close_matches(name, known, n=1)
    listed = f"The times are {', '.join(known)}"
    raise ConfigError(f"there is no time {name!r}", next_step=f"Did you mean {near[0]}?" if near else listed)


def timeouts_of(preset: str, values: Mapping[str, object]) -> Timeouts:
    """A preset with some fields set otherwise; ConfigError for a preset or a name that there is not."""
    if not isinstance(preset, str) or preset not in PRESETS:
        raise ConfigError(f"there is no preset {preset!r}", next_step=f"The presets are {', '.join(PRESETS)}")
    return PRESETS[preset].with_values(values)


# -- checks --------------------------------------------------------------------------------------------------


def check_node_timeout(seconds: float) -> float:
    """The node time-out as a float; ConfigError outside 0.15 to 900 s."""
    _check_number("a node time-out", seconds)
    if not BEATS * BEAT_S_MIN <= seconds <= BEATS * BEAT_S_MAX:
        raise ConfigError(
            f"a node time-out of {seconds} s is outside {BEATS * BEAT_S_MIN:g} to {BEATS * BEAT_S_MAX:g} s",
            next_step="Most meshes want 1.5 s, over the internet 10 s",
        )
    return float(seconds)


def node_timeout_of_beat(beat_s: float) -> float:
    """The node time-out that goes with a heartbeat interval; ConfigError outside 0.01 to 60 s."""
    _check_number("a heartbeat", beat_s)
    if not BEAT_S_MIN <= beat_s <= BEAT_S_MAX:
        limits = f"{BEAT_S_MIN:g} to {BEAT_S_MAX:g} s"
        raise ConfigError(f"a heartbeat of {beat_s} s is outside {limits}", next_step="Most meshes want 0.1")
    return BEATS * float(beat_s)


def check_collective_timeout(seconds: float) -> float:
    """How long ranks wait for each other, as a float; ConfigError unless it is a positive number of seconds."""
    if isinstance(seconds, bool) or not isinstance(seconds, numbers.Real):
        raise ConfigError(f"ranks cannot wait {seconds!r} for each other: a positive number of seconds")
    if not 0 < seconds < SECONDS_MAX:
        shown = f"{seconds:g}" if isinstance(seconds, float) else f"{seconds}"[:40]
        raise ConfigError(f"ranks cannot wait {shown} s for each other: a positive number of seconds")
    return float(seconds)


def _checked(name: str, seconds: object) -> float:
    """What a field may be, as a float."""
    if not _is_number(seconds):
        raise _no_number(name, seconds)
    row = ROWS[name].metadata
    if not row["least"] <= seconds <= row["most"]:
        limits = f"{row['least']:g} to {row['most']:g} s"
        raise ConfigError(f"{name} of {seconds} s is outside {limits}", next_step=row["why"])
    return float(seconds)


def _check_number(what: str, seconds: object) -> None:
    if not _is_number(seconds):
        raise _no_number(what, seconds)


def _is_number(seconds: object) -> TypeGuard[float]:
    return isinstance(seconds, numbers.Real) and not isinstance(seconds, bool)


def _no_number(what: str, seconds: object) -> ConfigError:
    return ConfigError(f"{what} is a number of seconds, not {seconds!r}")


# -- presets -------------------------------------------------------------------------------------------------


def _preset(name: str) -> Timeouts:
    rows = {row.name: row.metadata["presets"] for row in fields(Timeouts)}
    return Timeouts(**{field: values.get(name, values["lan"]) for field, values in rows.items()})


DEFAULT_PRESET = "lan"
PRESETS: Mapping[str, Timeouts] = {name: _preset(name) for name in PRESETS_FOR}
DEFAULT_TIMEOUTS = PRESETS[DEFAULT_PRESET]
