"""Template limits: how much a chat template may do and make, whatever it is and whatever it is given.

A template is a program of whoever made the model.  `Work` counts for one rendering: turns of loops and calls are
steps, and every character or item of a value that the template makes is counted.  What would make much of little at
once, such as `center(10**9)`, is judged before it is done (`GROWING`).  This file knows nothing of jinja2.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from wire.errors import InputError

CHARACTERS_MAX = 32 << 20  # of a rendered conversation, and of any other value that a template makes
STEPS_MAX, STEPS_TIMES_INPUT = 1_000_000, 10  # turns of loops, and so many more for each character that is given
CALL = 10  # steps of a call, which takes so much longer than a turn
MADE_MAX = 128 << 20  # characters and items of all values together, beside
MADE_TIMES_INPUT = 64  # so many for each that the template is given
CPU_S_MAX = 10.0  # of the thread that renders, for operations that are slow one by one
SOURCE_MAX = 1 << 20  # characters of a template
BITS_MAX = 4096  # of an integer
SLOW_MAX = 1 << 20  # characters of what is given to `SLOW`
SLOW = frozenset({"striptags", "urlize", "wordwrap", "xmlattr", "pprint"})
ITEMS_A_STEP = 8  # that are counted in the time of a turn
CLOCK_STEPS = 64  # between two looks at the clock
NESTED = re.compile(r"\{[^{}]*\{|%[^a-zA-Z%]*\*")  # a width that another value tells
WIDE = re.compile(r"\d{7}")
ITEMS_MAX = 1 << 20  # of a value and all values in it
TEXTS, SEVERAL = (str, bytes), (list, tuple, dict, set, frozenset)
SIZED = (*TEXTS, *SEVERAL)


class Work:
    """What one rendering has done so far; InputError at what is too much."""

    def __init__(self, given: Any = (), cpu_s_max: float = CPU_S_MAX) -> None:
        self._steps = 0
        size = _size(given)
        self._steps_max, self._made_max = STEPS_MAX + STEPS_TIMES_INPUT * size, MADE_MAX + MADE_TIMES_INPUT * size
        self._made = 0
        self._cpu_s_max, self._until_s = cpu_s_max, time.thread_time() + cpu_s_max

    def step(self, steps: int = 1) -> None:
        """A turn of a loop, or what takes as long as several."""
        self._steps += steps
        if self._steps > self._steps_max:
            raise _too_much(f"does more than {self._steps_max} steps")
        if self._steps % CLOCK_STEPS < steps and time.thread_time() > self._until_s:
            raise _too_much(f"takes more than {self._cpu_s_max:g} s")

    def made(self, value: Any) -> Any:
        """A value that the template made, as it is; an iterator counts as it goes on."""
        if isinstance(value, SEVERAL):
            size, items = _measured(value)  # of what is in it, too: it may be there many times
            self._within(size)
            self.step(items // ITEMS_A_STEP)
            self.makes(len(value))
        elif isinstance(value, TEXTS):
            self.makes(len(value))
        elif isinstance(value, int) and value.bit_length() > BITS_MAX:
            raise _too_much(f"makes an integer of more than {BITS_MAX} bits")
        elif isinstance(value, Iterator):
            return self._each(value)
        return value

    def makes(self, size: int) -> None:
        """A value of so many characters or items is made, or about to be."""
        self._within(size)
        self._made += size
        if self._made > self._made_max:
            raise _too_much(f"makes more than {self._made_max} characters and items in all")

    @staticmethod
    def _within(size: int) -> None:
        if size > CHARACTERS_MAX:
            raise _too_much(f"makes a value of more than {CHARACTERS_MAX} characters or items")

    def turns(self, items: Any) -> Any:
        """What a loop goes through, a step for each turn."""
        if isinstance(items, (*SIZED, range)):
            return _Turns(items, self)
        return self._each(items) if isinstance(items, Iterator) else items

    def _each(self, items: Iterator[Any]) -> Iterator[Any]:
        for item in items:
            self.step()
            yield item


class _Turns:
    """The items of a loop, which knows how many there are."""

    def __init__(self, items: Any, work: Work) -> None:
        self._items, self._work = items, work

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        return self._work._each(iter(self._items))


WORK: ContextVar[Work] = ContextVar("work")


def judge(name: str, value: Any, args: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Check a method or filter before it is done; `value` is what it is done to."""
    work, given = WORK.get(), (*args, *named.values())
    work.step(CALL)
    predicted = GROWING.get(name)
    if predicted is not None:
        work.makes(predicted(value, given))
    if name in SLOW and _size(value) > SLOW_MAX:
        raise _too_much(f"gives {name} more than {SLOW_MAX} characters")


