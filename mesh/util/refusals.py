"""Refusals: what the operating system refuses, as the error that whoever asked for it gets."""

from __future__ import annotations

from wire.errors import ConfigError

# The first row whose class fits decides.
NEXT_STEPS: tuple[tuple[type[OSError], str], ...] = (
    (PermissionError, "Make it yours again, or name another folder: --state-dir DIR, or XDG_STATE_HOME"),
    (OSError, "Raise that limit of this process, or make room; ulimit -a shows the limits"),
)


def refusal(what: str, error: OSError) -> ConfigError:
    """The error that the system refuses `what`."""
    step = next(step for kind, step in NEXT_STEPS if isinstance(error, kind))
    return ConfigError(f"the system refuses {what}", cause=str(error), next_step=step)
