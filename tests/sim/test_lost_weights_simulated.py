"""Policies against deaths, on simulated workers: no death that a policy is for makes the client send weights again."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import mesh.numpy as mnp
from coordinator.plan_service.weight_redundancy import STOOD_BY
from mesh import Mesh
from wire.protocol.messages import FetchBlob

LAYERS, WIDTH = 10, 32
X = np.random.default_rng(0).standard_normal((4, WIDTH), np.float32)
WEIGHTS = {
    f"w{number}": np.random.default_rng(number).standard_normal((WIDTH, WIDTH + number), np.float32) / 8
    for number in range(LAYERS)
}
GUARDED_S = 2.0  # virtual


def model(params: Any, x: Any) -> Any:
    for number in range(LAYERS):
        x = mnp.tanh(x @ params[f"w{number}"])[:, :WIDTH]
    return x


def run(mesh: Mesh, held: Any) -> tuple[bytes, int]:
    """The answer, and how many bytes of weights the client sent for it."""
    found = mesh.run(model, held, X, strategy="pipeline", mode="on")
    return found.tobytes(), sum(each.weight_bytes["client"] for each in mesh.report().workers.values())


def alone() -> bytes:
    return np.asarray(model({name: mnp.asarray(each) for name, each in WEIGHTS.items()}, mnp.asarray(X))).tobytes()


@pytest.mark.parametrize(
    ("copies", "deaths"), [("buddy", 1), ("coded", 1), ("coded 2 of 4", 2), ("coded 3 of 5", 2), ("replica", 1)]
)
def test_deaths_at_once_and_one_after_another_move_weights_between_workers_only(copies: str, deaths: int) -> None:
    with Mesh.builder().mesh("sim").simulate(6).copies(copies).build() as mesh:
        held = mesh.put(WEIGHTS)
        assert run(mesh, held) == (alone(), sum(each.nbytes for each in WEIGHTS.values()))
        for first in range(0, 2 * deaths, deaths):
            mesh.simulation.wait(GUARDED_S)
            for number in range(first, first + deaths):
                mesh.simulation.kill(f"sim-{number}")
            assert run(mesh, held) == (alone(), 0)


@pytest.mark.parametrize("dies", ["sim-0", "sim-1", "sim-2"])
def test_where_replicas_stand_by_a_death_moves_no_weight_at_all(dies: str) -> None:
    weights = [np.random.default_rng(number).normal(0, 0.05, (512, 512)).astype(np.float32) for number in range(9)]
    x = X.reshape(1, -1)[:, :32].repeat(16, axis=1)

    def chain(params: Any, x: Any) -> Any:
        for each in params:
            x = mnp.tanh(x @ each)
        return x

    with Mesh.builder().mesh("sim").simulate(3).copies("replica").build() as mesh:
        held, left = mesh.put(weights), {"sim-0", "sim-1", "sim-2"}
        before = mesh.run(chain, held, x, strategy="pipeline")
        for name in (dies, min(left - {dies})):
            assert mesh.report().workers.keys() == left
            mesh.simulation.wait(GUARDED_S)
            told = mesh.plan(chain, held, x, strategy="pipeline", what_if_dies=name).data
            assert told["what_if_dies"]["moved_bytes"] == 0
            assert all(row["moved_bytes"] == 0 for row in told["redundancy"]["deaths"])
            mesh.simulation.kill(name)
            left.remove(name)
            assert np.array_equal(mesh.run(chain, held, x, strategy="pipeline"), before)
            assert mesh.report().weight_bytes_moved == 0 and STOOD_BY in mesh.report().reasons


@pytest.mark.parametrize("copies", ["buddy", "coded"])
def test_what_would_follow_from_a_death_is_told_as_it_comes(copies: str) -> None:
    with Mesh.builder().mesh("sim").simulate(3).copies(copies).build() as mesh:
        held = mesh.put(WEIGHTS)
        run(mesh, held)
        mesh.simulation.wait(GUARDED_S)
        told = mesh.plan(model, held, X, strategy="pipeline", what_if_dies="sim-1").data["what_if_dies"]
        assert {row["source"] for row in told["weights"]} <= {"peer", "disk"}
        mesh.simulation.kill("sim-1")
        run(mesh, held)
        assert mesh.report().weight_bytes_moved <= told["moved_bytes"] * 1.2, "of unlike sizes the longest counts"
        assert mesh.report().reasons == tuple(told["plan"]["reasons"])


def test_more_deaths_than_a_policy_is_for_cost_the_client_its_copy_and_no_answer() -> None:
    with Mesh.builder().mesh("sim").simulate(4).copies("coded").build() as mesh:
        held = mesh.put(WEIGHTS)
        run(mesh, held)
        mesh.simulation.wait(GUARDED_S)
        mesh.simulation.kill("sim-0")
        mesh.simulation.kill("sim-1")
        answer, sent = run(mesh, held)
        assert answer == alone() and sent > 0


def coming_and_going(seed: int, copies: str) -> None:
    """Calls while workers die and start again, whose every answer is right."""
    chance = random.Random(seed)
    with Mesh.builder().mesh("sim").simulate(5, seed).copies(copies).build() as mesh:
        held, down = mesh.put(WEIGHTS), set[str]()
        for _ in range(12):
            job = mesh.submit(model, held, X, strategy="pipeline", mode="on")
            mesh.simulation.wait(chance.choice([0.0, 0.001, 0.01, 0.1, 1.0]))
            if down and (len(down) > 2 or chance.random() < 0.4):
                mesh.simulation.start(down.pop())
            else:
                name = chance.choice([f"sim-{number}" for number in range(5) if f"sim-{number}" not in down])
                mesh.simulation.kill(name)
                down.add(name)
            assert job.result().tobytes() == alone()


@pytest.mark.parametrize("copies", ["buddy", "coded", "coded 2 of 4"])
def test_workers_that_come_and_go_at_any_time_change_no_answer(copies: str) -> None:
    coming_and_going(0, copies)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 40))
def test_workers_that_come_and_go_change_no_answer(seed: int) -> None:
    coming_and_going(seed, ("buddy", "coded", "coded 2 of 4", "replica")[seed % 4])


def test_a_worker_that_only_kept_something_is_replaced_as_a_keeper() -> None:
    with Mesh.builder().mesh("sim").simulate(4).copies("buddy").build() as mesh:
        seen: list[str] = []
        mesh.watch(lambda event: seen.append(event["kind"]))
        held = mesh.put(WEIGHTS)
        mesh.run(model, held, X, strategy="single", mode="on")
        (owner,) = mesh.report().workers
        mesh.simulation.wait(GUARDED_S)
        others = [f"sim-{number}" for number in range(4) if f"sim-{number}" != owner]
        for name in others[:2]:  # wherever its copies are, one of two deaths may hit some
            mesh.simulation.kill(name)
            mesh.simulation.wait(GUARDED_S)
        assert seen.count("guarded") == 3
        mesh.simulation.kill(owner)
        mesh.run(model, held, X, strategy="single", mode="on")
        assert sum(each.weight_bytes["client"] for each in mesh.report().workers.values()) == 0


def test_weights_that_steps_of_a_session_only_read_are_kept_like_those_of_calls() -> None:
    def step(state: Any, x: Any) -> Any:
        return {**state, "count": state["count"] + 1}, model(state["weights"], x) + state["count"]

    with Mesh.builder().mesh("sim").simulate(4).copies("coded").build() as mesh:
        coordinator = mesh.simulation._cluster.coordinator
        asked: list[int] = []
        serve = coordinator.requests[FetchBlob]

        async def counting(link: Any, body: Any) -> Any:
            answer = await serve(link, body)
            asked.append(answer.size_bytes)
            return answer

        coordinator.requests[FetchBlob] = counting
        state = {"weights": WEIGHTS, "count": np.zeros(LAYERS, np.float32).sum()}
        with mesh.session(step, state, X, strategy="pipeline", every=1) as session:
            first = session.step(X).result()
            assert sum(asked) >= sum(each.nbytes for each in WEIGHTS.values())
            mesh.simulation.wait(GUARDED_S)
            asked.clear()
            mesh.simulation.kill("sim-0")
            np.testing.assert_array_equal(session.step(X).result(), first + 1)
            assert sum(asked) <= 8, "weights, and not only the counter"
