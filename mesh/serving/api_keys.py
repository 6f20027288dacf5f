"""API keys: who may ask a server, as a file that holds hashes of the keys and not the keys.

A key is 256 random bits, so that a plain hash of it tells nothing.  The file is read again when it has changed: a key
that is created or removed holds from the next request on.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wire.errors import ConfigError, InputError, StorageError
from wire.system.atomic_files import Disk
from wire.system.file_lock import FileLock
from wire.system.private_folder import private_folder

PREFIX = "gm-"
NAME_CHARACTERS_MAX = 64
KEYS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A key as it is stored: its id, what it is for, its hash in hex, and since when it holds."""

    key_id: str
    name: str
    digest: str
    created_s: float


class ApiKeys:
    """The keys in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._records: tuple[KeyRecord, ...] = ()

    def records(self) -> tuple[KeyRecord, ...]:
        """Every key, the oldest first; StorageError if the file is damaged."""
        stamp = self._now()
        if stamp != self._stamp:
            self._records, self._stamp = self._read(), stamp
        return self._records

    def create(self, name: str) -> str:
        """Make a key: its text, which is shown this once."""
        if not name or len(name) > NAME_CHARACTERS_MAX or not name.isprintable():
            raise InputError(f"a key's name has 1 to {NAME_CHARACTERS_MAX} characters that print, got {name!r:.80}")
        text = PREFIX + secrets.token_urlsafe(32)
        with self._changing() as records:
            if len(records) >= KEYS_MAX:
                raise InputError(f"there are {KEYS_MAX} keys already", next_step="Remove some that nobody uses")
            self._write((*records, KeyRecord(secrets.token_hex(4), name, _digest(text), time.time())))
        return text

    def remove(self, key_id: str) -> KeyRecord:
        """Remove a key by its id; InputError if there is none."""
        with self._changing() as records:
            found = next((record for record in records if record.key_id == key_id), None)
            if found is None:
                known = ", ".join(record.key_id for record in records) or "none"
                raise InputError(f"there is no key {key_id!r}", next_step=f"Known: {known}")
            self._write(tuple([record for record in records if record is not found]))
        return found

    def holder(self, text: str) -> KeyRecord | None:
        """The key of this text, None if there is none.  It takes as long for any text."""
        digest = _digest(text)
        found = None
        for record in self.records():
            if hmac.compare_digest(record.digest, digest):
                found = record
        return found

    # -- the file

    @contextlib.contextmanager
    def _changing(self) -> Iterator[tuple[KeyRecord, ...]]:
        """The keys while this process alone changes them; ConfigError where that cannot be written."""
        try:
            private_folder(self._path.parent)
            with FileLock(self._path.with_suffix(".lock")):
                yield self._read()
        except OSError as error:
            raise ConfigError(f"cannot write {self._path}", cause=str(error)) from None

    def _now(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"the keys in {self._path} cannot be read", cause=str(error)) from None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> tuple[KeyRecord, ...]:
        try:
            data = json.loads(self._path.read_text("utf-8"))
            return tuple([_record(each) for each in data["keys"]])
        except FileNotFoundError:
            return ()
        except (OSError, ValueError, KeyError, TypeError) as error:
            step = "Remove it, and create keys anew"
            raise StorageError(f"the keys in {self._path} cannot be read", cause=str(error), next_step=step) from None

    def _write(self, records: tuple[KeyRecord, ...]) -> None:
        text = json.dumps({"keys": [asdict(record) for record in records]}, indent=1)
        Disk().write_whole(self._path, [text.encode()])


def _record(fields: dict[str, Any]) -> KeyRecord:
    """The record with these fields; ValueError if its digest is none, which would fail at every request."""
    record = KeyRecord(**fields)
    if len(bytes.fromhex(record.digest)) != hashlib.sha256().digest_size:
        raise ValueError(f"the digest of {record.name!r:.80} is no SHA-256")
    return record


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
