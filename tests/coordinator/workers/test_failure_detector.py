"""The failure detector under a clock that the test holds: its table row by row, then properties of any story."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.call_count import calls_of

from coordinator.workers.failure_detector import (
    DECAY,
    MASS_MIN,
    PEERS_ASKED,
    SHARES,
    TRANSITIONS,
    AskPeer,
    Cause,
    Decision,
    FailureDetector,
    Health,
    HealthConfig,
    ProbeSelf,
    Transition,
)
from wire.errors import ConfigError
from wire.timeouts import PRESETS, node_timeout_of_beat

CONFIG = HealthConfig(1.5)


def detector(*nodes: str) -> FailureDetector:
    made = FailureDetector(CONFIG)
    for node in nodes or ("a",):
        made.joined(node, 1, 0.0)
    return made


def healths(decisions: list[Decision]) -> list[tuple[str, Health]]:
    return [(each.node, each.health) for each in decisions if isinstance(each, Transition)]


def asks(decisions: list[Decision]) -> list[AskPeer]:
    return [each for each in decisions if isinstance(each, AskPeer)]


def one(decisions: list[Decision]) -> Transition:
    (change,) = (each for each in decisions if isinstance(each, Transition))
    return change


def suspect(judge: FailureDetector, silent: str, *others: str) -> list[AskPeer]:
    """Let a node become Suspect at 0.5 while the others were just heard; whom it asks."""
    for other in others:
        judge.heard(other, 1, 0.45)
    decisions = judge.tick(0.5)
    assert healths(decisions) == [(silent, Health.SUSPECT)]
    return asks(decisions)


# -- silence


def test_silence_leads_to_suspect_then_dead_at_the_stated_times() -> None:
    judge = detector()
    assert judge.next_deadline() == pytest.approx(0.5)
    assert judge.tick(0.499) == []
    assert healths(judge.tick(0.5)) == [("a", Health.SUSPECT)]
    assert judge.next_deadline() == pytest.approx(1.0)
    assert judge.tick(0.999) == []
    dead = one(judge.tick(1.0))
    assert (dead.health, dead.was, dead.cause) == (Health.DEAD, Health.SUSPECT, Cause.ALONE)
    assert dead.silent_s == pytest.approx(1.0) and dead.reason == "silent for 1.00 s, and no peer was there to ask"
    assert judge.next_deadline() is None


def test_a_tick_at_the_deadline_is_never_too_early() -> None:
    """Sums of floats round: a judge that woke exactly when asked must not find that it is not yet time."""
    for heard_s in (0.1, 0.7, 123456.789, 987654.321):
        judge = FailureDetector(CONFIG)
        judge.joined("a", 1, heard_s)
        for expected in (Health.SUSPECT, Health.DEAD):
            due_s = judge.next_deadline()
            assert due_s is not None and healths(judge.tick(due_s)) == [("a", expected)]


def test_beats_keep_a_node_healthy_for_ever() -> None:
    judge = detector()
    for step in range(1, 1000):
        assert judge.heard("a", 1, step * 0.1) == []
        assert judge.tick(step * 0.1 + 0.05) == []
    assert judge.health("a") is Health.HEALTHY and judge.heard_s("a") == pytest.approx(99.9)


def test_what_a_worker_costs_its_judge_does_not_grow_with_the_crowd() -> None:
    def story(many: int) -> None:
        judge = FailureDetector(CONFIG)
        nodes = [f"node-{number}" for number in range(many)]
        for at, node in enumerate(nodes):
            judge.joined(node, 1, at * 1e-6)
            judge.next_deadline()
        for beat in range(1, 8):
            for node in nodes:
                judge.heard(node, 1, beat * CONFIG.beat_s)
            judge.next_deadline()
        assert judge.tick(1.0) == []
        decisions = judge.tick(8 * CONFIG.beat_s + CONFIG.suspect_s)
        assert len(asks(decisions)) == PEERS_ASKED * (many - 1) - 1, "the last two to be judged have one peer and none"
        assert len(healths(decisions)) == many
        judge.self_probed(True, 2.0)

    few, crowd = (calls_of(lambda many=many: story(many)) / many for many in (50, 800))
    assert crowd <= 1.1 * few


def test_a_closed_link_is_dead_at_once_and_only_once() -> None:
    judge = detector()
    dead = one(judge.lost("a", 0.05, "connection closed"))
    assert (dead.health, dead.was, dead.reason) == (Health.DEAD, Health.HEALTHY, "connection closed")
    assert judge.lost("a", 0.06, "connection closed") == []


def test_a_judge_asleep_for_long_does_not_skip_suspect() -> None:
    judge = detector()
    assert healths(judge.tick(50.0)) == [("a", Health.SUSPECT)]
    assert healths(judge.tick(50.0)) == [("a", Health.DEAD)]


def test_nodes_are_judged_apart() -> None:
    judge = detector()
    judge.joined("b", 1, 0.4)
    assert healths(judge.tick(0.6)) == [("a", Health.SUSPECT)]
    judge.forget("a")
    assert judge.health("a") is None and judge.heard_s("a") is None
    assert healths(judge.tick(0.9)) == [("b", Health.SUSPECT)]


def test_strangers_are_ignored() -> None:
    judge = detector()
    assert judge.heard("nobody", 1, 0.1) == []
    assert judge.lost("nobody", 0.1, "x") == []
    assert judge.probed(AskPeer("a", "nobody", 0.4, 0.0), True, 0.1) == []


# -- refutation and rejoin


def test_a_beat_refutes_a_suspicion() -> None:
    judge = detector()
    judge.tick(0.6)
    back = one(judge.heard("a", 2, 0.7))
    assert (back.health, back.was, back.incarnation) == (Health.HEALTHY, Health.SUSPECT, 2)
    assert judge.tick(1.0) == []


def test_late_beat_from_old_incarnation_is_ignored() -> None:
    judge = detector()
    judge.heard("a", 3, 0.1)
    judge.tick(0.7)
    assert judge.heard("a", 2, 0.8) == []
    assert judge.health("a") is Health.SUSPECT


def test_a_suspicion_names_the_incarnation_it_is_about() -> None:
    judge = detector()
    judge.heard("a", 7, 0.1)
    assert one(judge.tick(0.7)).incarnation == 7


def test_dead_is_final_until_the_node_joins_again() -> None:
    judge = detector()
    judge.tick(0.5)
    judge.tick(1.0)
    assert judge.heard("a", 9, 1.1) == []
    assert judge.health("a") is Health.DEAD
    back = one(judge.joined("a", 10, 1.2))
    assert (back.health, back.was) == (Health.HEALTHY, Health.DEAD)


# -- probes by other workers


def test_a_suspicion_asks_the_peers_heard_most_recently() -> None:
    judge = detector("a", "b", "c", "d")
    for node, heard_s in (("b", 0.3), ("c", 0.45), ("d", 0.4)):
        judge.heard(node, 1, heard_s)
    decisions = judge.tick(0.5)
    assert asks(decisions) == [AskPeer("c", "a", CONFIG.probe_s, 0.5), AskPeer("d", "a", CONFIG.probe_s, 0.5)]
    assert len(asks(decisions)) == PEERS_ASKED


def test_dead_early_only_when_every_peer_that_was_asked_failed() -> None:
    judge = detector("a", "b", "c")
    first, second = suspect(judge, "a", "b", "c")
    assert judge.probed(first, False, 0.9) == []
    judge.heard("b", 1, 0.95)
    judge.heard("c", 1, 0.95)
    assert judge.tick(1.0) == []
    dead = one(judge.probed(second, False, 1.02))
    assert (dead.cause, dead.reason) == (Cause.UNREACHED, "silent for 1.02 s, and 2 peers could not reach it")


def test_a_node_that_a_peer_reaches_has_until_the_time_out() -> None:
    judge = detector("a", "b", "c")
    first, second = suspect(judge, "a", "b", "c")
    judge.probed(first, True, 0.52)
    judge.probed(second, False, 0.9)
    for beat in (0.9, 1.3):
        judge.heard("b", 1, beat)
        judge.heard("c", 1, beat)
    assert judge.tick(1.49) == []
    dead = one(judge.tick(1.5))
    assert (dead.cause, dead.reason) == (Cause.UNHEARD, "silent for 1.50 s, though 1 peer reached it")


def test_a_peer_that_does_not_answer_is_waited_for_until_the_time_out() -> None:
    judge = detector("a", "b")
    suspect(judge, "a", "b")
    judge.heard("b", 1, 1.3)
    assert judge.tick(1.4) == []
    assert one(judge.tick(1.5)).cause is Cause.TIMED_OUT


def test_a_peer_that_could_not_try_says_nothing() -> None:
    judge = detector("a", "b")
    (ask,) = suspect(judge, "a", "b")
    assert judge.probed(ask, None, 0.6) == []
    judge.heard("b", 1, 0.9)
    assert one(judge.tick(1.0)).cause is Cause.ALONE


def test_a_peer_that_could_not_try_and_dies_is_dead_though_the_other_is_forgotten() -> None:
    """Nothing is remembered of the question, neither for its answer nor for ever."""
    judge = detector("a", "b", "c")
    ask = suspect(judge, "a", "b", "c")[0]
    judge.probed(ask, None, 0.6)
    judge.lost("a", 0.6, "closed")
    judge.forget("a")
    assert not judge._asked
    assert one(judge.lost(ask.peer, 0.7, "closed")).health is Health.DEAD
    assert not judge._withdrawn


def test_a_dead_peer_is_no_longer_waited_for() -> None:
    judge = detector("a", "b")
    suspect(judge, "a", "b")
    judge.heard("b", 1, 1.0)
    assert healths(judge.lost("b", 1.1, "connection closed")) == [("b", Health.DEAD), ("a", Health.DEAD)]


def test_an_answer_about_an_older_suspicion_is_ignored() -> None:
    judge = detector("a", "b")
    (old,) = suspect(judge, "a", "b")
    judge.heard("a", 1, 0.6)
    judge.heard("b", 1, 1.0)
    assert asks(judge.tick(1.1))
    assert judge.probed(old, False, 1.2) == []
    judge.heard("b", 1, 1.55)
    assert judge.tick(1.65) == [], "the new probe is still open"


def test_a_peer_answers_once() -> None:
    judge = detector("a", "b")
    (ask,) = suspect(judge, "a", "b")
    judge.probed(ask, True, 0.6)
    judge.probed(ask, False, 0.7)
    judge.heard("b", 1, 0.9)
    assert judge.tick(1.1) == []


# -- a judge that was late


def test_while_the_judge_was_late_nobody_was_silent() -> None:
    judge = detector()
    assert judge.tick(3.0, late_s=2.6) == []
    assert judge.health("a") is Health.HEALTHY


def test_lateness_stretches_deadlines_by_at_most_the_node_timeout_and_less_and_less() -> None:
    def suspected_after(rest_s: float, late_s: float) -> float:
        judge = detector()
        judge.tick(100.0, late_s=late_s)
        judge.heard("a", 1, 100.0 + rest_s)
        due_s = judge.next_deadline()
        assert due_s is not None
        return due_s - 100.0 - rest_s

    stretched = [suspected_after(rest_s, late_s=90.0) for rest_s in (0.0, 5.0, 10.0, 100.0)]
    assert stretched == sorted(stretched, reverse=True) and stretched[-1] == pytest.approx(CONFIG.suspect_s)
    assert stretched[0] < CONFIG.suspect_s + CONFIG.stretch_s_max
    assert suspected_after(0.0, late_s=0.3) < stretched[0]
    assert suspected_after(CONFIG.stretch_s_max / DECAY, late_s=90.0) == pytest.approx(CONFIG.suspect_s)


def test_lateness_within_a_beat_is_no_lateness() -> None:
    judge = detector()
    assert healths(judge.tick(0.59, late_s=0.09)) == [("a", Health.SUSPECT)]
    assert judge.next_deadline() == pytest.approx(1.0)


def test_a_judge_that_is_never_on_time_still_reaches_a_verdict() -> None:
    judge, now, verdicts = detector(), 0.0, []
    for _ in range(100):
        now += 0.4
        verdicts += healths(judge.tick(now, late_s=0.4))
    assert verdicts == [("a", Health.SUSPECT), ("a", Health.DEAD)]


# -- many at once


def test_when_half_fall_silent_together_verdicts_wait_and_the_judge_looks_at_itself() -> None:
    judge = detector(*"abcdef")
    for node in "def":
        judge.heard(node, 1, 0.45)
    decisions = judge.tick(0.5)
    assert decisions[-1] == ProbeSelf(("d", "e", "f"), CONFIG.probe_s)
    answered = [judge.probed(ask, False, 0.9) for ask in asks(decisions)]
    for node in "def":
        judge.heard(node, 1, 1.95)
    assert not any(answered) and judge.tick(1.99) == []
    assert healths(judge.tick(0.5 + CONFIG.hold_s)) == [("a", Health.DEAD), ("b", Health.DEAD), ("c", Health.DEAD)]


def test_a_judge_that_the_others_answer_does_not_hold_back() -> None:
    judge = detector(*"abcdef")
    for node in "def":
        judge.heard(node, 1, 0.45)
    decisions = judge.tick(0.5)
    assert judge.self_probed(False, 0.51) == [] and judge.self_probed(True, 0.52) == []
    for ask in asks(decisions):
        judge.probed(ask, False, 0.9)
    for node in "def":
        judge.heard(node, 1, 0.95)
    assert len(healths(judge.tick(1.0))) == 3


@pytest.mark.parametrize(("silent", "rest"), [("ab", ""), ("ab", "cd"), ("abc", "defg")])
def test_fewer_than_half_or_than_three_are_no_mass(silent: str, rest: str) -> None:
    judge = detector(*silent, *rest)
    for node in rest:
        judge.heard(node, 1, 0.45)
    assert not any(isinstance(each, ProbeSelf) for each in judge.tick(0.5))


def test_suspicions_that_are_long_apart_are_no_mass() -> None:
    judge = FailureDetector(HealthConfig(15.0))
    for place, node in enumerate("abc"):
        judge.joined(node, 1, place * 6.0)
    guarded = [isinstance(each, ProbeSelf) for now in (5.0, 11.0, 17.0) for each in judge.tick(now)]
    assert not any(guarded)


def test_a_verdict_is_put_off_once_in_a_silence() -> None:
    judge = detector(*"abc")
    assert isinstance(judge.tick(0.5)[-1], ProbeSelf)
    for node in "def":
        judge.joined(node, 1, 0.6)
    assert isinstance(judge.tick(1.2)[-1], ProbeSelf), "three more fell silent"
    assert healths(judge.tick(2.0)) == [("a", Health.DEAD), ("b", Health.DEAD), ("c", Health.DEAD)]


# -- the times and the table


def test_everything_follows_from_the_node_timeout() -> None:
    config = HealthConfig.from_node_timeout(3.0)
    times = (config.beat_s, config.suspect_s, config.probed_s, config.dead_s, config.lease_s)
    assert times == pytest.approx((0.2, 1.0, 2.0, 3.0, 4.0))
    assert config.lease_s >= config.suspect_s + config.hold_s, "a hold is of no use to workers that left meanwhile"
    assert node_timeout_of_beat(0.2) == pytest.approx(3.0)
    assert config.suspect_s + config.probe_s < config.probed_s, "a peer's answer must be back in time"


def test_the_line_for_people_has_every_figure_and_the_flag() -> None:
    assert HealthConfig.from_node_timeout(PRESETS["wan"].node_timeout_s).describe() == (
        "node time-out 10 s (--node-timeout): heartbeat 0.667 s, Suspect after 3.33 s of silence, "
        "Dead after 6.67 s if no peer reaches the node and after 10 s in any case"
    )


@pytest.mark.parametrize("beat_s", [0.0, -1.0, 0.009, 61.0, float("nan")])
def test_an_impossible_heartbeat_is_refused(beat_s: float) -> None:
    with pytest.raises(ConfigError, match=r"outside 0\.01 to 60"):
        node_timeout_of_beat(beat_s)


@pytest.mark.parametrize("seconds", [0.0, -1.0, 0.149, 901.0, float("nan")])
def test_an_impossible_node_timeout_is_refused(seconds: float) -> None:
    with pytest.raises(ConfigError, match=r"outside 0\.15 to 900"):
        HealthConfig.from_node_timeout(seconds)


def test_only_joining_leaves_dead_and_every_cause_has_a_row() -> None:
    assert [cause for (was, cause) in TRANSITIONS if was is Health.DEAD] == [Cause.JOINED]
    assert [was for (was, _), (health, _) in TRANSITIONS.items() if health is Health.SUSPECT] == [Health.HEALTHY]
    assert {cause for _, cause in TRANSITIONS} == set(Cause)


# -- any story


class Story:
    """Drives a detector as the coordinator does, except that ticks may come late, and notes every decision."""

    def __init__(self, nodes: int) -> None:
        self.judge = detector(*(f"n{number}" for number in range(nodes)))
        self.now = 0.0
        self.heard_s = dict.fromkeys((f"n{number}" for number in range(nodes)), 0.0)
        self.changes: list[Transition] = []
        self.open: list[AskPeer] = []
        self.lateness_s = 0.0

    def note(self, decisions: list[Decision]) -> None:
        self.changes += [each for each in decisions if isinstance(each, Transition)]
        self.open += asks(decisions)

    def pass_time(self, seconds: float, late_s: float = 0.0) -> None:
        """Tick at every deadline; with `late_s`, the last tick comes that much later than asked."""
        until_s = self.now + seconds
        while (due_s := self.judge.next_deadline()) is not None and due_s <= until_s:
            self.now = max(self.now, due_s)
            self.note(self.judge.tick(self.now))
        self.now = until_s + late_s
        if late_s:
            self.lateness_s += late_s
            self.note(self.judge.tick(self.now, late_s))

    def beat(self, node: str) -> None:
        if self.judge.health(node) is not Health.DEAD:
            self.heard_s[node] = self.now
        self.note(self.judge.heard(node, 1, self.now))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("time"), st.floats(0.0, 0.7)),
        st.tuples(st.just("late"), st.floats(0.0, 4.0)),
        st.tuples(st.just("beat"), st.integers(0, 5)),
        st.tuples(st.just("answer"), st.sampled_from([True, False, None])),
        st.tuples(st.just("self"), st.booleans()),
        st.tuples(st.just("eof"), st.integers(0, 5)),
        st.tuples(st.just("join"), st.integers(0, 5)),
    ),
    max_size=60,
)


def play(nodes: int, steps: list[tuple[str, float]]) -> Story:
    story = Story(nodes)
    for kind, value in steps:
        node = f"n{int(value or 0) % nodes}"
        match kind:
            case "time":
                story.pass_time(value)
            case "late":
                story.pass_time(0.0, late_s=value)
            case "beat":
                story.beat(node)
            case "answer" if story.open:
                story.note(story.judge.probed(story.open.pop(0), value, story.now))  # type: ignore[arg-type]
            case "self":
                story.note(story.judge.self_probed(bool(value), story.now))
            case "eof":
                story.note(story.judge.lost(node, story.now, "eof"))
            case "join":
                story.heard_s[node] = story.now
                story.note(story.judge.joined(node, 1, story.now))
    return story


def changes_of(story: Story, node: str) -> list[Transition]:
    return [change for change in story.changes if change.node == node]


@settings(max_examples=300, deadline=None)
@given(nodes=st.integers(1, 6), steps=STEPS)
def test_every_change_is_a_row_of_the_table_and_follows_the_one_before(
    nodes: int, steps: list[tuple[str, float]]
) -> None:
    story = play(nodes, steps)
    for node in story.heard_s:
        changes = changes_of(story, node)
        assert [change.was for change in changes[1:]] == [change.health for change in changes[:-1]]
        assert all(TRANSITIONS[change.was, change.cause][0] is change.health for change in changes)
        for before, after in pairwise(changes):
            assert before.health is not Health.DEAD or after.cause is Cause.JOINED, "two owners"


@settings(max_examples=300, deadline=None)
@given(nodes=st.integers(1, 6), steps=STEPS)
def test_without_eof_nobody_is_dead_before_its_share_of_silence(nodes: int, steps: list[tuple[str, float]]) -> None:
    story = play(nodes, steps)
    least = {Cause.ALONE: "probed", Cause.UNREACHED: "probed", Cause.UNHEARD: "dead", Cause.TIMED_OUT: "dead"}
    for change in story.changes:
        if change.health is Health.DEAD and change.cause is not Cause.CLOSED:
            assert change.silent_s >= CONFIG.node_timeout_s * SHARES[least[change.cause]] - 1e-9
        elif change.health is Health.SUSPECT:
            assert change.silent_s >= CONFIG.suspect_s - 1e-9


@settings(max_examples=300, deadline=None)
@given(nodes=st.integers(1, 6), steps=STEPS, answers=st.lists(st.sampled_from([True, False, None]), max_size=40))
def test_everybody_who_stays_silent_is_dead_in_time(
    nodes: int, steps: list[tuple[str, float]], answers: list[bool | None]
) -> None:
    """The limit is the node time-out, the longest stretch, one hold and the detector's own delay."""
    story = play(nodes, steps)
    began_s, late_s = story.now, story.lateness_s
    bound_s = CONFIG.dead_s + CONFIG.stretch_s_max + CONFIG.hold_s + late_s
    for answer in answers:
        story.pass_time(0.1)
        if story.open:
            story.note(story.judge.probed(story.open.pop(0), answer, story.now))
    story.pass_time(max(0.0, began_s + bound_s - story.now))
    assert all(story.judge.health(node) is Health.DEAD for node in story.heard_s)
    assert story.judge.next_deadline() is None


