"""The engine host: the child process that computes on one device.

It owns one engine, reads messages from stdin, answers on stdout and logs on stderr, so a driver that aborts, a kernel
that hangs or a kill for memory costs this process and not the daemon.  It opens no socket, except for the tensors of
collectives, to whom and how the daemon says (`worker/collectives/connector.py`).  It does not know what a plan, a step
or a peer is: it binds params to compiled parts and runs them.

The main thread reads, computes and answers; a second one beats while it does, and ends the process when the daemon is
gone.  Started by `host_client.py`, which sends an Open message first.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from wire.errors import BlobMissing, DeviceLost, ExecuteFailed, InputError, MeshError, OutOfMemory
from wire.ir.codec import decode_graph, tensor_bytes, tensor_from
from wire.ir.dtypes import dtype_named, dtype_of
from wire.ir.graph import WireGraph
from wire.ir.types import TensorType
from wire.system import mapped_files
from wire.system.child_python import take_stdio
from wire.system.malloc import give_back
from wire.system.open_file_limit import allow_open_files
from wire.system.shared_memory import SharedDir, exists, remove, remove_all, share, take
from wire.units import need_text, room_text, size_text

from ..collectives.connector import Lines
from ..collectives.open_channels import ranks_of
from ..collectives.progress import Progress
from ..collectives.rank import Ranks
from ..collectives.shared_arena import Laid, given_bytes
from ..devices.benchmark import measured
from ..devices.registry import open_engine, without_gpu
from ..engine import host_messages as messages
from ..engine.donation import Lent, Versions
from ..engine.host_messages import INLINE_BYTES_MAX, STOP_BYTES, Splitter, pack, unpack_to_host
from ..engine.protocol import Engine, Executable, Measured, Stopped, readback_s, takes_lent

EXECUTABLES_MAX = 256  # compiled graphs kept after their last use: a plan that comes back needs no compiling
EXECUTABLES_BYTES_MAX = 512 << 20  # of their code and constants: drivers keep megabytes of a kernel
SHELVES_BYTES_MAX = 512 << 20  # of all plans that are deployed: most are idle, and give theirs up to those that run
READ_BYTES = 1 << 20
UNUSED_MAX = 512  # resident tensors kept after their last use, as far as memory allows
MAPPED_BYTES_MIN = 1 << 20  # content is mapped; what is smaller is read


def _unchanged(engine: Engine, figures: Measured) -> tuple[Engine, messages.Device]:
    return engine, messages.Device(engine.info, figures)


def main(adapt: Callable[[Engine, Measured], tuple[Engine, messages.Device]] = _unchanged) -> None:
    """Run until stdin closes.

    `adapt` turns the engine that was opened, and the figures of its device, into the engine that computes and what the
    daemon is told of it.
    """
    channel = Channel(*take_stdio())
    incoming = channel.incoming()
    opening = next(incoming)
    assert isinstance(opening, messages.Open), "the daemon opens a device first"
    _die_with_parent()
    allow_open_files()
    threading.Thread(target=_watch, args=(channel, opening), name="watch", daemon=True).start()
    try:
        engine = open_engine(opening.device, Path(opening.cache_dir), opening.memory_bytes)
    except MeshError as error:
        channel.send(messages.OpenFailed(error.to_fields()))
        sys.exit(1)
    if engine is None:
        channel.send(messages.Opened(None, without_gpu()))
        return
    stop_cell = share(opening.shared_dir, opening.stop_file)
    remove(opening.shared_dir, opening.stop_file)
    shared = SharedDir.attach(Path(opening.shared_dir))
    engine, device = adapt(engine, measured(engine, Path(opening.measured_dir)))
    host = Host(engine, shared, stop_cell, opening.memory_bytes, channel.send)
    channel.send(messages.Opened(device))
    for message in incoming:
        answer = host.handle(message)
        if answer is not None:
            channel.send(answer)
        if host.lost:
            sys.exit(1)
    os._exit(0)  # the daemon is gone; drivers may take their time to unload


class Channel:
    """The pipe to the daemon.  Read by the computing thread itself: a thread between would cost every part a switch."""

    def __init__(self, receive_fd: int, send_fd: int) -> None:
        self._receive_fd = receive_fd
        self._send_fd = send_fd
        self._sending = threading.Lock()

    def incoming(self) -> Iterator[messages.ToHost]:
        """What the daemon says, until it closes its end."""
        splitter = Splitter()
        while data := os.read(self._receive_fd, READ_BYTES):
            for body in splitter.feed(data):
                yield unpack_to_host(body)

    def send(self, message: messages.FromHost) -> None:
        view = memoryview(pack(message))
        with self._sending:
            while view:
                view = view[os.write(self._send_fd, view) :]


def _watch(channel: Channel, opening: messages.Open) -> None:
    """Beat, and end this process once its parent is gone: the computing thread may be deep inside a kernel."""
    while os.getppid() == opening.parent_pid:
        try:
            channel.send(messages.Alive())
        except OSError:
            break
        time.sleep(opening.beat_s)
    os._exit(0)


@dataclass(slots=True)
class _Resident:
    handle: Any
    size_bytes: int
    users: int = 0


@dataclass(slots=True)
class _Prepared:
    graph: WireGraph
    types: tuple[TensorType, ...]  # of the inputs, then the params
    executable: Executable
    params: dict[int, tuple[bytes, TensorType]]  # input position -> key of the resident tensor
    gang: messages.RankOf | None = None
    ranks: tuple[tuple[str, ...], Ranks] | None = None  # the directories of its inboxes, and what maps them
    shelf: Laid | None = None  # for collectives of one machine


class Host:
    """What is compiled, what is resident, and how a part is run.  `send` tells the daemon of mailboxes and calls."""

    def __init__(
        self,
        engine: Engine,
        shared: SharedDir,
        stop_cell: memoryview,
        memory_bytes: int,
        send: Callable[[messages.FromHost], None] = lambda _message: None,
        shelves_bytes_max: int = SHELVES_BYTES_MAX,
    ) -> None:
        self.lost = False
        self._shelves_bytes_max = shelves_bytes_max
        self._ring, self._progress, self._lines = partial(send, messages.Rang()), Progress(), Lines(send)
        self._engine = engine
        self._shared = shared
        self._stop_cell = stop_cell
        self._memory_bytes = memory_bytes or engine.info.memory_bytes
        self._shares_memory = bool(memory_bytes) or engine.info.engine == "cpu"  # with what the daemon keeps
        self._executables: OrderedDict[bytes, tuple[WireGraph, Executable]] = OrderedDict()  # oldest first
        self._prepared: dict[int, _Prepared] = {}
        self._shelved: OrderedDict[int, _Prepared] = OrderedDict()  # of them; the one that ran longest ago first
        self._shelves_made = 0
        self._resident: dict[tuple[bytes, TensorType], _Resident] = {}
        self._unused: OrderedDict[tuple[bytes, TensorType], None] = OrderedDict()  # of them; the oldest first
        self._resident_bytes = 0
        self._kept = Versions()
        self._lends = takes_lent(engine)

    def handle(self, message: messages.ToHost) -> messages.FromHost | None:
        """The answer to one message."""
        match message:
            case messages.ExecutePart():
                return self._execute(message)
            case messages.PreparePart():
                return self._prepare(message)
            case messages.Unprepare(prepared):
                self._unprepare(prepared)
            case messages.Unbind():
                self._unbind(message)
            case messages.Export():
                return self._export(message)
            case messages.Expect() | messages.Call():
                self._lines.begin(message)
            case messages.Forget(kept):
                for number in kept:
                    self._kept.drop(number)
            case messages.FreeUnused():
                self._free_unused()
        return None

    # -- prepare

    def _prepare(self, message: messages.PreparePart) -> messages.FromHost:
        started = time.perf_counter()
        try:
            graph, executable, known = self._compile(message)
            self._bind(message, graph, executable)
        except Exception as error:
            return messages.PrepareFailed(message.prepared, self._as_mesh_error(error).to_fields())
        took_s, from_cache = time.perf_counter() - started, known or executable.from_cache
        return messages.Prepared(message.prepared, took_s, from_cache, executable.memory_bytes)

    def _compile(self, message: messages.PreparePart) -> tuple[WireGraph, Executable, bool]:
        found = self._executables.get(message.graph)
        if found is not None and not message.force:
            self._executables.move_to_end(message.graph)
            return *found, True
        graph = decode_graph(message.encoded, expected_hash=message.graph)
        blobs = {}
        for node, kind in zip(graph.nodes, graph.types, strict=True):
            if node.op == "const" and "blob" in node.attrs:
                address = node.attrs["blob"]
                if address not in message.consts:
                    raise BlobMissing(f"constant {address.hex()[:16]} was not sent along", op="const")
                blobs[address] = _map_tensor(message.consts[address], kind)
        graph = replace(graph, blobs=blobs)
        executable = self._engine.compile(graph, message.force)
        self._executables[message.graph] = graph, executable
        self._executables.move_to_end(message.graph)
        self._forget_old()
        return graph, executable, False

    def _forget_old(self) -> None:
        """What was not asked for the longest goes first; the newest stays, whatever its size."""
        sizes = [executable.kept_bytes for _, executable in self._executables.values()]
        kept_bytes = sum(sizes)
        for size_bytes in sizes[:-1]:
            if len(self._executables) <= EXECUTABLES_MAX and kept_bytes <= EXECUTABLES_BYTES_MAX:
                return
            self._executables.popitem(last=False)
            kept_bytes -= size_bytes

    def _bind(self, message: messages.PreparePart, graph: WireGraph, executable: Executable) -> None:
        types = tuple(graph.types[index] for index in (*graph.inputs, *graph.params))
        if (len(types), len(graph.outputs)) != (message.inputs, message.outputs):
            found = f"{len(types)} inputs and params and {len(graph.outputs)} outputs"
            raise InputError(f"the graph has {found}, the part says {message.inputs} and {message.outputs}")
        keys: dict[int, tuple[bytes, TensorType]] = {}
        prepared = _Prepared(graph, types, executable, keys, message.gang)
        self._prepared[message.prepared] = prepared
        try:
            for param in message.params:
                if param.position >= len(types):
                    raise InputError(f"input {param.position} of a graph with {len(types)} inputs and params")
                key = (param.blob, types[param.position])
                self._load(key, param.path, executable.memory_bytes, message.kept_bytes)
                keys[param.position] = key
        except BaseException:
            self._unprepare(message.prepared)
            raise

    def _load(self, key: tuple[bytes, TensorType], path: str, working_bytes: int, kept_bytes: int) -> None:
        found = self._resident.get(key)
        if found is None:
            kind = key[1]
            self._make_room(kind.size_bytes, working_bytes, kept_bytes if self._shares_memory else 0)
            handle = self._engine.load(_map_tensor(path, kind))
            found = self._resident[key] = _Resident(handle, kind.size_bytes)
            self._resident_bytes += kind.size_bytes
        found.users += 1
        self._unused.pop(key, None)

    def _make_room(self, size_bytes: int, working_bytes: int, kept_bytes: int) -> None:
        """Evict what nobody uses, oldest first, then shelves.  OutOfMemory with need and have if it is not enough."""
        need, budget = self._resident_bytes + size_bytes + working_bytes, self._memory_bytes - kept_bytes
        need += self._shelves_bytes if self._shares_memory else 0
        while self._unused and (need > budget or len(self._unused) > UNUSED_MAX):
            need -= self._evict(self._unused.popitem(last=False)[0])
        while self._shares_memory and self._shelved and need > budget:
            need -= self._free_shelf(next(iter(self._shelved)))
        if need > budget:
            kept = f", beside {size_text(kept_bytes)} that are kept for other workers" if kept_bytes else ""
            raise OutOfMemory(
                f"the part needs {need_text(need)} of device memory, the budget is {room_text(budget)}{kept}",
                next_step="Give the worker a larger --max-memory, or more workers",
            )

    def _unprepare(self, prepared: int) -> None:
        found = self._prepared.pop(prepared, None)
        for key in found.params.values() if found else ():
            self._resident[key].users -= 1
            if not self._resident[key].users:
                self._unused[key] = None
        if found is not None and found.gang is not None:
            self._shelved.pop(prepared, None)
            remove_all(self._shared.path, found.gang.shelf)  # its daemon did, but perhaps before it was made
            gangs = [each.gang for each in self._prepared.values() if each.gang is not None]
            self._lines.keep({peer.outbox for gang in gangs for peer in gang.peers if peer is not None})

    def _unbind(self, message: messages.Unbind) -> None:
        """Nobody will ask for these again, so what no other part uses is freed at once."""
        found = self._prepared.get(message.prepared)  # it may have failed to be
        params = found.params if found else {}
        for key in [params.pop(position) for position in message.positions if position in params]:
            self._resident[key].users -= 1
            if not self._resident[key].users:
                self._evict(key)

    def _free_unused(self) -> None:
        """The machine is short of memory: whatever is asked for again is loaded and compiled again."""
        while self._unused:
            self._evict(self._unused.popitem(last=False)[0])
        used = {id(each.executable) for each in self._prepared.values()}
        for graph in [graph for graph, (_, made) in self._executables.items() if id(made) not in used]:
            del self._executables[graph]
        give_back()

    def _evict(self, key: tuple[bytes, TensorType]) -> int:
        """Free a resident tensor: its bytes."""
        evicted = self._resident.pop(key)
        self._resident_bytes -= evicted.size_bytes
        self._engine.unload(evicted.handle)
        return evicted.size_bytes

    # -- execute

    def _execute(self, message: messages.ExecutePart) -> messages.FromHost:
        number, ranks = message.run.to_bytes(STOP_BYTES, "little"), None

        def stopped() -> bool:
            return self._stop_cell == number

        try:
            prepared = self._prepared[message.prepared]
            self._check_left(message.inputs)
            ranks = self._ranks(message, prepared, stopped)
            inputs = self._gather(message, prepared)
            started, read_s = time.perf_counter(), readback_s(self._engine)
            results = self._run(prepared.executable, inputs, stopped, ranks)
            waited_s, packed_s, sent_bytes = ranks.costs if ranks is not None else (0.0, 0.0, 0)
            ended, read_s = time.perf_counter(), readback_s(self._engine) - read_s
            lent = {given.kept: inputs[given.position] for given in message.inputs if given.kept}
            del inputs
            outputs = self._deliver_all(results, message.outputs, lent)
            encode_s = time.perf_counter() - ended + packed_s
        except Exception as error:
            return self._given_up(error, message, ranks)
        compute_s, exchange_s = ended - started - waited_s, max(0.0, waited_s - packed_s)
        return messages.Executed(message.run, compute_s, outputs, exchange_s, read_s, encode_s, sent_bytes)

    def _given_up(self, error: Exception, message: messages.ExecutePart, ranks: Ranks | None) -> messages.ExecuteFailed:
        """The answer for a run that raised.  Whoever raised has no name for the error, which would lead back to him by
        its traceback: all that the run holds would then wait for the collector."""
        self._discard(message.inputs)
        known = self._as_mesh_error(error)
        if ranks is not None:
            ranks.fail(known)
        return messages.ExecuteFailed(message.run, known.to_fields())

    def _run(self, executable: Executable, inputs: Sequence[Any], stopped: Stopped, ranks: Ranks | None) -> list[Any]:
        if ranks is None:
            return self._engine.run(executable, inputs, stopped)
        results = self._engine.run(executable, inputs, stopped, ranks)
        ranks.end()
        return results

    def _ranks(self, message: messages.ExecutePart, prepared: _Prepared, stopped: Stopped) -> Ranks | None:
        """What reaches the other ranks of a part's gang, if it has one, for this step."""
        if prepared.gang is None:
            return None
        self._free_parted(message.prepared)
        if prepared.ranks is None or prepared.ranks[0] != message.inboxes:
            self._lay_out_shelf(message.prepared, prepared, prepared.gang, message.inboxes)
            own, shelf = str(self._shared.path), prepared.shelf
            opened = ranks_of(prepared.gang, own, message.inboxes, self._ring, self._progress, self._lines.line, shelf)
            prepared.ranks = message.inboxes, opened
        if message.prepared in self._shelved:
            self._shelved.move_to_end(message.prepared)
        prepared.ranks[1].begin(message.tag, stopped)
        return prepared.ranks[1]

    # -- shelves

    def _lay_out_shelf(self, number: int, prepared: _Prepared, gang: messages.RankOf, ranks: Sequence[str]) -> None:
        """Where the ranks of one machine lay large tensors; without it these travel in letters."""
        given = given_bytes(prepared.graph, len(ranks)) if prepared.shelf is None and all(ranks) else 0
        if not given:
            return
        self._shelves_made += 1
        name = f"{gang.shelf}{self._shelves_made:08x}"  # a new one: the other ranks may still map the last one's file
        try:
            memory = self._allocate_shelf(name, given * (1 if gang.rank else 2), prepared.executable.memory_bytes)
        except OutOfMemory as error:
            print(f"collectives copy more than they would: {error}", file=sys.stderr, flush=True)
        else:
            prepared.shelf = Laid(name, memory, given)
            self._shelved[number] = prepared

    def _allocate_shelf(self, name: str, size_bytes: int, working_bytes: int) -> memoryview:
        """Memory for one more shelf; others are freed for it, the one that ran longest ago first.  OutOfMemory if it is
        more than all shelves may take, or than is left."""
        while self._unused and self._resident_bytes + working_bytes + size_bytes > self._memory_bytes:
            self._evict(self._unused.popitem(last=False)[0])
        most = min(self._shelves_bytes_max, self._memory_bytes - self._resident_bytes - working_bytes)
        if size_bytes > most:
            raise OutOfMemory(
                f"a shelf of {need_text(size_bytes)} is above the {room_text(max(most, 0))} that shelves may have"
            )
        while self._shelves_bytes + size_bytes > most:
            self._free_shelf(next(iter(self._shelved)))
        while True:
            try:
                return self._shared.allocate(size_bytes, name).buffer
            except OutOfMemory:
                if not self._shelved:
                    raise
                self._free_shelf(next(iter(self._shelved)))

    def _free_shelf(self, number: int) -> int:
        """Free that of a part which does not run, and what it maps of the other ranks': its bytes.  The part has a new
        one with its next run; who maps this one keeps it until he sees that the file is gone (`_free_parted`)."""
        prepared = self._shelved.pop(number)
        assert prepared.shelf is not None
        name, memory, _ = prepared.shelf
        remove(self._shared.path, name)
        prepared.shelf = prepared.ranks = None
        return memory.nbytes

    def _free_parted(self, running: int) -> None:
        """Free shelves of which another rank freed its own: their memory is mapped here, so it is not free before."""
        for number, each in list(self._shelved.items()):
            if number != running and each.ranks is not None:
                directories, ranks = each.ranks
                if not all(exists(directories[rank], name) for rank, name in ranks.mapped()):
                    self._free_shelf(number)

    @property
    def _shelves_bytes(self) -> int:
        return sum(each.shelf.memory.nbytes for each in self._shelved.values() if each.shelf is not None)

    # -- inputs and outputs

    def _check_left(self, inputs: tuple[messages.Input, ...]) -> None:
        """BlobMissing if a run before failed that should have left some of them.  Other ranks do not hear of this one:
        they may still have to hear why the one before failed, and a mailbox says that of one step only."""
        if any(given.kept and given.kept not in self._kept for given in inputs):
            raise BlobMissing("what the step before should have left is not here")

    def _gather(self, message: messages.ExecutePart, prepared: _Prepared) -> list[Any]:
        inputs: list[Any] = [None] * len(prepared.types)
        for position, key in prepared.params.items():
            inputs[position] = self._resident[key].handle
        for given in message.inputs:
            inputs[given.position] = self._read(given, prepared)
        absent = [position for position, value in enumerate(inputs) if value is None]
        if absent:
            raise InputError(f"inputs {absent} were not given")
        return inputs

    def _read(self, given: messages.Input, prepared: _Prepared) -> NDArray[Any] | Lent:
        kind = TensorType(given.shape, dtype_named(given.dtype))
        expected = prepared.types[given.position]
        if kind != expected:
            raise InputError(f"input {given.position} is {kind}, the graph takes {expected}")
        if given.data is not None:
            return tensor_from(given.data, kind)
        if given.kept:
            if given.last:
                return self._kept.take(given.kept)
            return self._kept.lend(given.kept) if self._lends else self._kept.get(given.kept)
        return tensor_from(take(given.directory, given.name, kind.size_bytes, unlink=given.last), kind)

    def _discard(self, inputs: tuple[messages.Input, ...]) -> None:
        """Free what a failed execution would have consumed."""
        for given in inputs:
            if given.last and given.kept:
                self._kept.drop(given.kept)
            elif given.last and given.name:
                remove(given.directory, given.name)

    def _export(self, message: messages.Export) -> messages.Exported:
        try:
            if message.kept not in self._kept:
                raise BlobMissing("that tensor is not kept any more")
            output = self._deliver(self._kept.get(message.kept), messages.Wanted(0, 1), INLINE_BYTES_MAX)
        except Exception as error:
            return messages.Exported(message.number, None, self._as_mesh_error(error).to_fields())
        return messages.Exported(message.number, output)

    def _deliver_all(
        self, results: Sequence[NDArray[Any]], wanted: Sequence[messages.Wanted], inputs: Mapping[int, Any]
    ) -> tuple[messages.Output, ...]:
        """Every output, or none: nobody hears of those that came before one that cannot be delivered.  `inputs` are
        those that were kept, by number: one that was written over lives on in what its memory became, or is as it was.
        """
        lent = [
            (number, each, wanted[each.output].keep)
            for number, each in inputs.items()
            if isinstance(each, Lent) and each.output is not None
        ]
        made: list[messages.Output] = []
        room_bytes = messages.INLINE_TOTAL_BYTES_MAX
        try:
            for result, wish in zip(results, wanted, strict=True):
                made.append(self._deliver(result, wish, room_bytes))
                room_bytes -= len(made[-1].data or b"")
        except BaseException:
            for wish in wanted:
                self._kept.drop(wish.keep)
            for _, each, _ in lent:
                each.take_back()
            for file in (file for output in made for file in output.files):
                remove(self._shared.path, file)
            raise
        for number, each, keep in lent:
            self._kept.gave(number, each, keep) if keep else each.take_back()
        return tuple(made)

    def _deliver(self, array: NDArray[Any], wanted: messages.Wanted, room_bytes: int) -> messages.Output:
        """An output; its bytes ride along if they are few and there is room for them."""
        if wanted.keep:
            self._kept.add(wanted.keep, array)
        dtype = dtype_of(array).name
        if not wanted.copies:
            return messages.Output(dtype, array.shape, None, (), wanted.keep)
        data = tensor_bytes(array)
        if data.nbytes <= min(INLINE_BYTES_MAX, room_bytes):
            return messages.Output(dtype, array.shape, data.tobytes(), (), wanted.keep)
        files = self._shared.write_copies([data], wanted.copies)
        return messages.Output(dtype, array.shape, None, files, wanted.keep)

    def _as_mesh_error(self, error: Exception) -> MeshError:
        """What to report; a lost device ends this process after the report."""
        self.lost = self.lost or isinstance(error, DeviceLost)
        known = mesh_error_of(error)
        if known is not error and isinstance(known, ExecuteFailed):
            traceback.print_exc()
        return known


