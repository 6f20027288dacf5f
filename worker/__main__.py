"""`python -P -m worker '{"name": ...}'`: a worker from a WorkerConfig as JSON, for programs that start workers."""

from __future__ import annotations

import asyncio
import sys

from .config import config_of
from .daemon.daemon import run_worker


def main() -> None:
    sys.exit(asyncio.run(run_worker(config_of(sys.argv[1]))))


if __name__ == "__main__":
    main()
