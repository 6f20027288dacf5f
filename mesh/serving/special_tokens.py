"""Special tokens that the texts of a conversation spell are text to the model, and no tokens.

A template writes special tokens between the texts that it is given.  A text that has one in it, such as `<|im_end|>`,
could pretend to be the next message.  So a mark is put within such words before the template sees them.  What it
renders is split at the special tokens that it wrote itself, and text with a mark is read without any
(`Tokenizer.marked`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

MARKS = tuple(map(chr, range(0xFDD0, 0xFDF0)))  # which no text that means anything has: noncharacters of Unicode


def mark_for(values: Sequence[Any], tokens: Sequence[str]) -> str:
    """A mark for texts in these values that spell one of the tokens; "" where none does."""
    spelt = re.compile("|".join(map(re.escape, tokens))) if tokens else None
    texts = list(_texts(list(values)))
    if spelt is None or not any(spelt.search(text) for text in texts):
        return ""
    return next((mark for mark in MARKS if not any(mark in text for text in texts)), MARKS[0])


def marked(value: Any, tokens: Sequence[str], mark: str) -> Any:
    """A value whose texts have the mark within every word that is a token, behind its first character."""
    words = re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))))
    return _marked(value, words, mark)


def _marked(value: Any, words: re.Pattern[str], mark: str) -> Any:
    if isinstance(value, str):
        return words.sub(lambda found: found[0][0] + mark + found[0][1:], value)
    if isinstance(value, Mapping):
        return {_marked(key, words, mark): _marked(each, words, mark) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_marked(each, words, mark) for each in value]
    return value


def _texts(values: list[Any]) -> Iterator[str]:
    while values:
        value = values.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            values += [*value, *value.values()]
        elif isinstance(value, list | tuple):
            values += value
