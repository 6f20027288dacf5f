"""Cuts of a line into stages, against every way to cut it and every order of the workers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from coordinator.planning.pipeline.stage_search import SLACK, Load, Send, Stages, Team, best_stages


def cost_of(line: Load, teams: list[Team], found: Stages, send_s: Send, behind_of: int) -> float:
    """The slowest stage's seconds, counted place by place; infinite where a stage lacks memory."""
    slowest = 0.0
    for stage, team in enumerate(found.teams):
        first, end = found.cuts[stage], found.cuts[stage + 1]
        behind = len(found.teams) - 1 - stage
        held = sum(line.fixed_bytes[p] + min(behind + 1, behind_of) * line.flying_bytes[p] for p in range(first, end))
        if held > teams[team].memory_bytes or not any(line.weights[first:end]) or not (line.open[first] or not first):
            return float("inf")
        took = sum(teams[team].seconds[p] for p in range(first, end)) + teams[team].dispatch_s
        if behind:
            other = found.teams[stage + 1]
            took += send_s(team, other, line.up_bytes[end]) + send_s(other, team, line.down_bytes[end])
        slowest = max(slowest, took)
    return slowest


def brute(line: Load, teams: list[Team], count: int, send_s: Send, batches: int) -> float:
    places = len(line.fixed_bytes)
    best = float("inf")
    for inner in itertools.combinations(range(1, places), count - 1):
        for order in itertools.permutations(range(len(teams)), count):
            best = min(best, cost_of(line, teams, Stages((0, *inner, places), order, 0.0), send_s, batches))
    return best


@pytest.mark.parametrize("seed", range(40))
def test_cuts_and_workers_are_the_best_there_are(seed: int) -> None:
    rng = np.random.default_rng(seed)
    places, workers = int(rng.integers(2, 8)), int(rng.integers(1, 5))
    weights = np.ones(places) if seed % 3 else rng.integers(0, 2, places).astype(float)
    bounds = rng.random(places) < (0.7 if seed % 4 == 3 else 1.1)
    line = Load(weights, *(rng.integers(0, 100, places).astype(float) for _ in range(4)), bounds)
    alike = rng.random() < 0.3
    speeds = np.ones(workers) if alike else rng.uniform(0.5, 3, workers)
    work = rng.uniform(0, 10, places)
    memory = int(rng.integers(150, 900)) if seed % 2 else 10**9
    teams = [Team((number,), work * speed, 0.1, memory if alike else int(memory * speed))
             for number, speed in enumerate(speeds)]  # fmt: skip
    latency = np.full((workers, workers), 0.5) if alike else rng.uniform(0, 2, (workers, workers))

    def send_s(source: int, target: int, size: float) -> float:
        return float(latency[source, target]) + size / 50

    for count in range(1, min(places, workers) + 1):
        batches = int(rng.integers(1, 5))
        found = best_stages(line, teams, count, send_s, lambda behind, most=batches: min(behind + 1, most))
        expected = brute(line, teams, count, send_s, batches)
        if found is None:
            assert expected == float("inf")
            continue
        assert found.slowest_s == pytest.approx(expected)
        assert cost_of(line, teams, found, send_s, batches) <= expected * (1 + SLACK) + 1e-9


def test_what_two_workers_take_to_send_is_asked_once() -> None:
    places, count = 20, 5
    line = Load(np.ones(places), *(np.ones(places) for _ in range(4)), np.ones(places, bool))
    teams = [Team((number,), np.ones(places) * (1 + number / 10), 0.0, 1000) for number in range(count)]
    asked: list[tuple[int, int]] = []

    def send_s(source: int, target: int, size: float) -> float:
        asked.append((source, target))
        return size

    assert best_stages(line, teams, count, send_s, lambda behind: behind + 1) is not None
    ways = count * (count - 1)
    assert len(asked) <= ways * (2 * (places + 1) + 2 * count), "and a few to see which workers are alike"


def test_many_workers_are_taken_by_their_speed() -> None:
    line = Load(np.ones(40), *(np.zeros(40) for _ in range(4)), np.ones(40, bool))
    teams = [Team((number,), np.ones(40) * (1 + (number % 4)), 0.0, 1) for number in range(24)]
    found = best_stages(line, teams, 6, lambda *_: 0.0, lambda behind: behind + 1)
    assert found is not None and all(team % 4 == 0 for team in found.teams)
    assert found.slowest_s == 7.0, "40 places over 6 stages"


def test_a_stage_near_the_front_needs_room_for_more_in_flight() -> None:
    """Of two workers the small one gets the end, where one micro-batch is in flight at a time."""
    line = Load(np.ones(4), np.zeros(4), np.full(4, 10.0), np.zeros(4), np.zeros(4), np.ones(4, bool))
    teams = [Team((0,), np.ones(4), 0.0, 20), Team((1,), np.ones(4), 0.0, 40)]
    found = best_stages(line, teams, 2, lambda *_: 0.0, lambda behind: behind + 1)
    assert found == Stages((0, 2, 4), (1, 0), 2.0)
    assert best_stages(line, teams, 2, lambda *_: 0.0, lambda behind: 8) is None
