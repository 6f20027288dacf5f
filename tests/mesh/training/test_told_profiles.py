"""Where the time of training went is told at its end, and a run whose telling fails is done all the same."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import mesh


@pytest.mark.parametrize("gone", ["stderr", "trace"])
def test_a_run_is_done_though_nobody_can_be_told_where_its_time_went(
    gone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MESH_PROFILE", "2")
    monkeypatch.setenv("MESH_TRACE", str(tmp_path / ("trace.json" if gone == "stderr" else "no/such/folder")))
    if gone == "stderr":
        receive, send = os.pipe()
        os.close(receive)
        monkeypatch.setattr("sys.stderr", os.fdopen(send, "w"))  # a pipe whose reader has left
    trainer = mesh.DistributedTrainer(lambda w, x: (w * x) ** 2, np.float32(3), optimizer=mesh.optim.sgd(0.1))
    assert len(trainer.fit((np.ones(4, np.float32),), epochs=2, batch_size=2).losses) == 4
    assert "cannot be told" in caplog.text
