"""Stored program: a graph with its params and constants as values of an entry in the job store, and back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from wire.ir.codec import hash_array, tensor_bytes, tensor_from
from wire.ir.graph import WireGraph
from wire.ir.types import TensorType
from wire.system.tasks import together
from wire.transfer.content_exchange import graph_from, off_loop

from .job_store import Content
from .program_upload import consts_of

Load = Callable[[Any], Awaitable[memoryview]]


@dataclass(frozen=True, slots=True)
class ProgramContent:
    """A graph, its params by name with their addresses, and the constants outside of its encoding by address."""

    graph: WireGraph
    params: Mapping[str, tuple[bytes, NDArray[Any]]]
    consts: Mapping[bytes, NDArray[Any]]

    @property
    def bindings(self) -> dict[str, tuple[bytes, TensorType]]:
        """The address and the type of each param."""
        kinds = self.graph.param_types
        return {name: (address, kinds[name]) for name, (address, _) in self.params.items()}

    @property
    def held(self) -> list[tuple[bytes, NDArray[Any]]]:
        """The contents that workers may fetch, with their addresses."""
        return [*self.params.values(), *self.consts.items()]

    def values(self, state: Container[str] = ()) -> dict[str, Any]:
        """The values of an entry.  Params of the `state` of a session do not come again, as weights do."""
        return {
            "graph": Content(memoryview(self.graph.encoded)),
            "params": {
                name: Content(tensor_bytes(array), address, again=name not in state)
                for name, (address, array) in self.params.items()
            },
            "consts": {address.hex(): Content(tensor_bytes(array), address) for address, array in self.consts.items()},
        }


async def load_program(kept: Mapping[str, Any], load: Load) -> ProgramContent:
    """The program whose values an entry keeps; BlobMissing or BlobCorrupt where the disk has not all of them."""
    graph = await graph_from(bytes(await load(kept["graph"])))
    kinds = {address.hex(): (address, kind) for address, kind in consts_of(graph).items()}

    async def param(name: str) -> tuple[bytes, NDArray[Any]]:
        array = tensor_from(await load(kept["params"][name]), graph.param_types[name])
        return await off_loop(array.nbytes, hash_array, array), array

    async def const(name: str) -> tuple[bytes, NDArray[Any]]:
        address, kind = kinds[name]
        return address, tensor_from(await load(kept["consts"][name]), kind)

    # side by side: a model has hundreds of tensors, and each of them waits for a thread and the disk
    params = dict(zip(kept["params"], await together(map(param, kept["params"])), strict=True))
    return ProgramContent(graph, params, dict(await together(map(const, kept["consts"]))))
