"""How far a graph's results may be from the exact ones by rounding alone, and so from what another library recorded.

The bound follows from the graph, its arguments and the table ROUNDED, never from what one machine gave, so it holds for
every processor's kernels.  It is that of N. J. Higham and T. Mary, "A new approach to probabilistic rounding error
analysis", SIAM J. Sci. Comput. 41 (2019), A2815: roundings are independent with mean zero, so n of them that are added
up are off by sqrt(n) u times the magnitude of what was summed, |x|'|y| of a product x'y, and by LAMBDA times that with
a probability of 2 exp(-LAMBDA**2 / 2), which is 3e-14; the worst case has n in place of sqrt(n).  How the errors of
nodes come through those behind them is sampled, as in D. S. Parker's Monte Carlo arithmetic (UCLA CSD-970002, 1997):
all nodes are disturbed by random errors of that size, SAMPLES times, and the results' standard deviations measured.

What does not change with small errors (integers, comparisons, roundings to whole numbers) is held as it is.  To add an
op that rounds: a row in ROUNDED.  To add a recording: a row in RECORDED.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mesh.models.model import Model
from mesh.tracing.trace import trace_full
from wire.ir.graph import GraphBuilder, Node, TensorType, WireGraph, const_value
from wire.ir.ops import CONTROL, LEAVES, inner_graphs
from worker.compiler.inline_composites import inline_composites
from worker.cpu import evaluate
from worker.cpu.engine import compile_graph, ordered, run

LAMBDA = 8.0
SAMPLES = 24  # a standard deviation of so many is off by a seventh
GROWN = 16.0  # times a rounding: so large that the rounding of a sample itself is lost in it, so small as to be linear
UNITS = {"f32": 2.0**-24, "f64": 2.0**-53, "f16": 2.0**-11, "bf16": 2.0**-8, "c64": 2.0**-24, "c128": 2.0**-53}
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Recorded:
    """How an oracle computed and wrote down: its unit roundoffs, 0.0 where it computed so well that it counts as exact.

    `otherwise` is for an oracle that may compute by other formulas (exp(x) - 1 for expm1(x), a sum of waves that should
    cancel): a unit roundoff of the largest element of a result, as that passes through them.
    """

    computed: float
    written: float
    otherwise: float = 0.0


_F32, _F64 = UNITS["f32"], UNITS["f64"]
RECORDED = {  # by the name of the file in tests/golden
    "torch_nn": Recorded(0.0, _F32),  # in f64, written as f32
    "torch_steps": Recorded(0.0, _F32),
    "optax_steps": Recorded(0.0, _F32),
    "jax_derivatives": Recorded(_F64, _F64),
    "onnx_runtime_ops": Recorded(_F32, _F32, 4 * _F32),  # places between pixels, up to 8, rounded in f32, too
    "huggingface": Recorded(_F32, _F32),
}
MINILM_MAX = (
    3e-5  # `allowed` of tests/golden/minilm_reference.json: 2.9e-5 at most, which takes two minutes to find out
)


# -- the table --------------------------------------------------------------------------------------------

Count = Callable[[Node, TensorType, Sequence[TensorType]], float]


@dataclass(frozen=True, slots=True)
class Rounds:
    """How many roundings there are in one element of a result, as a number or by its node, type and operands; whether
    they are of the sum of magnitudes (`sums`), of the result's largest element (`largest`), or of the element."""

    count: float | Count
    sums: bool = False
    largest: bool = False

    def of(self, node: Node, kind: TensorType, operands: Sequence[TensorType]) -> float:
        return float(self.count(node, kind, operands)) if callable(self.count) else self.count


def _reduced(node: Node, kind: TensorType, operands: Sequence[TensorType]) -> float:
    return max(1.0, math.prod(operands[0].shape) / max(1, math.prod(kind.shape)))


def _along(node: Node, kind: TensorType, operands: Sequence[TensorType]) -> float:
    return kind.shape[node.attrs["axis"]]


def _contracted(node: Node, kind: TensorType, operands: Sequence[TensorType]) -> float:
    return math.prod(operands[0].shape[axis] for axis in node.attrs["lhs_contract"])


