"""Job store: a coordinator daemon's jobs on disk: entries in the journal, large values in files beside it.

An entry belongs to a job and may have values; what either means, the store does not know.  Entries that come together
share one commit, and the event loop never waits for the disk.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from wire.errors import LimitExceeded, NotDurable, StorageError
from wire.ir.codec import hash_bytes
from wire.limits import KIB
from wire.protocol.messages.standby import JOURNAL_BYTES_MAX
from wire.system.atomic_files import Disk
from wire.system.steady_log import steady_logger
from wire.system.tasks import Tasks, unheard
from wire.units import need_text, room_text

from .content_files import RECENT_BYTES_MAX, ContentFiles
from .journal import FORGOTTEN, WHOLE, Connect, Entry, Journal

log = steady_logger("graph_mesh.journal")

T = TypeVar("T")
Fetch = Callable[[bytes, int], Awaitable[memoryview]]
ADDRESS_BYTES = 32
IN_ENTRY_BYTES_MAX = 4096  # a file costs two syncs, a longer entry next to nothing
TEXT_ON_LOOP_BYTES_MAX = 256 * KIB
IN_ENTRY_TOTAL_BYTES_MAX = JOURNAL_BYTES_MAX // 2  # of all values: as text they take a third more
PACKED_AT = 64  # bytes, of which the places in a file of small values are multiples


@dataclass(frozen=True, slots=True)
class Content:
    """A leaf among an entry's values: bytes, and their address if a client sent that, and so may send it again."""

    data: memoryview
    address: bytes | None = None
    again: bool = True  # whether it may come again, if it has an address


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """An entry that an earlier run wrote."""

    job: str
    kind: str
    fields: dict[str, Any]


