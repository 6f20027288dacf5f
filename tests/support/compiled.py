"""Compile all tests and what they import, where that is not done yet: each process of pytest would compile all of them
for itself, since they begin at the same moment.  That takes 18 s of a processor.

    python tests/support/compiled.py
"""

from __future__ import annotations

import compileall
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from _pytest.assertion import AssertionState
from _pytest.assertion.rewrite import PYC_TAIL, _rewrite_test, _write_pyc
from _pytest.config import get_config

ROOT = Path(__file__).resolve().parents[2]
IMPORTED = ("mesh", "wire", "worker", "coordinator", "docs/tools", "tests/support", "tests/golden")


def target(file: Path) -> Path:
    return file.parent / "__pycache__" / (file.stem + PYC_TAIL)


def is_stale(file: Path) -> bool:
    return not target(file).exists() or target(file).stat().st_mtime <= file.stat().st_mtime


def rewrite(files: list[Path]) -> None:
    """With assertions that pytest explains, which it does to the files of tests only."""
    config = get_config()
    config.parse([])
    for file in files:
        target(file).parent.mkdir(exist_ok=True)
        stat, code = _rewrite_test(file, config)
        _write_pyc(AssertionState(config, "rewrite"), code, stat, target(file))


def main() -> None:
    for folder in IMPORTED:
        compileall.compile_dir(ROOT / folder, quiet=1)
    files = sorted(file for name in ("test_*.py", "conftest.py") for file in ROOT.glob(f"tests/**/{name}"))
    stale, count = [file for file in files if is_stale(file)], os.cpu_count() or 1
    if stale:
        with ProcessPoolExecutor(count) as pool:
            list(pool.map(rewrite, [stale[index::count] for index in range(count)]))


if __name__ == "__main__":
    main()
