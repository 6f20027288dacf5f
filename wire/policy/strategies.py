"""Strategies: how a program is to be placed, as values.  Pure data, with a text form that travels.

`Auto()` is the cheapest of all that follow.  `Single()` is the best one worker.  `Pipeline()` cuts across every worker.
`Ranks()` gives each rank of an `spmd` program a device of its own; `DataParallel()`, `TensorParallel()`,
`FullySharded()` and `DataTensor()` make a program of ranks of one that has none.  `DeviceMap()` says itself which layer
is where.

A strategy never means something else silently: what cannot be done is an error.  To add one: a class with its `word`, a
row in `_KINDS`, and what it means in coordinator/planning/planner.py.
"""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, ClassVar

from ..errors import InputError
from .pipeline_schedules import SCHEDULES

_RANGE = re.compile(r"(?P<stem>.*?)\.?(?P<first>\d+)\.\.(?P<stop>\d+)")


@dataclass(frozen=True, slots=True)
class Strategy:
    """Base of all strategies: how a program is placed on workers.

    `text` is a strategy's form in messages, and `strategy_of` is the way back.

    Parameters
    ----------
    reproducible : bool or str, optional
        Whether only plans are allowed whose results have the same bits, whichever workers there are (docs/planning.md).
        The name of an arithmetic, such as "native-2", is True by that arithmetic alone.
    workers : tuple of str, optional
        The names or ids of the only workers that may compute; () for all.  Those that are not there are left out.  If
        none of them is, that is a PlacementError.

    Raises
    ------
    InputError
        If the strategy has no such plans, or these are no names.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> strategy = mesh.Single(reproducible=True)
    >>> strategy.text, strategy.plain
    ('single {"reproducible":true}', Single(reproducible=False, workers=()))
    >>> with mesh.Mesh.builder().simulate(3).build() as m:
    ...     m.plan(lambda x: x + 1, np.zeros(2), strategy=mesh.Auto(workers=("sim-2", "sim-9"))).workers
    ('sim-2',)
    """

    reproducible: bool | str = field(default=False, kw_only=True)
    workers: tuple[str, ...] = field(default=(), kw_only=True)
    word: ClassVar[str]

    def __post_init__(self) -> None:
        if type(self.reproducible) is not bool and not (isinstance(self.reproducible, str) and self.reproducible):
            raise InputError(f"reproducible is True, False or the name of an arithmetic, not {self.reproducible!r}")
        if not isinstance(self.workers, tuple) or not all(isinstance(name, str) and name for name in self.workers):
            raise InputError(f"workers is a tuple of names of workers, not {self.workers!r:.200}")
        if self.reproducible and self.other_bits:
            raise InputError(
                f"the strategy {self.word!r} is not reproducible: {self.other_bits}",
                next_step="Choose 'auto', 'single' or 'pipeline', train with DistributedTrainer(deterministic=N), or "
                "leave out reproducible",
            )

    @property
    def other_bits(self) -> str:
        """Why the strategy has no reproducible plans on any machines, "" if it has."""
        return ""

    @property
    def plain(self) -> Strategy:
        """The same strategy without `reproducible` and `workers`."""
        return replace(self, reproducible=False, workers=()) if self.reproducible or self.workers else self

    @property
    def text(self) -> str:
        """The strategy's form in messages."""
        settings = {
            setting.name: value
            for setting in _fields(self)
            if (value := getattr(self, setting.name)) != setting.default
        }
        return f"{self.word} {json.dumps(settings, separators=(',', ':'))}" if settings else self.word


def _fields(strategy: Any) -> tuple[Field[Any], ...]:
    return fields(strategy)