class JobStore:
    """The store of one folder; `open` makes it."""

    def __init__(self, journal: Journal, contents: ContentFiles) -> None:
        self.epoch = journal.epoch
        self.replicate: Callable[[Sequence[Entry]], Awaitable[None]] | None = None
        self._journal = journal
        self._contents = contents
        self._held: dict[str, bytes] = {}  # addresses by job, joined: lists would be a tenth of what is kept of jobs
        self._doubtful: list[bytes] = []  # of entries that may be on the disk all the same, until another one surely is
        self._queue: list[tuple[Entry, asyncio.Future[None] | None]] = []
        self._latest_pack: tuple[str, memoryview] | None = None
        self._reading_pack = asyncio.Lock()
        self._tasks = Tasks()
        self._writing: asyncio.Task[None] | None = None
        self._writer = ThreadPoolExecutor(1, "journal")  # one thread: SQLite's memory stays in one arena

    @staticmethod
    def open(
        folder: Path,
        epoch_min: int,
        disk: Disk | None = None,
        connect: Connect | None = None,
        recent_bytes_max: int = RECENT_BYTES_MAX,
    ) -> tuple[JobStore, list[StoredEntry]]:
        """Open the store of a folder; also its entries, oldest first.  Raises what Journal.open does."""
        disk = disk or Disk()
        journal, entries = Journal.open(folder, epoch_min, disk, connect)
        store = JobStore(journal, ContentFiles(folder / "content", disk, recent_bytes_max))
        stored = [StoredEntry(entry.job, entry.kind, json.loads(entry.body)) for entry in entries]
        for entry in stored:
            if held := b"".join(addresses_in(entry.fields)):
                store._held[entry.job] = store._held.get(entry.job, b"") + held
        try:
            store._contents.restore(address for held in store._held.values() for address in _split_addresses(held))
        except OSError as error:
            journal.close()
            raise NotDurable(f"{folder / 'content'} cannot be used", cause=str(error)) from None
        return store, stored

    async def save(self, job: str, kind: str, fields: Mapping[str, Any], values: Any = None) -> Any:
        """Keep an entry whose `values` is a tree of dicts, lists and Content; the tree that `load` takes leaves of.

        Returns once it is on the disk.  Raises NotDurable if the disk refuses, and LimitExceeded for an entry that no
        standby could be sent; then the entry does not count.
        """
        held: list[bytes] = []
        try:
            make = partial(self._entry_of, job, kind, fields, values, held)
            entry, kept = await asyncio.to_thread(make) if _long(values) else make()
            await self._write(entry)
        except OSError as error:
            await self._release(held)
            raise NotDurable("a job's values cannot be written", cause=str(error), next_step="Make room") from None
        except LimitExceeded:
            await self._release(held)
            raise
        except StorageError:
            self._doubtful += held
            await asyncio.to_thread(self._contents.forget)
            raise
        await self._release_doubtful()
        if kind in WHOLE:
            former = self._held.pop(job, b"")
            if held:
                self._held[job] = b"".join(held)
            await self._release(_split_addresses(former))
        return kept

    def save_later(self, job: str, kind: str) -> None:
        """Save an entry that nobody waits for: it goes to the disk with the next one."""
        self._queue.append((Entry(job, kind, b"{}"), None))

    async def read(self, job: str) -> dict[str, Any]:
        """The fields of a job's newest entry, with its `values`."""
        entry = await self._in_writer(self._journal.read, job)
        if entry is None:
            raise NotDurable(f"the journal says nothing of {job}", next_step="Start the coordinator anew")
        fields: dict[str, Any] = json.loads(entry.body)
        return fields

    async def load(self, leaf: Mapping[str, Any]) -> memoryview:
        """The bytes of a leaf; BlobMissing or BlobCorrupt."""
        if "data" in leaf:
            return memoryview(base64.b64decode(leaf["data"]))
        if "pack" in leaf:
            pack = await self._pack(leaf["pack"], leaf["pack_bytes"])
            return pack[leaf["begin"] : leaf["begin"] + leaf["length"]]
        return await asyncio.to_thread(self._contents.load, bytes.fromhex(leaf["address"]), leaf["size_bytes"])

    async def _pack(self, address: str, size_bytes: int) -> memoryview:
        """The file of many small values, read once for those that are asked for together."""
        async with self._reading_pack:
            if self._latest_pack is None or self._latest_pack[0] != address:
                data = await asyncio.to_thread(self._contents.load, bytes.fromhex(address), size_bytes)
                self._latest_pack = address, data
            return self._latest_pack[1]

    async def receive(self, address: bytes, size_bytes: int, fill: Callable[[int], Awaitable[None]]) -> memoryview:
        """Content that `fill` writes into an open file, so that it takes no memory; held until `release`.

        NotDurable if the disk refuses, BlobCorrupt if it is something else.
        """
        arriving = self._contents.arriving(address, size_bytes)
        try:
            handle = await asyncio.to_thread(arriving.__enter__)
            try:
                await fill(handle)
            except BaseException as error:
                with contextlib.suppress(type(error)):
                    arriving.__exit__(type(error), error, error.__traceback__)
                raise
            await self._take_in(address, arriving)
        except OSError as error:
            raise NotDurable("a job's values cannot be written", cause=str(error), next_step="Make room") from None
        held = self._contents.view(address)
        if held is None:
            raise NotDurable(f"content {address.hex()[:16]} is gone as soon as it was written")
        return held

    async def _take_in(self, address: bytes, arriving: AbstractContextManager[int]) -> None:
        """Hold content that is there as a whole.  A thread does it to the end, also where nobody waits for it any more:
        then it is let go again."""

        async def take() -> OSError | None:
            try:
                await asyncio.to_thread(arriving.__exit__, None, None, None)
            except OSError as error:
                return error
            return None

        def unwanted(taking: asyncio.Task[OSError | None]) -> None:
            if not taking.cancelled() and taking.exception() is None and taking.result() is None:
                self._tasks.run("releasing content", self._release([address]), unheard)

        taking = self._tasks.run("taking content in", take(), unheard)
        try:
            refused = await asyncio.shield(taking)
        except asyncio.CancelledError:
            taking.add_done_callback(unwanted)
            raise
        if refused is not None:
            raise refused

    async def release(self, addresses: list[bytes]) -> None:
        """Undo one `receive` each."""
        await self._release(addresses)

    async def find(self, address: bytes, size_bytes: int) -> memoryview | None:
        """Content that another job has on the disk, by its address: weights come from a client once."""
        return await asyncio.to_thread(self._contents.find, address, size_bytes)

    async def entries(self) -> list[Entry]:
        """Every needed entry, oldest first; those of writes that had ended before, and perhaps no others."""
        return await self._in_writer(self._journal.entries)

    def view(self, address: bytes) -> memoryview | None:
        """Content by its address, for another coordinator's store; None if it is not here."""
        return self._contents.view(address)

    async def copy(self, entries: Sequence[Entry], fetch: Fetch, whole: bool = False) -> None:
        """Write entries of another coordinator's store, which become everything that is here if they are the `whole`.

        `fetch` gets the content that they name and that is not here, by its address and size.  All of them are on the
        disk when this returns; raises what `save` does, and then none of them counts.
        """
        held = await asyncio.to_thread(_named_by_entry, entries)  # of a whole journal, which may be 100 MB
        put: list[bytes] = []
        try:
            for (address, size_bytes), count in Counter(pair for pairs in held for pair in pairs).items():
                here = await asyncio.to_thread(self._contents.find, address, size_bytes)
                data = here if here is not None else await fetch(address, size_bytes)
                for _ in range(count):
                    await asyncio.to_thread(self._contents.put, address, data)
                    put.append(address)
        except OSError as error:
            await self._release(put)
            raise NotDurable("a job's values cannot be written", cause=str(error), next_step="Make room") from None
        except Exception:
            await self._release(put)
            raise
        there = frozenset(entry.job for entry in entries)
        gone = sorted(self._journal.jobs() - there) if whole else []
        everything = [*(Entry(job, FORGOTTEN, b"{}") for job in gone), *entries]
        try:
            if everything:
                await self._in_writer(self._journal.write, everything)
        except StorageError:
            self._doubtful += put
            raise
        await self._release_doubtful()
        former = b"".join(self._held.pop(job, b"") for job in gone)
        for entry, pairs in zip(entries, held, strict=True):
            if entry.kind in WHOLE:
                former += self._held.pop(entry.job, b"")
            if pairs:
                self._held[entry.job] = self._held.get(entry.job, b"") + b"".join(address for address, _ in pairs)
        await self._release(_split_addresses(former))

    async def close(self) -> None:
        """Write what is in flight, and unlock the folder."""
        await (self._writing or self._write_all())
        await self._in_writer(self._journal.close)
        self._writer.shutdown()

    # -- helpers

    def _entry_of(
        self, job: str, kind: str, fields: Mapping[str, Any], values: Any, held: list[bytes]
    ) -> tuple[Entry, Any]:
        kept, pack = self._put(values, held)
        named = {} if pack is None else {"pack": pack}
        body = json.dumps({**fields, "values": kept, **named}).encode()
        check_size(job, len(body))
        return Entry(job, kind, body), kept

    def _put(self, values: Any, held: list[bytes]) -> tuple[Any, Any]:
        """The tree for an entry, and the file of small values that are too many for it; None for no such file."""
        small = [content for content in _contents_of(values) if content.data.nbytes <= IN_ENTRY_BYTES_MAX]
        packed = sum(content.data.nbytes for content in small) > IN_ENTRY_TOTAL_BYTES_MAX
        places, data = dict[int, int](), bytearray()
        for content in small if packed else ():
            places[id(content)] = len(data)
            data += content.data
            data += bytes(-len(data) % PACKED_AT)

        def in_file(data: memoryview, address: bytes, again: bool = False) -> dict[str, Any]:
            self._contents.put(address, data, again)
            held.append(address)
            return {"address": address.hex(), "size_bytes": data.nbytes}

        pack = in_file(memoryview(data), hash_bytes(data)) if packed else None

        def keep(content: Content) -> dict[str, Any]:
            if content.data.nbytes > IN_ENTRY_BYTES_MAX:
                address = content.address or hash_bytes(content.data)
                return in_file(content.data, address, content.address is not None and content.again)
            if pack is None:
                return {"data": base64.b64encode(content.data).decode()}
            where = {"begin": places[id(content)], "length": content.data.nbytes}
            return {"pack": pack["address"], "pack_bytes": pack["size_bytes"], **where}

        return _map(keep, values), pack

    async def _in_writer(self, work: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._writer, work, *args)

    async def _release(self, held: list[bytes]) -> None:
        if not held:
            return
        try:
            await asyncio.to_thread(self._contents.release, held)
        except OSError as error:  # the next start removes what nothing holds
            log.warning("content that is not needed stays on the disk: %s", error)

    async def _release_doubtful(self) -> None:
        """Another entry is surely on the disk, so those that were refused before are surely not."""
        doubtful, self._doubtful = self._doubtful, []
        await self._release(doubtful)

    async def _write(self, entry: Entry) -> None:
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((entry, written))
        if self._writing is None:
            self._writing = self._tasks.run("writing the journal", self._write_all(), unheard)
        await written

    async def _write_all(self) -> None:
        while self._queue:
            batch, self._queue = self._queue, []
            failure: StorageError | None = None
            try:
                entries = [entry for entry, _ in batch]
                await self._in_writer(self._journal.write, entries)
                if self.replicate is not None:
                    await self.replicate(entries)
            except StorageError as error:
                failure = error
            except Exception as error:  # a fault of the journal must end the waits for it
                log.exception("writing the journal failed")
                failure = NotDurable("the journal failed", cause=f"{type(error).__name__}: {error}")
            for _, written in batch:
                if written is None or written.done():  # nobody waits, or nobody does any more
                    continue
                if failure is None:
                    written.set_result(None)
                else:
                    written.set_exception(
                        type(failure)(failure.message, cause=failure.cause, next_step=failure.next_step)
                    )
        self._writing = None


