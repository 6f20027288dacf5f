"""`mesh-coord serve`: a coordinator as a daemon, with its workers and its clients."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal

from coordinator.health import HealthConfig
from coordinator.runtime import Coordinator, CoordinatorConfig
from coordinator.service import JobService
from wire.address import LAST_PORT, PORT, parse_address

from ..embedded import start_coordinator
from .exit_codes import OK
from .flags import mesh_name, node_name, node_timeout_s

log = logging.getLogger("graph_mesh.serve")


async def serve_until_stopped(options: argparse.Namespace) -> int:
    """Serve until SIGTERM or Ctrl-C; 0."""
    mesh = mesh_name(options)
    peers = [parse_address(peer) for peer in options.peer]
    health = HealthConfig.from_node_timeout(node_timeout_s(options))
    coordinator = await start_coordinator(CoordinatorConfig(mesh, node_name(options) or "coordinator", health))
    service = JobService(coordinator)
    stopped = _stop_event()
    try:
        first = PORT if options.port is None else options.port
        last = LAST_PORT if options.port is None else options.port
        port = await coordinator.endpoint.listen(options.host, first, last)
        _tell_ready(options, mesh, port, health)
        await asyncio.gather(*(coordinator.connect(*peer) for peer in peers))
        if options.no_mdns:
            await stopped.wait()
        else:
            await _announced(coordinator, port, stopped)
    finally:
        await service.close()
        await coordinator.close()
    return OK


async def _announced(coordinator: Coordinator, port: int, stopped: asyncio.Event) -> None:
    from wire.discovery import Announcer

    from ..joining import AutoJoin

    join = AutoJoin(coordinator)
    async with Announcer(coordinator.identity, port):
        await join.start()
        try:
            await stopped.wait()
        finally:
            await join.close()


def _tell_ready(options: argparse.Namespace, mesh: str, port: int, health: HealthConfig) -> None:
    address = f"{options.host}:{port}"
    if options.json:
        print(
            json.dumps({"event": "ready", "mesh": mesh, "address": address, "port": port, "pid": os.getpid()}),
            flush=True,
        )
    log.info("mesh-coord %s of mesh %s ready on %s", options.name, mesh, address)
    log.info("%s", health.describe())
    log.info(
        "add a machine's devices: mesh-worker --peer %s; submit: mesh-coord submit GRAPH.wire --output DIR", address
    )


def _stop_event() -> asyncio.Event:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(number, stopped.set)
        except NotImplementedError:  # Windows
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(stopped.set))
    return stopped
