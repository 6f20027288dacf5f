"""The process that plans ahead: questions come in on stdin, plans go out on stdout, at the lowest priority.

A message is its length (4 bytes, little-endian) and that many bytes, as `coordinator/planning/plan_codec.py` writes
them; an answer without bytes says that there is no plan.  The process ends when its stdin does.  Started by
`planner_client.py`.
"""

from __future__ import annotations

import contextlib
import os
import struct
from typing import BinaryIO

from wire.errors import MeshError
from wire.ir.graph import WireGraph
from wire.system.child_python import take_stdio

from ..planning.plan_codec import AnyQuestion, plan_bytes, question_from

LENGTH = struct.Struct("<I")
NICE = 19


def main() -> None:
    """Answer until stdin closes, or nobody reads: a coordinator that was killed leaves no complaint in the log."""
    receive_fd, send_fd = take_stdio()
    _stand_back()
    with contextlib.suppress(BrokenPipeError), open(receive_fd, "rb") as asked, open(send_fd, "wb") as answers:
        graphs: tuple[WireGraph, ...] = ()  # of the last question: the next one is often of the same
        while (data := _message(asked)) is not None:
            question = question_from(data, graphs)
            graphs = (question.graph,)
            answer = answer_of(question) or b""
            answers.write(LENGTH.pack(len(answer)) + answer)
            answers.flush()


def _stand_back() -> None:
    """Take only what others leave.  Linux gives a processor with nothing else on it to whoever wakes, as an idle one;
    by niceness alone it would look busy."""
    if hasattr(os, "nice"):
        os.nice(NICE)
    if hasattr(os, "SCHED_IDLE"):
        with contextlib.suppress(OSError):  # a sandbox may forbid it
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def answer_of(question: AnyQuestion) -> bytes | None:
    """The plan as bytes; None where there is none; the planner that needs it raises the reason again."""
    try:
        return plan_bytes(question.answer())
    except MeshError:
        return None


def _message(file: BinaryIO) -> bytes | None:
    head = file.read(LENGTH.size)
    return file.read(LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else None
