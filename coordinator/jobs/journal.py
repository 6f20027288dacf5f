"""Journal: entries of jobs that are on the disk when `write` returns, and are all there again after `open`.

It does not know what a job is; it knows that an entry belongs to one, and which kinds make its earlier entries
needless.  SQLite is used only here.  The format is in docs/decisions/0011-the-journal.md.

    jobs.sqlite        rows numbered without gaps; each carries a checksum over the one before it and its own content
    acknowledged       the newest number that was acknowledged, and its row's checksum

Why two files: a database that lost its newest rows (a cut or altered WAL is silently shortened by SQLite) looks whole;
the second file says how long it has to be.  To add a kind of entry, just write it; if it replaces what was said of its
job before, name it in WHOLE.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import sqlite3
import struct
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from wire.errors import ConfigError, JournalDamaged, NotDurable
from wire.limits import MIB
from wire.system.atomic_files import WRITING, Disk
from wire.system.file_lock import FileLock
from wire.system.private_folder import private_folder
from wire.system.steady_log import steady_logger

log = steady_logger("graph_mesh.journal")

FORMAT = 1
BEGIN = "begin"  # the first row: the epoch, and the checksum the chain goes on from
FORGOTTEN = "forgotten"  # the job and all its entries may go
WHOLE = frozenset(  # says all of its job: earlier entries of it may go
    {"accepted", "ended", "workers", "session", "session-record", "session-driver", FORGOTTEN}
)
DEAD_ROWS_MIN, DEAD_BYTES_MIN = 256, 16 * MIB  # less that is needless is not worth rewriting the rest
DISK_FAULTS = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY})
_NONE = bytes(16)

Connect = Callable[[Path], sqlite3.Connection]


@dataclass(frozen=True, slots=True)
class Entry:
    """An event of a job; `body` is the caller's own."""

    job: str
    kind: str
    body: bytes


@dataclass(frozen=True, slots=True)
class _Row:
    number: int
    entry: Entry
    chain: bytes  # over the row before and this one