def _window(node: Node, kind: TensorType, operands: Sequence[TensorType]) -> float:
    return math.prod(operands[1].shape[1:])


def _updates(node: Node, kind: TensorType, operands: Sequence[TensorType]) -> float:
    return 1 + operands[1].shape[-1] if operands[1].shape else 1


def _stages(node: Node, kind: TensorType, operands: Sequence[TensorType]) -> float:
    return 4 * max(1.0, math.log2(max(2, kind.shape[node.attrs["axis"]])))


def _order(node: Node, kind: TensorType, operands: Sequence[TensorType]) -> float:
    """Of factors of a matrix: n**3 sums of n roundings would be the worst, and n of the largest element are seen."""
    return 16.0 * max(operands[0].shape[-2:]) ** 2


def _turns(node: Node, kind: TensorType, operands: Sequence[TensorType]) -> float:
    """Every node in it once per turn, and each turn the roundings of those before."""
    inside = sum(len(graph) * _longest(graph) for graph in inner_graphs(node.op, node.attrs))
    return float(inside * node.attrs.get("length", 1))


def _longest(graph: WireGraph) -> int:
    """What a sum within a graph may have as terms: the longest dimension there is."""
    return max((size for kind in graph.types for size in kind.shape), default=1)


FEW = 4.0  # units in the last place: what numpy's vector functions promise at most
ROUNDED: dict[str, Rounds] = {
    **dict.fromkeys(("add", "mul", "div", "sqrt", "recip", "cast", "rem"), Rounds(1)),
    **dict.fromkeys(("exp", "exp2", "expm1", "log", "log2", "log1p", "tanh", "sin", "cos", "tan"), Rounds(FEW**2)),
    **dict.fromkeys(("erf", "pow", "atan2"), Rounds((2 * FEW) ** 2)),
    "abs": Rounds(1),  # of complex numbers
    "reduce_sum": Rounds(_reduced, sums=True),
    "reduce_prod": Rounds(_reduced),
    "cumsum": Rounds(_along, sums=True),
    "cumprod": Rounds(_along),
    "dot": Rounds(_contracted, sums=True),
    "conv": Rounds(_window, sums=True),
    "scatter": Rounds(_updates, sums=True),
    "fft": Rounds(_stages, largest=True),
    **dict.fromkeys(("cholesky", "solve", "lu", "qr", "eigh", "svd"), Rounds(_order, largest=True)),
    **dict.fromkeys(CONTROL, Rounds(_turns, largest=True)),
}
"""Everything else moves or chooses values.  A count is of independent roundings, whose size is its square root: of a
function that is off by 4 units, 16."""

HELD = frozenset({"floor", "round", "sign", "argsort", "argmax"})  # constant but for jumps


# -- comparisons ------------------------------------------------------------------------------------------


def traced(fn: Callable[..., Any], *args: Any) -> tuple[WireGraph, dict[str, NDArray[Any]]]:
    """The graph of a function for these arguments, and what it takes by name."""
    form = trace_full(fn, *args)
    bound = form.bind(*args)
    return form.graph, {**bound.inputs, **{name: np.asarray(each.local) for name, each in bound.params.items()}}


def assert_rounds_alike(found: Any, wanted: Any, allowed: NDArray[Any], label: str = "") -> None:
    """AssertionError with the worst place unless |found - wanted| <= allowed everywhere, NaN and Inf at one place."""
    mine, theirs = _wide(np.asarray(found)), _wide(np.asarray(wanted))
    assert mine.shape == theirs.shape, f"{label}: shape {mine.shape}, expected {theirs.shape}"
    same = (mine == theirs) | (np.isnan(mine) & np.isnan(theirs))
    with np.errstate(invalid="ignore"):
        off = np.where(same, 0.0, np.abs(mine - theirs))
        wrong = ~(off <= allowed)
    if wrong.any():
        times = np.where(wrong, off / np.maximum(allowed, 1e-300), 0.0)
        at = np.unravel_index(int(np.nanargmax(np.where(np.isnan(times), np.inf, times))), times.shape)
        raise AssertionError(
            f"{label}: {np.count_nonzero(wrong)} of {wrong.size} are further off than rounding explains, most at "
            f"{[int(each) for each in at]}: {mine[at]!r}, recorded {theirs[at]!r}, allowed {allowed[at]:.3g}"
        )


