"""Tensors as they are on the way: the values of messages, the notes of the machine, the inputs of engine hosts."""

from __future__ import annotations

from collections.abc import Sequence

from wire.errors import OutOfMemory, ProtocolError
from wire.link.link import Link
from wire.protocol.messages import Push, Value
from wire.system.shared_memory import SharedDir, check_name, remove, take

from ..engine.host_messages import INLINE_TOTAL_BYTES_MAX, Input, Output
from ..state import events as ev


def is_here(value: Value) -> bool:
    """False where the bytes follow as a stream."""
    return value.data is not None or bool(value.shared)


def tensor_of(link: Link, value: Value) -> ev.Tensor:
    """Where the bytes of a value that came over `link` are."""
    if value.data is not None:
        return ev.Inline(value.dtype, value.shape, value.data)
    if not value.shared or not link.same_host:
        raise ProtocolError("a tensor came without its bytes", node=link.peer.name)
    check_name(value.shared)
    tensor = ev.SharedFile(value.dtype, value.shape, link.peer.shared_memory, value.shared)
    link.bytes_received["shared"] += ev.size_bytes_of(tensor)
    return tensor


def header_of(tensor: ev.Tensor) -> Value:
    """A tensor whose bytes go apart."""
    return Value(tensor.dtype, tensor.shape)


def push_header_of(action: ev.SendPush) -> Push:
    """What goes ahead of a push's bytes, or with every piece of them."""
    return Push(action.plan, action.step, action.part, action.slot, header_of(action.tensor))


def bytes_of(tensor: ev.Tensor) -> memoryview:
    """A tensor's bytes, of which this process is the owner from now on."""
    if isinstance(tensor, ev.Inline):
        return memoryview(tensor.data)
    assert isinstance(tensor, ev.SharedFile)
    return take(tensor.directory, tensor.name, ev.size_bytes_of(tensor))


def host_inputs_of(uses: Sequence[ev.Use], shared: SharedDir) -> tuple[tuple[Input, ...], list[str]]:
    """How an engine host is told of a part's inputs: what does not fit into the message is written to files of their
    own, which are also given by name; OutOfMemory, and then there are none."""
    inputs, files, room_bytes = list[Input](), list[str](), INLINE_TOTAL_BYTES_MAX
    try:
        for use in uses:
            given = _host_input_of(use)
            if given.data is not None and len(given.data) > room_bytes:
                files.append(shared.write([given.data]))
                given = Input(use.position, given.dtype, given.shape, True, None, str(shared.path), files[-1])
            room_bytes -= len(given.data or b"")
            inputs.append(given)
    except OutOfMemory:
        for name in files:
            remove(shared.path, name)
        raise
    return tuple(inputs), files


def _host_input_of(use: ev.Use) -> Input:
    tensor = use.tensor
    match tensor:
        case ev.Inline(dtype, shape, data):
            return Input(use.position, dtype, shape, use.last, data)
        case ev.SharedFile(dtype, shape, directory, name):
            return Input(use.position, dtype, shape, use.last, None, directory, name)
        case ev.Kept(dtype, shape, _, kept):
            return Input(use.position, dtype, shape, use.last, None, "", "", kept)


def made_of(output: Output, device: int, directory: str) -> ev.Made:
    """An output as the engine host of a device left it; its files are in `directory`."""
    dtype, shape = output.dtype, output.shape
    return ev.Made(
        inline=None if output.data is None else ev.Inline(dtype, shape, output.data),
        files=tuple(ev.SharedFile(dtype, shape, directory, name) for name in output.files),
        kept=ev.Kept(dtype, shape, device, output.kept) if output.kept else None,
    )
