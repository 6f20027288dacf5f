"""The op table: every operation that a graph may contain, one row each.

A row says how many inputs the op has, which attributes, how shape and dtype follow (`rules.py`), how much work it is,
and how far two engines may differ.  Everything else (sub, mean, softmax, gelu, einsum, ...) is composed of these in
`mesh`.  A test checks that every rule table in the project (evaluate, render, vjp, ...) has a row for each op here.

To add an op: one row here, one row in `worker/cpu` (elementwise or structural), and either a row in `worker/wgsl` or
its name in `CPU_ONLY` there (the planner then routes it to cpu).  To change what an op means: raise its `version`.
`row_hash` then changes, and nodes with different hashes never exchange the op.

WGSL, numpy and C differ in some semantics, which are fixed here; the cpu engine is the reference:
  * Elementwise ops broadcast like numpy.  Their operands have one dtype.  Integers wrap around.
  * `div` on integers is floor division.  The result of `rem` has the divisor's sign.  x/0 = 0, x rem 0 = 0, and
    INT_MIN/-1 = INT_MIN.
  * Integer `pow` with a negative exponent is 1 for the base 1, 1 or -1 for the base -1, and 0 otherwise.
  * `shl` and `shr` by the width or more, or by a negative count, give 0.  `shr` of a negative number gives -1.
  * `max`, `min`, `reduce_max` and `reduce_min` return NaN if any operand is NaN.  `argmax` returns the first NaN if
    there is one, else the first maximum.  It is undefined which of 0.0 and -0.0 is the larger.
  * `select` returns a where cond is true.  A float cond is true where cond > 0, so NaN, 0 and -0.0 select b.
  * `cumsum`, `cumprod`, `cummax` and `cummin` return, at each position, the reduction of the elements up to it.  f16
    and bf16 accumulate in f32.  f32 may accumulate in a wider dtype.
  * `fft` is the sum over j of x[j] exp(-2 pi i j k / n).  The inverse has the opposite sign in the exponent and is
    divided by n.
  * `argsort` is stable and ascending.  false is before true, every NaN is after every number, and -0.0 equals 0.0.
  * A complex number is two floats and has no order.  Products, quotients and functions are numpy's, with the branch
    cuts of C99.  `abs` is the magnitude.  `round` rounds both parts.  `is_nan` is true if either part is NaN.  A sum
    starts from 0 and a product from 1.  Only cpu engines compute c64 and c128.
  * `round` rounds half to even.  `sign(NaN)` is NaN, and `sign` of either zero is 0.0.
  * `cast` from float to integer truncates, saturates, and turns NaN into 0.  A cast to bool is x != 0.  A cast between
    integers wraps around.
  * Sums, products, dots and convolutions of f16 and bf16 accumulate in f32 and round once.
  * `conv` is a cross-correlation, as in every library: the kernel is not flipped.  Padding and the dilation of x
    (`lhs_dilation`) insert zeros, which are multiplied like other elements.  With g groups, group i reads the i-th of g
    equal parts of x's channels.
  * `gather` clamps indices into range.  `scatter` drops updates out of range, and applies duplicates in row-major
    order.
  * `dynamic_slice` and `dynamic_update_slice` clamp the starts so that the window fits.
  * `after` returns its first operand.  No pass merges it, or a node that uses it, with another node.  So a value that
    was needed only before the other operands can be freed and computed again later.
  * `constraint` returns its operand.  It asks the partitioner to split the result over the grid as `spec` says.
  * `transfer` returns its operand, on the device that it names.  A node is computed on that device, too, if it uses the
    result and no value from another device.  With the device `any`, the result and the nodes that use it may be
    anywhere.
  * `lu`, `qr`, `eigh`, `svd`, `cond`, `while` and `scan` have several results.  A node is one of them, the one numbered
    `output`.  Nodes that differ in `output` only are computed once.
  * `cond`, `while` and `scan` have as many results as their graphs have outputs.  `cond` computes only the branch that
    it selects.
  * The operands of `while` are the carry, then constants.  The graphs `test` and `body` take both.  The body returns
    the next carry.
  * The operands of `scan` are the carry, constants, and arrays.  In iteration i the body gets row i of each array, or
    the last row first if `reverse` is 1.  The results are the last carry, then the rows that the body returned, stacked
    in the order of the input rows.
  * The ranks of an `spmd` node compute collectives together.  A group consists of the ranks that differ along `axes`
    only, numbered row-major over these axes.  `sizes` are the sizes of the axes.  `all_reduce` and `reduce_scatter`
    combine the operands in that order, and f16 and bf16 in f32.  `permute` sends from pairs[0] to pairs[1], from
    pairs[2] to pairs[3], and so on.  A rank that receives nothing gets zeros.  `all_to_all` cuts along `split_axis`,
    sends block i to rank i, and joins the received blocks along `concat_axis`.  Inside a `cond` or a `while`, the
    predicate must be the same on the whole group.
  * `spmd` computes its body once per rank of a grid, on blocks.  A spec has, for each dimension, the axes that split
    it, joined by +, or - for none.  The blocks of a result are joined again.  Along axes that the spec of a result does
    not name, the first rank's block is used.
  * `cholesky` and `eigh` read the lower triangle only.  If a matrix cannot be solved or factored, all its results are
    NaN: because it is singular, is not positive definite, or an iteration does not converge.  The other matrices of the
    batch have their results.
  * `lu` returns L and U in one matrix: L below the diagonal, without its diagonal of ones.  The second result says
    which row was swapped with row i at step i.  The third says which row of x each row is.  Of equal pivots the first
    is chosen.  The size of a complex pivot is the sum of the absolute values of its parts.  A singular matrix has a 0
    on the diagonal of U.
  * `qr`, `eigh` and `svd` have LAPACK's signs on the cpu engine.  On other engines, the signs of R's diagonal, of
    singular vectors and of eigenvectors are undefined, and so are the angles of complex ones.  Singular values are in
    descending order, eigenvalues in ascending order.
  * f16 and bf16 matrices are factored in f32.
  * `random_bits` is threefry2x32 (20 rounds) of the key over the counter (0, element index), and returns the first word
    of each pair.  So any part of it can be computed alone.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..errors import AttrError, UnknownOp
from . import collective_rules as collective
from . import control_rules as control
from . import indexing_rules as indexing
from . import matrix_rules as matrix
from . import rules
from .dtypes import DType
from .rules import DTypeRule, ShapeRule, Types
from .types import Attrs, TensorType

Flops = Callable[[Attrs, Types, TensorType], int]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far two engines may differ on one op: |a - b| <= atol + rtol * |b|; float dtypes only, integers are exact."""

    rtol: float = 0.0
    atol: float = 0.0


