"""Param slices: windows of params as content of their own, so that a worker fetches only what it needs.

A slice is named by its bytes, as all content is, and hashed once; it is cut again when a worker asks for it, so nothing
is held twice.  It does not know which plans want which slice.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from numpy.typing import NDArray

from wire.errors import BlobMissing
from wire.ir.codec import hash_array, tensor_bytes
from wire.ir.types import TensorType
from wire.link.link import Link
from wire.protocol.messages import Blob, FetchBlob
from wire.transfer.content_exchange import off_loop

from ..planning.model.plan import FromParam, Window
from ..planning.plan_messages import Bindings, Content
from .tensor_store import TensorStore

KNOWN_MAX = 65_536  # slices whose addresses are remembered
Serve = Callable[[Link, FetchBlob], Awaitable[Blob]]
_Key = tuple[bytes, TensorType, Window]


class ParamSlices:
    """The slices of the tensors that this process holds."""

    def __init__(self, held: TensorStore) -> None:
        self._held = held
        self._addresses: OrderedDict[_Key, bytes] = OrderedDict()
        self._origins: dict[bytes, dict[_Key, None]] = {}  # zeros are slices of many params
        self._cut: dict[bytes, memoryview] = {}  # of those that are being sent

    async def params(self, wanted: Iterable[FromParam], bindings: Bindings) -> dict[FromParam, Content]:
        """The content that each stands for; BlobMissing if it has to be cut of what is not held."""
        return {source: await self._content(source, *bindings[source.name]) for source in wanted}

    async def _content(self, source: FromParam, address: bytes, kind: TensorType) -> Content:
        if source.window is None:
            return address, kind
        key = address, kind, source.window
        known = self._addresses.get(key)
        if known is None:
            size_bytes = TensorType(source.window.sizes, kind.dtype).size_bytes
            known = self._addresses[key] = await off_loop(size_bytes, hash_array, self._array(key))
            self._origins.setdefault(known, {})[key] = None
            while len(self._addresses) > KNOWN_MAX:
                self._forget(*self._addresses.popitem(last=False))
        self._addresses.move_to_end(key)
        return known, TensorType(source.window.sizes, kind.dtype)

    def find(self, address: bytes) -> memoryview | None:
        """The bytes of a tensor that is held, or of a slice that was cut; None for others."""
        return self._cut[address] if address in self._cut else self._held.find(address)

    def before(self, serve: Serve) -> Serve:
        """A way to serve content that cuts slices first, whose bytes are held no longer than it takes."""

        async def serving(link: Link, request: FetchBlob) -> Blob:
            await self._make(request.blob)
            try:
                return await serve(link, request)
            finally:
                self._cut.pop(request.blob, None)

        return serving

    def _forget(self, key: _Key, address: bytes) -> None:
        origins = self._origins[address]
        del origins[key]
        if not origins:
            del self._origins[address]

    async def _make(self, address: bytes) -> None:
        key = next((key for key in self._origins.get(address, ()) if key[0] in self._held), None)
        if key is not None and address not in self._held:
            size_bytes = TensorType(key[2].sizes, key[1].dtype).size_bytes
            self._cut[address] = await off_loop(size_bytes, tensor_bytes, self._array(key))

    def _array(self, key: _Key) -> NDArray[Any]:
        address, kind, window = key
        if address not in self._held:
            raise BlobMissing("a param has to be cut in pieces, and its value is not in this process")
        return window.of(self._held.of(address, kind))
