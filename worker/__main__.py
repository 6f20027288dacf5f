"""`python -P -m worker '{"name": ...}'`: a worker from a WorkerConfig as JSON, for programs that start workers."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from .daemon.daemon import WorkerConfig, run_worker


def main() -> None:
    given: dict[str, Any] = json.loads(sys.argv[1])
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    sys.exit(asyncio.run(run_worker(WorkerConfig(**fields))))


if __name__ == "__main__":
    main()
