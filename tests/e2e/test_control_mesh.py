"""Branches and loops on three real workers: the bits of one alone, an endless loop cancelled, a death in a loop."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.processes.commands import PATIENT_S, wait_for
from support.processes.faults import EventTap, strike

import mesh.numpy as mnp
from mesh import Mesh, cond, errors, fori_loop, scan, value_and_grad, while_loop
from mesh import map as mapped

RNG = np.random.default_rng(0)
X = RNG.standard_normal((16, 32)).astype(np.float32)
W = (RNG.standard_normal((32, 32)) / 8).astype(np.float32)
SOON_S = 120.0  # for what takes milliseconds


@pytest.fixture(scope="module")
def three() -> Iterator[Mesh]:
    mesh = Mesh.builder().mesh("loops").local(3, engine="cpu").node_timeout(PATIENT_S).build()
    yield mesh
    mesh.close()


def program(x: Any, w: Any) -> Any:
    """Loops in loops and branches, with work before, between and after."""

    def turn(carry: Any, row: Any) -> Any:
        inner = while_loop(lambda c: c[1].sum() > c[0], lambda c: (c[0] + 1, c[1] * 0.5), (0, mnp.abs(row @ w)))
        carry = cond(inner[0] > 3, lambda: carry + inner[1], lambda: mnp.sin(carry) @ w)
        return carry, (carry.sum(), inner[0])

    first = mnp.tanh(x @ w)
    last, (sums, counts) = scan(turn, mnp.zeros(32), first)
    rows = mapped(lambda row: fori_loop(0, 4, lambda i, c: mnp.tanh(c @ w) + i, row), x @ w)
    return last, sums * 2, counts, rows @ w


def loss(w: Any, x: Any) -> Any:
    return (scan(lambda c, row: (mnp.tanh(c @ w + row), None), mnp.zeros(32), x)[0] ** 2).sum()


def forever(x: Any) -> Any:
    return while_loop(lambda c: c[0] == c[0], lambda c: (c[0] + 1, mnp.tanh(c[1])), (0, x))


def test_three_workers_give_the_bits_that_one_gives_and_serve_on_after_an_endless_loop(three: Mesh) -> None:
    for fn, arguments in ((program, (X, W)), (value_and_grad(loss), (W, X))):
        alone = three.run(fn, *arguments, mode="off")
        for strategy in ("single", "pipeline"):
            together = three.run(fn, *arguments, strategy=strategy)
            for found, expected in zip(together, alone, strict=True):
                assert found.tobytes() == expected.tobytes()
    tap = EventTap(three)
    for _ in range(3):  # as often as there are workers
        job = three.submit(forever, X)
        assert tap.wait(lambda event: event["kind"] == "began", SOON_S) is not None
        job.cancel()
        with pytest.raises(errors.Cancelled, match="the job was cancelled"):
            job.result(timeout_s=SOON_S)
        again = three.submit(program, X, W, strategy="pipeline").result(timeout_s=SOON_S)
        np.testing.assert_array_equal(again[0], three.run(program, X, W, mode="off")[0])
    wait_for(lambda: {node.state for node in three.nodes} == {"healthy"})


def test_a_death_in_a_loop_costs_time_and_nothing_else(three: Mesh) -> None:
    def long(x: Any, w: Any) -> Any:
        return scan(lambda c, _: (mnp.tanh(c @ w), ()), x, None, length=5_000)[0]

    expected = three.run(long, X, W, mode="off")
    _, result = strike(
        three, EventTap(three), "run", signal.SIGKILL, lambda: three.submit(long, X, W, strategy="single")
    )
    np.testing.assert_array_equal(result, expected)
