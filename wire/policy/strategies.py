"""Strategies: how a program is to be placed, as values.  Pure data, with a text form that travels.

`Auto()` is the cheapest of all that follow.  `Single()` is the best one worker.  `Pipeline()` cuts across every worker.
`Ranks()` gives each rank of an `spmd` program a device of its own; `DataParallel()`, `TensorParallel()`,
`FullySharded()` and `DataTensor()` make a program of ranks of one that has none.  `DeviceMap()` says itself which layer
is where.

A strategy never means something else silently: what cannot be done is an error.  To add one: a class with its `word`, a
row in `_KINDS`, and what it means in coordinator/planning/planner.py.
"""

from __future__ import annotations

import json
import re
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, ClassVar

from ..errors import InputError
from .pipeline_schedules import SCHEDULES

_RANGE = re.compile(r"(?P<stem>.*?)\.?(?P<first>\d+)\.\.(?P<stop>\d+)")


@dataclass(frozen=True, slots=True)
class Strategy:
    """Base of all; `text` is its form in messages, and `strategy_of` the way back.

    With `reproducible` a program has only plans whose results have the same bits, whichever workers there are
    (docs/planning.md, "The last bits of results"); `other_bits` says why a strategy has no such plans, "" where it has.
    """

    reproducible: bool = field(default=False, kw_only=True)
    word: ClassVar[str]

    def __post_init__(self) -> None:
        if type(self.reproducible) is not bool:
            raise InputError(f"reproducible is True or False, not {self.reproducible!r}")
        if self.reproducible and self.other_bits:
            raise InputError(
                f"the strategy {self.word!r} is not reproducible: {self.other_bits}",
                next_step="Choose 'auto', 'single' or 'pipeline', train with DistributedTrainer(deterministic=N), or "
                "leave out reproducible",
            )

    @property
    def other_bits(self) -> str:
        return ""

    @property
    def plain(self) -> Strategy:
        """A copy without `reproducible`."""
        return replace(self, reproducible=False) if self.reproducible else self

    @property
    def text(self) -> str:
        given = {
            setting.name: value
            for setting in _fields(self)
            if (value := getattr(self, setting.name)) != setting.default
        }
        return f"{self.word} {json.dumps(given, separators=(',', ':'))}" if given else self.word


def _fields(strategy: Any) -> tuple[Field[Any], ...]:
    return fields(strategy)


@dataclass(frozen=True, slots=True)
class Auto(Strategy):
    """The cheapest by the cost model: one worker, a cut, or a split along one axis or two.  With `use_all` the cheapest
    of those that give every worker work, PlacementError if there is none."""

    use_all: bool = False
    word = "auto"

    def __post_init__(self) -> None:
        Strategy.__post_init__(self)
        if type(self.use_all) is not bool:
            raise InputError(f"use_all is True or False, not {self.use_all!r}")


@dataclass(frozen=True, slots=True)
class Single(Strategy):
    """The best one worker."""

    word = "single"


@dataclass(frozen=True, slots=True)
class Pipeline(Strategy):
    """Cut across every worker, so that the slowest slice is as fast as can be.

    Training goes over `stages` of workers, 0 for as many as are fastest, with the rows of a step in so many
    `micro_batches`, in the order of a `schedule` (wire/policy/pipeline_schedules.py).  Each stage is there `data`
    times, with a share of the micro-batches each.
    """

    stages: int = 0
    micro_batches: int = 8
    schedule: str = "1f1b"
    data: int = 1
    word = "pipeline"

    def __post_init__(self) -> None:
        for name, least in (("stages", 0), ("micro_batches", 2), ("data", 1)):
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= RANKS_MAX:
                raise InputError(f"{name} of a pipeline is an int from {least} to {RANKS_MAX}, not {value!r}")
        if not isinstance(self.schedule, str) or self.schedule not in SCHEDULES:
            names = ", ".join(SCHEDULES)
            raise InputError(f"schedule={self.schedule!r} is not known", next_step=f"Choose one of {names}")
        if self.data > self.micro_batches:
            raise InputError(f"{self.micro_batches} micro-batches leave some of {self.data} copies without work")
        Strategy.__post_init__(self)

    @property
    def other_bits(self) -> str:
        if SCHEDULES[self.schedule].updates:
            return "how stale weights are follows the number of stages"
        return "copies of stages add up gradients in an order that follows their number" if self.data > 1 else ""


@dataclass(frozen=True, slots=True)
class Ranks(Strategy):
    """A device for each rank of the program's grids; with too few of them an error.  Where a program has ranks, this is
    also what Auto does, if there are devices enough; else one program computes all ranks, and the plan says so."""

    word = "ranks"


