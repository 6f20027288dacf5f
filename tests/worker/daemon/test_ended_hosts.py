"""Engine hosts end with their daemon, also those that a failed start leaves."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from wire.errors import ConfigError
from wire.system.shared_memory import SharedDir
from worker.config import WorkerConfig
from worker.daemon.engine_hosts import EngineHosts
from worker.daemon.environment import REAL, EngineHost
from worker.devices.adapter_cache import AdapterCache
from worker.engine.host_messages import Opened


async def test_a_host_that_found_no_adapter_and_ended_is_no_lost_device(tmp_path: Path) -> None:
    """It says that there is none and ends, often long before the processor's host is ready."""
    made: list[Any] = []
    lost: list[object] = []

    def kept(*arguments: Any) -> Any:
        made.append(REAL.host(*arguments))
        return made[-1]

    def nothing(*_: Any) -> None: ...

    def on_lost(*what: object) -> None:
        lost.append(what)

    config = WorkerConfig(cache_dir=str(tmp_path), kernel_dir=str(tmp_path), sandbox=False)
    shared = SharedDir.create(tmp_path)
    around = replace(REAL, host=kept, adapter_cache=AdapterCache())  # which remembers no earlier look
    hosts = EngineHosts(config, around, "anna", shared, tmp_path, (tmp_path,), nothing, on_lost, nothing)
    await hosts.start(("best",))
    try:
        answer = await asyncio.wait_for(made[0].opened, 120)
        if isinstance(answer, Opened) and answer.device is not None:
            pytest.skip("this machine has a graphics adapter")
        await asyncio.wait_for(made[0].exited.wait(), 120)
        assert await hosts.opened() == ()
        assert not lost
    finally:
        await hosts.close()
        shared.close()


async def test_all_hosts_end_where_a_device_is_not_there(tmp_path: Path) -> None:
    made: list[EngineHost] = []
    transports: list[asyncio.BaseTransport] = []

    def kept(*arguments: Any) -> Any:
        host: Any = REAL.host(*arguments)
        made.append(host)
        connected = host.connection_made

        def connection_made(transport: asyncio.BaseTransport) -> None:
            transports.append(transport)
            connected(transport)

        host.connection_made = connection_made
        return host

    def nothing(*_: Any) -> None: ...

    config = WorkerConfig(cache_dir=str(tmp_path), kernel_dir=str(tmp_path), sandbox=False)
    around = replace(REAL, host=kept)
    shared = SharedDir.create(tmp_path)
    hosts = EngineHosts(config, around, "anna", shared, tmp_path, (tmp_path,), nothing, nothing, nothing)
    await hosts.start(("cpu", "nonsense"))
    with pytest.raises(ConfigError, match="there is no device 'nonsense'"):
        await asyncio.wait_for(hosts.opened(), 120)
    await hosts.close()
    assert [host.exited.is_set() for host in made] == [True, True]
    assert [transport.is_closing() for transport in transports] == [True, True]  # else they use the closed loop
    shared.close()
