"""How many drafts a text asks for: a table of agreements and costs, and scripts of what comes."""

from __future__ import annotations

import random

import pytest

from mesh.inference.speculation import (
    CHECK,
    DRAFT,
    MEASURED,
    PAUSE_MAX,
    PAUSE_MIN,
    PLAIN,
    STALE_S,
    TRIALS,
    Agreement,
    Costs,
    Speculation,
    StepTimes,
    best,
)


@pytest.mark.parametrize(
    ("agreement", "costs", "most", "wanted"),
    [
        (0.8, Costs(), 4, 4),
        (0.8, Costs(), 16, 6),  # each draft more is less likely to be reached
        (0.99, Costs(), 16, 16),
        (0.6, Costs(), 16, 3),
        (0.3, Costs(), 16, 0),
        (0.0, Costs(), 4, 0),
        (1.0, Costs(check=1.0, draft=1.0), 16, 0),  # a drafter that is as slow as the target
        (1.0, Costs(check=3.0, draft=0.1), 2, 0),  # three tokens for a step that takes three times as long
        (1.0, Costs(check=3.0, draft=0.1), 8, 8),
        (0.8, Costs(check=1.0, draft=0.0), 16, 16),
    ],
)
def test_the_number_is_the_one_that_promises_the_most_tokens_per_second(
    agreement: float, costs: Costs, most: int, wanted: int
) -> None:
    assert best(agreement, costs, most) == wanted


def test_only_drafts_up_to_the_first_wrong_one_were_judged() -> None:
    seen = Agreement(0.0, 0.0)
    seen.saw(4, 1)
    assert seen.checked == pytest.approx(1 + 0.95) and seen.share == pytest.approx(0.95 / 1.95)
    seen.saw(2, 2)
    assert seen.checked == pytest.approx(0.95**3 + 0.95**2 + 0.95 + 1), "what was seen last counts most"


def rounds(speculation: Speculation, share: float, tokens: int, seed: int = 0) -> tuple[int, int]:
    """A text of so many tokens, whose drafts are right in this share: its steps, and how many of them had drafts."""
    rng, came, steps, checks = random.Random(seed), 1, 1, 0
    speculation.join(0)
    asks = speculation.came(0, 1)
    while came < tokens:
        steps += 1
        drafts = speculation.wanted(0, tokens - came - 1, Costs()) if asks else 0
        if not drafts:
            came, asks = came + 1, speculation.came(0, 1)
            continue
        right = next((place for place in range(drafts) if rng.random() >= share), drafts)
        speculation.checked(0, drafts, right)
        came, checks = came + right + 1, checks + 1
    speculation.leave(0)
    return steps, checks


def test_a_drafter_that_is_right_is_asked_on_and_on() -> None:
    steps, checks = rounds(Speculation(4), 0.9, 1000)
    assert checks > 0.95 * steps and steps < 300


def test_a_drafter_that_is_wrong_is_asked_less_and_less_often() -> None:
    speculation = Speculation(4)
    assert rounds(speculation, 0.0, 400)[1] <= 5 + 4 * TRIALS
    first = speculation.drafted
    checks = sum(rounds(speculation, 0.0, 50)[1] for _ in range(40))
    assert 2 * TRIALS <= checks <= 6 * TRIALS, "pauses are those of the batch, however short its texts are"
    assert speculation.drafted - first == checks, "a trial has one draft"
    assert speculation.accepted == 0


def test_the_pauses_grow_up_to_their_most_and_begin_anew_when_drafts_are_right_again() -> None:
    speculation, pauses = Speculation(4), []
    speculation.join(0)
    speculation.came(0, 1)
    for _ in range(8):
        speculation.late(0)
        pauses.append(next(count for count in range(1, PAUSE_MAX + 1) if speculation.came(0, 1)))
    assert pauses == [PAUSE_MIN << turn for turn in range(6)] + [PAUSE_MAX] * 2
    assert speculation.missed == 8
    for _ in range(TRIALS):
        drafts = speculation.wanted(0, 9, Costs())
        speculation.checked(0, drafts, drafts)
    speculation.late(0)
    assert next(count for count in range(1, PAUSE_MAX + 1) if speculation.came(0, 1)) == PAUSE_MIN


def test_a_text_that_becomes_easy_is_drafted_again() -> None:
    speculation = Speculation(4)
    rounds(speculation, 0.0, 200)
    steps, checks = rounds(speculation, 1.0, 600, seed=1)
    assert checks > 60 and steps < 350


def test_a_text_asks_for_no_more_drafts_than_it_has_use_for() -> None:
    speculation = Speculation(8, adaptive=False)
    speculation.join(0)
    assert [speculation.wanted(0, most, None) for most in (20, 3, 1, 0)] == [8, 3, 1, 0]


def test_steps_without_drafts_are_measured_first_and_again_after_a_while() -> None:
    times, speculation = StepTimes(), Speculation(4)
    speculation.join(0)
    assert times.costs(1, 0.0) is None
    assert speculation.wanted(0, 9, None) == 0
    assert next(count for count in range(1, 99) if speculation.came(0, 1)) == MEASURED
    for now in range(MEASURED):
        times.saw(PLAIN, 1, 0.010, now)
    assert times.costs(1, MEASURED) == Costs(), "what was not seen costs what it does usually"
    assert times.costs(2, MEASURED) is None, "of a batch of this size nothing was seen"
    for seconds in (0.5, 0.013, 0.013, 0.013):
        times.saw(CHECK, 1, seconds, MEASURED)
        times.saw(DRAFT, 1, seconds / 10, MEASURED)
    assert times.costs(1, MEASURED) == Costs(pytest.approx(1.3), pytest.approx(0.13)), "one that was disturbed is none"
    assert times.costs(1, MEASURED + STALE_S) is None


def test_what_comes_of_a_text_that_is_over_is_nobodys() -> None:
    speculation = Speculation(4)
    speculation.join(0)
    speculation.leave(0)
    speculation.checked(0, 3, 2)
    speculation.late(0)
    assert not speculation.came(0, 1) and (speculation.drafted, speculation.accepted) == (3, 2)
