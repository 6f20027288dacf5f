"""Outputs of a job as files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.processes.small_disk import small_disk

from mesh.commands.arrays import write_outputs, write_text
from mesh.commands.exit_codes import FAILED, code_of
from wire.errors import InputError, StorageError


def test_a_disk_that_is_full_is_no_mistake_of_the_user_and_the_results_can_be_had_again(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk, pytest.raises(StorageError) as raised:
        write_outputs(disk / "out", {"output": np.zeros(1 << 20)})
    assert code_of(raised.value) == FAILED
    assert "mesh-coord result JOB" in str(raised.value)


def test_a_drawing_for_which_there_is_no_room_is_no_mistake_of_the_user_either(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk, pytest.raises(StorageError, match=r"svg.*No space") as raised:
        write_text(disk / "plan.svg", " " * (2 << 20))
    assert code_of(raised.value) == FAILED
    with pytest.raises(InputError, match=r"none/plan\.svg.*No such file"):
        write_text(tmp_path / "none" / "plan.svg", "")


def test_names_that_differ_in_capitals_only_have_files_of_their_own_on_every_file_system(tmp_path: Path) -> None:
    files = write_outputs(tmp_path, {"A": np.zeros(1), "a": np.zeros(2), "A-2": np.zeros(3)})
    assert len({file.name.lower() for file in files.values()}) == 3
    assert [np.load(file).size for file in files.values()] == [1, 2, 3]


def test_any_name_that_an_output_may_have_gives_a_file(tmp_path: Path) -> None:
    outputs = {"y" * 256: np.zeros(1), "y" * 255: np.ones(2), "机" * 256: np.ones(3)}
    files = write_outputs(tmp_path, outputs)
    assert [np.load(file).size for file in files.values()] == [1, 2, 3]
