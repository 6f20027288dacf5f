"""All-reduce of f32 among processes of this machine, beside torch's gloo and OpenMPI in the same run.

    python bench/collectives.py [--tcp | --tls | --ring-buffers] [--torch PYTHON] [--mpi PYTHON] [--rounds 5]

Ours is what engine hosts of one machine do, a step per call.  Small tensors go through ring buffers.  Large ones are
copied into shared arenas, as operands that were not computed there are, and the result is read in place.  With
`--ring-buffers` all go through ring buffers, as in rank scripts.

`--torch` is a Python that has torch, `--mpi` one that has mpi4py, with mpirun on the path; without them, they are left
out.  Rounds alternate; in a round each of them starts its processes anew and does every size.  A figure is the median
over calls of the slowest rank's seconds, with a barrier before each call, one thread per process; printed are medians
over rounds and the median of the rounds' ratios, which is what counts: absolute figures drift with the machine.  Bus
bandwidth is 2 (n - 1) / n x bytes / seconds.

With `--tcp` ours are whole workers that share no memory, as if each were on a machine of its own, and OpenMPI is kept
off shared memory, too; a figure is then the mean of calls back to back, within one part of ours.  With `--tls` they are
members of a mesh besides, as workers on several machines must be; the others still send everything in plain.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

HERE = Path(__file__).resolve()
KIB, MIB = 1 << 10, 1 << 20
SIZES = ((4 * KIB, 200), (64 * KIB, 100), (1 * MIB, 40), (4 * MIB, 20), (64 * MIB, 5))
GOALS = {
    False: "goals, shared memory: 4 and 64 MiB >= 2 x gloo's bandwidth; 4 KiB <= gloo's time, OpenMPI's is the mark",
    True: "goals, TCP: 4 and 64 MiB >= 0.5 x gloo's bandwidth",
}
CALLS = {4 * KIB: 50, 64 * KIB: 50, 1 * MIB: 20, 4 * MIB: 10, 64 * MIB: 3}  # back to back
Figures = dict[int, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", default="")
    parser.add_argument("--mpi", default="")
    parser.add_argument("--tcp", action="store_true")
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--algorithm", default="", help="of ours; chosen by size if not given")
    parser.add_argument("--ring-buffers", action="store_true", help="large tensors of ours too")
    parser.add_argument("--slots", type=int, default=0)
    parser.add_argument("--slot-kib", type=int, default=0)
    parser.add_argument("--peer", choices=PEERS, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    chosen.tcp |= chosen.tls
    if chosen.peer:
        PEERS[chosen.peer](chosen)
        return
    runs: dict[str, Callable[[argparse.Namespace], Figures]] = {"ours": ours_by_links if chosen.tcp else ours}
    if chosen.torch:
        runs["gloo"] = gloo
    if chosen.mpi:
        runs["openmpi"] = mpi
    rounds: list[dict[str, Figures]] = []
    for _ in range(chosen.rounds):
        rounds.append({name: run(chosen) for name, run in runs.items()})
    show(chosen.processes, rounds)
    print(GOALS[chosen.tcp], flush=True)


def show(n: int, rounds: Sequence[dict[str, Figures]]) -> None:
    names = tuple(rounds[0])
    print(f"all-reduce, f32, {n} processes, {len(rounds)} rounds: ms (GB/s of bus)")
    ratios = "".join(f"{f'ours/{each}':>16}" for each in names[1:])
    print(f"{'':>10}" + "".join(f"{name:>20}" for name in names) + ratios)
    for size, _ in SIZES:
        line = f"{size // KIB:>6} KiB"
        for name in names:
            seconds = statistics.median(figures[name][size] for figures in rounds)
            line += f"{seconds * 1e3:>11.3f} ({2 * (n - 1) / n * size / seconds / 1e9:6.2f})"
        for other in names[1:]:
            ratio = statistics.median(figures[other][size] / figures["ours"][size] for figures in rounds)
            line += f"{ratio:>14.2f} x"
        print(line)
    print("the last columns: our bandwidth over theirs")


def timed(barrier: Callable[[], Any], reduce: Callable[[], Any], rounds: int, looped: int = 0) -> list[float]:
    """Seconds of each call on this rank; or with `looped` of one call among that many back to back."""
    times = []
    if looped:
        for _ in range(3):
            barrier()
            began_s = time.perf_counter()
            for _ in range(looped):
                reduce()
            times.append((time.perf_counter() - began_s) / looped)
        return times[1:]
    for _ in range(rounds + 2):
        barrier()
        began_s = time.perf_counter()
        reduce()
        times.append(time.perf_counter() - began_s)
    return times[2:]


def slowest(times: Sequence[Sequence[float]]) -> float:
    return statistics.median(max(call) for call in zip(*times, strict=True))


# -- ours ----------------------------------------------------------------------------------------------------


def ours(chosen: argparse.Namespace) -> Figures:
    sys.path[:0] = [str(HERE.parent.parent), str(HERE.parent.parent / "tests")]
    from support.ranks import Processes

    from worker.collectives.ring_buffer import SLOT_BYTES, SLOTS
    from worker.collectives.shared_arena import OPERAND_BYTES_MAX

    base = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=base) as folder:
        slots, slot_bytes = chosen.slots or SLOTS, chosen.slot_kib * KIB or SLOT_BYTES
        arena = 0 if chosen.ring_buffers or chosen.algorithm else OPERAND_BYTES_MAX
        ranks = Processes(chosen.processes, Path(folder), slots, slot_bytes, arena)
        try:
            return {size: slowest(ranks.ask(our_rank, size, rounds, chosen.algorithm)) for size, rounds in SIZES}
        finally:
            ranks.close()


def our_rank(group: Any, size: int, rounds: int, algorithm: str) -> list[float]:
    from wire.system.malloc import hold_arrays

    hold_arrays()  # as engine hosts do
    group.algorithm = algorithm
    array = np.ones(size // 4, np.float32)

    def reduce() -> Any:
        channels = group.channels
        channels.begin(channels.tag + 1, lambda: False)  # a result lasts for a step
        return group.all_reduce(array)

    assert (reduce() == group.size).all()
    return timed(group.barrier, reduce, rounds)


def ours_by_links(chosen: argparse.Namespace) -> Figures:
    sys.path[:0] = [str(HERE.parent.parent), str(HERE.parent.parent / "tests")]
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(by_links(chosen.processes, Path(folder), chosen.tls))


async def by_links(n: int, folder: Path, tls: bool) -> Figures:
    from support.processes.worker_process import Coordinator, worker
    from support.tls import authority, credentials

    by = authority() if tls else None
    coordinator = Coordinator(member=credentials(folder / "tester", by, "coordinator", mesh="test") if by else None)
    async with contextlib.AsyncExitStack() as stack:
        wanted = [worker(folder, f"w{rank}", by=by, share_memory=False, host="127.0.0.1") for rank in range(n)]
        starting = [stack.enter_async_context(each) for each in wanted]
        workers = await asyncio.gather(*starting)
        links = [(await coordinator.join(each))[0] for each in workers]
        peers = {each.node_id: (each.address,) for each in workers}
        figures = {size: await one_size(coordinator, links, peers, place, size) for place, size in enumerate(CALLS)}
    await coordinator.close()
    return figures


async def one_size(coordinator: Any, links: Any, peers: Any, place: int, size: int) -> float:
    """A part per rank that makes a tensor and reduces it again and again; seconds of a call, in which the messages that
    begin and end the step have their share."""
    from wire.protocol.messages import Drop, Gang, Member, PartSpec, PlanKey, Source, SourceKind, Target

    graph, plan, n = chained(size // 4, CALLS[size], len(links)), PlanKey(1, place + 1), len(links)
    members = tuple(Member(node, rank, 0) for rank, node in enumerate(peers))
    for rank, link in enumerate(links):
        gang = Gang(("dp",), (n,), rank, members)
        part = PartSpec(rank, 0, graph.hash, (Source(SourceKind.INPUT),), ((Target("", 0, rank),),), gang=gang)
        await coordinator.deploy(link, [(part, graph)], plan, peers=peers, ordered=True)
    times = []
    for step in range(4):
        feeds = [coordinator.feed(rank, 0, np.float32(1)) for rank in range(n)]
        began_s = time.perf_counter()
        await asyncio.gather(
            *(coordinator.run(link, plan, step, feed) for link, feed in zip(links, feeds, strict=True))
        )
        times.append((time.perf_counter() - began_s) / CALLS[size])
    for link in links:
        await link.request(Drop(plan))
    return statistics.median(times[1:])


def chained(count: int, calls: int, n: int) -> Any:
    from wire.ir.dtypes import F32
    from wire.ir.graph import GraphBuilder

    builder = GraphBuilder()
    x = builder.add("broadcast", builder.input("x", (), F32), shape=(count,))
    for _ in range(calls):
        x = builder.add("all_reduce", x, axes=("dp",), sizes=(n,), reduction="sum")
    return builder.build([builder.add("slice", x, start=(0,), stop=(1,), step=(1,))])


# -- the others ----------------------------------------------------------------------------------------------


def gloo(chosen: argparse.Namespace) -> Figures:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [chosen.torch, str(HERE), "--peer", "gloo", "--processes", str(chosen.processes), "--port", str(port)]
    command += ["--tcp"] * chosen.tcp
    ranks = [
        subprocess.Popen([*command, "--rank", str(rank)], stdout=subprocess.PIPE) for rank in range(chosen.processes)
    ]
    return figures_of(ranks[0].communicate()[0], [rank.wait() for rank in ranks])


def gloo_rank(chosen: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(chosen.port), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=chosen.rank, world_size=chosen.processes)
    figures = {}
    for size, rounds in SIZES:
        array = torch.ones(size // 4)
        mine = torch.tensor(
            timed(dist.barrier, lambda array=array: dist.all_reduce(array), rounds, CALLS[size] * chosen.tcp)
        )
        times = [torch.empty_like(mine) for _ in range(chosen.processes)]
        dist.all_gather(times, mine)
        figures[size] = slowest([each.tolist() for each in times])
    if chosen.rank == 0:
        print(json.dumps(figures), flush=True)
    dist.destroy_process_group()


def mpi(chosen: argparse.Namespace) -> Figures:
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(chosen.processes)]
    if chosen.tcp:
        command += ["--mca", "btl", "tcp,self", "--mca", "pml", "ob1", "--mca", "btl_tcp_if_include", "lo"]
    run = subprocess.run(
        [*command, chosen.mpi, str(HERE), "--peer", "mpi", *["--tcp"] * chosen.tcp], stdout=subprocess.PIPE
    )
    return figures_of(run.stdout, [run.returncode])


def mpi_rank(chosen: argparse.Namespace) -> None:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    figures = {}
    for size, rounds in SIZES:
        given = np.ones(size // 4, np.float32)
        made = np.empty_like(given)
        times = world.allgather(
            timed(world.Barrier, lambda g=given, m=made: world.Allreduce(g, m), rounds, CALLS[size] * chosen.tcp)
        )
        figures[size] = slowest(times)
    if world.Get_rank() == 0:
        print(json.dumps(figures), flush=True)


def figures_of(printed: bytes, codes: Sequence[int]) -> Figures:
    if any(codes):
        sys.exit(f"a peer ended with {list(codes)}")
    return {int(size): seconds for size, seconds in json.loads(printed.splitlines()[-1]).items()}


PEERS: dict[str, Callable[[argparse.Namespace], None]] = {"gloo": gloo_rank, "mpi": mpi_rank}

if __name__ == "__main__":
    main()
