"""The process that plans ahead, for real: right answers, an end when nobody asks, and what becomes of its death."""

from __future__ import annotations

import asyncio
import os
import signal

import numpy as np
import pytest
from support.machines.profiles import device, near, worker

from coordinator.plan_service.planner_client import PlannerProcess
from coordinator.plan_service.planner_main import LENGTH
from coordinator.planning.plan_codec import plan_from, question_bytes
from coordinator.planning.planner import Question
from coordinator.planning.session_planner import SessionQuestion, Stateful
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder
from wire.system.child_python import python_command


def question(workers: int = 3, layers: int = 6) -> Question:
    """Small, with a constant that is not sent along."""
    builder = GraphBuilder()
    x = builder.input("x", (64, 1024), F32)
    x = builder.add("add", x, builder.const(np.random.default_rng(0).standard_normal((64, 1024)).astype(np.float32)))
    for _ in range(layers):
        x = builder.add("tanh", x)
    return Question(
        builder.build([x]), "pipeline", near(*(worker(number, device(0, 1.0, 1.0)) for number in range(workers)))
    )


async def test_it_gives_the_plan_that_would_be_made_here() -> None:
    asked, process = question(), PlannerProcess()
    try:
        for _ in range(2):
            data = await process.answer(asked)
            assert data is not None and plan_from(data, asked.graph) == asked.answer()
        assert await process.answer(question(workers=0)) is None
    finally:
        await process.close()


async def test_it_plans_the_steps_of_sessions() -> None:
    builder = GraphBuilder()
    x, w = builder.input("x", (64, 64), F32), builder.param("w", (64, 64), F32)
    graph = builder.build([builder.add("tanh", x), builder.add("mul", x, w)])
    profiles = near(*(worker(number, device(0, 1.0, 1.0)) for number in range(2)))
    asked, process = SessionQuestion(graph, "auto", profiles, Stateful((("w", 1),), 1)), PlannerProcess()
    try:
        answers = await asyncio.gather(*(process.answer(asked) for _ in range(3)))
    finally:
        await process.close()
    assert [data and plan_from(data, graph) for data in answers] == [asked.answer()] * 3


async def test_it_ends_when_nobody_asks_and_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    process = PlannerProcess(idle_s=0.05)
    try:
        assert await process.answer(question()) is not None
        child = process._process
        assert child is not None
        assert await asyncio.wait_for(child.wait(), 120.0) == 0
        assert await process.answer(question()) is not None
    finally:
        await process.close()


async def test_it_ends_without_a_word_when_whoever_asked_was_killed() -> None:
    heard_fd, told_fd = os.pipe()
    pipe, command = asyncio.subprocess.PIPE, python_command("coordinator.plan_service.planner_main")
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=told_fd, stderr=pipe)
    os.close(told_fd)
    os.close(heard_fd)
    data = question_bytes(question())
    _, said = await asyncio.wait_for(process.communicate(LENGTH.pack(len(data)) + data), 120.0)
    assert (process.returncode, said) == (0, b"")


async def test_it_may_be_had_ready_before_a_question_comes() -> None:
    process = PlannerProcess()
    try:
        await process.get_ready()
        child = process._process
        assert child is not None and child.returncode is None
        await process.get_ready()
        assert await process.answer(question()) is not None
        assert process._process is child, "the one that was had ready answered"
        await process.close()
        process = PlannerProcess(idle_s=0.05)
        await process.get_ready()
        child = process._process
        assert child is not None
        assert await asyncio.wait_for(child.wait(), 120.0) == 0, "it ends if no question comes"
    finally:
        await process.close()


async def test_it_leaves_the_ctrl_c_of_a_terminal_to_whoever_asks_it() -> None:
    process = PlannerProcess()
    try:
        assert await process.answer(question()) is not None
        child = process._process
        assert child is not None
        child.send_signal(signal.SIGINT)
        assert await process.answer(question()) is not None
        assert process._process is child and child.returncode is None
    finally:
        await process.close()


async def test_one_that_died_before_it_was_asked_is_replaced() -> None:
    process = PlannerProcess()
    try:
        await process.get_ready()
        child = process._process
        assert child is not None
        child.kill()
        await child.wait()
        assert await process.answer(question()) is not None
    finally:
        await process.close()


async def test_its_death_is_an_error_and_the_next_question_starts_another() -> None:
    process = PlannerProcess()
    try:
        assert await process.answer(question()) is not None
        assert process._process is not None
        os.kill(process._process.pid, signal.SIGSTOP)  # or it may have the answer by then, or be known to be dead
        asking = asyncio.ensure_future(process.answer(question()))
        await asyncio.sleep(0.05)
        os.kill(process._process.pid, signal.SIGKILL)
        with pytest.raises((OSError, EOFError)):
            await asking
        assert await process.answer(question()) is not None
    finally:
        await process.close()


async def test_a_question_that_is_given_up_ends_it_at_once() -> None:
    process = PlannerProcess()
    assert await process.answer(question()) is not None
    child = process._process
    assert child is not None
    os.kill(child.pid, signal.SIGSTOP)  # or it may have the answer by then
    asking = asyncio.ensure_future(process.answer(question()))
    await asyncio.sleep(0.05)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert child.returncode is not None and child.returncode != 0


async def test_one_that_rests_is_over_once_it_is_closed() -> None:
    """Its pipes would otherwise outlive the event loop."""
    planner = PlannerProcess(idle_s=0.0)
    await planner.get_ready()
    process = planner._process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)  # so that it cannot end by itself before it is closed
    while planner._process is not None:
        await asyncio.sleep(0)
    await asyncio.wait_for(planner.close(), 120)
    assert process.returncode is not None


async def test_one_that_was_being_ended_by_a_question_given_up_twice_is_over_once_it_is_closed() -> None:
    planner = PlannerProcess()
    await planner.get_ready()
    process = planner._process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    asking = asyncio.ensure_future(planner.answer(question()))
    await asyncio.sleep(0.05)
    asking.cancel()
    await asyncio.sleep(0)  # it is killed, and waited for
    asking.cancel()
    await asyncio.wait([asking])
    await asyncio.wait_for(planner.close(), 120)
    assert process.returncode is not None
