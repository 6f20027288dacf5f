"""Content by its address: a stream is taken only if it was asked for, and its room costs nothing before bytes come."""

from __future__ import annotations

from typing import cast

import numpy as np
import psutil
import pytest

from wire.errors import BlobMissing, OutOfMemory
from wire.ir.codec import tensor_from
from wire.ir.dtypes import F32
from wire.ir.types import TensorType
from wire.limits import GIB, MIB
from wire.link.link import Link
from wire.protocol.messages import BlobStream
from wire.transfer.content_exchange import BlobExchange, room_for


def test_room_that_is_only_claimed_takes_no_memory() -> None:
    before = psutil.Process().memory_info().rss
    rooms = [room_for(GIB // 4) for _ in range(8)]
    assert psutil.Process().memory_info().rss - before < 64 * MIB
    assert [room.nbytes for room in rooms] == [GIB // 4] * 8


def test_room_that_nobody_has_is_refused() -> None:
    with pytest.raises(OutOfMemory):
        room_for(1 << 62)


@pytest.mark.parametrize("count", [0, 1, 1000])
def test_what_arrives_in_a_room_is_a_tensor(count: int) -> None:
    room = room_for(4 * count)
    room[:] = np.arange(count, dtype="<f4").tobytes()
    assert np.array_equal(tensor_from(room, TensorType((count,), F32)), np.arange(count))


def test_a_stream_nobody_asked_for_is_refused() -> None:
    exchange = BlobExchange(None, lambda address: None)
    with pytest.raises(BlobMissing, match="nobody waits"):
        exchange.open_stream(cast(Link, None), BlobStream(bytes(32), 1), GIB)
