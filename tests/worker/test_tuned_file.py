"""The file of what was measured to be fastest: kept, shared, bounded, and made anew where it is damaged."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from wire.system.atomic_files import Disk
from worker.wgsl.tuned_file import FILE, ROWS_MAX, TunedFile

SUM, PRODUCT = "sum f32 64x64", "product f32 1x64x64x64"


def opened(folder: Path | None, device: str = "gpu, driver 1") -> TunedFile:
    return TunedFile(folder, device, "a GPU", "driver 1")


def test_what_was_chosen_is_there_for_the_next_process(tmp_path: Path) -> None:
    first = opened(tmp_path / "kernels")
    assert first.choices.names == {} and first.row(SUM).form is None
    first.choose(SUM, "64 rows", 2e-3, 1e-3)
    first.choose(PRODUCT, "", 3e-3, 3e-3)
    second = opened(tmp_path / "kernels")
    assert first.choices.names == second.choices.names == {SUM: "64 rows"}  # of a first guess nothing need be said
    row = second.row(SUM)
    assert (row.form, row.guess_s, row.form_s, row.adapter, row.driver) == ("64 rows", 2e-3, 1e-3, "a GPU", "driver 1")
    assert second.row(PRODUCT).form == "", "it was measured"
    assert oct((tmp_path / "kernels" / FILE).stat().st_mode)[-3:] == "600" or os.name != "posix"


def test_a_process_sees_what_another_one_chose_since(tmp_path: Path) -> None:
    one, other = opened(tmp_path), opened(tmp_path)
    before = one.choices
    other.choose(SUM, "64 rows", 2e-3, 1e-3)
    assert one.choices.names == {SUM: "64 rows"} and before.names == {}
    assert one.choices is one.choices, "nothing is compiled anew for nothing"
    one.choose(PRODUCT, "tiles", 2e-3, 1e-3)
    assert other.choices.names == {SUM: "64 rows", PRODUCT: "tiles"}
    assert repr(one.choices) == repr(other.choices) != repr(before), "the keys of programs have it"


@pytest.mark.parametrize("device", ["gpu, driver 2", "another gpu, driver 1", "gpu, driver 1, later kernels"])
def test_what_another_device_or_driver_or_version_was_measured_with_does_not_count(tmp_path: Path, device: str) -> None:
    opened(tmp_path).choose(SUM, "64 rows", 2e-3, 1e-3)
    other = opened(tmp_path, device)
    assert other.choices.names == {} and other.row(SUM).form is None
    other.choose(SUM, "a row by 64", 2e-3, 1e-3)
    assert opened(tmp_path).choices.names == {SUM: "64 rows"}, "nor does it lose its own"


def damaged(kept: str) -> dict[str, bytes]:
    content = json.loads(kept)
    row = content["rows"][0]

    def with_row(**changed: Any) -> bytes:
        return json.dumps({**content, "rows": [{**row, **changed}]}).encode()

    return {
        "cut off": kept[: len(kept) // 2].encode(),
        "empty": b"",
        "not JSON": b"\xff\xfe{",
        "of a later format": json.dumps({**content, "format": 2}).encode(),
        "a list": b"[]",
        "rows that are none": json.dumps({**content, "rows": [1]}).encode(),
        "another field": with_row(more=1),
        "a field less": json.dumps({**content, "rows": [{k: v for k, v in row.items() if k != "refused"}]}).encode(),
        "a number for a name": with_row(form=3),
        "a text for a number": with_row(guess_s="1"),
        "no number": with_row(guess_s=float("nan")),
        "tries that are none": with_row(tries=["64 rows"]),
        "tries of a text": with_row(tries={"64 rows": "2"}),
        "deep": b'{"format": 1, "rows": ' + b"[" * 100_000,
        "far too large": b" " * (5 << 20),
    }


@pytest.fixture
def kept(tmp_path: Path) -> str:
    opened(tmp_path / "first").choose(SUM, "64 rows", 2e-3, 1e-3)
    return (tmp_path / "first" / FILE).read_text()


@pytest.mark.parametrize("how", damaged('{"format": 1, "rows": [{"refused": {}}]}'))
def test_a_damaged_file_is_told_and_made_anew(
    tmp_path: Path, kept: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / FILE
    path.write_bytes(damaged(kept)[how])
    with caplog.at_level(logging.WARNING):
        file = opened(tmp_path)
        assert file.choices.names == {} and file.choices.names == {}
    (line,) = caplog.messages
    assert f"{path} is made anew" in line
    file.choose(PRODUCT, "tiles", 2e-3, 1e-3)
    assert opened(tmp_path).choices.names == {PRODUCT: "tiles"}


def test_a_disk_that_refuses_costs_nothing_but_the_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Full(Disk):
        def write(self, fd: int, data: bytes | memoryview) -> None:
            raise OSError(28, "No space left on device")

    file = TunedFile(tmp_path, "gpu", disk=Full())
    file.choose(SUM, "64 rows", 2e-3, 1e-3)
    assert file.choices.names == {SUM: "64 rows"} and file.row(SUM).form == "64 rows"
    assert "is not kept" in caplog.text and not (tmp_path / FILE).exists()


@pytest.mark.parametrize("where", ["none", "a file"])
def test_without_a_folder_it_lasts_as_long_as_the_process(tmp_path: Path, where: str) -> None:
    (tmp_path / "taken").write_text("")
    file = opened(None if where == "none" else tmp_path / "taken" / "kernels")
    file.begin(SUM, "64 rows")
    file.end(SUM, "64 rows", "its results are wrong")
    file.choose(SUM, "a row by 64", 2e-3, 1e-3)
    assert file.choices.names == {SUM: "a row by 64"} and file.row(SUM).refused == {"64 rows": "its results are wrong"}


def test_a_file_that_cannot_be_read_is_told_once_and_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "taken").write_text("")
    file = opened(tmp_path / "taken" / "kernels")
    assert [file.choices.names for _ in range(3)] == [{}] * 3 and file.row(SUM).form is None
    (line,) = caplog.messages
    assert f"{tmp_path / 'taken' / 'kernels' / FILE} cannot be read: " in line


def test_a_form_that_never_came_back_is_counted(tmp_path: Path) -> None:
    for _ in range(2):
        opened(tmp_path).begin(SUM, "64 rows")  # and the process is gone
    file = opened(tmp_path)
    assert file.row(SUM).tries == {"64 rows": 2} and file.row(SUM).form is None
    file.begin(SUM, "128 rows")
    file.end(SUM, "128 rows")
    file.end(SUM, "64 rows", "it never came back")
    assert (dict(file.row(SUM).tries), dict(opened(tmp_path).row(SUM).refused)) == (
        {},
        {"64 rows": "it never came back"},
    )


def test_rows_of_other_devices_go_first_and_then_the_oldest(tmp_path: Path) -> None:
    opened(tmp_path).choose(SUM, "64 rows", 2e-3, 1e-3)
    rows = [{**row(tmp_path), "shape_class": f"sum f32 1x{n}"} for n in range(ROWS_MAX - 1)]
    others = [{**row(tmp_path), "device": "another"}]
    write(tmp_path, [*rows, *others])
    file = opened(tmp_path)
    file.choose(PRODUCT, "tiles", 2e-3, 1e-3)
    assert [kept["device"] for kept in read(tmp_path)].count("another") == 0 and len(read(tmp_path)) == ROWS_MAX
    assert "sum f32 1x0" in file.choices.names
    file.choose(SUM, "64 rows", 2e-3, 1e-3)
    assert "sum f32 1x0" not in file.choices.names and len(file.choices.names) == ROWS_MAX


def read(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((folder / FILE).read_text())["rows"]
    return rows


def row(folder: Path) -> dict[str, Any]:
    return read(folder)[0]


def write(folder: Path, rows: list[dict[str, Any]]) -> None:
    (folder / FILE).write_text(json.dumps({"format": 1, "rows": rows}))
