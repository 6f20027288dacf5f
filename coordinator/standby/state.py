"""A coordinator's decisions about its standby, and a standby's about its coordinator: events in, actions out.

Pure: no clock, no link, no disk.  The same machine runs in both, since either may become the other.

    following --silent patience_s, or Begin--> standing --a majority accepts: in sync is only this one--> serving
        ^                                         |                                                        |
        '--another serves, or is heard again------'                              another took over---------'

What makes two coordinators impossible whose acknowledged entries both stand:

* An entry is acknowledged once it is on the disk of every coordinator that is in sync.
* Who is in sync changes by the votes of a majority.  Until these are there, the old and the new ones all count.
* Who serves asked a majority to accept nothing of lower ballots, and is in sync by what they had accepted.  From
  that on it takes no entries of a lower ballot either.

So time decides when a node tries, and never what is true.  See docs/decisions/0039-a-standby.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from wire.standby.configuration import Ballot, Configuration, Record
from wire.standby.voter import Answered, Asked, Keep, Say, Stage, Voter

from . import events as ev


@dataclass(frozen=True, slots=True)
class StandbyTimes:
    """How long coordinators wait for each other, in seconds."""

    beat_s: float = 0.25  # between two signs of life of the one that serves
    patience_s: float = 1.5  # a standby stands for election after so long a silence; voters have theirs in their lease
    retry_s: float = 0.5  # questions without an answer are asked again
    stall_s: float = 10.0  # so long a journal that is on its way may pause, before it is asked for again
    detach_s: float = 3.0  # a standby that has said nothing for so long is left out
    greet_s: float = 1.0  # so long a coordinator that starts waits for others to say that they took over


@dataclass(slots=True)
class _Follower:
    """A standby that entries are sent to."""

    node: str
    stream: int
    heard_s: float
    sent: int = -1
    have: int = -1


@dataclass(slots=True)
class _Poll:
    """Votes that are being asked for.  `known` is the newest record that an answer showed."""

    stage: Stage
    ballot: Ballot
    known: Record
    began_s: float
    asked_s: float
    proposed: Configuration | None = None
    answered: set[str] = field(default_factory=set)
    granted: set[str] = field(default_factory=set)

    @property
    def quorums(self) -> list[Configuration]:
        """The configurations whose voters have to agree."""
        found = [self.proposed] if self.stage is Stage.ACCEPT else [self.known.configuration]
        return [configuration for configuration in found if configuration is not None]

    def agreed(self) -> bool:
        return bool(self.quorums) and all(each.agreed(self.granted) for each in self.quorums)


class StandbyState:
    """The coordinator `node`; `others` are the other coordinators that it knows, `stream` is larger at every start."""

    def __init__(
        self,
        node: str,
        others: Iterable[str],
        record: Record,
        now: float,
        stream: int = 0,
        times: StandbyTimes = StandbyTimes(),
    ) -> None:
        self.voter = Voter(node, record)
        self.node = node
        self.serving = False
        self.acknowledged = -1
        self._others = frozenset(others) - {node}
        self._times = times
        self._arbiters = frozenset[str]()
        self._last = -1  # the newest entry on this disk
        # while it serves
        self._ballot = Ballot()
        self._agreed = Configuration.alone(node)
        self._poll: _Poll | None = None
        self._followers: dict[str, _Follower] = {}
        self._beat_s = now
        # while it follows
        self._begins = False
        self._heard_s = now
        self._attached_s: float | None = None
        self._arrived_s: float | None = None  # when more came of what was asked for then, or is said to be on its way
        self._leader = ""
        self._stream = stream
        self._received: int | None = None  # of the stream; None: it has not begun
        self._round = record.promised.round
        self._handlers: dict[type, Callable[[Any, float], list[ev.Action]]] = {
            ev.Begin: self._begin,
            ev.Promote: self._promote,
            ev.Named: self._named,
            ev.Wrote: self._wrote,
            ev.Stored: self._stored,
            ev.NotStored: self._not_stored,
            ev.Arriving: self._arriving,
            ev.Tick: self._tick,
            Asked: self._asked,
            Answered: self._answered,
            ev.Attach: self._attach,
            ev.Entries: self._entries,
            ev.Have: self._have,
            ev.Denied: self._denied,
        }

    def handle(self, event: ev.Event, now: float) -> list[ev.Action]:
        """The actions that follow from `event`, to be performed in order.  `now` is in monotonic seconds."""
        return self._handlers[type(event)](event, now)

    @property
    def record(self) -> Record:
        """What has to be on the disk."""
        return self.voter.record

    @property
    def agreed(self) -> Configuration:
        """The configuration that counts; while this one does not serve, the newest that it knows of."""
        return self._agreed if self.serving else self.record.configuration or self._agreed

    @property
    def leader(self) -> str:
        """The coordinator that this one follows or is, "" while there is none."""
        return self.node if self.serving else self._leader

    def meet(self, node: str) -> None:
        """Count a node among the coordinators."""
        self._others |= {node} - {self.node}

    # -- elections

    def _begin(self, event: ev.Begin, now: float) -> list[ev.Action]:
        self._begins = True
        return self._stand(now)

    def _stand(self, now: float) -> list[ev.Action]:
        """Ask whether a majority would vote for this one."""
        self._leader, self._received = "", None
        known = self.record
        if known.configuration is None:
            known = Record(known.promised, known.accepted, Configuration.alone(self.node))
        return self._ask(Stage.WOULD, self._next_ballot(), known, now)

    def _next_ballot(self) -> Ballot:
        self._round = max(self._round, self.record.promised.round) + 1
        return Ballot(self._round, self.node)

    def _ask(
        self, stage: Stage, ballot: Ballot, known: Record, now: float, proposed: Configuration | None = None
    ) -> list[ev.Action]:
        self._poll = _Poll(stage, ballot, known, now, now, proposed)
        return self._ask_missing(now)

    def _ask_missing(self, now: float) -> list[ev.Action]:
        """Ask every voter that has not answered; this node's own voter answers at once."""
        poll = self._poll
        assert poll is not None
        poll.asked_s = now
        question = Asked(poll.stage, poll.ballot, poll.proposed)
        everybody = {self.node, *self._others}.union(*(each.everybody for each in poll.quorums))
        missing = sorted(everybody - poll.answered)
        actions: list[ev.Action] = [Say(node, question) for node in missing if node != self.node]
        if self.node in missing:
            for action in self.voter.asked(question, ""):
                if isinstance(action, Keep):
                    actions.insert(0, action)
                elif isinstance(action.message, Answered):
                    actions += self._answered(action.message, now)
        return actions

    def _ask_again(self, poll: _Poll, now: float) -> list[ev.Action]:
        """Ask the voters that have not answered or would not vote for this one: they may answer otherwise by now."""
        if poll.stage is Stage.WOULD:
            poll.answered &= poll.granted
            if self._round > poll.ballot.round:  # a voter promised a higher ballot
                poll.ballot = self._next_ballot()
                poll.answered.clear()
                poll.granted.clear()
        return self._ask_missing(now)

    def _answered(self, event: Answered, now: float) -> list[ev.Action]:
        self._round = max(self._round, event.record.promised.round)
        poll = self._poll
        if poll is not None and event.record.promised > poll.ballot:  # the round may be equal
            self._round = max(self._round, poll.ballot.round + 1)
        if poll is None or (event.stage, event.ballot) != (poll.stage, poll.ballot):
            return []
        if event.stage is Stage.ACCEPT and event.granted and not self._accepted(event.record, poll):
            return []  # of a configuration before
        if self.serving and event.record.accepted > self._ballot and event.record.accepted.node != self.node:
            return self._step_down(event.record.accepted.node, now)
        poll.answered.add(event.node)
        if event.granted:
            poll.granted.add(event.node)
        elif event.stage is not Stage.WOULD and event.record.promised > poll.ballot:
            return self._outbid(event.record, now)
        actions: list[ev.Action] = []
        if event.record.rank > poll.known.rank and event.record.configuration is not None:
            poll.known = event.record
            if poll.stage is not Stage.ACCEPT:
                actions += self._ask_missing(now)  # there may be other voters
        return actions + self._advance(now)

    def _accepted(self, record: Record, poll: _Poll) -> bool:
        assert poll.proposed is not None
        return record.rank >= (poll.ballot, poll.proposed.version)

    def _advance(self, now: float) -> list[ev.Action]:
        """The next stage, if a majority agrees."""
        poll = self._poll
        if poll is None:
            return []
        known = poll.known.configuration
        assert known is not None
        if not self.serving and self.node not in known.in_sync:
            return self._give_up(now)
        if not poll.agreed() or self._greets(poll, now):
            return []
        if poll.stage is Stage.ACCEPT:
            assert poll.proposed is not None
            self._poll = None
            return self._settled(poll.proposed, poll.ballot, now)
        if self.serving and poll.stage is Stage.PROMISE:
            return self._outbids(poll, now)
        if poll.stage is Stage.WOULD:
            return self._ask(Stage.PROMISE, poll.ballot, poll.known, now)
        mine = Configuration(known.version + 1, frozenset({self.node}), known.voters)
        return self._ask(Stage.ACCEPT, poll.ballot, poll.known, now, mine)

    def _greets(self, poll: _Poll, now: float) -> bool:
        """Whether a coordinator that starts still waits for others, who may have taken over by an operator's word."""
        if poll.stage is not Stage.WOULD or not self._begins or now >= poll.began_s + self._times.greet_s:
            return False
        known = poll.known.configuration
        others = self._others | (known.in_sync if known else frozenset())
        return not others <= poll.answered | {self.node}

    def _give_up(self, now: float) -> list[ev.Action]:
        """Follow again: others have entries that this one has not."""
        self._poll = None
        self._begins = False
        self._heard_s = now
        return self._call(now)

    def _settled(self, agreed: Configuration, ballot: Ballot, now: float) -> list[ev.Action]:
        """A configuration counts from now on."""
        self._agreed, self._ballot = agreed, ballot
        if not self.serving:
            self.serving = True
            self._followers.clear()
            self.acknowledged = self._last = -1  # `Wrote` says where its journal begins
            return [ev.Serve(ballot)]
        actions = self._acknowledge()
        if len(agreed.voters) > 1:
            return actions + self._propose(agreed.in_sync, agreed.voters[-1], now)
        return actions

    def _promote(self, event: ev.Promote, now: float) -> list[ev.Action]:
        if self.serving:
            return []
        known, ballot, me = self.record.configuration, self._next_ballot(), frozenset({self.node})
        mine = Configuration(known.version + 1 if known else 1, me, (me,))
        asked = Asked(Stage.ACCEPT, ballot, mine)
        others = (known.everybody if known else frozenset()) | self._others
        kept: list[ev.Action] = [keep for keep in self.voter.asked(asked, "") if isinstance(keep, Keep)]
        asking: list[ev.Action] = [Say(node, asked) for node in sorted(others - {self.node})]
        self._poll = None
        return [*kept, *asking, *self._settled(mine, ballot, now)]

    # -- while it serves

    def _named(self, event: ev.Named, now: float) -> list[ev.Action]:
        self._arbiters = event.arbiters
        in_sync = [each for each in self._followers.values() if each.node in self._agreed.in_sync]
        return [action for follower in in_sync for action in self._include(follower, now)]

    def _voters(self, in_sync: Iterable[str]) -> frozenset[str]:
        return self._arbiters | frozenset(in_sync) if self._arbiters else frozenset({self.node})

    def _propose(self, in_sync: frozenset[str], voters: frozenset[str], now: float) -> list[ev.Action]:
        return self._ask(Stage.ACCEPT, self._ballot, self.record, now, self._agreed.changed(in_sync, voters))

    def _required(self) -> frozenset[str]:
        """The coordinators that have to have an entry before it is acknowledged."""
        poll = self._poll
        pending = poll.proposed.in_sync if poll is not None and poll.proposed is not None else frozenset[str]()
        return self._agreed.in_sync | pending

    def _acknowledge(self) -> list[ev.Action]:
        has = {self.node: self._last} | {each.node: each.have for each in self._followers.values()}
        last = min(has.get(node, -1) for node in self._required())
        if not self.serving or last <= self.acknowledged:
            return []
        self.acknowledged = last
        return [ev.Acknowledge(last)]

    def _wrote(self, event: ev.Wrote, now: float) -> list[ev.Action]:
        self._last = event.last
        actions: list[ev.Action] = []
        for follower in self._followers.values():
            actions += self._send(follower)
        return actions + self._acknowledge()

    def _send(self, follower: _Follower, whole: bool = False) -> list[ev.Action]:
        first = 0 if whole else follower.sent + 1
        follower.sent = self._last
        entries = ev.Entries(self.node, self._ballot, follower.stream, first, self._last, whole)
        return [ev.Send(follower.node, entries)]

    def _attach(self, event: ev.Attach, now: float) -> list[ev.Action]:
        if not self.serving or self._last < 0:
            return []
        before = self._followers.get(event.node)
        if before is not None and before.stream >= event.stream:
            return []
        follower = _Follower(event.node, event.stream, now, have=before.have if before else -1)
        self._followers[event.node] = follower
        return self._send(follower, whole=True)

    def _have(self, event: ev.Have, now: float) -> list[ev.Action]:
        follower = self._followers.get(event.node)
        if not self.serving or follower is None or event.stream != follower.stream:
            return []
        if event.last >= follower.sent or event.last > follower.have:  # else it is there, and gets nowhere
            follower.heard_s = now
        follower.have = max(follower.have, event.last)
        return [*self._acknowledge(), *self._include(follower, now)]

    def _include(self, follower: _Follower, now: float) -> list[ev.Action]:
        """Acknowledge nothing without this standby from now on, if it has all that was."""
        agreed, in_sync = self._agreed, frozenset({self.node, follower.node})
        if self._poll is not None or follower.have < self.acknowledged or not agreed.in_sync <= in_sync:
            return []
        voters = self._voters(in_sync)
        return [] if (agreed.in_sync, agreed.voters) == (in_sync, (voters,)) else self._propose(in_sync, voters, now)

    def _detach(self, now: float) -> list[ev.Action]:
        """Leave out a standby that is silent, if a majority agrees."""
        heard_s = {each.node: each.heard_s for each in self._followers.values()}
        late_s = now - self._times.detach_s
        silent = {node for node in self._agreed.in_sync - {self.node} if heard_s.get(node, late_s) <= late_s}
        if not silent or self._poll is not None:
            return []
        return self._propose(self._agreed.in_sync - silent, self._agreed.voters[-1], now)

    def _denied(self, event: ev.Denied, now: float) -> list[ev.Action]:
        self._round = max(self._round, event.promised.round)
        if not self.serving or event.promised <= self._ballot or event.node not in self._followers:
            return []
        if self._poll is not None and self._poll.ballot > event.promised:
            return []
        return self._outbid(Record(promised=event.promised), now)

    def _outbid(self, record: Record, now: float) -> list[ev.Action]:
        """Another node asks for votes.  If this one serves, it asks for a higher ballot, to find out who does."""
        if not self.serving:
            return self._give_up(now)
        poll = self._poll
        pending = poll.proposed if poll is not None else None
        actions = self._ask(Stage.PROMISE, self._next_ballot(), self.record, now)
        if self._poll is not None:
            self._poll.proposed = pending  # it may have been agreed on, so it counts until something newer is
        return actions

    def _outbids(self, poll: _Poll, now: float) -> list[ev.Action]:
        """A majority promised this one a higher ballot: nobody took over, or its word would be among the answers."""
        known = poll.known
        assert known.configuration is not None
        if known.accepted.node != self.node:
            return self._step_down(known.accepted.node, now)
        self._ballot = poll.ballot
        latest = known.configuration
        again = Configuration(latest.version + 1, latest.in_sync | self._required(), latest.voters)
        return self._ask(Stage.ACCEPT, poll.ballot, known, now, again)

    def _step_down(self, who: str, now: float) -> list[ev.Action]:
        self.serving, self._begins, self._poll, self._heard_s = False, False, None, now
        self._followers.clear()
        return [ev.StepDown(f"{who} took over"), *self._call(now)]

    # -- while it follows

    def _call(self, now: float) -> list[ev.Action]:
        """Ask the coordinator that serves for the whole journal."""
        self._stream += 1
        self._received, self._last, self._attached_s, self._arrived_s = None, -1, now, None
        return [ev.Send(node, ev.Attach(self.node, self._stream)) for node in sorted(self._others)]

    def _entries(self, event: ev.Entries, now: float) -> list[ev.Action]:
        if event.ballot < self.record.promised:
            return [ev.Send(event.node, ev.Denied(self.node, self.record.promised))]
        if self.serving:
            return []  # asked before: its ballot is higher, so voters will say who serves
        self._heard_s, self._leader = now, event.node
        if self._poll is not None:
            self._poll, self._begins = None, False
            return self._call(now)
        if event.stream != self._stream:
            return []
        if event.whole != (self._received is None):
            if self._received is None and self._arrived_s is None:
                self._arrived_s = now  # signs of life overtake a long journal
            return []
        if self._received is not None and event.first != self._received + 1:
            return self._call(now) if event.first > self._received + 1 and self._late(now) else []
        self._received = event.last
        return [ev.Write(event)] if event.whole or event.last >= event.first else self._still(event)

    def _still(self, event: ev.Entries) -> list[ev.Action]:
        return [ev.Send(event.node, ev.Have(self.node, self._stream, self._last))] if self._last >= 0 else []

    def _stored(self, event: ev.Stored, now: float) -> list[ev.Action]:
        if event.stream != self._stream or self.serving or self._poll is not None:
            return []
        self._last = event.last
        return [ev.Send(self._leader, ev.Have(self.node, self._stream, event.last))]

    def _not_stored(self, event: ev.NotStored, now: float) -> list[ev.Action]:
        if event.stream == self._stream and not self.serving:
            self._received, self._attached_s, self._arrived_s = None, now, None
            self._stream += 1  # what was sent of this one is of no use
        return []

    def _arriving(self, event: ev.Arriving, now: float) -> list[ev.Action]:
        self._arrived_s = now
        return []

    def _comes(self, now: float) -> bool:
        """Whether the journal that was asked for is on its way."""
        return self._arrived_s is not None and now < self._arrived_s + self._times.stall_s

    def _late(self, now: float) -> bool:
        return self._attached_s is None or now >= self._attached_s + self._times.retry_s

    # -- voters, and time

    def _asked(self, event: Asked, now: float) -> list[ev.Action]:
        hears = self.leader
        if self._begins or self.serving:
            hears = self.node
        elif now >= self._heard_s + self._times.patience_s:
            hears = ""
        answer: list[ev.Action] = list(self.voter.asked(event, hears))
        self._round = max(self._round, self.record.promised.round)
        if event.ballot.node == self.node or event.stage is Stage.WOULD:
            return answer
        poll = self._poll
        if poll is not None and not self.serving and self.record.promised > poll.ballot:
            return answer + self._give_up(now)
        if self.serving and event.stage is Stage.ACCEPT and self.record.accepted == event.ballot:
            return answer + self._step_down(event.ballot.node, now)
        return answer

    def _tick(self, event: ev.Tick, now: float) -> list[ev.Action]:
        actions: list[ev.Action] = []
        poll = self._poll
        if poll is not None:
            if not self.serving and now >= poll.began_s + 4 * self._times.patience_s and not self._begins:
                return self._give_up(now)
            actions += self._advance(now)
            if self._poll is poll and now >= poll.asked_s + self._times.retry_s:
                actions += self._ask_again(poll, now)
        if self.serving:
            if now >= self._beat_s + self._times.beat_s:
                self._beat_s = now
                for follower in list(self._followers.values()):
                    actions += self._send(follower)
            return actions + self._detach(now)
        if self._poll is not None:
            return actions
        if now >= self._heard_s + self._times.patience_s and self.node in self.agreed.in_sync and self.agreed.version:
            return actions + self._stand(now)
        waits_in_vain = self._received is None and self._late(now) and not self._comes(now)
        return actions + (self._call(now) if waits_in_vain else [])

    def next_deadline(self, now: float) -> float:
        """The time at which a Tick is due."""
        return now + self._times.beat_s