def check_size(job: str, size_bytes: int) -> None:
    """Raise LimitExceeded for an entry of a job that no standby could be sent."""
    if size_bytes > JOURNAL_BYTES_MAX:
        raise LimitExceeded(
            f"the journal's entry of {job} is {need_text(size_bytes)}, and at most {room_text(JOURNAL_BYTES_MAX)} fit",
            next_step="Give the program fewer inputs and params: each of them has a line there",
        )


def _split_addresses(addresses: bytes) -> list[bytes]:
    return [addresses[at : at + ADDRESS_BYTES] for at in range(0, len(addresses), ADDRESS_BYTES)]


def _long(values: Any) -> bool:
    """Whether any of the contents may not go into the entry, or they are much to be written as text."""
    sizes = [content.data.nbytes for content in _contents_of(values)]
    return max(sizes, default=0) > IN_ENTRY_BYTES_MAX or sum(sizes) > TEXT_ON_LOOP_BYTES_MAX


def _contents_of(values: Any) -> list[Content]:
    contents: list[Content] = []
    _map(contents.append, values)
    return contents


def _map(change: Callable[[Content], Any], tree: Any) -> Any:
    match tree:
        case Content():
            return change(tree)
        case Mapping():
            return {name: _map(change, value) for name, value in tree.items()}
        case list() | tuple():
            return [_map(change, value) for value in tree]
    return tree


def addresses_in(tree: Any) -> Iterator[bytes]:
    """The address of every file that the tree names."""
    return (address for address, _ in _named(tree))


def in_files(tree: Any) -> bool:
    """Whether some of the values are in files beside the journal."""
    return any(True for _ in _named(tree))


def _named_by_entry(entries: Sequence[Entry]) -> list[list[tuple[bytes, int]]]:
    return [list(_named(json.loads(entry.body))) for entry in entries]


def _named(tree: Any) -> Iterator[tuple[bytes, int]]:
    """The address and the size of every file that the tree names."""
    match tree:
        case {"address": str(address), "size_bytes": int(size_bytes)}:
            yield bytes.fromhex(address), size_bytes
        case Mapping():
            for value in tree.values():
                yield from _named(value)
        case list():
            for value in tree:
                yield from _named(value)
