"""The journal opens with everything that was acknowledged, or says loudly that it cannot."""

from __future__ import annotations

import contextlib
import random
import shutil
import sqlite3
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.hostile.faulty_disk import FaultyDisk, Fuse, QuickDisk, faulty_connect, quick_connect

from coordinator.jobs.journal import DEAD_BYTES_MIN, DEAD_ROWS_MIN, FORGOTTEN, Entry, Journal
from wire.errors import ConfigError, JournalDamaged, NotDurable
from wire.limits import MIB

QUICK = QuickDisk()
SAMPLE = 150


def open_quick(folder: Path) -> tuple[Journal, list[Entry]]:
    return Journal.open(folder, 1, QUICK, quick_connect)


def found_in(folder: Path) -> list[Entry]:
    journal, entries = open_quick(folder)
    journal.close()
    return entries


def entry(job: str, kind: str = "accepted", body: bytes = b"{}") -> Entry:
    return Entry(job, kind, body)


# -- what is kept


def test_what_was_written_is_there_again_with_a_higher_epoch(tmp_path: Path) -> None:
    journal, entries = Journal.open(tmp_path, 7)
    assert (entries, journal.epoch) == ([], 7)
    journal.write([entry("a", body=b"\x00\xff"), entry("b")])
    journal.write([entry("a", "started")])
    journal.close()
    again, entries = Journal.open(tmp_path, 7)
    assert entries == [entry("a", body=b"\x00\xff"), entry("b"), entry("a", "started")]
    assert again.epoch == 8
    again.close()


def test_a_journal_that_was_not_closed_is_read_all_the_same(tmp_path: Path) -> None:
    journal, _ = Journal.open(tmp_path / "one")
    journal.write([entry("a")])
    shutil.copytree(tmp_path / "one", tmp_path / "killed")
    assert found_in(tmp_path / "killed") == [entry("a")]
    journal.close()


def test_what_a_later_entry_replaces_is_gone_and_a_forgotten_job_leaves_nothing(tmp_path: Path) -> None:
    journal, _ = open_quick(tmp_path)
    journal.write([entry("a"), entry("b"), entry("a", "started"), entry("a", "ended"), entry("b", FORGOTTEN)])
    journal.close()
    assert found_in(tmp_path) == [entry("a", "ended")]


def test_history_does_not_grow_the_journal(tmp_path: Path) -> None:
    journal, _ = open_quick(tmp_path)
    journal.write([entry("kept")])
    sizes = []
    for number in range(6 * DEAD_ROWS_MIN):
        journal.write([entry(f"{number}"), entry(f"{number}", "ended"), entry(f"{number}", FORGOTTEN)])
        if number % DEAD_ROWS_MIN == DEAD_ROWS_MIN - 1:
            sizes.append(sum(path.stat().st_size for path in tmp_path.iterdir()))
    assert max(sizes[2:]) <= sizes[1] * 1.5
    journal.close()
    assert found_in(tmp_path) == [entry("kept")]


def test_long_entries_that_replace_each_other_do_not_grow_the_journal(tmp_path: Path) -> None:
    """As the records of a session with a large state do, one after every few steps."""
    journal, _ = open_quick(tmp_path)
    newest = b""
    for number in range(60):
        newest = bytes([number]) * MIB
        journal.write([entry("@session-record a", "session-record", newest)])
    journal.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 2 * DEAD_BYTES_MIN + 8 * MIB
    assert [found.body for found in found_in(tmp_path)] == [newest]


def test_tidying_does_not_take_memory_for_all_that_is_kept(tmp_path: Path) -> None:
    journal, _ = open_quick(tmp_path)
    bodies = {f"{number}": bytes([number % 256]) * 32768 for number in range(DEAD_ROWS_MIN)}
    tracemalloc.start()
    try:
        for job, body in bodies.items():
            journal.write([entry(job), entry(job, "started"), entry(job, "ended", body)])
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert journal._stored < 3 * len(bodies), "it was not tidied, so this says nothing"
    assert peak_bytes < sum(map(len, bodies.values())) / 4
    journal.close()
    assert {each.job: each.body for each in found_in(tmp_path)} == bodies


def test_a_folder_belongs_to_one_process(tmp_path: Path) -> None:
    journal, _ = open_quick(tmp_path)
    with pytest.raises(ConfigError, match="another coordinator keeps its jobs in"):
        open_quick(tmp_path)
    journal.close()
    assert found_in(tmp_path) == []


