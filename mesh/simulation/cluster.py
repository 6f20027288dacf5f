"""Cluster: the workers and the coordinator of a simulated mesh, and the faults injected into them.

Real daemons (worker/daemon/daemon.py) and a real coordinator (coordinator/coordinator.py) run on one VirtualLoop over a
SimulatedNetwork; their engine hosts are simulated.  Every host has one process, and its name is its address.  What
happens is written down as a trace, and the same seed gives the same trace.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import shutil
import tempfile
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from coordinator.coordinator import Coordinator, CoordinatorConfig
from coordinator.plan_service.planner_client import InProcessPlanner, PlannerClient
from wire.errors import ConfigError
from wire.link.endpoint import Endpoint
from wire.link.identity import identity_here
from wire.link.keepalive import LinkWatch
from wire.link.link import Handler
from wire.protocol.peer import Identity
from wire.protocol.reports import Event
from wire.system.shared_memory import SharedDir
from worker.config import WorkerConfig
from worker.daemon.daemon import Daemon
from worker.daemon.environment import Environment
from worker.daemon.pause_file import PauseFiles
from worker.state.availability import MACHINE

from ..util.units import counted
from .engine_host import Device, host_on
from .gang_rendezvous import Rendezvous
from .invariants import InvariantChecker
from .loop import VirtualLoop, context_of
from .network import SimulatedNetwork

COORDINATOR = "coordinator"
PORT = 7100
FALLS_ASLEEP_S = 0.1  # for last words, as a machine allows them
TRACE_MAX = 5000  # the last lines; what led to a failure is at its end


@dataclass(slots=True)
class _Process:
    """A worker that runs or starts."""

    task: asyncio.Task[None]
    daemon: Daemon | None = None


@dataclass(slots=True)
class Cluster:
    """Use as an async context manager, on a VirtualLoop; `devices` are those of the workers sim-0, sim-1 and so on."""

    config: CoordinatorConfig
    devices: Sequence[Device]
    seed: int = 0
    answerer: PlannerClient = field(default_factory=InProcessPlanner)  # who plans ahead
    network: SimulatedNetwork = field(init=False)
    checker: InvariantChecker = field(init=False, default_factory=InvariantChecker)
    coordinator: Coordinator = field(init=False)
    trace: deque[str] = field(init=False, default_factory=lambda: deque(maxlen=TRACE_MAX))
    _processes: dict[str, _Process] = field(init=False, default_factory=dict)
    _dying: dict[str, asyncio.Task[None]] = field(init=False, default_factory=dict)  # killed, and not gone yet
    _falling: dict[str, asyncio.TimerHandle] = field(init=False, default_factory=dict)  # asleep, or soon
    _cleanup: contextlib.ExitStack = field(init=False, default_factory=contextlib.ExitStack)
    _folder: Path = field(init=False)
    _numbers: dict[str, int] = field(init=False)  # of all workers, by name
    _rendezvous: Rendezvous = field(init=False, default_factory=Rendezvous)

    @property
    def names(self) -> tuple[str, ...]:
        """All workers there are or were."""
        return tuple(self._numbers)

    @property
    def alive(self) -> tuple[str, ...]:
        """The workers whose process runs."""
        return tuple(self._processes)

    def __post_init__(self) -> None:
        self._numbers = {f"sim-{number}": number for number in range(len(self.devices))}

    async def __aenter__(self) -> Cluster:
        await self.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def begin(self) -> None:
        """Start every worker and join them to the coordinator."""
        self.network = SimulatedNetwork(self.seed)
        held = SharedDir.create(Path(tempfile.gettempdir()))
        self._cleanup.callback(held.close)
        weakref.finalize(self._cleanup, held.close)  # of a program that ends without closing its mesh
        self._folder = held.path
        for name in self.names:
            self.start(name)
        await self._start_coordinator()

    async def stop(self) -> None:
        """End everything."""
        await self.coordinator.close()
        for name in self.alive:
            self.kill(name)
        await asyncio.sleep(1)  # what was cancelled ends
        self._cleanup.close()

    # -- processes

    def start(self, name: str) -> None:
        """Start a worker's process, with the state folder it had."""
        self._check(name)
        if name in self._processes:
            raise ConfigError(f"{name} runs already")
        self.tell(f"{name} starts")
        config = self._config_of(name)
        folder = config.state_base / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "node_id").write_text(_node_id(name) + "\n")
        environment = Environment(
            endpoint=lambda identity, handler, *_: self._endpoint(name, identity, handler),
            host=host_on(self._device(name), self._rendezvous),
            machine=self.checker.worker(name),
            watch=lambda endpoint, config, port: LinkWatch(endpoint, wall=asyncio.get_running_loop().time),
            shared=lambda: self._shared_of(name),
        )
        work = asyncio.get_running_loop().create_task(
            self._run(name, config, environment), name=name, context=context_of(name)
        )
        self._processes[name] = _Process(work)

    def kill(self, name: str) -> None:
        """Kill a worker, as `kill -9` does: its connections end without a word."""
        self._check(name)
        process = self._processes.pop(name, None)
        if process is None:
            raise ConfigError(f"{name} does not run")
        self.tell(f"{name} is killed")
        self.network.kill(name)
        self.checker.gone(name)
        process.task.cancel()
        self._dying[name] = process.task

    def leave(self, name: str) -> None:
        """Have a worker leave, as SIGTERM does: it hands its work back and ends."""
        self._check(name)
        if name not in self._processes:
            raise ConfigError(f"{name} does not run")
        self.tell(f"{name} is asked to leave")
        daemon = self._processes[name].daemon
        if daemon is not None:
            daemon.leave("asked to stop by SIGTERM")

    def pause(self, name: str) -> None:
        """Pause a worker, as `mesh-worker pause` does on its machine."""
        self._wish(name, MACHINE)

    def resume(self, name: str) -> None:
        """End a pause, as `mesh-worker resume` does on its machine."""
        self._wish(name, "")

    def sleep(self, name: str) -> None:
        """The machine's lid is closed: the worker says that it goes, and soon nothing gets to it or from it."""
        self._running(name).availability.sleep()
        self.tell(f"{name} falls asleep")
        self._falling[name] = asyncio.get_running_loop().call_later(FALLS_ASLEEP_S, self.silence, name)

    def wake(self, name: str) -> None:
        """The lid is opened again."""
        self.reconnect(name)
        self.tell(f"{name} wakes")
        self._running(name).availability.wake()

    def stand_still(self, seconds: float, name: str = "") -> None:
        """A worker's process, or without a name the user's program and the coordinator in it, is stopped for so long,
        as by SIGSTOP: its sockets stay, and what comes is read later."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.tell(f"{name or 'the program'} stands still for {seconds:g} s")
        loop.stop_process(name, seconds)

    def slow(self, name: str, times: float) -> None:
        """A worker's device takes `times` times as long as its figures say."""
        self._check(name)
        self.tell(f"{name} computes {times:.3g} times slower")
        self._device(name).slower = times

    # -- the network

    def silence(self, name: str) -> None:
        """The host's cable is out: nothing gets to it or from it, and nobody is notified."""
        self._check(name)
        others = [other for other in (*self.names, COORDINATOR) if other != name]
        self.tell(f"{name} is cut off")
        self.network.block([name], others)
        self.network.block(others, [name])

    def reconnect(self, name: str) -> None:
        """The host's cable is in again."""
        self._check(name)
        self._stay_awake(name)
        self.tell(f"{name} is connected again")
        self.network.heal(name)

    def block(self, source: str, target: str) -> None:
        """Nothing gets from one host to another, in this direction."""
        for name in {source, target} - {COORDINATOR}:
            self._check(name)
        self.tell(f"nothing gets from {source} to {target}")
        self.network.block([source], [target])

    def heal(self) -> None:
        """Every silence ends."""
        for name in list(self._falling):
            self._stay_awake(name)
        self.tell("the network is whole")
        self.network.heal()

    # -- what is seen

    def tell(self, text: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{asyncio.get_running_loop().time():12.6f}  {text}")

    def busy(self) -> dict[str, int]:
        """How many parts every running worker has that are ready or being computed."""
        return {
            name: process.daemon.shell.queue_depth
            for name, process in self._processes.items()
            if process.daemon is not None
        }

    def transcript(self) -> str:
        """The trace as text, for people."""
        return f"seed {self.seed}, {counted(len(self.devices), 'worker')}\n" + "\n".join(self.trace)

    # -- helpers

    async def _run(self, name: str, config: WorkerConfig, environment: Environment) -> None:
        process = self._processes[name]
        if name in self._dying:  # its folder is locked until it is gone
            await asyncio.wait([self._dying.pop(name)])
        async with contextlib.AsyncExitStack() as stack:
            process.daemon = Daemon(config, deque(maxlen=200), stack, environment)
            code = await process.daemon.run()
        if self._processes.get(name) is process:
            del self._processes[name]
            self.network.kill(name)
            self.checker.gone(name)
            self.tell(f"{name} ended with exit code {code}")

    async def _start_coordinator(self) -> None:
        config = self.config
        self.coordinator = Coordinator(
            config,
            replace(identity_here(COORDINATOR, config.mesh, config.name, None), node_id=_node_id(COORDINATOR)),
            None,
            lambda identity, handler: self._endpoint(COORDINATOR, identity, handler),
            self.checker.coordinator,
            self.answerer,
        )
        self.coordinator.link_watch.wall = asyncio.get_running_loop().time
        self.coordinator.watchers.append(self._saw)
        await asyncio.gather(*(self.coordinator.connect(name, PORT) for name in self.names))

    def _wish(self, name: str, by: str) -> None:
        """Write the pause that a worker's user wants; a worker that does not run reads it at its start."""
        self._check(name)
        self.tell(f"{name} is paused" if by else f"{name} is lent again")
        folder = self._config_of(name).state_base / name
        PauseFiles(folder).set_wish(by)
        process = self._processes.get(name)
        if process is not None and process.daemon is not None:
            process.daemon.availability.pauses.look()

    def _stay_awake(self, name: str) -> None:
        timer = self._falling.pop(name, None)
        if timer is not None:
            timer.cancel()

    def _running(self, name: str) -> Daemon:
        self._check(name)
        process = self._processes.get(name)
        if process is None or process.daemon is None:
            raise ConfigError(f"{name} does not run")
        return process.daemon

    def _shared_of(self, name: str) -> SharedDir:
        """A host's shared memory, which no other host has: no process looks there for what dead ones left."""
        path = self._folder / f"graph-mesh-{_node_id(name)}"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(mode=0o700)
        return SharedDir.attach(path)

    def _device(self, name: str) -> Device:
        return self.devices[self._numbers[name]]

    def _config_of(self, name: str) -> WorkerConfig:
        return WorkerConfig(
            name=name,
            mesh=self.config.mesh,
            port=PORT,
            devices=("0",) if self._device(name).spare else ("cpu",),
            state_dir=str(self._folder / "state"),
            cache_dir=str(self._folder / "cache" / name),
            discoverable=False,
            timeouts=self.config.timeouts,
        )

    def _endpoint(self, name: str, identity: Identity, handler: Handler) -> Endpoint:
        """An endpoint over the simulated network; hosts share no memory."""
        alone = replace(identity, host_id=name, shared_memory="")
        chance, timeouts = self.network.random.random, self.config.timeouts
        return Endpoint(alone, handler, self.network.carrier(name), chance=chance, timeouts=timeouts)

    def _saw(self, event: Event) -> None:
        self.tell(f"{event.kind} {event.node}: {event.text}")

    def _check(self, name: str) -> None:
        if name not in self._numbers:
            raise ConfigError(f"there is no worker {name!r}", next_step=f"The workers are {', '.join(self.names)}")


def _node_id(name: str) -> str:
    """A worker's node id, the same in every run: some decisions go by ids."""
    return hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