class Journal:
    """The journal of one folder; `open` makes it.  Methods may be called from any thread."""

    def __init__(self, folder: Path, disk: Disk, connect: Connect) -> None:
        self.epoch = 0
        self._folder = folder
        self._disk = disk
        self._connect = connect
        self._database = folder / "jobs.sqlite"
        self._newest = folder / "acknowledged"
        self._lock = FileLock(folder / "lock")
        self._one_at_a_time = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._number = 0
        self._chain = _NONE
        self._live: dict[str, tuple[int, int]] = {}  # rows that are needed, and the bytes of them, by job
        self._stored = self._stored_bytes = 0

    @staticmethod
    def open(
        folder: Path, epoch_min: int = 1, disk: Disk | None = None, connect: Connect | None = None
    ) -> tuple[Journal, list[Entry]]:
        """The journal in `folder`, with a new epoch of at least `epoch_min`, and every needed entry, oldest first.

        JournalDamaged, and nothing in the folder altered, if any of it is missing or changed; ConfigError if the folder
        is used by another process; NotDurable if the disk refuses.
        """
        journal = Journal(folder, disk or Disk(), connect or connect_sqlite)
        try:
            private_folder(folder)
            if not journal._lock.try_acquire():
                raise ConfigError(
                    f"another coordinator keeps its jobs in {folder}",
                    next_step="Stop that one, or give this one another --name or --state-dir",
                )
            return journal, journal._begin(epoch_min)
        except (sqlite3.Error, OSError) as error:
            journal.close()
            raise _not_durable(folder, error) from None
        except BaseException:
            journal.close()
            raise

    def write(self, entries: Sequence[Entry]) -> None:
        """Add entries; they are on the disk when this returns.

        NotDurable if the disk refuses: then none of them counts, and the next call tries the disk anew.
        """
        with self._one_at_a_time:
            try:
                if self._connection is None:
                    self._recover()
                self._append(entries)
            except (sqlite3.Error, OSError) as error:
                self._disconnect()
                raise _not_durable(self._folder, error) from None
            except JournalDamaged:
                self._disconnect()
                raise
            self._compact_if_due()

    def read(self, job: str) -> Entry | None:
        """The newest entry of a job; NotDurable if the disk refuses, JournalDamaged if it has altered what it had."""
        with self._one_at_a_time:
            try:
                if self._connection is None:
                    self._recover()
                assert self._connection is not None
                row = self._connection.execute(
                    "SELECT job, kind, body FROM rows WHERE job = ? ORDER BY number DESC LIMIT 1", (job,)
                ).fetchone()
            except (sqlite3.Error, OSError) as error:
                self._disconnect()
                raise _not_durable(self._folder, error) from None
            except JournalDamaged:
                self._disconnect()
                raise
        return Entry(*row) if row else None

    def entries(self) -> list[Entry]:
        """Every needed entry, oldest first; raises as `read` does."""
        with self._one_at_a_time:
            try:
                if self._connection is None:
                    self._recover()
                assert self._connection is not None
                return [row.entry for row in self._needed_now(self._connection)]
            except (sqlite3.Error, OSError) as error:
                self._disconnect()
                raise _not_durable(self._folder, error) from None
            except JournalDamaged:
                self._disconnect()
                raise

    def jobs(self) -> frozenset[str]:
        """The jobs that it has entries of."""
        with self._one_at_a_time:
            return frozenset(self._live)

    def close(self) -> None:
        """Close the database, and unlock the folder."""
        with self._one_at_a_time:
            self._disconnect()
            self._lock.release()

    # -- opening

    def _begin(self, epoch_min: int) -> list[Entry]:
        self._clear_rubbish()
        known = self._read_acknowledged()
        rows: list[_Row] = []
        if known is None:
            if self._database.exists():
                raise self._damaged(f"{self._newest} is missing")
            self._disk.write_whole(self._newest, [_acknowledgement(0, _NONE)])
        elif known == (0, _NONE):
            self._remove_database()  # a start that got no further; nothing was acknowledged
        else:
            rows = self._verified(*known)
        self.epoch = max(epoch_min, 1, *(_epoch(row) + 1 for row in rows[:1]))
        needed = _needed(rows)
        if rows:
            for path in self._database_files():
                self._disk.sync_file(path)
            self._acknowledge(rows[-1])  # also what the last process wrote and could not acknowledge any more
        self._connection = self._connect(self._database)
        self._count(needed)
        self._rewrite(needed)
        return [row.entry for row in needed]

    def _verified(self, number: int, chain: bytes) -> list[_Row]:
        """All rows, unless anything acknowledged is missing or altered.

        They are read from a copy, because SQLite tidies what it opens, and what is refused must stay as it is.
        """
        if not self._database.exists():
            raise self._damaged(f"{self._database} is missing")
        with tempfile.TemporaryDirectory(dir=self._folder, prefix="checking-") as scratch:
            for path in self._database_files():
                shutil.copyfile(path, Path(scratch) / path.name)
            try:
                connection = self._connect(Path(scratch) / self._database.name)
                try:
                    return self._read(connection, number, chain)
                finally:
                    connection.close()
            except (sqlite3.Error, UnicodeError) as error:  # SQLite's messages may quote what is damaged
                raise self._unreadable(error) from None

    def _read(self, connection: sqlite3.Connection, number: int, chain: bytes) -> list[_Row]:
        """Every row, if row `number` is there with this checksum and all are as they were written."""
        try:
            rows = _rows(connection)
        except (MemoryError, UnicodeError, ValueError, OverflowError, sqlite3.Error) as error:
            raise self._unreadable(error) from None
        wrong = _wrong_in(rows, number, chain)
        if wrong:
            raise self._damaged(f"{self._database}: {wrong}")
        return rows

    def _read_acknowledged(self) -> tuple[int, bytes] | None:
        try:
            text = self._newest.read_bytes()
        except FileNotFoundError:
            return None
        with contextlib.suppress(ValueError):
            _, number_text, chain_text, _ = text.decode("ascii").split()
            number, chain = int(number_text), bytes.fromhex(chain_text)
            if text == _acknowledgement(number, chain):
                return number, chain
        raise self._damaged(f"{self._newest} is altered")

    def _unreadable(self, error: Exception) -> Exception:
        """The error itself where the disk is at fault, JournalDamaged where what is on it is."""
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in DISK_FAULTS:
            return error
        return self._damaged(f"{self._database} is not readable", str(error))

    def _damaged(self, what: str, cause: str = "") -> JournalDamaged:
        return JournalDamaged(
            f"the journal of jobs is damaged: {what}",
            cause=cause,
            next_step=f"Restore {self._folder} from a copy, or move it away to start without its jobs",
        )

    def _clear_rubbish(self) -> None:
        for path in self._folder.glob("checking-*"):
            shutil.rmtree(path)
        self._disk.remove(self._newest.with_name(self._newest.name + WRITING))

    def _remove_database(self) -> None:
        for path in self._database_files():
            self._disk.remove(path)

    def _database_files(self) -> list[Path]:
        names = (self._database.with_name(self._database.name + end) for end in ("", "-wal", "-shm", "-journal"))
        return [path for path in names if path.exists()]

    # -- writing

    def _append(self, entries: Iterable[Entry]) -> None:
        assert self._connection is not None
        rows = list(_chained(self._number, self._chain, entries))
        with _transaction(self._connection):
            _insert(self._connection, rows)
        self._acknowledge(rows[-1])
        self._stored += len(rows)
        self._stored_bytes += sum(len(row.entry.body) for row in rows)
        self._count(rows)

    def _acknowledge(self, row: _Row) -> None:
        """Every row up to this one is on the disk; it counts once that is said."""
        self._disk.write_whole(self._newest, [_acknowledgement(row.number, row.chain)])
        self._number, self._chain = row.number, row.chain

    def _recover(self) -> None:
        """Connect again after the disk refused.  What was acknowledged is written again, since such a disk may have
        dropped it from its cache."""
        self._disk.write_whole(self._newest, [_acknowledgement(self._number, self._chain)])
        self._connection = connection = self._connect(self._database)
        rows = self._read(connection, self._number, self._chain)
        if rows[0].number <= self._number:  # else the refusal came after all rows were rewritten, none added
            rows = [row for row in rows if row.number <= self._number]
        self._number, self._chain = rows[-1].number, rows[-1].chain
        self._live.clear()
        self._count(needed := _needed(rows))
        self._rewrite(needed)

    def _compact_if_due(self) -> None:
        needed = sum(rows for rows, _ in self._live.values())
        needed_bytes = sum(size_bytes for _, size_bytes in self._live.values())
        few = self._stored - needed < max(DEAD_ROWS_MIN, needed)
        if few and self._stored_bytes - needed_bytes < max(DEAD_BYTES_MIN, needed_bytes):
            return
        assert self._connection is not None
        try:
            _check(self._connection)
            self._rewrite(self._needed_now(self._connection))
        except (sqlite3.Error, OSError, ValueError) as error:  # what was written stays; the next write tries again
            log.warning("the journal in %s was not compacted: %s", self._folder, error)
            self._disconnect()

    def _needed_now(self, connection: sqlite3.Connection) -> Iterator[_Row]:
        return _read_needed(connection, {job: rows for job, (rows, _) in self._live.items()})

    def _rewrite(self, needed: Iterable[_Row]) -> None:
        """One transaction that leaves a beginning and the rows that are needed, with numbers that go on.

        One row at a time, and `needed` may read them so: all jobs that are kept would be much to have in memory.
        """
        assert self._connection is not None
        connection, last = self._connection, self._number
        begin = Entry("", BEGIN, json.dumps({"epoch": self.epoch, "after": self._chain.hex()}).encode())

        def moved() -> Iterator[Entry]:
            yield begin
            for row in needed:
                connection.execute("DELETE FROM rows WHERE number = ?", (row.number,))
                yield row.entry

        with _transaction(connection):
            connection.execute(
                "CREATE TABLE IF NOT EXISTS rows (number INTEGER PRIMARY KEY, job TEXT NOT NULL, kind TEXT NOT NULL,"
                " body BLOB NOT NULL, chain BLOB NOT NULL)"
            )
            connection.execute(f"PRAGMA user_version = {FORMAT}")
            connection.execute("DELETE FROM rows WHERE number > ?", (last,))
            for row in _chained(last, self._chain, moved()):
                _insert(connection, [row])
            connection.execute("DELETE FROM rows WHERE number <= ?", (last,))
        self._acknowledge(row)
        self._stored = row.number - last
        self._stored_bytes = sum(size_bytes for _, size_bytes in self._live.values())

    def _count(self, rows: Iterable[_Row]) -> None:
        """Keep the number and the bytes of needed rows by job; tidying does not change them."""
        for row in rows:
            job, kind = row.entry.job, row.entry.kind
            before, before_bytes = (0, 0) if kind in WHOLE else self._live.get(job, (0, 0))
            if kind == FORGOTTEN:
                self._live.pop(job, None)
            else:
                self._live[job] = before + 1, before_bytes + len(row.entry.body)

    def _disconnect(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):  # it ends with the handle, whatever the disk says
                self._connection.close()
            self._connection = None


