"""Texts that begin while the link to the coordinator is broken wait for it: this process does not compute them."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from support.cases.language import golden_model

from mesh.client.async_mesh import AsyncMesh
from mesh.inference import Generating
from wire.errors import NodeLost


class Away:
    """The backend of a coordinator daemon whose link has just broken."""

    simulates = elastic = reproducible = False

    def __init__(self, comes_back: bool) -> None:
        self.back = comes_back

    def live(self) -> bool:
        return False

    def comes_back(self) -> bool:
        return self.back

    def hold(self, handle: Any) -> None: ...

    def forget(self, work: Any) -> None: ...

    def session(self, *_: Any) -> Any:
        raise NodeLost("the coordinator is away")


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_batch_that_begins_meanwhile_is_not_in_this_process_for_good(comes_back: bool) -> None:
    async def told() -> list[int]:
        batch = Generating(AsyncMesh(cast(Any, Away(comes_back))), golden_model("llama"))
        try:
            return [token async for token in batch.begin([1, 2, 3], 4)]
        finally:
            await batch.close()

    if comes_back:
        with pytest.raises(NodeLost, match="away"):
            asyncio.run(told())
    else:
        assert len(asyncio.run(told())) == 4
