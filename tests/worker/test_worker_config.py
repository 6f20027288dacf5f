"""A worker's settings as JSON, for programs that start workers."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

from wire.timeouts import PRESETS
from worker.config import WorkerConfig, config_of


def test_settings_come_back_from_json_as_they_were(tmp_path: Path) -> None:
    config = replace(WorkerConfig.local("w", "mesh", tmp_path, devices=("cpu",)), timeouts=PRESETS["wan"], verbosity=1)
    assert config_of(json.dumps(asdict(config))) == config
    assert config_of("{}") == WorkerConfig()
