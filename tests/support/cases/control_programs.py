"""Random programs of nested branches and loops, for two interpreters: `mesh`'s functions and Python's own statements.

A program is a list of statements over a few variables of one shape, which follows from its seed alone.  It is run twice
by the same code: with `Traced` it becomes a graph, with `Plain` it is numpy and Python.  To cover more, add a row of
STATEMENTS.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import mesh
import mesh.numpy as mnp

VARIABLES = 3
DEPTH_MAX = 3
State = tuple[Any, ...]
Statement = Callable[[Any, State], State]


class Plain:
    """What the program means: numpy, and Python's statements."""

    xp = np

    def cond(self, asked: Any, then: Any, otherwise: Any, state: State) -> State:
        return then(state) if asked else otherwise(state)

    def fori(self, count: int, body: Any, state: State) -> State:
        for at in range(count):
            state = body(np.int32(at), state)
        return state

    def loop(self, test: Any, body: Any, state: Any) -> Any:
        while test(state):
            state = body(state)
        return state

    def scan(self, body: Any, state: State, rows: Any, reverse: bool) -> Any:
        found = [None] * len(rows)
        for at in reversed(range(len(rows))) if reverse else range(len(rows)):
            state, found[at] = body(state, rows[at])
        return state, np.stack(found)


class Traced:
    """The same as a graph."""

    xp = mnp

    def cond(self, asked: Any, then: Any, otherwise: Any, state: State) -> Any:
        return mesh.cond(asked, then, otherwise, state)

    def fori(self, count: int, body: Any, state: State) -> Any:
        return mesh.fori_loop(0, count, body, state)

    def loop(self, test: Any, body: Any, state: Any) -> Any:
        return mesh.while_loop(test, body, state)

    def scan(self, body: Any, state: State, rows: Any, reverse: bool) -> Any:
        return mesh.scan(body, state, rows, reverse=reverse)


def program(seed: int) -> Callable[[Any, State], State]:
    """A function of an interpreter and VARIABLES square arrays, to as many."""
    rng = np.random.default_rng(seed)
    return _block(rng, DEPTH_MAX, 3)


def _block(rng: np.random.Generator, depth: int, most: int) -> Statement:
    rows = STATEMENTS if depth else STATEMENTS[:PLAIN]
    made = [rows[int(rng.integers(len(rows)))](rng, depth) for _ in range(int(rng.integers(1, most + 1)))]

    def block(run: Any, state: State) -> State:
        for statement in made:
            state = statement(run, state)
        return state

    return block


def _set(state: State, place: int, value: Any) -> State:
    return tuple(value if at == place else each for at, each in enumerate(state))


def _places(rng: np.random.Generator) -> list[int]:
    return [int(place) for place in rng.integers(VARIABLES, size=3)]


def _assign(rng: np.random.Generator, depth: int) -> Statement:
    """Tame: every value stays within [-2, 2]."""
    a, b, c = _places(rng)
    which = int(rng.integers(5))

    def statement(run: Any, state: State) -> State:
        x, y, xp = state[a], state[b], run.xp
        rows: list[Callable[[], Any]] = [
            lambda: xp.sin(x) + 0.5 * xp.cos(y), lambda: 0.25 * x * y, lambda: xp.maximum(x, -y) * 0.5,
            lambda: xp.tanh(x @ y), lambda: xp.where(x > 0, y, x * 0.5),
        ]  # fmt: skip
        return _set(state, c, rows[which]())

    return statement


def _turned(rng: np.random.Generator, depth: int) -> Statement:
    a, _, c = _places(rng)
    return lambda run, state: _set(state, c, state[a].T[::-1])


def _branch(rng: np.random.Generator, depth: int) -> Statement:
    a, b, _ = _places(rng)
    then, otherwise = _block(rng, depth - 1, 2), _block(rng, depth - 1, 2)

    def statement(run: Any, state: State) -> State:
        asked = state[a][0, 0] + 0.1 > state[b][-1, -1]
        found: State = run.cond(asked, lambda s: then(run, s), lambda s: otherwise(run, s), state)
        return found

    return statement


def _counted(rng: np.random.Generator, depth: int) -> Statement:
    count, (a, b, c), inner = int(rng.integers(4)), _places(rng), _block(rng, depth - 1, 2)

    def statement(run: Any, state: State) -> State:
        outside = state[a]  # a body may use what is outside of it

        def body(at: Any, s: State) -> State:
            s = inner(run, s)
            return _set(s, c, run.xp.sin(s[b] + outside * 0.5 + at))

        found: State = run.fori(count, body, state)
        return found

    return statement


def _asked(rng: np.random.Generator, depth: int) -> Statement:
    """Until a value is small, and six turns at the most."""
    a, b, _ = _places(rng)
    inner = _block(rng, depth - 1, 2)

    def statement(run: Any, state: State) -> State:
        def test(s: Any) -> Any:
            return (s[0] < 6) & (s[1][a][0, 0] * 2 + s[1][b][0, 1] > -0.3)

        found: State = run.loop(test, lambda s: (s[0] + 1, inner(run, s[1])), (0, state))[1]
        return found

    return statement


def _scanned(rng: np.random.Generator, depth: int) -> Statement:
    (a, b, c), reverse, inner = _places(rng), bool(rng.integers(2)), _block(rng, depth - 1, 2)

    def statement(run: Any, state: State) -> State:
        def body(s: State, row: Any) -> Any:
            s = inner(run, s)
            return s, run.xp.tanh(s[b][0] + row)

        state, rows = run.scan(body, state, state[a], reverse)
        return _set(state, c, rows)

    return statement


STATEMENTS: list[Callable[[np.random.Generator, int], Statement]] = [
    _assign, _assign, _turned, _branch, _counted, _asked, _scanned,
]  # fmt: skip
PLAIN = 3  # the first of them, which have no blocks inside
