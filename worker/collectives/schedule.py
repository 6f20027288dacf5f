"""A schedule: the moves of one rank in a collective operation, as data.

A program (`algorithms.py`) speaks of regions of a tensor.  Its schedule says the same of elements: which chunk is sent
to which ranks, and which chunks are combined into which part of the result, in order.  `executor.py` performs it.
"""

from __future__ import annotations

from dataclasses import dataclass

from .algorithms import Program, Send, chunk_of, steps


@dataclass(frozen=True, slots=True)
class SendChunk:
    """Send elements [start, stop) of the operand, or with `of_result` of the result, to rank `to`."""

    to: int
    start: int
    stop: int
    of_result: bool


@dataclass(frozen=True, slots=True)
class CombineChunk:
    """Make elements [start, stop) of the result from one chunk of every rank in `sources`, combined in that order.

    The own rank among them stands for elements [own_start, own_stop) of the operand, or with `of_result` for what
    elements [start, stop) of the result are so far.
    """

    start: int
    stop: int
    sources: tuple[int, ...]
    own_start: int
    own_stop: int
    of_result: bool


@dataclass(frozen=True, slots=True)
class Schedule:
    """`sources` are the ranks that send to this one.  With `acknowledged` the operation is over only when every other
    rank has taken what this one sent: until then it may object."""

    moves: tuple[SendChunk | CombineChunk, ...]
    sources: frozenset[int]
    acknowledged: bool = False


def schedule_of(program: Program, chunk_max: int, acknowledged: bool = False) -> Schedule:
    """The schedule of a program whose chunks have at most `chunk_max` elements.

    Moves of empty chunks are left out, except in the first round: its messages also tell the ranks apart that perform
    another operation.
    """
    moves: list[SendChunk | CombineChunk] = []
    chunks = program.chunks(chunk_max)
    for step, chunk in steps(program, chunks):
        if isinstance(step, Send):
            tensor = program.result if step.of_result else program.operand
            start, stop = chunk_of(tensor[step.region], chunk, chunks)
            if start < stop or not chunk:
                moves.append(SendChunk(step.to, start, stop, step.of_result))
        else:
            start, stop = chunk_of(program.result[step.region], chunk, chunks)
            own = chunk_of(program.operand[step.own_region], chunk, chunks)
            if start < stop or not chunk:
                moves.append(CombineChunk(start, stop, step.sources, *own, step.of_result))
    sources = frozenset(rank for move in moves if isinstance(move, CombineChunk) for rank in move.sources)
    return Schedule(tuple(moves), sources, acknowledged)
