"""The parity builder: it sums what it has, checks what it is asked to make, and answers its coordinator only."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from wire.erasure.gf256 import checks, coefficients
from wire.errors import BlobCorrupt, BlobMissing, ConnectFailed, ProtocolError
from wire.ir.codec import hash_bytes
from wire.link.link import Link
from wire.protocol.messages import Combine, Term
from worker.daemon.blob_fetcher import RemoteBlobs
from worker.daemon.blob_store import BlobStore
from worker.daemon.parity_builder import ASIDE_MAX, ParityBuilder, _Turn

OWNER = "coordinator"
HANGS_S = 60.0
CONTENTS = [np.random.default_rng(seed).bytes(100 + 7 * seed) for seed in range(3)]
LONGEST = max(map(len, CONTENTS))


async def nobody(node: str, addresses: Sequence[str]) -> Link:
    raise ConnectFailed("no node answers", node=node)


async def worker(tmp_path: Path, *held: bytes) -> tuple[ParityBuilder, BlobStore]:
    store = BlobStore(tmp_path / "disk", tmp_path / "memory")
    for content in held:
        await store.put(hash_bytes(content), memoryview(content), keep=False)
    endpoint: Any = SimpleNamespace(links={})
    exchange: Any = None  # nothing is fetched here
    return ParityBuilder(store, RemoteBlobs(endpoint, exchange, lambda: OWNER, nobody)), store


def terms(factors: Sequence[int], contents: Sequence[bytes]) -> tuple[Term, ...]:
    return tuple(
        Term(factor, hash_bytes(content), len(content), ("elsewhere",))
        for factor, content in zip(factors, contents, strict=True)
    )


async def test_a_content_is_made_again_of_a_check_and_the_others(tmp_path: Path) -> None:
    combining, store = await worker(tmp_path, *CONTENTS)
    (row, _) = checks(3, 2)
    made = await combining.answer(Combine(terms(row, CONTENTS), LONGEST, {}))
    assert (made.bytes_socket, made.bytes_shared) == (0, 0)
    check = bytes(store.view(made.blob) or b"")
    other, there = await worker(tmp_path / "other", CONTENTS[0], CONTENTS[2], check)
    lost = hash_bytes(CONTENTS[1])
    asked = Combine(
        terms(coefficients(3, 2, 1, (0, 2, 3)), [CONTENTS[0], CONTENTS[2], check]), len(CONTENTS[1]), {}, lost
    )
    assert (await other.answer(asked)).blob == lost
    assert bytes(there.view(lost) or b"") == CONTENTS[1]
    there.discard([lost])
    assert await there.find(lost) is None, "nobody pinned it"


async def test_what_is_not_what_was_lost_is_refused(tmp_path: Path) -> None:
    combining, store = await worker(tmp_path, *CONTENTS)
    lost = hash_bytes(b"something else")
    with pytest.raises(BlobCorrupt):
        await combining.answer(Combine(terms((1, 1, 1), CONTENTS), LONGEST, {}, lost))
    assert await store.find(lost) is None


async def test_what_may_be_asked_for(tmp_path: Path) -> None:
    combining, _ = await worker(tmp_path, CONTENTS[0])
    with pytest.raises(ProtocolError, match="longer than all"):
        await combining.answer(Combine(terms((1,), CONTENTS[:1]), 1 << 50, {}))
    with pytest.raises(BlobMissing, match="no node answers"):
        await combining.answer(Combine(terms((1,), CONTENTS[1:2]), 100, {"elsewhere": ("127.0.0.1:1",)}))


async def test_a_sum_that_waits_for_a_holder_lets_others_have_their_turn(tmp_path: Path) -> None:
    """Several do, and each goes on once its content is there; one that is cancelled leaves no turn taken."""
    builder, _ = await worker(tmp_path, CONTENTS[0])
    sent, waiting = asyncio.Event(), list[bytes]()
    slow = [np.random.default_rng(seed).bytes(64) for seed in range(10, 10 + ASIDE_MAX)]

    async def fetch(holder: str, blob: bytes, size_bytes: int, addresses: Sequence[str]) -> tuple[memoryview, bool]:
        waiting.append(blob)
        await sent.wait()
        return memoryview(next(content for content in slow if hash_bytes(content) == blob)), False

    builder._remote.fetch = fetch  # type: ignore[method-assign]
    async with asyncio.timeout(HANGS_S):
        sums = [asyncio.create_task(builder.answer(Combine(terms((1,), [each]), 64, {}))) for each in slow]
        while len(waiting) < ASIDE_MAX:
            await asyncio.sleep(0.01)
        own = await builder.answer(Combine(terms((1,), CONTENTS[:1]), len(CONTENTS[0]), {}))
        assert own.blob == hash_bytes(CONTENTS[0]) and not any(each.done() for each in sums)
        sums[0].cancel()
        sent.set()
        made = await asyncio.gather(*sums, return_exceptions=True)
    assert isinstance(made[0], asyncio.CancelledError)
    assert [each.blob for each in made[1:]] == [hash_bytes(content) for content in slow[1:]]  # type: ignore
    assert not builder._turns.locked() and not builder._aside


async def test_few_sums_hold_their_bytes_at_once() -> None:
    turns = asyncio.Lock()
    aside = {_Turn(turns, set()) for _ in range(ASIDE_MAX)}
    turn = _Turn(turns, aside)
    await turn.take()
    turn._step_aside()
    assert turns.locked(), "it keeps its turn until its holder has sent the content, or its time is over"
    aside.pop()
    turn._step_aside()
    assert not turns.locked() and turn in aside
