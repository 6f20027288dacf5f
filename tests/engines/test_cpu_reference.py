"""The cpu engine against references written independently of it, over every case of the op table."""

import numpy as np
import pytest
from support.cases.op_cases import PROGRAMS, ROWS, Case, cases
from support.cases.random_graphs import random_graph
from support.cases.references import REFERENCES, reference, threefry2x32
from support.compare import assert_close, magnitude_of

from wire.ir.dtypes import C128, DTYPES, F32, F64, DType
from wire.ir.ops import LEAVES, OPS, Tolerance, tolerance_for
from worker.cpu import evaluate

F64_FACTOR = 2.0**-29  # the table's numbers are for f32; here f64 must be as much closer as its rounding is


def closeness(op: str, dtype: DType) -> Tolerance:
    allowed = tolerance_for(op, dtype)
    return Tolerance(allowed.rtol * F64_FACTOR, allowed.atol * F64_FACTOR) if dtype in (F64, C128) else allowed


def some(op: str) -> list[Case]:
    """All cases in float32, or in the op's first dtype, and a third of those in each other dtype: other ones from dtype
    to dtype."""
    of_dtype: dict[DType, list[Case]] = {}
    for case in cases(op):
        of_dtype.setdefault(case.dtype, []).append(case)
    whole = F32 if F32 in of_dtype else next(iter(of_dtype))
    others = [each for dtype, each in of_dtype.items() if dtype != whole]
    return [*of_dtype[whole], *(case for place, each in enumerate(others) for case in each[place % 3 :: 3] or each)]


@pytest.mark.parametrize("op", [*ROWS, *PROGRAMS])
def test_cpu_agrees_with_the_reference(op: str) -> None:
    agrees(some(op), op)


@pytest.mark.long
@pytest.mark.parametrize("op", [*ROWS, *PROGRAMS])
def test_cpu_agrees_with_the_reference_in_every_case(op: str) -> None:
    agrees(cases(op), op)


def agrees(chosen: list[Case], op: str) -> None:
    wrong = []
    for case in chosen:
        types = case.graph.output_types.values()
        found = zip(
            evaluate(case.graph, case.inputs),
            reference(case.graph, case.inputs),
            types,
            magnitude_of(case),
            strict=True,
        )
        for actual, expected, kind, magnitude in found:
            try:
                judged = case.dtype if case.dtype.kind == "c" and kind.dtype.kind == "f" else kind.dtype  # of abs
                assert_close(actual, expected, op, kind.dtype, magnitude, closeness(op, judged))
            except AssertionError as error:
                wrong.append(f"{case.id}: {error}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("seed", range(30))
def test_random_graphs_of_whole_numbers_agree_with_the_reference(seed: int) -> None:
    random = random_graph(seed, dtypes=[dtype for dtype in DTYPES if dtype.kind in "biu"])
    given = {**random.inputs, **random.params}
    for actual, expected in zip(evaluate(random.graph, given), reference(random.graph, given), strict=True):
        assert actual.dtype == expected.dtype
        assert np.array_equal(actual, expected)


def test_every_op_has_a_reference() -> None:
    assert set(REFERENCES) == set(OPS) - LEAVES - set(PROGRAMS)


@pytest.mark.parametrize(
    ("key", "counter", "words"),
    [  # Random123, tests/kat_vectors, threefry2x32 with 20 rounds
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_gives_the_published_words(
    key: tuple[int, int], counter: tuple[int, int], words: tuple[int, int]
) -> None:
    assert threefry2x32(key, counter) == words
