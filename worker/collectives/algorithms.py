"""Algorithms of collectives: for every rank, which part of a tensor it sends to which ranks, and what it combines.
Pure.

A *program* is what one rank does.  Its tensor is cut into *regions*, every region into *chunks* that fit into a slot of
a ring buffer, and each chunk goes through the program's *stages* in turn.  `steps` is the order: stage s handles chunk
c after stage s - 1 did, while later chunks are still in earlier stages, so sending, combining and receiving overlap.
Each step waits until it can be done.  There is no deadlock as long as a ring buffer has SLOTS_MIN slots
(tests/worker/collectives/test_collective_algorithms.py simulates it).

A `Combine` names the ranks whose values it combines, in that order: ((a + b) + c) + ...  With "exchange", "direct",
"star" and "chain" that is the order of the ranks, so these four give the same bits.  "doubling" combines pairs of
neighbours, then pairs of those, and "ring" starts each region with another rank: both are deterministic too, but have
other bits for floats.  So floats get only the first four, unless an algorithm is asked for by name.

Costs, with n ranks, m bytes, a latency and b bytes/s (Thakur, Rabenseifner, Gropp, "Optimization of Collective
Communication Operations in MPICH", 2005; Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
workstations", 2009, who show that no all-reduce sends less than 2 (n - 1) / n m per rank) are in `COSTS`.

To add an algorithm, write a function that makes its stages and add a row to `ALL_REDUCE` and to `COSTS`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from wire.errors import ConfigError

Region = tuple[int, int]  # elements [start, stop) of the flat tensor


@dataclass(frozen=True, slots=True)
class Send:
    """Send a region of the operand, or with `of_result` of the result, to a rank."""

    to: int
    region: int
    of_result: bool = False


@dataclass(frozen=True, slots=True)
class Combine:
    """Make a region of the result from what the ranks in `sources` sent, combined in that order.  The own rank among
    them stands for region `own_region` of the operand, or with `of_result` for the region of the result as it is."""

    region: int
    sources: tuple[int, ...]
    own_region: int = 0
    of_result: bool = False


Step = Send | Combine
Stage = tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """What one rank does.  `operand` and `result` are the regions of the two tensors.  `lags[s]` says how many chunks
    stage s is behind the first one: at least as many as the stages whose messages it receives."""

    stages: tuple[Stage, ...]
    lags: tuple[int, ...]
    operand: tuple[Region, ...]
    result: tuple[Region, ...]

    def chunks(self, chunk_max: int) -> int:
        """The number of chunks of at most `chunk_max` elements into which every region is cut; one at least."""
        longest = max((stop - start for start, stop in (*self.operand, *self.result)), default=0)
        return max(1, -(-longest // chunk_max))


def steps(program: Program, chunks: int) -> Iterator[tuple[Step, int]]:
    """The steps in order, each with its chunk number."""
    staged = tuple(zip(program.stages, program.lags, strict=True))
    for turn in range(chunks + max(program.lags, default=0)):
        for stage, lag in staged:
            if 0 <= turn - lag < chunks:
                for step in stage:
                    yield step, turn - lag


def chunk_of(region: Region, chunk: int, chunks: int) -> Region:
    """The elements of a chunk of a region.  They depend on the region's length only, so all ranks agree."""
    start, size = region[0], region[1] - region[0]
    return start + size * chunk // chunks, start + size * (chunk + 1) // chunks


def regions(count: int, shares: Sequence[float]) -> tuple[Region, ...]:
    """Cut `count` elements into regions in proportion to `shares`."""
    total, sums = sum(shares), [0.0]
    for share in shares:
        sums.append(sums[-1] + share)
    bounds = [round(count * portion / total) for portion in sums]
    return tuple(itertools.pairwise(bounds))


