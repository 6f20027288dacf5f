"""Decoders, whatever bytes come: every one refuses them as it should or takes them for what they are, and keeps no
memory.

The default run makes a quarter of a million inputs in all, every decoder its share.
`python tests/wire/ir/test_fuzz.py COUNT FIRST` makes COUNT, others for every FIRST, and prints what came of them;
`script/test --long fuzz` does that 10^7 times.
"""

from __future__ import annotations

import contextlib
import random
import sys
import time
import traceback
import tracemalloc
from pathlib import Path

import psutil
import pytest
from support.golden import square_sum
from support.hostile.decoders import DECODERS
from support.hostile.fuzzing import Decoder, Tried, fuzz
from support.hostile.tampering import EXTREMES, TEXT_EXTREMES, graph_bombs, message_bombs
from support.messages import MESSAGES

from wire.errors import FrameError, GraphError, VersionMismatch
from wire.ir.codec import decode_graph
from wire.ir.verify import verify
from wire.limits import MIB
from wire.protocol.messages import decode_message, encode_message

DEFAULT_COUNT = 150_000
WARM_UP = 0.1  # of the inputs fill caches and pools; then the memory stays what it is
GROWTH_MAX_BYTES = 16 * MIB


def try_flat(decoder: Decoder, count: int, first: int) -> tuple[Tried, int]:
    """What came of so many inputs, of which the due share was refused, and the bytes by which the process grew."""
    warm = fuzz(decoder, max(1, int(count * WARM_UP)), first)
    before = psutil.Process().memory_info().rss
    tried = fuzz(decoder, count - warm.count, first + 1)
    grown = psutil.Process().memory_info().rss - before
    both = Tried(count, warm.refused + tried.refused)
    assert grown < GROWTH_MAX_BYTES, f"{decoder.name}: grown by {grown / MIB:.1f} MiB over {tried.count} inputs"
    assert count < 1000 or both.refused >= decoder.refused * count, f"{decoder.name}: only {both.refused} refused"
    return both, grown


@pytest.mark.filterwarnings("ignore:Parsed a serial number")  # of a damaged certificate
@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder.name)
def test_damaged_inputs_raise_nothing_but_what_they_should_and_keep_no_memory(decoder: Decoder) -> None:
    share = decoder.of_million * DEFAULT_COUNT // 1_000_000
    tried, _ = try_flat(decoder, share, 0)
    assert tried.count == share > 0


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder.name)
def test_originals_are_taken_and_an_extreme_at_any_place_is_not_believed(decoder: Decoder, tmp_path: Path) -> None:
    target = decoder.open(tmp_path)
    if not target.whole:
        assert not any(map(target.attempt, target.originals))
    tracemalloc.start()
    for data in sorted(target.originals, key=len)[::5]:
        for extreme in (*EXTREMES, *TEXT_EXTREMES):
            for at in range(0, len(data), 1 + len(data) * len(target.originals) * 5000 // decoder.of_million):
                target.attempt(data[:at] + extreme + data[at:])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * MIB


@pytest.mark.parametrize("extreme", EXTREMES, ids=bytes.hex)
def test_an_extreme_anywhere_in_a_graph_is_not_believed(extreme: bytes) -> None:
    data = square_sum().encoded
    tracemalloc.start()
    for at in range(len(data)):
        for tail in (data[at:], data[at + len(extreme) :]):
            with contextlib.suppress(GraphError, VersionMismatch):
                verify(decode_graph(data[:at] + extreme + tail))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * MIB


@pytest.mark.parametrize("extreme", EXTREMES, ids=bytes.hex)
def test_an_extreme_anywhere_in_a_message_is_not_believed(extreme: bytes) -> None:
    tracemalloc.start()
    for data in map(encode_message, MESSAGES):
        for at in range(len(data)):
            with contextlib.suppress(FrameError):
                decode_message(data[:at] + extreme + data[at:])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 * MIB


@pytest.mark.parametrize("begins", [b"", b"\x9a\x01"], ids=["any", "like a graph"])
def test_random_bytes_are_no_graph(begins: bytes) -> None:
    rng = random.Random(9)
    for _ in range(3000):
        with pytest.raises((GraphError, VersionMismatch)):
            decode_graph(begins + rng.randbytes(rng.randrange(200)))


def test_damaged_frames_keep_no_allocation() -> None:
    (frames,) = (decoder for decoder in DECODERS if decoder.name == "frames")
    tracemalloc.start()
    fuzz(frames, 1000, 20)
    before = tracemalloc.get_traced_memory()[0]
    tried = fuzz(frames, 50_000, 21)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert tried.refused > 5_000 and grown < 100_000


@pytest.mark.parametrize("name", graph_bombs())
def test_a_bomb_for_the_graph_decoder_costs_no_more_than_its_bytes(name: str) -> None:
    data = graph_bombs()[name]
    tracemalloc.start()
    with pytest.raises(GraphError):
        decode_graph(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50 * MIB + 20 * len(data)


@pytest.mark.parametrize("name", message_bombs())
def test_a_bomb_for_the_message_decoder_costs_no_more_than_its_bytes(name: str) -> None:
    data = message_bombs()[name]
    tracemalloc.start()
    with pytest.raises(FrameError):
        decode_message(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 * MIB + 20 * len(data)


def test_an_input_that_breaks_a_decoder_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    (frames,) = (decoder for decoder in DECODERS if decoder.name == "frames")
    assert fuzz(frames, 50, 1) == fuzz(frames, 50, 1), "inputs follow from the seeds"
    monkeypatch.setattr("support.hostile.network_decoders.decode", lambda data: data[99_999])
    with pytest.raises(IndexError) as told:
        fuzz(frames, 1, 4)
    assert told.value.__notes__[0].startswith("frames, inputs of 4, number 0: b")


# -- by hand, and for hours --------------------------------------------------------------------------------


def main(count: int, first: int) -> int:
    failed, process = [], psutil.Process()
    for decoder in DECODERS:
        began_s, wanted = time.perf_counter(), decoder.of_million * count // 1_000_000
        try:
            tried, grown = try_flat(decoder, wanted, first)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            traceback.print_exc()
            failed.append(decoder.name)
            continue
        took_us = (time.perf_counter() - began_s) / max(1, wanted) * 1e6
        print(
            f"{decoder.name:16} {tried.count:8} inputs, {tried.refused:8} refused, {took_us:6.1f} us each, "
            f"grown by {grown >> 10} KiB",
            flush=True,
        )
    print(
        f"{count} inputs from {first}: {len(failed)} decoders failed, {process.memory_info().rss / MIB:.0f} MiB in use"
    )
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
