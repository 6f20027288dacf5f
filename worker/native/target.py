"""What the native engine has kernels for, by op and dtype; numpy computes the rest."""

from __future__ import annotations

from wire.ir.arithmetic import ELEMENTS_MAX
from wire.ir.graph import WireGraph
from wire.ir.ops import LEAVES

from ..compiler.constants import splat_bits
from ..compiler.element_exprs import FUSABLE
from ..compiler.functions import FUNCTIONS
from ..compiler.fuse import REDUCTIONS
from ..compiler.target import UNPACKING, Target

INTEGERS = frozenset({"i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"})
NARROW = frozenset({"f16", "bf16"})
FLOATS = NARROW | {"f32", "f64"}
EVERY = INTEGERS | FLOATS | {"bool"}
WIDE = frozenset({"f32", "f64"})
PRODUCTS = {"dot": "matmul", "conv": "matmul"}
KINDS = {**PRODUCTS, "scatter": "scatter"}  # ops that have families of kernels of their own

# Ops whose kernels do not have every dtype: those of the operands and of the result.
DTYPES: dict[str, frozenset[str]] = {
    **dict.fromkeys(("recip", "sqrt", "floor", "round", "is_nan"), FLOATS | {"bool"}),
    **dict.fromkeys(FUNCTIONS, FLOATS),
    "rem": INTEGERS,
    "reduce_prod": EVERY - {"bool"},
    "argmax": frozenset(),
    "dot": WIDE,
    "conv": WIDE,
}  # fmt: skip
# Updates are numpy's, which writes them in place; a view of one tensor costs it nothing.
BY_NUMPY = frozenset({"dynamic_update_slice", "constraint", "transfer", "after"})
SPARSE = 4  # data of more than so many times the updates' elements is better updated in place
JOINED_MAX = 8  # parts of a concat whose elements ask in which one they are; more are copied as they lie
COSTLY = frozenset({
    "exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos", "tan", "tanh", "erf", "atan2", "pow", "random_bits",
})  # fmt: skip
_EXACT_IN_F32 = frozenset({"f32", "f16", "bf16", "bool", "i8", "u8", "i16", "u16"})
ROUNDED_ONCE = {"f16": _EXACT_IN_F32, "bf16": _EXACT_IN_F32}  # what casts to these round once, by way of f32


def takes(graph: WireGraph, index: int) -> bool:
    """Whether there is a kernel for a node."""
    op, inputs, attrs = graph.nodes[index]
    if op in REDUCTIONS and not attrs.get("axes", ()):
        return False
    own = graph.types[index]
    types = [own, *(graph.types[source] for source in inputs)]
    if op in LEAVES:
        return own.dtype.name in EVERY and (op == "iota" or splat_bits(graph.nodes[index]) is not None)
    if op in BY_NUMPY or not (op in FUSABLE or op in REDUCTIONS or op in KINDS):
        return False
    if any(kind.size > ELEMENTS_MAX or kind.size == 0 for kind in types):
        return False
    dtypes = {kind.dtype.name for kind in types}
    if not dtypes <= DTYPES.get(op, EVERY):
        return False
    if op == "scatter":
        exact = attrs["mode"] == "set" or (attrs["mode"] == "add" and own.dtype.name not in NARROW)
        return exact and _is_dense(graph, index)  # bits are numpy's, which takes it where a cut hides what data is
    if op == "cast":
        source, to = types[1].dtype.name, own.dtype.name
        return to not in ROUNDED_ONCE or source == to or source in ROUNDED_ONCE[to]
    return op != "bitcast" or not dtypes & {"f16", "bf16", "bool"}


def _is_dense(graph: WireGraph, index: int) -> bool:
    """Whether a scatter's data is made for it, or not much more than its updates: then nothing is gained in place."""
    data, _, updates = graph.nodes[index].inputs
    made = data
    while graph.nodes[made].op in ("broadcast", "reshape"):
        made = graph.nodes[made].inputs[0]
    return splat_bits(graph.nodes[made]) is not None or graph.types[data].size <= SPARSE * graph.types[updates].size


# Views of a product's operands that leave it at even strides, as a rule; where they do not, none is computed in it.
PROLOGUE = frozenset({"reshape", "transpose", "broadcast", "slice"})
NATIVE = Target(
    bindings_max=65,
    kinds=KINDS,
    prologue=PROLOGUE,
    costly=COSTLY,
    takes=takes,
    unpacking=UNPACKING,
    picking=frozenset({"gather"}),
    joined_max=JOINED_MAX,
)
