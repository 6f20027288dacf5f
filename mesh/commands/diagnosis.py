"""Diagnosis: finds what is wrong with a mesh, by a table of findings, each with the command that mends it.  Pure.

`mesh-coord doctor` gathers the Facts; this file does not know how.  To let it find something new, add what shows it to
the facts and a row to FINDINGS.  A finding's fix has a line for every system, or one for all of them under EVERY.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from wire.addresses import PORT
from wire.limits import GIB, MIB
from wire.protocol.engine_names import ON_CPU
from wire.protocol.messages import PairReport
from wire.protocol.missing_gpu import ASKED, FAILED, LIBRARY, NONE, SAID, SOFTWARE, kind_of, long_text
from wire.protocol.throttled_adapters import throttle_in
from wire.units import time_text

PROBLEM, WARNING, OK, UNKNOWN = "problem", "warning", "ok", "not checked"
HERE = "this machine"
EVERY = "every system"
SYSTEMS = {"Linux": "Linux", "Darwin": "macOS", "Windows": "Windows"}  # as platform.system() names them, and people

CLOCKS_S, CLOCKS_S_MAX = 30.0, 300.0  # apart: worth a word; a new certificate is not valid yet at the slower one
FREE_BYTES, FREE_BYTES_MIN = 5 * GIB, 200 * MIB  # for weights and results; for anything at all
RTT_S_MAX, BYTES_PER_S_MIN = 0.05, 10e6 / 8  # beyond that a link is hardly a local network


# -- facts ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Multicast:
    """The mDNS packets on one interface of this machine in a few seconds; `error` is the last one, "" for none."""

    interface: str
    sent: int
    heard: int  # packets of other machines
    error: str = ""


@dataclass(frozen=True, slots=True)
class Room:
    """A folder of this machine, for `what` ("state", "cache"), and the space that its disk has left."""

    what: str
    folder: str
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Adapter:
    """A device of a machine."""

    engine: str
    name: str
    software: bool


@dataclass(frozen=True, slots=True)
class Here:
    """This machine.  `adapters` is None if they were not looked up, as its workers report theirs; `sandbox` is what
    engine hosts can give up here, in words."""

    system: str
    version: str
    multicast: tuple[Multicast, ...]
    rooms: tuple[Room, ...]
    adapters: tuple[Adapter, ...] | None = None
    sandbox: str = ""


@dataclass(frozen=True, slots=True)
class Reached:
    """The coordinator that answered; `clock_ahead_s` is its clock less this machine's."""

    name: str
    address: str
    system: str
    version: str
    clock_ahead_s: float


@dataclass(frozen=True, slots=True)
class Unreached:
    """No coordinator answered, and why; `client` is False if this user is no client, so that none would answer."""

    why: str
    next_step: str
    client: bool = True


@dataclass(frozen=True, slots=True)
class Knock:
    """Whether a TCP connection to a port of the coordinator opened; `refused` says that nobody listens there."""

    what: str  # "mesh port", "join port"
    host: str
    port: int
    opened: bool
    refused: bool = False
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker as the coordinator reports it; `system` and `without_gpu` are "" from an older coordinator."""

    name: str
    system: str
    state: str
    silent_s: float
    version: str
    address: str
    adapters: tuple[Adapter, ...]
    without_gpu: str = ""  # why it has no GPU, as wire/protocol/missing_gpu.py has it
    sandbox: str = ""  # what its engine hosts gave up, in words


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts; without a coordinator there are no workers and no pairs."""

    here: Here
    coordinator: Reached | Unreached
    knocks: tuple[Knock, ...] = ()
    workers: tuple[Worker, ...] = ()
    pairs: tuple[PairReport, ...] = ()

    def system_of(self, name: str) -> str:
        """The system of a node's machine, "" where it is not known."""
        systems = {worker.name: worker.system for worker in self.workers}
        if isinstance(self.coordinator, Reached):
            systems.setdefault(self.coordinator.name, self.coordinator.system)
        return systems.get(name, "")


