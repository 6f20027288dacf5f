"""The folders of shared memory are removed while their processes run, as systemd-logind does when a user logs out whose
services go on: what was there is lost, and all else goes on."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import mesh
from wire.system.shared_memory import MEMORY_FOLDER

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc")
ANSWER_S = 300.0


def folders() -> set[Path]:
    """The folders of shared memory of this process and of those that it started."""
    own = psutil.Process()
    opened = {file.path for process in (own, *own.children(recursive=True)) for file in process.open_files()}
    return {Path(path).parent for path in opened if Path(path).is_relative_to(MEMORY_FOLDER) and path.endswith("/lock")}


def test_calls_and_sessions_go_on_where_shared_memory_was_removed() -> None:
    if not MEMORY_FOLDER.is_dir():
        pytest.skip("there is no folder of files in memory")
    x = np.ones((512, 512), np.float32)

    def answered(job: Any) -> Any:
        return job.result(timeout_s=ANSWER_S)

    with mesh.Mesh.builder().local(2, engine="cpu").build() as own:
        session = own.session(lambda state, x: (state + x, state.sum()), x, x)
        assert answered(session.step(x)) == x.size and folders()
        for _ in range(2):
            for folder in folders():
                shutil.rmtree(folder)
            np.testing.assert_array_equal(answered(own.submit(lambda x: x + 1, x)), x + 1)
        assert answered(session.step(x)) == 2 * x.size
        np.testing.assert_array_equal(session.state(), 3 * x)
