"""A worker's link to its coordinator: what is said over it once counts, though the disk refuses for a while."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from mesh.simulation.loop import VirtualLoop
from wire.errors import ConfigError
from wire.protocol.messages import Revocations
from wire.timeouts import DEFAULT_TIMEOUTS
from worker.daemon.owner_link import OwnerLink


def test_who_was_thrown_out_is_so_once_the_disk_takes_it() -> None:
    refusals, trusted = [ConfigError("cannot write the trust")] * 3, list[bytes]()

    def trust(endpoint: Any, data: bytes, *more: Any) -> None:
        if refusals:
            raise refusals.pop()
        trusted.append(data)

    async def story() -> None:
        membership = cast(Any, SimpleNamespace(trust=trust, coordinator=()))
        link = OwnerLink(cast(Any, None), cast(Any, None), membership, (), DEFAULT_TIMEOUTS)
        take = link.notifications()[Revocations]
        take(cast(Any, None), Revocations(b"out", b"authority"))
        await asyncio.sleep(60)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(story())
    assert trusted == [b"out"]
