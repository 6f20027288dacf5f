"""A tensor that comes through the coordinator has memory as its pieces come: to have it for all of them at once takes
half a second for a GiB, for which the worker's event loop would stand still."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from wire.errors import OutOfMemory
from wire.protocol.messages import RELAY_BYTES_MAX, PlanKey, Push, Relay, Value
from wire.system import shared_memory
from wire.system.shared_memory import SharedDir, take
from worker.daemon.worker_links import WorkerLinks
from worker.state import events as ev

SIZE = 2 * RELAY_BYTES_MAX + 7
PUSH = Push(PlanKey(1, 1), 0, 0, 0, Value("u8", (SIZE,)))


class Links:
    """The links of a worker to which tensors are relayed, and what its machine hears."""

    def __init__(self, folder: Path) -> None:
        self.shared, self.under_way, self.events = SharedDir.create(folder), 0, list[ev.Event]()
        arriving = SimpleNamespace(check=lambda *args: None, begin=self._begin, end=self._end)
        shell, endpoint = cast(Any, SimpleNamespace(feed=self.events.append)), cast(Any, None)
        self.links = WorkerLinks(shell, endpoint, self.shared, cast(Any, arriving), lambda: 1.0)

    def _begin(self, *args: object) -> None:
        self.under_way += 1

    def _end(self, *args: object) -> None:
        self.under_way -= 1

    async def take(self, data: bytes, offset: int) -> None:
        piece = data[offset : offset + RELAY_BYTES_MAX]
        await self.links._relayed(cast(Any, None), Relay("a", PUSH, len(data), offset, piece))

    def files(self) -> list[str]:
        return [path.name for path in self.shared.path.iterdir() if path.name != "lock"]


async def test_pieces_in_any_order_are_a_tensor_and_no_loop_had_to_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_memory, "reserve", None)
    links, data = Links(tmp_path), random.Random(0).randbytes(SIZE)
    for offset in (2 * RELAY_BYTES_MAX, 0, RELAY_BYTES_MAX):
        assert not links.events
        await links.take(data, offset)
    (event,) = links.events
    assert isinstance(event, ev.TensorArrived) and isinstance(event.tensor, ev.SharedFile) and not links.under_way
    assert bytes(take(event.tensor.directory, event.tensor.name, SIZE)) == data and not links.files()
    links.shared.close()


async def test_a_piece_without_room_is_refused_and_what_came_goes_with_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "no space left on the test's device")

    links, data = Links(tmp_path), bytes(SIZE)
    await links.take(data, 0)
    with monkeypatch.context() as patch:
        patch.setattr(shared_memory, "write_all", full)
        with pytest.raises(OutOfMemory):
            await links.take(data, RELAY_BYTES_MAX)
    assert links.under_way == 1 and not links.events
    links.links.forget(PUSH.plan, PUSH.step)
    assert not links.under_way and not links.files()
    links.shared.close()
