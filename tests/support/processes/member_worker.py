"""A worker daemon that is a member of a mesh by what is in its state folder, as `mesh-worker` starts one that joined.

`python member_worker.py '{"name": ...}'`, a WorkerConfig as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from wire.security.credentials import Credentials
from worker.config import WorkerConfig
from worker.daemon.daemon import run_worker
from worker.daemon.environment import REAL


def main() -> None:
    given: dict[str, Any] = json.loads(sys.argv[1])
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}

    def credentials(folder: Path, _name: str) -> Credentials:
        return Credentials(folder)

    sys.exit(asyncio.run(run_worker(WorkerConfig(**fields), replace(REAL, credentials=credentials))))


if __name__ == "__main__":
    main()
