"""Tensor references: where a tensor's bytes are, as messages, the machine's events and engine hosts express it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from wire.errors import OutOfMemory, ProtocolError
from wire.ir.dtypes import BY_NAME
from wire.limits import MIB
from wire.link.link import Link
from wire.protocol.messages import Push, Value
from wire.system.shared_memory import SharedDir, check_name, remove, take
from wire.units import size_text

from ..engine.host_messages import INLINE_TOTAL_BYTES_MAX, Input, Output
from ..state import events as ev
from ..state.steps import Arriving

INLINE_WHOLE_BYTES_MAX = MIB  # a tensor in a message, with its zeros


def is_here(value: Value) -> bool:
    """Whether the value comes with its bytes, or with a file that has them.  If not, they follow as a stream."""
    return value.data is not None or bool(value.shared)


def tensor_of(link: Link, value: Value, zeros: int = 0) -> ev.Tensor:
    """The tensor of a value that came over `link` without the `zeros` bytes at its end.  ProtocolError if it came
    without its bytes, or has more zeros than a message may stand for: they take memory here before anything is known
    of the tensor."""
    if value.data is not None:
        whole_bytes = len(value.data) + zeros
        check_size(value, whole_bytes)
        if zeros and whole_bytes > INLINE_WHOLE_BYTES_MAX:
            raise ProtocolError(f"a message of a tensor of {size_text(whole_bytes)}", node=link.peer.name)
        return ev.Inline(value.dtype, value.shape, value.data + bytes(zeros) if zeros else value.data)
    if not value.shared or not link.same_host:
        raise ProtocolError("a tensor came without its bytes", node=link.peer.name)
    check_name(value.shared)
    tensor = ev.SharedFile(value.dtype, value.shape, link.peer.shared_memory, value.shared)
    link.bytes_received["shared"] += size_of(value)
    return tensor


def arriving(node: str, push: Push) -> Arriving:
    """The tensor that a push of a node announces."""
    return Arriving(node, push.plan, push.step, (push.part, push.slot), (push.value.dtype, push.value.shape))


def size_of(value: Value) -> int:
    """How many bytes the elements of a tensor take that another node announces; ProtocolError for an unknown dtype."""
    dtype = BY_NAME.get(value.dtype)
    if dtype is None:
        raise ProtocolError(f"unknown dtype {value.dtype[:64]!r}")
    return math.prod(value.shape) * dtype.itemsize


def check_size(value: Value, size_bytes: int) -> None:
    """Raise ProtocolError if a tensor of `size_bytes` bytes has another size than its value says."""
    if size_of(value) != size_bytes:
        raise ProtocolError(f"{size_bytes} bytes for a tensor {value.dtype}{list(value.shape)}")


def header_of(tensor: ev.Tensor) -> Value:
    """The value that announces a tensor whose bytes are sent by themselves."""
    return Value(tensor.dtype, tensor.shape)


def push_of(action: ev.SendPush, value: Value, zeros: int = 0) -> Push:
    """The message of a push."""
    return Push(action.plan, action.step, action.part, action.slot, value, zeros)


def bytes_of(tensor: ev.Tensor) -> memoryview:
    """A tensor's bytes, which this process owns from now on."""
    if isinstance(tensor, ev.Inline):
        return memoryview(tensor.data)
    assert isinstance(tensor, ev.SharedFile)
    return take(tensor.directory, tensor.name, ev.size_bytes_of(tensor))


def host_inputs_of(uses: Sequence[ev.RunInput], shared: SharedDir) -> tuple[tuple[Input, ...], list[str]]:
    """The inputs of a part for its engine host.  Those that do not fit into the message are written to files, whose
    names are returned too.  OutOfMemory if there is no room for a file; then none is left behind."""
    inputs: list[Input] = []
    files: list[str] = []
    room_bytes = INLINE_TOTAL_BYTES_MAX
    try:
        for use in uses:
            value = _host_input_of(use)
            if value.data is not None and len(value.data) > room_bytes:
                files.append(shared.write([value.data]))
                value = Input(use.position, value.dtype, value.shape, True, None, str(shared.path), files[-1])
            room_bytes -= len(value.data or b"")
            inputs.append(value)
    except OutOfMemory:
        for name in files:
            remove(shared.path, name)
        raise
    return tuple(inputs), files


def _host_input_of(use: ev.RunInput) -> Input:
    tensor = use.tensor
    match tensor:
        case ev.Inline(dtype, shape, data):
            return Input(use.position, dtype, shape, use.last, data)
        case ev.SharedFile(dtype, shape, directory, name):
            return Input(use.position, dtype, shape, use.last, None, directory, name)
        case ev.DeviceTensor(dtype, shape, _, kept):
            return Input(use.position, dtype, shape, use.last, None, "", "", kept)


def made_of(output: Output, device: int, directory: str) -> ev.PartOutput:
    """An output as the engine host of a device left it.  Its files are in `directory`."""
    dtype, shape = output.dtype, output.shape
    return ev.PartOutput(
        inline=None if output.data is None else ev.Inline(dtype, shape, output.data),
        files=tuple(ev.SharedFile(dtype, shape, directory, name) for name in output.files),
        kept=ev.DeviceTensor(dtype, shape, device, output.kept) if output.kept else None,
    )
