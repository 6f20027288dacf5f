"""Schedules of pipelines, against the tables and bounds of the papers."""

from __future__ import annotations

import itertools

import pytest

from wire.policy.pipeline_schedules import BACKWARD, FORWARD, SCHEDULES, Event, bound, in_order

SIZES = list(itertools.product(range(1, 7), range(1, 13)))


def short(name: str, stage: int, stages: int, batches: int) -> str:
    return " ".join(f"{event.kind[0].upper()}{event.batch}" for event in SCHEDULES[name].events(stage, stages, batches))


def test_tables_of_three_stages_and_five_micro_batches() -> None:
    assert short("gpipe", 1, 3, 5) == "F0 F1 F2 F3 F4 B0 B1 B2 B3 B4"
    assert short("1f1b", 0, 3, 5) == "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4"
    assert short("1f1b", 1, 3, 5) == "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4"
    assert short("1f1b", 2, 3, 5) == "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4"
    assert [short("pipedream", stage, 3, 5) for stage in range(3)] == [short("1f1b", s, 3, 5) for s in range(3)]


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_micro_batch_goes_there_and_back_within_the_published_bounds(name: str) -> None:
    schedule = SCHEDULES[name]
    for stage, stages, batches in ((stage, *size) for size in SIZES for stage in range(size[0])):
        flying: set[int] = set()
        updates, stashed, most, versions = 0, {}, 0, 0
        for event in schedule.events(stage, stages, batches):
            if event.kind == FORWARD:
                assert event.batch not in stashed
                assert event.version == (updates if schedule.updates else 0), "the newest there is"
                flying.add(event.batch)
                stashed[event.batch] = event.version
            else:
                assert event.version == stashed[event.batch], "back with the weights it came with"
                versions = max(versions, len({stashed[batch] for batch in flying} | {updates * schedule.updates}))
                flying.remove(event.batch)
                updates += 1
            most = max(most, len(flying))
        assert not flying and len(stashed) == updates == batches
        published = batches if name == "gpipe" else min(stages - stage, batches)
        assert most == schedule.in_flight(stage, stages, batches) == published
        assert versions <= schedule.versions(stage, stages, batches)
        if name == "pipedream":
            assert schedule.versions(stage, stages, batches) <= stages - stage


@pytest.mark.parametrize("name", SCHEDULES)
def test_all_stages_in_one_order_that_can_be_carried_out(name: str) -> None:
    for stages, batches in SIZES:
        order = in_order(SCHEDULES[name], stages, batches)
        for stage in range(stages):
            mine = [event for at, event in order if at == stage]
            assert mine == list(SCHEDULES[name].events(stage, stages, batches))
        done: set[tuple[int, str, int]] = set()
        for stage, event in order:
            if event.kind == FORWARD:
                assert stage == 0 or (stage - 1, FORWARD, event.batch) in done
            else:
                assert (stage, FORWARD, event.batch) in done
                assert stage + 1 == stages or (stage + 1, BACKWARD, event.batch) in done
            done.add((stage, event.kind, event.batch))


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_bubble_is_that_of_the_papers(name: str) -> None:
    """A step of equal events takes 2 (m + S - 1) of them."""
    for stages, batches in SIZES:
        ends: dict[tuple[int, str, int], int] = {}
        free = [0] * stages
        for stage, event in in_order(SCHEDULES[name], stages, batches):
            need = (stage - 1, FORWARD) if event.kind == FORWARD else (stage + 1, BACKWARD)
            there = max(ends.get((*need, event.batch), 0), free[stage])
            ends[stage, event.kind, event.batch] = free[stage] = there + 1
        assert max(free) == 2 * (batches + stages - 1)
        assert 2 * batches / max(free) == pytest.approx(bound(stages, batches))


def test_events_are_values() -> None:
    assert Event(FORWARD, 1) == Event(FORWARD, 1, 0) != Event(BACKWARD, 1)
