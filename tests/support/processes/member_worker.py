"""A worker daemon that is a member of a mesh by what is in its state folder, as `mesh-worker` starts one that joined.

`python member_worker.py '{"name": ...}'`, a WorkerConfig as JSON.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

from wire.joining.credentials import Credentials
from worker.config import config_of
from worker.daemon.daemon import run_worker
from worker.daemon.environment import REAL


def main() -> None:
    def credentials(folder: Path, _name: str) -> Credentials:
        return Credentials(folder)

    sys.exit(asyncio.run(run_worker(config_of(sys.argv[1]), replace(REAL, credentials=credentials))))


if __name__ == "__main__":
    main()
