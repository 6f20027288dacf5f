"""Every exception the mesh raises, as one tree.

    MeshError
    |-- LocalError              this process was asked for something wrong
    |   |-- InputError          a missing file, a wrong input name, shape or dtype
    |   |-- ConfigError         a flag, an address or a set-up that cannot work
    |   |   |-- TokenError      text that is not a join token
    |   |   `-- NoCoordinator   a node of another kind answers there
    |   |-- QueueFull           more waits already than may wait
    |   `-- PlacementError      no plan fits: need and have for every worker
    |       `-- NoSuchDevice    a worker or device was named that is not there
    |-- GraphError              the graph itself is wrong, whichever program made it
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
    |   |-- StaleGeneration     its work belongs to a plan that was replaced
    |   `-- SessionTaken        another program drives the session
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
    |-- Cancelled               a user or program asked for it to stop
    `-- DeadlineExceeded        a wait ended at its time limit

Each class says with `retry` whether the same call may succeed later and with `state_changed` whether
anything was altered before it was raised.  A new error is one class here; its `code` travels between
processes (`to_fields`, `from_fields`), so it never changes once released.
"""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar

from .text import printable_lines, well_formed


class MeshError(Exception):
    """Base of every error: what went wrong, where, why, and what to do.

    `retry` says whether the same call may succeed later, and `state_changed` whether anything was altered before the
    error was raised.  `log_lines` are the last ones of a worker that was lost.

    Parameters
    ----------
    message : str
        What went wrong.
    node : str, optional
        The name of the worker.
    part : str, optional
        The number of the plan's part.
    op : str, optional
        The graph node concerned, or what the part computes.
    cause : str, optional
        The text of another library's error.
    next_step : str, optional
        What to do about it.

    Examples
    --------
    >>> import mesh
    >>> try:
    ...     mesh.Grid((2, 2), ("dp",))
    ... except mesh.MeshError as error:
    ...     error.code, error.retry, error.state_changed
    ('input_error', False, False)
    >>> error = mesh.errors.NodeLost("the worker is gone", node="anna", next_step="Start it again")
    >>> print(error.copy(), error.to_fields()["code"])
    the worker is gone [worker anna]. Start it again node_lost
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
        return printable_lines(f"{self.message}{where}{why}{then}")

    def copy(self) -> MeshError:
        """Copy the error for another caller, so that each can be given a place of its own.

        Returns
        -------
        MeshError
            An error of the same class, with the same texts.
        """
        return from_fields(self.to_fields())

    def _where(self) -> tuple[tuple[str, str], ...]:
        return ("worker", self.node), ("part", self.part), ("at", self.op)

    def to_fields(self) -> dict[str, str]:
        """Convert the error to plain strings, for a message.

        Returns
        -------
        dict of str to str
            Its code, message and places, and the last log lines.
        """
        fields = {
            name: well_formed(str(getattr(self, name)))[:MAX_FIELD_CHARS] for name in ("code", "message", *_PLACES)
        }
        lines = (well_formed(line)[:LOG_LINE_CHARS_MAX] for line in self.log_lines[-LOG_LINES_MAX:])
        return {**fields, **{f"log {number}": line for number, line in enumerate(lines)}}


MAX_FIELD_CHARS = 4096  # an error travels in a control message and must never crowd it out
LOG_LINES_MAX = 50
LOG_LINE_CHARS_MAX = 500
_PLACES = ("node", "part", "op", "cause", "next_step")


class LocalError(MeshError):
    """This process was asked for something wrong."""

    code = "local_error"


class InputError(LocalError):
    """An argument is wrong: a missing file, a name, a shape or a dtype."""

    code = "input_error"


class ConfigError(LocalError):
    """A flag, an address or a set-up cannot work."""

    code = "config_error"


class QueueFull(LocalError):
    """More requests wait already than may wait; try again later."""

    code = "queue_full"
    retry = True


class TokenError(ConfigError):
    """A text is not a join token."""

    code = "token_error"


class NoCoordinator(ConfigError):
    """A node of another kind answers where a coordinator was to be."""

    code = "no_coordinator"


class PlacementError(LocalError):
    """No plan fits the workers; the message says what each needs and has."""

    code = "placement_error"


class NoSuchDevice(PlacementError):
    """A worker or device was named that is not there."""

    code = "no_such_device"


class GraphError(MeshError):
    """The graph itself is wrong, whichever process made it."""

    code = "graph_error"


class UnknownOp(GraphError):
    """A graph has an op that this version does not know."""

    code = "unknown_op"


class AttrError(GraphError):
    """An op has a missing, unknown or impossible attribute."""

    code = "attr_error"


class ShapeError(GraphError):
    """Shapes do not fit an op."""

    code = "shape_error"


class DTypeError(GraphError):
    """Dtypes do not fit an op."""

    code = "dtype_error"


class GraphDecodeError(GraphError):
    """Bytes or a text are not a graph."""

    code = "graph_decode_error"


class LimitExceeded(GraphError):
    """A graph is larger than a stated limit."""

    code = "limit_exceeded"


class RemoteError(MeshError):
    """Another process misbehaved or is gone."""

    code = "remote_error"
    retry = True


class ProtocolError(RemoteError):
    """Another process broke the protocol; its link is closed."""

    code = "protocol_error"
    retry = False


class FrameError(ProtocolError):
    """Bytes are not a frame or a message."""

    code = "frame_error"


class VersionMismatch(RemoteError):
    """Another process speaks another major version of the protocol.

    Parameters
    ----------
    message : str
        What went wrong.
    expected : str, optional
        Our version, as "major.minor".
    got : str, optional
        Its version, as "major.minor".
    upgrade : str, optional
        The side to upgrade.
    **where : str
        The keywords of MeshError.
    """

    code = "version_mismatch"
    retry = False

    def __init__(self, message: str, *, expected: str = "", got: str = "", upgrade: str = "", **where: str) -> None:
        super().__init__(message, **where)
        self.expected = expected
        self.got = got
        self.upgrade = upgrade


class WrongMesh(RemoteError):
    """Another process belongs to a mesh of another name."""

    code = "wrong_mesh"
    retry = False


class NotTrusted(RemoteError):
    """Another process cannot prove which node it is, or does not believe this one."""

    code = "not_trusted"
    retry = False


class JoinRefused(RemoteError):
    """The coordinator does not let this node into the mesh.

    Parameters
    ----------
    message : str
        What went wrong.
    reason : str, optional
        A row of `REFUSALS` in wire/joining/join_protocol.py.
    **where : str
        The keywords of MeshError.
    """

    code = "join_refused"
    retry = False

    def __init__(self, message: str, *, reason: str = "", **where: str) -> None:
        super().__init__(message, **where)
        self.reason = reason


class Busy(RemoteError):
    """A worker has another coordinator already; try again later."""

    code = "busy"


class ConnectFailed(RemoteError):
    """No node answered at an address."""

    code = "connect_failed"


class NodeLost(RemoteError):
    """A worker died or fell silent."""

    code = "node_lost"
    state_changed = True


class StaleGeneration(RemoteError):
    """A message belongs to a plan that was replaced."""

    code = "stale_generation"


class SessionTaken(RemoteError):
    """Another program drives the named session."""

    code = "session_taken"


class EngineError(MeshError):
    """A device could not do its part."""

    code = "engine_error"


class Unsupported(EngineError):
    """An engine does not have an op or dtype."""

    code = "unsupported"


class CompileFailed(EngineError):
    """A device could not compile its part."""

    code = "compile_failed"


class ExecuteFailed(EngineError):
    """A device failed while it computed its part."""

    code = "execute_failed"


class DeviceLost(EngineError):
    """A device was lost, by its driver or by a hang."""

    code = "device_lost"
    retry = True
    state_changed = True


class PoisonTask(EngineError):
    """A part ended the engine hosts of every worker that tried it."""

    code = "poison_task"
    state_changed = True


class OutOfMemory(EngineError):
    """A part does not fit the memory of a device."""

    code = "out_of_memory"


class BlobError(MeshError):
    """Content cannot be used."""

    code = "blob_error"


class BlobMissing(BlobError):
    """Content is not there."""

    code = "blob_missing"
    retry = True


class BlobCorrupt(BlobError):
    """Content does not match its address."""

    code = "blob_corrupt"
    retry = True


class StorageError(MeshError):
    """A disk does not keep what it must."""

    code = "storage_error"


class JournalDamaged(StorageError):
    """Records of jobs that were acknowledged are missing or altered."""

    code = "journal_damaged"


class NotDurable(StorageError):
    """A record could not be written, so nothing was acknowledged."""

    code = "not_durable"
    retry = True


class Cancelled(MeshError):
    """The caller, or the end of a mesh or session, stopped it."""

    code = "cancelled"
    state_changed = True


class DeadlineExceeded(MeshError):
    """A wait ended at its time limit."""

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


_ABOUT_ITS_OWNER = (DeviceLost, PoisonTask, Cancelled)  # a node that raises one says it of itself


def error_of_peer(error: MeshError, name: str) -> MeshError:
    """The error of the node `name` for another one that waited for it: who passes it on lost no device, and nobody
    stopped it.  Any other error keeps its class, and says whose it is."""
    if not isinstance(error, _ABOUT_ITS_OWNER):
        error.node = error.node or name
        return error
    where = error.node or name
    peer_error = NodeLost("a worker that this one waited for gave up", node=where, op=error.op, cause=str(error))
    peer_error.next_step = error.next_step
    return peer_error


def from_fields(fields: dict[str, Any]) -> MeshError:
    """The error another process described; an unknown code becomes a plain RemoteError that keeps the text."""
    cls = error_classes().get(str(fields.get("code", "")), RemoteError)
    where = {name: str(fields.get(name, "")) for name in _PLACES}
    error = cls(str(fields.get("message", "")), **where)
    lines = (fields.get(f"log {number}") for number in range(LOG_LINES_MAX))
    error.log_lines = tuple(str(line) for line in lines if line is not None)
    return error
