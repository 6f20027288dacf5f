"""The audit log: every line follows the one before, and whoever changes one is found out."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest
from support.audit_events import read_events
from support.hostile.faulty_disk import FaultyDisk, Fuse, QuickDisk

from coordinator.authority.audit_log import FIRST, TEXT_MAX, AuditLog, Verdict, verify


def written(folder: Path, count: int = 5, bytes_max: int = 1 << 20) -> AuditLog:
    log = AuditLog(folder, QuickDisk(), bytes_max)
    for number in range(count):
        log.append("joined", 1000.0 + number, node=f"node {number}", ip="10.0.0.1")
    return log


def test_lines_are_objects_that_follow_each_other(tmp_path: Path) -> None:
    log = written(tmp_path)
    lines = [json.loads(line) for line in log.path.read_text().splitlines()]
    assert lines[0] == {"prev": FIRST, "time": 1000.0, "event": "joined", "node": "node 0", "ip": "10.0.0.1"}
    assert len({line["prev"] for line in lines}) == 5
    assert verify(tmp_path) == Verdict(5)
    assert [line["node"] for line in read_events(tmp_path, 2)] == ["node 3", "node 4"]


def test_a_new_process_goes_on_with_the_chain(tmp_path: Path) -> None:
    written(tmp_path, 3)
    written(tmp_path, 2)
    assert verify(tmp_path) == Verdict(5)


def test_there_is_nothing_wrong_with_no_log(tmp_path: Path) -> None:
    assert verify(tmp_path) == Verdict(0)


def test_full_files_get_numbers_and_the_chain_goes_on(tmp_path: Path) -> None:
    written(tmp_path, 20, bytes_max=500)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names[:2] == ["audit.000001.jsonl", "audit.000002.jsonl"] and names[-1] == "audit.jsonl"
    assert verify(tmp_path) == Verdict(20)
    (tmp_path / names[1]).unlink()
    assert "audit.000003.jsonl:1" in verify(tmp_path).broken


def test_a_file_takes_the_place_of_no_other_where_the_first_were_archived_elsewhere(tmp_path: Path) -> None:
    written(tmp_path, 20, bytes_max=500)
    full = sorted(tmp_path.glob("audit.*.jsonl"))
    full[0].unlink()
    kept = {path: path.read_bytes() for path in full[1:]}
    written(tmp_path, 20, bytes_max=500)
    assert {path: path.read_bytes() for path in kept} == kept
    assert len(sorted(tmp_path.glob("audit.*.jsonl"))) > len(full)


@pytest.mark.parametrize("change", ["changed", "removed", "inserted", "swapped", "not json"])
def test_a_line_that_was_tampered_with_breaks_the_chain(tmp_path: Path, change: str) -> None:
    log = written(tmp_path)
    lines = log.path.read_text().splitlines(keepends=True)
    match change:
        case "changed":
            lines[1] = lines[1].replace("node 1", "node 9")
        case "removed":
            del lines[2]
        case "inserted":
            lines.insert(2, lines[2])
        case "swapped":
            lines[1], lines[2] = lines[2], lines[1]
        case "not json":
            lines[2] = "[]\n"
    log.path.write_text("".join(lines))
    assert verify(tmp_path).broken in ("audit.jsonl:2", "audit.jsonl:3", "audit.jsonl:4")


def test_a_bit_changed_in_any_byte_before_the_last_line_is_found(tmp_path: Path) -> None:
    log = written(tmp_path, 3)
    data = log.path.read_bytes()
    for at in range(data[:-1].rindex(b"\n") + 1):
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        log.path.write_bytes(damaged)
        assert verify(tmp_path).broken, f"byte {at}"


@pytest.mark.parametrize("line", [b"{nope", b"[1]", b"\xff", b"[" * 100_000])
def test_a_line_that_is_no_event_breaks_the_chain_and_is_named(tmp_path: Path, line: bytes) -> None:
    AuditLog(tmp_path).append("joined", 1.0, node="n1")
    with (tmp_path / "audit.jsonl").open("ab") as file:
        file.write(line + b"\n")
    assert verify(tmp_path) == Verdict(1, "audit.jsonl:2")


@pytest.mark.parametrize("cut", range(1, 40, 7))
def test_half_a_line_of_a_crash_is_cut_off(tmp_path: Path, cut: int) -> None:
    log = written(tmp_path, 3)
    log.path.write_bytes(log.path.read_bytes()[:-cut])
    assert verify(tmp_path) == Verdict(2)
    log.append("renewed", 2000.0)
    assert verify(tmp_path) == Verdict(3)


def test_a_disk_that_refuses_adds_no_line(tmp_path: Path) -> None:
    written(tmp_path, 2)
    for step in (1, 2):
        log = AuditLog(tmp_path, FaultyDisk(Fuse(fails_at=step, heals_at=step + 1)))
        with pytest.raises(OSError, match="no space"):
            log.append("joined", 1.0)
        assert verify(tmp_path) == Verdict(2)
    log.append("joined", 1.0)
    assert verify(tmp_path) == Verdict(3)


def test_what_strangers_say_is_made_harmless_and_short(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, QuickDisk())
    log.append("refused", 1.0, name="\x1b[2Jevil\n" + "x" * 1000, reason="")
    (line,) = read_events(tmp_path, 1)
    name = line["name"]
    assert isinstance(name, str) and len(name) == TEXT_MAX and name.startswith("?[2Jevil?x") and "reason" not in line


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps no mode bits")
def test_nobody_else_reads_it(tmp_path: Path) -> None:
    assert stat.S_IMODE(written(tmp_path).path.stat().st_mode) == 0o600