@dataclass(frozen=True, slots=True)
class Auto(Strategy):
    """The plan that the cost model predicts to be fastest: one worker, a cut, or a split along one axis or two.

    Parameters
    ----------
    use_all : bool, optional
        Whether to choose only among plans that give every worker work; PlacementError if there is none.
    reproducible : bool, optional
        As for Strategy.
    workers : tuple of str, optional
        As for Strategy.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> with mesh.Mesh.builder().simulate(2).build() as m:
    ...     m.run(lambda x: x + 1, np.zeros(2), strategy=mesh.Auto())
    array([1., 1.])
    """

    use_all: bool = False
    word = "auto"

    def __post_init__(self) -> None:
        Strategy.__post_init__(self)
        if type(self.use_all) is not bool:
            raise InputError(f"use_all is True or False, not {self.use_all!r}")


@dataclass(frozen=True, slots=True)
class Single(Strategy):
    """The one best worker.

    Parameters
    ----------
    reproducible : bool, optional
        As for Strategy.
    workers : tuple of str, optional
        As for Strategy.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> with mesh.Mesh.builder().simulate(2, gflops=[10.0, 99.0]).build() as m:
    ...     m.plan(lambda x: x @ x, np.ones((64, 64)), strategy=mesh.Single()).workers
    ('sim-1',)
    """

    word = "single"


