"""What a program's handlers and filters raise is printed, and stops nothing that writes to the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import numpy as np
import pytest

from mesh import Mesh
from mesh.core.loop_thread import LoopThread
from wire.system.steady_log import steady_logger


class Refusing(logging.Handler):
    """A handler of a program's own, which guards nothing; `refused` has the loggers of its lines."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.refused.append(record.name)
        raise LookupError("there is no request here")


class NeedsARequest(logging.Filter):
    """A filter that adds to each line what only threads of the program know."""

    def filter(self, record: logging.LogRecord) -> bool:
        raise LookupError("there is no request here")


@pytest.fixture
def refusing() -> Iterator[Refusing]:
    root, handler = logging.getLogger(), Refusing()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield handler
    finally:
        root.setLevel(before)
        root.removeHandler(handler)


@pytest.mark.parametrize("asked_before", [False, True])
def test_a_handler_and_a_filter_that_raise_are_printed(
    refusing: Refusing, capsys: pytest.CaptureFixture[str], asked_before: bool
) -> None:
    name = f"graph_mesh.of_a_test_{asked_before}"
    if asked_before:
        logging.getLogger(name)
    log = steady_logger(name)
    log.info("a line for a handler that raises")
    log.addFilter(NeedsARequest())
    log.info("a line for a filter that raises")
    assert refusing.refused == [name]
    assert capsys.readouterr().err.count("LookupError: there is no request here") == 2


def test_a_logger_of_a_programs_own_class_stays_one(refusing: Refusing) -> None:
    class Own(logging.Logger):
        def handle(self, record: logging.LogRecord) -> None:
            raise LookupError("there is no request here")

    logging.setLoggerClass(Own)
    try:
        log = steady_logger("graph_mesh.of_its_own_class")
    finally:
        logging.setLoggerClass(logging.Logger)
    assert isinstance(log, Own)
    log.info("a line that the class of the program does not take")


def test_a_mesh_goes_on_where_no_line_can_be_logged(refusing: Refusing) -> None:
    with Mesh.builder().mesh("sim").simulate(3).build() as mesh:
        total = mesh.session(lambda s, x: (s + x, s + x), np.float32(0), np.float32(0), copies="buddy")
        assert total.step(np.float32(1)).result(60) == 1
        mesh.simulation.kill("sim-0")
        assert total.step(np.float32(2)).result(60) == 3
        assert mesh.run(lambda x: x + 1, np.float32(1)) == 2
    assert refusing.refused


def test_a_mesh_is_built_and_computes_where_every_line_of_asyncio_is_refused(refusing: Refusing) -> None:
    logging.getLogger().setLevel(logging.DEBUG)
    with Mesh.builder().local(1).build() as mesh:
        assert mesh.run(lambda x: x + 1, np.float32(1)) == 2
    assert "asyncio" in refusing.refused


def test_the_loop_outlives_a_handler_that_raises_at_a_line_of_asyncio(refusing: Refusing) -> None:
    thread = LoopThread(asyncio.new_event_loop)

    async def ended() -> str:
        return "over"

    try:
        thread.call_soon(lambda: 1 / 0)
        assert asyncio.run(asyncio.wait_for(asyncio.to_thread(thread.wait, ended()), 60)) == "over"
    finally:
        thread.stop()
    assert "asyncio" in refusing.refused