def connect_sqlite(path: Path) -> sqlite3.Connection:
    """A connection that syncs every commit and locks out other processes."""
    connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    try:
        for pragma in (
            "locking_mode = EXCLUSIVE",  # and so no shared-memory file beside the database
            "journal_mode = WAL",
            "synchronous = FULL",
            "fullfsync = ON",
            "cache_size = -256",  # KiB; rows are written and hardly ever read
            "cell_size_check = ON",
            "trusted_schema = OFF",
        ):
            connection.execute(f"PRAGMA {pragma}").fetchall()
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):  # some errors have rolled back already
            connection.execute("ROLLBACK")
        raise


def _check(connection: sqlite3.Connection) -> None:
    """sqlite3.Error or ValueError if the file contradicts itself."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != FORMAT:
        raise ValueError(f"format {version}, this version reads {FORMAT}")
    (verdict,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if verdict != "ok":
        raise ValueError(verdict)


def _rows(connection: sqlite3.Connection) -> list[_Row]:
    """Every row as stored; raises what `_check` does."""
    _check(connection)
    rows = []
    for number, job, kind, body, chain in connection.execute("SELECT * FROM rows ORDER BY number"):
        if [type(value) for value in (number, job, kind, body, chain)] != [int, str, str, bytes, bytes]:
            raise ValueError(f"row {number} holds values of other types")
        rows.append(_Row(number, Entry(job, kind, body), chain))
    return rows


def _read_needed(connection: sqlite3.Connection, live: Mapping[str, int]) -> Iterator[_Row]:
    """The rows that are needed, oldest first; each is read when its turn comes."""
    left, numbers = dict(live), []
    for number, job in connection.execute("SELECT number, job FROM rows ORDER BY number DESC"):
        if left.get(job):
            left[job] -= 1
            numbers.append(number)
    for number in reversed(numbers):
        row = connection.execute("SELECT job, kind, body, chain FROM rows WHERE number = ?", (number,)).fetchone()
        yield _Row(number, Entry(*row[:3]), row[3])


def _wrong_in(rows: Sequence[_Row], number: int, chain: bytes) -> str:
    """What contradicts the newest acknowledged row, or ""."""
    if not rows or rows[0].entry.kind != BEGIN:
        return "its beginning is missing"
    before = rows[0].number - 1
    try:
        after = bytes.fromhex(json.loads(rows[0].entry.body)["after"])
    except (ValueError, KeyError, TypeError):
        return "its beginning is altered"
    for row, expected in zip(rows, _chained(before, after, (row.entry for row in rows)), strict=True):
        if row != expected:
            return f"row {expected.number} is altered or missing"
    chains = {before: after} | {row.number: row.chain for row in rows}
    if number not in chains:
        return f"it ends at row {rows[-1].number}, and {number} was acknowledged"
    return "" if chains[number] == chain else f"row {number} is not the one that was acknowledged"


def _needed(rows: Iterable[_Row]) -> list[_Row]:
    """The rows that later ones do not replace, oldest first."""
    by_job: dict[str, list[_Row]] = {}
    for row in rows:
        if row.entry.kind in WHOLE:
            by_job.pop(row.entry.job, None)
        if row.entry.kind not in (BEGIN, FORGOTTEN):
            by_job.setdefault(row.entry.job, []).append(row)
    return sorted((row for rows_of_job in by_job.values() for row in rows_of_job), key=lambda row: row.number)


def _chained(number: int, chain: bytes, entries: Iterable[Entry]) -> Iterator[_Row]:
    """Rows for `entries` that go on after row `number`."""
    for entry in entries:
        number += 1
        job, kind = entry.job.encode(), entry.kind.encode()
        lengths = struct.pack(">QQQQ", number, len(job), len(kind), len(entry.body))
        chain = hashlib.blake2b(b"".join((chain, lengths, job, kind, entry.body)), digest_size=16).digest()
        yield _Row(number, entry, chain)


def _insert(connection: sqlite3.Connection, rows: Iterable[_Row]) -> None:
    values = ((row.number, row.entry.job, row.entry.kind, row.entry.body, row.chain) for row in rows)
    connection.executemany("INSERT INTO rows VALUES (?, ?, ?, ?, ?)", values)


def _epoch(begin: _Row) -> int:
    return int(json.loads(begin.entry.body)["epoch"])


def _acknowledgement(number: int, chain: bytes) -> bytes:
    text = f"{FORMAT} {number} {chain.hex()}"
    return f"{text} {hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}\n".encode()


def _not_durable(folder: Path, error: Exception) -> NotDurable:
    return NotDurable(
        f"the journal in {folder} cannot be written",
        cause=f"{type(error).__name__}: {error}",
        next_step="Make room on that disk, or replace it; nothing new is accepted until it can be written",
    )
