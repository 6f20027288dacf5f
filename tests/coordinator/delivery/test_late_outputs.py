"""Outputs that come for a step that is over leave nothing in shared memory: whoever is told of a file owns it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.delivery.output_receiver import OutputReceiver
from coordinator.lifecycle.plan_shell import PlanShell
from wire.errors import MeshError, OutOfMemory, ProtocolError
from wire.ir.dtypes import dtype_named
from wire.ir.types import TensorType
from wire.protocol.messages import PlanKey, Push, Value
from wire.system.shared_memory import SharedDir


def given(folder: Path) -> tuple[SharedDir, Any, Value]:
    """The directory of a worker, the link to it, and an output in a file of it."""
    shared = SharedDir.create(folder)
    link = SimpleNamespace(peer=SimpleNamespace(node_id="w", name="w", shared_memory=str(shared.path)))
    return shared, link, Value("u8", (8,), None, shared.write([bytes(8)]))


def files(shared: SharedDir) -> int:
    return sum(path.name != "lock" for path in shared.path.iterdir())


def test_what_nobody_waits_for_is_removed(tmp_path: Path) -> None:
    shared, link, value = given(tmp_path)
    shell = cast(Any, SimpleNamespace(_lifecycle=SimpleNamespace(lacks=lambda *step: None)))
    shell.output_type = lambda *args: PlanShell.output_type(shell, *args)
    assert files(shared) == 1
    assert PlanShell._output(shell, link, 1, 0, 0, value) is None
    assert files(shared) == 0
    assert PlanShell._output(shell, link, 1, 0, 0, value) is None, "it is gone already, or its process is"
    shared.close()


def test_what_is_of_a_coordinator_before_is_removed(tmp_path: Path) -> None:
    shared, link, value = given(tmp_path)
    receiver = OutputReceiver(lambda: 2, *cast(Any, (None, None, None)))
    receiver.pushed(link, Push(PlanKey(1, 1), 0, 0, 0, value))
    assert files(shared) == 0
    with pytest.raises(ProtocolError):
        receiver.pushed(link, Push(PlanKey(1, 1), 0, 0, 0, Value("u8", (8,), None, "../lock")))
    shared.close()


def test_a_streamed_output_that_cannot_be_taken_is_lost_at_once() -> None:
    told: list[Any] = []

    class Plan:
        def output_type(self, *_: object) -> TensorType:
            return TensorType((8,), dtype_named("u8"))

        def output(self, *_: object) -> None:
            raise MemoryError

        def output_lost(self, generation: int, step: int, node: str, error: MeshError) -> None:
            told.append((generation, step, node, type(error)))

    receiver = OutputReceiver(lambda: 1, *cast(Any, (None, None, lambda generation: Plan())))
    link = cast(Any, SimpleNamespace(peer=SimpleNamespace(node_id="w", name="w", shared_memory="")))
    header = Push(PlanKey(1, 5), 3, 0, 0, Value("u8", (8,), None))
    buffer = receiver.open_stream(link, header, 8)
    receiver.stream_done(link, header, cast(memoryview, buffer), None)
    assert told == [(5, 3, "w", OutOfMemory)]
