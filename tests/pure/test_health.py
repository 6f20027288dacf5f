"""The failure detector under a clock that the test holds."""

from __future__ import annotations

import pytest

from coordinator.health import Health, HealthConfig, HealthDetector
from wire.errors import ConfigError

CONFIG = HealthConfig(beat_s=0.1)


def detector() -> HealthDetector:
    made = HealthDetector(CONFIG)
    made.joined("a", 1, 0.0)
    return made


def healths(transitions: list) -> list[tuple[str, Health]]:
    return [(change.node, change.health) for change in transitions]


def test_silence_leads_to_suspect_then_dead_at_the_stated_times() -> None:
    judge = detector()
    assert judge.next_deadline() == pytest.approx(0.5)
    assert judge.tick(0.499) == []
    assert healths(judge.tick(0.5)) == [("a", Health.SUSPECT)]
    assert judge.next_deadline() == pytest.approx(1.0)
    assert judge.tick(0.999) == []
    (dead,) = judge.tick(1.0)
    assert (dead.health, dead.was, dead.silent_s) == (Health.DEAD, Health.SUSPECT, pytest.approx(1.0))
    assert judge.next_deadline() is None


def test_beats_keep_a_node_healthy_for_ever() -> None:
    judge = detector()
    for step in range(1, 1000):
        assert judge.heard("a", 1, step * 0.1) == []
        assert judge.tick(step * 0.1 + 0.05) == []
    assert judge.health("a") is Health.HEALTHY


def test_a_beat_refutes_a_suspicion() -> None:
    judge = detector()
    judge.tick(0.6)
    (back,) = judge.heard("a", 2, 0.7)
    assert (back.health, back.was) == (Health.HEALTHY, Health.SUSPECT)
    assert judge.tick(1.0) == []


def test_late_beat_from_old_incarnation_is_ignored() -> None:
    judge = detector()
    judge.heard("a", 3, 0.1)
    judge.tick(0.7)
    assert judge.heard("a", 2, 0.8) == []
    assert judge.health("a") is Health.SUSPECT


def test_dead_is_final_until_the_node_joins_again() -> None:
    judge = detector()
    judge.tick(0.5)
    judge.tick(1.0)
    assert judge.heard("a", 9, 1.1) == []
    assert judge.health("a") is Health.DEAD
    (back,) = judge.joined("a", 10, 1.2)
    assert (back.health, back.was) == (Health.HEALTHY, Health.DEAD)


def test_a_closed_link_is_dead_at_once_and_only_once() -> None:
    judge = detector()
    (dead,) = judge.lost("a", 0.05, "connection closed")
    assert (dead.health, dead.was, dead.reason) == (Health.DEAD, Health.HEALTHY, "connection closed")
    assert judge.lost("a", 0.06, "connection closed") == []


def test_a_late_judge_gives_every_node_its_own_delay() -> None:
    judge = detector()
    assert judge.tick(3.0, late_s=2.6) == []
    assert judge.health("a") is Health.HEALTHY
    assert healths(judge.tick(3.2)) == [("a", Health.SUSPECT)]


def test_a_judge_asleep_for_long_does_not_skip_suspect() -> None:
    judge = detector()
    assert healths(judge.tick(50.0)) == [("a", Health.SUSPECT)]
    assert healths(judge.tick(50.0)) == [("a", Health.DEAD)]


def test_nodes_are_judged_apart() -> None:
    judge = detector()
    judge.joined("b", 1, 0.4)
    assert healths(judge.tick(0.6)) == [("a", Health.SUSPECT)]
    judge.forget("a")
    assert judge.health("a") is None
    assert healths(judge.tick(0.9)) == [("b", Health.SUSPECT)]


def test_strangers_are_ignored() -> None:
    judge = detector()
    assert judge.heard("nobody", 1, 0.1) == []
    assert judge.lost("nobody", 0.1, "x") == []


@pytest.mark.parametrize("beat_s", [0.0, -1.0, 0.009, 61.0, float("nan")])
def test_an_impossible_heartbeat_is_refused(beat_s: float) -> None:
    with pytest.raises(ConfigError, match=r"outside 0\.01 to 60"):
        HealthConfig.of_heartbeat(beat_s)


def test_everything_follows_from_the_heartbeat() -> None:
    config = HealthConfig.of_heartbeat(0.2)
    assert (config.suspect_s, config.dead_s, config.lease_s) == pytest.approx((1.0, 2.0, 3.0))
