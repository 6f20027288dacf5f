"""Who sends which part of a tensor to whom, and combines what: every collective as a table of steps for one rank.

Pure, and it moves nothing.  A *program* is what one rank does: its tensor is cut into *regions*, every region into
*pieces* that fit into a letter, and each piece number goes through the program's *stages* in turn.  `steps` says in
which order: stage s takes piece p up after stage s - 1 did, while later pieces are still in the stages before, so
sending, combining and receiving overlap.  Whoever performs a step waits until it can be done, and no two ranks wait for
each other as long as a mailbox has `LETTERS_MIN` letters (tests/worker/collectives/test_collective_algorithms.py plays
it).

A `Combine` names the ranks whose values it combines, in that order: ((a + b) + c) + ...  With "exchange", "direct",
"star" and "chain" the order is that of the ranks, so these four give the same bits, whoever was late; "doubling"
combines pairs of neighbours, then pairs of those, and "ring" starts each region with another rank: deterministic, too,
but other bits for floats.  So floats are given only the first four unless somebody asks.

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
    """Send a region of what was given, or with `made` of the result, to a rank."""

    to: int
    region: int
    made: bool = False


@dataclass(frozen=True, slots=True)
class Combine:
    """Make a region of the result of what the ranks in `of` sent, in that order.  The own rank among them stands for
    region `own` of what was given, or with `made` for what the region of the result was so far."""

    region: int
    of: tuple[int, ...]
    own: int = 0
    made: bool = False


Step = Send | Combine
Stage = tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """What one rank does.  `given` and `result` are the regions of the two tensors; `lags[s]` says how many pieces
    stage s is behind the first: at least as many as the stages whose messages it takes."""

    stages: tuple[Stage, ...]
    lags: tuple[int, ...]
    given: tuple[Region, ...]
    result: tuple[Region, ...]

    def pieces(self, piece_max: int) -> int:
        """How many pieces of at most so many elements every region is cut into; one at least."""
        longest = max((stop - start for start, stop in (*self.given, *self.result)), default=0)
        return max(1, -(-longest // piece_max))


def steps(program: Program, pieces: int) -> Iterator[tuple[Step, int]]:
    """What to do in which order: each step with its piece number."""
    staged = tuple(zip(program.stages, program.lags, strict=True))
    for turn in range(pieces + max(program.lags, default=0)):
        for stage, lag in staged:
            if 0 <= turn - lag < pieces:
                for step in stage:
                    yield step, turn - lag


def piece_of(region: Region, piece: int, pieces: int) -> Region:
    """A piece of a region; the same for all ranks, since it depends on the region's length only."""
    start, size = region[0], region[1] - region[0]
    return start + size * piece // pieces, start + size * (piece + 1) // pieces


def regions(count: int, shares: Sequence[float]) -> tuple[Region, ...]:
    """`count` elements cut one after the other in proportion to `shares`."""
    total, sums = sum(shares), [0.0]
    for share in shares:
        sums.append(sums[-1] + share)
    bounds = [round(count * each / total) for each in sums]
    return tuple(itertools.pairwise(bounds))


