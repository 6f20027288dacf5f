"""Kernel -> WGSL text.

Every shared or nested operation becomes one `let`, named in order, so equal kernels are equal text and share a
pipeline.  An expression is computed in the innermost block where it is needed, except that what does not change in a
loop is computed before it.  Loads of four neighbours become one vec4 load where every load of that buffer allows it.
The module's bindings are numbered in the order of `Shader.buffers`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wire.errors import CompileFailed, Unsupported
from wire.ir.types import TensorType
from wire.units import need_text, room_text, size_text

from ..compiler.expressions import Expr, terms_of
from .choices import Choice
from .kernel_ir import (
    SUBGROUP_LANE,
    Assign,
    Barrier,
    Declare,
    Kernel,
    Leave,
    Let,
    Loop,
    Statement,
    Store,
    StoreShared,
    When,
    expressions,
    statements,
    trips,
    walk,
)
from .legalise import literal, text_of
from .polyfills import closure
from .profile import DeviceLimits, Profile
from .program import extent, stored_size

STORAGE = {"f32": "f32", "i32": "i32", "u32": "u32", "bool": "u32", "f16": "f16"}
_BYTES = {"f32": 4, "i32": 4, "u32": 4, "bool": 4, "f16": 2}
FROM_STORAGE = {"bool": "({} != 0u)", "f16": "gm_from_f16({})"}
_UNFOLDED = ("load", "read", "shared", "bounded", "opaque")  # their literals are indices, or hidden already
_PLACES = frozenset({"var", "lit", "affine", "index_div", "index_mod", "least", "bounded", "inside", "and"})
TO_STORAGE = {"bool": "select(0u, 1u, {})", "f16": "gm_to_f16({})"}


@dataclass(frozen=True, slots=True)
class Shader:
    """WGSL text and what to bind: buffers in binding order, and whether each is stored to."""

    text: str
    buffers: tuple[int, ...]
    stored: tuple[bool, ...]
    grid: tuple[int, int, int]
    choice: Choice | None = None
    quads: frozenset[int] = frozenset()  # buffers that are read or stored only in fours
    from_textures: frozenset[int] = frozenset()  # buffers that the kernel reads sooner from textures
    textures: frozenset[int] = frozenset()  # buffers that are textures


class TextTooLong(CompileFailed):
    """The group has to be cut."""


class TooLarge(Unsupported):
    """A tensor is, or all that a kernel binds: its group has to be cut, if it can be."""


def check_size(type_: TensorType, op: str, limits: DeviceLimits) -> None:
    """Raise TooLarge if there are no kernels for such a tensor."""
    if stored_size(type_) > limits.tensor_bytes:
        raise TooLarge(
            f"a tensor {type_} needs {need_text(stored_size(type_))}, kernels of this adapter take "
            f"{room_text(limits.tensor_bytes)}",
            op=op,
            next_step="Cut the tensor, or place this part on a cpu engine",
        )


def emit(
    kernel: Kernel, profile: Profile, types: Sequence[TensorType], textures: frozenset[int] = frozenset()
) -> Shader:
    """The shader of a kernel, given the types of its buffers, of which some are textures.  TooLarge if it has to bind
    more than it can; CompileFailed if it breaks another limit, which is a fault of the lowering."""
    limits = profile.limits
    bindings = {buffer: limits.bindings(types[buffer]) for buffer in kernel.dtypes}
    pieces = {buffer: count for buffer, count in bindings.items() if count > 1}
    textures &= kernel.dtypes.keys()
    widths = {buffer: extent(stored_size(types[buffer]))[0] for buffer in textures}
    printer = _Printer(kernel, dict.fromkeys(pieces, limits.piece_bytes), widths)
    main = printer.function()
    for buffer in sorted(printer.used):
        check_size(types[buffer], kernel.name, limits)
    stored = {statement.buffer for statement in statements(kernel.body) if isinstance(statement, Store)}
    buffers = tuple(buffer for buffer in sorted(printer.used) for _ in range(bindings[buffer]))
    declarations = [
        f"@group(0) @binding({place}) {printer.declaration(f'in{place}', buffer, buffer in stored)}"
        for place, buffer in enumerate(buffers)
    ]
    declarations += [f"var<workgroup> {s.name}: array<{_wgsl_type(s.dtype)}, {s.count}>;" for s in kernel.shared]
    for buffer in sorted(printer.used & pieces.keys()):
        declarations += printer.of_pieces(buffer, range(buffers.index(buffer), buffers.index(buffer) + pieces[buffer]))
    for buffer in sorted(printer.used & widths.keys()):
        declarations.append(printer.of_texture(buffer, buffers.index(buffer), buffer in stored))
    head = ["enable f16;"] if "f16" in kernel.dtypes.values() else []
    head += ["enable subgroups;"] if "subgroup" in main else []
    text = "\n".join([*head, *declarations, closure(main), main, ""])
    text = _renumbered(text, buffers)
    grid = folded(kernel.groups, limits.groups_per_dimension)
    problems = [
        (kernel.invocations > limits.invocations, f"{kernel.invocations} invocations of {limits.invocations}"),
        (sum(s.size_bytes for s in kernel.shared) > limits.workgroup_bytes, "too much workgroup memory"),
        (trips(kernel.body) > profile.loop_trips, f"{trips(kernel.body)} loop iterations of {profile.loop_trips}"),
        (max(grid) > limits.groups_per_dimension or min(grid) < 1, f"a grid of {grid}"),
    ]
    if len(buffers) > limits.storage_buffers:
        raise TooLarge(
            f"kernel {kernel.name} needs {len(buffers)} bindings of at most {size_text(limits.binding_bytes)}, this "
            f"adapter has {limits.storage_buffers}",
            op=kernel.name,
            next_step="Cut the tensors, or place this part on a cpu engine",
        )
    if len(text) > profile.wgsl_bytes:
        raise TextTooLong(
            f"kernel {kernel.name} needs {size_text(len(text))} of WGSL, of at most {size_text(profile.wgsl_bytes)}",
            op=kernel.name,
        )
    for broken, what in problems:
        if broken:
            raise CompileFailed(f"kernel {kernel.name} needs {what}", op=kernel.name)
    quads = frozenset(printer.quads)
    writes = tuple(buffer in stored for buffer in buffers)
    return Shader(text, buffers, writes, grid, kernel.choice, quads, kernel.from_textures, textures)


def folded(groups: int, most: int) -> tuple[int, int, int]:
    """A grid of at least `groups` workgroups, no dimension above `most`; kernels leave where group >= groups."""
    if groups <= most:
        return groups, 1, 1
    rows = -(-groups // most)
    return -(-groups // rows), rows, 1


def _wgsl_type(dtype: str) -> str:
    return f"vec4<{dtype[:-2]}>" if dtype.endswith("x4") else dtype


def _renumbered(text: str, buffers: tuple[int, ...]) -> str:
    """Buffers named by binding, so that kernels that differ only in buffer numbers are equal text."""
    for buffer in dict.fromkeys(buffers):
        place = buffers.index(buffer)
        text = text.replace(f"b{buffer}[", f"in{place}[").replace(f"_b{buffer}(", f"_in{place}(")
    return text


class _Printer:
    def __init__(self, kernel: Kernel, piece_bytes: Mapping[int, int], widths: Mapping[int, int]) -> None:
        """`piece_bytes` are of a buffer's pieces, if it is bound in several; `widths` are those of textures."""
        self.kernel = kernel
        self.piece_bytes = piece_bytes
        self.widths = widths
        self.called = piece_bytes.keys() | widths.keys()  # buffers that functions load and store
        self.lines: list[str] = []
        self.scopes: list[dict[object, str]] = [{}]
        self.count = 0
        self.used: set[int] = set()
        self.quads = _quad_buffers(kernel)

    def element(self, buffer: int) -> str:
        own = STORAGE[self.kernel.dtypes[buffer]]
        return f"vec4<{own}>" if buffer in self.quads else own

    def declaration(self, name: str, buffer: int, stored: bool) -> str:
        if buffer in self.widths:
            return f"var {name}: {'texture_storage_2d<rgba32float, write>' if stored else 'texture_2d<f32>'};"
        return f"var<storage, {'read_write' if stored else 'read'}> {name}: array<{self.element(buffer)}>;"

    def of_texture(self, buffer: int, place: int, stored: bool) -> str:
        """The function that loads or stores four neighbours of a buffer that is a texture."""
        width = self.widths[buffer]
        texel = f"vec2<u32>(at & {width - 1}u, at >> {width.bit_length() - 1}u)"
        if stored:
            return f"fn store_b{buffer}(at: u32, value: vec4<f32>) {{ textureStore(in{place}, {texel}, value); }}"
        return f"fn load_b{buffer}(at: u32) -> vec4<f32> {{ return textureLoad(in{place}, {texel}, 0); }}"

    def of_pieces(self, buffer: int, places: range) -> list[str]:
        """The functions that load and store an element of a buffer whose pieces are bound in these places."""
        element = self.element(buffer)
        count = self.piece_bytes[buffer] // (_BYTES[self.kernel.dtypes[buffer]] * (4 if buffer in self.quads else 1))
        within = [(f"in{place}[at - {count * nth}u]", f"at < {count * (nth + 1)}u") for nth, place in enumerate(places)]
        last, _ = within.pop()
        loads = "".join(f"if ({here}) {{ return {piece}; }} " for piece, here in within)
        stores = "".join(f"if ({here}) {{ {piece} = value; return; }} " for piece, here in within)
        made = [f"fn load_b{buffer}(at: u32) -> {element} {{ {loads}return {last}; }}"]
        if any(isinstance(one, Store) and one.buffer == buffer for one in statements(self.kernel.body)):
            made.append(f"fn store_b{buffer}(at: u32, value: {element}) {{ {stores}{last} = value; }}")
        return made

    def at(self, buffer: int, index: str) -> str:
        """An element of a buffer, to be read."""
        self.used.add(buffer)
        return f"load_b{buffer}({index})" if buffer in self.called else f"b{buffer}[{index}]"

    def function(self) -> str:
        self.block(self.kernel.body)
        if any("gm_zero" in line for line in self.lines):
            self.lines.insert(0, "  gm_zero = grid.z >> 1u;")  # grids are flat: 0, but no compiler knows
        body = "\n".join(self.lines)
        own = f", @builtin(subgroup_invocation_id) {SUBGROUP_LANE}: u32" if SUBGROUP_LANE in body else ""
        return (
            f"@compute @workgroup_size({self.kernel.invocations})\n"
            "fn main(@builtin(workgroup_id) place: vec3<u32>, @builtin(num_workgroups) grid: vec3<u32>, "
            f"@builtin(local_invocation_index) lane: u32{own}) {{\n"
            f"  let group = place.y * grid.x + place.x;\n{body}\n}}"
        )

    def line(self, text: str) -> None:
        self.lines.append("  " * len(self.scopes) + text)

    def block(self, body: tuple[Statement, ...]) -> None:
        for statement in body:
            match statement:
                case Let(var, value):
                    text = self.ref(value)
                    self.line(f"let {var.attr} = {text};")
                case Declare(name, value):
                    self.line(f"var {name} = {self.ref(value)};")
                case Assign(name, value):
                    self.line(f"{name} = {self.ref(value)};")
                case Store():
                    self.store(statement)
                case StoreShared(name, index, value):
                    self.line(f"{name}[{self.ref(index)}] = {self.ref(value)};")
                case Leave(condition):
                    self.line(f"if ({self.ref(condition)}) {{ return; }}")
                case Barrier():
                    self.line("workgroupBarrier();")
                case When(condition, inner):
                    self.line(f"if ({self.ref(condition)}) {{")
                    self.inner(inner)
                case Loop():
                    self.loop(statement)

    def inner(self, body: tuple[Statement, ...]) -> None:
        self.scopes.append({})
        self.block(body)
        self.scopes.pop()
        self.line("}")

    def loop(self, loop: Loop) -> None:
        self.hoist(loop)
        name = loop.var.attr
        start = self.ref(loop.start)
        self.line(f"for (var {name} = {start}; {name} < {loop.stop}u; {name} += {loop.step}u) {{")
        self.inner(loop.body)

    def hoist(self, loop: Loop) -> None:
        """Compute before the loop what does not change in it; of what a `When` guards, only where things lie."""
        inside = {loop.var.attr}
        direct: list[tuple[Statement, bool]] = []
        pending = [(statement, False) for statement in loop.body]
        while pending:
            statement, guarded = pending.pop(0)
            direct.append((statement, guarded))
            if isinstance(statement, Loop | When):
                pending.extend((inner, guarded or isinstance(statement, When)) for inner in statement.body)
        for statement in statements(loop.body):
            match statement:
                case Let(var, _):
                    inside.add(var.attr)
                case Declare(name, _):
                    inside.add(name)
                case Loop(var):
                    inside.add(var.attr)
        for statement, guarded in direct:
            stack = list(expressions(statement))
            seen: set[int] = set()
            while stack:
                expr = stack.pop()
                if expr.uid in seen:
                    continue
                seen.add(expr.uid)
                same = not expr.volatile and not expr.free & inside
                if same and not _offset(expr) and (not guarded or _only_places(expr)):
                    self.ref(expr)
                else:
                    stack.extend(expr.args)

    def store(self, store: Store) -> None:
        dtype = self.kernel.dtypes[store.buffer]
        template = TO_STORAGE.get(dtype, "{}")
        values = [template.format(self.ref(value)) for value in store.values]
        buffer, index = store.buffer, self.ref(store.index)
        self.used.add(buffer)
        value = values[0] if len(values) == 1 else f"{self.element(buffer)}({', '.join(values)})"
        self.line(f"store_b{buffer}({index}, {value});" if buffer in self.called else f"b{buffer}[{index}] = {value};")

    def ref(self, expr: Expr) -> str:
        """Text that stands for the expression's value, printing the `let`s it needs."""
        texts: dict[int, str] = {}
        stack = [(expr, False)]
        while stack:
            current, ready = stack.pop()
            if current.uid in texts:
                continue
            if ready:
                texts[current.uid] = self.named(current, [texts[arg.uid] for arg in self.operands(current)])
                continue
            known = self.known(current)
            if known is not None:
                texts[current.uid] = known
                continue
            stack.append((current, True))
            stack.extend((arg, False) for arg in self.operands(current))
        return texts[expr.uid]

    def operands(self, expr: Expr) -> tuple[Expr, ...]:
        """What the text of an expression names; a load of fours works out its own index."""
        in_fours = expr.op in ("load", "read") and expr.attr in self.quads
        return () if in_fours else expr.args

    def known(self, expr: Expr) -> str | None:
        if expr.op in ("var", "mutable"):
            return str(expr.attr)
        if expr.op == "lit":
            return literal(expr.attr, expr.dtype)
        for scope in reversed(self.scopes):
            if expr.uid in scope:
                return scope[expr.uid]
        return None

    def named(self, expr: Expr, args: list[str]) -> str:
        if expr.op not in _UNFOLDED and expr.args and all(arg.op == "lit" for arg in expr.args):
            args = [self.opaque(expr.args[0], args[0]), *args[1:]]
        text = self.text(expr, args)
        if expr.volatile or expr.op in ("bounded",):
            return text
        return self.let(expr.uid, text)

    def let(self, key: object, text: str) -> str:
        name = f"t{self.count}"
        self.count += 1
        self.line(f"let {name} = {text};")
        self.scopes[-1][key] = name
        return name

    def opaque(self, expr: Expr, text: str) -> str:
        """A literal the WGSL compiler cannot fold: folding overflow or NaN is a compile error."""
        if expr.dtype == "bool":
            return f"({text} || gm_zero != 0u)"
        if expr.dtype == "u32":
            return f"({text} + gm_zero)"
        return f"bitcast<{expr.dtype}>({expr.attr & 0xFFFFFFFF}u + gm_zero)"

    def text(self, expr: Expr, args: list[str]) -> str:
        if expr.op in ("load", "read"):
            return self.load(expr, args)
        if expr.op == "shared":
            return f"{expr.attr}[{args[0]}]"
        return text_of(expr, args)

    def load(self, expr: Expr, args: list[str]) -> str:
        buffer = expr.attr
        template = FROM_STORAGE.get(self.kernel.dtypes[buffer], "{}")
        if buffer not in self.quads:
            return template.format(self.at(buffer, args[0]))
        quad, lane = quad_of(expr.args[0])
        key = ("quad", buffer, quad)
        for scope in reversed(self.scopes):
            if key in scope:
                return template.format(f"{scope[key]}.{'xyzw'[lane]}")
        const, terms = quad
        at = _quad_text([(self.ref(atom), factor) for atom, factor in terms], const)
        return template.format(f"{self.let(key, self.at(buffer, at))}.{'xyzw'[lane]}")