@dataclass(frozen=True, slots=True)
class Pipeline(Strategy):
    """A cut across all workers, such that the slowest part is as fast as can be.

    A training step is cut into stages, which compute its micro-batches one after the other.

    Parameters
    ----------
    stages : int, optional
        The number of stages; 0 for as many as are predicted to be fastest.
    micro_batches : int, optional
        Into how many micro-batches the rows of a step are cut, at least 2.
    schedule : {"1f1b", "gpipe", "pipedream"}, optional
        The order in which a stage computes micro-batches forward and backward (wire/policy/pipeline_schedules.py).
    data : int, optional
        How many copies of each stage there are, with a share of the micro-batches each.
    reproducible : bool, optional
        As for Strategy.
    workers : tuple of str, optional
        As for Strategy.

    Raises
    ------
    InputError
        If a number is not possible, or the schedule is not known.

    Notes
    -----
    gpipe is of Huang et al., GPipe, NeurIPS 2019; 1f1b of Narayanan et al., Memory-Efficient Pipeline-Parallel DNN
    Training, ICML 2021; pipedream of Narayanan et al., PipeDream, SOSP 2019.

    Examples
    --------
    >>> import mesh
    >>> mesh.Pipeline(stages=2, micro_batches=4).text
    'pipeline {"stages":2,"micro_batches":4}'
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
        schedule = self.schedule.lower() if isinstance(self.schedule, str) else ""  # papers write GPipe and 1F1B
        if schedule not in SCHEDULES:
            names = ", ".join(SCHEDULES)
            raise InputError(f"schedule={self.schedule!r} is not known", next_step=f"Choose one of {names}")
        object.__setattr__(self, "schedule", schedule)
        if self.data > self.micro_batches:
            raise InputError(f"{self.micro_batches} micro-batches leave some of {self.data} copies without work")
        Strategy.__post_init__(self)

    @property
    def other_bits(self) -> str:
        """Why the strategy has no reproducible plans, "" if it has."""
        if SCHEDULES[self.schedule].updates:
            return "how stale weights are follows the number of stages"
        return "copies of stages add up gradients in an order that follows their number" if self.data > 1 else ""


@dataclass(frozen=True, slots=True)
class Ranks(Strategy):
    """A device for each rank of the program's grids.

    Auto does this, too, if there are enough devices; else one program computes all ranks, and the plan says so.

    Parameters
    ----------
    reproducible : bool, optional
        As for Strategy.
    workers : tuple of str, optional
        As for Strategy.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> grid, rows = mesh.Grid((2,), ("dp",)), mesh.PartitionSpec("dp")
    >>> double = mesh.shard_map(lambda x: 2 * x, grid, in_specs=rows, out_specs=rows)
    >>> with mesh.Mesh.builder().simulate(2).build() as m:
    ...     m.run(double, np.ones(4), strategy=mesh.Ranks())
    array([2., 2., 2., 2.])
    """

    word = "ranks"


@dataclass(frozen=True, slots=True)
class Split(Strategy):
    """A split of a program over whole tensors, along one axis of ranks with a device each.

    Parameters
    ----------
    ranks : int, optional
        The number of ranks, at least 2; 0 for as many as are predicted to be fastest.
    reproducible : bool, optional
        As for Strategy.
    workers : tuple of str, optional
        As for Strategy.
    """

    ranks: int = 0
    axis: ClassVar[str]

    def __post_init__(self) -> None:
        Strategy.__post_init__(self)
        if type(self.ranks) is not int or not (self.ranks == 0 or 2 <= self.ranks <= RANKS_MAX):
            raise InputError(f"a program is split over 2 to {RANKS_MAX} ranks, or 0 for any number, not {self.ranks!r}")

    def grid(self, ranks: int) -> dict[str, int]:
        """Return the axes of the ranks.

        Parameters
        ----------
        ranks : int
            The number of ranks.

        Returns
        -------
        dict of str to int
            The size of each axis by its name, the outermost first.
        """
        return {self.axis: ranks}

    def divides(self, ranks: int) -> bool:
        """Return whether so many ranks make such a grid.

        Parameters
        ----------
        ranks : int
            The number of ranks.

        Returns
        -------
        bool
            Whether they do.
        """
        return ranks >= 2


RANKS_MAX = 4096


@dataclass(frozen=True, slots=True)
class DataParallel(Split):
    """A split of the batch: each rank has a share of the rows, and all params.

    Parameters
    ----------
    ranks : int, optional
        The number of ranks, at least 2; 0 for as many as are predicted to be fastest.
    inputs : tuple of str, optional
        The arguments that are batches, which are split along their first dimension; by default all inputs.
    by_speed : bool, optional
        Whether faster workers have larger shares.  A program allows it whose ranks exchange nothing.  A trainer does it
        where that is faster, unless this is False.
    reproducible : bool, optional
        As for Strategy.
    workers : tuple of str, optional
        As for Strategy.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> with mesh.Mesh.builder().simulate(2).build() as m:
    ...     rows = mesh.DataParallel(2, inputs=("x",))
    ...     preview = m.plan(lambda w, x: x @ w, np.ones((4, 2)), np.ones((6, 4)), strategy=rows)
    >>> preview.gangs[0]["axes"]
    {'data': 2}
    """

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
    """A split of the params: each rank has a share of every param of two or more dimensions, along the longest of them.

    Parameters
    ----------
    ranks : int, optional
        The number of ranks, at least 2; 0 for as many as are predicted to be fastest.
    reproducible : bool, optional
        As for Strategy.
    workers : tuple of str, optional
        As for Strategy.

    Notes
    -----
    Shoeybi et al., Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism, 2019.

    Examples
    --------
    >>> import mesh
    >>> mesh.TensorParallel(4).grid(4)
    {'tensor': 4}
    """

    word = "tensor"
    axis = "tensor"


@dataclass(frozen=True, slots=True)
class FullySharded(Split):
    """A split of batch and params: each rank has a share of the rows, and of every param, which others fetch.

    Parameters
    ----------
    ranks : int, optional
        The number of ranks, at least 2; 0 for as many as are predicted to be fastest.
    inputs : tuple of str, optional
        The arguments that are batches, which are split along their first dimension; by default all inputs.
    reproducible : bool, optional
        As for Strategy.
    workers : tuple of str, optional
        As for Strategy.

    Notes
    -----
    Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, SC 2020 (stage 3).

    Examples
    --------
    >>> import mesh
    >>> mesh.FullySharded(2, inputs=("x",)).text
    'fully-sharded {"ranks":2,"inputs":["x"]}'
    """

    inputs: tuple[str, ...] = ()
    word = "fully-sharded"
    axis = "data"

    def __post_init__(self) -> None:
        Split.__post_init__(self)
        _check_names(self.inputs)


@dataclass(frozen=True, slots=True)
class DataTensor(Split):
    """A split along two axes: groups of ranks split the batch, and the ranks of a group split every param.

    Parameters
    ----------
    ranks : int, optional
        The number of ranks of the whole grid; 0 for as many as are predicted to be fastest.
    tensor : int, optional
        The number of ranks in a group, at least 2.
    inputs : tuple of str, optional
        The arguments that are batches, which are split along their first dimension; by default all inputs.
    reproducible : bool, optional
        As for Strategy.
    workers : tuple of str, optional
        As for Strategy.

    Examples
    --------
    >>> import mesh
    >>> strategy = mesh.DataTensor(8, tensor=2)
    >>> strategy.grid(8), strategy.divides(7)
    ({'data': 4, 'tensor': 2}, False)
    """

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
        """Return the axes of the ranks.

        Parameters
        ----------
        ranks : int
            The number of ranks.

        Returns
        -------
        dict of str to int
            The size of each axis by its name, the outermost first.
        """
        return {"data": ranks // self.tensor, "tensor": self.tensor}

    def divides(self, ranks: int) -> bool:
        """Return whether so many ranks make such a grid.

        Parameters
        ----------
        ranks : int
            The number of ranks.

        Returns
        -------
        bool
            Whether they do.
        """
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
    """A choice of workers by hand: which layer is on which worker.

    Layers go by the names of params: "blocks.3" is all below `blocks/3/` or `blocks.3.`, with or without the name of
    the argument before it.  What has no params is computed where its operands are.  Every param must be in exactly one
    row, and every row must have a param.

    A worker is given by its name, or as a Node of `mesh.nodes`; "NAME:INDEX" is one of its devices, as for
    `mesh.to_device`.

    Parameters
    ----------
    rows : tuple of Row, optional
        What `layer` and `layers` make.
    reproducible : bool, optional
        As for Strategy.
    workers : tuple of str, optional
        It stays empty: the rows name the workers.

    Raises
    ------
    InputError
        If rows overlap, or `workers` is given; gaps and unknown layers raise it when a program is placed.

    Examples
    --------
    >>> import mesh
    >>> where = mesh.DeviceMap().layer("embed", "anna").layers("blocks.0..12", "berta")  # blocks 0 to 11
    >>> where.row_of("blocks/3/w"), where.row_of("head/w")
    (1, None)
    """

    rows: tuple[Row, ...] = ()
    word = "placed"

    def __post_init__(self) -> None:
        Strategy.__post_init__(self)
        if self.workers:
            raise InputError("a device map names a worker for each layer", next_step="Leave out workers")
        if not isinstance(self.rows, tuple) or not all(isinstance(row, Row) for row in self.rows):
            raise InputError("a device map has rows, made by layer() and layers()", next_step="Begin with DeviceMap()")

    def layer(self, name: str, worker: object) -> DeviceMap:
        """Place one layer, with all that is inside it.

        Parameters
        ----------
        name : str
            Its name; "" is everything.
        worker : str or Node
            The worker, by its name or as `Mesh.nodes` has it.

        Returns
        -------
        DeviceMap
            A map with this row, too.

        Raises
        ------
        InputError
            If it overlaps another row.
        """
        if not isinstance(name, str):
            raise InputError(f"a layer goes by its name, not by {name!r}")
        return self._with(Row(name, _name_of(worker)))

    def layers(self, names: str, worker: object) -> DeviceMap:
        """Place several numbered layers.

        Parameters
        ----------
        names : str
            "blocks.0..12" is blocks.0 to blocks.11.
        worker : str or Node
            The worker, by its name or as `Mesh.nodes` has it.

        Returns
        -------
        DeviceMap
            A map with this row, too.

        Raises
        ------
        InputError
            If that is no range, or overlaps another row.
        """
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
        """The strategy's form in messages."""
        rows = [[row.name, row.worker, row.first, row.stop] for row in self.rows]
        fields = {"rows": rows, "reproducible": self.reproducible} if self.reproducible else rows
        return f"{self.word} {json.dumps(fields, separators=(',', ':'))}"

    def row_of(self, param: str) -> int | None:
        """Find the row of a param.

        Parameters
        ----------
        param : str
            Its name.

        Returns
        -------
        int or None
            The row's index, None if no row has it.
        """
        words = _words(param)
        for start in (0, 1):
            rows = (index for index, row in enumerate(self.rows) if row.covers(words[start:]))
            if (index := next(rows, None)) is not None:
                return index
        return None


