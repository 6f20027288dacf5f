"""A worker process that is slower than its machine: what `mesh-worker --throttle` changes of its settings and means.

It behaves as another machine, so it shares no memory with other processes.  Where its links are slow, its engine hosts
open no connections of their own, which would get around them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from wire.joining.credentials import Credentials
from wire.link.endpoint import Endpoint
from wire.link.link import Handler
from wire.link.websocket_carrier import Endpoint as WebSocketEndpoint
from wire.protocol.peer import Identity
from wire.system.child_python import python_command
from worker.config import WorkerConfig
from worker.daemon.environment import Environment
from worker.engine_host.host_client import HostProcess

from .throttle import parse_throttle
from .throttled_links import ThrottledCarrier


def throttled(config: WorkerConfig, environment: Environment, text: str) -> tuple[WorkerConfig, Environment]:
    """The settings and the environment of a worker as `text` wants it; ConfigError if it is not a throttle."""
    throttle = parse_throttle(text)

    def endpoint(
        identity: Identity, handler: Handler, credentials: Credentials | None, config: WorkerConfig, secret: bytes
    ) -> Endpoint:
        close_s = config.timeouts.link_close_s
        return WebSocketEndpoint(
            identity,
            handler,
            credentials=credentials,
            over=lambda carrier: ThrottledCarrier(carrier, throttle.bytes_per_s, throttle.delay_s, close_s),
            timeouts=config.timeouts,
            secret=secret,
        )

    host = partial(HostProcess, command=python_command("mesh.simulation.throttled_host", text))
    environment = replace(environment, host=host)
    if throttle.slows_links:
        environment = replace(environment, endpoint=endpoint)
    return replace(config, share_memory=False, connect_hosts=not throttle.slows_links), environment