def mesh_error_of(error: Exception) -> MeshError:
    """An engine's error as users are told of it."""
    if isinstance(error, MeshError):
        return error
    if isinstance(error, MemoryError):
        return OutOfMemory(
            "the machine has no memory left for this",
            cause=str(error),
            next_step="Give the worker a smaller --max-memory, or the machine more memory",
        )
    return ExecuteFailed(
        "the engine raised an error it should not",
        cause=f"{type(error).__name__}: {error}",
        next_step="Report it with the graph; the worker's log has the traceback",
    )


def _map_tensor(path: str, kind: TensorType) -> NDArray[Any]:
    """The file as a tensor, mapped read-only if it is large; BlobMissing if it is not there with exactly that size."""
    try:
        with open(path, "rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            if size_bytes != kind.size_bytes:
                raise BlobMissing(f"{kind} needs {kind.size_bytes} bytes, the blob has {size_bytes}")
            mapped = size_bytes >= MAPPED_BYTES_MIN
            data = mapped_files.viewed(file.fileno(), size_bytes) if mapped else file.read()
    except OSError as error:
        raise BlobMissing("a blob's file cannot be read", cause=str(error)) from None
    return tensor_from(data, kind)


def _die_with_parent() -> None:
    """On Linux, have the kernel end this process with its daemon, also where it hangs and holds every lock."""
    if sys.platform.startswith("linux"):
        import ctypes
        import signal

        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


if __name__ == "__main__":
    main()
