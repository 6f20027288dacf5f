"""Two coordinators, three voters, every partition of the five, and deaths between any two actions: what is acknowledged
is one log, whoever serves.  Planted bugs are found.

`PYTHONHASHSEED=0 python tests/sim/test_standby_simulated.py COUNT [FIRST]` runs that many seeds.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

import pytest
from support.by_seed import ranges, run_seeds
from support.commit_log import Appended, Began, History, wrong_in
from support.simulated.simulated_standby import PARTITIONS, Coordinator, Node, StandbySimulation

from coordinator.standby import events as ev
from coordinator.standby.state import StandbyState, _Follower, _Poll
from wire.standby.configuration import Ballot, Configuration, Record
from wire.standby.voter import Answered, Asked, Stage, Voter

SEEDS_OF_A_BUG = 400  # within which each planted bug is found


def run(seed: int) -> Counter[str]:
    simulation = StandbySimulation(seed)
    simulation.run()
    return Counter(acknowledged=len(simulation.history.appended), served=simulation.served)


@pytest.mark.parametrize("seeds", ranges(104, 3000, 500), ids=str)
def test_what_is_acknowledged_is_one_log_whoever_serves(seeds: range) -> None:
    ends: Counter[str] = Counter()
    for seed in seeds:
        ends += run(seed)
    assert len(PARTITIONS) == 52
    assert ends["served"] > len(seeds) and ends["acknowledged"] > 50 * len(seeds)


def test_without_voters_a_standby_does_not_take_over_by_itself() -> None:
    for seed in range(20):
        simulation = StandbySimulation(seed, arbiters=())
        simulation.run()
        assert {began.ballot.node for began in simulation.history.began} == {"first"}


# -- planted bugs


class ForgetsPromises(StandbySimulation):
    def _remembered(self, node: Node) -> Record:
        return Record()


class _TakesLowerBallots(Voter):
    def _accept(self, asked: Asked, hears: str) -> bool:
        self.record = Record(asked.ballot, asked.ballot, asked.configuration)
        return True


class VoterTakesLowerBallots(StandbySimulation):
    voting = _TakesLowerBallots


class _AcknowledgesAlone(StandbyState):
    def _required(self) -> frozenset[str]:
        return frozenset({self.node})


class AcknowledgesWithoutItsStandby(StandbySimulation):
    machine = _AcknowledgesAlone


class _IgnoresTheNextConfiguration(StandbyState):
    def _required(self) -> frozenset[str]:
        return self._agreed.in_sync


class AcknowledgesAloneWhileAStandbyIsIncluded(StandbySimulation):
    machine = _IgnoresTheNextConfiguration


class _DetachesWithoutVotes(StandbyState):
    def _detach(self, now: float) -> list[ev.Action]:
        actions = super()._detach(now)
        poll = self._poll
        if poll is not None and poll.proposed is not None and poll.proposed.in_sync == {self.node}:
            self._agreed, self._poll = poll.proposed, None
            actions += self._acknowledge()
        return actions


class DetachesWithoutVotes(StandbySimulation):
    machine = _DetachesWithoutVotes


class _TakesOverOutOfSync(StandbyState):
    def _advance(self, now: float) -> list[ev.Action]:
        poll = self._poll
        if poll is not None and not self.serving and poll.known.configuration is not None:
            known = poll.known.configuration
            mine = replace(known, in_sync=known.in_sync | {self.node})
            poll.known = replace(poll.known, configuration=mine)
        return super()._advance(now)


class TakesOverOutOfSync(StandbySimulation):
    machine = _TakesOverOutOfSync


class SaysItHasWhatItHasNot(StandbySimulation):
    def _write(self, node: Coordinator, message: ev.Entries, values: tuple[int, ...]) -> None:
        self._feed(node.name, ev.Stored(message.stream, message.last))
        super()._write(node, message, values)


class _TakesEntriesOfLowerBallots(StandbyState):
    def _entries(self, event: ev.Entries, now: float) -> list[ev.Action]:
        return super()._entries(replace(event, ballot=max(event.ballot, self.record.promised)), now)


class TakesEntriesOfLowerBallots(StandbySimulation):
    machine = _TakesEntriesOfLowerBallots


class _MinorityPoll(_Poll):
    def agreed(self) -> bool:
        return bool(self.quorums) and len(self.granted) >= 2


class _ContentWithTwo(StandbyState):
    def _ask(self, stage: Any, ballot: Any, known: Any, now: float, proposed: Any = None) -> list[ev.Action]:
        self._poll = _MinorityPoll(stage, ballot, known, now, now, proposed)
        return self._ask_missing(now)


class TwoVotesAreEnough(StandbySimulation):
    machine = _ContentWithTwo


class _CountsWhatWasSent(StandbyState):
    def _send(self, follower: _Follower, whole: bool = False) -> list[ev.Action]:
        actions = super()._send(follower, whole)
        follower.have = follower.sent
        return actions


class CountsWhatWasSent(StandbySimulation):
    machine = _CountsWhatWasSent


class _NeverStepsDown(StandbyState):
    def _answered(self, event: Answered, now: float) -> list[ev.Action]:
        if self.serving:  # as if nobody else had ever been agreed on
            mine = replace(event.record, accepted=Ballot(event.record.accepted.round, self.node))
            event = replace(event, record=mine)
        return super()._answered(event, now)


class NeverStepsDown(StandbySimulation):
    machine = _NeverStepsDown


class _ChangesVotersAtOnce(StandbyState):
    def _propose(self, in_sync: frozenset[str], voters: frozenset[str], now: float) -> list[ev.Action]:
        mine = Configuration(self._agreed.version + 1, in_sync, (voters,))
        return self._ask(Stage.ACCEPT, self._ballot, self.record, now, mine)


class ChangesVotersAtOnce(StandbySimulation):
    machine = _ChangesVotersAtOnce


BUGS = {  # the first seed that found it; where that finds it no more, the others are tried
    ChangesVotersAtOnce: 15,
    ForgetsPromises: 17,
    VoterTakesLowerBallots: 65,
    AcknowledgesWithoutItsStandby: 0,
    AcknowledgesAloneWhileAStandbyIsIncluded: 20,
    DetachesWithoutVotes: 4,
    TakesOverOutOfSync: 3,
    SaysItHasWhatItHasNot: 184,
    TakesEntriesOfLowerBallots: 364,
    TwoVotesAreEnough: 4,
    CountsWhatWasSent: 3,
    NeverStepsDown: 21,
}


def seed_that_finds(bug: type[StandbySimulation], last: int) -> int | None:
    for seed in (*range(BUGS[bug], last), *range(BUGS[bug])):
        simulation = bug(seed)
        try:
            simulation.run()
        except AssertionError:
            if wrong_in(simulation.history):
                return seed
    return None


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug: type[StandbySimulation]) -> None:
    assert seed_that_finds(bug, SEEDS_OF_A_BUG) is not None


# -- the checker

ONE, TWO = Ballot(1, "first"), Ballot(2, "second")
RIGHT = [Appended(7, 1, ONE, 0.0, 1.0), Appended(8, 2, ONE, 2.0, 3.0), Appended(9, 3, TWO, 4.0, 5.0)]


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        (RIGHT, ""),
        ([*RIGHT, Appended(6, 2, TWO, 2.0, 3.0)], "place 2 was acknowledged for 8 and for 6"),
        ([*RIGHT, Appended(7, 4, TWO, 6.0, 7.0)], "7 was acknowledged at 1 and at 4"),
        ([replace(RIGHT[0], place=2), replace(RIGHT[1], place=1)], "8 came after 7"),
        ([RIGHT[0], replace(RIGHT[1], value=5)], "began without 5"),
    ],
)
def test_the_checker_says_what_no_single_log_explains(changed: list[Appended], wrong: str) -> None:
    found = wrong_in(History(changed, [Began(ONE, ()), Began(TWO, (7, 8))]))
    assert found.find(wrong) >= 0 if wrong else found == ""


def test_voters_that_change_agree_with_both_sets() -> None:
    before = Configuration(1, frozenset("a"), (frozenset("abc"),))
    step = before.changed(frozenset("a"), frozenset("cde"))

    def agreed(nodes: AbstractSet[str]) -> bool:
        return step.agreed(nodes)

    assert agreed(set("abde")) and agreed(set("acd"))
    assert not agreed(set("ab")) and not agreed(set("cde")) and not agreed(set("abc"))
    assert replace(step, version=2).changed(frozenset("a"), frozenset("cde")).voters == (frozenset("cde"),)


if __name__ == "__main__":
    sys.exit(run_seeds(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0, run, 60.0))