def allowed_of_model(model: Model, inputs: Any, recorded: Recorded) -> dict[str, NDArray[Any]]:
    """`allowed` for a model's outputs, by name."""
    given = model.given((inputs,))
    graph = model.graph(given)
    arguments = {**model.dynamic(given), **{name: model.weights[name] for name in graph.param_types}}
    return dict(zip(graph.output_names, allowed(graph, arguments, recorded), strict=True))


def allowed(graph: WireGraph, given: Arrays, recorded: Recorded) -> list[NDArray[Any]]:
    """For each output how far from it a recorded one may be."""
    flat = inline_composites(graph)
    values = _values(flat, given)
    sizes = _sizes(flat, values)
    spread = _spread(flat, values, sizes)
    found = []
    for place, index in enumerate(flat.outputs):
        mine, own = UNITS.get(flat.types[index].dtype.name, 0.0), spread[place]
        theirs = own * (recorded.computed / mine) if mine else own
        size = np.abs(_wide(values[index]))
        size = np.where(np.isfinite(size), size, 0.0)
        both = np.sqrt(own**2 + theirs**2 + (recorded.otherwise * size.max(initial=0.0)) ** 2)
        found.append(LAMBDA * both + recorded.written * size)
    return found


# -- the analysis -----------------------------------------------------------------------------------------


def _values(graph: WireGraph, given: Arrays) -> list[NDArray[Any]]:
    """What every node gives."""
    computed = [index for index, node in enumerate(graph.nodes) if node.op not in LEAVES]
    results = dict(zip(computed, evaluate(_with_outputs(graph, computed), given), strict=True))
    return [results[index] if index in results else _leaf(graph, index, given) for index in range(len(graph))]


def _leaf(graph: WireGraph, index: int, given: Arrays) -> NDArray[Any]:
    node = graph.nodes[index]
    return const_value(node, graph.blobs) if node.op == "const" else np.asarray(given[node.attrs["name"]])


def _with_outputs(graph: WireGraph, wanted: Sequence[int]) -> WireGraph:
    builder, placed = GraphBuilder(), list[int]()
    builder.blobs.update(graph.blobs)
    for node in graph.nodes:
        placed.append(builder.copy(node, [placed[source] for source in node.inputs]))
    return builder.build([placed[index] for index in wanted])


def _sizes(graph: WireGraph, values: Sequence[NDArray[Any]]) -> dict[int, NDArray[Any]]:
    """The size of what is rounded by node.  Nothing is where a node and all before it are exact: 0.5 times ones."""
    found, exact = dict[int, NDArray[Any]](), set[int]()
    for index, node in enumerate(graph.nodes):
        size = _roundings(graph, index, values)
        known = exact.issuperset(node.inputs)
        if known and (size is None or _is_exact(graph, index, values)):
            exact.add(index)
        elif size is not None:
            found[index] = size
    return found


EXACTLY: dict[str, Any] = {
    "add": np.add, "mul": np.multiply, "div": np.divide, "sqrt": np.sqrt, "recip": np.reciprocal, "cast": np.positive,
}  # fmt: skip


def _is_exact(graph: WireGraph, index: int, values: Sequence[NDArray[Any]]) -> bool:
    """Whether an element by element result of at most 32 bits is what it is in 64."""
    node, dtype = graph.nodes[index], graph.types[index].dtype
    if node.op not in EXACTLY or (UNITS[dtype.name] < _F32 and node.op != "cast") or dtype.kind == "c":
        return False
    with np.errstate(all="ignore"):
        wide = EXACTLY[node.op](*(_wide(values[each]) for each in node.inputs))
    return np.array_equal(wide, _wide(values[index]), equal_nan=True)


