"""Textures: which tensors lie in them, not in buffers.  Pure.

A software driver makes a loop over lanes of a load from a buffer, and a few instructions of one from a texture.  So the
copies that are made of a product's operands lie in textures, of four f32 a texel, if what reads them asks for that
(`Kernel.from_textures`), and all that store or read them do so in fours.  The bits are those of a buffer.
"""

from __future__ import annotations

from collections.abc import Sequence

from wire.ir.dtypes import F32
from wire.ir.graph import WireGraph

from .emit import Shader
from .profile import DeviceLimits
from .program import extent, padded, stored_size, texture_size

READ_MAX = 16  # textures that a kernel may read, on every adapter; of those that it may store, a kernel needs one


def in_textures(graph: WireGraph, shaders: Sequence[Shader], limits: DeviceLimits) -> frozenset[int]:
    """The nodes whose tensors lie in textures, given the shaders for buffers."""
    wanted = {node for shader in shaders for node in shader.from_textures if graph.nodes[node].op == "pad"}
    wanted = {node for node in wanted - set(graph.outputs) if _fits(graph, node, limits)}
    for shader in shaders:
        stored = {node for node, own in zip(shader.buffers, shader.stored, strict=True) if own}
        wanted -= set(shader.buffers) - shader.quads
        wanted -= set(shader.buffers) - stored - shader.from_textures  # other shaders read them
        wanted -= set(sorted(wanted & set(shader.buffers))[READ_MAX:])
    return frozenset(wanted)


def _fits(graph: WireGraph, node: int, limits: DeviceLimits) -> bool:
    size_bytes = padded(stored_size(graph.types[node]))
    room = texture_size(size_bytes) <= limits.buffer_bytes and size_bytes <= limits.binding_bytes
    return graph.types[node].dtype is F32 and room and max(extent(size_bytes)) <= limits.texture_side
