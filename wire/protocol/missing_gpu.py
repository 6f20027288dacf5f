"""Why a worker has no GPU: it says so when it joins, `mesh-coord nodes` shows it, and the doctor advises by it.  Pure.

A reason is one of the words below, which may be followed by what a driver said.  "" is no reason: the worker has a GPU,
or is too old to say.  To add a reason: a word, a row of SAID, and a finding in `mesh/commands/diagnosis.py`.
"""

from __future__ import annotations

ASKED, NONE, SOFTWARE, LIBRARY, FAILED = "asked", "none", "software", "library", "failed"
TEXT_MAX = 300

# The reason in a table, and in a sentence that begins with "it".
SAID = {
    ASKED: ("--device cpu", "was started with --device cpu"),
    NONE: ("none found", "has no graphics adapter with a driver"),
    SOFTWARE: ("only software adapters", "has only software graphics adapters"),
    LIBRARY: ("no wgpu", "has no wgpu, the Python package that graphics adapters are used by"),
    FAILED: ("its driver failed", "has a graphics adapter that cannot be used"),
}


def failed(text: str) -> str:
    """The reason of a worker whose driver failed with this text."""
    return f"{FAILED}: {text[:TEXT_MAX]}"


def kind_of(reason: str) -> str:
    """The word of a reason."""
    return reason.partition(":")[0]


def short_text(reason: str) -> str:
    """A reason in a table; one that a newer worker gives reads as it is."""
    return SAID.get(kind_of(reason), (reason[:TEXT_MAX], ""))[0]


def long_text(reason: str) -> str:
    """A reason after the word "it", with what the driver said."""
    kind, _, more = reason.partition(": ")
    if kind not in SAID:
        return f"has no GPU: {reason[:TEXT_MAX]}"
    return SAID[kind][1] + (f" ({more})" if more else "")
