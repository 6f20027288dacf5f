"""TensorStore: the tensors of this process that workers may fetch, by their content's address."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from wire.ir.codec import tensor_bytes, tensor_from
from wire.ir.types import TensorType


class TensorStore:
    """Each is held as often as `hold` was called for it and `release` was not."""

    def __init__(self) -> None:
        self._held: dict[bytes, tuple[NDArray[Any], int]] = {}  # with the number of holds

    def __contains__(self, address: bytes) -> bool:
        return address in self._held

    def of(self, address: bytes, kind: TensorType) -> NDArray[Any]:
        """The tensor with the caller's shape and dtype: tensors of other types may have the same bytes."""
        return tensor_from(tensor_bytes(self._held[address][0]), kind)

    def hold(self, address: bytes, array: NDArray[Any]) -> None:
        """Hold a tensor for workers to fetch, until `release` was called as often."""
        held = self._held.get(address)
        self._held[address] = (array if held is None else held[0], 1 if held is None else held[1] + 1)

    def release(self, address: bytes) -> None:
        """Undo one `hold`; workers keep what they cached."""
        array, holds = self._held.pop(address)
        if holds > 1:
            self._held[address] = (array, holds - 1)

    def find(self, address: bytes) -> memoryview | None:
        """The bytes of a tensor, None if it is not held."""
        return tensor_bytes(self._held[address][0]) if address in self else None