def _roundings(graph: WireGraph, index: int, values: Sequence[NDArray[Any]]) -> NDArray[Any] | None:
    """The size of what a node rounds, per element; None where nothing is."""
    node, kind = graph.nodes[index], graph.types[index]
    rule, unit = ROUNDED.get(node.op), UNITS.get(kind.dtype.name)
    if node.op == "const" and unit is not None and _is_decimal(values[index], unit):
        rule = Rounds(1)
    operands = [graph.types[each] for each in node.inputs]
    if rule is None or unit is None or (node.op == "abs" and operands[0].dtype.kind != "c"):
        return None
    if node.op == "cast" and UNITS.get(operands[0].dtype.name, 0.0) >= unit:
        return None
    sizes = np.abs(_wide(_magnitude(graph, index, values) if rule.sums else values[index]))
    sizes = np.where(np.isfinite(sizes), sizes, 0.0)
    if rule.largest:
        sizes = np.full_like(sizes, sizes.max(initial=0.0))
    return unit * math.sqrt(rule.of(node, kind, operands)) * sizes


def _is_decimal(value: NDArray[Any], unit: float) -> bool:
    """Whether a constant is a number that somebody wrote, such as 0.1, which an oracle may have with more digits."""
    if value.size != 1 or unit != _F32 or value.dtype.kind == "c":
        return False
    digits = np.frexp(_wide(value))[0] * 2**11  # a whole number of so few digits is meant as it is
    return bool(digits != np.floor(digits))


def _magnitude(graph: WireGraph, index: int, values: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """A sum's, over absolute values."""
    node, builder = graph.nodes[index], GraphBuilder()
    sources = {source: builder.input(f"x{source}", *graph.types[source]) for source in node.inputs}
    built = builder.build([builder.add(node.op, *(sources[source] for source in node.inputs), **node.attrs)])
    given = {f"x{source}": values[source] for source in sources}
    (found,) = evaluate(built, {name: _size_of(each) for name, each in given.items()})
    return found


def _size_of(array: NDArray[Any]) -> NDArray[Any]:
    """Absolute values; indices as they are."""
    return np.abs(array).astype(array.dtype) if array.dtype.kind in "fcV" else array


def _spread(graph: WireGraph, values: Sequence[NDArray[Any]], sizes: Mapping[int, NDArray[Any]]) -> list[NDArray[Any]]:
    """The standard deviation of each output when all nodes are off by random roundings."""
    disturbed, held = _disturbed(graph, values, sizes)
    total = [np.zeros(values[index].shape) for index in graph.outputs]
    rng = np.random.default_rng(2019)
    executable = compile_graph(disturbed)
    for _ in range(SAMPLES):
        noise = {f"off {index}": _noise(rng, size, values[index].dtype) for index, size in sizes.items()}
        found = run(executable, ordered(disturbed, {**held, **noise}))
        for place, index in enumerate(graph.outputs):
            with np.errstate(invalid="ignore"):
                off = np.abs(_wide(found[place]) - _wide(values[index])) / GROWN
            total[place] += np.where(np.isfinite(off), off, 0.0) ** 2
    return [np.sqrt(each / SAMPLES) for each in total]


def _noise(rng: np.random.Generator, size: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    drawn = rng.uniform(-1, 1, size.shape)
    if dtype.kind == "c":
        drawn = drawn + 1j * rng.uniform(-1, 1, size.shape)
    return np.asarray(GROWN * size * drawn).astype(dtype)


def _disturbed(
    graph: WireGraph, values: Sequence[NDArray[Any]], sizes: Mapping[int, NDArray[Any]]
) -> tuple[WireGraph, dict[str, NDArray[Any]]]:
    """The graph with something added to what each node gives, and the arguments that are no such errors."""
    builder, placed, held = GraphBuilder(), list[int](), dict[str, NDArray[Any]]()
    for index, node in enumerate(graph.nodes):
        kind = graph.types[index]
        if node.op in (*LEAVES, "iota", *HELD) or kind.dtype.kind in "biu":
            made = builder.input(f"is {index}", *kind)
            held[f"is {index}"] = values[index]
        else:
            made = builder.add(node.op, *(placed[source] for source in node.inputs), **node.attrs)
        if index in sizes:
            made = builder.add("add", made, builder.input(f"off {index}", *kind))
        placed.append(made)
    return builder.build([placed[index] for index in graph.outputs]), held


def _wide(array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind == "c":
        return array.astype(np.complex128)
    return array.astype(np.float64)


__all__ = ["RECORDED", "ROUNDED", "Recorded", "allowed", "allowed_of_model", "assert_rounds_alike", "traced"]
