"""Texts whose embeddings are asked for together: one that fails leaves none of the others to be computed."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from mesh.serving.served_embedding import ServedEmbedding
from wire.errors import NodeLost


async def test_where_one_text_fails_nothing_is_computed_of_the_others_once_its_turn_is_over() -> None:
    under_way, over = list[int](), list[str]()

    async def infer(name: str, ids: Any, *more: Any) -> Any:
        number = int(ids[0])
        under_way.append(number)
        try:
            if number == 2:
                raise NodeLost("the worker is gone")
            await asyncio.sleep(60)
        finally:
            under_way.remove(number)

    async def turn(client: str) -> Any:
        def end() -> None:
            over.append(f"{len(under_way)} under way")

        return SimpleNamespace(end=end)

    served = cast(Any, ServedEmbedding.__new__(ServedEmbedding))
    served._server, served.admission = SimpleNamespace(infer=infer), None
    served.admission = SimpleNamespace(turn=turn, check_room=lambda: None)

    async def ready() -> None:
        pass

    stay = SimpleNamespace(ready=ready, end=lambda: None)
    served.successor, served.residence = None, SimpleNamespace(enter=lambda keep_s: stay)
    served._tokens = lambda text, place, cut: text
    served._padded = lambda ids: (np.asarray(ids),)
    with pytest.raises(NodeLost):
        await served.embed([[1], [2], [3]], "client")
    assert over == ["0 under way"] and not under_way