@settings(max_examples=200, deadline=None)
@given(
    nodes=st.integers(1, 6),
    gaps=st.lists(st.floats(0.0, 0.49), min_size=1, max_size=80),
    late_s=st.lists(st.floats(0.0, 2.0), min_size=1, max_size=80),
)
def test_beats_in_time_keep_everybody_healthy_however_late_the_judge(
    nodes: int, gaps: list[float], late_s: list[float]
) -> None:
    story = Story(nodes)
    for gap, late in zip(gaps, late_s, strict=False):
        story.pass_time(gap, late)
        for node in story.heard_s:
            story.beat(node)
    late_alone = [change for change in story.changes if change.health is Health.DEAD]
    assert late_alone == []


@settings(max_examples=200, deadline=None)
@given(nodes=st.integers(MASS_MIN, 12), silent=st.integers(MASS_MIN, 12), spread_s=st.floats(0.0, 0.1))
def test_the_mass_guard_holds_exactly_when_half_are_gone(nodes: int, silent: int, spread_s: float) -> None:
    silent = min(silent, nodes)
    story = Story(nodes)
    story.pass_time(spread_s)
    for node in list(story.heard_s)[: silent // 2]:
        story.beat(node)
    kept = list(story.heard_s)[silent:]
    while story.now < CONFIG.probed_s + 0.2:
        for node in kept:
            story.beat(node)
        story.pass_time(0.05)
        while story.open:
            story.note(story.judge.probed(story.open.pop(), False, story.now))
    dead = {change.node for change in story.changes if change.health is Health.DEAD}
    assert len(dead) == (0 if 2 * silent >= nodes else silent)
    story.pass_time(CONFIG.suspect_s + CONFIG.hold_s)
    assert all(story.judge.health(node) is Health.DEAD for node in list(story.heard_s)[:silent])