def judge_operator(operator: str, left: Any, right: Any) -> None:
    """Check an operator before it is done."""
    if operator == "%" and isinstance(left, str):
        WORK.get().makes(_formatted(left, right if isinstance(right, tuple) else (right,)))
    if operator not in ("*", "**"):
        return
    bits = [each.bit_length() if isinstance(each, int) else 0 for each in (left, right)]
    if operator == "**" and all(isinstance(each, int) for each in (left, right)):
        if bits[1] > BITS_MAX.bit_length() or bits[0] * abs(right) > BITS_MAX:
            raise _too_much(f"makes an integer of more than {BITS_MAX} bits")
        return
    repeated = next((each for each in (left, right) if isinstance(each, str | list | tuple)), None)
    count = next((each for each in (left, right) if isinstance(each, int)), 0)
    if repeated is not None:
        WORK.get().makes(max(len(repeated) * count, 0))


# -- sizes


def _size(value: Any) -> int:
    """The characters and items in a value, and in what is in it."""
    return _measured(value)[0]


def _measured(value: Any) -> tuple[int, int]:
    """The characters and items in a value and in what is in it, and the items alone."""
    size, items, waiting = 0, 0, [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, SIZED):
            size += len(each)
        if isinstance(each, SEVERAL):
            items += len(each)
            if items > ITEMS_MAX:
                raise _too_much(f"makes a value of more than {ITEMS_MAX} items")
            waiting += each
            waiting += each.values() if isinstance(each, dict) else ()
    return size, items


def _length(value: Any) -> int:
    """How long a value is as a text, or how many items it has."""
    return len(value) if isinstance(value, SIZED) else 1


def _numbers(given: Sequence[Any]) -> int:
    """The largest number that is given; what is no number is its length."""
    return max((abs(each) if isinstance(each, int) else _length(each) for each in given), default=0)


def _formatted(form: str, given: Sequence[Any]) -> int:
    if NESTED.search(form) or WIDE.search(form):
        raise _too_much("formats a value of any width")
    return len(form) * (1 + sum(_size(each) for each in given)) if given else len(form)


def _padded(value: Any, given: Sequence[Any]) -> int:
    return _length(value) + _numbers(given)


def _by_line(value: Any, given: Sequence[Any]) -> int:
    """A text, each line of which gets something."""
    lines = value.count("\n") + 1 if isinstance(value, str) else _size(value)
    return _size(value) + lines * (1 + _numbers(given))


def _replaced(value: Any, given: Sequence[Any]) -> int:
    """A text in which each place of what is replaced gets the other text."""
    texts = [each for each in given if isinstance(each, str)]
    if not isinstance(value, str) or len(texts) < 2:
        return _size(value)
    places = len(value) + 1 if not texts[0] else value.count(texts[0])
    return len(value) + places * len(texts[1])


def _joined(value: Any, given: Sequence[Any]) -> int:
    """Texts with another one between; either may be what the method is called on."""
    several = [each for each in (value, *given) if not isinstance(each, str)]
    between = max((len(each) for each in (value, *given) if isinstance(each, str)), default=0)
    return sum(_size(each) + _length(each) * between for each in several)


def _translated(value: Any, given: Sequence[Any]) -> int:
    return _length(value) * max((_size(each) for each in given), default=1)


def _summed(value: Any, given: Sequence[Any]) -> int:
    if any(isinstance(each, list | tuple) for each in given):
        raise _too_much("adds lists by sum")
    return 1


GROWING: dict[str, Callable[[Any, Sequence[Any]], int]] = {  # by method or filter: how large its value may be
    "batch": _padded, "center": _padded, "expandtabs": lambda value, given: _length(value) * (8 + _numbers(given)),
    "format": _formatted, "format_map": _formatted, "indent": _by_line, "join": _joined, "ljust": _padded,
    "replace": _replaced, "rjust": _padded, "round": _padded, "slice": _padded, "sum": _summed, "tojson": _by_line,
    "translate": _translated, "zfill": _padded,
}  # fmt: skip


def _too_much(what: str) -> InputError:
    return InputError(f"the chat template {what}", next_step="Use another chat template, or shorten the conversation")
