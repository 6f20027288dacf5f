"""The result of a job whose content is gone as it is fetched is asked for again, and not for ever."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mesh.backends.remote import MISSING_WAITS_S, Remote
from mesh.simulation.loop import VirtualLoop
from wire.errors import BlobMissing
from wire.protocol.messages import JobResult, NamedValue


@pytest.mark.parametrize("missing", [0, 3, 1 << 30])
def test_it_is_asked_for_again_after_a_pause_and_no_more_than_so_often(missing: int) -> None:
    asked_s, value = list[float](), NamedValue("y", "f32", (1,), None, bytes(32))

    async def fetch_all(link: Any, values: Any) -> list[Any]:
        if len(asked_s) <= missing:
            raise BlobMissing("it is gone")
        return ["array"]

    async def story() -> None:
        async def ask(question: Any, kind: Any) -> JobResult:
            await asyncio.sleep(0)
            asked_s.append(asyncio.get_running_loop().time())
            return JobResult((value,), "")

        async def link() -> Any:
            return SimpleNamespace(closed=False)

        remote = cast(Any, Remote.__new__(Remote))
        remote._ask, remote._open, remote._exchange = ask, link, SimpleNamespace(fetch_all=fetch_all)
        async with asyncio.timeout(600):
            if missing < len(MISSING_WAITS_S):
                assert await remote.result("job") == ({"y": "array"}, {})
            else:
                with pytest.raises(BlobMissing):
                    await remote.result("job")

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(story())
    assert len(asked_s) == 1 + min(missing, len(MISSING_WAITS_S))
    assert all(later > before for before, later in itertools.pairwise(asked_s))