_KINDS = (Auto, Single, Pipeline, Ranks, DataParallel, TensorParallel, FullySharded, DataTensor, DeviceMap)
_ALL: dict[str, type[Strategy]] = {cls.word: cls for cls in _KINDS}
_CLASSES = {cls.__name__.lower(): cls for cls in _KINDS if cls is not DeviceMap}  # their other names
STRATEGIES = tuple(word for word, kind in _ALL.items() if kind is not DeviceMap)  # those that a name says all of
FOR_ANY_GRAPH = tuple(cls.word for cls in (Auto, Single, Pipeline))


def text_of(strategy: str | Strategy, reproducible: bool = False) -> str:
    """The text form of a strategy, or of one's name; InputError if there is none like that.

    With `reproducible` that of the same strategy for plans of which all have the same bits, InputError if not all have.
    """
    parsed = strategy if isinstance(strategy, Strategy) else strategy_of(strategy)
    return (replace(parsed, reproducible=parsed.reproducible or True) if reproducible else parsed).text


def strategy_of(text: object) -> Strategy:
    """The strategy that a text means; InputError if there is none like that.

    Beside its word a strategy has the name of its class, however that is written: "data_parallel", "DataParallel".
    """
    word, _, rest = text.partition(" ") if isinstance(text, str) else ("", "", "")
    if isinstance(text, str) and (named := _CLASSES.get(_letters(text))) is not None:
        return named()
    known = _ALL.get(word)
    if known is DeviceMap:
        return _device_map(rest)
    if known is not None and rest and _fields(known):
        return _given(known, rest)
    if known is None or rest:
        raise InputError(f"strategy={text!r} is not known", next_step=_instead_of(text))
    return known()