@dataclass(frozen=True, slots=True)
class Op:
    """One row.  `inputs` is None for a variadic op; `attrs` maps a name to its kind, `?` after it means optional."""

    name: str
    family: str
    inputs: int | None
    attrs: dict[str, str]
    shape: ShapeRule
    dtype: DTypeRule
    flops: Flops
    tolerance: Tolerance
    version: int = 1

    def infer(self, attrs: Attrs, types: Types) -> TensorType:
        """The result's type; GraphError if operands or attributes do not fit.  Attribute kinds are already checked."""
        dtype = self.dtype(attrs, types)
        return TensorType(self.shape(attrs, types), dtype)


# -- work -------------------------------------------------------------------------------------------------


def _free(attrs: Attrs, types: Types, out: TensorType) -> int:
    return 0


def _per_output(count: int) -> Flops:
    def flops(attrs: Attrs, types: Types, out: TensorType) -> int:
        return count * out.size

    return flops


def _per_input(attrs: Attrs, types: Types, out: TensorType) -> int:
    return types[0].size


def _sort_flops(attrs: Attrs, types: Types, out: TensorType) -> int:
    length: int = out.shape[attrs["axis"]]
    return 2 * out.size * length.bit_length()


def _fft_flops(attrs: Attrs, types: Types, out: TensorType) -> int:
    length: int = out.shape[attrs["axis"]]
    return 5 * out.size * length.bit_length()


