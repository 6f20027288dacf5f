"""The whole lowering: graph -> Program.  Pure: the same graph and profile give the same text on any machine."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace

from wire.ir.graph import Node, WireGraph
from wire.ir.ops import LEAVES
from wire.passes.provenance import Provenance

from ..compiler.constants import splat_bits
from ..compiler.fuse import WEIGHTS_MAX, Group, fuse
from ..compiler.memory import assign_slots
from ..compiler.shorter_sums import shorter_sums
from .canonicalise import canonicalise
from .emit import Shader, TextTooLong, TooLarge, check_size
from .profile import Profile
from .program import Buffer, Dispatch, Module, Program, extent, padded, stored_size, texture_size
from .shaders import Shaders
from .textures import in_textures


def lower(graph: WireGraph, known: Shaders) -> Program:
    """Compile to text for `known.profile`, reusing the shaders known already.

    Unsupported (op, dtype or size, with need and have) is raised here and never at a run.
    """
    plain = prepared(graph, known.profile)
    for index in (*plain.inputs, *plain.params, *plain.outputs):
        check_size(plain.types[index], plain.nodes[index].op, known.profile.limits)
    return assemble(plain, [shader for _, shaders in grouped(plain, known) for shader in shaders])


def prepared(graph: WireGraph, profile: Profile, provenance: Provenance | None = None) -> WireGraph:
    """The graph that groups are made of."""
    plain = shorter_sums(canonicalise(graph, profile, provenance), provenance)
    return replace(plain, outputs=tuple(where_it_lies(plain, index) for index in plain.outputs))


def where_it_lies(graph: WireGraph, index: int) -> int:
    """The tensor that this one is in another shape.  An output has the memory of that: nobody copies it."""
    while graph.nodes[index].op == "reshape" and graph.types[index].size:
        (index,) = graph.nodes[index].inputs
    return index


def grouped(graph: WireGraph, known: Shaders) -> list[tuple[Group, list[Shader]]]:
    """All groups with their shaders, in order.  Groups are made smaller if their text would be too long, or they would
    bind too much."""
    *larger, smallest = WEIGHTS_MAX
    target = known.profile.target
    for weight_max in larger:
        try:
            return _of_groups(graph, known, fuse(graph, target, weight_max))
        except (TextTooLong, TooLarge):
            continue
    return _of_groups(graph, known, fuse(graph, target, smallest))


def _of_groups(graph: WireGraph, known: Shaders, groups: list[Group]) -> list[tuple[Group, list[Shader]]]:
    """The shaders, those that store or read a texture printed once more."""
    made = [(group, known.of(graph, group)) for group in groups]
    textures = in_textures(graph, [shader for _, shaders in made for shader in shaders], known.profile.limits)
    touched = [any(textures.intersection(shader.buffers) for shader in shaders) for _, shaders in made]
    return [
        (group, known.of(graph, group, textures) if again else shaders)
        for (group, shaders), again in zip(made, touched, strict=True)
    ]


def const_key(node: Node) -> str:
    """What identifies a constant's bytes in a Program."""
    if "blob" in node.attrs:
        return str(node.attrs["blob"].hex())
    dtype = node.attrs["dtype"].encode()
    return hashlib.blake2b(dtype + b"\0" + node.attrs["data"], digest_size=32).hexdigest()


def stored_bytes(graph: WireGraph, index: int) -> int:
    """Device bytes of a tensor's buffer."""
    return padded(stored_size(graph.types[index]))


def assemble(graph: WireGraph, shaders: list[Shader]) -> Program:
    modules: dict[Module, int] = {}
    uses = [shader.buffers for shader in shaders]
    live = [output for output in graph.outputs if graph.types[output].size]
    tensors = sorted({buffer for bound in uses for buffer in bound} | set(live))
    leaves = [index for index in tensors if graph.nodes[index].op in LEAVES and _in_memory(graph, index)]
    textures = frozenset[int]().union(*(shader.textures for shader in shaders))
    sizes = {index: stored_bytes(graph, index) for index in tensors if index not in leaves and index not in textures}
    placed, slots = assign_slots(uses, sizes, live)
    buffers = [_leaf_buffer(graph, index) for index in leaves]
    number = {index: place for place, index in enumerate(leaves)}
    number.update({index: len(leaves) + slot for index, slot in placed.items()})
    buffers += [Buffer("slot", "", size) for size in slots]
    for same in _of_one_width({index: texture_size(stored_bytes(graph, index)) for index in textures}):
        placed, slots = assign_slots(uses, same, live)
        number.update({index: len(buffers) + slot for index, slot in placed.items()})
        buffers += [Buffer("texture", "", size) for size in slots]
    dispatches = []
    for shader in shaders:
        module = Module(shader.text, shader.stored, str(shader.choice.shape_class) if shader.choice else "")
        place = modules.setdefault(module, len(modules))
        dispatches.append(Dispatch(place, tuple(number[buffer] for buffer in shader.buffers), shader.grid))
    outputs = tuple(number[output] if graph.types[output].size else -1 for output in graph.outputs)
    return Program(tuple(modules), tuple(buffers), tuple(dispatches), outputs)


def _of_one_width(sizes: Mapping[int, int]) -> list[dict[int, int]]:
    """Textures in parts that may share: the width of a texture is in the text of a kernel, its height is not."""
    parts: dict[int, dict[int, int]] = {}
    for index in sorted(sizes):
        parts.setdefault(extent(sizes[index])[0], {})[index] = sizes[index]
    return [parts[width] for width in sorted(parts)]


def _in_memory(graph: WireGraph, index: int) -> bool:
    """Leaves are given from outside, except a constant of one value, which a kernel fills where it is an output."""
    return splat_bits(graph.nodes[index]) is None


def _leaf_buffer(graph: WireGraph, index: int) -> Buffer:
    node = graph.nodes[index]
    if node.op == "const":
        return Buffer("const", const_key(node), stored_bytes(graph, index))
    return Buffer("input", node.attrs["name"], stored_bytes(graph, index))
