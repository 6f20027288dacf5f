"""Direct path: a plan whose parts the calling thread has engine hosts of its machine run, one after the other.

A short call costs less than the threads and processes that it passes on its way: the loop of the program, the daemon,
the loop again.  The direct path has a connection to the engine host of each part.  It decides nothing: whenever a call
cannot be answered so, it starts again through the coordinator, which knows of deaths, memory and time.  A graph has no
effects, so nothing tells that a part was run twice, and a caller gets one answer.  It belongs to the thread that calls;
another thread may only `close` it.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from wire.deadlines import DIRECT_ANSWER
from wire.errors import FrameError, GraphDecodeError
from wire.ir.codec import tensor_copy, tensor_from
from wire.ir.types import TensorType
from wire.protocol.direct_calls import READ_BYTES, TENSORS_BYTES_MAX, DirectAnswer, DirectCall, Unpacker, pack

from ..delivery.input_sender import input_array
from ..planning.model.plan import FromInput, FromPart, Part, Plan

LOOK_S = 1.0  # from one call that goes through the coordinator to the next: it measures workers by those that it sees
PARTS_MAX = 8  # more of them, one after the other, take longer than side by side

Arrays = Mapping[str, NDArray[Any]]
Made = dict[FromPart, bytes]


@dataclass(frozen=True, slots=True)
class Answered:
    """The outputs of a call, in graph order, and what each part took, by its number."""

    outputs: list[NDArray[Any]]
    seconds: float
    compute_s: Mapping[int, float]


@dataclass(slots=True)
class Hop:
    """A part, the connection to its engine host, what it takes, and how many outputs it gives."""

    part: int
    connection: socket.socket
    sources: tuple[FromInput | FromPart, ...]
    outputs: int
    reading: Unpacker[DirectAnswer] = field(default_factory=lambda: Unpacker(DirectAnswer))

    def run(self, inputs: Arrays, made: Made, answer_s: float) -> DirectAnswer:
        """Have the host run it.  OSError if it is gone or does not answer within `answer_s`."""
        given = [
            tensor_copy(input_array(source, inputs)) if isinstance(source, FromInput) else made[source]
            for source in self.sources
        ]
        until_s = time.monotonic() + answer_s
        self.connection.sendall(pack(DirectCall(tuple(given))))
        while data := self.connection.recv(READ_BYTES):
            answer = self.reading.feed(data)
            if answer is not None:
                if answer.outputs is not None and len(answer.outputs) != self.outputs:
                    raise FrameError(f"the part has {self.outputs} outputs, {len(answer.outputs)} came")
                return answer
            if time.monotonic() > until_s:
                raise TimeoutError("the engine host answers a few bytes at a time")
        raise ConnectionError("the engine host is gone")


class DirectPath:
    """`hops` are in the order in which parts feed each other, `outputs` what a call gives.  `watched` says whether the
    coordinator is to see every call, and `report` makes the report of one."""

    def __init__(
        self,
        hops: Sequence[Hop],
        outputs: Sequence[tuple[FromPart, TensorType]],
        watched: Callable[[], bool],
        report: Callable[[Answered], Mapping[str, Any]],
        answer_s: float = DIRECT_ANSWER.seconds,
    ) -> None:
        self.over = False
        self.report = report
        self._hops, self._outputs = tuple(hops), tuple(outputs)
        self._watched, self._answer_s = watched, answer_s
        self._made_s = self._called_s = time.monotonic()
        self._look_s = self._made_s + LOOK_S
        self._calling = threading.Lock()
        for hop in hops:
            hop.connection.settimeout(answer_s)

    def call(self, inputs: Arrays) -> Answered | None:
        """The outputs; None if the call is to go through the coordinator."""
        if self.over or self._watched() or not self._calling.acquire(blocking=False):
            return None
        try:
            began_s = self._called_s = time.monotonic()
            if began_s >= self._look_s:
                self._look_s = began_s + LOOK_S
                return None
            return self._answer(inputs, began_s)
        except (OSError, FrameError, GraphDecodeError):
            self.over = True
            return None
        except BaseException:  # Ctrl-C: an answer may come that nobody waits for
            self.over = True
            raise
        finally:
            if self.over:
                self._let_go()
            self._calling.release()

    @property
    def lasted_s(self) -> float:
        """How long it was of use: until the last call so far."""
        return self._called_s - self._made_s

    def called_within(self, seconds: float) -> bool:
        """Whether the last call came in the last `seconds`; in any thread."""
        return self._called_s > time.monotonic() - seconds

    def close(self) -> None:
        """End it, in any thread; a call in flight goes through the coordinator."""
        self.over = True
        for hop in self._hops:
            with contextlib.suppress(OSError):  # its end has come before
                hop.connection.shutdown(socket.SHUT_RDWR)
        if self._calling.acquire(blocking=False):
            self._let_go()
            self._calling.release()

    def _answer(self, inputs: Arrays, began_s: float) -> Answered | None:
        made: Made = {}
        compute_s: dict[int, float] = {}
        for hop in self._hops:
            answer = hop.run(inputs, made, self._answer_s)
            if answer.outputs is None:
                return None
            compute_s[hop.part] = answer.compute_s
            for slot, data in enumerate(answer.outputs):
                made[FromPart(hop.part, slot)] = data
        outputs = [tensor_from(bytearray(made[source]), kind) for source, kind in self._outputs]
        return Answered(outputs, time.monotonic() - began_s, compute_s)

    def _let_go(self) -> None:
        for hop in self._hops:
            hop.connection.close()


def order(plan: Plan) -> tuple[Part, ...] | None:
    """The parts of a plan in the order in which they feed each other; None where they cannot be called directly: they
    have ranks, state, large tensors, or outputs that are put together."""
    whole = len(plan.outputs) == len(plan.graph.outputs) and all(isinstance(each, FromPart) for each in plan.outputs)
    if plan.ordered or plan.carries or plan.gangs or plan.audit is not None or not whole:
        return None
    if not 0 < len(plan.parts) <= PARTS_MAX or not all(map(_is_small, plan.parts)):
        return None
    done: list[Part] = []
    left = list(plan.parts)
    while left:
        ready = [part for part in left if _fed_by(part) <= {other.index for other in done}]
        if not ready:
            return None
        done += ready
        left = [part for part in left if part not in ready]
    return tuple(done)


def sources(part: Part) -> tuple[FromInput | FromPart, ...]:
    """What is sent to a part with every call, in the order of its inputs."""
    return tuple(source for source in part.sources if isinstance(source, FromInput | FromPart))


def bytes_of(part: Part) -> tuple[int, int]:
    """The bytes that a part takes and gives with every call."""
    graph = part.graph
    fed = zip(part.sources, graph.inputs, strict=True)
    taken = sum(graph.types[index].size_bytes for source, index in fed if isinstance(source, FromInput | FromPart))
    return taken, sum(graph.types[index].size_bytes for index in graph.outputs)


def _is_small(part: Part) -> bool:
    return max(bytes_of(part)) <= TENSORS_BYTES_MAX and not part.graph.work_varies


def _fed_by(part: Part) -> set[int]:
    return {source.part for source in part.sources if isinstance(source, FromPart)}