def _dot_flops(attrs: Attrs, types: Types, out: TensorType) -> int:
    inner: int = math.prod(types[0].shape[axis] for axis in attrs["lhs_contract"])
    return 2 * out.size * inner


def _conv_flops(attrs: Attrs, types: Types, out: TensorType) -> int:
    return 2 * out.size * math.prod(types[1].shape[1:])


def _factor_flops(times: int) -> Flops:
    """The work on matrices of (m, n), `times` m * n * min(m, n): more than their additions and multiplications, of
    which a core does fewer in a second than of a product's.  Measured at 512 by 512 (f32, OpenBLAS)."""

    def flops(attrs: Attrs, types: Types, out: TensorType) -> int:
        return times * types[0].size * min(types[0].shape[-2:])

    return flops


def _solve_flops(attrs: Attrs, types: Types, out: TensorType) -> int:
    return _factor_flops(3)(attrs, types, out) + 2 * types[0].shape[-1] * out.size


def _body_flops(attrs: Attrs, types: Types, out: TensorType) -> int:
    flops: int = attrs["body"].flops
    return flops


def _branch_flops(attrs: Attrs, types: Types, out: TensorType) -> int:
    flops: int = max(attrs["then"].flops, attrs["otherwise"].flops)
    return flops


def _while_flops(attrs: Attrs, types: Types, out: TensorType) -> int:
    flops: int = WHILE_TRIPS * (attrs["test"].flops + attrs["body"].flops)
    return flops


def _scan_flops(attrs: Attrs, types: Types, out: TensorType) -> int:
    flops: int = attrs["length"] * attrs["body"].flops
    return flops


def _spmd_flops(attrs: Attrs, types: Types, out: TensorType) -> int:
    ranks: int = math.prod(attrs["sizes"])
    flops: int = attrs["body"].flops
    return ranks * flops


def _combined_flops(attrs: Attrs, types: Types, out: TensorType) -> int:
    """A rank's share: of n operands, each element is combined n - 1 times, each time by one rank."""
    ranks: int = math.prod(attrs["sizes"])
    return types[0].size * (ranks - 1) // ranks


WHILE_TRIPS = 100  # how often a `while` turns nobody knows before it has: a guess, so that it counts as more than once


# -- rows -------------------------------------------------------------------------------------------------

EXACT = Tolerance()
ROUNDED = Tolerance(rtol=3e-7, atol=2e-38)  # one rounding; a device may flush denormals
FEW_ULP = Tolerance(rtol=2e-6, atol=2e-38)
TRIG = Tolerance(rtol=2e-6, atol=5e-7)  # near a zero of sin the argument's own rounding dominates
SUMMED = Tolerance(rtol=2e-5, atol=1e-6)  # order of summation; scaled by the operands' magnitude in tests

MULTIPLIED = Tolerance(rtol=1e-4, atol=1e-6)  # every factor's rounding stays in all later products

COMPLEX = {"abs": FEW_ULP}  # what is exact of real numbers only
FACTORED = Tolerance(rtol=1e-4, atol=1e-5)  # well-conditioned matrices with elements around 1

OPS: dict[str, Op] = {}


def _add(
    name: str, family: str, inputs: int | None, shape: ShapeRule, dtype: DTypeRule, flops: Flops, tolerance: Tolerance,
    /, **attrs: str,
) -> None:  # fmt: skip
    OPS[name] = Op(name, family, inputs, attrs, shape, dtype, flops, tolerance)


# leaves
_add("input", "leaf", 0, rules.named_shape, rules.named_dtype, _free, EXACT, name="str", shape="ints", dtype="str")
_add("param", "leaf", 0, rules.named_shape, rules.named_dtype, _free, EXACT, name="str", shape="ints", dtype="str")
_add("const", "leaf", 0, rules.const_shape, rules.named_dtype, _free, EXACT,
     shape="ints", dtype="str", data="bytes?", blob="bytes?")  # fmt: skip
