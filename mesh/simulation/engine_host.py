"""SimulatedHost: an engine host without a process.  It computes real results and takes virtual time for them.

Parts go through the same `Host` (worker/engine_host/host.py) and the cpu engine, those of a gang together
(`gang_rendezvous.py`).  What they take follows from the machine's figures by the roofline that the planner uses, so it
is the same in every run.  Faults of a device are in `Device`.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from wire.ir.codec import decode_graph
from wire.limits import GIB
from wire.protocol.messages import KernelReport, with_fields
from wire.system.shared_memory import SharedDir, remove
from worker.config import WorkerConfig
from worker.daemon.environment import OnLost, OnMessage
from worker.devices.registry import ON_PROCESSOR, open_engine
from worker.engine import host_messages as hm
from worker.engine.protocol import Engine, Measured
from worker.engine_host.host import Host
from worker.engine_host.watchdog import Watchdog, loss_of

from .faulty_engine import FlippingEngine
from .gang_rendezvous import Rendezvous

ANSWER_S = 0.00005  # of a pipe between two processes


@dataclass(slots=True)
class Device:
    """A simulated device: its figures, and what is wrong with it now."""

    gflops: float = 50.0
    gbytes_per_s: float = 10.0
    dispatch_s: float = 0.00002
    memory_bytes: int = 8 * GIB
    compile_s: float = 0.005  # of a part
    slower: float = 1.0  # how many times as long everything takes
    stuck: bool = False  # it takes messages, beats, and never answers one
    silent: bool = False  # it does not even beat
    fails_after: int | None = None  # parts until the device is lost, once; None: never
    wrong: float = 0.0  # how likely each result has a flipped bit
    spare: bool = False  # its worker has a cpu beside it that nothing is wrong with
    dies_of: str = ""  # an op that ends the host whenever a part with it runs
    lost: int = 0  # how often it was, or its host was ended since it hung
    wrap: Callable[[Engine], Engine] = field(default=lambda engine: engine)  # what else is wrong with its engine

    def seconds(self, flops: int, moved_bytes: int) -> float:
        """The roofline (Williams et al. 2009), and what a dispatch costs."""
        busy_s = max(flops / (self.gflops * 1e9), moved_bytes / (self.gbytes_per_s * 1e9))
        return (self.dispatch_s + busy_s) * self.slower


class SimulatedHost:
    """EngineHost (worker/daemon/environment.py) on the loop of the simulation."""

    def __init__(
        self,
        opening: hm.Open,
        stop_cell: memoryview,
        config: WorkerConfig,
        on_message: OnMessage,
        on_lost: OnLost,
        device: Device,
        rendezvous: Rendezvous,
    ) -> None:
        self.selection = opening.device
        self.shared_dir = opening.shared_dir
        self.device = 0
        self.exited = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[hm.Opened | hm.OpenFailed] = self._loop.create_future()
        self._opening = opening
        self._stop_cell = stop_cell
        remove(opening.shared_dir, opening.stop_file)  # a host of its own process maps it; this one was given it
        self._config = config
        self._on_message = on_message
        self._on_lost = on_lost
        self._machine = device
        engine = open_engine("cpu", Path(opening.cache_dir), device.memory_bytes)
        assert engine is not None, "there is always a cpu"
        self._info = engine.info
        self._host = Host(
            device.wrap(cast(Engine, FlippingEngine(engine, device))),
            SharedDir.attach(Path(opening.shared_dir)),
            stop_cell,
            opening.memory_bytes,
        )
        self._waiting: deque[hm.ToHost] = deque()
        self._busy: asyncio.TimerHandle | None = None
        self._running = 0  # the run that is in flight
        self._stopped = 0  # the run that was given up last
        times = config.timeouts
        self._watchdog = Watchdog(config.host_beat_s, times.host_silence_s, times.part_s, times.part_stop_s)
        self._checker: asyncio.TimerHandle | None = None  # only while it owes an answer: an idle one is not simulated
        self._took_s = 0.0  # what is in flight, or was last
        self._rendezvous = rendezvous
        self._gangs: dict[int, hm.RankOf] = {}  # of what is prepared
        self._aside: hm.ExecutePart | None = None  # a part that waits for the other ranks of its gang
        self._to_suspend = 0  # the run that is to be suspended
        self._suspended: dict[int, tuple[hm.ExecutePart, float, float]] = {}  # runs: the seconds left, and in all
        self._work: dict[int, tuple[int, int]] = {}  # flops and bytes of what is prepared
        self._ops: dict[int, set[str]] = {}
        self._over = False

    async def start(self) -> None:
        """Open the device at once: opening is not simulated."""
        machine, info = self._machine, self._info
        self.opened.set_result(
            hm.Opened(
                hm.Device(
                    replace(info, adapter="simulated", memory_bytes=machine.memory_bytes, limits={}),
                    Measured(machine.gflops, machine.gbytes_per_s, machine.dispatch_s),
                )
            )
        )

    def send(self, message: hm.ToHost) -> None:
        """Queue a message; messages are handled one by one, as in a host's own process."""
        if self._over:
            return
        if isinstance(message, hm.ExecutePart | hm.ExplainPart | hm.PreparePart | hm.Export):
            run = message.run if isinstance(message, hm.ExecutePart | hm.ExplainPart) else 0
            self._watchdog.asked(self._loop.time(), run, brief=isinstance(message, hm.Export))
            self._check_later()
        self._waiting.append(message)
        self._next()

    def hand(self, sock: socket.socket) -> bool:
        """Take none: there are no sockets in a simulation."""
        sock.close()
        return False

    def stop_run(self, run: int) -> None:
        """Stop what runs; it is answered all the same."""
        self._stop_cell[:] = run.to_bytes(hm.STOP_BYTES, "little")
        self._stopped = run
        self._watchdog.stopped(self._loop.time(), run)
        if self._busy is not None and run == self._running:
            self._cut_short()
        elif self._aside is not None and run == self._aside.run:
            self._rendezvous.leave(self)
            self._waiting.appendleft(self._aside)
            self._aside = None
            self._next()

    def suspend_run(self, run: int) -> None:
        """Suspend a run that has loops, if it runs now (`EngineHost.suspend_run`)."""
        self._to_suspend = run
        self._suspend_soon()

    def resume_run(self, run: int, stop: bool) -> None:
        """Go on with a suspended run, or give it up (`EngineHost.resume_run`)."""
        if stop:
            self.stop_run(run)
        if not self._over:
            self._to_suspend = 0
            self._watchdog.asked(self._loop.time(), run)
            self._check_later()
            self._waiting.append(hm.Resume(run))
            self._next()

    def kill(self) -> None:
        """End the host (`EngineHost.kill`)."""
        self._over = True
        self._rendezvous.leave(self)
        for timer in (self._busy, self._checker):
            if timer is not None:
                timer.cancel()
        self._waiting.clear()
        self.exited.set()

    def close(self) -> None:
        """End the host (`EngineHost.close`)."""
        self.kill()

    # -- helpers

    def _cut_short(self) -> None:
        """End what runs, if it was stopped and the device does not hang: then the answer comes once that is over."""
        if self._busy is not None and self._running and self._running == self._stopped and not self._hangs:
            self._busy.cancel()
            self._suspended.pop(self._running, None)  # it was about to be
            self._busy = self._loop.call_later(ANSWER_S, self._done)

    def _suspend_soon(self) -> None:
        """Suspend what runs, if it is to be: a host looks while it runs."""
        run, message = self._to_suspend, self._waiting[0] if self._busy is not None else None
        if not run or run != self._running or self._hangs or not isinstance(message, hm.ExecutePart):
            return
        if message.suspendable and self._has_loops(message.prepared):
            assert self._busy is not None
            self._busy.cancel()
            self._suspended[run] = message, self._busy.when() - self._loop.time(), self._took_s
            self._busy = self._loop.call_later(ANSWER_S, self._suspend)

    def _suspend(self) -> None:
        self._busy, self._to_suspend = None, 0
        message = self._waiting.popleft()
        assert isinstance(message, hm.ExecutePart)
        self._watchdog.answered(self._loop.time())
        self._on_message(self, hm.Suspended(message.run, self._machine.memory_bytes))
        self._next()

    def _has_loops(self, prepared: int) -> bool:
        return not self._ops.get(prepared, set()).isdisjoint(("while", "scan"))

    def _next(self) -> None:
        if self._busy is not None or self._aside is not None or self._over or not self._waiting:
            return
        message = self._waiting[0]
        if self._hangs:
            return
        if isinstance(message, hm.Resume):
            self._waiting[0], left_s, self._took_s = self._suspended.pop(message.run)
            self._running = message.run
            self._busy = self._loop.call_later(ANSWER_S if message.run == self._stopped else left_s, self._done)
            return
        self._running = message.run if isinstance(message, hm.ExecutePart | hm.ExplainPart) else 0
        given_up = self._running and self._running == self._stopped  # while the device hung
        self._took_s = ANSWER_S if given_up else self._seconds(message)
        self._busy = self._loop.call_later(self._took_s, self._done)
        self._suspend_soon()

    def _seconds(self, message: hm.ToHost) -> float:
        match message:
            case hm.PreparePart():
                graph = decode_graph(message.encoded, expected_hash=message.graph)
                moved = sum(kind.size_bytes for kind in graph.types)
                self._work[message.prepared] = graph.flops, moved
                self._ops[message.prepared] = {node.op for node in graph.nodes}
                if message.gang is not None:
                    self._gangs[message.prepared] = message.gang
                return self._machine.compile_s * self._machine.slower
            case hm.ExecutePart() | hm.ExplainPart():
                return self._machine.seconds(*self._work.get(message.prepared, (0, 0))) + ANSWER_S
            case hm.Unprepare():
                self._work.pop(message.prepared, None)
                self._ops.pop(message.prepared, None)
                self._gangs.pop(message.prepared, None)
        return 0.0

    @property
    def _hangs(self) -> bool:
        return self._machine.stuck or self._machine.silent

    def _check_later(self) -> None:
        if self._checker is None and self._watchdog.busy:
            self._checker = self._loop.call_later(self._config.host_beat_s, self._check)

    def _check(self) -> None:
        self._checker = None
        if not self._machine.silent:
            self._watchdog.heard()
        hung = self._watchdog.check(self._loop.time())
        if hung:
            self._lose(hung)
            return
        self._cut_short()
        self._next()  # a device that was stuck may go on
        self._check_later()

    def _done(self) -> None:
        self._busy = None
        if self._hangs:
            return
        message = self._waiting.popleft()
        if isinstance(message, hm.ExecutePart) and self._loses_device(self._ops.get(message.prepared, set())):
            self._lose("the device is gone")
            return
        if isinstance(message, hm.ExecutePart) and message.run != self._stopped:
            gang = self._gangs.get(message.prepared)
            if gang is not None:
                self._aside = message
                self._rendezvous.come(self, gang, message)
                return
        self._answer(self.compute(message))

    def compute(self, message: hm.ToHost) -> hm.FromHost | None:
        return self._host.handle(message)

    def met(self, answer: hm.FromHost | None) -> None:
        self._aside = None
        self._answer(answer)

    def _answer(self, answer: hm.FromHost | None) -> None:
        match answer:
            case hm.Executed(run, _, outputs):
                answer = hm.Executed(run, self._took_s, outputs, sent_bytes=answer.sent_bytes)
            case hm.Prepared(prepared, _, from_cache, working_bytes):
                answer = hm.Prepared(prepared, self._took_s, from_cache, working_bytes)
            case hm.Explained(run, kernels, clock, evaluations):
                timed = tuple(with_fields(kernel, seconds=self._kernel_s(kernel)) for kernel in kernels)
                answer = hm.Explained(run, timed, clock, evaluations, self._took_s)
        if answer is not None:
            self._watchdog.answered(self._loop.time())
            self._on_message(self, answer)
        if self._host.lost:  # a host ends once it has said so
            self._lose("the device is gone")
            return
        self._next()

    def _kernel_s(self, kernel: KernelReport) -> float:
        """The roofline, without what a dispatch costs."""
        moved = kernel.read_bytes + kernel.written_bytes
        return self._machine.seconds(kernel.flops, moved) - self._machine.dispatch_s * self._machine.slower

    def _loses_device(self, ops: set[str]) -> bool:
        machine = self._machine
        if machine.dies_of in ops:
            return True
        if machine.fails_after is None:
            return False
        machine.fails_after -= 1
        if machine.fails_after >= 0:
            return False
        machine.fails_after = None
        return True

    def _lose(self, reason: str) -> None:
        self._machine.lost += 1
        self.kill()
        self._on_lost(self, loss_of(self.selection, reason))


def host_on(
    device: Device, rendezvous: Rendezvous
) -> Callable[[hm.Open, memoryview, WorkerConfig, OnMessage, OnLost], SimulatedHost]:
    """A factory of hosts of this device, for Environment."""

    def make(
        opening: hm.Open, stop_cell: memoryview, config: WorkerConfig, on_message: OnMessage, on_lost: OnLost
    ) -> SimulatedHost:
        used = Device() if device.spare and opening.device in ON_PROCESSOR else device
        return SimulatedHost(opening, stop_cell, config, on_message, on_lost, used, rendezvous)

    return make