def _offset(expr: Expr) -> bool:
    """Whether this is one index and a constant: it costs less than a register that is held through a loop."""
    return expr.op == "affine" and len(expr.args) == 1


def _only_places(expr: Expr) -> bool:
    """Whether this is arithmetic on indices alone, which costs little and cannot fail."""
    return all(each.op in _PLACES for each in walk([expr]))


Quad = tuple[int, tuple[tuple[Expr, int], ...]]


def quad_of(index: Expr) -> tuple[Quad, int]:
    """An index of the form 4*quad + lane as ((const, terms) of quad, lane)."""
    const, terms = terms_of(index)
    return (const // 4, tuple((atom, factor // 4) for atom, factor in terms.items())), const % 4


def _quad_text(terms: list[tuple[str, int]], const: int) -> str:
    parts = [(factor < 0, text if abs(factor) == 1 else f"{text} * {abs(factor)}u") for text, factor in terms]
    if const or not parts:
        parts.append((const < 0, f"{abs(const)}u"))
    parts.sort()
    joined = " ".join(("- " if minus else "+ ") + text for minus, text in parts)
    return joined[2:] if joined[0] == "+" else f"0u {joined}"


def _quad_buffers(kernel: Kernel) -> set[int]:
    """Buffers read or stored only in fours."""
    loads: dict[int, set[Expr]] = {}
    for statement in statements(kernel.body):
        for expr in walk(expressions(statement)):
            if expr.op == "load":
                loads.setdefault(expr.attr, set()).add(expr.args[0])
    whole = {buffer for buffer, indices in loads.items() if _in_fours(indices)}
    for statement in statements(kernel.body):
        if isinstance(statement, Store):
            fours = len(statement.values) == 4
            if fours and statement.buffer not in kernel.in_place:
                whole.add(statement.buffer)
            else:
                whole.discard(statement.buffer)
    return whole - kernel.in_place


def _in_fours(indices: set[Expr]) -> bool:
    for index in indices:
        _, terms = terms_of(index)
        if any(factor % 4 for factor in terms.values()):
            return False
    return len(indices) >= 2 * len({quad_of(index)[0] for index in indices})
