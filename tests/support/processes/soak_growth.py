"""What processes that work for hours may keep: straight lines through samples of what they hold, and /dev/shm as it is
for them alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

GROWS_KIB_H, GROWS_FILES_H = 16 * 1024.0, 8.0  # the most that anything may grow in an hour
MEMORY = {"KiB": "RssAnon", "KiB mapped": "RssFile", "KiB shared": "RssShmem"}  # what /proc calls it
HELD = (*MEMORY, "files")  # by a process
TOGETHER = ("all of /dev/shm, KiB", "all of the disk, KiB")
ALONE = "SOAK_ALONE"  # a variable of processes with mounts of their own

Samples = Sequence[tuple[float, Mapping[str, float]]]  # seconds, and what is held then


def judged(names: Collection[str]) -> tuple[str, ...]:
    """What is judged of these processes, and of all together."""
    return (*(f"{name} {what}" for name in sorted(names) for what in ("KiB", "files")), *TOGETHER)


def slope_per_h(samples: Samples, name: str) -> float:
    """Of the straight line through what is held, by least squares."""
    seconds, amounts = np.array([at_s for at_s, _ in samples]), np.array([held[name] for _, held in samples])
    return float(np.polyfit(seconds / 3600.0, amounts, 1)[0])


def grown(samples: Samples, names: Collection[str]) -> dict[str, float]:
    """What grows faster than it may, and by how much in an hour.  A line through less than half an hour says little:
    there the bound is for half an hour."""
    stretch_h = max(samples[-1][0] - samples[0][0], 1.0) / 3600.0
    found = {}
    for name in judged(names):
        slope = slope_per_h(samples, name)
        most = GROWS_FILES_H if name.endswith("files") else GROWS_KIB_H
        if slope > most * max(1.0, 0.5 / stretch_h):
            found[name] = slope
    return found


def tell_growth(samples: Samples, late: Samples, names: Collection[str]) -> None:
    """Print what is held in `late` samples, the most in all, and the slopes of the late ones: what is judged, and what
    memory it is that grows."""
    kinds = [f"{name} {what}" for name in sorted(names) for what in ("KiB of children", "KiB mapped", "KiB shared")]
    for name in (*judged(names), *kinds):
        median, most = np.median([held[name] for _, held in late]), max(held[name] for _, held in samples)
        print(f"{name}: {median:.0f}, at most {most:.0f}; {slope_per_h(late, name):+.0f}/h")


def can_mount() -> bool:
    """Whether this process may have mounts of its own."""
    words = ("unshare", "--mount", "true")
    return sys.platform == "linux" and shutil.which("unshare") is not None and not subprocess.run(words).returncode


def folder_alone(folder: str, prefix: str) -> Path:
    """Begin this script again with mounts of its own: /dev/shm is then what these processes have there and no more.
    The folder for its logs, a new one without a name."""
    if ALONE not in os.environ:
        os.environ[ALONE] = "1"
        os.execvp("unshare", ["unshare", "--mount", sys.executable, *sys.argv])
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2g", "tmpfs", "/dev/shm"], check=True)
    made = Path(folder or mkdtemp(prefix=prefix))
    made.mkdir(parents=True, exist_ok=True)
    print(f"logs, samples and faults are in {made}", flush=True)
    return made
