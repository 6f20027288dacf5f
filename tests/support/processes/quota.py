"""A share of one core for some processes, by a cgroup of our own: version 1 or 2, as this machine lets us make."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PERIOD_US = 100_000
_numbers = itertools.count()
# Where the controller may be mounted, and what its file for the quota is called and holds.
KINDS = (
    (Path("/sys/fs/cgroup/cpu"), "cpu.cfs_quota_us", "{quota}"),
    (Path("/sys/fs/cgroup"), "cpu.max", f"{{quota}} {PERIOD_US}"),
)


class NoQuota(Exception):
    """This machine does not let us limit processes; the text says why."""


@dataclass(frozen=True, slots=True)
class Quota:
    folder: Path

    def add(self, pid: int) -> None:
        """Limit a process, together with those added before; its later children too."""
        (self.folder / "cgroup.procs").write_text(str(pid))

    @property
    def throttled(self) -> int:
        """In how many periods of 0.1 s the processes wanted more than they got."""
        return self._counted("nr_throttled")

    @property
    def periods(self) -> int:
        """In how many periods they wanted something at all."""
        return self._counted("nr_periods")

    def _counted(self, what: str) -> int:
        lines = dict(line.split() for line in (self.folder / "cpu.stat").read_text().splitlines())
        return int(lines[what])


@contextmanager
def cpu_quota(share: float) -> Iterator[Quota]:
    """All added processes together get `share` of one core; they must have ended before this does.  NoQuota."""
    reasons = []
    for root, file, text in KINDS:
        folder = root / f"graph-mesh-test-{os.getpid()}-{next(_numbers)}"
        try:
            folder.mkdir()
            (folder / file).write_text(text.format(quota=int(share * PERIOD_US)))
        except OSError as error:
            reasons.append(str(error))
            if folder.is_dir():
                folder.rmdir()
            continue
        try:
            yield Quota(folder)
        finally:
            _remove(folder)
        return
    raise NoQuota("; ".join(reasons))


def _remove(folder: Path) -> None:
    """A process that was killed is in its group for a moment more."""
    deadline_s = time.monotonic() + 60.0
    while True:
        try:
            return folder.rmdir()
        except OSError:
            if time.monotonic() > deadline_s:
                raise
        time.sleep(0.05)


@contextmanager
def burner(quota: Quota) -> Iterator[None]:
    """A process within the quota that uses all of it that the others leave."""
    busy = f"import os\nwhile os.getppid() == {os.getpid()}: pass"  # it ends with us, however we end
    with subprocess.Popen([sys.executable, "-c", busy]) as process:
        quota.add(process.pid)
        try:
            yield
        finally:
            process.kill()