def even(count: int, n: int) -> tuple[Region, ...]:
    """`count` elements in n regions as equal as can be."""
    return tuple((count * each // n, count * (each + 1) // n) for each in range(n))


def others(rank: int, n: int) -> tuple[int, ...]:
    """All other ranks, the next one first, so that not all send to the same one."""
    return tuple((rank + step) % n for step in range(1, n))


# -- all_reduce ----------------------------------------------------------------------------------------------


def exchange(rank: int, n: int, count: int, _shares: Sequence[float]) -> Program:
    """Everybody sends everything to everybody: one latency."""
    sends = tuple(Send(to, 0) for to in others(rank, n))
    return Program(((*sends, Combine(0, tuple(range(n)))),), (0,), ((0, count),), ((0, count),))


def direct(rank: int, n: int, count: int, shares: Sequence[float]) -> Program:
    """Each rank combines its region of all, and sends it to all: two latencies, and no rank sends more than it must."""
    cut = regions(count, shares)
    scatter = tuple(Send(to, to) for to in others(rank, n))
    combine = Combine(rank, tuple(range(n)), own=rank)
    gather = tuple(Send(to, rank, made=True) for to in others(rank, n))
    receive = tuple(Combine(each, (each,)) for each in others(rank, n))
    return Program((scatter, (combine, *gather), receive), (0, 1, 2), cut, cut)


def star(rank: int, n: int, count: int, _shares: Sequence[float]) -> Program:
    """All send everything to rank 0, which combines it and sends it to all."""
    whole = ((0, count),)
    if rank:
        return Program(((Send(0, 0),), (Combine(0, (0,)),)), (0, 2), whole, whole)
    back = tuple(Send(to, 0, made=True) for to in range(1, n))
    return Program(((Combine(0, tuple(range(n))), *back),), (0,), whole, whole)


def chain(rank: int, n: int, count: int, _shares: Sequence[float]) -> Program:
    """Up the ranks and combined on the way, then down again: neighbours only, each link both ways at once."""
    whole, last = ((0, count),), n - 1
    combine = Combine(0, (rank - 1, rank) if rank else (0,))
    back = (Send(rank - 1, 0, made=True),) if rank else ()
    if rank == last:
        return Program(((combine, *back),), (0,), whole, whole)
    up = (combine, Send(rank + 1, 0, made=True)) if rank else (Send(1, 0),)
    return Program((up, (Combine(0, (rank + 1,)), *back)), (0, 2 * (last - rank)), whole, whole)


def ring(rank: int, n: int, count: int, _shares: Sequence[float]) -> Program:
    """Regions travel round the ring, once combined and once to be known: neighbours only, and the fewest bytes."""
    cut, left, right = even(count, n), (rank - 1) % n, (rank + 1) % n
    if n == 1:
        return Program(((Combine(0, (0,)),),), (0,), cut, cut)
    stages: list[Stage] = []
    for turn in range(n - 1):
        arriving = (rank - turn - 1) % n
        send = Send(right, (rank - turn) % n, made=turn > 0)
        stages.append((send, Combine(arriving, (left, rank), own=arriving)))
    for turn in range(n - 1):
        stages.append((Send(right, (rank + 1 - turn) % n, made=True), Combine((rank - turn) % n, (left,))))
    return Program(tuple(stages), tuple(range(len(stages))), cut, cut)


def doubling(rank: int, n: int, count: int, _shares: Sequence[float]) -> Program:
    """Pairs exchange all they have, then pairs of pairs: log2 n latencies.  Where n is no power of two, the first ranks
    fold into their neighbours first and hear the result last."""
    whole = ((0, count),)
    power = 1 << (n.bit_length() - 1)
    folded = 2 * (n - power)
    if rank < folded and rank % 2 == 0:
        return Program(((Send(rank + 1, 0),), (Combine(0, (rank + 1,)),)), (0, power.bit_length()), whole, whole)
    stages: list[Stage] = [(Combine(0, (rank - 1, rank) if rank < folded else (rank,)),)]
    place = rank // 2 if rank < folded else rank - folded // 2
    for bit in range(power.bit_length() - 1):
        partner = _rank_at(place ^ (1 << bit), folded)
        pair = (min(rank, partner), max(rank, partner))
        stages.append((Send(partner, 0, made=True), Combine(0, pair, made=True)))
    if rank < folded:
        stages.append((Send(rank - 1, 0, made=True),))
    return Program(tuple(stages), tuple(range(len(stages))), whole, whole)


def _rank_at(place: int, folded: int) -> int:
    """The rank that takes part in the doubling at `place`."""
    return 2 * place + 1 if place < folded // 2 else place + folded // 2


AllReduce = Callable[[int, int, int, Sequence[float]], Program]
ALL_REDUCE: dict[str, AllReduce] = {
    "exchange": exchange, "direct": direct, "star": star, "chain": chain, "ring": ring, "doubling": doubling,
}  # fmt: skip
BY_RANK = ("exchange", "direct", "star", "chain")  # combine in the order of ranks: equal to the bit
PARTIAL = ("chain", "ring", "doubling")  # send what is combined in part, which must not be rounded yet


LETTERS_MIN = 3  # of a mailbox: with fewer, ranks may wait for each other


# -- the others ----------------------------------------------------------------------------------------------


def reduce_scatter(rank: int, n: int, count: int) -> Program:
    """`count` elements of everybody, a multiple of n: each rank gets its n-th combined."""
    sends = tuple(Send(to, to) for to in others(rank, n))
    mine = Combine(0, tuple(range(n)), own=rank)
    return Program((sends, (mine,)), (0, 1), even(count, n), ((0, count // n),))


def all_gather(rank: int, n: int, count: int) -> Program:
    """`count` elements of everybody, one after the other."""
    sends = tuple(Send(to, 0) for to in others(rank, n))
    receive = tuple(Combine(each, (each,)) for each in (rank, *others(rank, n)))
    return Program((sends, receive), (0, 1), ((0, count),), even(n * count, n))


def all_to_all(rank: int, n: int, count: int) -> Program:
    """Each rank's j-th n-th of `count` elements goes to rank j."""
    cut = even(count, n)
    sends = tuple(Send(to, to) for to in others(rank, n))
    receive = tuple(Combine(each, (each,), own=each) for each in (rank, *others(rank, n)))
    return Program((sends, receive), (0, 1), cut, cut)


def permute(rank: int, n: int, count: int, pairs: Sequence[tuple[int, int]]) -> Program:
    """Each pair (from, to) moves everything; nobody writes the result of a rank that gets nothing."""
    whole = ((0, count),)
    sends = tuple(Send(to, 0) for source, to in pairs if source == rank and to != rank)
    receive = tuple(Combine(0, (source,)) for source, to in pairs if to == rank)
    return Program((sends, receive), (0, 1), whole, whole)


def broadcast(rank: int, n: int, count: int, root: int) -> Program:
    """Everything of `root` to all."""
    sends = tuple(Send(to, 0) for to in others(rank, n)) if rank == root else ()
    return Program(((*sends, Combine(0, (root,))),), (0,), ((0, count),), ((0, count),))


def barrier(rank: int, n: int) -> Program:
    """Nobody goes on before all have come."""
    sends = tuple(Send(to, 0) for to in others(rank, n))
    return Program(((*sends, *(Combine(0, (each,)) for each in others(rank, n))),), (0,), ((0, 0),), ((0, 0),))


# -- which one -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Path:
    """What lies between ranks: seconds until a message is there, bytes/s that a rank sends, and bytes/s it combines."""

    latency_s: float
    bytes_per_s: float
    combine_bytes_per_s: float = 8e9


SHARED = Path(latency_s=8e-6, bytes_per_s=4e9)  # measured: bench/collectives.py
FAR = Path(latency_s=200e-6, bytes_per_s=600e6)  # to another machine: between the same and one on 10 Gbit/s

# Seconds for n ranks and m bytes.  What is sent costs once, what is combined costs once.
COSTS: dict[str, Callable[[int, float, Path], float]] = {
    "exchange": lambda n, m, p: p.latency_s + (n - 1) * m * _both(p),
    "direct": lambda n, m, p: 2 * p.latency_s + (n - 1) / n * m * (1 / p.bytes_per_s + _both(p)),
    "star": lambda n, m, p: 2 * p.latency_s + (n - 1) * m * (1 / p.bytes_per_s + _both(p)),
    "chain": lambda n, m, p: 2 * (n - 1) * p.latency_s + m * (1 / p.bytes_per_s + _both(p)),
    "ring": lambda n, m, p: 2 * (n - 1) * p.latency_s + (n - 1) / n * m * (1 / p.bytes_per_s + _both(p)),
    "doubling": lambda n, m, p: (n - 1).bit_length() * (p.latency_s + m * _both(p)),
}


def _both(path: Path) -> float:
    return 1 / path.bytes_per_s + 1 / path.combine_bytes_per_s


def choose(n: int, size_bytes: int, path: Path, exact: bool = False) -> str:
    """The cheapest all-reduce that combines in the order of ranks, or of all where the order does not matter."""
    names = tuple(ALL_REDUCE) if exact else BY_RANK
    return min(names, key=lambda name: COSTS[name](n, size_bytes, path))


def shares(bytes_per_s: Sequence[float]) -> tuple[float, ...]:
    """How much of a tensor each rank should combine in "direct", so that unequal links are done at the same time.

    A rank that combines the share f sends (1 - f) m of its own and (n - 2) f m more than that of the result, so
    m (1 + (n - 2) f) / b; the shares that make this equal for all give a slow rank little, and a very slow one nothing.
    """
    n = len(bytes_per_s)
    if min(bytes_per_s) <= 0:
        raise ConfigError("a link carries a positive number of bytes per second")
    if n < 3:
        return (1 / n,) * n
    taking = set(range(n))
    while True:  # those that are slower than the common time take nothing
        time = (len(taking) + n - 2) / sum(bytes_per_s[each] for each in taking)
        idle = {each for each in taking if time * bytes_per_s[each] < 1}
        if not idle:
            break
        taking -= idle
    return tuple(max(0.0, (time * bytes_per_s[each] - 1) / (n - 2)) if each in taking else 0.0 for each in range(n))
