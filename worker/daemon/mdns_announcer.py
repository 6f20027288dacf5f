"""mDNS announcer: a worker announces itself by mDNS until its end; a member of a mesh also looks for its
coordinator."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from wire.link.endpoint import Endpoint
from wire.link.membership import Membership

from ..config import WorkerConfig

if TYPE_CHECKING:
    from wire.discovery.mdns import Announcer


async def advertise(
    endpoint: Endpoint,
    port: int,
    membership: Membership | None,
    config: WorkerConfig,
    stopped: asyncio.Future[int],
    announced: Callable[[Announcer], None],
) -> None:
    """Announce the node that listens on this port until it is `stopped`; the announcer is `announced` once it does."""
    from wire.discovery.auto_dialer import look_for
    from wire.discovery.mdns import Announcer  # loads zeroconf, which the worker is ready without

    key = (lambda: (membership.credentials.discovery_key,)) if membership else None
    async with contextlib.AsyncExitStack() as stack:
        announcer = Announcer(endpoint.identity, port, key, config.host, config.interfaces)
        announced(await stack.enter_async_context(announcer))
        if key:
            dialer = look_for(endpoint, key, "coordinator", config.interfaces)
            stack.push_async_callback(dialer.close)
            await dialer.start()
        await stopped
