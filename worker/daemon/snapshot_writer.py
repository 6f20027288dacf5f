"""Snapshot writer: makes blobs of tensors that engine hosts keep.

A host exports a copy of the tensor, which is hashed and stored under its hash.
"""

from __future__ import annotations

from collections.abc import Callable

from wire.errors import MeshError, from_fields
from wire.ir.codec import hash_bytes
from wire.system.shared_memory import remove
from wire.system.tasks import Tasks
from wire.transfer.content_exchange import off_loop

from ..engine import host_messages as hm
from ..state import events as ev
from .blob_store import BlobStore
from .tensor_refs import bytes_of, made_of


class SnapshotWriter:
    """The writer performs MakeBlob.  `send` sends a message to the host of a device; `feed` takes the answer."""

    def __init__(
        self,
        store: BlobStore,
        directory: str,
        send: Callable[[int, hm.ToHost], None],
        feed: Callable[[ev.Event], None],
    ) -> None:
        self._store = store
        self._directory = directory  # of the files that hosts leave
        self._send = send
        self._feed = feed
        self._devices: dict[int, int] = {}  # number of a blob to be made -> the device whose host was asked
        self._tasks = Tasks()

    def begin(self, action: ev.MakeBlob) -> None:
        """Make a blob of a tensor; answered by BlobMade or BlobNotMade."""
        self._devices[action.number] = action.tensor.device
        self._send(action.tensor.device, hm.Export(action.number, action.tensor.tensor))

    def exported(self, device: int, answer: hm.Exported) -> None:
        """A host exported a tensor, or could not."""
        if self._devices.pop(answer.number, None) is None:  # the host was given up before this was read
            for file in made_of(answer.output, device, self._directory).files if answer.output else ():
                remove(file.directory, file.name)
            return
        if answer.output is None:
            self._feed(ev.BlobNotMade(answer.number, from_fields(answer.error)))
            return
        number, made = answer.number, made_of(answer.output, device, self._directory)
        work = self._put(number, made.inline or made.files[0])
        self._tasks.run("storing a snapshot", work, lambda error: self._feed(ev.BlobNotMade(number, error)))

    def lost(self, device: int, error: MeshError) -> None:
        """The host of a device is lost, and so are the tensors that it kept."""
        for number in [number for number, holder in self._devices.items() if holder == device]:
            del self._devices[number]
            self._feed(ev.BlobNotMade(number, error.copy()))

    def close(self) -> None:
        self._tasks.cancel()

    async def _put(self, number: int, tensor: ev.Tensor) -> None:
        data = bytes_of(tensor)
        blob = await off_loop(data.nbytes, hash_bytes, data)
        await self._store.put(blob, data, keep=False)
        self._feed(ev.BlobMade(number, blob))
