"""Control groups of Linux, which say what a container, or a service with limits, may have of its machine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

HERE = Path("/")


def groups(controller: str, root: Path = HERE) -> Iterator[tuple[int, Path]]:
    """The folders of this process's control group for a controller, such as "memory", and of those around it, whose
    limits are its own too; each with the version of its files, 1 or 2.  Other systems have none."""
    with contextlib.suppress(OSError, ValueError):  # no Linux
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            number, controllers, group = line.split(":", 2)
            if controller in controllers.split(","):
                version, folder = 1, root / "sys/fs/cgroup" / controller
            elif number == "0":
                version, folder = 2, root / "sys/fs/cgroup"
            else:
                continue
            path = PurePosixPath(group)
            for each in (path, *path.parents):  # of a container the first may be outside of what it sees
                with contextlib.suppress(ValueError):
                    yield version, folder / each.relative_to("/")