@pytest.mark.parametrize("lost", ["jobs.sqlite", "acknowledged"])
def test_a_missing_file_is_named_with_what_to_do(tmp_path: Path, lost: str) -> None:
    journal, _ = open_quick(tmp_path)
    journal.write([entry("a")])
    journal.close()
    (tmp_path / lost).unlink()
    with pytest.raises(JournalDamaged, match=f"{lost} is missing.*Restore .* from a copy, or move it away"):
        open_quick(tmp_path)


def test_an_older_copy_of_the_database_is_refused(tmp_path: Path) -> None:
    journal, _ = open_quick(tmp_path)
    journal.write([entry("a")])
    journal.close()
    shutil.copy(tmp_path / "jobs.sqlite", tmp_path / "copy")
    journal, _ = open_quick(tmp_path)
    journal.write([entry("b")])
    journal.close()
    shutil.move(tmp_path / "copy", tmp_path / "jobs.sqlite")
    with pytest.raises(JournalDamaged, match=r"it ends at row \d+, and \d+ was acknowledged"):
        open_quick(tmp_path)


@pytest.mark.parametrize(
    ("was", "becomes"),
    [(b"number INTEGER PRIMARY", b"number INTEGER PRIMARX"), (b"CREATE TABLE rows", b"CREATE TABL\xfe rows")],
)
def test_a_table_that_is_defined_otherwise_is_refused(tmp_path: Path, was: bytes, becomes: bytes) -> None:
    """Its row numbers may be none, and SQLite's message may be no text."""
    journal, _ = open_quick(tmp_path)
    journal.write([entry("a")])
    journal.close()
    database = tmp_path / "jobs.sqlite"
    whole = database.read_bytes()
    assert was in whole
    database.write_bytes(whole.replace(was, becomes))
    with pytest.raises(JournalDamaged):
        open_quick(tmp_path)


# -- damage


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal as a kill leaves it: some of it in the database, some in the WAL."""
    folder = tmp_path_factory.mktemp("journal")
    live = folder / "live"
    journal, _ = open_quick(live)
    journal.write([entry("a", body=b'{"name":"first"}'), entry("b", body=bytes(range(256)) * 3), entry("x")])
    journal.close()
    journal, _ = open_quick(live)
    journal.write([entry("c")])
    journal.write([entry("a", "started"), entry("x", FORGOTTEN)])
    shutil.copytree(live, folder / "killed")
    journal.close()
    return folder / "killed"


WHOLE = {
    entry("a", body=b'{"name":"first"}'),
    entry("b", body=bytes(range(256)) * 3),
    entry("c"),
    entry("a", "started"),
}


def damage(killed: Path, folder: Path, name: str, alter: Callable[[bytearray], None]) -> bool:
    """Whether the altered journal opens, with everything; a refusal must leave it as it is."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(killed, folder)
    path = folder / name
    data = bytearray(path.read_bytes())
    alter(data)
    path.write_bytes(data)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    try:
        found = found_in(folder)
    except JournalDamaged as refusal:
        told = str(refusal)
        assert str(folder) in told and "Restore" in told
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
        return False
    assert set(found) == WHOLE, f"{name} opened without what was acknowledged"
    return True


