"""What a Mesh stands on: a coordinator in this process, or a link to one that runs elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from wire.errors import ConfigError
from wire.ir.graph import WireGraph
from wire.policy.batch_shares import Portions

from .handle import Handle
from .node import Node
from .private_params import private_strategy


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Work:
    """A graph to evaluate: what its params are bound to, how to place it, and which `copies` of the params are kept.
    With `force` it is compiled anew, whatever is in the caches.  Params that are private to a worker decide how it is
    placed.  Compared by identity."""

    graph: WireGraph
    bindings: Mapping[str, Handle]
    strategy: str
    copies: str = "checkpoint"
    force: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "strategy", private_strategy(self.bindings, self.strategy, self.copies))


@dataclass(frozen=True, slots=True)
class Started:
    """A call in flight.  `outputs` ends in arrays in graph order; `report` tells what happened, complete at the end;
    `cancel` may be called at any time, on the loop."""

    outputs: asyncio.Future[Any]  # ends in a sequence of arrays
    report: Callable[[], Mapping[str, Any]]
    cancel: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Answered:
    """A call that is over.  `outputs` are arrays in graph order, `report` is that of Started."""

    outputs: Sequence[NDArray[Any]]
    report: Callable[[], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Stateful:
    """The state of a session's graph, and how it is kept.

    `carries` has the params that are the state, by name, with the output that is the next value of each; the caller
    gets the first `returned_count` outputs.  Such `copies` are made every `every` steps, and at most `ahead` are
    in flight (None: what suits the state's size).  A state without copies is computed again from its first value and
    the feeds since, while these are no more than `replay_bytes`; else NodeLost says that it is lost.

    With a `name` it outlasts this process; whoever attaches to it is given `form` (mesh/functions/step_form.py).
    """

    carries: tuple[tuple[str, int], ...]
    returned_count: int
    state_bytes: int
    copies: str
    every: int
    ahead: int | None
    replay_bytes: int
    name: str = ""
    form: bytes = b""


@dataclass(frozen=True, slots=True)
class Attached:
    """A session that this process attached to: it has done `steps` steps.  `fixed` gives the params by these names that
    no step changes."""

    running: Lasting
    steps: int
    form: bytes
    graph: WireGraph
    fixed: Callable[[Sequence[str]], Awaitable[Mapping[str, NDArray[Any]]]]


class Feeds(Protocol):
    """The inputs of one step for any portions of its batch."""

    @property
    def nbytes(self) -> int: ...

    def of(self, portions: Portions) -> Mapping[str, NDArray[Any]]: ...


class Others(Protocol):
    """The works of one session by how a batch is shared out, to `most` workers and in `pieces`
    (mesh/client/elastic_session.py)."""

    most: int
    pieces: int
    everybody: bool

    def work(self, portions: Portions) -> Work:
        """The work of these portions; it may take long, and is asked in any thread."""
        ...


class Running(Protocol):
    """A session of a backend; everything is called on its loop."""

    def step(self, inputs: Any) -> asyncio.Future[Any]:
        """Do one more step, of inputs by their names, or of Feeds where the session is elastic; ends in the
        arrays that the caller gets, in graph order."""
        ...

    def state(self) -> asyncio.Future[dict[str, NDArray[Any]]]:
        """The carried tensors by name, after all steps asked for before."""
        ...

    async def close(self) -> None:
        """Free everything."""
        ...


class Lasting(Running, Protocol):
    """A session that may outlast this process."""

    async def leave(self) -> None:
        """Let another process attach to it."""
        ...


def ends_with_this_program() -> ConfigError:
    """The error for a session with a name whose coordinator would be in this process."""
    return ConfigError(
        "a session with a name outlasts this program, and the coordinator of this mesh ends with it",
        next_step="Start mesh-coord serve and its workers, and use it: Mesh.builder().node(ADDRESS)",
    )


class Backend(Protocol):
    """Everything is called on the event loop it was made on."""

    simulates: bool  # time, which flows while somebody attends to a call

    @property
    def reproducible(self) -> bool:
        """Whether every plan gives the same bits."""
        ...

    async def nodes(self) -> tuple[Node, ...]:
        """Every worker, by name."""
        ...

    def live(self) -> bool:
        """Whether any worker can take work now."""
        ...

    def comes_back(self) -> bool:
        """Whether what cannot take work now is expected to: a coordinator daemon whose link broke is dialled again."""
        ...

    def describe(self) -> str:
        """What computes, in a few words, from what is known without asking; in any thread."""
        ...

    async def plan(self, graph: WireGraph, strategy: str, copies: str, dies: str = "") -> Mapping[str, Any]:
        """The plan as plain data (docs/planning.md); nothing is sent."""
        ...

    async def explain(self, graph: WireGraph, worker: str, device: int | None, texts: bool, kernel: int | None) -> Any:
        """What a worker, by name or id, tells of its kernels for a graph: an Explained.  "" is any worker, and None any
        device and all kernels."""
        ...

    def hold(self, handle: Handle) -> None:
        """Keep a handle's tensor for workers to fetch, for as long as the handle lives."""
        ...

    def start(self, work: Work, inputs: Mapping[str, NDArray[Any]]) -> Started:
        """Begin a call."""
        ...

    def at_once(self, work: Work, inputs: Mapping[str, NDArray[Any]]) -> Answered | None:
        """A call that this thread, any one, computes without the loop; None where it must be started."""
        ...

    elastic: bool  # whether sessions may have other works for other numbers of workers

    def session(self, work: Work, state: Stateful, others: Others | None = None) -> Running:
        """Begin a session; ConfigError where there can be none."""
        ...

    async def attach(self, name: str, take: bool) -> Attached:
        """Go on with a session of this name; ConfigError where sessions end with this process."""
        ...

    def forget(self, work: Work) -> None:
        """No more calls of a work will come: free what is kept of it, now or, of a session, when that is closed."""
        ...

    def attend(self, started: Started) -> None:
        """Somebody in another thread waits for a call: where time is simulated, it flows until the call is over."""
        ...

    def watch(self, watcher: Callable[[Mapping[str, Any]], None]) -> None:
        """Call `watcher` with every event from now on."""
        ...

    async def close(self) -> None: ...
