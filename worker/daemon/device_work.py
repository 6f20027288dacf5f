"""Device work: what the machine asks of engine hosts, as messages to them, and what they say, as events."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain

from wire.bounds import SUSPENDED_RUNS
from wire.errors import LOG_LINES_MAX, DeviceLost, MeshError, from_fields
from wire.protocol.messages import DeviceReport, Devices, Done, Message
from wire.system import local_sockets
from wire.system.shared_memory import SharedDir, remove
from wire.system.steady_log import steady_logger

from ..engine import host_messages as hm
from ..state import events as ev
from .blob_store import BlobStore
from .collective_bridge import Bridge
from .device_reports import explained_of, without_ops
from .engine_hosts import EngineHosts
from .environment import EngineHost
from .idle_tuner import IdleTuner
from .machine_shell import MachineShell, Performers
from .snapshot_writer import SnapshotWriter
from .tensor_refs import host_inputs_of, made_of

log = steady_logger("graph_mesh.worker")
PARTS_MAX = 2 + SUSPENDED_RUNS.most  # that a host has: one to run, the one that follows, and those it suspended


class DeviceWork:
    """`reports` describe the devices once they are open.  `notify` sends a message to a node, `log_lines` are the
    newest lines of this process's log."""

    def __init__(
        self,
        shell: MachineShell,
        hosts: EngineHosts,
        shared: SharedDir,
        store: BlobStore,
        bridge: Bridge,
        snapshots: SnapshotWriter,
        tuner: IdleTuner,
        notify: Callable[[str, Message], None],
        log_lines: Sequence[str],
    ) -> None:
        self.reports: tuple[DeviceReport, ...] = ()
        self._shell = shell
        self._hosts = hosts
        self._shared = shared
        self._store = store
        self._bridge = bridge
        self._snapshots = snapshots
        self._tuner = tuner
        self._notify = notify
        self._log_lines = log_lines
        self._written: dict[int, deque[list[str]]] = {}  # by device: inputs in files for the parts it was given last

    def performers(self) -> Performers:
        return {
            ev.Prepare: self._prepare,
            ev.Unprepare: self._unprepare,
            ev.Execute: self._execute,
            ev.ExplainPart: self._explain,
            ev.OpenDirect: self._open_direct,
            ev.Unbind: self._unbind,
            ev.StopRun: lambda action: self._hosts.hosts[action.device].stop_run(action.run),
            ev.SuspendRun: lambda action: self._hosts.hosts[action.device].suspend_run(action.run),
            ev.ResumeRun: lambda action: self._hosts.hosts[action.device].resume_run(action.run, action.stop),
            ev.StartHost: lambda action: self._shell.begin(action, self._hosts.restart(action.device)),
            ev.MakeBlob: self._snapshots.begin,
            ev.Release: self.release,
            ev.FreeCache: self._free_cache,
            ev.GiveUpDevice: self._give_up,
        }

    # -- to hosts

    def _prepare(self, action: ev.Prepare) -> None:
        self._tuner.give_way()
        paths = {blob: self._store.path(blob) for blob in action.blobs}
        gang = self._bridge.prepare(action.prepared, *action.gang) if action.gang else None
        params = tuple(hm.BoundParam(position, blob, paths[blob]) for position, blob in action.params)
        what, counts = (action.prepared, action.graph, action.encoded), (action.inputs, action.outputs)
        part = hm.PreparePart(*what, *counts, params, paths, action.force, gang, action.kept_bytes)
        self._hosts.tell(action.device, part)

    def _unprepare(self, action: ev.Unprepare) -> None:
        self._bridge.unprepare(action.prepared)
        self._hosts.tell(action.device, hm.Unprepare(action.prepared))

    def _execute(self, action: ev.Execute) -> None:
        self._tuner.give_way()
        wanted = tuple(hm.OutputRequest(wish.keep, wish.copies) for wish in action.outputs)
        try:
            gang = action.step + 1, self._bridge.directories(action.prepared)
            inputs, written = host_inputs_of(action.inputs, self._shared)
            self._written.setdefault(action.device, deque(maxlen=PARTS_MAX)).append(written)
        except Exception:
            for use in action.inputs:
                if use.last:
                    self.release(ev.Release(use.tensor))
            raise
        part = hm.ExecutePart(action.run, action.prepared, inputs, wanted, *gang, action.suspendable)
        self._hosts.tell(action.device, part)

    def _explain(self, action: ev.ExplainPart) -> None:
        self._tuner.give_way()
        self._hosts.tell(action.device, hm.ExplainPart(action.run, action.prepared, action.texts, action.kernel))

    def _open_direct(self, action: ev.OpenDirect) -> None:
        if not self._hosts.hand(action.device, local_sockets.connected(action.directory, action.name)):
            raise DeviceLost("its engine host takes no sockets")
        self._hosts.tell(action.device, hm.OpenDirect(action.prepared))
        self._shell.answer(action.request, Done())

    def _unbind(self, action: ev.Unbind) -> None:
        self._hosts.tell(action.device, hm.Unbind(action.prepared, tuple(sorted(action.positions))))

    def release(self, action: ev.Release) -> None:
        """Free a tensor."""
        match action.tensor:
            case ev.SharedFile(_, _, directory, name):
                remove(directory, name)
            case ev.DeviceTensor(_, _, device, tensor):
                self._hosts.tell(device, hm.Forget((tensor,)))

    def _free_cache(self, action: ev.FreeCache) -> None:
        log.warning("%s", action.why)
        self._store.free_memory()
        for host in self._hosts.hosts:
            host.send(hm.FreeUnused())

    def _give_up(self, action: ev.GiveUpDevice) -> None:
        log.error("device %d %s", action.device, action.reason)
        self.reports = tuple(without_ops(each) if each.index == action.device else each for each in self.reports)
        self._notify(action.node, Devices(self.reports, f"device {action.device} {action.reason}"[:4096]))

    # -- from hosts

    def on_message(self, host: EngineHost, message: hm.FromHost) -> None:
        """A host says something."""
        device = host.device
        match message:
            case hm.BuffersChanged() | hm.Listening() | hm.Disconnected():
                self._bridge.host_said(device, message)
            case hm.Executed(run, compute_s, outputs):
                made = tuple(made_of(output, device, str(self._shared.path)) for output in outputs)
                costs = message.exchange_s, message.readback_s, message.encode_s
                sizes = message.sent_bytes, message.uploaded_bytes, message.readback_bytes
                self._shell.feed(ev.PartExecuted(run, made, compute_s, *costs, *sizes))
            case hm.ExecuteFailed(run, error):
                self._shell.feed(ev.ExecuteFailed(run, from_fields(error)))
            case hm.Suspended(run, room_bytes):
                self._shell.feed(ev.RunSuspended(run, room_bytes))
            case hm.Explained(run):
                self._shell.feed(ev.PartExplained(run, explained_of(message, self.reports[device])))
            case hm.Exported():
                self._snapshots.exported(device, message)
            case hm.Prepared(prepared, compile_s, from_cache, working_bytes, untuned):
                self._tuner.met(host.selection, self.reports[device], untuned)
                self._shell.feed(ev.PartPrepared(prepared, compile_s, from_cache, working_bytes))
            case hm.PrepareFailed(prepared, error, postponed):
                self._shell.feed(ev.PrepareFailed(prepared, from_fields(error), postponed))

    def on_lost(self, host: EngineHost, error: MeshError) -> None:
        """A host died, or hangs."""
        log.error("device %d: %s", host.device, error)
        error.log_lines = tuple(self._log_lines)[-LOG_LINES_MAX:]
        self._snapshots.lost(host.device, error)
        for name in chain.from_iterable(self._written.pop(host.device, ())):
            remove(self._shared.path, name)
        self._shell.feed(ev.HostLost(host.device, error))

    def on_restarted(self, device: int) -> None:
        """Another host is in the place of a lost one."""
        self._shell.feed(ev.HostReady(device))