def flip(bit: int) -> Callable[[bytearray], None]:
    def alter(data: bytearray) -> None:
        data[bit // 8] ^= 1 << bit % 8

    return alter


def cut(length: int) -> Callable[[bytearray], None]:
    def alter(data: bytearray) -> None:
        del data[length:]

    return alter


def cases(killed: Path) -> Iterator[tuple[str, str, int]]:
    for path in sorted(killed.iterdir()):
        size = path.stat().st_size
        yield from ((path.name, "cut", length) for length in range(size))
        yield from ((path.name, "flip", bit) for bit in range(size * 8))


def sweep(killed: Path, folder: Path, chosen: list[tuple[str, str, int]]) -> int:
    """How many of the cases open."""
    kinds = {"cut": cut, "flip": flip}
    return sum(damage(killed, folder, name, kinds[kind](place)) for name, kind, place in chosen)


def test_damage_is_refused_loudly_or_harmless(killed: Path, tmp_path: Path) -> None:
    assert {path.name for path in killed.iterdir()} == {"acknowledged", "jobs.sqlite", "jobs.sqlite-wal", "lock"}
    every = list(cases(killed))
    opened = sweep(killed, tmp_path / "j", random.Random(3).sample(every, SAMPLE))
    assert 0 < opened < SAMPLE


@pytest.mark.long
def test_every_cut_and_every_flipped_bit(killed: Path, tmp_path: Path) -> None:
    every = list(cases(killed))
    opened = sweep(killed, tmp_path / "j", every)
    print(f"\n{len(every)} damaged journals: {opened} opened whole, {len(every) - opened} refused")


# -- disks that refuse


@pytest.mark.parametrize("ask", [lambda journal: journal.read("a"), Journal.entries], ids=["one", "all"])
def test_a_journal_that_was_damaged_while_the_disk_refused_takes_nothing_more(
    tmp_path: Path, ask: Callable[[Journal], object]
) -> None:
    """What it took would be acknowledged, and the next start refuse all of it."""
    fuse = Fuse()
    journal, _ = Journal.open(tmp_path, 1, FaultyDisk(fuse), quick_connect)
    journal.write([entry("a", body=b"as it was")])
    fuse.fails_at, fuse.heals_at = fuse.steps + 1, fuse.steps + 2
    with pytest.raises(NotDurable):
        journal.write([entry("b")])
    with contextlib.closing(sqlite3.connect(tmp_path / "jobs.sqlite", isolation_level=None)) as connection:
        connection.execute("UPDATE rows SET body = ? WHERE job = 'a'", (b"as it is now",))
    for _ in range(2):
        with pytest.raises(JournalDamaged):
            ask(journal)
    with pytest.raises(JournalDamaged):
        journal.write([entry("c")])
    journal.close()


def story(folder: Path, disk: QuickDisk, connect: Callable[[Path], object]) -> tuple[set[Entry], set[Entry]]:
    """Open and write, whatever fails: what was acknowledged, and what was tried."""
    sure: set[Entry] = set()
    tried: set[Entry] = set()
    try:
        journal, _ = Journal.open(folder, 1, disk, connect)  # type: ignore[arg-type]
    except NotDurable:
        return sure, tried
    for name in ("a", "b", "c", "d", "e", "f"):
        tried.add(entry(name))
        try:
            journal.write([entry(name)])
        except NotDurable as refusal:
            told = str(refusal)
            assert "cannot be written" in told and "Make room" in told
        else:
            sure.add(entry(name))
    journal.close()
    return sure, tried


@pytest.mark.parametrize("lasts", [0, 1, 2, 5], ids=["for good", "once", "twice", "five times"])
def test_each_step_of_the_disk_may_fail(tmp_path: Path, lasts: int) -> None:
    for number in range(1, 1000):
        folder = tmp_path / str(number)
        fuse = Fuse(number, number + lasts if lasts else 0)
        sure, tried = story(folder, FaultyDisk(fuse), quick_connect)
        assert sure <= set(found_in(folder)) <= tried
        assert not list(folder.glob("*.writing"))
        if not fuse.blown:
            assert len(sure) == 6
            return
    raise AssertionError("the story never ended without a failure")


@pytest.mark.parametrize("lies", [False, True], ids=["failed", "failed but done"])
@pytest.mark.parametrize("lasts", [0, 1, 2, 5], ids=["for good", "once", "twice", "five times"])
def test_each_statement_may_fail(tmp_path: Path, lasts: int, lies: bool) -> None:
    for number in range(1, 1000):
        folder = tmp_path / str(number)
        fuse = Fuse(number, number + lasts if lasts else 0)
        sure, tried = story(folder, QUICK, faulty_connect(fuse, lies))
        assert sure <= set(found_in(folder)) <= tried
        if not fuse.blown:
            assert len(sure) == 6
            return
    raise AssertionError("the story never ended without a failure")


def test_a_disk_that_has_room_again_is_used_again(tmp_path: Path) -> None:
    fuse = Fuse()
    journal, _ = Journal.open(tmp_path, 1, FaultyDisk(fuse), quick_connect)
    journal.write([entry("a")])
    fuse.fails_at = fuse.steps + 1
    for _ in range(3):
        with pytest.raises(NotDurable, match="no space left"):
            journal.write([entry("b")])
    fuse.fails_at = 0
    journal.write([entry("c")])
    journal.close()
    assert found_in(tmp_path) == [entry("a"), entry("c")]
