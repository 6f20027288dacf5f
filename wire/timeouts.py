"""The node time-out: the one number people choose about failure detection, and what it may be; and how long ranks wait.

After that many seconds of silence a worker is certainly counted as dead; `coordinator/workers/failure_detector.py`
derives every other time from it.  It does not know what follows from a silence.  A new preset is a row here.
"""

from __future__ import annotations

import numbers

from .errors import ConfigError

# Ten to thirty times the worst gap measured between heartbeats on an idle machine, so a false death needs a real fault;
# over the internet a lost segment alone can cost seconds.
PRESETS: dict[str, float] = {"local": 1.5, "lan": 1.5, "wan": 10.0}
NODE_TIMEOUT_S = PRESETS["lan"]
BEATS = 15  # heartbeats in one node time-out
SECONDS_MAX = 1e9  # what a clock can be set to, everywhere
COLLECTIVE_TIMEOUT_S = 120.0  # for ranks to wait for each other: one may compile, or compute, long before it comes
SILENT = "silence"  # the cause in the error of a link that was ended because nothing came over it for so long
BEAT_S_MIN, BEAT_S_MAX = 0.01, 60.0


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
        given = f"{seconds:g}" if isinstance(seconds, float) else f"{seconds}"[:40]
        raise ConfigError(f"ranks cannot wait {given} s for each other: a positive number of seconds")
    return float(seconds)


def _check_number(what: str, seconds: object) -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, numbers.Real):
        raise ConfigError(f"{what} is a number of seconds, not {seconds!r}")
