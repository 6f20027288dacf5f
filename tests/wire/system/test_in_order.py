"""Work in order: one piece after the other, each to its end."""

from __future__ import annotations

import asyncio

import pytest

from wire.errors import MeshError
from wire.system.in_order import InOrder

HANGS_S = 120.0


async def test_pieces_are_done_one_after_the_other_though_the_first_fails_and_nobody_waits_for_the_second() -> None:
    order, did = InOrder(), list[str]()
    go_on = asyncio.Event()

    async def piece(name: str) -> str:
        did.append(f"{name} begins")
        await go_on.wait()
        did.append(f"{name} ends")
        if name == "first":
            raise OSError(28, "no space left")
        return name

    waiting = [asyncio.create_task(order.do(name, lambda name=name: piece(name))) for name in ("first", "second")]  # type: ignore[misc]
    await asyncio.sleep(0)
    last = order.begin("third", lambda: piece("third"))
    await asyncio.sleep(0.01)
    waiting[1].cancel()
    assert did == ["first begins"]
    go_on.set()
    async with asyncio.timeout(HANGS_S):
        with pytest.raises(MeshError, match="no space left"):
            await waiting[0]
        assert await last == "third"
    assert did == [f"{name} {what}" for name in ("first", "second", "third") for what in ("begins", "ends")]
    assert waiting[1].cancelled()
