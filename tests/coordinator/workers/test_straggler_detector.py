"""A device that became slower is found by the times of its own parts."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from support.machines.profiles import device, near, worker

from coordinator.planning.model.plan import Gang, Part, Plan
from coordinator.workers.straggler_detector import BASE_S, LEARNT_MIN, SEEN_MIN, SLOWNESS_MAX, WINDOW, StragglerDetector
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder, WireGraph

A, B = ("a", 0), ("b", 0)
Time = Callable[[], float]


def graph(length: int = 1) -> WireGraph:
    made = GraphBuilder()
    node = made.input("0", (4,), F32)
    for _ in range(length):
        node = made.add("neg", node)
    return made.build([node])


def plan(*parts: Part) -> Plan:
    return Plan("auto", graph(), parts, (), (), (), (), 0.0, 0, ())


def on(site: tuple[str, int], length: int = 1, predicted_s: float = 0.1, slower: float = 1.0) -> Plan:
    """A plan of one part, which the length tells apart from others."""
    return plan(Part(0, *site, "cpu", graph(length), (), predicted_s * slower, slower))


def run(seen: StragglerDetector, made: Plan, *times_s: float, calls: int = 1) -> list[str]:
    return [text for took_s in times_s for text in seen.took(made, {0: took_s}, calls)]


def known(site: tuple[str, int] = A, took_s: float = 0.1, length: int = 1) -> StragglerDetector:
    seen = StragglerDetector()
    assert not run(seen, on(site, length), *[took_s] * 10)
    return seen


@pytest.mark.parametrize(
    ("times", "slowness"), [(1.0, 1), (1.5, 1), (2.0, 2), (5.0, 4.76), (10.0, 9.51), (1e4, 64), (math.inf, 64)]
)
def test_a_device_slower_than_it_was_is_known_after_three_runs(times: float, slowness: float) -> None:
    seen = known()
    run(seen, on(A), *[0.1 * times] * (SEEN_MIN - 1))
    assert seen.slowness(A) == 1, "too early"
    told = run(seen, on(A), 0.1 * times)
    assert seen.slowness(A) == pytest.approx(slowness, rel=0.01) and bool(told) == (slowness > 1)
    assert slowness <= SLOWNESS_MAX


def test_devices_that_are_unlike_and_predictions_that_err_say_nothing() -> None:
    """Held against its own past, a device that is 30 times slower than another is as it always was."""
    seen, rng = StragglerDetector(), random.Random(1)
    for length in range(1, 40):  # every plan cuts the graph in another way
        for site, times in ((A, 1.0), (B, 30.0)):
            error = rng.choice((0.1, 1.0, 12.0))
            assert not run(seen, on(site, length), *[0.1 * times * error] * rng.randrange(1, 9))
    assert not list(seen.slow()) and seen.verdicts == 0


def jitter(rng: random.Random) -> float:
    return rng.uniform(0.7, 1.3)


def heavy(rng: random.Random) -> float:
    return rng.lognormvariate(0, 0.3)


def hiccup(rng: random.Random) -> float:
    return rng.uniform(0.9, 1.1) * (rng.choice((3.0, 30.0, 300.0)) if rng.random() < 0.03 else 1.0)


def first_runs_cost_more(rng: random.Random) -> float:
    return rng.uniform(0.8, 1.2)


@pytest.mark.parametrize("noise", [jitter, heavy, hiccup, first_runs_cost_more])
@pytest.mark.parametrize("part_s", [0.0003, 0.02, 3.0])
def test_noise_makes_nobody_a_straggler(noise: Callable[[random.Random], float], part_s: float) -> None:
    wrong = 0
    for seed in range(10):
        seen, rng = StragglerDetector(), random.Random(seed)
        if noise is first_runs_cost_more:
            run(seen, on(A), 5 * part_s)
        run(seen, on(A), *[part_s * noise(rng) for _ in range(1000)])
        wrong += seen.verdicts
    assert wrong == 0


@pytest.mark.parametrize("times", [2.5, 5.0, 10.0])
def test_it_is_noticed_through_noise_and_so_is_its_end(times: float) -> None:
    for seed in range(30):
        seen, rng = StragglerDetector(), random.Random(seed)
        run(seen, on(A), *[0.1 * jitter(rng) for _ in range(100)])
        run(seen, on(A), *[0.1 * times * jitter(rng) for _ in range(12)])
        assert times / 1.9 <= seen.slowness(A) <= times * 1.9
        run(seen, on(A), *[0.1 * times * jitter(rng) for _ in range(100)])
        assert seen.slowness(A) > 1 and seen.verdicts <= 3, "one verdict, and perhaps a better figure"
        run(seen, on(A), *[0.1 * jitter(rng) for _ in range(9)])
        assert seen.slowness(A) == 1


@pytest.mark.parametrize("seed", range(20))
def test_a_device_may_become_any_number_of_times_faster_or_slower(seed: int) -> None:
    """Its times were learnt while its machine was busy; a clock may show that no time went by."""
    seen, rng = StragglerDetector(), random.Random(seed)
    machines = near(*(worker(n, device(0, 50.0, 10.0)) for n in range(2)))
    single = plan(Part(0, "node-0", 0, "cpu", graph(), (), 0.1))
    made = single, replace(single, gangs=(Gang((0,), ("dp",), (1,), 0.0, 0),))
    for _ in range(30):
        took_s = rng.choice([0.0, 10.0 ** rng.uniform(-7, 2)])
        run(seen, rng.choice(made), *[took_s] * rng.randint(1, 2 * WINDOW))
        found = seen.with_rank_errors(replace(machines, workers=tuple(map(seen.at_present_speed, machines.workers))))
        assert 1 <= seen.slowness(("node-0", 0)) <= SLOWNESS_MAX
        assert all(device.slower > 0 and device.gflops > 0 for each in found.workers for device in each.devices)


def test_what_takes_no_time_says_nothing() -> None:
    seen = known(took_s=BASE_S / 20)
    run(seen, on(A), *[BASE_S / 2] * 20)
    assert seen.slowness(A) == 1


def test_other_parts_are_first_got_to_know_at_the_known_pace() -> None:
    seen = known()
    run(seen, on(A), *[0.4] * 5)
    assert seen.slowness(A) == 4
    run(seen, on(A, 2), *[1.2] * 9)
    assert seen.slowness(A) == 4, "four times 0.3 s, which nobody knew before"
    run(seen, on(A, 2), *[0.3] * 5)
    assert seen.slowness(A) == 1


def test_what_slows_parts_down_while_many_calls_are_under_way_is_the_calls() -> None:
    seen = known()
    run(seen, on(A), *[0.4] * 20, calls=4)
    assert seen.slowness(A) == 1
    run(seen, on(A), *[1.6] * 5, calls=4)
    assert seen.slowness(A) == 4


def test_a_device_that_was_known_when_it_was_slow_is_known_anew_when_it_is_fast() -> None:
    seen = known(took_s=1.0)
    run(seen, on(A), *[0.1] * WINDOW)
    assert seen.slowness(A) == 1
    run(seen, on(A), *[0.5] * 5)
    assert seen.slowness(A) == pytest.approx(4.76, rel=0.01)


def test_a_part_that_is_not_done_tells_too() -> None:
    seen, part = known(), on(A).parts[0]
    assert not seen.late(part, 0.8, 1) and seen.slowness(A) == 1
    assert seen.late(part, 0.8, 1) == [] and seen.slowness(A) == 1
    assert seen.late(part, 0.8, 1) == ["device 0 takes 8 times as long as it did"]
    assert not StragglerDetector().late(part, 800.0, 1), "nothing is known of it"


def test_what_a_part_would_take_goes_by_its_runs_and_else_by_how_far_predictions_are_off() -> None:
    seen = known(took_s=0.3)
    assert seen.expected_s(on(A).parts[0]) == pytest.approx(0.3)
    assert seen.expected_s(on(A, 2, predicted_s=0.5).parts[0]) == pytest.approx(1.5), "predictions are a third"
    assert seen.expected_s(on(B, 2, predicted_s=0.5).parts[0]) == pytest.approx(1.5), "so everywhere, for all we know"
    run(seen, on(A), *[1.2] * 5)
    assert seen.expected_s(on(A).parts[0]) == pytest.approx(1.2)
    slowed = on(A, 2, predicted_s=0.5, slower=4.0).parts[0]
    assert seen.expected_s(slowed) == pytest.approx(6.0), "its prediction says already that the device is slow"


def test_devices_with_the_same_figures_learn_together_how_far_predictions_are_off() -> None:
    """Otherwise a device that was tried would look slower than the others, and plans would leave it no work."""
    seen = StragglerDetector()
    alike, other = [worker(n, device(0, 50.0, 10.0)) for n in range(2)], worker(2, device(0, 80.0, 10.0))

    def flops() -> list[float]:
        return [seen.at_present_speed(each).devices[0].gflops for each in (*alike, other)]

    assert flops() == [50.0, 50.0, 80.0]
    run(seen, on((alike[0].node_id, 0)), *[0.4] * LEARNT_MIN)
    assert flops() == [50.0 / 4, 50.0 / 4, 80.0]
    run(seen, on((alike[1].node_id, 0)), *[0.4] * LEARNT_MIN)
    assert flops() == [50.0 / 4, 50.0 / 4, 80.0]
    seen.forget(alike[0].node_id)
    assert flops()[1] == 50.0 / 4, "whoever is there still knows it"
    for each in alike:
        seen.forget(each.node_id)
    assert flops() == [50.0, 50.0, 80.0]


def test_a_node_that_begins_anew_is_nobodys_straggler() -> None:
    seen = known()
    run(seen, on(A), *[0.8] * 5)
    seen.forget("a")
    assert seen.slowness(A) == 1 and not run(seen, on(A), *[0.8] * 20)


@pytest.mark.parametrize("guessed", [1.3, 0.9, 0.5])
def test_a_pace_that_was_guessed_wrong_keeps_no_device_from_being_well_again(guessed: float) -> None:
    """Slow by five, held for thirteen, say; so its new work was got to know as quicker than it ever can be."""
    seen, new = known(), on(A, 2)
    run(seen, on(A), *[guessed] * 5)
    run(seen, new, *[0.25] * 20)
    assert seen.slowness(A) > 4, "it is slow all the time"
    run(seen, new, *[0.05] * 5)
    assert seen.slowness(A) == 1, "five times as quick: it is well"
    run(seen, on(A), *[0.1] * 20)
    assert seen.slowness(A) == 1
    run(seen, on(A), *[0.5] * 3)
    assert seen.slowness(A) == pytest.approx(4.76, rel=0.01), "and is judged by what is known of it"


def test_a_device_that_is_less_slow_than_it_was_is_found_to_be_so_by_its_work_of_before() -> None:
    seen, new = known(), on(A, 2)
    run(seen, on(A), *[1.0] * 5)
    run(seen, new, *[0.5] * 10)
    run(seen, new, *[0.15] * 5)
    assert seen.slowness(A) == 1, "a third is taken for well, for now"
    run(seen, on(A), *[0.3] * 3)
    assert seen.slowness(A) == pytest.approx(2.83, rel=0.01)


def test_ranks_are_as_fast_as_their_own_runs_say_and_other_parts_say_nothing_of_them() -> None:
    seen, machines = StragglerDetector(), near(*(worker(n, device(0, 50.0, 10.0)) for n in range(2)))
    ranks = [Part(n, f"node-{n}", 0, "cpu", graph(), (), 0.1) for n in range(2)]
    gang = Gang((0, 1), ("x",), (2,), 0.0, 0)
    made = replace(plan(*ranks, Part(2, "node-0", 0, "cpu", graph(2), (), 0.1)), gangs=(gang,))
    for _ in range(LEARNT_MIN):
        assert seen.with_rank_errors(machines) == machines, "too early"
        assert not seen.took(made, {0: 0.1, 2: 0.4}, 1) and not seen.took(made, {1: 0.2}, 1)
    assert [each.devices[0].slower for each in seen.with_rank_errors(machines).workers] == [1.0, 2.0]


def test_a_rank_that_was_not_tried_is_as_those_with_the_same_figures() -> None:
    seen, machines = StragglerDetector(), near(*(worker(n, device(0, 50.0 * (1 + n // 2), 10.0)) for n in range(4)))
    machines = replace(
        machines, workers=tuple(map(seen.at_present_speed, machines.workers))
    )  # so it knows their figures
    made = replace(plan(Part(0, "node-0", 0, "cpu", graph(), (), 0.1)), gangs=(Gang((0,), ("x",), (1,), 0.0, 0),))
    run(seen, made, *[0.15] * LEARNT_MIN)
    first, *rest = (each.devices[0].slower for each in seen.with_rank_errors(machines).workers)
    assert first > 1 and rest == [first, 1.0, 1.0]
