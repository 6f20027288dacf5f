"""What every family starts from: a cut group, its expressions, and a function of LLVM that tasks are calls of.

A kernel is `void kernel(i64* arguments, i64 task, i8* scratch)`: the arguments are the addresses of the tensors that it
reads, in the order of `reads`, and of the result.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from wire.ir.graph import WireGraph

from ...compiler.cut import Cut
from ...compiler.element_exprs import Anchor, Elements
from ...compiler.expressions import Builder
from ..llvm import ADDRESS, I8, I32, I64, STORED, VOID, Loaded, ir, new_module, publish
from ..printer import Buffer, Printer
from ..weights import Layout

Value = Any
NAME, DESCRIPTION = "kernel", "description"


@dataclass(frozen=True, slots=True)
class Kernel:
    """A function to be, and how often to call it: for tasks 0 to `tasks` - 1, in any order."""

    module: ir.Module
    tasks: int
    scratch_bytes: int = 0
    cores: tuple[str, ...] = ()  # of the library; their addresses follow the tensors' among the arguments
    matrix: Layout | None = None  # of a product, in its tensor `place`: the core's address is followed by where it
    place: int = 0  # begins, and its strides along rows and columns
    slices: int = 1  # its tasks and its result are so many equal parts, one behind the other,
    sliced: tuple[int, ...] = ()  # and so are these of the tensors that it reads, by their places

    def described(self) -> ir.Module:
        """The module, in which the rest of this lies as text: an object file says all that a caller needs."""
        said = Description(
            self.tasks, self.scratch_bytes, self.cores, self.matrix, self.place, self.slices, self.sliced
        )
        text = json.dumps(asdict(said))
        data = bytearray(text.encode() + b"\0")
        variable = ir.GlobalVariable(self.module, ir.ArrayType(I8, len(data)), DESCRIPTION)
        variable.global_constant, variable.initializer = True, ir.Constant(variable.value_type, data)
        return self.module


@dataclass(frozen=True, slots=True)
class Description:
    """What an object file says of its kernel."""

    tasks: int
    scratch_bytes: int
    cores: tuple[str, ...]
    matrix: Layout | None
    place: int
    slices: int
    sliced: tuple[int, ...]

    @classmethod
    def of(cls, loaded: Loaded) -> Description:
        fields = json.loads(ctypes.string_at(loaded.data(DESCRIPTION)))
        matrix = None if fields["matrix"] is None else Layout(*fields["matrix"])
        named = {"matrix": matrix, "cores": tuple(fields["cores"]), "sliced": tuple(fields["sliced"])}
        return cls(**{**fields, **named})


@dataclass(eq=False)
class Frame:
    """A kernel under construction: `graph` is the group alone, with leaves `input`.  Buffers are numbers of nodes.

    `scalef` says whether the processor has that instruction, for `Vectors`; `tasks_min` are what a large product is cut
    into, which changes no bits.  `non_temporal` says that the result is larger than the caches and begins at a cache
    line: maps and rows then store it past the caches, so that its lines are not read first.
    """

    graph: WireGraph
    vector_bytes: int
    scalef: bool = False
    tasks_min: int = 1
    non_temporal: bool = False
    build: Builder = field(default_factory=Builder)

    def __post_init__(self) -> None:
        self.root = self.graph.outputs[0]
        self.reads = self.graph.inputs

    @classmethod
    def of(
        cls, part: Cut, vector_bytes: int = 16, scalef: bool = False, tasks_min: int = 1, non_temporal: bool = False
    ) -> Frame:
        """The frame of a group."""
        graph = WireGraph(part.nodes, (len(part.nodes) - 1,), ("0",), part.types)
        return cls(graph, vector_bytes, scalef, tasks_min, non_temporal)

    def shape(self, node: int) -> tuple[int, ...]:
        return self.graph.types[node].shape

    def dtype(self, node: int) -> str:
        return self.graph.types[node].dtype.name

    def itemsize(self, node: int) -> int:
        return self.graph.types[node].dtype.itemsize

    def elements(self, anchors: Mapping[int, Anchor] | None = None) -> Elements:
        return Elements(self.graph, self.build, {node: node for node in self.reads}, anchors, guarded=False)

    def lanes(self) -> int:
        """How many elements of the widest dtype here a vector register holds."""
        widths = [4 if kind.dtype.itemsize < 4 else kind.dtype.itemsize for kind in self.graph.types]
        return self.vector_bytes // max(widths, default=4)

    def function(self) -> tuple[ir.IRBuilder, Printer, Value, Value]:
        """A new kernel: where to write its body, a printer, the task's number, and the scratch memory."""
        module = new_module(NAME)
        kind = ir.FunctionType(VOID, [I64.as_pointer(), I64, ADDRESS])
        function = ir.Function(module, kind, NAME)
        function.attributes.add("nounwind")
        arguments, task, scratch = function.args
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        buffers = {}
        for place, node in enumerate((*self.reads, self.root)):
            address = builder.load(builder.gep(arguments, [ir.Constant(I64, place)]))
            pointer = builder.inttoptr(address, STORED[self.dtype(node)].as_pointer())
            buffers[node] = Buffer(pointer, self.dtype(node))
        return builder, Printer(builder, buffers, self.scalef), task, scratch

    def end(self, builder: ir.IRBuilder) -> None:
        """Return from a kernel that may have stored past the caches."""
        if self.non_temporal:
            publish(builder)
        builder.ret_void()


def narrowed(builder: ir.IRBuilder, value: Value) -> Value:
    """An index of 64 bits as expressions have it."""
    return builder.trunc(value, I32)


def least(builder: ir.IRBuilder, a: Value, b: Value) -> Value:
    return builder.select(builder.icmp_signed("<", a, b), a, b)


def largest(builder: ir.IRBuilder, a: Value, b: Value) -> Value:
    return builder.select(builder.icmp_signed(">", a, b), a, b)
