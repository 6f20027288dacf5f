"""Replica set: the running batches of one model, on several sets of workers, behind one `begin`.

It performs what `replica_groups.py` and `replica_router.py` decide.  Each replica has workers of its own, and their
memory for its keys and values.  A text goes to the batch that has least to do.  Where all workers of a replica are
gone, its texts go on elsewhere, from the tokens that they have; where workers come, there are new replicas.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from wire.errors import Cancelled, InputError, MeshError, PlacementError
from wire.policy.strategies import DeviceMap, Strategy, strategy_of
from wire.system.memory import default_budget
from wire.system.steady_log import steady_logger
from wire.system.tasks import to_the_end
from wire.units import counted

from ..client.async_mesh import AsyncMesh
from ..client.plan_preview import PlanPreview
from ..models.decoder import table_of
from ..models.model import Model
from .continuous_batching import Guide
from .drafting import divided, drafter_model, drafter_of
from .generation_runner import KV_SHARE, Elsewhere, Generating, Moving, TokenStream, pages_in, text_of
from .kv_pages import PAGE, prefix_keys
from .layer_placement import check_whole
from .logit_adjustment import LogitAdjustment
from .replica_groups import Group, Machine, regrouped, stands_apart
from .replica_router import Load, chosen
from .settings import GREEDY, Options, Sampling, tokens_of

log = steady_logger("graph_mesh.inference")

LOOK_S = 2.0  # between two looks at the workers, which may have come or gone
WEIGHTS_ROOM = 1.25  # a replica has so many times the memory of its weights: it holds keys, values and activations, too
HEALTHY, SUSPECT = "healthy", "suspect"  # who is not heard for a moment has its texts still


class Kind(Enum):
    """What a batch's steps take: an adjusted one takes what a detailed one does, and more."""

    PLAIN = "plain"
    DETAILED = "detailed"
    ADJUSTED = "adjusted"


def kind_of(guide: Guide | None, scored: bool, adjustment: LogitAdjustment | None) -> Kind:
    """The kind of batch that a text needs."""
    if adjustment is not None:
        return Kind.ADJUSTED
    return Kind.DETAILED if guide is not None or scored else Kind.PLAIN


@dataclass(slots=True, eq=False)
class _Replica:
    """What a model has on one set of workers: up to `plain` plain batches, and one of each other kind, made when they
    are first needed.  Each may have `kv_bytes`, which hold `tokens_max` tokens."""

    group: Group  # () for all workers
    strategy: str
    kv_bytes: int
    tokens_max: int
    plain: int
    batches: dict[Kind, list[Generating]] = field(default_factory=dict)

    def most(self, kind: Kind) -> int:
        return self.plain if kind is Kind.PLAIN else 1

    def all(self) -> Iterator[tuple[Kind, Generating]]:
        for kind, batches in self.batches.items():
            for batch in batches:
                yield kind, batch


