"""Program upload: a client's program and its values, fetched from the client and checked against the graph."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any

from numpy.typing import NDArray

from wire.errors import InputError
from wire.ir.codec import hash_array, tensor_from
from wire.ir.dtypes import dtype_named
from wire.ir.graph import WireGraph
from wire.ir.types import TensorType
from wire.limits import MIB
from wire.link.link import Link
from wire.protocol.messages import NamedValue
from wire.system.tasks import Tasks, unheard
from wire.transfer.content_exchange import BlobExchange, off_loop

from .job_store import JobStore

ON_DISK_BYTES_MIN = 8 * MIB  # smaller values take memory until their job is accepted
Receive = Callable[[bytes, int, Callable[[int], Awaitable[None]]], Awaitable[memoryview]]


@contextlib.contextmanager
def upload_to_disk(blobs: BlobExchange, store: JobStore, releasing: Tasks) -> Iterator[ProgramUpload]:
    """An upload whose large values are on the disk, and held there until the block has ended."""
    upload = ProgramUpload(blobs, store.receive)
    try:
        yield upload
    finally:
        if upload.received:
            releasing.run("releasing content", store.release(upload.received), unheard)


class ProgramUpload:
    """Fetches the values of programs from clients.

    With `receive`, as JobStore has it, large ones go to the disk and take no memory.  `received` has their addresses.
    """

    def __init__(self, blobs: BlobExchange, receive: Receive | None = None) -> None:
        self._blobs = blobs
        self._receive = receive
        self.received: list[bytes] = []

    async def values(
        self, link: Link, values: tuple[NamedValue, ...], kinds: Mapping[str, TensorType]
    ) -> dict[str, NDArray[Any]]:
        """Values by name, exactly those of these types; InputError naming one that is not."""
        by_name = {value.name: value for value in values}
        for name in by_name.keys() - kinds.keys():
            raise InputError(f"the graph has no input {name!r}", next_step=f"It takes: {', '.join(kinds) or 'none'}")
        for name, kind in kinds.items():
            if name not in by_name:
                raise InputError(f"the input {name!r} ({kind}) is missing")
            value = by_name[name]
            if (value.shape, value.dtype) != (kind.shape, kind.dtype.name):
                raise InputError(f"the input {name!r} is {value.dtype}{list(value.shape)}, expected {kind}")
        large = [name for name, kind in kinds.items() if self._is_large(kind) and by_name[name].blob is not None]
        small = [name for name in kinds if name not in large]
        arrays = dict(zip(small, await self._blobs.fetch_all(link, [by_name[name] for name in small]), strict=True))
        for name in large:
            address = by_name[name].blob
            assert address is not None
            arrays[name] = tensor_from(await self._content(link, address, kinds[name].size_bytes), kinds[name])
        return {name: arrays[name] for name in kinds}

    def _is_large(self, kind: TensorType) -> bool:
        return self._receive is not None and kind.size_bytes >= ON_DISK_BYTES_MIN

    async def _content(self, link: Link, address: bytes, size_bytes: int) -> memoryview:
        """Large content, on the disk."""
        kept = self._blobs.kept
        if kept is not None and (here := await kept(link, address, size_bytes)) is not None:
            return here
        assert self._receive is not None
        fill = partial(self._blobs.fetch_into, link, address, size_bytes)
        data = await self._receive(address, size_bytes, fill)
        self.received.append(address)
        return data

    async def params(
        self, link: Link, values: tuple[NamedValue, ...], graph: WireGraph
    ) -> dict[str, tuple[bytes, NDArray[Any]]]:
        """The params of a graph, with their addresses."""
        arrays = await self.values(link, values, graph.param_types)
        checked = {value.name: value.blob for value in values if value.data is None}  # as they came
        params = {}
        for name, array in arrays.items():
            address = checked.get(name)
            if address is None:
                address = await off_loop(array.nbytes, hash_array, array)
            params[name] = (address, array)
        return params

    async def consts(self, link: Link, graph: WireGraph) -> dict[bytes, NDArray[Any]]:
        """The constants that lie outside of the graph's encoding, by address."""
        consts = {}
        for address, kind in consts_of(graph).items():
            get = self._content if self._is_large(kind) else self._blobs.fetch
            consts[address] = tensor_from(await get(link, address, kind.size_bytes), kind)
        return consts


def consts_of(graph: WireGraph) -> dict[bytes, TensorType]:
    """Constants that lie outside of the graph's encoding, by address."""
    consts = {}
    for node in graph.nodes:
        if node.op == "const" and "blob" in node.attrs:
            consts[node.attrs["blob"]] = TensorType(node.attrs["shape"], dtype_named(node.attrs["dtype"]))
    return consts