@dataclass(frozen=True, slots=True)
class Split(Strategy):
    """A program over whole tensors, split over `ranks` devices along one axis of that name; 0 ranks are as many as are
    predicted to be fastest, 2 at least."""

    ranks: int = 0
    axis: ClassVar[str]

    def __post_init__(self) -> None:
        Strategy.__post_init__(self)
        if type(self.ranks) is not int or not (self.ranks == 0 or 2 <= self.ranks <= RANKS_MAX):
            raise InputError(f"a program is split over 2 to {RANKS_MAX} ranks, or 0 for any number, not {self.ranks!r}")

    def grid(self, ranks: int) -> dict[str, int]:
        """The axes of so many ranks with their sizes, the outermost first."""
        return {self.axis: ranks}

    def divides(self, ranks: int) -> bool:
        """Whether so many ranks make such a grid."""
        return ranks >= 2

    @property
    def other_bits(self) -> str:
        return "the last bits of a product follow its shapes, and these follow the number of ranks"


RANKS_MAX = 4096


@dataclass(frozen=True, slots=True)
class DataParallel(Split):
    """Each rank has a share of the batch and all params.  `inputs` names the arguments that are batches, all inputs
    where it is empty; they are split along their first dimension.

    With `by_speed` faster workers have more of equal shares, which a program allows whose ranks exchange nothing.  A
    trainer gives them more rows where that is faster, unless it is False."""

    inputs: tuple[str, ...] = ()
    by_speed: bool | None = None
    word = "data"
    axis = "data"

    def __post_init__(self) -> None:
        Split.__post_init__(self)
        _check_names(self.inputs)
        if type(self.by_speed) not in (bool, type(None)):
            raise InputError(f"by_speed is True, False or None, not {self.by_speed!r}")


@dataclass(frozen=True, slots=True)
class TensorParallel(Split):
    """Each rank has a share of every param of two dimensions and more, split along the longest."""

    word = "tensor"
    axis = "tensor"


@dataclass(frozen=True, slots=True)
class FullySharded(Split):
    """Each rank has a share of the batch and of every param, which the others send it where it is needed."""

    inputs: tuple[str, ...] = ()
    word = "fully-sharded"
    axis = "data"

    def __post_init__(self) -> None:
        Split.__post_init__(self)
        _check_names(self.inputs)