def _instead_of(text: object) -> str:
    """What to write in place of what names no strategy."""
    if isinstance(text, str) and _letters(text) == "modelparallel":
        return "Say which layers are where with a DeviceMap: DeviceMap().layer('embed', 'anna'), or choose 'pipeline'"
    if isinstance(text, type) and issubclass(text, Strategy):
        return f"It is a class: {text.__name__}() is a strategy"
    near = difflib.get_close_matches(text, STRATEGIES, n=1) if isinstance(text, str) else []
    meant = f"Did you mean {near[0]!r}? " if near else ""
    return f"{meant}Choose one of {', '.join(map(repr, STRATEGIES))}, or a DeviceMap"


def _letters(name: str) -> str:
    """A name in small letters, without what joins its words."""
    return name.replace("_", "").replace("-", "").replace(" ", "").lower()


def _device_map(rest: str) -> DeviceMap:
    try:
        fields = json.loads(rest)
        device_map = DeviceMap(reproducible=isinstance(fields, dict) and fields["reproducible"])
        listed = fields["rows"] if isinstance(fields, dict) else fields
        rows = [Row(str(name), str(worker), int(first), int(stop)) for name, worker, first, stop in listed]
    except (ValueError, TypeError, KeyError):
        raise InputError(f"{rest[:200]!r} is no device map", next_step="Make one with DeviceMap()") from None
    for row in rows:
        device_map = device_map._with(row)
    return device_map


def _given(kind: Any, rest: str) -> Strategy:
    try:
        settings = json.loads(rest).items()
        strategy: Strategy = kind(
            **{name: tuple(value) if isinstance(value, list) else value for name, value in settings}
        )
        return strategy
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