# -- findings ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Symptom:
    """A place where a finding shows: the machine, the description, and the words for its fix."""

    where: str
    system: str
    what: str
    words: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that can be wrong: the check it belongs to, how it shows, and what to do on which system."""

    name: str
    check: str
    level: str
    shown: Callable[[Facts], Iterator[Symptom]]
    fix: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Trouble:
    """A finding in one place; `fix` has a line for the system of its machine, or for each where that is not known."""

    name: str
    check: str
    level: str
    where: str
    what: str
    fix: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Checked:
    """One row of the table of checks."""

    check: str
    result: str
    summary: str


def diagnose(facts: Facts) -> list[Trouble]:
    """All troubles, problems first."""
    troubles = [_trouble(finding, symptom) for finding in FINDINGS for symptom in finding.shown(facts)]
    return sorted(troubles, key=lambda trouble: trouble.level != PROBLEM)


def checked(facts: Facts, troubles: Sequence[Trouble]) -> list[Checked]:
    """Every check with its result and what it saw."""
    rows = []
    for check, summary in CHECKS.items():
        levels = {trouble.level for trouble in troubles if trouble.check == check}
        seen = summary(facts)
        result = next((level for level in (PROBLEM, WARNING) if level in levels), OK if seen else UNKNOWN)
        rows.append(Checked(check, result, seen))
    return rows


def _trouble(finding: Finding, symptom: Symptom) -> Trouble:
    lines = {system: line.format_map(dict(symptom.words)) for system, line in finding.fix.items()}
    if symptom.system in lines:
        lines = {symptom.system: lines[symptom.system]}
    return Trouble(finding.name, finding.check, finding.level, symptom.where, symptom.what, lines)


# -- how each shows ---------------------------------------------------------------------------------------


def _no_coordinator(facts: Facts) -> Iterator[Symptom]:
    if isinstance(facts.coordinator, Unreached) and not _only_no_client(facts):
        step = facts.coordinator.next_step or "Start one: mesh-coord serve; or name it: --coordinator HOST:PORT"
        yield Symptom(HERE, facts.here.system, facts.coordinator.why, {"step": step})


def _no_client(facts: Facts) -> Iterator[Symptom]:
    if _only_no_client(facts):
        at = next(knock for knock in facts.knocks if knock.opened)
        what = f"a coordinator is there, at {at.host}, and this user is no client of it, so it was not asked"
        yield Symptom(HERE, facts.here.system, what, {"host": at.host})


def _only_no_client(facts: Facts) -> bool:
    """Whether a coordinator listens, and this user is no client of it, as on the machine of a worker."""
    at = facts.coordinator
    return isinstance(at, Unreached) and not at.client and any(knock.opened for knock in facts.knocks)


def _blocked_port(facts: Facts) -> Iterator[Symptom]:
    """Find ports that a firewall blocks: it answers with silence or "prohibited"; a free port refuses at once."""
    reached = isinstance(facts.coordinator, Reached)
    for knock in facts.knocks:
        if not knock.opened and (reached or not knock.refused):
            name = facts.coordinator.name if isinstance(facts.coordinator, Reached) else knock.host
            what = f"its {knock.what} {knock.host}:{knock.port} cannot be reached from here ({knock.cause})"
            yield Symptom(name, facts.system_of(name), what, {"port": knock.port})


def _no_worker(facts: Facts) -> Iterator[Symptom]:
    if isinstance(facts.coordinator, Reached) and all(worker.state == "left" for worker in facts.workers):
        yield Symptom(facts.coordinator.name, facts.coordinator.system, "no worker is connected")


def _in_state(*states: str) -> Callable[[Facts], Iterator[Symptom]]:
    def shown(facts: Facts) -> Iterator[Symptom]:
        for worker in facts.workers:
            if worker.state in states:
                what = f"the worker is {worker.state}, last heard {worker.silent_s:.1f} s ago"
                yield Symptom(worker.name, worker.system, what)

    return shown


def _throttled(facts: Facts) -> Iterator[Symptom]:
    for worker in facts.workers:
        pace = next(filter(None, (throttle_in(adapter.name) for adapter in worker.adapters)), "")
        if pace:
            yield Symptom(worker.name, worker.system, f"the worker is slower than its machine, on purpose: {pace}")


def _not_dialled(path: str, so: str) -> Callable[[Facts], Iterator[Symptom]]:
    def shown(facts: Facts) -> Iterator[Symptom]:
        for pair in facts.pairs:
            if pair.path == path and pair.cause:
                what = f"{pair.source} -> {pair.target} is blocked ({pair.cause}); {so}"
                yield Symptom(pair.target, facts.system_of(pair.target), what, {"port": _port_of(facts, pair)})

    return shown


def _port_of(facts: Facts, pair: PairReport) -> str:
    known = {worker.name: worker.address for worker in facts.workers}
    return (pair.address or known.get(pair.target, "")).rpartition(":")[2] or str(PORT)


def _slow_pair(facts: Facts) -> Iterator[Symptom]:
    for pair in facts.pairs:
        if pair.rtt_s > RTT_S_MAX or 0 < pair.bytes_per_s < BYTES_PER_S_MIN:
            speed = f"{time_text(pair.rtt_s)} there and back, {pair.bytes_per_s * 8 / 1e6:.1f} Mbit/s"
            yield Symptom(f"{pair.source} -> {pair.target}", "", f"the link is slow: {speed}")


def _multicast_fails(facts: Facts) -> Iterator[Symptom]:
    for interface in facts.here.multicast:
        if interface.error:
            what = f"multicast cannot be sent on {interface.interface} ({interface.error})"
            yield Symptom(HERE, facts.here.system, what, {"port": 5353, "interface": interface.interface})


def _multicast_silent(facts: Facts) -> Iterator[Symptom]:
    seen = facts.here.multicast
    if any(interface.sent for interface in seen) and not any(interface.heard or interface.error for interface in seen):
        what = "nothing was heard by multicast from any other machine, so nodes have to be named: --peer HOST:PORT"
        yield Symptom(HERE, facts.here.system, what, {"port": 5353})


def _clock(over_s: float, up_to_s: float) -> Callable[[Facts], Iterator[Symptom]]:
    def shown(facts: Facts) -> Iterator[Symptom]:
        if isinstance(facts.coordinator, Reached):
            ahead_s = facts.coordinator.clock_ahead_s
            if over_s < abs(ahead_s) <= up_to_s:
                side = "behind" if ahead_s > 0 else "ahead of"
                yield Symptom(HERE, facts.here.system, f"the clock is {abs(ahead_s):.0f} s {side} the coordinator's")

    return shown


def _version(facts: Facts) -> Iterator[Symptom]:
    if isinstance(facts.coordinator, Reached):
        wanted = facts.coordinator.version
        machines = [(worker.name, worker.system, worker.version) for worker in facts.workers]
        for name, system, version in [(HERE, facts.here.system, facts.here.version), *machines]:
            if version != wanted:
                yield Symptom(name, system, f"version {version}, and the coordinator has {wanted}", {"version": wanted})


def _adapters(facts: Facts) -> Iterator[tuple[str, str, tuple[Adapter, ...], str]]:
    if facts.here.adapters is not None:
        yield HERE, facts.here.system, facts.here.adapters, ""
    for worker in facts.workers:
        yield worker.name, worker.system, worker.adapters, worker.without_gpu


def _software(facts: Facts) -> Iterator[Symptom]:
    for name, system, adapters, _ in _adapters(facts):
        for adapter in adapters:
            if adapter.software and adapter.engine not in ON_CPU:
                yield Symptom(name, system, f"its adapter {adapter.name} is software: the processor does the work")


def _processor_only(*kinds: str) -> Callable[[Facts], Iterator[Symptom]]:
    def shown(facts: Facts) -> Iterator[Symptom]:
        for name, system, adapters, reason in _adapters(facts):
            kind = kind_of(reason) if kind_of(reason) in SAID else ""  # "": it does not say, or is newer
            if kind in kinds and all(adapter.engine in ON_CPU for adapter in adapters):
                why = long_text(reason) if reason else "has no graphics adapter, or was given none"
                yield Symptom(name, system, f"it computes on its processor: it {why}")

    return shown


def _open_sandbox(facts: Facts) -> Iterator[Symptom]:
    """Find machines with Linux where a layer is open.  No other system has a sandbox yet, and nothing mends that."""
    sandboxes = [(worker.name, worker.system, worker.sandbox) for worker in facts.workers]
    for name, system, sandbox in (*sandboxes, (HERE, facts.here.system, facts.here.sandbox)):
        without = sandbox.partition("; ")[2]
        if system == "Linux" and without:
            yield Symptom(name, system, f"a driver that a graph breaks reaches more than it should: {without}")


def _little_room(over: float, up_to: float) -> Callable[[Facts], Iterator[Symptom]]:
    def shown(facts: Facts) -> Iterator[Symptom]:
        for room in facts.here.rooms:
            if over <= room.free_bytes < up_to:
                what = f"{room.free_bytes / MIB:.0f} MiB are free for the {room.what} folder {room.folder}"
                yield Symptom(HERE, facts.here.system, what, {"folder": room.folder})

    return shown


# -- what to do about each --------------------------------------------------------------------------------


def _allow(protocol: str) -> dict[str, str]:
    low = protocol.lower()
    return {
        "Linux": f"sudo ufw allow {{port}}/{low}   (with firewalld: "
        f"sudo firewall-cmd --permanent --add-port={{port}}/{low} && sudo firewall-cmd --reload)",
        "Darwin": 'sudo /usr/libexec/ApplicationFirewall/socketfilterfw --unblockapp "$(which python3)"'
        "   (and System Settings > Privacy & Security > Local Network: allow your terminal)",
        "Windows": f"New-NetFirewallRule -DisplayName graph-mesh-{{port}} -Direction Inbound -Protocol {protocol} "
        "-LocalPort {port} -Action Allow   (in PowerShell as administrator)",
    }


_SET_CLOCK = {
    "Linux": "sudo timedatectl set-ntp true",
    "Darwin": "sudo sntp -sS time.apple.com",
    "Windows": "Start-Service w32time; w32tm /resync /force   (in PowerShell as administrator)",
}
_DRIVER = {
    "Linux": "sudo apt install mesa-vulkan-drivers vulkan-tools && vulkaninfo --summary   (NVIDIA: its own driver; "
    "then start the worker again)",
    "Darwin": "mesh-worker --list-devices   (Metal comes with the system; no virtual machine or ssh-only user has it)",
    "Windows": "mesh-worker --list-devices   (after installing the graphics card's driver from its vendor)",
}
_DRIVER_FAILS = {  # it is there: none is to be installed
    "Linux": "vulkaninfo --summary   (there; where it fails too: start the machine again, or update the driver; then "
    "start the worker again)",
    "Darwin": "mesh-worker --list-devices   (there; where it fails too: start the machine again; then the worker)",
    "Windows": "mesh-worker --list-devices   (there; where it fails too: start the machine again, or update the "
    "graphics card's driver; then start the worker again)",
}
_LOOK_FIRST = {  # only the machine itself can say: its worker may have been started with --device cpu
    "Linux": "mesh-worker --list-devices   (there; if it lists an adapter, start the worker again without --device "
    "cpu; if none: sudo apt install mesa-vulkan-drivers vulkan-tools, or the vendor's driver)",
    "Darwin": "mesh-worker --list-devices   (there; if it lists an adapter, start the worker again without --device "
    "cpu; if none: no virtual machine or ssh-only user has Metal)",
    "Windows": "mesh-worker --list-devices   (there; if it lists an adapter, start the worker again without --device "
    "cpu; if none: install the graphics card's driver from its vendor)",
}
_MAKE_ROOM = {
    "Linux": 'du -xh "{folder}" | sort -h | tail   (the cache may be deleted, the state not; or --cache-dir DIR)',
    "Darwin": 'du -xh "{folder}" | sort -h | tail   (the cache may be deleted, the state not; or --cache-dir DIR)',
    "Windows": 'Get-ChildItem -Recurse "{folder}" | Sort-Object Length | Select-Object -Last 10   (the cache may be '
    "deleted, the state not; or --cache-dir DIR)",
}
_START_AGAIN = {EVERY: "mesh-worker   (there; where it still runs, look into its log and at the cable)"}

FINDINGS: tuple[Finding, ...] = (
    Finding("no-coordinator", "coordinator", PROBLEM, _no_coordinator, {EVERY: "{step}"}),
    Finding(
        "no-client", "coordinator", WARNING, _no_client,
        {EVERY: "mesh-coord join   (with the token that this prints there: mesh-coord token create --role client)"},
    ),
    Finding("blocked-port", "ports", PROBLEM, _blocked_port, _allow("TCP")),
    Finding(
        "no-worker", "workers", PROBLEM, _no_worker,
        {EVERY: "mesh-worker   (there; on another machine: mesh-coord token create here, mesh-worker join there)"},
    ),
    Finding("worker-dead", "workers", PROBLEM, _in_state("dead"), _START_AGAIN),
    Finding("worker-wrong", "workers", PROBLEM, _in_state("quarantined"), _DRIVER),
    Finding("worker-silent", "workers", WARNING, _in_state("suspect", "stuck"), _START_AGAIN),
    Finding(
        "worker-paused", "workers", WARNING, _in_state("paused"),
        {EVERY: "mesh-worker resume   (there; or, if it was paused from afar: mesh-coord nodes resume NAME)"},
    ),
    Finding(
        "worker-throttled", "workers", WARNING, _throttled,
        {EVERY: "mesh-worker   (there, started again without --throttle)"},
    ),
    Finding(
        "blocked-pair", "pairs", PROBLEM,
        _not_dialled("relay", "what they exchange goes through the coordinator; one of the two ways is enough"),
        _allow("TCP"),
    ),
    Finding(
        "one-way-pair", "pairs", WARNING,
        _not_dialled("direct", "the other way works, and is used both ways"), _allow("TCP"),
    ),
    Finding(
        "slow-pair", "pairs", WARNING, _slow_pair,
        {EVERY: "use a cable in place of Wi-Fi; or choose the network: mesh-worker --interface NAME"},
    ),
    Finding(
        "multicast-fails", "multicast", WARNING, _multicast_fails,
        {**_allow("UDP"), "Linux": "sudo ip link set dev {interface} multicast on && sudo ufw allow {port}/udp   (with "
         "firewalld: sudo firewall-cmd --permanent --add-service=mdns && sudo firewall-cmd --reload)"},
    ),
    Finding("multicast-silent", "multicast", WARNING, _multicast_silent, _allow("UDP")),
    Finding("clock-wrong", "clock", PROBLEM, _clock(CLOCKS_S_MAX, float("inf")), _SET_CLOCK),
    Finding("clock-off", "clock", WARNING, _clock(CLOCKS_S, CLOCKS_S_MAX), _SET_CLOCK),
    Finding("version-differs", "versions", WARNING, _version, {EVERY: "pip install graph-mesh=={version}"}),
    Finding("adapter-software", "adapters", WARNING, _software, _DRIVER),
    Finding("processor-only", "adapters", WARNING, _processor_only(""), _LOOK_FIRST),
    Finding(
        "processor-asked", "adapters", WARNING, _processor_only(ASKED),
        {EVERY: "mesh-worker   (there, started again without --device cpu, if it is to use its graphics adapter)"},
    ),
    Finding("adapter-none", "adapters", WARNING, _processor_only(NONE), _DRIVER),
    Finding(
        "adapter-only-software", "adapters", WARNING, _processor_only(SOFTWARE),
        {EVERY: "install the vendor's driver, if the machine has a graphics card; otherwise nothing"},
    ),
    Finding("adapter-no-wgpu", "adapters", WARNING, _processor_only(LIBRARY), {EVERY: "pip install wgpu   (there)"}),
    Finding("adapter-fails", "adapters", WARNING, _processor_only(FAILED), _DRIVER_FAILS),
    Finding(
        "sandbox-open", "sandbox", WARNING, _open_sandbox,
        {EVERY: "mesh-worker   (there, without --no-sandbox; on Linux 6.12 or later all layers hold, in a container "
         "with the default profile of its runtime too)"},
    ),
    Finding("disk-full", "disk", PROBLEM, _little_room(0, FREE_BYTES_MIN), _MAKE_ROOM),
    Finding("disk-low", "disk", WARNING, _little_room(FREE_BYTES_MIN, FREE_BYTES), _MAKE_ROOM),
)  # fmt: skip


# -- what each check saw, "" where it could not look -------------------------------------------------------


def _saw_coordinator(facts: Facts) -> str:
    at = facts.coordinator
    if isinstance(at, Reached):
        return f"{at.name} at {at.address}, version {at.version}"
    return "not asked" if _only_no_client(facts) else "none"


def _saw_workers(facts: Facts) -> str:
    if isinstance(facts.coordinator, Unreached):
        return ""
    states = [worker.state for worker in facts.workers]
    return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)) or "none"


def _saw_ports(facts: Facts) -> str:
    words = {True: "open", False: "closed"}
    return ", ".join(
        f"{knock.what} {knock.port} {'with nobody behind it' if knock.refused else words[knock.opened]}"
        for knock in facts.knocks
    )


def _saw_pairs(facts: Facts) -> str:
    paths = [pair.path for pair in facts.pairs]
    return ", ".join(f"{paths.count(path)} by {path}" for path in dict.fromkeys(paths))


def _saw_multicast(facts: Facts) -> str:
    return ", ".join(f"{seen.interface}: sent {seen.sent}, heard {seen.heard}" for seen in facts.here.multicast)


def _saw_clock(facts: Facts) -> str:
    at = facts.coordinator
    return f"{abs(at.clock_ahead_s):.2f} s from the coordinator's" if isinstance(at, Reached) else ""


def _saw_versions(facts: Facts) -> str:
    return f"{facts.here.version} here"


def _saw_adapters(facts: Facts) -> str:
    names = [adapter.name or adapter.engine for _, _, adapters, _ in _adapters(facts) for adapter in adapters]
    return ", ".join(dict.fromkeys(names))


def _saw_sandbox(facts: Facts) -> str:
    return facts.here.sandbox.partition(";")[0]


def _saw_disk(facts: Facts) -> str:
    return ", ".join(f"{room.what} {room.free_bytes / GIB:.0f} GiB free" for room in facts.here.rooms)


CHECKS: dict[str, Callable[[Facts], str]] = {
    "coordinator": _saw_coordinator,
    "ports": _saw_ports,
    "workers": _saw_workers,
    "pairs": _saw_pairs,
    "multicast": _saw_multicast,
    "clock": _saw_clock,
    "versions": _saw_versions,
    "adapters": _saw_adapters,
    "sandbox": _saw_sandbox,
    "disk": _saw_disk,
}
