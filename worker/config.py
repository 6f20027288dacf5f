"""Everything that can be chosen about a worker, in one place.

Flags, environment and files fill these fields in `mesh/commands`; nothing in this package reads the environment.
"""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from wire.addresses import LAST_PORT, PORT
from wire.bounds import CACHED_WEIGHTS
from wire.errors import ConfigError
from wire.system.memory import default_budget
from wire.system.private_folder import APP, login_name, state_root
from wire.text import well_formed
from wire.timeouts import DEFAULT_TIMEOUTS, Timeouts


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """A worker's settings.  The defaults are those of `mesh-worker` without flags."""

    name: str = ""  # for people, unique on this machine: taken ones get a number; "": the machine's name
    mesh: str = ""  # only nodes of one mesh talk to each other; "": default-<user>
    host: str = ""  # "": every address for a member of the mesh, loopback for any other node
    port: int = PORT  # 0: any free one
    last_port: int = LAST_PORT
    interfaces: tuple[str, ...] = ()  # of those others may reach, the only ones to use; (): all
    advertise: tuple[str, ...] = ()  # "HOST[:PORT]" where others can dial it too: a forwarded port, say
    peers: tuple[str, ...] = ()  # "HOST:PORT" or "HOST" to dial, again and again, until they answer
    devices: tuple[str, ...] = ()  # as `worker.devices.registry` reads them; (): the best hardware adapter, and the cpu
    threads: int = 0  # of the native engine; 0: as many as this process may use cores
    memory_bytes: int = 0  # budget for weights and working memory of all devices; 0: what they have
    sharers: int = 1  # workers that were started together, which share the machine's memory evenly
    state_dir: str = ""  # "": the platform's folder for state
    cache_dir: str = ""  # weights and kernels kept between runs; "": the platform's cache folder, one per worker
    kernel_dir: str = ""  # kernels, which workers may share; "": in `cache_dir`, or this user's for all workers
    cache_bytes_max: int = CACHED_WEIGHTS.most  # on disk: a handful of 7B models in 8 bits, or hundreds of small ones
    blob_memory_bytes_max: int = 0  # of content that is not on disk; 0: `memory_bytes`, or half of the machine's
    measured_dir: str = ""  # where measurements of devices are kept; "": the user's cache folder, for all workers
    tune_software: bool = False  # measure kernels of software adapters while idle, too; for tests
    share_memory: bool = True  # False: as if all other nodes were on other machines; for tests and measurements
    connect_hosts: bool = True  # False: tensors of collectives go over links alone; for tests and measurements
    timeouts: Timeouts = DEFAULT_TIMEOUTS
    discoverable: bool = True  # announce this worker by mDNS
    announce_json: bool = False  # print one line of JSON on stdout once ready: for programs that start workers
    exit_with_stdin: bool = False  # leave when stdin closes: for workers that belong to the process that started them
    trace: str = ""  # a file name after which those of kernels' traces are called (docs/native.md); "": no traces
    sandbox: bool = True  # engine hosts give up what they do not need of this machine; False: for odd drivers
    parent_pid: int = 0  # leave when this is no longer the parent; 0: do not watch
    log_json: bool = False  # log lines as JSON objects
    verbosity: int = 0  # -1: errors only, 0: what happens, 1: every event

    @property
    def host_beat_s(self) -> float:
        """How often an engine host says that it is alive."""
        return self.timeouts.host_silence_s / 10

    @staticmethod
    def local(name: str, mesh: str, folder: Path, devices: tuple[str, ...] = ()) -> WorkerConfig:
        """The preset for a worker that belongs to this process: any port, temporary folders, never announced."""
        return WorkerConfig(
            name=name,
            mesh=mesh,
            port=0,
            devices=devices,
            state_dir=str(folder / "state"),
            cache_dir=str(folder / "cache" / name),
            discoverable=False,
            announce_json=True,
            exit_with_stdin=True,
        )

    @property
    def blob_memory_bytes(self) -> int:
        """The most bytes of content to keep in memory, beside what devices compute with: snapshots and copies of
        sessions' state, and weights that the disk has no room for."""
        return self.blob_memory_bytes_max or self.memory_bytes or default_budget() // self.sharers

    @property
    def mesh_name(self) -> str:
        return self.mesh or f"default-{login_name()}"

    @property
    def state_base(self) -> Path:
        """The folder that holds the state folders of this mesh's workers."""
        return state_root(self.state_dir) / self.mesh_name

    @property
    def wanted_name(self) -> str:
        return self.name or socket.gethostname().split(".")[0] or "worker"

    def cache_folder(self, name: str) -> Path:
        """The folder in which the worker called `name` keeps weights and kernels."""
        if self.cache_dir:
            return Path(self.cache_dir)
        return platformdirs.user_cache_path(APP, appauthor=False) / self.mesh_name / name

    @property
    def kernel_folder(self) -> Path:
        """The folder of kernels.  This user's workers on this machine share it, whatever their mesh."""
        if self.kernel_dir or self.cache_dir:
            return Path(self.kernel_dir) if self.kernel_dir else Path(self.cache_dir) / "kernels"
        return platformdirs.user_cache_path(APP, appauthor=False) / "@kernels"  # no mesh has such a name

    def check(self) -> None:
        """Check that engine hosts can be told where the kernels are; ConfigError if that path is no text."""
        folder = str(self.kernel_folder)
        if well_formed(folder) != folder:
            step = "Name another one: --kernel-dir DIR"
            raise ConfigError(f"the path of the folder of kernels, {folder}, is not UTF-8", next_step=step)

    @property
    def measured_folder(self) -> Path:
        if self.measured_dir:
            return Path(self.measured_dir)
        return platformdirs.user_cache_path(APP, appauthor=False) / "devices"


def config_of(text: str) -> WorkerConfig:
    """The settings in what `json.dumps(asdict(config))` writes, or some of them."""
    fields: dict[str, Any] = json.loads(text)
    tuples = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    timeouts = Timeouts(**fields.get("timeouts", {}))
    return WorkerConfig(**fields | tuples | {"timeouts": timeouts})
