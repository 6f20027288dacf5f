"""Split strategies: what DataParallel, TensorParallel, FullySharded and DataTensor ask of the partitioner.  Pure.

Each is a grid of one axis or two, and layouts of inputs and params on it; the rest follows (wire/sharding/).  Where the
number of ranks is left open, several are tried, and the one that is predicted to be fastest is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median

from wire.errors import InputError, PlacementError
from wire.ir.graph import WireGraph
from wire.policy.strategies import DataParallel, DataTensor, FullySharded, Split, TensorParallel
from wire.sharding.layout import Axes, Dims
from wire.sharding.op_cost import Rates
from wire.sharding.partition import partition

from ..model.profiles import CLIENT, Profiles

CarriedParams = tuple[tuple[str, int], ...]
RANKS_MAX = 16  # where nobody said how many


def split(graph: WireGraph, strategy: Split, ranks: int, profiles: Profiles, carries: CarriedParams = ()) -> WireGraph:
    """The program of `ranks` ranks; InputError if the strategy finds nothing to split.

    `carries` are params by name, each with the position of an output that is to lie as it does.  For a reproducible
    strategy every sum is one rank's.
    """
    grid = strategy.grid(ranks)
    axes = Axes(tuple(grid), tuple(grid.values()))
    specs = LAYOUTS[type(strategy)](graph, strategy)
    if not any(any(dims) for dims in specs.values()):
        raise InputError(f"the strategy {strategy.word!r} finds nothing to split in this program")
    kinds = graph.param_types
    state = {name: specs.get(name, ((),) * len(kinds[name].shape)) for name, _ in carries if name in kinds}
    following = {graph.output_names[at]: state[name] for name, at in carries if name in state}
    return partition(graph, axes, {**specs, **state, **following}, rates_of(profiles), bool(strategy.reproducible))


def batch_of(graph: WireGraph, strategy: DataParallel) -> int:
    """How many rows the batch of a program has; InputError where that is not clear."""
    chosen = LAYOUTS[type(strategy)](graph, strategy)
    rows = {graph.input_types[name].shape[0] for name in chosen}
    if not rows:
        raise InputError(f"the strategy {strategy.word!r} finds nothing to split in this program")
    return rows.pop()


def counts(strategy: Split, profiles: Profiles) -> Iterator[int]:
    """How many ranks to try: as many as were asked for, or one per worker, one for each that is not far slower or
    further away than the best, and then half as many as often as that goes."""
    if strategy.ranks:
        yield strategy.ranks
        return
    most = min(len(profiles.workers), RANKS_MAX)
    halves = [most >> times for times in range(most.bit_length())]
    tried = sorted({*halves, min(_good(profiles), RANKS_MAX)} & {*filter(strategy.divides, range(2, most + 1))})
    if not tried:
        least = 2 * strategy.tensor if isinstance(strategy, DataTensor) else 2
        few = f"and the mesh has {len(profiles.workers)}" if least <= RANKS_MAX else f"and up to {RANKS_MAX} are tried"
        raise PlacementError(
            f"the strategy {strategy.word!r} needs {least} workers at least, {few}",
            next_step="Start another mesh-worker, or choose strategy='single'"
            if least <= RANKS_MAX
            else "Say how many ranks there are to be, or choose smaller groups",
        )
    yield from reversed(tried)


def _good(profiles: Profiles) -> int:
    """Workers with at least half the speed of the fastest, and a quarter of the bandwidth of the nearest."""
    speed = [max(device.gflops for device in worker.devices) for worker in profiles.workers]
    near = [profiles.link(CLIENT, worker.node_id).bytes_per_s for worker in profiles.workers]
    fastest, nearest = max(speed), max(near)
    return sum(2 * mine >= fastest and 4 * way >= nearest for mine, way in zip(speed, near, strict=True))


def rates_of(profiles: Profiles) -> Rates:
    """How fast a rank is on these workers, for the partitioner's choices: the middle one's, and the slowest link's."""
    nodes = [worker.node_id for worker in profiles.workers[:RANKS_MAX]]
    links = [profiles.link(one, other) for one in nodes for other in nodes if one != other]
    gflops = median(max(device.gflops for device in worker.devices) for worker in profiles.workers)
    if not links:
        return Rates(flops_per_s=max(gflops, 1e-9) * 1e9)
    slowest = min(links, key=lambda link: link.bytes_per_s)
    return Rates(max(gflops, 1e-9) * 1e9, slowest.bytes_per_s, max(link.latency_s for link in links))