_add("iota", "leaf", 0, rules.iota_shape, rules.named_number, _per_output(1), EXACT,
     shape="ints", dtype="str", axis="int")  # fmt: skip
_add("random_bits", "random", 1, rules.random_shape, rules.random_words, _per_output(60), EXACT, shape="ints")

# the scalar core, and scalar ops that exist for accuracy or integers
for _name, _dtype, _flops, _tolerance in (
    ("neg", rules.numeric, 1, EXACT),
    ("recip", rules.inexact, 4, ROUNDED),
    ("sqrt", rules.inexact, 4, ROUNDED),
    ("sin", rules.inexact, 16, TRIG),
    ("exp2", rules.floating, 12, FEW_ULP),
    ("log2", rules.floating, 14, FEW_ULP),
    ("exp", rules.inexact, 12, FEW_ULP),
    ("log", rules.inexact, 14, FEW_ULP),
    ("expm1", rules.floating, 16, FEW_ULP),
    ("log1p", rules.floating, 16, FEW_ULP),
    ("cos", rules.inexact, 16, TRIG),
    ("tan", rules.inexact, 20, TRIG),
    ("tanh", rules.inexact, 18, FEW_ULP),
    ("erf", rules.floating, 20, FEW_ULP),
    ("floor", rules.floating, 1, EXACT),
    ("round", rules.inexact, 1, EXACT),
    ("sign", rules.number, 2, EXACT),
    ("abs", rules.magnitude, 1, EXACT),
    ("not", rules.bits, 1, EXACT),
    ("is_nan", rules.test_inexact, 1, EXACT),
    ("real", rules.part, 1, EXACT),
    ("imag", rules.part, 1, EXACT),
):
    _add(_name, "unary", 1, rules.same_shape, _dtype, _per_output(_flops), _tolerance)
for _name, _dtype, _flops, _tolerance in (
    ("add", rules.numeric, 1, ROUNDED),
    ("mul", rules.numeric, 1, ROUNDED),
    ("atan2", rules.floating, 30, FEW_ULP),
    ("max", rules.number, 1, EXACT),
    ("min", rules.number, 1, EXACT),
    ("div", rules.numeric, 4, ROUNDED),
    ("rem", rules.number, 8, ROUNDED),
    ("pow", rules.numeric, 30, Tolerance(rtol=1e-5, atol=2e-38)),
    ("eq", rules.equality, 1, EXACT),
    ("ne", rules.equality, 1, EXACT),
    ("lt", rules.compare, 1, EXACT),
    ("le", rules.compare, 1, EXACT),
    ("gt", rules.compare, 1, EXACT),
    ("ge", rules.compare, 1, EXACT),
    ("and", rules.bits, 1, EXACT),
    ("or", rules.bits, 1, EXACT),
    ("xor", rules.bits, 1, EXACT),
    ("shl", rules.integer, 1, EXACT),
    ("shr", rules.integer, 1, EXACT),
    ("complex", rules.of_parts, 1, EXACT),
):
    _add(_name, "binary", 2, rules.broadcast_together, _dtype, _per_output(_flops), _tolerance)
_add("select", "ternary", 3, rules.broadcast_together, rules.chosen, _per_output(1), EXACT)
_add("cast", "convert", 1, rules.same_shape, rules.converted, _per_output(1), EXACT, dtype="str")
_add("bitcast", "convert", 1, rules.same_shape, rules.reinterpreted, _free, EXACT, dtype="str")

# reduce
_add("reduce_sum", "reduce", 1, rules.reduced, rules.numeric, _per_input, SUMMED, axes="ints")
_add("reduce_prod", "reduce", 1, rules.reduced, rules.numeric, _per_input, SUMMED, axes="ints")
_add("reduce_max", "reduce", 1, rules.reduced_not_empty, rules.any_dtype, _per_input, EXACT, axes="ints")
_add("reduce_min", "reduce", 1, rules.reduced_not_empty, rules.any_dtype, _per_input, EXACT, axes="ints")
_add("argmax", "reduce", 1, rules.one_axis_gone, rules.index_i32, _per_input, EXACT, axis="int")

