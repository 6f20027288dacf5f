"""Checker: whether what coordinators acknowledged is one log, in the order in which it was acknowledged.

Appends are the only operation, and each answer names its place; so a history is linearisable if places are unique,
agree with the order of operations that did not overlap, and with the log of whoever serves later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from wire.standby.configuration import Ballot


@dataclass(frozen=True, slots=True)
class Appended:
    """An append that was acknowledged, between these two times."""

    value: int
    place: int  # from 1 on
    ballot: Ballot
    asked_s: float
    answered_s: float


@dataclass(frozen=True, slots=True)
class Began:
    """A coordinator that began to serve, with this log."""

    ballot: Ballot
    log: tuple[int, ...]


@dataclass(slots=True)
class History:
    """What happened, in any order."""

    appended: list[Appended] = field(default_factory=list)
    began: list[Began] = field(default_factory=list)


def wrong_in(history: History) -> str:
    """What no single log explains, or ""."""
    return _twice(history.appended) or _out_of_order(history.appended) or _lost(history)


def _twice(appended: Sequence[Appended]) -> str:
    by_place: dict[int, int] = {}
    by_value: dict[int, int] = {}
    for each in appended:
        if by_place.setdefault(each.place, each.value) != each.value:
            return f"place {each.place} was acknowledged for {by_place[each.place]} and for {each.value}"
        if by_value.setdefault(each.value, each.place) != each.place:
            return f"{each.value} was acknowledged at {by_value[each.value]} and at {each.place}"
    return ""


def _out_of_order(appended: Sequence[Appended]) -> str:
    """An append that was over before another one began has the lower place."""
    highest: Appended | None = None
    ended = sorted(appended, key=lambda each: each.answered_s)
    at = 0
    for each in sorted(appended, key=lambda each: each.asked_s):
        while at < len(ended) and ended[at].answered_s < each.asked_s:
            if highest is None or ended[at].place > highest.place:
                highest = ended[at]
            at += 1
        if highest is not None and highest.place >= each.place:
            return f"{each.value} came after {highest.value} and has place {each.place}, not above {highest.place}"
    return ""


def _lost(history: History) -> str:
    """Whatever was acknowledged under a ballot, at any time, is in the log of everybody who began with a higher one."""
    for began in history.began:
        for each in history.appended:
            if each.ballot < began.ballot and began.log[each.place - 1 : each.place] != (each.value,):
                return f"{began.ballot} began without {each.value}, acknowledged at {each.place} by {each.ballot}"
    return ""
