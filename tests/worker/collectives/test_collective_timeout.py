"""How long ranks wait for each other: from what people say to what a rank does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from mesh import Mesh
from mesh.commands.coord import parser
from wire.errors import ConfigError, DeadlineExceeded
from wire.ir.types import Attrs
from wire.protocol.messages import Gang, Member, PlanKey
from wire.system.shared_memory import SharedDir
from wire.timeouts import COLLECTIVE_TIMEOUT_S
from worker.collectives.open_channels import open_rank
from worker.daemon.collective_bridge import Bridge
from worker.engine.protocol import never

PLAN = PlanKey(1, 4)
MEMBERS = (Member("a", 0, 0), Member("a", 1, 1))
SUM = Attrs({"axes": ("dp",), "sizes": (2,), "reduction": "sum"})


def test_it_is_said_to_the_builder_or_to_serve() -> None:
    assert Mesh.builder().config.timeouts.collective_timeout_s == COLLECTIVE_TIMEOUT_S
    assert Mesh.builder().collective_timeout(7).config.timeouts.collective_timeout_s == 7.0
    assert parser().parse_args(["serve", "--collective-timeout", "9"]).collective_timeout == 9.0
    for wrong in (0, -1, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match="positive number of seconds"):
            Mesh.builder().collective_timeout(wrong)


def test_a_rank_waits_so_long_and_then_names_the_rank_and_its_worker(tmp_path: Path) -> None:
    async def story() -> None:
        shared = SharedDir.create(tmp_path)
        bridge = Bridge({}, shared)
        gang = Gang(("dp",), (2,), 0, MEMBERS, timeout_s=0.01)
        told = bridge.prepare(0, PLAN, gang)
        bridge.prepare(1, PLAN, Gang(("dp",), (2,), 1, MEMBERS))
        assert told.timeout_s == 0.01
        ranks = open_rank(told, str(shared.path), bridge.directories(0), lambda: None)
        ranks.begin(1, never)
        with pytest.raises(DeadlineExceeded, match=r"waited 0.01 s for rank 1 \(a\)"):
            ranks.start("all_reduce", SUM, np.ones(3, np.float32)).result()
        shared.close()

    asyncio.run(story())