# along an axis
for _name, _dtype, _tolerance in (
    ("cumsum", rules.numeric, SUMMED),
    ("cumprod", rules.numeric, MULTIPLIED),
    ("cummax", rules.number, EXACT),
    ("cummin", rules.number, EXACT),
):
    _add(_name, "along", 1, rules.along_axis, _dtype, _per_output(1), _tolerance, axis="int")
_add("fft", "along", 1, rules.along_filled_axis, rules.complex_only, _fft_flops, SUMMED, axis="int", inverse="int")
_add("argsort", "along", 1, rules.along_axis, rules.position_i32, _sort_flops, EXACT, axis="int")

# views
_add("reshape", "view", 1, rules.reshaped, rules.every_dtype, _free, EXACT, shape="ints")
_add("transpose", "view", 1, rules.transposed, rules.every_dtype, _free, EXACT, perm="ints")
_add("broadcast", "view", 1, rules.broadcast_to, rules.every_dtype, _free, EXACT, shape="ints")
_add("slice", "view", 1, rules.sliced, rules.every_dtype, _free, EXACT, start="ints", stop="ints", step="ints")
_add("pad", "view", 2, rules.padded, rules.every_dtype, _free, EXACT, low="ints", high="ints", interior="ints")
_add("concat", "view", None, rules.concatenated, rules.every_dtype, _free, EXACT, axis="int")
_add("after", "view", None, rules.first_shape, rules.first_dtype, _free, EXACT)
_add("reverse", "view", 1, rules.reversed_axes, rules.every_dtype, _free, EXACT, axes="ints")
_add("constraint", "view", 1, rules.constrained, rules.first_dtype, _free, EXACT,
     axes="strs", sizes="ints", spec="str")  # fmt: skip
_add("transfer", "view", 1, rules.transferred, rules.first_dtype, _free, EXACT, device="str")

# contraction
_add("dot", "dot", 2, matrix.dot_shape, rules.numeric, _dot_flops, SUMMED,
     lhs_batch="ints", rhs_batch="ints", lhs_contract="ints", rhs_contract="ints")  # fmt: skip

_add("conv", "dot", 2, matrix.conv_shape, rules.numeric, _conv_flops, SUMMED, stride="ints", low="ints", high="ints",
     lhs_dilation="ints", rhs_dilation="ints", groups="int")  # fmt: skip

# matrices: the last two axes, those ahead are a batch
_add("cholesky", "matrix", 1, matrix.square_matrices, rules.inexact, _factor_flops(3), FACTORED)
_add("solve", "matrix", 2, matrix.solved, rules.inexact, _solve_flops, FACTORED)
_add("lu", "matrix", 1, matrix.lu_shape, matrix.lu_dtype, _factor_flops(10), FACTORED, output="int")
_add("qr", "matrix", 1, matrix.qr_shape, rules.inexact, _factor_flops(16), FACTORED, full="int", output="int")
_add("eigh", "matrix", 1, matrix.eigh_shape, matrix.eigh_dtype, _factor_flops(25), FACTORED, output="int")
_add("svd", "matrix", 1, matrix.svd_shape, matrix.svd_dtype, _factor_flops(60), FACTORED,
     full="int", output="int")  # fmt: skip

# indexing
_add("gather", "index", 2, indexing.gather_shape, indexing.gathered, _per_output(1), EXACT,
     axis="int", batch_dims="int")  # fmt: skip
_add("scatter", "index", 3, indexing.scatter_shape, indexing.scattered_in, _per_output(1), SUMMED,
     axis="int", mode="str")  # fmt: skip
_add("dynamic_slice", "index", 2, indexing.dynamic_slice_shape, indexing.windowed, _per_output(1), EXACT, sizes="ints")
_add("dynamic_update_slice", "index", 3, indexing.dynamic_update_shape, indexing.windowed, _per_output(1), EXACT)

# structure
_add("composite", "structure", None, control.body_shape, control.body_dtype, _body_flops, SUMMED,
     name="str", body="graph", axis="int?", eps="float?", scale="float?")  # fmt: skip