def even(count: int, n: int) -> tuple[Region, ...]:
    """Cut `count` elements into n regions that are as equal as possible."""
    return tuple((count * i // n, count * (i + 1) // n) for i in range(n))


def others(rank: int, n: int) -> tuple[int, ...]:
    """All other ranks, the next one first, so that not all ranks send to the same one at once."""
    return tuple((rank + step) % n for step in range(1, n))


# -- all_reduce ----------------------------------------------------------------------------------------------


def exchange(rank: int, n: int, count: int, _shares: Sequence[float]) -> Program:
    """Every rank sends everything to every other: one latency."""
    sends = tuple(Send(to, 0) for to in others(rank, n))
    return Program(((*sends, Combine(0, tuple(range(n)))),), (0,), ((0, count),), ((0, count),))


def direct(rank: int, n: int, count: int, shares: Sequence[float]) -> Program:
    """Each rank combines its region of all operands, and sends it to all: two latencies, and the fewest bytes."""
    cut = regions(count, shares)
    scatter = tuple(Send(to, to) for to in others(rank, n))
    combine = Combine(rank, tuple(range(n)), own_region=rank)
    gather = tuple(Send(to, rank, of_result=True) for to in others(rank, n))
    receive = tuple(Combine(owner, (owner,)) for owner in others(rank, n))
    return Program((scatter, (combine, *gather), receive), (0, 1, 2), cut, cut)


def star(rank: int, n: int, count: int, _shares: Sequence[float]) -> Program:
    """All ranks send everything to rank 0, which combines it and sends the result to all."""
    uncut = ((0, count),)
    if rank:
        return Program(((Send(0, 0),), (Combine(0, (0,)),)), (0, 2), uncut, uncut)
    back = tuple(Send(to, 0, of_result=True) for to in range(1, n))
    return Program(((Combine(0, tuple(range(n))), *back),), (0,), uncut, uncut)


def chain(rank: int, n: int, count: int, _shares: Sequence[float]) -> Program:
    """Combine up the ranks, then send the result down: neighbours only, and each link is used both ways at once."""
    uncut, last = ((0, count),), n - 1
    combine = Combine(0, (rank - 1, rank) if rank else (0,))
    back = (Send(rank - 1, 0, of_result=True),) if rank else ()
    if rank == last:
        return Program(((combine, *back),), (0,), uncut, uncut)
    up = (combine, Send(rank + 1, 0, of_result=True)) if rank else (Send(1, 0),)
    return Program((up, (Combine(0, (rank + 1,)), *back)), (0, 2 * (last - rank)), uncut, uncut)


def ring(rank: int, n: int, count: int, _shares: Sequence[float]) -> Program:
    """Regions go round the ring twice, first to be combined and then to be known: neighbours only, the fewest bytes."""
    cut, left, right = even(count, n), (rank - 1) % n, (rank + 1) % n
    if n == 1:
        return Program(((Combine(0, (0,)),),), (0,), cut, cut)
    stages: list[Stage] = []
    for turn in range(n - 1):
        arriving = (rank - turn - 1) % n
        send = Send(right, (rank - turn) % n, of_result=turn > 0)
        stages.append((send, Combine(arriving, (left, rank), own_region=arriving)))
    for turn in range(n - 1):
        stages.append((Send(right, (rank + 1 - turn) % n, of_result=True), Combine((rank - turn) % n, (left,))))
    return Program(tuple(stages), tuple(range(len(stages))), cut, cut)


def doubling(rank: int, n: int, count: int, _shares: Sequence[float]) -> Program:
    """Pairs exchange all they have, then pairs of pairs: log2 n latencies.  If n is no power of two, the first ranks
    send theirs to their neighbours before, and receive the result after."""
    uncut = ((0, count),)
    power = 1 << (n.bit_length() - 1)
    folded = 2 * (n - power)
    if rank < folded and rank % 2 == 0:
        return Program(((Send(rank + 1, 0),), (Combine(0, (rank + 1,)),)), (0, power.bit_length()), uncut, uncut)
    stages: list[Stage] = [(Combine(0, (rank - 1, rank) if rank < folded else (rank,)),)]
    place = rank // 2 if rank < folded else rank - folded // 2
    for bit in range(power.bit_length() - 1):
        partner = _rank_at(place ^ (1 << bit), folded)
        pair = (min(rank, partner), max(rank, partner))
        stages.append((Send(partner, 0, of_result=True), Combine(0, pair, of_result=True)))
    if rank < folded:
        stages.append((Send(rank - 1, 0, of_result=True),))
    return Program(tuple(stages), tuple(range(len(stages))), uncut, uncut)


def _rank_at(place: int, folded: int) -> int:
    """The rank that takes part in the doubling at `place`."""
    return 2 * place + 1 if place < folded // 2 else place + folded // 2


AllReduce = Callable[[int, int, int, Sequence[float]], Program]
ALL_REDUCE: dict[str, AllReduce] = {
    "exchange": exchange, "direct": direct, "star": star, "chain": chain, "ring": ring, "doubling": doubling,
}  # fmt: skip
BY_RANK = ("exchange", "direct", "star", "chain")  # combine in the order of ranks: equal to the bit
PARTIAL = ("chain", "ring", "doubling")  # send partial sums, which must not be rounded yet


SLOTS_MIN = 3  # of a ring buffer: with fewer, ranks may wait for each other


# -- the others ----------------------------------------------------------------------------------------------


def reduce_scatter(rank: int, n: int, count: int) -> Program:
    """Combine `count` elements of every rank, a multiple of n; rank i gets the i-th n-th of the result."""
    sends = tuple(Send(to, to) for to in others(rank, n))
    mine = Combine(0, tuple(range(n)), own_region=rank)
    return Program((sends, (mine,)), (0, 1), even(count, n), ((0, count // n),))


def all_gather(rank: int, n: int, count: int) -> Program:
    """Join `count` elements of every rank, in the order of the ranks."""
    sends = tuple(Send(to, 0) for to in others(rank, n))
    receive = tuple(Combine(owner, (owner,)) for owner in (rank, *others(rank, n)))
    return Program((sends, receive), (0, 1), ((0, count),), even(n * count, n))


def all_to_all(rank: int, n: int, count: int) -> Program:
    """Send the j-th n-th of every rank's `count` elements to rank j."""
    cut = even(count, n)
    sends = tuple(Send(to, to) for to in others(rank, n))
    receive = tuple(Combine(source, (source,), own_region=source) for source in (rank, *others(rank, n)))
    return Program((sends, receive), (0, 1), cut, cut)


def permute(rank: int, n: int, count: int, pairs: Sequence[tuple[int, int]]) -> Program:
    """Send everything from source to target of each pair.  The result of a rank that is no target is not written."""
    uncut = ((0, count),)
    sends = tuple(Send(to, 0) for source, to in pairs if source == rank and to != rank)
    receive = tuple(Combine(0, (source,)) for source, to in pairs if to == rank)
    return Program((sends, receive), (0, 1), uncut, uncut)


def broadcast(rank: int, n: int, count: int, root: int) -> Program:
    """Send everything of `root` to all."""
    sends = tuple(Send(to, 0) for to in others(rank, n)) if rank == root else ()
    return Program(((*sends, Combine(0, (root,))),), (0,), ((0, count),), ((0, count),))


def barrier(rank: int, n: int) -> Program:
    """Exchange empty messages, so that no rank goes on before all have come."""
    sends = tuple(Send(to, 0) for to in others(rank, n))
    return Program(((*sends, *(Combine(0, (source,)) for source in others(rank, n))),), (0,), ((0, 0),), ((0, 0),))


# -- which one -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Transport:
    """The way between ranks: the seconds that a message takes, and the bytes/s that a rank sends and combines."""

    latency_s: float
    bytes_per_s: float
    combine_bytes_per_s: float = 8e9


SHARED = Transport(latency_s=8e-6, bytes_per_s=4e9)  # measured: bench/collectives.py
REMOTE = Transport(latency_s=200e-6, bytes_per_s=600e6)  # to another machine: between the same and one on 10 Gbit/s

# Seconds for n ranks and m bytes, with the bytes that one rank sends and those that it combines.
COSTS: dict[str, Callable[[int, float, Transport], float]] = {
    "exchange": lambda n, m, p: p.latency_s + (n - 1) * m * _both(p),
    "direct": lambda n, m, p: 2 * p.latency_s + (n - 1) / n * m * (1 / p.bytes_per_s + _both(p)),
    "star": lambda n, m, p: 2 * p.latency_s + (n - 1) * m * (1 / p.bytes_per_s + _both(p)),
    "chain": lambda n, m, p: 2 * (n - 1) * p.latency_s + m * (1 / p.bytes_per_s + _both(p)),
    "ring": lambda n, m, p: 2 * (n - 1) * p.latency_s + (n - 1) / n * m * (1 / p.bytes_per_s + _both(p)),
    "doubling": lambda n, m, p: (n - 1).bit_length() * (p.latency_s + m * _both(p)),
}


def _both(transport: Transport) -> float:
    return 1 / transport.bytes_per_s + 1 / transport.combine_bytes_per_s


def choose(n: int, size_bytes: int, transport: Transport, exact: bool = False) -> str:
    """The cheapest all-reduce that combines in the order of the ranks.  With `exact`, the order does not matter."""
    names = tuple(ALL_REDUCE) if exact else BY_RANK
    return min(names, key=lambda name: COSTS[name](n, size_bytes, transport))


def shares(bytes_per_s: Sequence[float]) -> tuple[float, ...]:
    """The share of a tensor that each rank should combine in "direct", so that unequal links finish at the same time.

    A rank that combines the share f sends (1 - f) m of its operand and (n - 1) f m of the result, which takes
    m (1 + (n - 2) f) / b seconds.  The shares make this equal for all ranks: a slow rank gets little, and a very slow
    one nothing.
    """
    n = len(bytes_per_s)
    if min(bytes_per_s) <= 0:
        raise ConfigError("a link carries a positive number of bytes per second")
    if n < 3:
        return (1 / n,) * n
    taking = set(range(n))
    while True:  # ranks that need longer than the common time for their operand alone take nothing
        time = (len(taking) + n - 2) / sum(bytes_per_s[rank] for rank in taking)
        idle = {rank for rank in taking if time * bytes_per_s[rank] < 1}
        if not idle:
            break
        taking -= idle
    return tuple(max(0.0, (time * bytes_per_s[rank] - 1) / (n - 2)) if rank in taking else 0.0 for rank in range(n))
