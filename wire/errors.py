"""Every exception the mesh raises, as one tree.

    MeshError
    |-- LocalError              this process was asked for something wrong
    |   |-- InputError          a missing file, a wrong input name, shape or dtype
    |   |-- ConfigError         a flag, an address or a set-up that cannot work
    |   |   `-- TokenError      text that is not a join token
    |   |-- QueueFull           more waits already than may wait
    |   `-- PlacementError      no plan fits: need and have for every worker
    |       `-- NoSuchDevice    a worker or device was named that is not there
    |-- GraphError              the graph itself is wrong, whoever made it
    |   |-- UnknownOp, AttrError, ShapeError, DTypeError
    |   |-- GraphDecodeError    bytes or text that are not a graph
    |   `-- LimitExceeded       larger than a stated limit
    |-- RemoteError             another process misbehaved or is gone
    |   |-- ProtocolError       it broke the protocol; the link is closed
    |   |   `-- FrameError      bytes that are not a frame or a message
    |   |-- VersionMismatch     it speaks another major version
    |   |-- WrongMesh           it belongs to a mesh of another name
    |   |-- NotTrusted          it cannot prove who it is, or does not believe us
    |   |-- JoinRefused         its coordinator does not let this node into the mesh
    |   |-- Busy                it already has another coordinator
    |   |-- ConnectFailed       nobody answered there
    |   |-- NodeLost            it died or fell silent
    |   `-- StaleGeneration     its work belongs to a plan that was replaced
    |-- EngineError             a device could not do its part
    |   |-- Unsupported         an op or dtype this engine does not have
    |   |-- CompileFailed, ExecuteFailed, DeviceLost
    |   |-- PoisonTask          engines died of it wherever it was tried
    |   `-- OutOfMemory
    |-- BlobError               content that is missing, or does not match its address
    |   |-- BlobMissing
    |   `-- BlobCorrupt
    |-- StorageError            a disk that does not keep what it must
    |   |-- JournalDamaged      records of jobs that were acknowledged are missing or altered
    |   `-- NotDurable          it could not be written, so nothing was acknowledged
    |-- Cancelled               somebody asked for it to stop
    `-- DeadlineExceeded        a wait ended at its time limit

Each class says with `retry` whether the same call may succeed later and with `state_changed` whether
anything was altered before it was raised.  A new error is one class here; its `code` travels between
processes (`to_fields`, `from_fields`), so it never changes once released.
"""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar


class MeshError(Exception):
    """Base of every error; `code`, `node`, `part`, `op`, `cause` and `next_step` say what, where, why and what to do.

    `node` is the worker's name, `part` the number of the plan's part, `op` the graph node concerned, or what the part
    computes; `cause` the foreign error's text.  `log_lines` are the last ones of a worker that was lost.
    """

    code: ClassVar[str] = "mesh_error"
    retry: ClassVar[bool] = False
    state_changed: ClassVar[bool] = False

    def __init__(
        self, message: str, *, node: str = "", part: str = "", op: str = "", cause: str = "", next_step: str = ""
    ) -> None:
        super().__init__(message)
        self.message = message
        self.node = node
        self.part = part
        self.op = op
        self.cause = cause
        self.next_step = next_step
        self.log_lines: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = "".join(f" [{name} {value}]" for name, value in self._where() if value)
        why = f" (cause: {self.cause})" if self.cause else ""
        then = f". {self.next_step}" if self.next_step else ""
        return f"{self.message}{where}{why}{then}"

    def copy(self) -> MeshError:
        """A copy of an error for somebody else, so that each may be given its own place."""
        return from_fields(self.to_fields())

    def _where(self) -> tuple[tuple[str, str], ...]:
        return ("worker", self.node), ("part", self.part), ("at", self.op)

    def to_fields(self) -> dict[str, str]:
        """The error as plain strings, for a message."""
        fields = {name: str(getattr(self, name))[:MAX_FIELD_CHARS] for name in ("code", "message", *_PLACES)}
        lines = (line[:LOG_LINE_CHARS_MAX] for line in self.log_lines[-LOG_LINES_MAX:])
        return {**fields, **{f"log {number}": line for number, line in enumerate(lines)}}


MAX_FIELD_CHARS = 4096  # an error travels in a control message and must never crowd it out
LOG_LINES_MAX = 50
LOG_LINE_CHARS_MAX = 500
_PLACES = ("node", "part", "op", "cause", "next_step")


class LocalError(MeshError):
    code = "local_error"


class InputError(LocalError):
    code = "input_error"


class ConfigError(LocalError):
    code = "config_error"


class QueueFull(LocalError):
    code = "queue_full"
    retry = True