_add("cond", "structure", None, control.branch_shape, control.branch_dtype, _branch_flops, SUMMED,
     then="graph", otherwise="graph", output="int")  # fmt: skip
_add("while", "structure", None, control.carried_shape, control.carried_dtype, _while_flops, SUMMED,
     test="graph", body="graph", output="int")  # fmt: skip
_add("scan", "structure", None, control.scanned_shape, control.scanned_dtype, _scan_flops, SUMMED,
     body="graph", carry="int", consts="int", length="int", reverse="int", output="int")  # fmt: skip

_add("spmd", "structure", None, collective.whole_shape, collective.whole_dtype, _spmd_flops, SUMMED,
     body="graph", axes="strs", sizes="ints", in_specs="strs", out_specs="strs", output="int")  # fmt: skip

# collectives, of the ranks of an spmd node
_group = {"axes": "strs", "sizes": "ints"}
_add("all_reduce", "collective", 1, collective.reduced_over_ranks, collective.combined, _combined_flops, SUMMED,
     **_group, reduction="str")  # fmt: skip
_add("all_gather", "collective", 1, collective.gathered_shape, rules.first_dtype, _free, EXACT, **_group, axis="int")
_add("reduce_scatter", "collective", 1, collective.scattered_shape, collective.combined, _combined_flops, SUMMED,
     **_group, axis="int", reduction="str")  # fmt: skip
_add("all_to_all", "collective", 1, collective.exchanged_shape, rules.first_dtype, _free, EXACT,
     **_group, split_axis="int", concat_axis="int")  # fmt: skip
_add("permute", "collective", 1, collective.permuted_shape, rules.first_dtype, _free, EXACT, **_group, pairs="ints")
_add("broadcast_from", "collective", 1, collective.from_root_shape, rules.first_dtype, _free, EXACT,
     **_group, root="int")  # fmt: skip
_add("axis_index", "collective", 0, collective.number_shape, collective.number_dtype, _free, EXACT, **_group)

LEAVES = frozenset({"input", "param", "const"})
ELEMENTWISE = frozenset(name for name, op in OPS.items() if op.family in {"unary", "binary", "ternary", "convert"})
VIEWS = frozenset(name for name, op in OPS.items() if op.family == "view")
VARIADIC = frozenset(name for name, op in OPS.items() if op.inputs is None)
MULTIPLE = frozenset(name for name, op in OPS.items() if "output" in op.attrs)  # several results, a node for each
CONTROL = frozenset({"cond", "while", "scan"})  # branches and loops, which have several results too
COLLECTIVES = frozenset(name for name, op in OPS.items() if op.family == "collective")
VARYING = frozenset({"cond", "while"})  # how much work they are depends on values
GRAPH_ATTRS: dict[str, tuple[str, ...]] = {  # the attributes that are graphs, of the ops that have some
    name: attrs
    for name, op in OPS.items()
    if (attrs := tuple(attr for attr, kind in op.attrs.items() if kind.startswith("graph")))
}


def inner_graphs(op: str, attrs: Attrs) -> tuple[Any, ...]:
    """The graphs inside a node: a composite's body, the branches of a cond, the test and the body of a loop, and what
    each rank of an spmd computes."""
    names = GRAPH_ATTRS.get(op)
    return tuple([attrs[name] for name in names]) if names else ()


def result_graph(op: str, attrs: Attrs) -> Any:
    """The graph inside a node whose outputs its results are."""
    return attrs["then" if op == "cond" else "body"]


def result_count(op: str, attrs: Attrs) -> int:
    """How many results an op of MULTIPLE has."""
    return matrix.MATRICES[op] if op in matrix.MATRICES else len(result_graph(op, attrs).outputs)


def sent_bytes(op: str, attrs: Attrs, operand: TensorType | None) -> int:
    """What a rank sends the others of its group at least, of its operand: the cost of a collective."""
    if op not in SENT or operand is None:
        return 0
    ranks = math.prod(attrs["sizes"])
    return SENT[op](operand.size_bytes, ranks) if ranks > 1 else 0