@dataclass(frozen=True, slots=True)
class DataTensor(Split):
    """A grid of two axes: groups of `tensor` ranks have each a share of the batch, and in a group each rank has a share
    of every param.  `ranks` are those of the whole grid."""

    tensor: int = 2
    inputs: tuple[str, ...] = ()
    word = "data-tensor"
    axis = "data"

    def __post_init__(self) -> None:
        Split.__post_init__(self)
        _check_names(self.inputs)
        if type(self.tensor) is not int or self.tensor < 2 or (self.ranks and not self.divides(self.ranks)):
            raise InputError(f"{self.ranks} ranks are not 2 groups or more of {self.tensor!r} ranks, 2 at least")

    def grid(self, ranks: int) -> dict[str, int]:
        return {"data": ranks // self.tensor, "tensor": self.tensor}

    def divides(self, ranks: int) -> bool:
        return ranks >= 2 * self.tensor and ranks % self.tensor == 0


@dataclass(frozen=True, slots=True)
class Row:
    """Layers of one name on one worker: the one that is called so, or those numbered from `first` to before `stop`."""

    name: str
    worker: str
    first: int = -1
    stop: int = -1

    def covers(self, layer: tuple[str, ...]) -> bool:
        """Whether a layer, or what is inside one, is among these; by the words of its name."""
        stem = _words(self.name)
        inside, rest = layer[: len(stem)] == stem, layer[len(stem) :]
        if self.first < 0 or not inside:
            return inside
        return bool(rest) and rest[0].isdigit() and self.first <= int(rest[0]) < self.stop

    def meets(self, other: Row) -> bool:
        """Whether some layer would be in both."""
        mine, theirs = _words(self.name), _words(other.name)
        if mine == theirs and min(self.first, other.first) >= 0:
            return self.first < other.stop and other.first < self.stop
        return self.covers(theirs) or other.covers(mine)

    def __str__(self) -> str:
        return self.name if self.first < 0 else f"{self.name}.{self.first}..{self.stop}".removeprefix(".")


@dataclass(frozen=True, slots=True)
class DeviceMap(Strategy):
    """A map of layers to workers.  Layers go by the names of params: "blocks.3" is all below `blocks/3/` or
    `blocks.3.`, with or without the name of the argument before it.  What has no params is where its operands are.

        DeviceMap().layer("embed", "anna").layers("blocks.0..12", "berta")   # blocks 0 to 11

    Every param must be in exactly one row, and every row must have one: overlaps raise InputError at once, gaps and
    unknown layers when a program is placed.  A worker is given by its name, or as a Node of `mesh.nodes`.
    """

    rows: tuple[Row, ...] = ()
    word = "placed"

    def __post_init__(self) -> None:
        Strategy.__post_init__(self)
        if not isinstance(self.rows, tuple) or not all(isinstance(row, Row) for row in self.rows):
            raise InputError("a device map has rows, made by layer() and layers()", next_step="Begin with DeviceMap()")

    def layer(self, name: str, worker: object) -> DeviceMap:
        """One layer, with all that is inside it; "" is everything."""
        if not isinstance(name, str):
            raise InputError(f"a layer goes by its name, not by {name!r}")
        return self._with(Row(name, _name_of(worker)))

    def layers(self, names: str, worker: object) -> DeviceMap:
        """Several layers, numbered: "blocks.0..12" is blocks.0 to blocks.11."""
        match = _RANGE.fullmatch(names) if isinstance(names, str) else None
        if match is None or not int(match["first"]) < int(match["stop"]):
            raise InputError(f"{names!r} is no range of layers", next_step='Write "blocks.0..12" for 0 to 11')
        return self._with(Row(match["stem"], _name_of(worker), int(match["first"]), int(match["stop"])))

    def _with(self, row: Row) -> DeviceMap:
        for other in self.rows:
            if row.meets(other):
                raise InputError(f"layers {row} overlap layers {other}", next_step="Give every layer one worker")
        return replace(self, rows=(*self.rows, row))

    @property
    def text(self) -> str:
        rows = [[row.name, row.worker, row.first, row.stop] for row in self.rows]
        given = {"rows": rows, "reproducible": True} if self.reproducible else rows
        return f"{self.word} {json.dumps(given, separators=(',', ':'))}"

    def row_of(self, param: str) -> int | None:
        """The number of the row that a param is in, None for none."""
        words = _words(param)
        for start in (0, 1):
            rows = (index for index, row in enumerate(self.rows) if row.covers(words[start:]))
            if (index := next(rows, None)) is not None:
                return index
        return None


_KINDS = (Auto, Single, Pipeline, Ranks, DataParallel, TensorParallel, FullySharded, DataTensor, DeviceMap)
_ALL: dict[str, type[Strategy]] = {cls.word: cls for cls in _KINDS}
STRATEGIES = tuple(word for word, kind in _ALL.items() if kind is not DeviceMap)  # those that a name says all of
FOR_ANY_GRAPH = tuple(cls.word for cls in (Auto, Single, Pipeline))


def text_of(strategy: str | Strategy, reproducible: bool = False) -> str:
    """The text form of a strategy, or of one's name; InputError if there is none like that.

    With `reproducible` that of the same strategy for plans of which all have the same bits, InputError if not all have.
    """
    asked = strategy if isinstance(strategy, Strategy) else strategy_of(strategy)
    return (replace(asked, reproducible=True) if reproducible else asked).text


def strategy_of(text: object) -> Strategy:
    """The strategy that a text means; InputError if there is none like that."""
    word, _, rest = text.partition(" ") if isinstance(text, str) else ("", "", "")
    known = _ALL.get(word)
    if known is DeviceMap:
        return _device_map(rest)
    if known is not None and rest and _fields(known):
        return _given(known, rest)
    if known is None or rest:
        names = ", ".join(map(repr, STRATEGIES))
        raise InputError(f"strategy={text!r} is not known", next_step=f"Choose one of {names}, or a DeviceMap")
    return known()


def _device_map(rest: str) -> DeviceMap:
    try:
        given = json.loads(rest)
        made = DeviceMap(reproducible=isinstance(given, dict) and given["reproducible"])
        listed = given["rows"] if isinstance(given, dict) else given
        rows = [Row(str(name), str(worker), int(first), int(stop)) for name, worker, first, stop in listed]
    except (ValueError, TypeError, KeyError):
        raise InputError(f"{rest[:200]!r} is no device map", next_step="Make one with DeviceMap()") from None
    for row in rows:
        made = made._with(row)
    return made


def _given(kind: Any, rest: str) -> Strategy:
    try:
        given = json.loads(rest).items()
        made: Strategy = kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in given})
        return made
    except (ValueError, TypeError, AttributeError):
        raise InputError(f"{rest[:200]!r} says nothing to the strategy {kind.word!r}") from None


def _check_names(names: object) -> None:
    if not isinstance(names, tuple) or not all(isinstance(name, str) and name for name in names):
        raise InputError(f"inputs are named by a tuple of texts, not {names!r}")


def _words(name: str) -> tuple[str, ...]:
    if not isinstance(name, str):
        raise InputError(f"a layer or a param goes by its name, not {name!r:.80}")
    return tuple(name.replace("/", ".").split(".")) if name else ()


def _name_of(worker: object) -> str:
    name = worker if isinstance(worker, str) else getattr(worker, "name", None)
    if not isinstance(name, str) or not name:
        raise InputError(f"{worker!r} is no worker", next_step="Give its name, or a Node of mesh.nodes")
    return name
