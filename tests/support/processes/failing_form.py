"""An engine host whose driver fails at one form of a kernel: `python failing_form.py abort|hang|none FORM`.

It is a real host on a real adapter; the fault is at the place where a driver would have it, the form's first run.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]


def command(fault: str, form: str) -> Sequence[str]:
    return [sys.executable, str(Path(__file__)), fault, form]


def main() -> None:
    sys.path.insert(0, str(ROOT))
    from worker.engine_host import host
    from worker.wgsl.tuner import Tuner

    fault, failing = sys.argv[1:]
    first_run = Tuner._first_run

    def failing_run(self: Any, problem: Any, choice: Any, form: str, *others: Any) -> Any:
        if form == failing and fault == "abort":
            os.abort()
        if form == failing and fault == "hang":
            time.sleep(3600)
        return first_run(self, problem, choice, form, *others)

    Tuner._first_run = failing_run  # type: ignore[method-assign]
    host.main()


if __name__ == "__main__":
    main()
