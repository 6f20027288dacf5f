"""Embedded: the backend with a coordinator inside this process.

Part of the composition root: this file makes the parts and connects them; it decides nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, finalize

from numpy.typing import NDArray

from coordinator.coordinator import Coordinator, CoordinatorConfig
from coordinator.planning import session_planner
from coordinator.planning.model.program import Program
from coordinator.runtime.direct_path import DirectPath
from coordinator.sessions.elastic import Elastic
from coordinator.sessions.runtime import Session, ahead_for
from coordinator.sessions.state import Policy
from wire.ir.graph import WireGraph
from wire.joining.credentials import Credentials
from wire.link.identity import identity_here
from wire.link.websocket_carrier import Endpoint
from wire.policy.batch_shares import Portions
from wire.protocol.messages import Explained, ExplainGraph
from wire.protocol.reports import Event
from wire.system.open_file_limit import allow_open_files
from wire.system.shared_memory import SharedDir

from ..core.backend import Answered, Attached, Others, Running, Started, Stateful, Work, ends_with_this_program
from ..core.handle import Handle
from ..core.node import Node, node_from
from ..util.units import counted
from .local_workers import LocalWorkers

if TYPE_CHECKING:
    from .admission import Admission
    from .auto_join import AutoJoin


class Embedded:
    """Backend over a coordinator of our own and the local workers started for it."""

    elastic = True
    simulates = False

    def __init__(
        self,
        coordinator: Coordinator,
        local: LocalWorkers | None = None,
        auto: AutoJoin | None = None,
        admission: Admission | None = None,
    ) -> None:
        self.coordinator = coordinator
        self._auto = auto
        self._admission = admission
        self._local = local
        self._programs: WeakKeyDictionary[Work, Program] = WeakKeyDictionary()
        self._paths: WeakKeyDictionary[Work, DirectPath] = WeakKeyDictionary()
        self._forced = itertools.count(1)
        self._loop = asyncio.get_running_loop()
        self._sessions: dict[Session, Work] = {}
        self._held: dict[int, Any] = {}  # finalizers by the id of their living handle

    @property
    def reproducible(self) -> bool:
        return self.coordinator.config.reproducible

    async def nodes(self) -> tuple[Node, ...]:
        return tuple(node_from(report) for report in self.coordinator.nodes())

    def live(self) -> bool:
        return self.coordinator.live

    def comes_back(self) -> bool:
        return False

    def describe(self) -> str:
        nodes = self.coordinator.nodes()
        names = [node.name + ("" if node.state == "healthy" else f" ({node.state})") for node in nodes]
        return f"{counted(len(nodes), 'worker')}: {', '.join(names)}" if nodes else "no workers"

    async def plan(self, graph: WireGraph, strategy: str, copies: str, dies: str = "") -> Mapping[str, Any]:
        return await self.coordinator.preview(graph, self.coordinator.config.strategy_of(strategy), copies, dies)

    async def explain(
        self, graph: WireGraph, worker: str, device: int | None, texts: bool, kernel: int | None
    ) -> Explained:
        return await self.coordinator.explain(graph, ExplainGraph(b"", worker, device, texts, kernel))

    def hold(self, handle: Handle) -> None:
        held = self._held.get(id(handle))
        if handle.local is None or (held is not None and held.alive):
            return
        self.coordinator.hold(handle.address, handle.local)
        self._held[id(handle)] = finalize(handle, self._let_go, id(handle), handle.address)

    def start(self, work: Work, inputs: Mapping[str, NDArray[Any]]) -> Started:
        program = self._program(work)
        number, outputs, report = self.coordinator.submit(program, inputs, held=work)
        path = self.coordinator.direct_path(program)
        if path is not None:
            self._paths[work] = path
        return Started(outputs, lambda: dataclasses.asdict(report), lambda: self.coordinator.cancel(number))

    def at_once(self, work: Work, inputs: Mapping[str, NDArray[Any]]) -> Answered | None:
        path = self._paths.get(work)
        answered = None if path is None else path.call(inputs)
        if path is None or answered is None:
            return None
        return Answered(answered.outputs, lambda: path.report(answered))

    async def attach(self, name: str, take: bool) -> Attached:
        raise ends_with_this_program()

    def session(self, work: Work, state: Stateful, others: Others | None = None) -> Running:
        """Begin a session on this coordinator's workers; ConfigError for one with a name."""
        if state.name:
            raise ends_with_this_program()
        ahead = state.ahead or ahead_for(state.state_bytes)
        policy = Policy(state.copies or "buddy", state.every, ahead, state.replay_bytes, bool(state.copies))
        opened = self.coordinator.sessions.open(
            self._program(work),
            session_planner.Stateful(state.carries, state.returned_count, ahead),
            policy,
            None if others is None else self._elastic(others),
        )
        self._sessions[opened] = work  # its handles live until the session is over
        opened.ended.add_done_callback(lambda _: self._sessions.pop(opened))
        return opened

    def _elastic(self, others: Others) -> Elastic:
        async def make(portions: Portions) -> Program:
            return self._program(await asyncio.to_thread(others.work, portions))

        return Elastic(others.most, make, asyncio.to_thread, others.pieces, others.everybody)

    def forget(self, work: Work) -> None:
        for session in [session for session, its in self._sessions.items() if its is work]:
            session.frees = True
        if work in self._programs:
            self.coordinator.forget_program(self._programs[work])

    def attend(self, started: Started) -> None:
        return  # real time needs nobody

    def watch(self, watcher: Callable[[Mapping[str, Any]], None]) -> None:
        def tell(event: Event) -> None:
            watcher(dataclasses.asdict(event))

        self.coordinator.watchers.append(tell)

    async def close(self) -> None:
        async with contextlib.AsyncExitStack() as closing:  # from the last one on, whatever one of them raises
            closing.callback(self._forget_handles)
            if self._local is not None:
                closing.push_async_callback(self._local.close)
            closing.push_async_callback(self.coordinator.close)
            if self._admission is not None:
                closing.push_async_callback(self._admission.close)
            if self._auto is not None:
                closing.push_async_callback(self._auto.close)

    def _forget_handles(self) -> None:
        """Once the mesh is closed, have no handle keep it: a handle may be used by another mesh."""
        for held in self._held.values():
            held.detach()
        self._held.clear()
        self._programs.clear()
        self._paths.clear()

    def _program(self, work: Work) -> Program:
        program = self._programs.get(work)
        if program is None:
            strategy = self.coordinator.config.strategy_of(work.strategy)
            for handle in work.bindings.values():
                self.hold(handle)
            bindings = {name: (handle.address, handle.type) for name, handle in work.bindings.items()}
            forced = next(self._forced) if work.force else 0
            program = self._programs[work] = Program(work.graph, bindings, strategy, work.copies, forced)
            for address, array in work.graph.blobs.items():
                self.coordinator.hold(address, array)
                finalize(program, self._call_on_loop, self.coordinator.release, address)
        return program

    def _let_go(self, handle_id: int, address: bytes) -> None:
        self._call_on_loop(self._release, handle_id, address)

    def _release(self, handle_id: int, address: bytes) -> None:
        held = self._held.get(handle_id)
        if held is not None and not held.alive:  # the id may belong to a new handle by now
            del self._held[handle_id]
        self.coordinator.release(address)

    def _call_on_loop(self, work: Callable[..., None], *args: Any) -> None:
        """Call `work` on the loop: finalizers run on any thread, and the loop owns the state that they change."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and everything with it
            self._loop.call_soon_threadsafe(work, *args)


async def start_coordinator(
    config: CoordinatorConfig, credentials: Credentials | None = None, secret: bytes = b""
) -> Coordinator:
    """Start a coordinator on this loop that does not listen yet: for members of its mesh, or without credentials for
    those nodes of this machine that know the secret."""
    allow_open_files()
    shared = await SharedDir.created()
    node_id = credentials.node_id if credentials else ""
    identity = identity_here("coordinator", config.mesh, config.name, shared, node_id)
    endpoint = partial(Endpoint, credentials=credentials, timeouts=config.timeouts, secret=secret)
    return Coordinator(config, identity, shared, endpoint)