class ReplicaSet:
    """The replicas of a model on a mesh.  `open` makes one; `close` frees what it holds on the workers.

    `queue` texts may wait in each batch, and `kinds` are the kinds of batches that there may be: those of a replica
    divide its memory for keys and values evenly.  Plain batches have `draft` as their drafter, if there is one.
    """

    def __init__(
        self, mesh: AsyncMesh, model: Model, options: Options, queue: int, kinds: Sequence[Kind] = (Kind.PLAIN,),
        draft: Model | None = None,
    ) -> None:  # fmt: skip
        self._mesh, self._model, self._options, self._draft = mesh, model, options, draft
        self._queue, self._kinds = queue, kinds
        asked = options.strategy if isinstance(options.strategy, Strategy) else strategy_of(options.strategy)
        if isinstance(asked, DeviceMap):
            check_whole(asked, model.weights)
        self._asked: Strategy = asked
        self._needed_bytes = int(WEIGHTS_ROOM * sum(weight.nbytes for weight in model.weights.values()))
        self._apart = int(options.replicas) > 1 and stands_apart(asked)
        self._replicas: list[_Replica] = []
        self._looking = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing: set[asyncio.Task[None]] = set()  # batches whose texts went elsewhere
        self._closed = False
        self._steps_before = self._drafted_before = self._accepted_before = 0  # of batches that are closed
        text = text_of(model)
        self.ends = text.ends
        _, self.vocabulary = table_of(model.weights, text.decoder)
        self._positions_max = text.decoder.positions_max

    @classmethod
    async def open(
        cls, mesh: AsyncMesh, model: Model, options: Options, queue: int, kinds: Sequence[Kind] = (Kind.PLAIN,),
        look_s: float = LOOK_S,
    ) -> ReplicaSet:  # fmt: skip
        """A set for the workers that there are, at which it looks every `look_s`; InputError if a replica's memory does
        not hold one page, the drafter of the options cannot draft for the model, or a map of layers lacks some."""
        made = cls(mesh, model, options, queue, kinds, await drafter_model(mesh, model, options))
        machines = await made._machines()
        made._apart = made._apart and bool(machines)
        groups = regrouped((), machines, int(options.replicas), made._needed_bytes) if made._apart else ((),)
        made._take(groups, machines)
        if made._apart:
            made._task(made._keep_looking(look_s), made._tasks)
        return made

    # -- texts

    def begin(
        self,
        prompt: Iterable[int],
        tokens_max: int | None,
        how: Sampling = GREEDY,
        ends: Iterable[int] | None = None,
        guide: Guide | None = None,
        scored: bool = False,
        adjustment: LogitAdjustment | None = None,
    ) -> TokenStream:
        """Go on with a text, as `Generating.begin` does, in the batch that has least to do."""
        if self._closed:
            raise Cancelled("the model was unloaded")
        tokens = tokens_of(prompt)
        kind = kind_of(guide, scored, adjustment)
        batch = self._batch_for(kind, tokens, len(tokens) + (tokens_max or 1) - 1)
        if batch is None:  # the largest one says what is lacking
            largest = max(self._replicas, key=lambda replica: replica.kv_bytes)
            batch = self._made(largest, kind)
        return batch.begin(tokens, tokens_max, how, ends, guide, scored, adjustment)

    @property
    def positions_max(self) -> int:
        """How many tokens the longest text may have."""
        held = max(replica.tokens_max for replica in self._replicas)
        return min(held, self._positions_max or held)

    # -- what there is

    def batches(self) -> list[Generating]:
        """All running batches."""
        return [batch for replica in self._replicas for _, batch in replica.all()]

    def groups(self) -> list[Group]:
        """The ids of the workers of each replica, () for all workers."""
        return [replica.group for replica in self._replicas]

    @property
    def waiting(self) -> int:
        """Texts that wait for a slot."""
        return sum(batch.waiting for batch in self.batches())

    @property
    def active(self) -> int:
        """Texts that go on."""
        return sum(batch.active for batch in self.batches())

    @property
    def steps(self) -> int:
        """Steps that were answered."""
        return self._steps_before + sum(batch.steps for batch in self.batches())

    @property
    def drafted(self) -> int:
        """Drafts that were checked."""
        return self._drafted_before + sum(batch.drafted for batch in self.batches())

    @property
    def accepted(self) -> int:
        """Drafts that became tokens of texts."""
        return self._accepted_before + sum(batch.accepted for batch in self.batches())

    @property
    def pages(self) -> tuple[int, int]:
        """Pages of keys and values that texts hold, and that can be had."""
        pools = [batch.pages for batch in self.batches()]
        return sum(held for held, _ in pools), sum(free for _, free in pools)

    @property
    def held_bytes(self) -> int:
        """The bytes of the weights of all replicas, and of the keys and values of their batches."""
        weights = len(self._replicas) * sum(weight.nbytes for weight in self._model.weights.values())
        return weights + sum(batch.state_bytes for batch in self.batches())

    async def plans(self) -> list[PlanPreview]:
        """The plan of the first step of each replica; PlacementError where there is none."""
        return [await self._made(replica, Kind.PLAIN).plan() for replica in self._replicas]

    async def load(self) -> None:
        """Have the weights and the program of a plain batch on the workers of a replica: of the first that has them;
        the others go on with it.  MeshError where all fail."""
        batches = [self._made(replica, Kind.PLAIN) for replica in self._replicas]
        loading = [self._task(self._tried(batch), self._tasks) for batch in batches]
        left = set(loading)
        while left:
            done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            if any(not task.cancelled() and task.exception() is None for task in done):
                return
        loading[0].result()

    async def close(self) -> None:
        """Cancel all texts, and free what the workers hold; whoever is cancelled meanwhile, it is done to the end."""
        await to_the_end(self._end())

    async def _end(self) -> None:
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._closing, return_exceptions=True)
        await asyncio.gather(*(batch.close() for batch in self.batches()))

    # -- choosing

    def _batch_for(self, kind: Kind, tokens: Sequence[int], most: int) -> Generating | None:
        """The batch for a text of these tokens, and `most` in all; None if none has the memory."""
        keys = list(prefix_keys(tokens))[: (len(tokens) - 1) // PAGE]
        places: list[tuple[_Replica, Generating | None]] = []
        for replica in self._replicas:
            there = replica.batches.get(kind, [])[: replica.most(kind)]
            places += [(replica, batch) for batch in there]
            if len(there) < replica.most(kind):
                places.append((replica, None))
        loads = [
            Load(tokens_max=replica.tokens_max) if batch is None else batch.load(keys) for replica, batch in places
        ]
        place = chosen(loads, most)
        if place is None:
            return None
        replica, batch = places[place]
        return self._made(replica, kind) if batch is None else batch

    def _made(self, replica: _Replica, kind: Kind) -> Generating:
        """A batch of this kind: another one, as long as there may be."""
        batches = replica.batches.setdefault(kind, [])
        if len(batches) < replica.most(kind):
            options, draft = self._options, self._draft if kind is Kind.PLAIN else None
            kv_bytes, drafter = drafter_of(self._mesh, self._model, draft, options, replica.kv_bytes)
            batches.append(
                Generating(
                    self._mesh, self._model, slots=int(options.max_batch), queue=self._queue,
                    chunk=int(options.chunk), strategy=replica.strategy, mode=options.mode, copies=options.copies,
                    detailed=kind is not Kind.PLAIN, adjusted=kind is Kind.ADJUSTED, kv_bytes=kv_bytes,
                    elsewhere=self._elsewhere(replica) if self._apart else None, drafter=drafter,
                )
            )  # fmt: skip
        return batches[-1]

    @staticmethod
    async def _tried(batch: Generating) -> None:
        stream = batch.begin((0,), 1)
        try:
            await stream.next()
        finally:
            stream.cancel()

    # -- workers that come and go

    async def _keep_looking(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            try:
                await self.look()
            except MeshError as error:  # a coordinator elsewhere may be away for a while
                log.debug("could not look at the workers: %s", error)
            except Exception:  # without the next look, workers that come would never be used
                log.exception("could not look at the workers")

    def _elsewhere(self, replica: _Replica) -> Elsewhere:
        async def went_on() -> bool:
            with suppress(MeshError):
                await self.look(replica.group)
            return replica not in self._replicas

        return went_on

    async def look(self, lost: Group = ()) -> None:
        """Look at the workers; the state of those that are `lost` went, so they count once they are heard again."""
        async with self._looking:
            machines = await self._machines(lost)
            if not machines:
                return  # whoever comes back, or comes, is waited for as without replicas
            groups = regrouped(self.groups(), machines, int(self._options.replicas), self._needed_bytes)
            if list(groups) != self.groups():
                self._take(groups, machines)

    async def _machines(self, lost: Group = ()) -> list[Machine]:
        """The workers that may compute."""
        return [
            Machine(node.id, node.name, node.memory_bytes)
            for node in await self._mesh.nodes()
            if node.devices
            and (node.state == HEALTHY or (node.state == SUSPECT and node.id not in lost))
            and (not self._asked.workers or {node.id, node.name} & set(self._asked.workers))
        ]

    def _take(self, groups: Sequence[Group], machines: Sequence[Machine]) -> None:
        """Have these groups from now on: replicas of the others go, and new ones come."""
        memory = {machine.node: machine.memory_bytes for machine in machines}
        before, replicas = self._replicas, list[_Replica]()  # those of before stay if a new one cannot be made
        for place, group in enumerate(groups):
            plain = (int(self._options.replicas) - place - 1) // len(groups) + 1
            kept = next((one for one in before if set(one.group) & set(group)), None)
            if kept is None:
                replicas.append(self._new(group, plain, memory))
                continue
            if plain > kept.plain:  # its batches divide its memory
                try:
                    new = self._new(group, plain, memory)
                except InputError:  # a share would hold no page
                    plain = kept.plain
                else:
                    if new.kv_bytes < kept.kv_bytes:
                        replicas.append(new)
                        continue
            if kept.group != group:
                kept.group, kept.strategy = group, self._strategy(group)
                for _, batch in kept.all():
                    batch.place(kept.strategy)
            kept.plain = plain
            replicas.append(kept)
        self._replicas = replicas
        came = [replica for replica in self._replicas if replica not in before]
        if before:
            log.info("%s on %s", counted(len(groups), "replica"), "; ".join(", ".join(group) for group in groups))
        gone = [pair for replica in before if replica not in self._replicas for pair in replica.all()]
        for replica in self._replicas:
            for kind, batches in replica.batches.items():
                gone += [(kind, batch) for batch in batches[replica.most(kind) :]]
                del batches[replica.most(kind) :]
        moving = [(kind, text) for kind, batch in gone for text in batch.carry()]
        for replica in self._replicas if came else ():
            moving += [(kind, text) for kind, batch in replica.all() for text in batch.carry(waiting=True)]
        for kind, text in moving:
            self._adopt(kind, text)
        for _, batch in gone:
            self._steps_before += batch.steps
            self._drafted_before += batch.drafted
            self._accepted_before += batch.accepted
            self._task(batch.close(), self._closing)

    def _new(self, group: Group, plain: int, memory: dict[str, int]) -> _Replica:
        """A replica with a share of its workers' memory; InputError if that does not hold one page."""
        nodes = group or tuple(memory)
        roomiest = max((memory[node] for node in nodes), default=0) or default_budget()
        asked = self._options.kv_bytes
        kv_bytes = (roomiest // KV_SHARE if asked is None else asked) // (plain + len(self._kinds) - 1)
        least = kv_bytes if self._draft is None else divided(self._model, self._draft, kv_bytes)[0]
        tokens_max = PAGE * (pages_in(self._model, least) - 1)
        return _Replica(group, self._strategy(group), kv_bytes, tokens_max, plain)

    def _strategy(self, group: Group) -> str:
        return replace(self._asked, workers=group).text if group else self._asked.text

    def _adopt(self, kind: Kind, moving: Moving) -> None:
        """Have a text go on in the batch that has least to do now."""
        carried, stream = moving
        request = carried.request
        most = len(request.prompt) + request.tokens_max - 1
        batch = self._batch_for(kind, carried.tokens, most)
        if batch is not None:
            batch.adopt(moving)
        else:
            stream._fail(PlacementError(f"the workers that are left have no memory for a text of {most} tokens"))

    @staticmethod
    def _task(work: Coroutine[Any, Any, None], among: set[asyncio.Task[None]]) -> asyncio.Task[None]:
        def ended(task: asyncio.Task[None]) -> None:
            among.discard(task)
            if not task.cancelled() and task.exception() is not None:
                log.debug("a replica: %s", task.exception())  # whoever waits for it has the error, too

        task = asyncio.get_running_loop().create_task(work)
        among.add(task)
        task.add_done_callback(ended)
        return task