def _data(graph: WireGraph, strategy: Split) -> Mapping[str, Dims]:
    """Inputs by their first dimension; params are everywhere whole."""
    assert isinstance(strategy, DataParallel | FullySharded | DataTensor)
    shapes = {name: kind.shape for name, kind in graph.input_types.items() if kind.shape}
    chosen = {name: shape for name, shape in shapes.items() if not strategy.inputs or _named(name, strategy.inputs)}
    if strategy.inputs and not chosen:
        raise InputError(f"no input is called {', '.join(strategy.inputs)}", next_step=f"There are {', '.join(shapes)}")
    if len({shape[0] for shape in chosen.values()}) > 1:
        sizes = ", ".join(f"{name} {shape[0]}" for name, shape in chosen.items())
        raise InputError(
            f"the inputs are of different lengths ({sizes}), so it is not known which are batches",
            next_step=f'Say it: {type(strategy).__name__}(inputs=("x",))',
        )
    return {name: ((strategy.axis,), *((),) * (len(shape) - 1)) for name, shape in chosen.items()}


def _tensor(graph: WireGraph, strategy: Split) -> Mapping[str, Dims]:
    """Params by their longest dimension: in a stack of layers by columns and rows in turn.  Of equals the first that no
    product sums over: then ranks have no sums to exchange, and heads of attention are each one rank's."""
    shapes = {name: kind.shape for name, kind in graph.param_types.items() if len(kind.shape) >= 2}
    summed = _summed(graph)
    longest = {
        name: max(range(len(shape)), key=lambda dim: (shape[dim], (name, dim) not in summed, -dim))
        for name, shape in shapes.items()
    }
    axis = "tensor" if isinstance(strategy, DataTensor) else strategy.axis
    return {
        name: tuple((axis,) if dim == longest[name] else () for dim in range(len(shape)))
        for name, shape in shapes.items()
    }


def _summed(graph: WireGraph) -> set[tuple[str, int]]:
    """Params by name, each with a dimension that a product sums over, be it of the param transposed."""
    dims: dict[int, tuple[str, Sequence[int]]] = {}  # by node: the param that it is, and which dimension of it each is
    summed = set[tuple[str, int]]()
    for index, (op, inputs, attrs) in enumerate(graph.nodes):
        if op == "param":
            dims[index] = attrs["name"], range(len(graph.types[index].shape))
        elif op in ("cast", "transpose") and inputs[0] in dims:
            name, of = dims[inputs[0]]
            dims[index] = name, [of[axis] for axis in attrs["perm"]] if op == "transpose" else of
        elif op == "dot":
            for source, axes in zip(inputs, (attrs["lhs_contract"], attrs["rhs_contract"]), strict=True):
                if source in dims:
                    name, of = dims[source]
                    summed |= {(name, of[axis]) for axis in axes}
    return summed


def _both(graph: WireGraph, strategy: Split) -> Mapping[str, Dims]:
    """Inputs and params; where that is over the same axis, params are gathered where they are needed."""
    return {**_tensor(graph, strategy), **_data(graph, strategy)}


LAYOUTS: dict[type[Split], Callable[[WireGraph, Split], Mapping[str, Dims]]] = {
    DataParallel: _data,
    TensorParallel: _tensor,
    FullySharded: _both,
    DataTensor: _both,
}


def _named(name: str, wanted: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}/") for prefix in wanted)