SENT: dict[str, Callable[[int, int], int]] = {
    "all_reduce": lambda size, ranks: 2 * size * (ranks - 1) // ranks,  # scattered and gathered again
    "all_gather": lambda size, ranks: size * (ranks - 1),
    "reduce_scatter": lambda size, ranks: size * (ranks - 1) // ranks,
    "all_to_all": lambda size, ranks: size * (ranks - 1) // ranks,
    "permute": lambda size, ranks: size,
    "broadcast_from": lambda size, ranks: size,
}


def op_named(name: str) -> Op:
    """The row called `name`; UnknownOp if there is none."""
    op = OPS.get(name)
    if op is None:
        raise UnknownOp(f"unknown op {name!r}", op=name, next_step="Upgrade the older node, or rewrite without this op")
    return op


# -- attributes -------------------------------------------------------------------------------------------


def _fits(value: int) -> bool:
    return -(1 << 63) <= value < 1 << 63


def _all_fit(values: tuple[Any, ...]) -> bool:
    for value in values:  # noqa: SIM110  # `all` over so few values takes twice the time
        if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
            return False
    return True


_Check = tuple[type | None, Callable[[Any], bool] | None]
_KINDS: dict[str, _Check] = {  # the exact type of a value, and what else must hold
    "int": (int, _fits),
    "ints": (tuple, _all_fit),
    "float": (float, None),
    "str": (str, None),
    "strs": (tuple, lambda values: all(type(value) is str for value in values)),
    "bytes": (bytes, None),
    "graph": (None, lambda value: hasattr(value, "outputs")),
}


@cache
def _attr_checks(name: str) -> tuple[frozenset[str], dict[str, _Check]]:
    """The attributes that an op must have, and the check of every one that it may have."""
    kinds = OPS[name].attrs.items()
    required = frozenset(attr for attr, kind in kinds if not kind.endswith("?"))
    return required, {attr: _KINDS[kind.rstrip("?")] for attr, kind in kinds}


def check_attrs(op: Op, attrs: Attrs) -> None:
    """Check that `attrs` has exactly the attributes of the row, each of its kind; AttrError if not."""
    required, checks = _attr_checks(op.name)
    for name, value in attrs.items():
        if name not in checks:
            raise AttrError(f"{op.name} has no attribute {name!r}", op=op.name)
        exact, holds = checks[name]
        if (exact is not None and type(value) is not exact) or (holds is not None and not holds(value)):
            kind = op.attrs[name].rstrip("?")
            raise AttrError(f"{op.name}.{name} must be {kind}, got {type(value).__name__}", op=op.name)
    if not required <= attrs.keys():
        name = min(required - attrs.keys())
        raise AttrError(f"{op.name} needs the attribute {name!r} ({op.attrs[name]})", op=op.name)


# -- agreement between nodes ------------------------------------------------------------------------------


@cache
def row_hash(name: str) -> bytes:
    """Eight bytes that two nodes share exactly when they mean the same by this op."""
    op = OPS[name]
    row = (op.name, op.inputs, sorted(op.attrs.items()), op.shape.__name__, op.dtype.__name__, op.version)
    return hashlib.blake2b(repr(row).encode(), digest_size=8).digest()


def tolerance_for(name: str, dtype: DType) -> Tolerance:
    """The row's tolerance widened to the dtype: exact for integers and bool, at least one rounding for f16 and bf16, a
    few for complex numbers, where the size of the difference is meant."""
    if dtype.kind not in "fc":
        return EXACT
    base = OPS[name].tolerance
    if dtype.kind == "c":
        return COMPLEX.get(name, EXACT if base == EXACT else Tolerance(max(base.rtol, FEW_ULP.rtol), base.atol))
    if base == EXACT:
        return EXACT
    epsilon = {"f16": 1e-3, "bf16": 8e-3}.get(dtype.name, 0.0)
    smallest = {"f16": 6.2e-5, "bf16": 2e-38}.get(dtype.name, 0.0)
    return Tolerance(max(base.rtol, 2 * epsilon), max(base.atol, smallest))