class TokenError(ConfigError):
    code = "token_error"


class PlacementError(LocalError):
    code = "placement_error"


class NoSuchDevice(PlacementError):
    code = "no_such_device"


class GraphError(MeshError):
    code = "graph_error"


class UnknownOp(GraphError):
    code = "unknown_op"


class AttrError(GraphError):
    code = "attr_error"


class ShapeError(GraphError):
    code = "shape_error"


class DTypeError(GraphError):
    code = "dtype_error"


class GraphDecodeError(GraphError):
    code = "graph_decode_error"


class LimitExceeded(GraphError):
    code = "limit_exceeded"


class RemoteError(MeshError):
    code = "remote_error"
    retry = True


class ProtocolError(RemoteError):
    code = "protocol_error"
    retry = False


class FrameError(ProtocolError):
    code = "frame_error"


class VersionMismatch(RemoteError):
    """Another major version; `expected` and `got` are "major.minor", `upgrade` names the side to upgrade."""

    code = "version_mismatch"
    retry = False

    def __init__(self, message: str, *, expected: str = "", got: str = "", upgrade: str = "", **where: str) -> None:
        super().__init__(message, **where)
        self.expected = expected
        self.got = got
        self.upgrade = upgrade


class WrongMesh(RemoteError):
    code = "wrong_mesh"
    retry = False


class NotTrusted(RemoteError):
    code = "not_trusted"
    retry = False


class JoinRefused(RemoteError):
    """`reason` is a row of `joining.REFUSALS`."""

    code = "join_refused"
    retry = False

    def __init__(self, message: str, *, reason: str = "", **where: str) -> None:
        super().__init__(message, **where)
        self.reason = reason


class Busy(RemoteError):
    code = "busy"


class ConnectFailed(RemoteError):
    code = "connect_failed"


class NodeLost(RemoteError):
    code = "node_lost"
    state_changed = True


class StaleGeneration(RemoteError):
    code = "stale_generation"


class EngineError(MeshError):
    code = "engine_error"


class Unsupported(EngineError):
    code = "unsupported"


class CompileFailed(EngineError):
    code = "compile_failed"


class ExecuteFailed(EngineError):
    code = "execute_failed"


class DeviceLost(EngineError):
    code = "device_lost"
    retry = True
    state_changed = True


class PoisonTask(EngineError):
    code = "poison_task"
    state_changed = True


class OutOfMemory(EngineError):
    code = "out_of_memory"


class BlobError(MeshError):
    code = "blob_error"


class BlobMissing(BlobError):
    code = "blob_missing"
    retry = True


class BlobCorrupt(BlobError):
    code = "blob_corrupt"
    retry = True


class StorageError(MeshError):
    code = "storage_error"


class JournalDamaged(StorageError):
    code = "journal_damaged"


class NotDurable(StorageError):
    code = "not_durable"
    retry = True


class Cancelled(MeshError):
    code = "cancelled"
    state_changed = True


class DeadlineExceeded(MeshError):
    code = "deadline_exceeded"
    retry = True
    state_changed = True


@cache
def error_classes() -> dict[str, type[MeshError]]:
    """Every class of the tree by its code; not those that kept their parent's, which another process cannot mean."""
    classes: dict[str, type[MeshError]] = {}
    pending: list[type[MeshError]] = [MeshError]
    while pending:
        cls = pending.pop()
        if "code" in vars(cls):
            classes[cls.code] = cls
        pending.extend(cls.__subclasses__())
    return classes


_ABOUT_ITS_OWNER = (DeviceLost, PoisonTask, Cancelled)  # whoever raises one says it of itself


def error_of_peer(error: MeshError, name: str) -> MeshError:
    """The error of the node `name` for another one that waited for it: who passes it on lost no device, and nobody
    stopped it.  Any other error keeps its class, and says whose it is."""
    if not isinstance(error, _ABOUT_ITS_OWNER):
        error.node = error.node or name
        return error
    where = error.node or name
    told = NodeLost("a worker that this one waited for gave up", node=where, op=error.op, cause=str(error))
    told.next_step = error.next_step
    return told


def from_fields(fields: dict[str, Any]) -> MeshError:
    """The error another process described; an unknown code becomes a plain RemoteError that keeps the text."""
    cls = error_classes().get(str(fields.get("code", "")), RemoteError)
    where = {name: str(fields.get(name, "")) for name in _PLACES}
    error = cls(str(fields.get("message", "")), **where)
    lines = (fields.get(f"log {number}") for number in range(LOG_LINES_MAX))
    error.log_lines = tuple(str(line) for line in lines if line is not None)
    return error
